"""Pulse without a node: each operation as one transaction, so that a test decides what happens in which order."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count

from msgspec import structs

from orbit.canonical import digest
from orbit.database import Database, Transaction
from orbit.errors import OrbitError
from orbit.idempotency import Answer, Command
from orbit.ids import new_id
from orbit.jsontext import Json, dumps
from orbit.store.journal import Actor
from orbit.store.subscribers import Subscribers
from orbit.store.tenancy import NamespaceName, namespace_ensure
from pulse.acceptance import Scarce, tasks_accept
from pulse.arrivals import Arrivals
from pulse.cancellation import Cancel, CancelOutcome, task_cancel, tasks_cancel
from pulse.catalog import Catalog
from pulse.claim import Assignment, Demand, claim
from pulse.lease import Held, RenewOutcome, release, renew
from pulse.listener import TaskListener
from pulse.placement import Seat
from pulse.queues import Queue, QueueChange, QueueSettings, queue_configure, queue_create, queue_get
from pulse.report import Outcome, Report, ReportedError, ReportOutcome, report
from pulse.requests import TaskRequest
from pulse.reschedule import Reschedule, task_reschedule
from pulse.review import Decided, Verdict, task_retry, task_review
from pulse.sessions import Offer
from pulse.start import KeysFirst, StartItem, StartOutcome, start
from pulse.states import ErrorClass, RecoverySafety
from pulse.store.counters import Usage, usage_read
from pulse.store.key import holders_delete, holders_find, keys_lock, keys_take
from pulse.store.lanes import lanes_of
from pulse.store.recount import Drift, drifts_find
from pulse.store.session import NewSession, session_insert
from pulse.submission import Submit
from pulse.sweeps import DeadlineSweep, delayed_sweep, lease_sweep
from pulse.task_types import TypeChange, TypePut, task_type_put
from pulse.tasks import TaskView, task_get
from pulse.type_revision import TypeKey
from pulse.verification import verification_sweep
from pulse.waker import keys_wake

ROOMY = QueueSettings(paused=False, max_concurrency=100, rate_per_second=1000, max_unfinished_tasks=1000)


class Pulse:
    """A namespace whose queues, tasks and workers are calls only. Also the surroundings that settling tells."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.listeners: list[TaskListener] = []
        self.catalog = Catalog()
        self.offers: Callable[[Mapping[bytes, int]], Offer | None] = lambda _: None
        self.ended: set[bytes] = set()
        self.cancels: dict[bytes, str] = {}
        named = NamespaceName("tests", "default", "test")
        self.namespace_id = database.transaction(lambda tx: namespace_ensure(tx, named)).id
        self.session_id = new_id()
        self.deadlines = DeadlineSweep(database, self)
        self._keys = count()

    def offer(self, lanes: Mapping[bytes, int]) -> Offer | None:
        """Offer the room that a test has; at first there is none."""
        return self.offers(lanes)

    def on_ready(self, lanes: Mapping[bytes, Arrivals]) -> None:
        """Nobody sleeps here."""

    def on_changed(self, task_ids: frozenset[bytes]) -> None:
        """Nobody waits here."""

    def on_ended(self, attempt_ids: frozenset[bytes]) -> None:
        """Note which attempts ended."""
        self.ended |= attempt_ids

    def on_trouble(self, *, retries: int, lost: int) -> None:
        """Nobody counts here."""

    def on_keys_free(self) -> None:
        """Nobody sleeps here: a test follows wake-ups by `sweep`."""

    def on_verification(self) -> None:
        """Verifications are swept by `sweep` only."""

    def on_cancel_wanted(self, reasons: Mapping[bytes, str]) -> None:
        """Note which workers would be asked to stop."""
        self.cancels |= reasons

    def look_for_no_subscribers(self) -> None:
        """Let no second's end cost a statement while a test counts them: nobody subscribes in it."""

        def work(tx: Transaction) -> None:
            tx.memory(Subscribers).looked_at = float("inf")

        self.database.transaction(work)

    def key(self) -> str:
        """Make a key that was not used before."""
        return f"key-{next(self._keys)}"

    def command(self, operation: str, meaning: Json = None, key: str | None = None) -> Command:
        """Make a request's identity."""
        return Command(self.namespace_id, operation, "", key or self.key(), digest(meaning))

    def actor(self) -> Actor:
        """Make somebody who manages."""
        return Actor("tests", new_id())

    def queue(self, name: str = "main", **settings: int) -> bytes:
        """Make a queue with room, but for the given settings."""
        wanted = replace(ROOMY, **settings)  # type: ignore[arg-type]
        answer = self.database.transaction(
            lambda tx: queue_create(tx, self.command("queue.create"), self.actor(), name=name, settings=wanted)
        )
        return answer.subject_id

    def configure(self, queue_id: bytes, **settings: int) -> Answer:
        """Change some settings of a queue."""
        now = self.read(queue_id)
        wanted = replace(now.settings, **settings)  # type: ignore[arg-type]
        change = QueueChange(queue_id, now.revision, "a test", wanted)
        return self.database.transaction(
            lambda tx: queue_configure(tx, self.command("queue.configure"), self.actor(), change)
        )

    def read(self, queue_id: bytes) -> Queue:
        """Read a queue."""
        return self.database.transaction(lambda tx: queue_get(tx, self.namespace_id, queue_id))

    def usage(self, queue_id: bytes) -> Usage:
        """Read a queue's permits and window."""
        return self.database.transaction(lambda tx: usage_read(tx, [queue_id]))[queue_id]

    def request(self, **fields: object) -> TaskRequest:
        """Make a task's request: `main`, `echo@1`, no params."""
        plain = TaskRequest(namespace_id=self.namespace_id, queue="main", type="echo", version=1, params=b"{}")
        return structs.replace(plain, **fields)

    def register(
        self,
        type_: str = "echo",
        recovery: RecoverySafety = RecoverySafety.REPLAY_SAFE,
        *,
        expected_revision: int = 0,
        **content: Json,
    ) -> TypePut:
        """Register version 1 of a task type."""
        change = TypeChange(TypeKey(type_, 1), expected_revision, "a test", {"recovery": recovery, **content})
        actor = self.actor()
        return self.database.transaction(lambda tx: task_type_put(tx, self.namespace_id, actor, change, self.catalog))

    def submit_item(self, key: str | None = None, meaning: Json = None, **fields: object) -> Submit:
        """Make an item of a batch."""
        return Submit(self.request(**fields), self.command("task.submit", meaning, key))

    def submit_all(self, *items: Submit) -> list[Answer | OrbitError]:
        """Submit a batch."""
        return tasks_accept(self.database, items, self, Scarce())

    def submit(self, key: str | None = None, meaning: Json = None, **fields: object) -> bytes:
        """Submit one task, which is accepted, and return its id."""
        (answer,) = self.submit_all(self.submit_item(key, meaning, **fields))
        assert isinstance(answer, Answer), answer
        return answer.subject_id

    def refusal(self, key: str | None = None, meaning: Json = None, **fields: object) -> OrbitError:
        """Submit one task, which is refused, and return why."""
        (answer,) = self.submit_all(self.submit_item(key, meaning, **fields))
        assert isinstance(answer, OrbitError), answer
        return answer

    def task(self, task_id: bytes) -> TaskView:
        """Read a task."""
        return self.database.transaction(lambda tx: task_get(tx, self.namespace_id, task_id))

    def seat(
        self,
        room: int = 10,
        *,
        safety: RecoverySafety = RecoverySafety.MANUAL,
        type_: str = "echo",
        queue: str = "main",
    ) -> Seat:
        """Make room for one type's version 1."""
        lanes = self.database.transaction(lambda tx: lanes_of(tx, self.namespace_id, queues=[queue], types=[type_]))
        return Seat(self.session_id, room, dict.fromkeys(lanes, safety), self.namespace_id)

    def serve(self, *types: str, queue: str = "main") -> None:
        """Record a connected worker for these types' version 1, `echo` if none is given."""
        handlers = tuple(f"{name}@1" for name in types or ("echo",))
        made = NewSession(
            id=new_id(),
            namespace_id=self.namespace_id,
            credential_id=new_id(),
            worker="tests",
            node="tests",
            handlers=handlers,
            queues=(queue,),
            capacity=10,
        )
        self.database.transaction(lambda tx: session_insert(tx, made))

    def claim(
        self,
        room: int = 10,
        *,
        safety: RecoverySafety = RecoverySafety.MANUAL,
        queue: str = "main",
        type_: str = "echo",
    ) -> list[Assignment]:
        """Claim as a node with one worker would."""
        self.database.transaction(self.catalog.freshen)
        seats = [self.seat(room, safety=safety, queue=queue, type_=type_)]
        demand = Demand(seats, {}, fencing_epoch=self.catalog.fencing_epoch)
        return list(self.database.transaction(lambda tx: claim(tx, demand)).assignments)

    def start(self, assignment: Assignment, message_id: bytes | None = None) -> StartOutcome:
        """Ask for one Start."""
        return self.start_all([assignment], {assignment.attempt_id: message_id or new_id()})[0]

    def start_all(
        self, assignments: list[Assignment], message_ids: Mapping[bytes, bytes] | None = None
    ) -> list[StartOutcome]:
        """Ask for Starts in one batch; `message_ids` by attempt."""
        known = message_ids or {}
        items = [StartItem(known.get(a.attempt_id, new_id()), a.attempt_id, a.token) for a in assignments]
        try:
            return self.database.transaction(lambda tx: start(tx, items, self, with_keys=False))
        except KeysFirst:
            return self.database.transaction(lambda tx: start(tx, items, self))

    def run(self, *, safety: RecoverySafety = RecoverySafety.MANUAL, type_: str = "echo") -> Assignment:
        """Claim one task and start it."""
        (assignment,) = self.claim(1, safety=safety, type_=type_)
        outcome = self.start(assignment)
        assert outcome.granted, outcome
        return assignment

    def report(self, item: Report) -> ReportOutcome:
        """Report one result."""
        return self.database.transaction(lambda tx: report(tx, [item], self))[0]

    def succeed(self, assignment: Assignment, output: Json = None, message_id: bytes | None = None) -> ReportOutcome:
        """Report a success."""
        return self.report(self.result(assignment, Outcome.SUCCEEDED, message_id, output=dumps(output)))

    def fail(
        self, assignment: Assignment, class_: ErrorClass = ErrorClass.RETRYABLE, code: str = "BROKEN"
    ) -> ReportOutcome:
        """Report a failure."""
        error = ReportedError(class_, code, "it broke")
        return self.report(self.result(assignment, Outcome.FAILED, error=error))

    def result(
        self, assignment: Assignment, outcome: Outcome, message_id: bytes | None = None, **fields: object
    ) -> Report:
        """Make a report."""
        made = Report(
            message_id=message_id or new_id(),
            attempt_id=assignment.attempt_id,
            token=assignment.token,
            outcome=outcome,
        )
        return structs.replace(made, **fields)

    def held(self, assignment: Assignment) -> Held:
        """Name an attempt as its worker does."""
        return Held(assignment.attempt_id, assignment.token)

    def renew(self, assignment: Assignment) -> RenewOutcome:
        """Renew one lease."""
        return self.database.transaction(lambda tx: renew(tx, [self.held(assignment)]))[0]

    def release(self, assignment: Assignment) -> bool:
        """Give one assignment back."""
        return self.database.transaction(lambda tx: release(tx, [self.held(assignment)], self))[0]

    def cancel(self, task_id: bytes, reason: str = "a test") -> Answer:
        """Cancel a task as a caller outside does."""
        command, actor = self.command("task.cancel", reason), self.actor()
        return self.database.transaction(lambda tx: task_cancel(tx, command, actor, Cancel(task_id, reason), self))

    def cancel_owned(self, task_id: bytes) -> CancelOutcome:
        """Cancel a task as its owner does."""
        return self.database.transaction(lambda tx: tasks_cancel(tx, [Cancel(task_id, "a test")], self))[task_id]

    def follow(self) -> None:
        """Follow every wake-up of concurrency keys."""
        while keys_wake(self.database, self):
            pass

    def break_key(self, key_id: bytes) -> None:
        """Lose who holds a key, and count it wrong."""

        def work(tx: Transaction) -> None:
            holders_delete(tx, [(key_id, task_id) for task_id in holders_find(tx, key_id, limit=10)])
            keys_take(tx, {key_id: 5 - keys_lock(tx, [key_id])[key_id].active}, now=tx.now())

        self.database.transaction(work)

    def another_namespace(self, name: str) -> bytes:
        """Make another application with a namespace."""
        return self.database.transaction(lambda tx: namespace_ensure(tx, NamespaceName(name, "default", "test"))).id

    def sweep(self) -> None:
        """Run every sweeper once."""
        while delayed_sweep(self.database, self)[0]:
            pass
        while lease_sweep(self.database, self):
            pass
        self.deadlines.run_once()
        self.follow()
        while verification_sweep(self.database, self):
            pass

    def pass_time(self, seconds: float) -> None:
        """Move the clock and let the sweepers see it."""
        self.database.clock.advance(seconds_forward=seconds)
        self.sweep()

    def drifts(self) -> list[Drift]:
        """Recount everything."""
        return self.database.transaction(drifts_find, is_snapshot=True)

    def error_code(self, task_id: bytes) -> str | None:
        """Read the code of a task's last failure."""
        error = self.task(task_id).row.error
        return None if error is None else str(json.loads(error)["code"])

    def review(self, task_id: bytes, verdict: Verdict, **fields: object) -> Answer:
        """Settle a review at the task's present revision, with a safety statement."""
        plain = Decided(
            task_id=task_id,
            expected_revision=self.task(task_id).revision,
            evidence={"ticket": 7},
            reason="a test",
            safety_statement="it is idempotent",
            verdict=verdict,
        )
        decided = replace(plain, **fields)  # type: ignore[arg-type]
        command, actor = self.command("task.review"), self.actor()
        return self.database.transaction(lambda tx: task_review(tx, command, actor, decided, self))

    def retry(self, task_id: bytes, **fields: object) -> Answer:
        """Retry an ended task at its present revision, with a safety statement."""
        plain = Decided(
            task_id=task_id,
            expected_revision=self.task(task_id).revision,
            evidence={"ticket": 7},
            reason="a test",
            safety_statement="it is idempotent",
        )
        decided = replace(plain, **fields)  # type: ignore[arg-type]
        command, actor = self.command("task.retry"), self.actor()
        return self.database.transaction(lambda tx: task_retry(tx, command, actor, decided, self))

    def reschedule(self, task_id: bytes, **fields: int) -> Answer:
        """Move a waiting task at its present revision."""
        revision = self.task(task_id).revision
        plain = Reschedule(task_id=task_id, expected_revision=revision, reason="a test")
        change = replace(plain, **fields)  # type: ignore[arg-type]
        command, actor = self.command("task.reschedule"), self.actor()
        return self.database.transaction(lambda tx: task_reschedule(tx, command, actor, change, self))
