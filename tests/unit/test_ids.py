"""Ids: their form, and the order in which a process mints them."""

import time
from uuid import RFC_4122, UUID

import pytest

from orbit.ids import new_id


def test_an_id_is_a_uuid_of_version_7_with_the_time_in_front() -> None:
    before = time.time_ns() // 1_000_000
    made = new_id()
    after = time.time_ns() // 1_000_000
    read = UUID(bytes=made)
    assert (read.version, read.variant) == (7, RFC_4122)
    assert before <= int.from_bytes(made[:6], "big") <= after + 1


def test_ids_sort_in_the_order_in_which_they_were_made() -> None:
    made = [new_id() for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_a_clock_that_is_set_back_does_not_set_the_order_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first = new_id()
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    later = [new_id() for _ in range(5_000)]
    assert [first, *later] == sorted([first, *later])
