"""The messages of `orbit.worker.v1` as the worker reads and writes them.

Reading is lenient: unknown fields are ignored and missing ones have defaults, so that an old worker understands a newer
server. Payloads stay raw bytes until the thread that needs them parses them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec

from orbit.sdk.outcomes import WireError
from orbit.sdk.type_models import OutputReference

PROTOCOL = 1
SUBPROTOCOL = "orbit.worker.v1"


class Head(msgspec.Struct):
    """The part of a message that names it."""

    type: str = ""


class AssignedTask(msgspec.Struct, frozen=True):
    """One task offered to this worker; it may run only after its start is granted."""

    task_id: str
    attempt_id: str
    token: str
    type: str
    version: int
    operation_id: str = ""
    attempt: int = 1
    fencing: str = "0"
    params_version: str = "1"
    queue: str = ""
    params: msgspec.Raw = msgspec.Raw(b"null")
    lease_ms: int = 5_000
    deadline_in_ms: int | None = None
    attempt_timeout_ms: int | None = None
    checkpoint: msgspec.Raw = msgspec.Raw(b"null")
    business_key: str | None = None
    labels: dict[str, str] | None = None
    traceparent: str | None = None


class Assign(msgspec.Struct):
    """`assign`: tasks that this worker has room for."""

    tasks: list[AssignedTask] = []


class ResumedItem(msgspec.Struct):
    """What became of an attempt while the connection was away."""

    attempt_id: str
    verdict: str
    lease_ms: int = 0
    cancel: str | bool | None = None


class RefusedHandler(msgspec.Struct):
    """A handler that the server does not take, and why."""

    type: str = ""
    versions: list[int] = []
    code: str = ""
    message: str = ""


class Welcome(msgspec.Struct):
    """`welcome`: this session's numbers. All are durations, counted by the worker's own clock."""

    session_id: str = ""
    node: str = ""
    lease_ms: int = 30_000
    renew_every_ms: int = 10_000
    heartbeat_ms: int = 10_000
    max_frame_bytes: int = 1 << 20
    max_output_bytes: int = 65_536
    refused_handlers: list[RefusedHandler] = []
    resumed: list[ResumedItem] = []


class StartedItem(msgspec.Struct):
    """The answer to one start."""

    message_id: str
    granted: bool = False
    code: str = ""
    retry_after_ms: int = 0
    lease_ms: int = 0


class Started(msgspec.Struct):
    """`started`: answers to starts."""

    items: list[StartedItem] = []


class RenewedItem(msgspec.Struct):
    """The answer to one renewal: a new lease, or the code of its refusal."""

    attempt_id: str
    lease_ms: int = 0
    code: str = ""
    cancel: str | bool | None = None


class Renewed(msgspec.Struct):
    """`renewed`: answers to renewals."""

    items: list[RenewedItem] = []


class RecordedItem(msgspec.Struct):
    """The receipt of one result. UNAVAILABLE is none: the result is to be sent again."""

    message_id: str
    receipt: str = ""
    code: str = ""
    task_state: str = ""
    retry_after_ms: int = 0


class Recorded(msgspec.Struct):
    """`recorded`: receipts of results."""

    items: list[RecordedItem] = []


class CancelItem(msgspec.Struct):
    """An attempt that should stop."""

    attempt_id: str
    reason: str = ""


class Cancel(msgspec.Struct):
    """`cancel`: attempts that should stop."""

    items: list[CancelItem] = []


class Drain(msgspec.Struct):
    """`drain` from the server: connect again within this time, the node goes away."""

    spread_ms: int = 1_000


class ErrorMessage(msgspec.Struct):
    """`error`: something that this worker sent was not understood."""

    code: str = ""
    message: str = ""
    message_id: str | None = None


class ResumeItem(msgspec.Struct):
    """An attempt that this worker still has: LEASED (not granted), RUNNING, or FINISHED (result not recorded)."""

    attempt_id: str
    token: str
    phase: str


class StartItem(msgspec.Struct):
    """One start asked for."""

    message_id: str
    attempt_id: str
    token: str


class LeaseItem(msgspec.Struct):
    """One attempt named with its credential: renewals and releases."""

    attempt_id: str
    token: str


class ResultItem(msgspec.Struct):
    """One result, kept and sent again until it is recorded."""

    message_id: str
    attempt_id: str
    token: str
    outcome: str
    output: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: WireError | msgspec.UnsetType = msgspec.UNSET
    ran: bool | msgspec.UnsetType = msgspec.UNSET
    retry_after_ms: int | msgspec.UnsetType = msgspec.UNSET
    output_ref: OutputReference | msgspec.UnsetType = msgspec.UNSET


_encoder = msgspec.json.Encoder()
encode = _encoder.encode
head_decoder = msgspec.json.Decoder(Head)


def new_message_id() -> str:
    """Mint a message id: 32 hex digits. It must be unique, not secret: it only counts together with a token."""
    return f"{random.getrandbits(128):032x}"


def item_frames(kind: str, items: Sequence[object], bytes_max: int) -> Iterator[bytes]:
    """Write items as messages of at most `bytes_max` bytes, as many a message as fit.

    A single item over the limit still gets its message: the server is to say what is wrong with it.
    """
    opening = b'{"type":"' + kind.encode("ascii") + b'","items":['
    room = bytes_max - len(opening) - 2
    texts: list[bytes] = []
    size = 0
    for item in items:
        text = encode(item)
        if texts and size + len(text) + 1 > room:
            yield opening + b",".join(texts) + b"]}"
            texts, size = [], 0
        texts.append(text)
        size += len(text) + 1
    if texts:
        yield opening + b",".join(texts) + b"]}"
