"""What the client sends and gets: frozen, typed, and lenient where it reads.

Requests leave out what was not given, so that a receipt's meaning stays the same when a field is added later. Results
read missing fields as empty and ignore unknown ones: an old client understands a newer server. 64-bit counters, decimal
strings on the wire, are ints here; instants stay RFC 3339 text.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct

from orbit.sdk.decisions import Decision
from orbit.sdk.type_models import OutputReference, Retry, Verification
from orbit.sdk.version_models import Notice
from orbit.sdk.wire import Request

ResultT = TypeVar("ResultT")


class CreateQueueRequest(Request, frozen=True, kw_only=True):
    """A new queue. `max_unfinished_tasks` left out means 100 000."""

    name: str
    max_concurrency: int
    rate_per_second: int
    max_unfinished_tasks: int | None = None


class ConfigureQueueRequest(Request, frozen=True, kw_only=True):
    """The complete new settings of a queue, on top of the revision that was read."""

    expected_revision: int
    reason: str
    paused: bool
    max_concurrency: int
    rate_per_second: int
    max_unfinished_tasks: int

    def content(self) -> dict[str, Any]:
        """Return the fields; the revision travels as a decimal string."""
        return super().content() | {"expected_revision": str(self.expected_revision)}


class ConfigureApplicationRequest(Request, frozen=True, kw_only=True):
    """The complete new quotas of an application, on top of the revision that was read; None is no limit."""

    expected_revision: int
    reason: str
    max_concurrency: int | None = None
    rate_per_second: int | None = None
    max_unfinished_tasks: int | None = None

    def content(self) -> dict[str, Any]:
        """Return the fields; the revision travels as a decimal string."""
        return super().content() | {"expected_revision": str(self.expected_revision)}


class SubmitTask(Request, frozen=True, kw_only=True):
    """A task. `params` is any JSON; instants are RFC 3339 text; what is left out has the server's default."""

    queue: str
    type: str
    version: int
    params: Any = UNSET
    params_version: str | None = None
    available_at: str | None = None
    delay_seconds: float | None = None
    start_deadline_at: str | None = None
    deadline_at: str | None = None
    attempt_timeout_seconds: float | None = None
    priority: int | None = None
    retry: Retry | None = None
    business_key: str | None = None
    concurrency_keys: list[str] | None = None
    fairness_key: str | None = None
    labels: dict[str, str] | None = None
    derived_from: str | None = None
    traceparent: str | None = None


class StartInstance(Request, frozen=True, kw_only=True):
    """A new instance of a workflow; without `version` of its default one."""

    workflow: str
    version: int | None = None
    input: Any = UNSET
    business_key: str | None = None
    labels: dict[str, str] | None = None
    traceparent: str | None = None
    signal: Request | None = None  # a SendSignal that is there before the first step
    pause_at: list[str] | None = None  # steps before which the instance pauses


class Queue(Struct, frozen=True, kw_only=True):
    """A queue's settings, its revision and how many unfinished tasks it had when read."""

    id: str = ""
    namespace_id: str = ""
    name: str = ""
    paused: bool = False
    max_concurrency: int = 0
    rate_per_second: int = 0
    max_unfinished_tasks: int = 0
    unfinished_tasks: int = 0
    revision: int = 0


class QueueResult(Struct, frozen=True, kw_only=True):
    """The receipt of a creation or configuration: the queue as it was at that moment."""

    deduplicated: bool = False
    queue: Queue = Queue()


class Application(Struct, frozen=True, kw_only=True):
    """An application's quotas (None is no limit) and what the queues of all its namespaces used when it was read."""

    id: str = ""
    name: str = ""
    max_concurrency: int | None = None
    rate_per_second: int | None = None
    max_unfinished_tasks: int | None = None
    active_tasks: int = 0
    unfinished_tasks: int = 0
    revision: int = 0


class ApplicationResult(Struct, frozen=True, kw_only=True):
    """The receipt of a configuration: the application as it was at that moment."""

    deduplicated: bool = False
    application: Application = Application()


