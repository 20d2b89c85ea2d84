"""The messages of `orbit.worker.v1` as the server reads and writes them.

A frame is read in two steps: its head with the items as raw JSON, then each item by itself, so that one bad item is
refused alone. NaN, Infinity and lone surrogates are no JSON, yet common encoders write them: a frame that is wrong only
by them is read leniently and the items that hold one are marked, since closing the socket would lose the other results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from orbit import jsontext
from pulse import limits
from pulse.claim import Assignment
from pulse.lease import Held, Progress
from pulse.report import Outcome, RejectCode, Report, ReportedError
from pulse.sessions import Place
from pulse.states import ErrorClass

PROTOCOL = 1
SUBPROTOCOL = "orbit.worker.v1"
FRAME_BYTES_MAX = 1 << 20
ERROR_MESSAGE_LENGTH_MAX = 1_000
ERROR_DETAILS_BYTES_MAX = 2_048

MessageId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
Token = Annotated[str, Meta(min_length=1, max_length=128)]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
ItemT = TypeVar("ItemT")


class Envelope(Struct):
    """A message's name and its items, not looked into yet."""

    type: str
    items: list[Raw] = []


class HandlerItem(Struct):
    """One declared task type."""

    type: Name
    versions: Annotated[list[Annotated[int, Meta(ge=1, le=999_999_999)]], Meta(min_length=1, max_length=1_000)]
    recovery: Literal["REPLAY_SAFE", "VERIFY", "MANUAL"] = "MANUAL"


class ResumeItem(Struct):
    """One attempt that the worker still has."""

    attempt_id: MessageId
    token: Token
    phase: Literal["LEASED", "RUNNING", "FINISHED"]


class Hello(Struct):
    """The first message of a connection."""

    protocol: int
    worker: Name
    queues: Annotated[list[Name], Meta(min_length=1, max_length=1_000)]
    handlers: Annotated[list[HandlerItem], Meta(min_length=1, max_length=1_000)]
    capacity: Annotated[int, Meta(ge=0, le=100_000)]
    sdk: Annotated[str, Meta(max_length=128)] = ""
    resume: Annotated[list[ResumeItem], Meta(max_length=100_000)] = []


class StartItem(Struct):
    """One start asked for."""

    message_id: MessageId
    attempt_id: MessageId
    token: Token


class ClaimItem(Struct):
    """One renewal or release."""

    attempt_id: MessageId
    token: Token


class ErrorItem(Struct, rename={"failure_class": "class"}):
    """What a handler says of its failure."""

    failure_class: Literal["RETRYABLE", "NON_RETRYABLE", "UNKNOWN_OUTCOME", "NEEDS_HUMAN", "UNCLASSIFIED"] = (
        "UNCLASSIFIED"
    )
    code: Annotated[str, Meta(max_length=128)] = ""
    message: Annotated[str, Meta(max_length=4_096)] = ""
    details: Raw | UnsetType = UNSET


class OutputReference(Struct):
    """An output that lies elsewhere."""

    uri: Annotated[str, Meta(min_length=1, max_length=2_048)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Meta(ge=0)]


class ResultItem(Struct):
    """One result."""

    message_id: MessageId
    attempt_id: MessageId
    token: Token
    outcome: Literal["SUCCEEDED", "FAILED", "CANCELLED", "RETURNED", "DEFERRED"]
    output: Raw | UnsetType = UNSET
    output_ref: OutputReference | None = None
    ran: bool = True
    retry_after_ms: Annotated[int, Meta(ge=0, le=400 * 24 * 3600 * 1000)] = 0
    error: ErrorItem | None = None
    not_json: bool = False


class ProgressItem(Struct):
    """How far one attempt is."""

    attempt_id: MessageId
    token: Token
    percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    note: Annotated[str, Meta(max_length=1_000)] | None = None
    details: Raw | UnsetType = UNSET


class Capacity(Struct):
    """The worker's absolute new room."""

    capacity: Annotated[int, Meta(ge=0, le=100_000)]


class BadFrame(Exception):
    """A frame that is no JSON object with a `type`."""


