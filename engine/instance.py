"""The state of one instance as the pure core sees it: an instance, its steps, what they failed with.

Leaves storage to `store` and every decision to `advance`. Values (the input, outputs) are not part of a step: they lie
in `Instance.values` under the step's id and are there only if somebody loaded them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from engine.states import STEP_WITH_TASK, Compensation, Control, Ending, InstanceState, StepReason, StepState
from orbit.clock import Micros
from orbit.jsontext import Json
from orbit.redaction import Path, below, masked, path_read

# Keys of `values` beside step ids. An author's step id never starts with this sign.
INPUT = "@input"
OUTPUT = "@output"
SIGNALS = "@signals"  # a tuple of Signal: those that are stored for the instance and that no wait has taken

# The error of an instance whose advance raised: its stimuli are set aside until a person has decided.
ENGINE_ERROR = "ENGINE_ERROR"

OUTPUT_INVALID = "OUTPUT_INVALID"  # the error of a task that succeeded with an output that does not fit
# The errors of tasks that have done their work, and only what they answered is of no use.
_DONE_ALL_THE_SAME = frozenset({OUTPUT_INVALID, "OUTPUT_TOO_LARGE"})
NON_RETRYABLE = "NON_RETRYABLE"
UNDONE = "undone"  # the detail of a child's failure: what it did was undone by itself
HIDDEN = "redact"  # a detail that is not shown: the paths of a task's error that its type masks

# Why a failed step waits for nobody: a handler has taken its failure, its own or that of a block around it.
_DEALT_WITH = frozenset({StepReason.HANDLED, StepReason.BLOCK_FAILED})

ROUNDS_KEPT = 5  # rounds of a poll that are kept at each end of its log


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something failed: a code for programs, a message for people, details that depend on the code."""

    code: str
    message: str
    details: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Json]:
        """Give the JSON form: `details` only if there are any."""
        form: dict[str, Json] = {"code": self.code, "message": self.message}
        if self.details:
            form["details"] = dict(self.details)
        return form

    def shown(self, paths: Sequence[Path] = ()) -> Failure:
        """Give it without what must not be shown: what paths into `message` and `details` name, and its task's type.

        Only what a worker said is masked; what the platform adds to the details holds no payload.
        """
        details = dict(self.details or {})
        kept = [*paths, *(path_read(text, roots=("error",), pointer="")[1:] for text in details.pop(HIDDEN, ()))]
        if not kept:
            return self
        if "details" in details:
            details["details"] = masked(details["details"], below(kept, "details"))
        message = masked(self.message, below(kept, "message"))
        return Failure(self.code, message, details or None)

    @property
    def failure_class(self) -> str:
        """Give the class: the worker's, or for what the platform found that trying again mends nothing."""
        named = (self.details or {}).get("class")
        return named if isinstance(named, str) else NON_RETRYABLE

    @property
    def may_have_effect(self) -> bool:
        """Tell whether the effect is possible all the same: nobody knows, or only the answer was wrong."""
        if self.is_undone:
            return False
        return self.code in _DONE_ALL_THE_SAME or bool((self.details or {}).get("effect_unknown"))

    @property
    def is_undone(self) -> bool:
        """Tell whether it is that of a child which has undone what it did."""
        return bool((self.details or {}).get(UNDONE))

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Failure:
        """Read what `to_json` gave."""
        return cls(form["code"], form["message"], form.get("details"))


@dataclass(frozen=True, slots=True)
class Pause:
    """Who has paused an instance, why and when; nothing of what is timed goes on since then.

    `noisy` names what still runs (its tasks, and children by step and round). `parent_paused_at` names the pause of its
    parent with which it is paused, None if it is not; `is_own`: it was paused before, and stays so when its parent
    goes on.
    """

    reason: str
    by: str | None
    paused_at: Micros
    noisy: tuple[str, ...] = ()
    parent_paused_at: Micros | None = None
    is_own: bool = False

    @property
    def with_parent(self) -> bool:
        """Tell whether it is paused because its parent is."""
        return self.parent_paused_at is not None


@dataclass(frozen=True, slots=True)
class Round:
    """One ended round of a poll: its number, its task, how it ended and when."""

    number: int
    task_id: bytes | None
    outcome: str  # PROCESSING, DONE, REJECTED, FAILED, CANCELLED
    ended_at: Micros


