"""Looks for instances that have not ended and wait for nothing that could ever come, and says so.

No advance leaves such a state, and each refuses to: what is found here was lost by a bug, by a hand in the database or
by a restore. Nothing is repaired; a person decides with `:recover`, `:cancel` or `:fork`.

The surprising rule: a first look takes no lock, so it meets instances in the middle of a move. Whatever looks wrong is
judged again under the instance's lock before anybody hears of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import gevent
from gevent.event import Event

from engine.batch import is_set_aside
from engine.instance import Instance
from engine.pausing import awaits_tasks
from engine.standing import misfit, next_due
from engine.states import INSTANCE_TERMINAL, Control
from engine.store.instances import Stored, instances_lock
from engine.store.steps import steps_load
from engine.store.watch import (
    Position,
    gate_in_flight,
    orphans_find,
    stimuli_owners,
    stimuli_waiting,
    stuck_tell,
    unfinished_page,
    unfinished_work,
)
from orbit.clock import SECOND, Micros
from orbit.database import Database, Pool
from orbit.errors import Unavailable
from orbit.ids import to_hex
from orbit.jsontext import dumps
from orbit.logs import get_logger

if TYPE_CHECKING:
    from orbit.database import Transaction

PAGE_INSTANCES = 200
PAUSE_SECONDS = 2.0  # between two pages: a look at everything is never urgent
ROUND_SECONDS = 60.0
OVERDUE_MICROS = 60 * SECOND
ORPHANS_SHOWN = 100
_ANY_FORMAT = 2**31 - 1

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with an instance: a code for programs, words for people."""

    instance_id: bytes
    code: str
    text: str


def judged(instance: Instance, unfinished: Collection[bytes], now: Micros) -> list[Finding]:
    """Say what an instance with its steps can't go on from, if no stimulus waits for it.

    `unfinished` are those of its steps' tasks and children that have not ended.
    """
    if not instance.steps and instance.control is Control.ACTIVE:
        return [Finding(instance.id, "NO_WAIT", "it has not begun, and nothing would let it begin")]
    found: list[Finding] = []
    wrong = misfit(instance)
    if wrong is not None:
        found.append(Finding(instance.id, "NO_WAIT", wrong))
    for step in instance.steps.values():
        if step.has_task and step.task_id is not None and step.task_id not in unfinished:
            text = f"step {step.id} waits for {to_hex(step.task_id)}, which has ended or is gone"
            found.append(Finding(instance.id, "LOST_TASK", text))
    due_at = next_due(instance)
    if due_at is not None and (instance.due_at is None or instance.due_at > due_at):
        found.append(Finding(instance.id, "LOST_TIMER", "a timer is due before anybody would look at it"))
    elif instance.due_at is not None and instance.due_at + OVERDUE_MICROS < now:
        late = (now - instance.due_at) // SECOND
        found.append(Finding(instance.id, "OVERDUE", f"it was due {late} s ago and nobody has looked at it"))
    return found


class InstanceWatchdog:
    """One greenlet that looks at all unfinished instances again and again; `on_stuck` gets the number that it found."""

    def __init__(self, database: Database, *, on_stuck: Callable[[int], None] | None = None) -> None:
        self._database = database
        self._on_stuck = on_stuck or (lambda _count: None)
        self._position: Position | None = None
        self._found = 0
        self._stopping = Event()
        self._greenlet: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._greenlet = gevent.spawn(self._loop)

    def stop(self) -> None:
        """End the loop after its page."""
        self._stopping.set()
        if self._greenlet is not None:
            self._greenlet.join()

    def run_once(self) -> list[Finding]:
        """Look at one page of instances and return what is wrong; after the last page it begins anew."""
        position = self._position or Position()
        page, following = self._database.transaction(lambda tx: _suspects(tx, position), pool=Pool.DISPATCH)
        found: list[Finding] = []
        for suspect in page:
            found += self._database.transaction(partial(_verified, instance_id=suspect), pool=Pool.DISPATCH)
        self._found += len({finding.instance_id for finding in found})
        self._position = following
        if following is None:
            self._on_stuck(self._found)
            self._found = 0
        return found

    @property
    def is_at_beginning(self) -> bool:
        """Tell whether all instances have been looked at."""
        return self._position is None

    def _loop(self) -> None:
        pause = PAUSE_SECONDS
        while not self._stopping.wait(pause):
            try:
                self.run_once()
            except Unavailable:
                pause = ROUND_SECONDS
                continue
            except Exception:  # noqa: BLE001  (a watchdog that dies is seen by nobody)
                _log.exception("watchdog.failed")
                self._position = None
            pause = ROUND_SECONDS if self._position is None else PAUSE_SECONDS


