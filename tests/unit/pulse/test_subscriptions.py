"""What a subscription wants, its spans, and the moves of deliveries: pure rules."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit.clock import SECOND
from orbit.event_types import EVENT_TYPES, is_known
from orbit.subscription import (
    DELIVERY_MOVES,
    EFFECTIVE_MICROS,
    LEAD_MICROS,
    SETTLED_MICROS,
    SUBSCRIPTION_MOVES,
    DeliveryState,
    Facts,
    Filter,
    Matcher,
    Spans,
    SubscriptionState,
    is_over,
    overflowed,
    readable_until,
    reopened,
    state_when_handed_out,
    token_read,
    token_text,
)
from tests.support.declared import ROOT

_RECORD = r'EventRecord\([^)]*"([a-z_]+\.[a-z_]+)"'
INSTANTS = st.integers(min_value=0, max_value=60 * SECOND)
QUEUE, OTHER = bytes(16), bytes(15) + b"\1"
SUBMITTED = Facts("task.submitted", QUEUE, None, "a.b@1")


@pytest.mark.parametrize(
    ("wanted", "is_meant"),
    [
        (Filter(), True),
        (Filter(event_types=("task.submitted",)), True),
        (Filter(event_types=("task.*",)), True),
        (Filter(event_types=("task.failed", "task_type.*")), False),
        (Filter(queues={"q": QUEUE}), True),
        (Filter(queues={"q": OTHER}), False),
        (Filter(task_types=("a.b",)), True),
        (Filter(task_types=("a.b@1",)), True),
        (Filter(task_types=("a.b@2", "a")), False),
        (Filter(workflows=("payout",)), False),
        (Filter(event_types=("task.*",), queues={"q": QUEUE}, task_types=("a.b@1",)), True),
        (Filter(event_types=("task.*",), queues={"q": OTHER}, task_types=("a.b@1",)), False),
    ],
)
def test_a_filter_means_what_all_its_parts_mean(wanted: Filter, is_meant: bool) -> None:  # noqa: FBT001
    assert Matcher(wanted).matches(SUBMITTED) is is_meant


def test_what_has_no_queue_type_or_workflow_fits_no_filter_for_one() -> None:
    plain = Facts("batch.done")
    assert Matcher(Filter()).matches(plain)
    for wanted in (Filter(queues={"q": QUEUE}), Filter(task_types=("a.b",)), Filter(workflows=("w",))):
        assert not Matcher(wanted).matches(plain)
    assert Matcher(Filter(workflows=("w",))).matches(Facts("instance.started", workflow="w"))
    # `task.*` is not a prefix of `task_type.registered`.
    assert not Matcher(Filter(event_types=("task.*",))).matches(Facts("task_type.registered"))


def test_only_types_that_there_are_are_known() -> None:
    assert all(is_known(name) and is_known(f"{name.partition('.')[0]}.*") for name in EVENT_TYPES)
    assert not any(map(is_known, ("task.started", "task.leased", "*", "task", "task.s*", "", ".*", "nothing.*")))


def test_the_types_of_the_page_and_of_the_code_are_those_that_there_are() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| (.+) \|$", (ROOT / "docs/events.md").read_text(), re.MULTILINE)
    fields = {"name", "event_types", "queues", "task_types", "workflows"}
    assert {name: words for name, words in rows if "." in name and name not in fields} == EVENT_TYPES
    sources = [path for room in ("pulse", "engine", "definitions") for path in (ROOT / room).rglob("*.py")]
    named = {name for path in sources for name in re.findall(_RECORD, path.read_text())}
    assert len(named) > 5
    assert named <= EVENT_TYPES.keys()


@given(INSTANTS, INSTANTS, INSTANTS, st.lists(INSTANTS, min_size=1))
def test_r194_live_deliveries_and_the_log_meet_without_gap_or_overlap(
    opens_at: int, overflow_at: int, reopen_at: int, instants: list[int]
) -> None:
    """Each event after the opening is delivered once: in its transaction, or from the log between the two spans."""
    overflow_at, reopen_at = opens_at + overflow_at, opens_at + overflow_at + LEAD_MICROS + reopen_at
    closed = overflowed(Spans(opens_at), now=overflow_at)
    again = reopened(closed, now=reopen_at)
    assert closed.closes_at is not None
    assert again.reopens_at is not None
    for at in instants:
        is_live, is_read = again.holds(at), again.closes_at <= at < again.reopens_at  # type: ignore[operator]
        assert is_live + is_read == (at >= opens_at)
        # Before a boundary all spans agree, so it does not matter which of them a node knows.
        if at < overflow_at + LEAD_MICROS:
            assert closed.holds(at) == Spans(opens_at).holds(at)
        if at < reopen_at + LEAD_MICROS:
            assert again.holds(at) == closed.holds(at)


def test_nothing_is_read_that_may_still_change() -> None:
    closed = Spans(0, 10 * SECOND)
    assert readable_until(closed, effective_at=20 * SECOND, now=20 * SECOND - 1) is None
    assert readable_until(closed, effective_at=20 * SECOND, now=20 * SECOND) == 20 * SECOND - SETTLED_MICROS
    again = reopened(closed, now=20 * SECOND)
    assert readable_until(again, effective_at=0, now=60 * SECOND) == again.reopens_at
    assert LEAD_MICROS + SETTLED_MICROS == EFFECTIVE_MICROS


def test_who_commits_late_misses_only_those_that_would_not_read_it() -> None:
    active, closed = Spans(10), Spans(0, 10)
    assert active.misses(9, SubscriptionState.ACTIVE)
    assert not active.misses(10, SubscriptionState.ACTIVE)
    assert closed.misses(10, SubscriptionState.RESUMING)
    assert not closed.misses(9, SubscriptionState.RESUMING)
    assert not Spans(0, 10, 20).misses(20, SubscriptionState.RESUMING)
    # What overflowed is read only after it is resumed, a deleted one never.
    assert not closed.misses(10, SubscriptionState.OVERFLOWED)
    assert not closed.misses(10, SubscriptionState.DELETED)


def test_r179_the_bound_of_a_backlog_is_still_good() -> None:
    assert not is_over(100, 100)
    assert is_over(101, 100)


def test_a_delivery_is_handed_out_as_often_as_it_may() -> None:
    assert [state_when_handed_out(count, 3) for count in (1, 2, 3, 4)] == [
        DeliveryState.PENDING, DeliveryState.PENDING, DeliveryState.LAST, DeliveryState.LAST,
    ]  # fmt: skip


def test_every_state_has_its_moves() -> None:
    assert SUBSCRIPTION_MOVES.keys() == set(SubscriptionState)
    assert DELIVERY_MOVES.keys() == set(DeliveryState)
    assert SubscriptionState.ACTIVE not in SUBSCRIPTION_MOVES[SubscriptionState.OVERFLOWED]


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_a_token_is_read_as_it_was_written(event_id: bytes, secret: bytes) -> None:
    assert token_read(token_text(event_id, secret)) == (event_id, secret)
