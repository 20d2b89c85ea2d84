"""A small world around one task layer: clients, workers, operators, nodes that die, and time.

A story is a list of moves (`pulse_moves`) with what was chosen for each. Whom a move is about is chosen by a number,
taken modulo those there are, so a story stays one when moves are left out. What must hold is in `pulse_invariants`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from msgspec.structs import replace
from sqlalchemy import select

from orbit.clock import SECOND
from orbit.database import Database, Transaction
from orbit.errors import OrbitError
from orbit.ids import new_id
from orbit.jsontext import dumps
from orbit.store.tenancy import NamespaceName, namespace_ensure
from pulse.catalog import Catalog
from pulse.claim import Assignment, Demand, claim
from pulse.gates import gate_close, gate_create, gate_open
from pulse.key_limits import KeyChange, key_configure, key_view
from pulse.listener import TaskChange, TaskOwner
from pulse.placement import Seat
from pulse.quotas import (
    QuotaChange,
    QuotaSettings,
    application_configure,
    application_get,
    application_of,
    permits_read,
)
from pulse.report import Outcome, ReceiptKind, ReportedError
from pulse.requests import RetryPolicy
from pulse.restore import after_restore
from pulse.review import Verdict
from pulse.start import StartCode
from pulse.states import TERMINAL, ErrorClass, RecoverySafety, TaskState
from pulse.store.lanes import lanes_of
from pulse.submission import Submit
from pulse.sweeps import DeadlineSweep
from pulse.tables import task
from tests.support.pulse import Pulse
from tests.support.pulse_moves import KEYS, QUEUES, SAFETY

T = TypeVar("T")
_FINAL = frozenset(StartCode) - {StartCode.RATE_LIMITED, StartCode.ALREADY_STARTED}
_DRAIN_SECONDS = 6.0


class CutOff(Exception):
    """A node died before its COMMIT."""


class Fragile:
    """A database that can be told to cut a transaction off at its very end, as the death of a node does.

    `lives` says how many more may commit before; None that all may.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.lives: int | None = None

    def transaction(self, work: Callable[[Transaction], T], **options: Any) -> T:
        def cut(tx: Transaction) -> T:
            work(tx)
            raise CutOff

        if self.lives is not None:
            self.lives -= 1
        is_cut = self.lives is not None and self.lives < 0
        return self._database.transaction(cut if is_cut else work, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


@dataclass
class Node:
    """What a node keeps in memory, and loses when it dies."""

    catalog: Catalog
    deadlines: DeadlineSweep
    session_id: bytes


@dataclass
class Room:
    """Room of a node's workers, as a submission is offered it, and what it was used for."""

    seats: Sequence[Seat]
    waiting: Mapping[bytes, int] = field(default_factory=dict)
    handed: list[Assignment] = field(default_factory=list)

    def deliver(self, assignments: Sequence[Assignment]) -> None:
        self.handed.extend(assignments)

    def withdraw(self) -> None:
        """It is not offered again."""


class World:
    """One namespace with two queues, a gate before some of its tasks, and every attempt that was ever handed out."""

    def __init__(self, database: Database) -> None:
        self.fragile = Fragile(database)
        self.pulse = pulse = Pulse(cast("Database", self.fragile))
        named = NamespaceName(f"world-{new_id().hex()}", "default", "test")
        pulse.namespace_id = database.transaction(lambda tx: namespace_ensure(tx, named)).id
        pulse.listeners.append(self)
        self.queues = {name: pulse.queue(name) for name in QUEUES}
        self.gate_id = new_id()
        database.transaction(lambda tx: gate_create(tx, self.gate_id, namespace_id=pulse.namespace_id))
        pulse.register("ask")
        pulse.register("pay", RecoverySafety.VERIFY, verify_with="ask@1")
        self.tasks: list[bytes] = []
        self.submitted: dict[bytes, Submit] = {}
        self.assignments: list[Assignment] = []
        self.start_ids: dict[bytes, bytes] = {}
        self.started: set[bytes] = set()
        self.limits: dict[str, int | None] = {}
        self.quotas = QuotaSettings()
        self.fencing: dict[bytes, int] = {}
        self.reviews: Counter[bytes] = Counter()
        self.told: dict[bytes, list[TaskState]] = defaultdict(list)
        self.swept_at = 0
        self.nodes = [self._node(), self._node()]

    def tasks_changed(self, tx: Transaction, changes: Sequence[TaskChange]) -> None:
        """Hear of owned tasks, once that is certain."""

        def note() -> None:
            for change in changes:
                if not change.is_late_success:
                    self.told[change.task_id].append(change.state)

        tx.after_commit(note)

    def gate_quiet(self, *_: object) -> None:
        """Hear of the gate."""

    def live(self) -> list[Assignment]:
        """Return the assignments that nobody has said to be over."""
        return [each for each in self.assignments if each.attempt_id not in self.pulse.ended]

    def held(self, key: str) -> int:
        """Count the live attempts whose tasks have a key."""
        named = f'"{key}"'
        return sum(named in (each.task.concurrency_keys or "") for each in self.live())

    def limit(self, key: str) -> int:
        """Return the limit of a key that counts now."""
        return self.limits.get(key) or self.limits.get("*") or 1

    # Clients.

    def submit_to_room(self, count: int, queue: str, room: int, **more: Any) -> None:
        """Submit a batch to a node whose workers have so much room: what needs not wait is handed out at once."""
        lanes = self._lanes(QUEUES, list(SAFETY))
        offers: list[Room] = []

        def offered(wanted: Mapping[bytes, int]) -> Room | None:
            served = {lane_id: lanes[lane_id] for lane_id in wanted.keys() & lanes.keys()}
            if not served or offers:
                return None
            offers.append(Room([Seat(self.pulse.session_id, room, served, self.pulse.namespace_id)]))
            return offers[0]

        with self._within_limits(QUEUES):
            self.pulse.offers = offered
            try:
                self.submit(count, queue, **more)
            finally:
                self.pulse.offers = lambda _: None
            self.assignments.extend(each for offer in offers for each in offer.handed)

    def submit(self, count: int, queue: str, **more: Any) -> None:
        is_gated, deadline = more["is_gated"], more["deadline"] * SECOND
        items = [
            self.pulse.submit_item(
                queue=queue,
                type=more["type_"],
                priority=more["priority"],
                delay_micros=more["delay"] * SECOND,
                deadline_micros=deadline,
                start_within_micros=deadline // 2,
                attempt_timeout_micros=60 * SECOND,
                retry=RetryPolicy(3, SECOND, 30 * SECOND),
                owner=TaskOwner(self.gate_id, new_id().hex(), 1) if is_gated else None,
                gate_id=self.gate_id if is_gated else None,
                concurrency_keys=more["keys"],
                fairness_key=more["fairness_key"],
            )
            for _ in range(count)
        ]
        for item, answer in zip(items, self.pulse.submit_all(*items), strict=True):
            if not isinstance(answer, OrbitError):
                assert not answer.deduplicated
                self.tasks.append(answer.subject_id)
                self.submitted[answer.subject_id] = item

    def submit_again(self, at: int) -> None:
        """Send an old request once more: whatever has become of it, it is the same task."""
        if self.submitted:
            task_id, item = list(self.submitted.items())[at % len(self.submitted)]
            (answer,) = self.pulse.submit_all(item)
            assert not isinstance(answer, OrbitError)
            assert (answer.subject_id, answer.deduplicated) == (task_id, True)

    def cancel(self, at: int) -> None:
        if self.tasks:
            self.pulse.cancel_owned(self.tasks[at % len(self.tasks)])

    def review(self, at: int, verdict: Verdict) -> None:
        def decide(task_id: bytes) -> None:
            self.pulse.review(task_id, verdict)
            self.reviews[task_id] += 1

        self._decide(at, decide)

    def retry(self, at: int) -> None:
        self._decide(at, lambda task_id: self.tasks.append(self.pulse.retry(task_id).subject_id))

    def reschedule(self, at: int, priority: int) -> None:
        self._decide(at, lambda task_id: self.pulse.reschedule(task_id, priority=priority))

    def _decide(self, at: int, decide: Callable[[bytes], object]) -> None:
        """Try a decision about some task; where its state forbids that, it is refused with a reason."""
        if self.tasks:
            try:
                decide(self.tasks[at % len(self.tasks)])
            except OrbitError as refused:
                if refused.status not in {409, 429}:
                    raise

    # Workers. Those whose attempt is over try as well, again and again.

    def claim(self, room: int, queues: tuple[str, ...], types: tuple[str, ...], *, is_heard: bool) -> None:
        """Claim as a node does; what is not heard of was committed by a node that died before it could tell."""
        with self._within_limits(queues):
            claimed = self._claimed(room, queues, types)
            self.assignments.extend(claimed)
        assert len(claimed) <= room
        if not is_heard:
            self.start_ids |= dict.fromkeys((item.attempt_id for item in claimed), b"")

    @contextmanager
    def _within_limits(self, queues: Sequence[str]) -> Iterator[None]:
        """Hold what is handed out meanwhile against every limit."""
        before = {name: self.pulse.usage(self.queues[name]) for name in queues}
        held, live, known = {key: self.held(key) for key in KEYS}, len(self.live()), len(self.assignments)
        yield
        fresh = self.assignments[known:]
        for name in queues:
            after = self.pulse.usage(self.queues[name])
            assert after.active <= max(before[name].active, after.max_concurrency)
            assert not (after.paused and any(item.task.queue_id == after.queue_id for item in fresh))
        assert all(self.held(key) <= max(held[key], self.limit(key)) for key in KEYS), held
        assert self.quotas.max_concurrency is None or len(self.live()) <= max(live, self.quotas.max_concurrency)

    def _lanes(self, queues: Sequence[str], types: Sequence[str]) -> dict[bytes, RecoverySafety]:
        pulse = self.pulse
        lanes = pulse.database.transaction(lambda tx: lanes_of(tx, pulse.namespace_id, queues=queues, types=types))
        return {lane_id: SAFETY[lane.type] for lane_id, (_, lane) in lanes.items()}

    def _claimed(self, room: int, queues: Sequence[str], types: Sequence[str]) -> list[Assignment]:
        pulse = self.pulse
        pulse.database.transaction(pulse.catalog.freshen)
        demand = Demand([Seat(pulse.session_id, room, self._lanes(queues, types), pulse.namespace_id)], {})
        demand = replace(demand, fencing_epoch=pulse.catalog.fencing_epoch)
        return list(pulse.database.transaction(lambda tx: claim(tx, demand)).assignments)

    def start(self, at: int, *, is_live: bool, is_same: bool) -> None:
        assignment = self._assignment(at, is_live=is_live)
        if assignment is None or self.start_ids.get(assignment.attempt_id) == b"":
            return
        attempt_id = assignment.attempt_id
        was_over, was_started = attempt_id in self.pulse.ended, attempt_id in self.started
        is_known = is_same and attempt_id in self.start_ids
        message_id = self.start_ids[attempt_id] if is_known else new_id()
        outcome = self.pulse.start(assignment, message_id)
        if was_over:
            assert outcome.code is StartCode.LEASE_LOST
        elif was_started:
            assert outcome.granted is is_known
            assert outcome.granted or outcome.code is StartCode.ALREADY_STARTED
        elif outcome.granted:
            self.started.add(attempt_id)
            operation = assignment.task.operation_id or assignment.task.id
            assert assignment.fencing > self.fencing.get(operation, 0), "an earlier execution has the higher number"
            self.fencing[operation] = assignment.fencing
            self._windows_have_room(assignment.task.queue_id)
        if not was_started:
            self.start_ids[attempt_id] = message_id
        assert (attempt_id in self.pulse.ended) is (not outcome.granted and outcome.code in _FINAL)

    def _windows_have_room(self, queue_id: bytes) -> None:
        """Whatever a window has granted before a rate was lowered, it grants nothing beyond the rate that counts."""
        usage = self.pulse.usage(queue_id)
        assert usage.window_used <= usage.rate_per_second
        if self.quotas.rate_per_second is not None:
            permits = self.pulse.database.transaction(lambda tx: permits_read(tx, [usage]))
            assert all(quota.window_used <= self.quotas.rate_per_second for quota in permits.quotas.values())

    def report(self, at: int, outcome: Outcome, class_: ErrorClass, *, is_live: bool, ran: bool) -> None:
        assignment = self._assignment(at, is_live=is_live)
        if assignment is None:
            return
        counts = assignment.attempt_id in self.started and assignment.attempt_id not in self.pulse.ended
        fields: dict[str, object] = {"retry_after_micros": SECOND, "ran": ran}
        if outcome is Outcome.SUCCEEDED:
            fields["output"] = dumps({"verdict": ("EXECUTED", "NOT_EXECUTED", "UNKNOWN")[at % 3]})
        if outcome is Outcome.FAILED:
            fields["error"] = ReportedError(class_, "BROKEN", "it broke")
        item = self.pulse.result(assignment, outcome, None, **fields)
        assert (self.pulse.report(item).receipt is ReceiptKind.ACCEPTED) is counts
        assert self.pulse.report(item).receipt is not ReceiptKind.ACCEPTED
        assert (assignment.attempt_id in self.pulse.ended) or assignment.attempt_id not in self.started

    def renew(self, at: int, *, is_live: bool) -> None:
        assignment = self._assignment(at, is_live=is_live)
        if assignment is not None:
            runs = assignment.attempt_id in self.started and assignment.attempt_id not in self.pulse.ended
            assert (self.pulse.renew(assignment).lease_micros is not None) <= runs

    def release(self, at: int, *, is_live: bool) -> None:
        assignment = self._assignment(at, is_live=is_live)
        if assignment is not None:
            could = assignment.attempt_id not in self.started | self.pulse.ended
            assert self.pulse.release(assignment) is could

    def _assignment(self, at: int, *, is_live: bool) -> Assignment | None:
        known = self.live() if is_live else self.assignments
        return known[at % len(known)] if known else None

    # Operators.

    def configure(self, queue: str, **settings: int) -> None:
        self.pulse.configure(self.queues[queue], **settings)

    def configure_application(self, concurrency: int | None, rate: int | None, unfinished: int | None) -> None:
        pulse = self.pulse
        owner, _ = pulse.database.transaction(lambda tx: application_of(tx, pulse.namespace_id))
        own = pulse.database.transaction(lambda tx: application_get(tx, pulse.namespace_id, owner))
        quotas = QuotaSettings(concurrency, rate, unfinished)
        change = QuotaChange(owner, int(own["revision"]), "a test", quotas)
        command, actor = pulse.command("application.configure"), pulse.actor()
        pulse.database.transaction(lambda tx: application_configure(tx, command, actor, change))
        self.quotas = quotas

    def configure_key(self, key: str, limit: int | None) -> None:
        pulse = self.pulse
        seen = pulse.database.transaction(lambda tx: key_view(tx, pulse.namespace_id, key))
        change = KeyChange(key, seen.revision, "a test", limit)
        pulse.database.transaction(lambda tx: key_configure(tx, pulse.namespace_id, pulse.actor(), change, pulse))
        self.limits[key] = limit

    def move_gate(self, *, is_open: bool) -> None:
        move = gate_open if is_open else gate_close
        self.pulse.database.transaction(lambda tx: move(tx, self.gate_id, self.pulse))

    # Nodes and time.

    def follow_wake_ups(self) -> None:
        self.pulse.follow()

    def turn_to_node(self, number: int, *, is_new: bool) -> None:
        """Let one of two nodes do what follows; a new one has taken the place of one that died."""
        if is_new:
            self.nodes[number] = self._node()
        node = self.nodes[number]
        self.pulse.catalog, self.pulse.deadlines, self.pulse.session_id = node.catalog, node.deadlines, node.session_id

    def _node(self) -> Node:
        return Node(Catalog(), DeadlineSweep(self.pulse.database, self.pulse), new_id())

    def do(self, move: str, chosen: Mapping[str, Any], lives: int | None = None) -> None:
        """Make a move; its node dies before the COMMIT that follows `lives` others, if there are so many."""
        self.fragile.lives = lives
        try:
            getattr(self, move)(**chosen)
        except CutOff:
            pass
        finally:
            self.fragile.lives = None

    def restore(self) -> None:
        """Go on as after a restore from a backup of this very moment, with new nodes."""
        after_restore(self.pulse.database, self.pulse)
        self.nodes = [self._node(), self._node()]
        self.turn_to_node(0, is_new=False)

    def pass_time(self, seconds: float) -> None:
        self.pulse.database.clock.advance(seconds_forward=seconds)
        began = self.pulse.database.transaction(lambda tx: tx.now())
        self.pulse.sweep()
        self.swept_at = began

    # The end.

    def drain(self) -> None:
        """Take every obstacle away and work until nothing is left that can run; raises if that never comes."""
        for name in QUEUES:
            self.configure(name, paused=False, max_concurrency=100, rate_per_second=1000, max_unfinished_tasks=1000)
        self.configure_application(None, None, None)
        self.move_gate(is_open=True)
        rounds = 20 + 2 * len(self.tasks)
        for _ in range(rounds):
            self.pass_time(_DRAIN_SECONDS)
            for item in self._claimed(100, QUEUES, list(SAFETY)):
                self.assignments.append(item)
                if self.pulse.start(item).granted:
                    self.started.add(item.attempt_id)
                    self.pulse.succeed(item, {"verdict": "UNKNOWN"})
            if not self._open_count():
                return
        raise AssertionError(f"{self._open_count()} tasks can not be worked off in {rounds} rounds")

    def _open_count(self) -> int:
        return sum(row.state not in TERMINAL | {TaskState.NEEDS_REVIEW} for row in self.rows())

    def rows(self) -> list[Any]:
        """Read all tasks."""
        own = task.c.namespace_id == self.pulse.namespace_id
        return list(self.pulse.database.transaction(lambda tx: tx.rows(select(task).where(own))))
