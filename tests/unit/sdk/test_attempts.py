"""What a worker decides about its attempts, without socket, clock or thread."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from orbit.sdk.attempts import Attempt, Attempts, Phase
from orbit.sdk.context import CancelReason
from orbit.sdk.frames import (
    AssignedTask,
    CancelItem,
    RecordedItem,
    RenewedItem,
    ResumedItem,
    StartedItem,
    Welcome,
    item_frames,
    new_message_id,
)
from orbit.sdk.handlers import Handlers
from orbit.sdk.outcomes import Outcome

DONE = Outcome("SUCCEEDED", output=msgspec.Raw(b"1"))


class HandPool:
    """Runs nothing; remembers what it was given."""

    def __init__(self) -> None:
        self.queued: list[Attempt] = []
        self.running: list[Attempt] = []

    def submit(self, items: Sequence[Attempt]) -> None:
        self.queued.extend(items)

    def withdraw(self, item: Attempt) -> bool:
        if item not in self.queued:
            return False
        self.queued.remove(item)
        return True

    def begin(self) -> Attempt:
        attempt = self.queued.pop(0)
        self.running.append(attempt)
        return attempt


class Table:
    """A worker's attempts with a hand on every side."""

    def __init__(self, capacity: int = 2) -> None:
        handlers = Handlers()
        handlers.add("echo@1", "MANUAL", lambda params, _context: params)
        self.pool = HandPool()
        self.attempts = Attempts(handlers=handlers, pool=self.pool, capacity=capacity)
        self.welcome(at=0.0)

    def welcome(self, *resumed: ResumedItem, at: float) -> None:
        numbers = Welcome(lease_ms=30_000, renew_every_ms=10_000, resumed=list(resumed))
        self.attempts.welcomed(numbers, at, at)

    def assign(self, name: str, *, at: float = 0.0, kind: str = "echo", deadline_in_ms: int | None = None) -> None:
        task = AssignedTask(f"t{name}", name, f"k{name}", kind, 1, deadline_in_ms=deadline_in_ms)
        self.attempts.assigned([task], at)

    def said(self, at: float = 0.0) -> list[tuple[str, Any]]:
        """Return what would be sent now: (type, items or value)."""
        self.attempts.scan(at)
        messages = [json.loads(text) for text in self.attempts.outgoing(at)]
        return [(message["type"], message.get("items", message.get("capacity"))) for message in messages]

    def start(self, name: str, *, at: float = 0.0) -> Attempt:
        """Assign one task, get its start granted and begin it."""
        self.assign(name, at=at)
        ((kind, items),) = self.said(at)
        assert kind == "start"
        self.grant(items, at=at)
        return self.pool.begin()

    def grant(self, items: Sequence[Any], *, at: float = 0.0) -> None:
        granted = [StartedItem(item["message_id"], granted=True, lease_ms=30_000) for item in items]
        self.attempts.started(granted, at)


def test_a_task_is_started_run_and_reported_in_that_order() -> None:
    table = Table()
    attempt = table.start("a")
    assert table.said() == []
    table.attempts.finished(attempt, DONE)
    ((kind, (item,)),) = table.said()
    assert (kind, item["outcome"], item["output"], item["token"]) == ("result", "SUCCEEDED", 1, "ka")
    assert not table.attempts.settled
    table.attempts.recorded([RecordedItem(item["message_id"], "ACCEPTED")], 1.0)
    assert table.attempts.settled


@pytest.mark.parametrize("kind", ["echo", "unknown"])
def test_what_there_is_no_room_or_handler_for_is_handed_back(kind: str) -> None:
    table = Table(capacity=1)
    if kind == "echo":
        table.start("a")
    table.assign("b", kind=kind)
    assert table.said() == [("release", [{"attempt_id": "b", "token": "kb"}])]


def test_an_attempt_is_taken_once_however_often_it_is_offered() -> None:
    table = Table()
    attempt = table.start("a")
    table.assign("a")
    table.attempts.finished(attempt, DONE)
    ((_, (item,)),) = table.said()
    table.attempts.recorded([RecordedItem(item["message_id"], "ACCEPTED")], 0.0)
    table.assign("a")
    assert table.said() == []


