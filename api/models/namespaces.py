"""Requests and answers of the namespace resource: its own limit of running instances."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from api.models.applications import QuotaRevision
from api.models.fields import Count, Reason, Request
from definitions.limits import RUNNING_MAX


class ConfigureNamespace(Request, frozen=True, kw_only=True):
    """Replace the limit of a namespace; left out, there is none."""

    expected_revision: QuotaRevision
    reason: Reason
    max_running: (
        Annotated[int, Meta(ge=1, le=RUNNING_MAX, description="Most unfinished instances; more get TOO_MANY_RUNNING")]
        | None
    ) = None


class Namespace(Struct, kw_only=True):
    """The caller's namespace: its limit (null: none), and how many unfinished instances it counts."""

    max_running: int | None
    running: int
    revision: Count


class NamespaceResult(Struct, kw_only=True):
    """The receipt of a configuration: the namespace as it was at that moment."""

    deduplicated: bool
    namespace: Namespace
