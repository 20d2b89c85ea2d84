"""What every answer looks like: the envelope of a success, a page and a refusal, and the one table of refusals.

Whatever goes wrong becomes an OrbitError here, and that an answer. A bug is answered with INTERNAL and nothing else:
its traceback goes to the log, under the request's id.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import falcon

from orbit.canonical import compact
from orbit.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    OrbitError,
    PayloadTooLarge,
    RequestTimeout,
    UnsupportedMediaType,
)
from orbit.ids import to_hex
from orbit.jsontext import Json
from orbit.logs import get_logger

_log = get_logger(__name__)

JSON_TYPE = "application/json"
INTERNAL_MESSAGE = "something went wrong on the server; its log tells more under this request id"
NO_SUCH_RESOURCE = "no such resource"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as it is answered."""

    status: int
    body: bytes
    headers: dict[str, str]


def success_body(request_id: bytes, data: Json) -> bytes:
    """Write the envelope of a success."""
    return compact({"request_id": to_hex(request_id), "data": data})


def success_body_of(request_id: bytes, written: bytes) -> bytes:
    """Write the envelope around data that is JSON text already."""
    return b'{"request_id":"%b","data":%b}' % (to_hex(request_id).encode(), written)


def page_body(request_id: bytes, items: list[Json], next_cursor: str | None) -> bytes:
    """Write the envelope of one page of a list; `next_cursor` is null on the last page."""
    return compact({"request_id": to_hex(request_id), "data": items, "next_cursor": next_cursor})


def error_json(error: OrbitError) -> dict[str, Any]:
    """Write an error as it stands in an envelope."""
    content: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.details is not None:
        content["details"] = error.details
    return content


def refusal(request_id: bytes, error: OrbitError) -> Refusal:
    """Write an error as an answer, with the headers that go with it."""
    headers = {}
    retry_after = getattr(error, "retry_after_seconds", None)
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    body = compact({"request_id": to_hex(request_id), "error": error_json(error)})
    return Refusal(error.status, body, headers)


def internal_error() -> OrbitError:
    """Make the one answer to a bug."""
    return OrbitError(INTERNAL_MESSAGE)


def framework_error(error: falcon.HTTPError) -> OrbitError:
    """Turn what the framework refuses into one of ours; what it never raises here counts as a bug."""
    message = error.description or error.title or ""
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            return NotFound(NO_SUCH_RESOURCE)
        case HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = dict(error.headers or {}).get("Allow", "")
            return MethodNotAllowed(f"there is no such method or action here, only {allowed}")
        case HTTPStatus.REQUEST_TIMEOUT:
            return RequestTimeout(message)
        case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return PayloadTooLarge(message)
        case HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
            return UnsupportedMediaType(message)
        case HTTPStatus.BAD_REQUEST:
            return InvalidRequest(message)
        case _:
            _log.error("request.failed", extra={"status": error.status, "error": message})
            return internal_error()


def error_of(raised: Exception, request_id: bytes) -> OrbitError:
    """Turn anything that was raised into the error to answer with; what is not ours is logged and hidden."""
    if isinstance(raised, OrbitError):
        return raised
    if isinstance(raised, falcon.HTTPError):
        return framework_error(raised)
    _log.error("request.failed", exc_info=raised, extra={"request_id": request_id})
    return internal_error()
