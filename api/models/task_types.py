"""Requests and answers of task types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from api.models.fields import AttemptTimeoutSeconds, Count, HexId, Instant, Reason, Request, raw_schema
from api.models.tasks import Retry
from orbit.clock import SECOND
from orbit.redaction import PATHS_MAX
from pulse.limits import DEADLINE_MICROS_MAX

RevisionOrNone = Annotated[
    str, Meta(pattern=r"\A(?:0|[1-9][0-9]{0,19})\Z", description='The revision that was read; "0" to register')
]
Schema = Annotated[Raw, raw_schema("A JSON Schema (Draft 2020-12) that refers only to itself", {"type": "object"})]
SCHEMAS_MAX = 32


class TypeDefaults(Request, frozen=True, kw_only=True):
    """What holds for a task that says nothing itself."""

    retry: Retry | None = None
    attempt_timeout_seconds: AttemptTimeoutSeconds | None = None
    deadline_seconds: Annotated[float, Meta(ge=1, le=DEADLINE_MICROS_MAX // SECOND)] | None = None


class PutTaskType(Request, frozen=True, kw_only=True):
    """Register a task type, or replace all that is registered of it."""

    expected_revision: RevisionOrNone
    reason: Reason
    recovery: Annotated[
        Literal["REPLAY_SAFE", "VERIFY", "MANUAL"],
        Meta(description="What may be done with an unknown outcome: run again, find out by another task, ask a person"),
    ]
    verify_with: (
        Annotated[
            str,
            Meta(max_length=160, description="For VERIFY: the REPLAY_SAFE type@version that finds out what happened"),
        ]
        | None
    ) = None
    params_schema: Schema | UnsetType = UNSET
    params_schemas: (
        Annotated[
            dict[Annotated[str, Meta(min_length=1, max_length=64)], Schema],
            Meta(max_length=SCHEMAS_MAX, description="By `params_version`; any other has `params_schema`, or none"),
        ]
        | None
    ) = None
    result_schema: Schema | UnsetType = UNSET
    defaults: TypeDefaults | None = None
    redact: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=512)]],
            Meta(
                max_length=PATHS_MAX,
                description="JSON pointers below /params, /output, /error or /progress to what is never shown; `*` is "
                "any member",
            ),
        ]
        | None
    ) = None


class TaskType(Struct, kw_only=True, rename={"type_": "type"}):
    """A registered task type."""

    id: HexId
    type_: str
    version: int
    revision: Count
    recovery: str
    verify_with: str | None
    params_schema: Any
    params_schemas: dict[str, Any]
    result_schema: Any
    defaults: dict[str, Any]
    redact: list[str]
    created_at: Instant


class EarlierRevision(Struct, kw_only=True):
    """A revision that no longer holds."""

    revision: Count
    created_at: Instant


class TaskTypeWithHistory(TaskType, kw_only=True):
    """A registered task type with its earlier revisions, the newest first."""

    earlier: list[EarlierRevision]


class TaskTypeResult(Struct, kw_only=True):
    """The receipt of a registration; `deduplicated` if the very same was there already."""

    deduplicated: bool
    task_type: TaskType
