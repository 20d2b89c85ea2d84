"""Advance a batch of instances inside one transaction and write all that follows from it, each kind in one statement.

The runner and the start of instances share this. The caller holds the locks of the instances (or is inserting them).
Order inside the transaction: values are read, tasks are submitted and cancelled (Pulse's locks come after instances),
then the engine's own rows are written. An instance whose advance raises is set aside and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from definitions.graph import ChildSpec, TaskSpec
from engine.admission import ended_places
from engine.advance import advance
from engine.command import Entry, SubmitTask
from engine.compensating import AFTER_END
from engine.family import born, children_insert, told_to_children, told_to_parent
from engine.formats import StateFormats
from engine.instance import ENGINE_ERROR, Failure, Instance, Step
from engine.ports import Flows, TaskLayer, Terms
from engine.scope import ValuesNeeded
from engine.states import INSTANCE_TERMINAL, Control, InstanceState
from engine.stimulus import PauseRequested, Stimulus, SubmissionRefused
from engine.store.effects import effects_delete, effects_insert
from engine.store.instance_lists import labels_insert
from engine.store.instances import Stored, instances_insert, instances_update
from engine.store.items import items_insert
from engine.store.limits import running_delete
from engine.store.records import Recorded, history_insert, values_delete, values_insert
from engine.store.signals import signals_take
from engine.store.steps import steps_delete, steps_insert, steps_update
from engine.store.stimuli import Pending, StoredStimulus, stimuli_hold, stimuli_insert, stimuli_release
from engine.work import Work, take, values_of_works
from orbit.access import queue_not_found
from orbit.canonical import compact
from orbit.clock import Micros, seconds
from orbit.database import RunAgain
from orbit.errors import OrbitError
from orbit.ids import new_id
from orbit.logs import get_logger
from orbit.store.journal import EventRecord, events_insert
from pulse.cancellation import Cancel
from pulse.listener import BacklogShort, FollowLater, Takings, TaskOwner
from pulse.requests import RetryPolicy, TaskRequest
from pulse.submission import Submit

if TYPE_CHECKING:
    from orbit.database import Transaction

_ENDS = frozenset(f"instance.{state.value.lower()}" for state in INSTANCE_TERMINAL)

CAREFUL_SECONDS = 1.0

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Held:
    """A locked instance to be set aside with the stimuli that came for it; `error` is None if it is already."""

    stored: Stored
    pending: Sequence[Pending]
    error: Exception | None


class Advancer:
    """Advances batches. It keeps no state but the cache of graphs, the forms that it may write, and hints."""

    def __init__(self, flows: Flows, tasks: TaskLayer, formats: StateFormats | None = None) -> None:
        self.flows = flows
        self.formats = formats or StateFormats()
        self._tasks = tasks
        # A queue was full: until then each place is asked for, so that only the tasks that find none wait.
        self._careful_until = 0.0

    def run(self, tx: Transaction, works: Sequence[Work], *, now: Micros) -> None:
        """Advance every work until nothing more follows at `now`, then write what changed.

        A new instance whose advance raises is not stored: the caller finds the error in its `broken`.
        """
        is_careful = time.monotonic() < self._careful_until
        terms = Terms(now, None if is_careful else Takings())
        submits = self._advance(tx, works, now, may_set_aside=True)
        while submits:
            # Once tasks are submitted an instance can't be set aside alone any more: an error ends the transaction.
            submits = self._advance(tx, self._submit(tx, submits, terms, now=now), now, may_set_aside=False)
        self._cancel(tx, works)
        self._pause(tx, works, now)
        self._write(tx, works, now)
        try:
            self._tasks.takings_take(tx, terms)
            tx.flush()
        except BacklogShort as short:
            self._careful_until = time.monotonic() + CAREFUL_SECONDS
            raise RunAgain from short

    def follow(self, tx: Transaction, works: Sequence[Work], terms: Terms) -> list[Work]:
        """Advance works where tasks are locked already; return those that went through, of the rest nothing is written.

        Left out is what wants more than submits and rows of its own: that takes locks of earlier places in the order.
        Places in backlogs are left to the caller. Raises FollowLater where such a wish comes up too late to leave it
        out.
        """
        submits = self._advance(tx, works, terms.now, may_set_aside=True)
        parents = {id(work) for work, command in submits if isinstance(command.spec, ChildSpec)}
        done = [work for work in works if not _reaches_out(work) and id(work) not in parents]
        followed = {id(work) for work in done}
        submits = [(work, command) for work, command in submits if id(work) in followed]
        while submits:
            refused = self._submit(tx, submits, terms, now=terms.now)
            submits = self._advance(tx, refused, terms.now, may_set_aside=False)
            if any(map(_reaches_out, refused)):
                raise FollowLater
        self._write(tx, done, terms.now)
        return done

    def steer(self, tx: Transaction, work: Work, stimulus: Stimulus) -> None:
        """Advance a locked instance by a command and write what follows; then release what was set aside.

        That comes after the command, so that the command never runs into an error that was set aside.
        """
        work.stimuli = [stimulus]
        self.run(tx, [work], now=tx.now())
        if work.broken is not None:
            raise work.broken
        before, after = work.stored.instance, work.instance
        if before.control is not Control.ACTIVE and after.control is Control.ACTIVE:
            self._tasks.gate_open(tx, after.id)
        if is_set_aside(before) and not is_set_aside(after):
            stimuli_release(tx, after.id)
            work.has_told = True

    def close_gate(self, tx: Transaction, stored: Stored) -> int:
        """Let no task of a locked instance begin any more; return how many still run."""
        return self._tasks.gate_close(tx, stored.origin.namespace_id, stored.instance.id)

    def preview(self, tx: Transaction, work: Work, *, now: Micros) -> None:
        """Advance one work once and write nothing: what a command would do, short of a refusal by Pulse."""
        self._advance(tx, [work], now, may_set_aside=False)

    def _advance(
        self, tx: Transaction, works: Sequence[Work], now: Micros, *, may_set_aside: bool
    ) -> list[tuple[Work, SubmitTask]]:
        submits: list[tuple[Work, SubmitTask]] = []
        todo = list(works)
        while todo:
            needed: list[tuple[Work, frozenset[str]]] = []
            for work in todo:
                try:
                    after, commands = advance(work.flow, replace(work.instance, values=work.values), work.stimuli, now)
                except ValuesNeeded as wanted:
                    needed.append((work, wanted.slots))
                except Exception as error:
                    if not may_set_aside:
                        raise
                    _log.exception("instance.engine_error", extra={"instance_id": work.instance.id.hex()})
                    work.broken = error
                else:
                    submits.extend((work, command) for command in commands.submits)
                    take(work, after, commands, now)
            values_of_works(tx, self._tasks, needed)
            todo = [work for work, _ in needed]
        return submits

    def _submit(
        self, tx: Transaction, submits: Sequence[tuple[Work, SubmitTask]], terms: Terms, *, now: Micros
    ) -> list[Work]:
        """Submit tasks, make children, and return the works that have to take a refusal."""
        refused: dict[int, Work] = {}
        allowed: list[tuple[Work, SubmitTask, Submit]] = []
        for work, command in submits:
            queues, spec = work.stored.origin.queues, command.spec
            if isinstance(spec, ChildSpec):
                child = born(work.stored, work.instance, command, format_=self.formats.to_write(tx), now=now)
                work.children.append(child)
                if child.stored.instance.pause is not None:
                    self.close_gate(tx, child.stored)
                _link(work, command.step, child.stored.instance.id)
            elif queues is not None and spec.queue not in queues:
                _refuse(work, command, queue_not_found(), refused)
            else:
                # Its gate closes under the lock of its row, which is held now, and only to pause it.
                is_gate_open = work.stored.instance.control is work.instance.control is Control.ACTIVE
                allowed.append((work, command, Submit(_request(work, command, spec), is_gate_open=is_gate_open)))
        answers = self._tasks.submit(tx, [submit for _, _, submit in allowed], terms) if allowed else []
        for (work, command, submit), error in zip(allowed, answers, strict=True):
            if error is not None:
                _refuse(work, command, error, refused)
                continue
            _link(work, command.step, submit.request.task_id)
        return list(refused.values())

    def _cancel(self, tx: Transaction, works: Sequence[Work]) -> None:
        cancels = [
            Cancel(command.task_id, command.reason)
            for work in works
            if work.broken is None
            for command in work.cancels
            if not command.is_child
        ]
        if cancels:
            self._tasks.cancel(tx, cancels)

    def _pause(self, tx: Transaction, works: Sequence[Work], now: Micros) -> None:
        """Close the gates of instances that have reached a breakpoint, and let them know what still runs."""
        paused = [work for work in works if work.broken is None and work.pause is not None]
        for work in paused:
            assert work.pause is not None
            in_flight = self._tasks.gate_close(tx, work.stored.origin.namespace_id, work.instance.id)
            work.stimuli = [PauseRequested(in_flight, work.pause)]
        if paused:
            submits = self._advance(tx, paused, now, may_set_aside=False)
            assert not submits, "a pause submits nothing"

    def _write(self, tx: Transaction, works: Sequence[Work], now: Micros) -> None:
        good = [work for work in works if work.broken is None]
        broken = [work for work in works if work.broken is not None and not work.is_new]
        hold(tx, [Held(work.stored, work.pending, work.broken) for work in broken], now=now)
        new = [Stored(work.stored.origin, work.instance) for work in good if work.is_new]
        instances_insert(tx, new)
        labels_insert(tx, new)
        old = [(work, _stored_due(work, now)) for work in good if not work.is_new]
        instances_update(
            tx,
            [
                (work.stored.instance, replace(work.instance, due_at=due_at))
                for work, due_at in old
                if _is_changed(work, due_at)
            ],
        )
        entered: list[tuple[bytes, Step]] = []
        changed: list[tuple[bytes, Step, Step]] = []
        for work in good:
            known, steps = work.stored.instance.steps, work.instance.steps
            for name in sorted(work.changed_steps & steps.keys()):
                if name in known:
                    changed.append((work.instance.id, known[name], steps[name]))
                else:
                    entered.append((work.instance.id, steps[name]))
        steps_insert(tx, entered)
        steps_update(tx, changed)
        _put_away(tx, good)
        _forget(tx, good)
        _keep_effects(tx, good)
        values_insert(tx, [(work.instance.id, slot, value) for work in good for slot, value in work.kept.items()])
        running_delete(tx, [place for work in good if _has_ended(work) for place in ended_places(work.stored)])
        signals_take(tx, [(take.id, take.step) for work in good for take in work.takes], now=now)
        history_insert(tx, [(work.instance.id, record) for work in good for record in work.recorded])
        events = [event for work in good for record in work.recorded for event in events_of(work.stored, record)]
        if events:
            events_insert(tx, events, now=now)
        self._tell(tx, good)

    def _tell(self, tx: Transaction, works: Sequence[Work]) -> None:
        """Store new children, and what parents and children are told: pure inserts, after all that takes locks."""
        children_insert(tx, [child for work in works for child in work.children])
        told: list[tuple[bytes, StoredStimulus]] = []
        for work in works:
            found = told_to_parent(work.stored.origin, work.stored.instance, work.instance, work.flow)
            if work.cancels or work.instructions:
                found += told_to_children(work.instance, work.cancels, work.instructions)
            work.has_told = bool(found or work.children)
            told += found
        stimuli_insert(tx, told)


def _reaches_out(work: Work) -> bool:
    """Tell whether an advance wants something done to tasks, children, signals or its gate, or has raised."""
    return work.broken is not None or bool(work.cancels or work.instructions or work.takes) or work.pause is not None


def _put_away(tx: Transaction, works: Sequence[Work]) -> None:
    """Move the steps of items that are done with to where no advance reads them."""
    settled = [(work, item) for work in works for item in work.settled]
    if settled:
        items_insert(tx, [(work.instance.id, item) for work, item in settled])
        known = [
            (work, step.id) for work, item in settled for step in item.steps if step.id in work.stored.instance.steps
        ]
        steps_delete(tx, [(work.instance.id, step) for work, step in known])


def _keep_effects(tx: Transaction, works: Sequence[Work]) -> None:
    """Keep what may have to be undone of items that are done with, and forget what has been undone."""
    new = [(work, effect) for work in works for effect in work.effects if effect.step not in work.undone]
    # One that is heard of late may have been heard of before.
    late = [(work, effect.step) for work, effect in new if effect.step not in _put_away_steps(work)]
    effects_delete(tx, [(work.instance.id, step) for work, step in late])
    effects_delete(tx, [(work.instance.id, step) for work in works for step in work.undone])
    effects_insert(tx, [(work.instance.id, effect) for work, effect in new])


def _forget(tx: Transaction, works: Sequence[Work]) -> None:
    """Delete what is left of the steps of blocks that are done once more: rows that are not entered again, values."""
    for work in works:
        if work.reset:
            known = work.stored.instance.steps.keys()
            gone = sorted((work.reset & known) - work.instance.steps.keys() - _put_away_steps(work))
            steps_delete(tx, [(work.instance.id, step) for step in gone])
            values_delete(tx, work.instance.id, sorted(work.reset))


def _put_away_steps(work: Work) -> set[str]:
    return {step.id for item in work.settled for step in item.steps}


def hold(tx: Transaction, helds: Sequence[Held], *, now: Micros) -> None:
    """Hold instances whose advance raised: NEEDS_RECOVERY with ENGINE_ERROR, their stimuli set aside, nothing lost."""
    changed: list[tuple[Instance, Instance]] = []
    told: list[tuple[bytes, StoredStimulus]] = []
    recorded: list[tuple[bytes, Recorded]] = []
    events: list[EventRecord] = []
    for held in helds:
        before = held.stored.instance
        if held.error is None or is_held_by_engine(before) or before.state in INSTANCE_TERMINAL:
            continue
        message = f"the engine failed: {type(held.error).__name__}: {held.error}"[:1000]
        error = Failure(ENGINE_ERROR, message, None if before.error is None else {"before": before.error.to_json()})
        after = replace(
            before,
            state=InstanceState.NEEDS_RECOVERY,
            revision=before.revision + 1,
            error=error,
            clock_stopped_at=now if before.clock_stopped_at is None else before.clock_stopped_at,
            due_at=None,
        )
        entry = Entry("instance.needs_recovery", None, {"error": error.to_json()})
        changed.append((before, after))
        told += told_to_parent(held.stored.origin, before, after)
        record = Recorded(after.revision, now, (entry,))
        recorded.append((before.id, record))
        events += events_of(held.stored, record)
    instances_update(tx, changed)
    history_insert(tx, recorded)
    stimuli_insert(tx, told)
    if events:
        events_insert(tx, events, now=now)
    stimuli_hold(tx, [entry for held in helds for entry in held.pending])


def events_of(stored: Stored, record: Recorded) -> list[EventRecord]:
    """Give the events of one advance: what became of the instance itself. Its steps' news are in its history."""
    origin, kinds = stored.origin, {entry.kind for entry in record.entries}
    has_ended = not kinds.isdisjoint(_ENDS)
    found = []
    for entry in record.entries:
        # An end that is reached in the same advance says it all.
        is_alarm = entry.kind == AFTER_END
        if not (is_alarm or entry.kind.startswith("instance.")) or (has_ended and entry.kind == "instance.ending"):
            continue
        data = {"workflow": origin.workflow, "version": origin.version, **entry.data}
        if is_alarm:
            data["step"] = entry.step
        text = compact(data).decode()
        instance_id = stored.instance.id
        found.append(
            EventRecord(origin.namespace_id, entry.kind, instance_id, record.revision, text, workflow=origin.workflow)
        )
    return found


