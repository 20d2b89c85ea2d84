"""Requests and answers of the namespace resource: its limits of running instances and of what is published."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from api.models.applications import QuotaRevision
from api.models.fields import Count, Reason, Request
from definitions.bound_limits import CEILINGS
from definitions.limits import RUNNING_MAX


class NewBoundLimits(Request, frozen=True, kw_only=True):
    """Limits of what one instance may use at most by its definition's proof; of one left out the default holds."""

    max_tasks: Annotated[int, Meta(ge=1, le=CEILINGS.max_tasks, description="Most tasks")] | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=CEILINGS.max_attempts, description="Most attempts")] | None = None
    max_rounds: Annotated[int, Meta(ge=1, le=CEILINGS.max_rounds, description="Most rounds of polls")] | None = None
    max_concurrent_tasks: (
        Annotated[int, Meta(ge=1, le=CEILINGS.max_concurrent_tasks, description="Most tasks at once")] | None
    ) = None
    max_stored_bytes: (
        Annotated[int, Meta(ge=1, le=CEILINGS.max_stored_bytes, description="Most bytes in the database")] | None
    ) = None
    max_active_seconds: (
        Annotated[
            int,
            Meta(ge=1, le=CEILINGS.max_active_seconds, description="Longest active time of the flow, without undoing"),
        ]
        | None
    ) = None


class ConfigureNamespace(Request, frozen=True, kw_only=True):
    """Replace the limits of a namespace; what is left out has no limit, or the default one."""

    expected_revision: QuotaRevision
    reason: Reason
    max_running: (
        Annotated[int, Meta(ge=1, le=RUNNING_MAX, description="Most unfinished instances; more get TOO_MANY_RUNNING")]
        | None
    ) = None
    bounds: (
        Annotated[
            NewBoundLimits, Meta(description="What publishing allows from now on; what is published stays as it is")
        ]
        | None
    ) = None


class BoundLimits(Struct, kw_only=True):
    """What one instance may use at most, by the bounds that publishing proves."""

    max_tasks: int
    max_attempts: int
    max_rounds: int
    max_concurrent_tasks: int
    max_stored_bytes: int
    max_active_seconds: int


class Namespace(Struct, kw_only=True):
    """The caller's namespace: its limit (null: none), and how many unfinished instances it counts.

    `bounds` are the limits that hold at publish, `bounds_set` names those that the namespace has set itself.
    """

    max_running: int | None
    running: int
    revision: Count
    bounds: BoundLimits
    bounds_set: list[str]


class NamespaceResult(Struct, kw_only=True):
    """The receipt of a configuration: the namespace as it was at that moment."""

    deduplicated: bool
    namespace: Namespace
