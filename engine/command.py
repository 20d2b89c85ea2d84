"""What an advance asks the shell to do. The new state itself is the other half of its answer.

A task's id is minted by the shell (the core has no source of randomness); step and round identify it here.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from definitions.graph import ChildSpec, TaskSpec
from engine.effects import Effect
from engine.instance import Step
from engine.stimulus import Instructed
from orbit.clock import Micros
from orbit.jsontext import Json


class SubmitTask(Struct, frozen=True):
    """Submit one Pulse task for a round of a step, or start its child. All instants are absolute.

    A child is to its parent what a task is: it has the step's round, its end is the end of a task, and it is asked to
    stop in the same way.
    """

    step: str
    round: int
    spec: TaskSpec | ChildSpec
    params: Json
    start_deadline_at: Micros
    deadline_at: Micros
    concurrency_keys: tuple[str, ...] = ()
    retry_of: bytes | None = None  # the ended task whose line it continues


class CancelTask(Struct, frozen=True):
    """Ask the unfinished task of a step, or its child, to stop."""

    step: str
    round: int
    task_id: bytes
    reason: str
    is_child: bool = False
    compensate: bool = False  # a child undoes first what it did


class InstructChild(Struct, frozen=True):
    """Tell the unfinished child of a step something."""

    child_id: bytes
    instructed: Instructed


class TakeSignal(Struct, frozen=True):
    """Note that a step has taken a stored signal, which no other wait may have any more."""

    id: bytes
    step: str


class Entry(Struct, frozen=True):
    """One line of the history, for people: what happened, to which step (None: the instance), with which facts."""

    kind: str
    step: str | None
    data: Mapping[str, Json]


class SettledItem(Struct, frozen=True):
    """An item of a foreach that is done with: its steps as they ended. Nothing of it is looked at again."""

    foreach: str
    index: int
    steps: tuple[Step, ...]


class Commands(Struct, frozen=True):
    """All that one advance asks for.

    `values` are to be kept (outputs that no task holds, and the instance's own), `steps` are the ids whose rows have
    changed, `settled` are items whose steps are out of the way from now on. `pause` asks for a pause with that reason,
    after all else. `reset` are steps of a block that is done once more: their rows and values go, unless they were
    entered again. `effects` are those of steps that were put away, `undone` the steps of which that is undone. Timers
    are not listed: `Instance.due_at` is the next one.
    """

    submits: tuple[SubmitTask, ...] = ()
    cancels: tuple[CancelTask, ...] = ()
    takes: tuple[TakeSignal, ...] = ()
    pause: str | None = None
    values: Mapping[str, Json] | None = None
    history: tuple[Entry, ...] = ()
    steps: frozenset[str] = frozenset()
    settled: tuple[SettledItem, ...] = ()
    instructions: tuple[InstructChild, ...] = ()
    reset: frozenset[str] = frozenset()
    effects: tuple[Effect, ...] = ()
    undone: tuple[str, ...] = ()
