"""What can happen to an instance from outside. Timers are no stimulus: `advance` fires whatever is due at its `now`.

A stimulus names the step and the round whose task it is about, so that a repeated or late one is recognised.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from engine.instance import Failure
from engine.states import Action
from orbit.clock import Micros
from orbit.jsontext import Json


class Outcome(StrEnum):
    """How a task ended."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Started(Struct, frozen=True):
    """The instance begins: its first steps are entered."""


class TaskEnded(Struct, frozen=True):
    """A task became terminal. Its output is a value, not part of this."""

    step: str
    round: int
    outcome: Outcome
    error: Failure | None = None


class LateSuccess(Struct, frozen=True):
    """A worker has reported that a task did its work, after that task had ended FAILED or CANCELLED."""

    step: str
    round: int


class ReviewOpened(Struct, frozen=True):
    """The outcome of a task is unknown: it waits for a person."""

    step: str
    round: int
    error: Failure | None = None


class ReviewClosed(Struct, frozen=True):
    """A review ended with one more attempt of the same task."""

    step: str
    round: int


class SubmissionRefused(Struct, frozen=True):
    """Pulse did not take a task; `retryable` if only room is missing."""

    step: str
    round: int
    error: Failure
    retryable: bool


class CancelRequested(Struct, frozen=True):
    """Somebody wants the instance to end CANCELLED, undoing first what it did if so said; `by` names the credential."""

    reason: str
    by: str | None = None
    compensate: bool = False


class Recovered(Struct, frozen=True):
    """A person has decided about a step, or with `step` None about the instance; `output` counts for COMPLETE only."""

    action: Action
    step: str | None = None
    output: Json = None
    reason: str = ""
    by: str | None = None


class PauseRequested(Struct, frozen=True):
    """Somebody has closed the instance's gate; `in_flight` of its tasks still run behind it.

    `parent_paused_at` is given if the instance is paused with its parent: which pause of the parent that is.
    """

    in_flight: int
    reason: str = ""
    by: str | None = None
    parent_paused_at: Micros | None = None


class GateQuiet(Struct, frozen=True):
    """Nothing runs behind the instance's closed gate any more."""


class Forked(Struct, frozen=True):
    """A new instance begins at a step, with what lies before it copied from another one, `source` in hex."""

    step: str
    source: str
    source_version: int
    reason: str = ""
    by: str | None = None


class Migrated(Struct, frozen=True):
    """The instance goes on with another version of its workflow, which is the flow from now on.

    `deadline_at` is the new end of its budget, `poll_ends` those of polls in their gap whose bounds have changed.
    """

    from_version: int
    to_version: int
    deadline_at: Micros
    poll_ends: Mapping[str, Micros]
    reason: str = ""
    by: str | None = None


class ChildQuiet(Struct, frozen=True):
    """Nothing of the child of a step runs any more: it is paused, or has ended; `paused_at` is its parent's pause."""

    step: str
    round: int
    paused_at: Micros


class ResumeRequested(Struct, frozen=True):
    """Somebody lets the instance go on; `from_parent`: its parent goes on."""

    reason: str = ""
    by: str | None = None
    from_parent: bool = False


class Instruction(StrEnum):
    """What a parent tells its child. The child looks at its parent for the second, so no order of arrival matters."""

    CANCEL = "CANCEL"
    FOLLOW = "FOLLOW"  # be paused exactly while the parent is


class Instructed(Struct, frozen=True):
    """A parent's instruction, stored for its child. The shell makes an operator's command of it, in its own time.

    `compensate` goes with a CANCEL: the child undoes first what it did, as its parent will.
    """

    instruction: Instruction
    reason: str = ""
    by: str | None = None
    compensate: bool = False


class SignalReceived(Struct, frozen=True):
    """A signal of this name was stored for the instance. The stored signals themselves are a value."""

    name: str


Stimulus = (
    Forked
    | Migrated
    | GateQuiet
    | SignalReceived
    | ChildQuiet
    | PauseRequested
    | ResumeRequested
    | Recovered
    | Started
    | TaskEnded
    | LateSuccess
    | ReviewOpened
    | ReviewClosed
    | SubmissionRefused
    | CancelRequested
)
