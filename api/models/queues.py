"""Requests and answers of the queue resource."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from api.models.fields import Count, HexId, MaxConcurrency, Name, RatePerSecond, Reason, Request, Revision
from pulse.limits import UNFINISHED_TASKS_MAX

_BACKLOG = "Most tasks WAITING, LEASED, RUNNING or NEEDS_REVIEW at once; more are refused with QUEUE_FULL"


class CreateQueue(Request, frozen=True, kw_only=True):
    """Make a queue."""

    name: Name
    max_concurrency: MaxConcurrency
    rate_per_second: RatePerSecond
    max_unfinished_tasks: (
        Annotated[int, Meta(ge=0, le=UNFINISHED_TASKS_MAX, description=f"{_BACKLOG}. Absent or 0 means 100000")] | None
    ) = None

    @staticmethod
    def zero_means_omitted() -> frozenset[str]:
        """Count a backlog limit of 0 as left out: it was the word for "unset" in the first version of this API."""
        return frozenset({"max_unfinished_tasks"})


class ConfigureQueue(Request, frozen=True, kw_only=True):
    """Replace all control parameters of a queue; nothing here has a default."""

    expected_revision: Revision
    reason: Reason
    paused: Annotated[bool, Meta(description="While true nothing is claimed or started; all else goes on")]
    max_concurrency: MaxConcurrency
    rate_per_second: RatePerSecond
    max_unfinished_tasks: Annotated[int, Meta(ge=1, le=UNFINISHED_TASKS_MAX, description=_BACKLOG)]


class Queue(Struct, kw_only=True):
    """A queue: its settings, and how many unfinished tasks it has now."""

    id: HexId
    namespace_id: HexId
    name: str
    paused: bool
    max_concurrency: int
    rate_per_second: int
    max_unfinished_tasks: int
    unfinished_tasks: Count
    revision: Count


class QueueResult(Struct, kw_only=True):
    """The receipt of a creation or configuration: the queue as it was at that moment."""

    deduplicated: bool
    queue: Queue
