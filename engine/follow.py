"""Follow the ends of tasks at once: advance their instances in the very transaction that records the results.

What the runner would do after a COMMIT, a wake-up and a read is done here with what is in hand, outputs included. It is
a short cut and no second way: whatever is not plain (another change than an end, an instance that somebody holds, that
is set aside, for which stimuli wait, or whose advance wants more than to submit tasks and to write its own rows) is
stored as stimuli for the runner.

The surprising rule: tasks are locked before their instances here, against the order of locks. It is allowed because an
instance's lock is taken only if it is free: nobody waits here for an instance.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from engine.batch import CAREFUL_SECONDS, Advancer, is_set_aside, next_due
from engine.listener import stimulus_of
from engine.ports import Terms
from engine.recent_outputs import RecentOutputs
from engine.stimulus import Stimulus, TaskEnded
from engine.store.stimuli import StoredStimulus, stimuli_insert
from engine.store.take import instances_take
from engine.work import Work
from orbit.clock import Micros
from orbit.database import is_passing
from orbit.errors import Unavailable
from orbit.logs import get_logger
from pulse.listener import FollowLater, Takings, TaskChange
from pulse.states import TaskState

if TYPE_CHECKING:
    from engine.control import Told
    from orbit.database import Transaction

# A larger output is read only if an expression asks for it.
OUTPUT_BYTES_MAX = 4096

_log = get_logger(__name__)


class Follower:
    """Advances the instances of ended tasks; registered with Pulse by the composition root."""

    def __init__(self, advancer: Advancer, told: Told) -> None:
        self._advancer = advancer
        self._told = told
        self._careful_until = 0.0

    def is_willing(self) -> bool:
        """Tell whether following is worth a try: not for a while after a queue was full."""
        return time.monotonic() >= self._careful_until

    def gave_up(self) -> None:
        """Hear that the transaction had to be run again without following, for want of room in a queue."""
        self._careful_until = time.monotonic() + CAREFUL_SECONDS

    def follow(
        self, tx: Transaction, changes: Sequence[TaskChange], outputs: Mapping[bytes, bytes], *, now: Micros
    ) -> Takings:
        """Advance what the changes let go on, and store stimuli for the rest; return what it takes of counters.

        `outputs` are those of tasks that have succeeded, by task. Raises FollowLater if that must be tried without.
        """
        by_instance: dict[bytes, list[TaskChange]] = {}
        for change in changes:
            by_instance.setdefault(change.owner.instance_id, []).append(change)
        stimuli = {key: [stimulus_of(change) for change in found] for key, found in by_instance.items()}
        plain = [key for key, found in stimuli.items() if all(isinstance(each, TaskEnded) for each in found)]
        works = self._works(tx, plain, stimuli)
        for work in works:
            _give_outputs(work, by_instance[work.instance.id], outputs)
        terms = Terms(now, Takings())
        try:
            done = self._advancer.follow(tx, works, terms)
        except FollowLater:
            raise
        except Exception as error:
            if is_passing(error):
                raise
            # The results of a whole batch must not be refused for what one instance makes of them.
            _log.warning("instance.follow_failed", exc_info=True)
            raise FollowLater from error
        followed = {work.instance.id for work in done}
        rest = [(key, each) for key, found in stimuli.items() if key not in followed for each in found]
        stimuli_insert(tx, rest)
        if rest:
            tx.after_commit(self._told.wake)
        self._tell(tx, done, now=now)
        _keep_outputs(tx, done, by_instance, outputs)
        assert terms.takings is not None, "they are counted here, for the caller to take"
        return terms.takings

    def _works(
        self, tx: Transaction, ids: Sequence[bytes], stimuli: Mapping[bytes, Sequence[StoredStimulus]]
    ) -> list[Work]:
        works = []
        for stored in instances_take(tx, ids, newest=self._advancer.formats.newest) if ids else []:
            origin = stored.origin
            try:
                flow = self._advancer.flows.get(tx, origin.namespace_id, origin.workflow, origin.version)
            except Unavailable:
                continue  # a newer node has published it, and is left to go on with it
            if not is_set_aside(stored.instance):
                applied: list[Stimulus] = [each for each in stimuli[stored.instance.id] if isinstance(each, TaskEnded)]
                works.append(Work(stored, flow, applied))
        return works

    def _tell(self, tx: Transaction, done: Sequence[Work], *, now: Micros) -> None:
        changed = [work.instance for work in done if work.instance.revision != work.stored.instance.revision]
        ended = [each.id for each in changed if each.finished_at is not None]
        moved = [each.id for each in changed if each.finished_at is None]
        if ended:
            tx.after_commit(lambda: self._told.changed(ended))
        if moved:
            tx.after_commit(lambda: self._told.moved(moved))
        due_at = next_due(done)
        if due_at is not None:
            tx.after_commit(lambda: self._told.due_in(due_at - now))


def _keep_outputs(
    tx: Transaction,
    done: Sequence[Work],
    by_instance: Mapping[bytes, Sequence[TaskChange]],
    outputs: Mapping[bytes, bytes],
) -> None:
    """Remember small outputs of instances that go on: expressions of later steps will ask for them."""
    going_on = (work.instance.id for work in done if work.instance.finished_at is None)
    ids = [change.task_id for key in going_on for change in by_instance[key] if change.task_id in outputs]
    kept = {key: outputs[key] for key in ids if len(outputs[key]) <= OUTPUT_BYTES_MAX}
    if kept:
        recent = tx.memory(RecentOutputs)
        tx.after_commit(lambda: recent.keep(kept))


def _give_outputs(work: Work, changes: Sequence[TaskChange], outputs: Mapping[bytes, bytes]) -> None:
    """Let an advance have the outputs of the tasks that its steps still wait for, as if it had read them."""
    for change in changes:
        step = work.instance.steps.get(change.owner.step)
        is_awaited = step is not None and step.has_task and step.task_id == change.task_id
        if step is None or not is_awaited or change.state is not TaskState.SUCCEEDED:
            continue
        text = outputs.get(change.task_id, b"null")
        if len(text) <= OUTPUT_BYTES_MAX:
            work.values[step.id] = json.loads(text)