def test_a_limited_start_is_asked_again_with_its_id_until_its_assignment_ends() -> None:
    table = Table()
    table.assign("a")
    ((_, (first,)),) = table.said()
    limited = StartedItem(first["message_id"], code="RATE_LIMITED", retry_after_ms=500, lease_ms=2_000)
    table.attempts.started([limited], 0.1)
    assert table.said(0.5) == []
    ((kind, (second,)),) = table.said(0.7)
    assert (kind, second) == ("start", first)
    table.attempts.started([limited], 0.8)
    ((kind, _),) = table.said(3.0)
    assert kind == "start"
    table.attempts.started([StartedItem(first["message_id"], code="RATE_LIMITED", retry_after_ms=9_000)], 3.1)
    assert table.said(5.0) == [("release", [{"attempt_id": "a", "token": "ka"}])]


def test_a_lease_counts_from_the_moment_of_sending_less_a_tenth() -> None:
    table = Table()
    table.assign("a")
    ((_, items),) = table.said(100.0)
    table.grant(items, at=109.0)
    attempt = table.pool.begin()
    assert attempt.lease_until == pytest.approx(127.0)
    table.said(126.9)
    assert not attempt.cancelled.is_set()
    table.said(127.1)
    assert attempt.cancelled.reason == "LEASE_LOST"


def test_a_renewal_counts_from_the_oldest_question_without_an_answer() -> None:
    table = Table()
    attempt = table.start("a")
    assert table.said(7.0) == []
    assert table.said(10.0) == [("renew", [{"attempt_id": "a", "token": "ka"}])]
    assert table.said(20.5) == [("renew", [{"attempt_id": "a", "token": "ka"}])]
    table.attempts.renewed([RenewedItem("a", lease_ms=30_000)], 21.0)
    assert attempt.lease_until == pytest.approx(37.0)
    table.attempts.renewed([RenewedItem("a", lease_ms=30_000)], 21.1)
    assert attempt.lease_until == pytest.approx(37.0)


def test_renewals_that_are_due_soon_go_together() -> None:
    table = Table()
    table.start("a", at=0.0)
    table.start("b", at=1.5)
    ((kind, items),) = table.said(10.0)
    assert kind == "renew"
    assert [item["attempt_id"] for item in items] == ["a", "b"]


def test_a_lost_lease_keeps_the_slot_until_the_handler_returns() -> None:
    table = Table(capacity=2)
    attempt = table.start("a")
    table.attempts.renewed([RenewedItem("a", code="LEASE_LOST")], 5.0)
    assert attempt.cancelled.reason == "LEASE_LOST"
    assert table.said(5.0) == [("capacity", 1)]
    assert table.attempts.settled
    table.attempts.finished(attempt, DONE)
    assert [kind for kind, _ in table.said(6.0)] == ["capacity", "result"]


def test_what_was_granted_but_not_begun_is_dropped_when_it_is_lost() -> None:
    table = Table()
    table.assign("a")
    ((_, items),) = table.said()
    table.grant(items)
    table.attempts.renewed([RenewedItem("a", code="LEASE_LOST")], 5.0)
    assert table.pool.queued == []
    assert table.said(5.0) == []


@pytest.mark.parametrize(("why", "said"), [("time", ("RETURNED", False)), ("wish", ("CANCELLED", None))])
def test_what_was_granted_and_never_began_is_returned_as_not_run_unless_a_cancel_is_wanted(
    why: str, said: tuple[str, bool | None]
) -> None:
    table = Table()
    table.assign("a", deadline_in_ms=5_000)
    ((_, items),) = table.said()
    table.grant(items)
    if why == "wish":
        table.attempts.cancel([CancelItem("a")])
    ((kind, (item,)),) = table.said(6.0)
    assert (kind, item["outcome"], item.get("ran")) == ("result", *said)
    assert table.pool.queued == []


