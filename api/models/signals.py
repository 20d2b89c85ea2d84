"""Requests and answers about signals."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from api.models.fields import BusinessKey, HexId, Instant, Request, raw_schema

SignalName = Annotated[
    str,
    Meta(
        pattern=r"\A[A-Za-z][A-Za-z0-9_]{0,63}\Z",
        description="The name that a wait of the definition has",
    ),
]
SignalId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=128,
        pattern=r"\S",
        description="What you call this signal: the same again is the same signal. Default: the Idempotency-Key",
    ),
]
Payload = Annotated[Raw, raw_schema("Any JSON up to 64 KiB: the output of the wait that takes it; default null")]
TimeToLive = Annotated[float, Meta(ge=1, le=366 * 86_400, description="How long a wait may take it; default 7 days")]


class FirstSignal(Request, frozen=True, kw_only=True):
    """A signal that is there before the first step of the instance that is started."""

    name: SignalName
    payload: Payload | UnsetType = UNSET
    signal_id: SignalId | None = None
    ttl_seconds: TimeToLive | None = None


class SignalInstance(FirstSignal, frozen=True, kw_only=True):
    """Send a signal to an instance; a wait takes it now or later."""


class SendSignal(FirstSignal, frozen=True, kw_only=True):
    """Send a signal to the instance of a workflow that has a business key, or to the next one that will."""

    workflow: Annotated[str, Meta(min_length=1, max_length=128, description="The workflow's name")]
    business_key: BusinessKey


class SentSignal(Struct, kw_only=True):
    """A signal as it was stored; `instance_id` is null while no instance has its business key."""

    id: HexId
    instance_id: HexId | None
    workflow: str
    business_key: str | None
    name: str
    signal_id: str
    sent_at: Instant
    expires_at: Instant


class SignalResult(Struct, kw_only=True):
    """The receipt of a signal."""

    deduplicated: bool
    signal: SentSignal


class Signal(SentSignal, kw_only=True):
    """A signal as it stands: KEPT, TAKEN by a step, EXPIRED, or LEFT_OVER by an instance that has ended."""

    state: str
    payload: Any
    sent_by: str
    taken_at: Instant | None
    step: str | None