class Failure(Struct, frozen=True, kw_only=True, rename={"failure_class": "class"}):
    """Why something failed."""

    code: str = ""
    message: str = ""
    failure_class: str | None = None
    details: Any = None


class Source(Struct, frozen=True, kw_only=True):
    """What a task comes from."""

    kind: str = ""
    id: str | None = None
    step: str | None = None
    round: int | None = None
    scheduled_at: str | None = None


TASK_ENDS = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})


class Task(Struct, frozen=True, kw_only=True):
    """A task as it is now, or as it was accepted (then most fields are empty)."""

    id: str = ""
    namespace_id: str = ""
    queue: str = ""
    type: str = ""
    version: int = 0
    state: str = ""
    wait_reason: str | None = None
    revision: int = 0
    priority: int = 0
    params: Any = None
    params_version: str = ""
    business_key: str | None = None
    concurrency_keys: list[str] = []
    fairness_key: str | None = None
    labels: dict[str, str] = {}
    source: Source = Source()
    operation_id: str = ""
    retry_of: str | None = None
    derived_from: str | None = None
    traceparent: str | None = None
    accepted_at: str = ""
    available_at: str = ""
    start_deadline_at: str | None = None
    deadline_at: str = ""
    finished_at: str | None = None
    attempt_timeout_seconds: float = 0.0
    attempts: int = 0
    attempts_failed: int = 0
    attempts_lost: int = 0
    deferrals: int = 0
    cancel_requested_at: str | None = None
    recovery: str | None = None
    verification: Verification | None = None
    error: Failure | None = None
    output: Any = None
    output_ref: OutputReference | None = None

    @property
    def is_finished(self) -> bool:
        """Tell whether the task has reached a state that it never leaves."""
        return self.state in TASK_ENDS


class Current(Struct, frozen=True, kw_only=True):
    """What a replayed thing is now."""

    state: str = ""
    revision: int = 0


class TaskResult(Struct, frozen=True, kw_only=True):
    """The receipt of a submission; a replay is `deduplicated` and says what the task is now."""

    deduplicated: bool = False
    task: Task = Task()
    current: Current | None = None


class BatchItem(Struct, frozen=True, kw_only=True):
    """What became of one task of a batch: the receipt, or the refusal that it would have got alone."""

    index: int = 0
    status: int = 0
    data: TaskResult | None = None
    error: Failure | None = None


class BatchResult(Struct, frozen=True, kw_only=True):
    """What became of a batch, in the order of its items."""

    items: list[BatchItem] = []


class CancelledTask(Struct, frozen=True, kw_only=True):
    """A task after a cancel; `cancel_requested` says that its handler is asked to stop."""

    id: str = ""
    state: str = ""
    cancel_requested: bool = False


class CancelResult(Struct, frozen=True, kw_only=True):
    """The receipt of a cancel."""

    deduplicated: bool = False
    task: CancelledTask = CancelledTask()


class Attempt(Struct, frozen=True, kw_only=True):
    """One dispatch and execution of a task."""

    id: str = ""
    number: int = 0
    state: str = ""
    type: str = ""
    version: int = 0
    worker: str | None = None
    session_id: str = ""
    node: str | None = None
    leased_at: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    error: Failure | None = None
    progress: Any = None
    late: list[dict[str, Any]] = []


INSTANCE_ENDS = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})


class Instance(Struct, frozen=True, kw_only=True):
    """A workflow instance."""

    id: str = ""
    workflow: str = ""
    version: int = 0
    state: str = ""
    ending_as: str | None = None
    compensation: str | None = None
    revision: int = 0
    control: str = ""
    pause: dict[str, Any] | None = None
    business_key: str | None = None
    forked_from: str | None = None
    parent: dict[str, Any] | None = None
    root_id: str = ""
    started_by: str = ""
    labels: dict[str, str] = {}
    error: dict[str, Any] | None = None
    started_at: str = ""
    deadline_at: str = ""
    finished_at: str | None = None
    input: Any = None
    output: Any = None

    @property
    def is_finished(self) -> bool:
        """Tell whether the instance has reached a state that it never leaves."""
        return self.state in INSTANCE_ENDS