class BadItem(Struct):
    """An item that is refused before anyone sees it; ids only where they could be read."""

    message_id: str | None
    attempt_id: str | None
    reason: str


_envelope = msgspec.json.Decoder(Envelope)
_fields = msgspec.json.Decoder(dict[str, Raw])
_ID = re.compile(rb'"([0-9a-f]{32})"')
_encoder = msgspec.json.Encoder()


def read_envelope(text: bytes) -> Envelope:
    """Read a frame's head; raise BadFrame for what is no message."""
    try:
        return _envelope.decode(text)
    except msgspec.ValidationError as error:
        raise BadFrame(str(error)) from None
    except msgspec.DecodeError as error:
        return _read_leniently(text, str(error))
    except RecursionError:
        raise BadFrame("nested too deeply") from None


def _read_leniently(text: bytes, reason: str) -> Envelope:
    """Read a frame whose only faults are NaN, Infinity or lone surrogates: the items that hold one are marked."""
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise BadFrame(reason) from None
    if not isinstance(content, dict) or not isinstance(content.get("items"), list):
        raise BadFrame(reason)
    kind = content.get("type")
    if not isinstance(kind, str):
        raise BadFrame(reason)
    return Envelope(kind, [_marked(item) for item in content["items"]])


def _marked(item: Any) -> Raw:
    try:
        text = jsontext.dumps(item)
    except ValueError:
        named = {key: value for key, value in item.items() if isinstance(value, str)} if isinstance(item, dict) else {}
        text = json.dumps(named | {"output": None, "not_json": True}).encode("ascii")
    return Raw(text)


def read_items(raws: Iterable[Raw], decoder: msgspec.json.Decoder[ItemT]) -> tuple[list[ItemT], list[BadItem]]:
    """Read items one by one: the sound ones, and what is wrong with the others."""
    good: list[ItemT] = []
    bad: list[BadItem] = []
    for raw in raws:
        try:
            good.append(decoder.decode(raw))
        except (msgspec.DecodeError, RecursionError) as error:
            bad.append(_bad_item(raw, str(error)))
    return good, bad


def _bad_item(raw: Raw, reason: str) -> BadItem:
    """Find the ids of an item that is wrong elsewhere, so that it can be answered."""
    try:
        fields = _fields.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        fields = {}
    found = {name: _ID.fullmatch(bytes(fields[name])) for name in ("message_id", "attempt_id") if name in fields}
    ids = {name: match[1].decode("ascii") for name, match in found.items() if match is not None}
    return BadItem(ids.get("message_id"), ids.get("attempt_id"), reason)


hello_decoder = msgspec.json.Decoder(Hello)
capacity_decoder = msgspec.json.Decoder(Capacity)
start_decoder = msgspec.json.Decoder(StartItem)
claim_decoder = msgspec.json.Decoder(ClaimItem)
result_decoder = msgspec.json.Decoder(ResultItem)
progress_decoder = msgspec.json.Decoder(ProgressItem)


def report_of(item: ResultItem) -> Report:
    """Turn a result item into what the task layer takes. A payload goes on as the bytes that were sent."""
    output, fault = None, None
    if item.not_json:
        fault = RejectCode.OUTPUT_INVALID
    elif not isinstance(item.output, UnsetType):
        output = bytes(item.output)
        if len(output) > limits.OUTPUT_BYTES_MAX:
            output, fault = None, RejectCode.OUTPUT_TOO_LARGE
        elif not _is_strict(output):
            output, fault = None, RejectCode.OUTPUT_INVALID
    return Report(
        message_id=bytes.fromhex(item.message_id),
        attempt_id=bytes.fromhex(item.attempt_id),
        token=item.token,
        outcome=Outcome(item.outcome),
        output=output,
        output_fault=fault,
        output_ref=None if item.output_ref is None else _encoder.encode(item.output_ref).decode("utf-8"),
        error=None if item.error is None else _error_of(item.error),
        ran=item.ran,
        retry_after_micros=item.retry_after_ms * 1000,
    )