def test_a_handler_that_began_and_ran_out_of_time_says_itself_what_it_did() -> None:
    table = Table()
    table.assign("a", deadline_in_ms=5_000)
    ((_, items),) = table.said()
    table.grant(items)
    attempt = table.pool.begin()
    assert "result" not in [kind for kind, _ in table.said(6.0)]
    assert attempt.cancelled.reason is CancelReason.TIMED_OUT


@pytest.mark.parametrize(
    ("phase", "verdict", "said"),
    [
        ("asked", "HELD", ["start"]),
        ("asked", "START_AGAIN", ["start"]),
        ("asked", "LOST", []),
        ("running", "HELD", ["renew"]),
        ("running", "START_AGAIN", ["start", "renew"]),
        ("running", "LOST", ["capacity"]),
        ("finished", "HELD", ["result", "renew"]),
        ("finished", "LOST", ["result"]),
        ("finished", "RECORDED", []),
        ("running", None, ["capacity"]),
    ],
)
def test_resume_is_answered_by_phase_and_verdict(phase: str, verdict: str | None, said: list[str]) -> None:
    table = Table()
    if phase == "asked":
        table.assign("a")
        table.said()
    else:
        attempt = table.start("a")
        if phase == "finished":
            table.attempts.finished(attempt, DONE)
            table.said()
    table.attempts.disconnected()
    expected = {"asked": Phase.LEASED, "running": Phase.RUNNING, "finished": Phase.FINISHED}[phase]
    assert [(item.attempt_id, item.phase) for item in table.attempts.resume_items()] == [("a", expected)]
    table.welcome(*([ResumedItem("a", verdict)] if verdict is not None else []), at=12.0)
    heard = table.said(12.0)
    assert {kind for kind, _ in heard} == set(said)
    assert len(table.pool.queued) == 0, "no verdict runs a handler a second time"


def test_a_result_made_while_disconnected_is_sent_once() -> None:
    table = Table()
    attempt = table.start("a")
    table.attempts.disconnected()
    table.attempts.finished(attempt, DONE)
    table.welcome(ResumedItem("a", "HELD"), at=1.0)
    ((kind, items),) = table.said(1.0)
    assert (kind, len(items)) == ("result", 1)


def test_a_result_without_a_receipt_is_sent_again_with_its_id() -> None:
    table = Table()
    table.attempts.finished(table.start("a"), DONE)
    ((_, first),) = table.said()
    unavailable = RecordedItem(first[0]["message_id"], "UNAVAILABLE", retry_after_ms=1_000)
    table.attempts.recorded([unavailable], 0.0)
    assert table.said(0.9) == []
    assert table.said(1.1) == [("result", first)]


def test_a_drain_releases_returns_and_waits() -> None:
    table = Table(capacity=4)
    running = table.start("running")
    table.assign("queued")
    ((_, items),) = table.said()
    table.grant(items)
    table.assign("asked")
    ((_, asked),) = table.said()
    table.assign("new")
    table.attempts.drain()
    heard = dict(table.said())
    assert heard["capacity"] == 0
    assert [item["attempt_id"] for item in heard["release"]] == ["new"]
    assert [(item["attempt_id"], item["outcome"], item["ran"]) for item in heard["result"]] == [
        ("queued", "RETURNED", False)
    ]
    table.grant(asked)
    ((_, (returned,)),) = table.said()
    assert (returned["attempt_id"], returned["ran"]) == ("asked", False)
    table.assign("late")
    assert [kind for kind, _ in table.said()] == ["release"]
    table.attempts.give_back()
    assert running.cancelled.reason == "DRAINING"
    ((_, (last,)),) = table.said()
    assert (last["attempt_id"], last["outcome"], last["ran"]) == ("running", "RETURNED", True)
    table.attempts.finished(running, DONE)
    assert table.said() == [], "a handler that ends after it was given back has nothing to say"


def test_items_are_cut_into_messages_of_the_allowed_size() -> None:
    items = [{"message_id": new_message_id(), "output": "x" * 300} for _ in range(100)]
    texts = list(item_frames("result", items, 4_096))
    assert all(len(text) <= 4_096 for text in texts)
    assert [item for text in texts for item in json.loads(text)["items"]] == items
    assert len(texts) < 12