class InstanceResult(Struct, frozen=True, kw_only=True):
    """The receipt of a start; `existing` says that its instance ran already, with the business key."""

    deduplicated: bool = False
    instance: Instance = Instance()
    warnings: list[Notice] = []
    existing: bool = False
    current: Current | None = None


class ControlledInstance(Struct, frozen=True, kw_only=True):
    """An instance after an operator's command."""

    id: str = ""
    state: str = ""
    ending_as: str | None = None
    compensation: str | None = None
    control: str = ""
    revision: int = 0


class ControlResult(Struct, frozen=True, kw_only=True):
    """The receipt of an operator's command to an instance."""

    deduplicated: bool = False
    instance: ControlledInstance = ControlledInstance()


class RecoverInstance(Decision, frozen=True, kw_only=True):
    """A decision about a failed step, a step under review, or without `step` about the held instance itself.

    `action` is RETRY, COMPLETE (may carry `output`), FAIL or SKIP; `evidence` is any JSON up to 16 KiB, or a reference
    with a hash. A RETRY where an effect is possible needs a `safety_statement`.
    """

    action: str
    evidence: Any
    step: str | None = None
    output: Any = UNSET
    safety_statement: str | None = None
    dry_run: bool | None = None


class RecoveryResult(Struct, frozen=True, kw_only=True):
    """The receipt of a decision, or with `dry_run` what it would do: the instance and the step before and after."""

    deduplicated: bool = False
    dry_run: bool = False
    instance: ControlledInstance = ControlledInstance()
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}


class Recovery(Struct, frozen=True, kw_only=True):
    """A decision that was made; `superseded` is what the step's task reported afterwards, kept without effect."""

    revision: int = 0
    action: str = ""
    step: str | None = None
    round: int = 0
    task_id: str | None = None
    safety_statement: str | None = None
    evidence: Any = None
    evidence_sha256: str = ""
    reason: str = ""
    actor: str = ""
    at: str = ""
    superseded: list[dict[str, Any]] = []


class Step(Struct, frozen=True, kw_only=True):
    """A step of an instance, with the task that does its work; `items` counts those of a foreach."""

    id: str = ""
    kind: str = ""
    title: str | None = None
    state: str = ""
    reason: str | None = None
    round: int | None = None
    task_id: str | None = None
    child_id: str | None = None
    error: dict[str, Any] | None = None
    verification: Verification | None = None
    items: dict[str, int] | None = None


class Item(Struct, frozen=True, kw_only=True):
    """An item of a foreach: its index in the list, its steps (`fetch[3]`), and its result, None until it has ended."""

    index: int = 0
    steps: list[Step] = []
    result: Any = None


class HistoryEntry(Struct, frozen=True, kw_only=True):
    """Something that happened to an instance, in order of (revision, index)."""

    revision: int = 0
    index: int = 0
    at: str = ""
    type: str = ""
    step: str | None = None
    data: dict[str, Any] = {}


def read(data: Any, kind: type[ResultT]) -> ResultT:
    """Read a result: decimal strings become ints, null where a value belongs becomes empty.

    Raises msgspec.ValidationError for what can't be read even so.
    """
    return msgspec.convert(_without_nulls(data), kind, strict=False)


def _without_nulls(data: Any) -> Any:
    """Leave out null fields of the result itself, so that their defaults stand; payloads are not looked into."""
    if not isinstance(data, dict):
        return data
    return {
        name: _without_nulls(value) if isinstance(value, dict) and name in _RESULTS else value
        for name, value in data.items()
        if value is not None
    }


# Fields that hold a result of ours, not a user's payload.
_RESULTS = frozenset({"queue", "application", "task", "instance", "signal", "namespace", "current", "source", "data"})
