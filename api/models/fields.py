"""The kinds of field that requests share: patterns and bounds, one definition each.

Patterns end in a `Z` escape: `$` would let a trailing newline pass. The OpenAPI document writes `$`, which there
means the same. A Struct tells what a field may be; what needs two fields or a clock is checked where it is used.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from orbit.clock import SECOND
from orbit.errors import InvalidRequest
from pulse import limits

UINT64_MAX = 2**64 - 1
REASON_LENGTH_MAX = 1024
NAME_PATTERN = r"\A[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}\Z"
# A key in a body obeys the same rule as one in the header, where blanks at the ends would be lost.
KEY_PATTERN = r"\A[!-~](?:[ -~]{0,126}[!-~])?\Z"
REVISION_PATTERN = r"\A[1-9][0-9]{0,19}\Z"

Name = Annotated[
    str,
    Meta(
        pattern=NAME_PATTERN,
        description="1 to 128 characters: an ASCII letter or digit, then letters, digits and `_ . : -`",
    ),
]
IdempotencyKey = Annotated[str, Meta(pattern=KEY_PATTERN, description="1 to 128 printable ASCII characters")]
Reason = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=REASON_LENGTH_MAX,
        pattern=r"\S",
        description="Why, in words for the audit; not blank",
    ),
]
Revision = Annotated[str, Meta(pattern=REVISION_PATTERN, description="A non-zero unsigned 64-bit number in decimal")]
HexId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z", description="32 lower-case hexadecimal digits")]
Count = Annotated[str, Meta(pattern=r"\A(?:0|[1-9][0-9]{0,19})\Z", description="An unsigned 64-bit number in decimal")]
# No pattern: the words of the error for a bad instant come from the one reader of instants.
Instant = Annotated[
    str, Meta(max_length=64, description="RFC 3339 with an offset", extra_json_schema={"format": "date-time"})
]
MaxConcurrency = Annotated[
    int,
    Meta(
        ge=1, le=limits.MAX_CONCURRENCY_MAX, description="Most tasks LEASED or RUNNING at once; no promise of capacity"
    ),
]
RatePerSecond = Annotated[
    int,
    Meta(
        ge=1,
        le=limits.RATE_PER_SECOND_MAX,
        description="Most Starts granted in a one-second window of the database's clock. It does not limit what a "
        "handler sends out, and a granted Start proves no outside effect. No promise of capacity",
    ),
]
TaskVersion = Annotated[int, Meta(ge=1, le=2**31 - 1, description="The version of the handler's contract")]
Priority = Annotated[int, Meta(ge=0, le=limits.PRIORITY_MAX, description="9 is the most urgent")]
# A label as it is asked for: name=value.
LABEL_LENGTH_MAX = 400
Labels = Annotated[
    dict[
        Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_./:-]{0,62}\Z")],
        Annotated[str, Meta(max_length=256)],
    ],
    Meta(
        max_length=limits.LABELS_MAX,
        description=f"Up to {limits.LABELS_MAX} names with a value of up to 256 characters each",
    ),
]
BusinessKey = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.BUSINESS_KEY_CHARACTERS_MAX,
        description="The caller's own look-up string; never unique, never a limit",
    ),
]
ConcurrencyKey = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.KEY_CHARACTERS_MAX,
        pattern=r"[^*]\Z",
        description="A key, in its namespace, that few tasks may hold while they are LEASED or RUNNING; it does not "
        "end in `*`, which stands for the begin of keys where limits are set",
    ),
]
FairnessKey = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.KEY_CHARACTERS_MAX,
        description="For whom the task is: those who wait in one lane take turns. It limits nothing",
    ),
]
Traceparent = Annotated[
    str,
    Meta(
        pattern=r"\A[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z",
        description="W3C trace context, kept from submission to worker, events and logs",
    ),
]
DelaySeconds = Annotated[float, Meta(ge=0, le=366 * 86_400, description="From acceptance; up to 366 days")]
AttemptTimeoutSeconds = Annotated[
    float, Meta(ge=0.1, le=limits.ATTEMPT_TIMEOUT_MICROS_MAX // SECOND, description="Of one execution")
]


class Request(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The root of all request bodies: an unknown field is an error, a field that is null counts as left out."""

    @staticmethod
    def zero_means_omitted() -> frozenset[str]:
        """Name the fields in which 0 counts as left out."""
        return frozenset()


def revision_number(text: str, *, pointer: str) -> int:
    """Read a revision that fits its pattern; raise InvalidRequest where it is beyond 64 bits."""
    value = int(text)
    if value > UINT64_MAX:
        message = "a revision is an unsigned 64-bit number"
        raise InvalidRequest(message, pointer=pointer)
    return value


def raw_schema(description: str, schema: dict[str, Any] | None = None) -> Any:
    """Describe a field that is kept as the bytes that were sent."""
    return Meta(description=description, extra_json_schema=schema or {})
