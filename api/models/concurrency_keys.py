"""Requests and answers of concurrency keys."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from api.models.applications import QuotaRevision
from api.models.fields import Count, HexId, Reason, Request
from pulse.limits import MAX_CONCURRENCY_MAX


class ConfigureKey(Request, frozen=True, kw_only=True):
    """Set how many tasks may hold the key at once; without a limit, those of shorter patterns and the default count."""

    expected_revision: QuotaRevision
    reason: Reason
    limit: Annotated[int, Meta(ge=1, le=MAX_CONCURRENCY_MAX, description="Most tasks LEASED or RUNNING")] | None = None


class ConcurrencyKey(Struct, kw_only=True):
    """A key or pattern: the limit in force and its own (null: none), its tasks in flight, and how many wait for it.

    `waiting` is exact up to 10 000, `held_by` names up to 100 tasks; a pattern itself is never held.
    """

    key: str
    limit: int
    own_limit: int | None
    active: Count
    waiting: Count
    held_by: list[HexId]
    revision: Count