def _error_of(item: ErrorItem) -> ReportedError:
    """Turn a failure into what the task layer takes; details that can't be stored are left out, the failure stays."""
    details: Any = None
    if not isinstance(item.details, UnsetType) and len(bytes(item.details)) <= ERROR_DETAILS_BYTES_MAX:
        try:
            details = jsontext.parse(bytes(item.details))
        except jsontext.JsonError:
            details = None
    return ReportedError(ErrorClass(item.failure_class), item.code, item.message[:ERROR_MESSAGE_LENGTH_MAX], details)


def _is_strict(text: bytes) -> bool:
    if text == b"null":
        return True  # what most handlers return
    try:
        jsontext.parse(text)
    except jsontext.JsonError:
        return False
    return True


def progress_of(item: ProgressItem) -> Progress:
    """Turn a progress item into what the task layer takes; details that can't be kept are left out."""
    content: dict[str, Any] = {}
    if item.percent is not None:
        content["percent"] = item.percent
    if item.note is not None:
        content["note"] = item.note
    if not isinstance(item.details, UnsetType):
        details = bytes(item.details)
        if len(details) <= limits.PROGRESS_BYTES_MAX and _is_strict(details):
            content["details"] = item.details
    text = _encoder.encode(content).decode("utf-8")
    return Progress(Held(bytes.fromhex(item.attempt_id), item.token), text)


class _KeptProgress(Struct):
    details: Raw | UnsetType = UNSET


_kept_progress = msgspec.json.Decoder(_KeptProgress)


class AssignedItem(Struct, omit_defaults=True):
    """One task of an `assign` message."""

    task_id: str
    operation_id: str
    attempt_id: str
    token: str
    attempt: int
    fencing: str
    type: str
    version: int
    params_version: str
    queue: str
    params: Raw
    lease_ms: int
    deadline_in_ms: int
    attempt_timeout_ms: int
    checkpoint: Raw | UnsetType = UNSET
    business_key: str | None = None
    labels: Raw | UnsetType = UNSET
    traceparent: str | None = None


def assigned_item(assignment: Assignment, place: Place) -> AssignedItem:
    """Write an assignment for the wire."""
    task, payload = assignment.task, assignment.payload
    checkpoint: Raw | UnsetType = UNSET
    if assignment.checkpoint is not None:
        checkpoint = _kept_progress.decode(assignment.checkpoint).details
    return AssignedItem(
        task_id=task.id.hex(),
        operation_id=(task.operation_id or task.id).hex(),
        attempt_id=assignment.attempt_id.hex(),
        token=assignment.token,
        attempt=assignment.attempt_number,
        fencing=str(assignment.fencing),
        type=place.type,
        version=place.version,
        params_version=payload.params_version,
        queue=place.queue,
        params=Raw(payload.params),
        lease_ms=limits.ASSIGN_MICROS // 1000,
        deadline_in_ms=assignment.deadline_in_micros // 1000,
        attempt_timeout_ms=task.attempt_timeout_micros // 1000,
        checkpoint=checkpoint,
        business_key=None if payload.business_key is None else payload.business_key.decode("utf-8"),
        labels=UNSET if payload.labels is None else Raw(payload.labels.encode("utf-8")),
        traceparent=payload.traceparent,
    )


def message(kind: str, **content: Any) -> bytes:
    """Write one message; fields that are None are left out."""
    return _encoder.encode({"type": kind} | {name: value for name, value in content.items() if value is not None})


def item_messages(kind: str, items: Sequence[Any], *, field: str = "items") -> Iterator[bytes]:
    """Write items as messages of at most FRAME_BYTES_MAX bytes, as many a message as fit."""
    opening = b'{"type":"' + kind.encode("ascii") + b'","' + field.encode("ascii") + b'":['
    room = FRAME_BYTES_MAX - len(opening) - 2
    texts: list[bytes] = []
    size = 0
    for item in items:
        text = _encoder.encode(item)
        if texts and size + len(text) + 1 > room:
            yield opening + b",".join(texts) + b"]}"
            texts, size = [], 0
        texts.append(text)
        size += len(text) + 1
    if texts:
        yield opening + b",".join(texts) + b"]}"