def is_held_by_engine(instance: Instance) -> bool:
    """Tell whether an instance is set aside after an engine error: what comes for it is kept, and not applied."""
    return instance.error is not None and instance.error.code == ENGINE_ERROR


def is_set_aside(instance: Instance) -> bool:
    """Tell whether what comes for an instance is kept, not applied: after an engine error, or while it is paused."""
    return is_held_by_engine(instance) or instance.control is not Control.ACTIVE


def _refuse(work: Work, command: SubmitTask, error: OrbitError, refused: dict[int, Work]) -> None:
    failure = Failure(error.code, error.message, error.details)
    work.stimuli.append(SubmissionRefused(command.step, command.round, failure, error.retryable))
    refused[id(work)] = work


def _link(work: Work, step: str, task_id: bytes | None) -> None:
    """Write in a step which task, or which child, does its work."""
    # The steps are those that this very advance has made: nobody else has them yet.
    steps = cast("dict[str, Step]", work.instance.steps)
    steps[step] = replace(steps[step], task_id=task_id)


def _request(work: Work, command: SubmitTask, spec: TaskSpec) -> TaskRequest:
    origin = work.stored.origin
    retry = RetryPolicy(
        attempts_max=spec.retry.attempts_max,
        backoff_micros=seconds(spec.retry.backoff_seconds),
        backoff_micros_max=seconds(spec.retry.backoff_seconds_max),
    )
    return TaskRequest(
        namespace_id=origin.namespace_id,
        queue=spec.queue,
        type=spec.type,
        version=spec.task_version,
        params=compact(command.params),
        start_deadline_at=command.start_deadline_at,
        deadline_at=command.deadline_at,
        attempt_timeout_micros=seconds(spec.attempt_timeout_seconds),
        priority=spec.priority,
        retry=retry,
        concurrency_keys=command.concurrency_keys,
        business_key=work.instance.business_key,
        traceparent=origin.traceparent,
        owner=TaskOwner(work.instance.id, command.step, command.round),
        task_id=new_id(),
        gate_id=work.instance.id,
        retry_of=command.retry_of,
        redact=work.flow.hiding.of_task(command.step),
    )


def _has_ended(work: Work) -> bool:
    """Tell whether an instance has become terminal here, and not before."""
    return work.instance.state in INSTANCE_TERMINAL and work.stored.instance.state not in INSTANCE_TERMINAL


def _is_changed(work: Work, due_at: Micros | None) -> bool:
    before = work.stored.instance
    return work.instance.revision != before.revision or due_at != before.due_at


def _stored_due(work: Work, now: Micros) -> Micros | None:
    """Keep an earlier look at the instance than its next timer: it costs one advance, moving the column costs more."""
    before, after = work.stored.instance.due_at, work.instance.due_at
    return after if after is None or before is None or before <= now else min(before, after)


def next_due(works: Iterable[Work]) -> Micros | None:
    """Give the earliest instant at which one of these instances, or one that it has told something, is due."""
    due = (0 if work.has_told else work.instance.due_at for work in works)  # what was told is due since long
    return min((at for at in due if at is not None), default=None)
