"""What the client can do with task types."""

from __future__ import annotations

from collections.abc import Iterator

from orbit.sdk import models
from orbit.sdk.calls import Calls, segment
from orbit.sdk.transport import Exchange
from orbit.sdk.type_models import PutTaskType, TaskType, TaskTypeResult


class TypeCalls(Calls):
    """The part of `orbit.Client` that is about task types."""

    def put_task_type(self, type_: str, version: int, request: PutTaskType) -> TaskTypeResult:
        """Register a task type or replace what is registered of it; the same again changes nothing.

        Raises APIError STATE_CONFLICT, with `current_revision` in its details, if `expected_revision` is stale.
        """
        exchange = Exchange("PUT", _path(type_, version), "put_task_type", body=request.body())
        return models.read(self._transport.send(exchange).data, TaskTypeResult)

    def get_task_type(self, type_: str, version: int) -> TaskType:
        """Read what a task type is registered as. Raises APIError NOT_FOUND if it is not."""
        return models.read(self._read(_path(type_, version), "get_task_type").data, TaskType)

    def list_task_types(self) -> Iterator[TaskType]:
        """List the registered task types, by name and version."""
        return self._pages("/v1/task-types", "list_task_types", {}, TaskType)


def _path(type_: str, version: int) -> str:
    return f"/v1/task-types/{segment(type_)}/{version}"
