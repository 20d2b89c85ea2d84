"""Random clients, workers, operators and time against one task layer; what must hold is checked after every step.

`ORBIT_MODEL_STEPS` says how many steps a run takes (2 000 and more is a full one), `ORBIT_MODEL_SEED` repeats a run:
its seed is printed.
"""

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import select

from orbit.clock import SECOND
from orbit.database import Database
from orbit.errors import OrbitError
from orbit.ids import new_id
from orbit.jsontext import dumps
from orbit.store.tenancy import NamespaceName, namespace_ensure
from pulse.claim import Assignment
from pulse.gates import gate_close, gate_create, gate_open
from pulse.key_limits import KeyChange, key_configure, key_view
from pulse.listener import TaskOwner
from pulse.quotas import QuotaChange, QuotaSettings, application_configure, application_get, application_of
from pulse.report import Outcome, ReceiptKind, ReportedError
from pulse.requests import RetryPolicy
from pulse.review import Verdict
from pulse.states import (
    TERMINAL,
    UNFINISHED,
    ErrorClass,
    RecoverySafety,
    TaskState,
    VerificationOutcome,
    VerificationState,
)
from pulse.tables import verification
from tests.support.pulse import Pulse

STEPS = int(os.environ.get("ORBIT_MODEL_STEPS", "120"))
STEPS_A_RUN = 40
SEED = int(os.environ.get("ORBIT_MODEL_SEED", str(random.randrange(2**32))))

chosen = st.integers(0, 10_000)
small = st.integers(1, 4)