def examine(database: Database) -> list[Finding]:
    """Look at every unfinished instance, and for tasks that outlived their instances: what `orbit doctor` prints."""
    watchdog = InstanceWatchdog(database)
    found = watchdog.run_once()
    while not watchdog.is_at_beginning:
        found += watchdog.run_once()
    orphans = database.transaction(lambda tx: orphans_find(tx, limit=ORPHANS_SHOWN))
    return found + [
        Finding(instance_id, "ORPHAN_TASK", f"it has ended, and its task {to_hex(task_id)} has not")
        for task_id, instance_id in orphans
    ]


def _suspects(tx: Transaction, position: Position) -> tuple[list[bytes], Position | None]:
    page, following = unfinished_page(tx, position, limit=PAGE_INSTANCES)
    if not page:
        return [], following
    steps = steps_load(tx, [stored.instance.id for stored in page])
    instances = [stored.with_steps(steps[stored.instance.id]).instance for stored in page]
    unfinished = unfinished_work(tx, _tasks_of(instances))
    now = tx.now()
    suspects = [
        instance.id
        for instance in instances
        if instance.control is Control.PAUSING or judged(instance, unfinished, now)
    ]
    moving = stimuli_owners(tx, suspects)
    return [suspect for suspect in suspects if suspect not in moving], following


def _verified(tx: Transaction, *, instance_id: bytes) -> list[Finding]:
    """Judge a suspect under its lock; one that somebody else has locked is moving."""
    locked = instances_lock(tx, [instance_id], newest=_ANY_FORMAT)
    if not locked or locked[0].instance.state in INSTANCE_TERMINAL:
        return []
    stored = locked[0].with_steps(steps_load(tx, [instance_id])[instance_id])
    # Tasks first: one that has ended by now has left its stimulus, which is read after it.
    unfinished = unfinished_work(tx, _tasks_of([stored.instance]))
    waiting = stimuli_waiting(tx, instance_id)
    now = tx.now()
    found = [] if waiting else judged(stored.instance, unfinished, now)
    found += _misplaced(tx, stored.instance, waiting)
    if found:
        _tell(tx, stored, found, now=now)
    return found


def _misplaced(tx: Transaction, instance: Instance, waiting: list[tuple[str, bool]]) -> list[Finding]:
    """Find stimuli that nobody will ever apply, and a pause that nobody will ever call quiet."""
    found: list[Finding] = []
    if any(held for _, held in waiting) and not is_set_aside(instance):
        found.append(Finding(instance.id, "SET_ASIDE", "what came for it is set aside, though it goes on"))
    waits_for_tasks = instance.pause is not None and awaits_tasks(instance.pause)
    is_quiet = instance.control is Control.PAUSING and waits_for_tasks and not gate_in_flight(tx, instance.id)
    if is_quiet and not any(kind == "GATE_QUIET" for kind, _ in waiting):
        found.append(Finding(instance.id, "NEVER_QUIET", "it is PAUSING, though nothing of it runs"))
    return found


def _tell(tx: Transaction, stored: Stored, found: list[Finding], *, now: Micros) -> None:
    origin = stored.origin
    findings = [{"code": finding.code, "text": finding.text} for finding in found]
    data = dumps({"workflow": origin.workflow, "version": origin.version, "findings": findings}).decode()
    if stuck_tell(tx, stored, data, now=now):
        extra = {"instance_id": to_hex(stored.instance.id), "findings": findings}
        tx.after_commit(lambda: _log.error("instance.stuck", extra=extra))


def _tasks_of(instances: Collection[Instance]) -> list[bytes]:
    return [
        step.task_id
        for instance in instances
        for step in instance.steps.values()
        if step.has_task and step.task_id is not None
    ]