@dataclass(frozen=True, slots=True)
class RoundLog:
    """What is remembered of a poll's rounds: the first few, the last few, and how many ended in which way.

    `error` is the last error of a round that counted as still processing: its code and class, and the round.
    """

    first: tuple[Round, ...] = ()
    last: tuple[Round, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None

    def with_round(self, ended: Round) -> RoundLog:
        """Add a round; the log stays bounded however many there are."""
        counts = {**self.counts, ended.outcome: self.counts.get(ended.outcome, 0) + 1}
        if len(self.first) < ROUNDS_KEPT:
            return replace(self, first=(*self.first, ended), counts=counts)
        return replace(self, last=(*self.last, ended)[-ROUNDS_KEPT:], counts=counts)


class Signal(msgspec.Struct, frozen=True):
    """A stored signal: `id` is its row's, `signal` what its sender called it; from `expires_at` on nobody takes it."""

    id: bytes
    name: str
    signal: str
    payload: Json
    sent_at: Micros
    expires_at: Micros


class Items(msgspec.Struct, frozen=True):
    """How far a foreach is: of `count` items those before `next` have begun, and `open` of these have not ended.

    `result_bytes` is how much JSON the results have so far. `error` is why the foreach fails as soon as
    all its items are at rest: no new one begins.
    """

    count: int
    next: int = 0
    open: int = 0
    result_bytes: int = 0
    error: Failure | None = None

    @property
    def ended(self) -> int:
        """Count the items that have a result."""
        return self.next - self.open


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One entered step. A struct, because steps are what a batch reads, copies and changes most.

    `round` numbers the step's tasks from 1 (0: none yet), so that a late answer of an earlier one is recognised.
    `due_at` is when a WAITING step goes on, `timeout_at` when its bound ends, `start_by_at` until when a full queue is
    tried. `task_id` is the step's task, or its child's instance. `rounds_before` are those before a person's retry,
    from which a poll counts anew; `retry_of` is the task whose line the current round's continues. `retries` counts
    what each error handler has retried, `doubts` its tasks that ended although their effect is possible. `items` is a
    foreach's. What the definition says stays in the graph.
    """

    id: str
    state: StepState
    entered_at: Micros
    reason: StepReason | None = None
    chosen: str | None = None
    round: int = 0
    task_id: bytes | None = None
    due_at: Micros | None = None
    timeout_at: Micros | None = None
    start_by_at: Micros | None = None
    refused_count: int = 0
    review_at: Micros | None = None
    finished_at: Micros | None = None
    error: Failure | None = None
    log: RoundLog | None = None
    rounds_before: int = 0
    retry_of: bytes | None = None
    items: Items | None = None
    retries: tuple[int, ...] | None = None
    doubts: int = 0

    @property
    def may_have_effect(self) -> bool:
        """Tell whether it has done something outside, or may have."""
        has_succeeded = self.state is StepState.SUCCEEDED and self.reason is not StepReason.HANDLED
        return has_succeeded or self.doubts > 0

    @property
    def waits_for_decision(self) -> bool:
        """Tell whether it has failed and nothing but a person can change that."""
        return self.state is StepState.FAILED and self.reason not in _DEALT_WITH

    @property
    def failure(self) -> Failure:
        """Give the error of a failed step as that of its instance, which names the step."""
        assert self.error is not None, f"step {self.id} has failed without an error"
        return Failure(self.error.code, self.error.message, {**(self.error.details or {}), "step": self.id})

    @property
    def poll_round(self) -> int:
        """Number the round within the poll as its author counts, from 1."""
        return self.round - self.rounds_before

    @property
    def has_task(self) -> bool:
        """Tell whether a task of this step is unfinished."""
        return self.state in STEP_WITH_TASK


class Instance(msgspec.Struct, frozen=True):
    """One instance.

    `steps` holds the entered steps by id. `deadline_at` is the end of its time budget, which stands still from
    `clock_stopped_at` on while a person is waited for or it is paused. `pause_at` are steps before which it pauses,
    beside those that the definition names. `due_at` is the next instant at which it must be looked at.
    """

    id: bytes
    state: InstanceState
    revision: int
    started_at: Micros
    deadline_at: Micros
    business_key: str | None = None
    ending_as: Ending | None = None
    error: Failure | None = None
    clock_stopped_at: Micros | None = None
    finished_at: Micros | None = None
    due_at: Micros | None = None
    control: Control = Control.ACTIVE
    pause: Pause | None = None
    pause_at: frozenset[str] = frozenset()
    compensation: Compensation | None = None
    steps: Mapping[str, Step] = msgspec.field(default_factory=dict)
    values: Mapping[str, Json] = msgspec.field(default_factory=dict)
