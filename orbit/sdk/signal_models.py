"""What the client sends and gets of signals; how it is read is `orbit.sdk.models`' rule."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct

from orbit.sdk.wire import Request


class SendSignal(Request, frozen=True, kw_only=True):
    """A signal: its name, what it carries, and what you call it (else the idempotency key); it lives 7 days."""

    name: str
    payload: Any = UNSET
    signal_id: str | None = None
    ttl_seconds: float | None = None


class Signal(Struct, frozen=True, kw_only=True):
    """A signal; `instance_id` is None while no instance has its business key.

    `state` is KEPT, TAKEN (by `step`), EXPIRED, or LEFT_OVER by an instance that has ended; a receipt has none.
    """

    id: str = ""
    instance_id: str | None = None
    workflow: str = ""
    business_key: str | None = None
    name: str = ""
    signal_id: str = ""
    sent_at: str = ""
    expires_at: str = ""
    state: str = ""
    payload: Any = None
    sent_by: str = ""
    taken_at: str | None = None
    step: str | None = None


class SignalResult(Struct, frozen=True, kw_only=True):
    """The receipt of a signal."""

    deduplicated: bool = False
    signal: Signal = Signal()
