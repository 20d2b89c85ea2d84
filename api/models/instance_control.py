"""Requests and answers of what operators do to instances."""

from __future__ import annotations

from msgspec import Struct

from api.models.fields import Count, HexId, Reason, Request, Revision


class CancelInstance(Request, frozen=True, kw_only=True):
    """End an instance as CANCELLED; with `expected_revision` only if nothing has happened since that was read."""

    reason: Reason
    expected_revision: Revision | None = None


class ControlledInstance(Struct, kw_only=True):
    """An instance after a command."""

    id: HexId
    state: str
    ending_as: str | None
    revision: Count


class InstanceControlResult(Struct, kw_only=True):
    """The receipt of a command."""

    deduplicated: bool
    instance: ControlledInstance
