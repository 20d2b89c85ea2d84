"""Requests and answers of the application resource: quotas over all its queues."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from api.models.fields import Count, HexId, MaxConcurrency, RatePerSecond, Reason, Request
from pulse.limits import UNFINISHED_TASKS_MAX

_BACKLOG = "Most tasks WAITING, LEASED, RUNNING or NEEDS_REVIEW in all queues; more get APPLICATION_QUOTA_EXCEEDED"

# Unlike a resource that was created, quotas that were never set have revision 0.
QuotaRevision = Annotated[
    str, Meta(pattern=r"\A(?:0|[1-9][0-9]{0,19})\Z", description="The revision that was read; 0 if none was ever set")
]


class ConfigureApplication(Request, frozen=True, kw_only=True):
    """Replace all quotas of an application; what is left out is not limited."""

    expected_revision: QuotaRevision
    reason: Reason
    max_concurrency: MaxConcurrency | None = None
    rate_per_second: RatePerSecond | None = None
    max_unfinished_tasks: Annotated[int, Meta(ge=1, le=UNFINISHED_TASKS_MAX, description=_BACKLOG)] | None = None


class Application(Struct, kw_only=True):
    """An application: its quotas (null: not limited), and what the queues of all its namespaces use now."""

    id: HexId
    name: str
    max_concurrency: int | None
    rate_per_second: int | None
    max_unfinished_tasks: int | None
    active_tasks: Count
    unfinished_tasks: Count
    revision: Count


class ApplicationResult(Struct, kw_only=True):
    """The receipt of a configuration: the application as it was at that moment."""

    deduplicated: bool
    application: Application
