"""`orbit.Client`: the HTTP API for Python.

Every write takes the caller's idempotency key first: it is the identity of the command, and a command whose outcome is
unknown is sent again under it. No write is ever repeated in here. `result` and `instance_result` wait by long polls,
which change nothing, so these two go on over broken connections until their time is up.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from orbit import jsontext
from orbit.sdk import models, settings
from orbit.sdk.batches import BatchCalls
from orbit.sdk.calls import segment as _segment
from orbit.sdk.decisions import DecisionResult, Explanation, RescheduleTask, RetryTask, ReviewTask, Verdict
from orbit.sdk.errors import APIError, ConnectionFailed
from orbit.sdk.instance_moves import InstanceMoveCalls
from orbit.sdk.keys import KeyCalls
from orbit.sdk.models import (
    Application,
    ApplicationResult,
    Attempt,
    BatchResult,
    CancelResult,
    ConfigureApplicationRequest,
    ConfigureQueueRequest,
    ControlResult,
    CreateQueueRequest,
    HistoryEntry,
    Instance,
    InstanceResult,
    Item,
    Queue,
    QueueResult,
    RecoverInstance,
    Recovery,
    RecoveryResult,
    StartInstance,
    Step,
    SubmitTask,
    Task,
    TaskResult,
)
from orbit.sdk.namespaces import NamespaceCalls
from orbit.sdk.schedules import ScheduleCalls
from orbit.sdk.signals import SignalCalls
from orbit.sdk.subscriptions import SubscriptionCalls
from orbit.sdk.transport import Exchange, Transport
from orbit.sdk.type_calls import TypeCalls
from orbit.sdk.version_models import CheckResult, PublishResult
from orbit.sdk.versions import VersionCalls

WAIT_SECONDS_MAX = 30.0
TIMEOUT_SECONDS_DEFAULT = 30.0
RESULT_SECONDS_DEFAULT = 300.0
YAML_TYPE = "application/yaml"

SubjectT = TypeVar("SubjectT", Task, Instance)


class Client(
    KeyCalls,
    VersionCalls,
    SignalCalls,
    InstanceMoveCalls,
    TypeCalls,
    NamespaceCalls,
    BatchCalls,
    ScheduleCalls,
    SubscriptionCalls,
):
    """A client of one server, for one credential. Thread-safe; close it or use it as a context manager.

    What is not given is read from the environment: `ORBIT_URL`, `ORBIT_TOKEN` or `ORBIT_CREDENTIALS_FILE`.
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS_DEFAULT
    ) -> None:
        self._transport = Transport(settings.from_environment(url=url, token=token), timeout_seconds=timeout_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    # Queues.

    def create_queue(self, key: str, request: CreateQueueRequest) -> QueueResult:
        """Create a queue; the same key and request again give the same receipt, `deduplicated`."""
        return models.read(self._write("/v1/queues", "create_queue", key, request.body()), QueueResult)

    def get_queue(self, queue_id: str) -> Queue:
        """Read a queue by its id, with the number of its unfinished tasks now."""
        return models.read(self._read(f"/v1/queues/{_segment(queue_id)}", "get_queue").data, Queue)

    def configure_queue(self, queue_id: str, key: str, request: ConfigureQueueRequest) -> QueueResult:
        """Replace all settings of a queue. Raises APIError STATE_CONFLICT if `expected_revision` is stale."""
        path = f"/v1/queues/{_segment(queue_id)}:configure"
        return models.read(self._write(path, "configure_queue", key, request.body()), QueueResult)

    def list_queues(self, **query: str | int) -> Iterator[Queue]:
        """List the queues in range, page by page as they are asked for."""
        return self._pages("/v1/queues", "list_queues", query, Queue)

    # The application.

    def get_application(self) -> Application:
        """Read the application that owns the credential's namespace: its quotas and what all its queues use."""
        (own,) = self._pages("/v1/applications", "get_application", {}, Application)
        return own

    def configure_application(
        self, application_id: str, key: str, request: ConfigureApplicationRequest
    ) -> ApplicationResult:
        """Replace all quotas of an application. Raises APIError STATE_CONFLICT if `expected_revision` is stale."""
        path = f"/v1/applications/{_segment(application_id)}:configure"
        return models.read(self._write(path, "configure_application", key, request.body()), ApplicationResult)

    # Tasks.

    def submit_task(self, key: str, request: SubmitTask) -> TaskResult:
        """Submit a task. Raises APIError QUEUE_FULL, with `retry_after`, when its queue is full."""
        return models.read(self._write("/v1/tasks", "submit_task", key, request.body()), TaskResult)

    def submit_tasks(self, requests: Sequence[tuple[str, SubmitTask]]) -> BatchResult:
        """Submit up to 32 tasks, each under its own key; one that is refused touches no other."""
        items = [{"idempotency_key": key} | request.content() for key, request in requests]
        answer = self._transport.send(
            Exchange(
                "POST",
                "/v1/tasks:batch",
                "submit_tasks",
                keys=[key for key, _ in requests],
                body=jsontext.dumps({"items": items}),
                key_in_header=False,
            )
        )
        data = answer.data
        entries = data.get("items", []) if isinstance(data, dict) else []
        return BatchResult(items=[models.read(entry, models.BatchItem) for entry in entries])

    def get_task(self, task_id: str, *, wait_seconds: float = 0.0, after_revision: int | None = None) -> Task:
        """Read a task; with `wait_seconds` (at most 30) wait until it is past `after_revision`."""
        path = f"/v1/tasks/{_segment(task_id)}"
        return models.read(self._read(path, "get_task", **_waiting(wait_seconds, after_revision)).data, Task)

    def list_tasks(self, **query: str | int) -> Iterator[Task]:
        """List tasks, newest first, by `queue`, `state`, `type`, `business_key`, `source`, `label`, or by time.

        A `label` is written name=value, a `source` kind:id; `created_after` and `created_before` are RFC 3339.
        """
        return self._pages("/v1/tasks", "list_tasks", query, Task)

    def task_attempts(self, task_id: str) -> list[Attempt]:
        """List a task's attempts, in order."""
        return list(self._pages(f"/v1/tasks/{_segment(task_id)}/attempts", "task_attempts", {}, Attempt))

    def task_verdicts(self, task_id: str) -> list[Verdict]:
        """Read what people and verifications decided about a task, in order, with its evidence."""
        return list(self._pages(f"/v1/tasks/{_segment(task_id)}/verdicts", "task_verdicts", {}, Verdict))

    def explain_task(self, task_id: str) -> Explanation:
        """Read why a task waits, with the figures that tell; its `reason` is None if it does not wait."""
        return models.read(self._read(f"/v1/tasks/{_segment(task_id)}:explain", "explain_task").data, Explanation)

    def cancel_task(self, task_id: str, key: str, *, reason: str) -> CancelResult:
        """Cancel a task; one that runs is asked to stop and stays unfinished until it answers."""
        path = f"/v1/tasks/{_segment(task_id)}:cancel"
        body = jsontext.dumps({"reason": reason})
        return models.read(self._write(path, "cancel_task", key, body), CancelResult)

    def review_task(self, task_id: str, key: str, request: ReviewTask) -> DecisionResult:
        """Settle a task whose outcome is unknown. Raises APIError STATE_CONFLICT if it changed since it was read."""
        path = f"/v1/tasks/{_segment(task_id)}:review"
        return models.read(self._write(path, "review_task", key, request.body()), DecisionResult)

    def retry_task(self, task_id: str, key: str, request: RetryTask) -> TaskResult:
        """Make the successor of an ended task, with the same params and `operation_id`; the ended one stays as it is.

        Raises APIError STATE_CONFLICT if it has a successor already, or changed since it was read.
        """
        path = f"/v1/tasks/{_segment(task_id)}:retry"
        return models.read(self._write(path, "retry_task", key, request.body()), TaskResult)

    def reschedule_task(self, task_id: str, key: str, request: RescheduleTask) -> DecisionResult:
        """Move a waiting task to another time or priority. Raises APIError STATE_CONFLICT if it waits no more."""
        path = f"/v1/tasks/{_segment(task_id)}:reschedule"
        return models.read(self._write(path, "reschedule_task", key, request.body()), DecisionResult)

    def result(self, task_id: str, *, timeout_seconds: float = RESULT_SECONDS_DEFAULT) -> Task:
        """Wait until a task has ended and return it; its `state` says how.

        Raises TimeoutError when it has not ended in time. A task in review may take a person's time.
        """
        return _wait(lambda wait, revision: self.get_task(task_id, wait_seconds=wait, after_revision=revision),
                     timeout_seconds)  # fmt: skip

    # Workflows and instances.

    def publish_workflow(self, source: str, *, key: str | None = None) -> PublishResult:
        """Publish a definition in YAML. Without a key, one made of its content: the same text is the same command."""
        body = source.encode("utf-8")
        own_key = f"publish-{hashlib.sha256(body).hexdigest()}"
        exchange = Exchange(
            "POST", "/v1/workflows", "publish_workflow", keys=[key or own_key], body=body, content_type=YAML_TYPE
        )
        return models.read(self._transport.send(exchange).data, PublishResult)

    def check(self, source: str) -> CheckResult:
        """Compile a definition in YAML without publishing it; all findings at once."""
        exchange = Exchange("POST", "/v1/workflows:check", "check", body=source.encode("utf-8"), content_type=YAML_TYPE)
        return models.read(self._transport.send(exchange).data, CheckResult)

    def start_instance(self, key: str, request: StartInstance) -> InstanceResult:
        """Start an instance of a published workflow."""
        return models.read(self._write("/v1/instances", "start_instance", key, request.body()), InstanceResult)

    def get_instance(
        self, instance_id: str, *, wait_seconds: float = 0.0, after_revision: int | None = None
    ) -> Instance:
        """Read an instance; with `wait_seconds` (at most 30) wait until it is past `after_revision`."""
        path = f"/v1/instances/{_segment(instance_id)}"
        return models.read(self._read(path, "get_instance", **_waiting(wait_seconds, after_revision)).data, Instance)

    def list_instances(self, **query: str | int) -> Iterator[Instance]:
        """List instances by `workflow`, `version`, `state`, `control`, `business_key`, `label` (`name=value`), time.

        The time is that of the start: `created_after`, `created_before`.
        """
        return self._pages("/v1/instances", "list_instances", query, Instance)

    def instance_steps(self, instance_id: str) -> list[Step]:
        """List an instance's own steps, in the definition's order."""
        return list(self._pages(f"/v1/instances/{_segment(instance_id)}/steps", "instance_steps", {}, Step))

    def instance_items(self, instance_id: str, step: str) -> Iterator[Item]:
        """List the items of a foreach step that have begun, in the order of its list, with their steps."""
        path = f"/v1/instances/{_segment(instance_id)}/steps/{_segment(step)}/items"
        return self._pages(path, "instance_items", {}, Item)

    def instance_history(self, instance_id: str) -> Iterator[HistoryEntry]:
        """List what happened to an instance, in order."""
        return self._pages(f"/v1/instances/{_segment(instance_id)}/history", "instance_history", {}, HistoryEntry)

    def cancel_instance(
        self,
        instance_id: str,
        key: str,
        *,
        reason: str,
        expected_revision: int | None = None,
        compensate: bool = False,
    ) -> ControlResult:
        """Cancel an instance: it ends CANCELLED once its running tasks have stopped.

        With `compensate` it undoes first what its steps have done, where the definition says how. Raises APIError
        STATE_CONFLICT, with `current_revision` in its details, for one that has ended otherwise.
        """
        body: dict[str, Any] = {"reason": reason, **({"compensate": True} if compensate else {})}
        return self._control(instance_id, "cancel", key, body, expected_revision)

    def pause_instance(
        self, instance_id: str, key: str, *, reason: str, expected_revision: int | None = None
    ) -> ControlResult:
        """Pause an instance: nothing of it begins any more; PAUSED, after PAUSING, says that nothing runs."""
        return self._control(instance_id, "pause", key, {"reason": reason}, expected_revision)

    def resume_instance(
        self, instance_id: str, key: str, *, reason: str, expected_revision: int | None = None
    ) -> ControlResult:
        """Let a paused instance go on; resuming an active one changes nothing."""
        return self._control(instance_id, "resume", key, {"reason": reason}, expected_revision)

    def recover_instance(self, instance_id: str, key: str, request: RecoverInstance) -> RecoveryResult:
        """Decide about what waits for a person, or with `dry_run` see what that would do.

        Raises APIError STATE_CONFLICT, with `current_revision` in its details, for what does not wait for it any more.
        """
        path = f"/v1/instances/{_segment(instance_id)}:recover"
        return models.read(self._write(path, "recover_instance", key, request.body()), RecoveryResult)

    def instance_recoveries(self, instance_id: str) -> Iterator[Recovery]:
        """List what people have decided about an instance, in order."""
        path = f"/v1/instances/{_segment(instance_id)}/recoveries"
        return self._pages(path, "instance_recoveries", {}, Recovery)

    def instance_result(self, instance_id: str, *, timeout_seconds: float = RESULT_SECONDS_DEFAULT) -> Instance:
        """Wait until an instance has ended and return it; raises TimeoutError when it has not in time."""
        return _wait(lambda wait, _: self.get_instance(instance_id, wait_seconds=wait), timeout_seconds)

    def _control(
        self, instance_id: str, verb: str, key: str, body: dict[str, Any], expected_revision: int | None
    ) -> ControlResult:
        if expected_revision is not None:
            body = body | {"expected_revision": str(expected_revision)}
        path = f"/v1/instances/{_segment(instance_id)}:{verb}"
        return models.read(self._write(path, f"{verb}_instance", key, jsontext.dumps(body)), ControlResult)


def _waiting(wait_seconds: float, after_revision: int | None) -> dict[str, str | float | None]:
    return {
        "wait_seconds": f"{wait_seconds:g}" if wait_seconds else None,
        "after_revision": None if after_revision is None else str(after_revision),
    }


def _wait(look: Callable[[float, int | None], SubjectT], timeout_seconds: float) -> SubjectT:
    """Look again and again until the subject has ended; reads may fail meanwhile, since they change nothing."""
    until = time.monotonic() + timeout_seconds
    revision: int | None = None
    pause = threading.Event()
    while True:
        left = until - time.monotonic()
        try:
            subject = look(max(0.0, min(WAIT_SECONDS_MAX, left)), revision)
        except (ConnectionFailed, APIError) as error:
            passing = not isinstance(error, APIError) or error.code == "UNAVAILABLE"
            if not passing or left <= 0:
                raise
            pause.wait(min(left, random.uniform(0.1, 1.0)))
            continue
        if subject.is_finished:
            return subject
        if left <= 0:
            raise TimeoutError(f"{subject.id} is {subject.state}, not ended within {timeout_seconds:g} s")
        revision = subject.revision
