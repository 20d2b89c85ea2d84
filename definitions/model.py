"""A definition as it is written, checked for shape: blocks of steps with their values, expressions still as text.

What needs to know the whole (references, types, the queue in force) is left to `definitions.weaver`.
"""

from __future__ import annotations

from msgspec import Struct, field

from definitions.children import ChildName
from definitions.graph import Handling, JoinPolicy, StartRules
from definitions.yaml_tree import Scalar, YamlNode
from orbit.jsontext import Json
from orbit.redaction import Path

Place = tuple[int, int]


class RetryModel(Struct, frozen=True):
    """What was written of a retry policy."""

    max_attempts: int | None = None
    backoff: float | None = None
    max_backoff: float | None = None
    place: Place | None = None


class TaskOptions(Struct, frozen=True):
    """What steps may say about their task and `defaults` may say for all; None is not written. Spans in seconds."""

    queue: str | None = None
    start_within: float | None = None
    attempt_timeout: float | None = None
    timeout: float | None = None
    priority: int | None = None
    retry: RetryModel = field(default_factory=RetryModel)
    concurrency_keys: tuple[Scalar, ...] | None = None


class TaskModel(Struct, frozen=True):
    """A task, or what a poll repeats. `type` is None if it was wrong."""

    type: str | None
    version: int
    input: YamlNode | None
    options: TaskOptions
    output_schema: Json | None
    place: Place  # of the task's name


class CaseModel(Struct, frozen=True):
    """A case of a branch; `when` is None for `else`."""

    label: str
    when: Scalar | None
    steps: tuple[StepModel, ...]
    place: Place


class BranchModel(Struct, frozen=True):
    """The cases of a branch, in order, `else` last."""

    cases: tuple[CaseModel, ...]


class NeedModel(Struct, frozen=True):
    """One step that another needs, as it was written."""

    step: str
    place: Place


class NeedsModel(Struct, frozen=True):
    """The `needs` of a step; the place is that of the key."""

    steps: tuple[NeedModel, ...]
    place: Place


class JoinModel(Struct, frozen=True):
    """The policy of a join; `at_least` counts for that policy only. The place is that of the policy, or the block's."""

    policy: JoinPolicy
    at_least: int
    place: Place


class LaneModel(Struct, frozen=True):
    """A named branch of a parallel block, or one step of its dependency graph with what it needs in the block."""

    label: str
    steps: tuple[StepModel, ...]
    needs: tuple[str, ...] = ()


class ParallelModel(Struct, frozen=True):
    """A parallel block; `is_graph` if it was written as steps with needs. The needs have no cycle."""

    lanes: tuple[LaneModel, ...]
    join: JoinModel
    is_graph: bool = False


class ForeachModel(Struct, frozen=True):
    """Steps that are run for each item of a list; `output` is what each item leaves, None if it is not written."""

    items: Scalar | None
    max_items: int | None
    concurrency: int
    steps: tuple[StepModel, ...]
    output: YamlNode | None
    has_output: bool  # written at all: `output: null` is an output


class WaitModel(Struct, frozen=True):
    """A wait for a span."""

    seconds: float | None


class UntilModel(Struct, frozen=True):
    """A wait until an instant, with its bound."""

    until: Scalar | None
    timeout: float | None
    continue_on_timeout: bool


class SignalModel(Struct, frozen=True):
    """A wait for a signal, with its bound, and what a signal must be to end it."""

    name: str | None
    timeout: float | None
    continue_on_timeout: bool
    payload_schema: Json | None
    accept_when: Scalar | None


class PollModel(Struct, frozen=True):
    """A bounded poll."""

    task: TaskModel
    done_when: Scalar | None
    fail_when: Scalar | None
    every: float | None
    backoff: float
    max_every: float | None
    max_rounds: int | None
    timeout: float | None
    continue_on_round_error: bool


class SetModel(Struct, frozen=True):
    """Values to compute."""

    values: YamlNode | None


class FailModel(Struct, frozen=True):
    """The end of the instance as FAILED."""

    code: str | None
    message: YamlNode | None


class ReturnModel(Struct, frozen=True):
    """The end of the instance as SUCCEEDED."""

    output: YamlNode | None


class ChildModel(Struct, frozen=True):
    """A child workflow; `name` is None if it was wrong, its version 0 if none was written."""

    name: ChildName | None
    input: YamlNode | None
    timeout: float | None
    place: Place  # of the child's name
    input_place: Place


Kind = (
    TaskModel
    | BranchModel
    | ParallelModel
    | ForeachModel
    | WaitModel
    | UntilModel
    | SignalModel
    | PollModel
    | SetModel
    | FailModel
    | ReturnModel
    | ChildModel
)


class HandlerModel(Struct, frozen=True):
    """An error handler; `match` or `then` is None if it was wrong."""

    match: str | None
    then: Handling | None
    place: Place
    retries_max: int = 0
    backoff: float = 0.0
    value: YamlNode | None = None
    steps: tuple[StepModel, ...] = ()


class StepModel(Struct, frozen=True):
    """One step; `kind` is None where it could not be read, so that its id is still known."""

    id: str
    kind: Kind | None
    when: Scalar | None
    title: str | None
    place: Place
    needs: NeedsModel | None = None
    pause_at: bool = False
    on_error: tuple[HandlerModel, ...] = ()
    compensate: TaskModel | None = None


class RedactModel(Struct, frozen=True):
    """One path that is masked, as it was written."""

    text: str
    path: Path
    place: Place


class DefinitionModel(Struct, frozen=True):
    """A whole definition; None where a value is absent or was refused."""

    workflow: str | None
    version: int | None
    title: str | None
    input_schema: Json
    timeout: float | None
    on_failure: str
    on_failure_place: Place
    defaults: TaskOptions
    steps: tuple[StepModel, ...]
    output: YamlNode | None
    place: Place
    starts: StartRules
    redact: tuple[RedactModel, ...] = ()
    is_strict: bool = False  # compiled so that expressions read only what schemas declare
