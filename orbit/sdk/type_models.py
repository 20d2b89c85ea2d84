"""What the client sends and gets of task types, and what they add to tasks: verifications, references to outputs."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct

from orbit.sdk.wire import Request


class Retry(Request, frozen=True, kw_only=True):
    """How failed attempts are repeated."""

    max_attempts: int | None = None
    backoff_seconds: float | None = None
    backoff_seconds_max: float | None = None


class TypeDefaults(Request, frozen=True, kw_only=True):
    """What holds for a task that says nothing itself."""

    retry: Retry | None = None
    attempt_timeout_seconds: float | None = None
    deadline_seconds: float | None = None


class PutTaskType(Request, frozen=True, kw_only=True):
    """All that is registered of a task type, on top of the revision that was read (0 to register).

    `recovery` is REPLAY_SAFE, VERIFY (with `verify_with`, type@version) or MANUAL; schemas are JSON Schemas, `redact`
    JSON pointers below /params, /output, /error or /progress.
    """

    expected_revision: int
    reason: str
    recovery: str
    verify_with: str | None = None
    params_schema: Any = UNSET
    params_schemas: dict[str, Any] | None = None
    result_schema: Any = UNSET
    defaults: TypeDefaults | None = None
    redact: list[str] | None = None

    def content(self) -> dict[str, Any]:
        """Return the fields; the revision travels as a decimal string."""
        return super().content() | {"expected_revision": str(self.expected_revision)}


class TaskType(Struct, frozen=True, kw_only=True):
    """A registered task type."""

    id: str = ""
    type: str = ""
    version: int = 0
    revision: int = 0
    recovery: str = ""
    verify_with: str | None = None
    params_schema: Any = None
    params_schemas: dict[str, Any] = {}
    result_schema: Any = None
    defaults: dict[str, Any] = {}
    redact: list[str] = []
    created_at: str = ""


class TaskTypeResult(Struct, frozen=True, kw_only=True):
    """The receipt of a registration; `deduplicated` if the very same was there already."""

    deduplicated: bool = False
    task_type: TaskType = TaskType()


class Verification(Struct, frozen=True, kw_only=True):
    """What another task finds out, or has found out, about an unknown outcome."""

    task_id: str | None = None
    state: str = ""
    outcome: str | None = None
    attempt_id: str = ""
    created_at: str = ""
    settled_at: str | None = None


class OutputReference(Struct, frozen=True, kw_only=True):
    """An output that its worker keeps elsewhere."""

    uri: str = ""
    sha256: str = ""
    bytes: int = 0