class Machine(RuleBasedStateMachine):
    """One namespace with two queues, a gate before some of its tasks, and every attempt that was ever handed out."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.pulse = Pulse(database)
        self.tasks: list[bytes] = []
        self.assignments: list[Assignment] = []
        self.started: set[bytes] = set()
        self.ends: dict[bytes, TaskState] = {}
        self.revisions: dict[bytes, int] = {}
        self.quiet = 0
        self.gate_id = new_id()

    def tasks_changed(self, *_: object) -> None:
        """Hear of owned tasks, which are read anyway."""

    def gate_quiet(self, *_: object) -> None:
        """Hear of the gate."""
        self.quiet += 1

    @initialize()
    def begin(self) -> None:
        named = NamespaceName(f"model-{new_id().hex()}", "default", "test")
        pulse = self.pulse
        pulse.namespace_id = pulse.database.transaction(lambda tx: namespace_ensure(tx, named)).id
        pulse.listeners.append(self)
        self.queues = {name: pulse.queue(name) for name in ("main", "side")}
        pulse.database.transaction(lambda tx: gate_create(tx, self.gate_id, namespace_id=pulse.namespace_id))
        pulse.register("ask")
        pulse.register("pay", RecoverySafety.VERIFY, verify_with="ask@1")

    # Clients.

    @rule(
        queue=st.sampled_from(["main", "side"]),
        priority=st.integers(0, 9),
        delay=st.sampled_from([0, 0, 0, 5, 40]),
        deadline=st.sampled_from([20, 300, 3600]),
        is_gated=st.booleans(),
        type_=st.sampled_from(["echo", "pay"]),
        keys=st.sampled_from([(), (), ("a",), ("b",), ("a", "b"), ("b", "c")]),
        fairness_key=st.sampled_from([None, None, "x", "y"]),
    )
    def submit(self, queue: str, priority: int, delay: int, deadline: int, **more: Any) -> None:
        is_gated = more["is_gated"]
        owner = TaskOwner(self.gate_id, new_id().hex(), 1) if is_gated else None
        item = self.pulse.submit_item(
            queue=queue,
            type=more["type_"],
            priority=priority,
            delay_micros=delay * SECOND,
            deadline_micros=deadline * SECOND,
            start_within_micros=deadline * SECOND // 2,
            attempt_timeout_micros=60 * SECOND,
            retry=RetryPolicy(3, SECOND, 30 * SECOND),
            owner=owner,
            gate_id=self.gate_id if is_gated else None,
            concurrency_keys=more["keys"],
            fairness_key=more["fairness_key"],
        )
        (answer,) = self.pulse.submit_all(item)
        if not isinstance(answer, OrbitError):
            self.tasks.append(answer.subject_id)

    @rule(at=chosen)
    def cancel(self, at: int) -> None:
        if self.tasks:
            self.pulse.cancel_owned(self.tasks[at % len(self.tasks)])

    @rule(at=chosen, verdict=st.sampled_from(list(Verdict)))
    def review(self, at: int, verdict: Verdict) -> None:
        self._decide(at, lambda task_id: self.pulse.review(task_id, verdict))

    @rule(at=chosen)
    def retry(self, at: int) -> None:
        self._decide(at, lambda task_id: self.tasks.append(self.pulse.retry(task_id).subject_id))

    @rule(at=chosen, priority=st.integers(0, 9))
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

    # Workers. Attempts are chosen among all that there ever were: most of them are zombies.

    @rule(
        room=small,
        queue=st.sampled_from(["main", "side"]),
        safety=st.sampled_from(list(RecoverySafety)),
        type_=st.sampled_from(["echo", "pay", "ask"]),
    )
    def claim(self, room: int, queue: str, safety: RecoverySafety, type_: str) -> None:
        queue_id = self.queues[queue]
        before = self.pulse.usage(queue_id)
        claimed = self.pulse.claim(room, safety=safety, queue=queue, type_=type_)
        after = self.pulse.usage(queue_id)
        assert len(claimed) <= room
        assert after.active <= max(before.active, after.max_concurrency)
        assert not (claimed and after.paused)
        self.assignments.extend(claimed)

    @rule(at=chosen)
    def start(self, at: int) -> None:
        if not self.assignments:
            return
        assignment = self.assignments[at % len(self.assignments)]
        was_over = assignment.attempt_id in self.pulse.ended
        outcome = self.pulse.start(assignment)
        assert not (outcome.granted and (was_over or assignment.attempt_id in self.started))
        if outcome.granted:
            self.started.add(assignment.attempt_id)
            usage = self.pulse.usage(assignment.task.queue_id)
            assert usage.window_used <= usage.rate_per_second

    @rule(at=chosen, outcome=st.sampled_from(list(Outcome)), class_=st.sampled_from(list(ErrorClass)))
    def report(self, at: int, outcome: Outcome, class_: ErrorClass) -> None:
        if not self.assignments:
            return
        assignment = self.assignments[at % len(self.assignments)]
        is_live = assignment.attempt_id in self.started and assignment.attempt_id not in self.pulse.ended
        fields: dict[str, object] = {"retry_after_micros": SECOND}
        if outcome is Outcome.SUCCEEDED:
            fields["output"] = dumps({"verdict": ("EXECUTED", "NOT_EXECUTED", "UNKNOWN")[at % 3]})
        if outcome is Outcome.FAILED:
            fields["error"] = ReportedError(class_, "BROKEN", "it broke")
        item = self.pulse.result(assignment, outcome, None, **fields)
        assert (self.pulse.report(item).receipt is ReceiptKind.ACCEPTED) is is_live
        assert self.pulse.report(item).receipt is not ReceiptKind.ACCEPTED

    @rule(at=chosen)
    def renew(self, at: int) -> None:
        if self.assignments:
            assignment = self.assignments[at % len(self.assignments)]
            if assignment.attempt_id not in self.started or assignment.attempt_id in self.pulse.ended:
                assert self.pulse.renew(assignment).lease_micros is None

    @rule(at=chosen)
    def release(self, at: int) -> None:
        if self.assignments:
            assignment = self.assignments[at % len(self.assignments)]
            if self.pulse.release(assignment):
                assert assignment.attempt_id not in self.started

    # Operators and time.

    @rule(
        queue=st.sampled_from(["main", "side"]),
        paused=st.sampled_from([False, False, False, True]),
        concurrency=small,
        rate=st.integers(1, 5),
        unfinished=st.sampled_from([5, 1000, 1000]),
    )
    def configure(self, queue: str, concurrency: int, rate: int, unfinished: int, *, paused: bool) -> None:
        self.pulse.configure(
            self.queues[queue],
            paused=paused,
            max_concurrency=concurrency,
            rate_per_second=rate,
            max_unfinished_tasks=unfinished,
        )

    @rule(concurrency=st.sampled_from([None, 1, 3]), rate=st.sampled_from([None, 2]))
    def configure_application(self, concurrency: int | None, rate: int | None) -> None:
        pulse = self.pulse
        owner, _ = pulse.database.transaction(lambda tx: application_of(tx, pulse.namespace_id))
        own = pulse.database.transaction(lambda tx: application_get(tx, pulse.namespace_id, owner))
        change = QuotaChange(owner, int(own["revision"]), "a test", QuotaSettings(concurrency, rate))
        command, actor = pulse.command("application.configure"), pulse.actor()
        pulse.database.transaction(lambda tx: application_configure(tx, command, actor, change))

    @rule(key=st.sampled_from(["a", "b", "*"]), limit=st.sampled_from([None, 1, 2]))
    def configure_key(self, key: str, limit: int | None) -> None:
        pulse = self.pulse
        seen = pulse.database.transaction(lambda tx: key_view(tx, pulse.namespace_id, key))
        change = KeyChange(key, seen.revision, "a test", limit)
        pulse.database.transaction(lambda tx: key_configure(tx, pulse.namespace_id, pulse.actor(), change, pulse))

    @rule()
    def follow_wake_ups(self) -> None:
        self.pulse.follow()

    @rule(is_open=st.booleans())
    def move_gate(self, *, is_open: bool) -> None:
        move = gate_open if is_open else gate_close
        self.pulse.database.transaction(lambda tx: move(tx, self.gate_id, self.pulse))

    @rule(seconds=st.sampled_from([0.5, 1.1, 6, 31, 200]))
    def pass_time(self, seconds: float) -> None:
        self.pulse.pass_time(seconds)

    # What must hold.

    @invariant()
    def every_counter_and_place_is_what_the_tasks_say(self) -> None:
        assert self.pulse.drifts() == []

    @invariant()
    def each_doubtful_attempt_is_verified_once_and_an_open_verification_has_a_task(self) -> None:
        """And what has been answered is settled by the sweep that follows."""
        rows = self.pulse.database.transaction(
            lambda tx: tx.rows(select(verification).where(verification.c.namespace_id == self.pulse.namespace_id))
        )
        assert len({row.attempt_id for row in rows}) == len(rows)
        for row in rows:
            if row.state == VerificationState.OPEN:
                assert self.pulse.task(row.id).state in UNFINISHED - {TaskState.NEEDS_REVIEW}
            if row.state == VerificationState.SETTLED and row.outcome == VerificationOutcome.EXECUTED:
                assert self.pulse.task(row.subject_id).state is TaskState.SUCCEEDED

    @invariant()
    def what_has_ended_stays_as_it_is(self) -> None:
        for task_id in self.tasks:
            view = self.pulse.task(task_id)
            ended = self.ends.get(task_id)
            assert ended is None or (view.state, view.revision) == (ended, self.revisions[task_id])
            assert view.revision >= self.revisions.get(task_id, 1)
            self.revisions[task_id] = view.revision
            if view.state in TERMINAL:
                self.ends[task_id] = view.state


@pytest.mark.timeout(3600)
def test_whatever_clients_workers_and_time_do_the_books_balance(database: Database) -> None:
    """Run the machine; a failure is shrunk to the shortest story that shows it."""
    print(f"ORBIT_MODEL_SEED={SEED} ORBIT_MODEL_STEPS={STEPS}")  # noqa: T201  (how to repeat this run)

    class OnDatabase(Machine):
        def __init__(self) -> None:
            super().__init__(database)

    run_state_machine_as_test(
        seed(SEED)(OnDatabase),
        settings=settings(
            max_examples=max(1, STEPS // STEPS_A_RUN),
            stateful_step_count=STEPS_A_RUN,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
