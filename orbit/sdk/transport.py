"""One HTTP exchange of the client: the envelope, the errors, and what a broken connection means.

The surprising rule: nothing is ever sent twice here. Whether a command may be sent again, and when, is the caller's to
decide: only the caller knows its deadline. A write that got no answer raises OutcomeUnknown with its key.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httpx

from orbit import jsontext
from orbit.sdk.errors import APIError, ConnectionFailed, OutcomeUnknown, parse_retry_after
from orbit.sdk.settings import Connection

JSON_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request. `keys` are the idempotency keys that stand or fall with it: empty for what changes nothing."""

    method: str
    path: str
    operation: str
    keys: Sequence[str] = ()
    query: Mapping[str, str | int | float | None] | None = None
    body: bytes | None = None
    content_type: str = JSON_TYPE
    key_in_header: bool = True
    wait_seconds: float = 0.0
    is_text: bool = False  # the answer is no JSON, but a text of its own, such as a drawing


@dataclass(frozen=True, slots=True)
class Answer:
    """A success: `data` of the envelope, and where the next page of a list begins."""

    data: Any
    next_cursor: str | None


class Transport:
    """A pool of connections to one server. Thread-safe."""

    def __init__(self, connection: Connection, *, timeout_seconds: float) -> None:
        verify: ssl.SSLContext | bool = True
        if connection.ca_file is not None:
            verify = ssl.create_default_context(cafile=connection.ca_file)
        self._timeout_seconds = timeout_seconds
        self._http = httpx.Client(
            base_url=connection.url,
            headers={"Authorization": f"Bearer {connection.token}", "Accept": JSON_TYPE},
            timeout=timeout_seconds,
            verify=verify,
            transport=None,
            follow_redirects=False,
            trust_env=False,
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def send(self, exchange: Exchange) -> Answer:
        """Send one request once.

        Raises APIError for a refusal, OutcomeUnknown for a write without an answer, ConnectionFailed for a read without
        one and for a write that certainly was not sent.
        """
        headers = {}
        if exchange.body is not None:
            headers["Content-Type"] = exchange.content_type
        if exchange.keys and exchange.key_in_header:
            headers["Idempotency-Key"] = exchange.keys[0]
        try:
            response = self._http.request(
                exchange.method,
                exchange.path,
                params={name: value for name, value in (exchange.query or {}).items() if value is not None},
                content=exchange.body,
                headers=headers,
                timeout=httpx.Timeout(self._timeout_seconds, read=self._timeout_seconds + exchange.wait_seconds),
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise ConnectionFailed(f"{exchange.operation}: {self._http.base_url}: {error}") from None
        except httpx.TransportError as error:
            raise self._no_answer(exchange, str(error) or type(error).__name__) from None
        return self._answer(exchange, response)

    def _no_answer(self, exchange: Exchange, cause: str) -> ConnectionFailed:
        if exchange.keys:
            return OutcomeUnknown(exchange.operation, exchange.keys, cause)
        return ConnectionFailed(f"{exchange.operation}: no answer: {cause}")

    def _answer(self, exchange: Exchange, response: httpx.Response) -> Answer:
        if exchange.is_text and response.is_success:
            return Answer(response.text, None)
        try:
            envelope = jsontext.parse(response.content, max_depth=128)
        except jsontext.JsonError:
            envelope = None
        if isinstance(envelope, dict) and response.is_success and "data" in envelope:
            cursor = envelope.get("next_cursor")
            return Answer(envelope["data"], cursor if isinstance(cursor, str) and cursor else None)
        status = response.status_code
        if isinstance(envelope, dict) and isinstance(envelope.get("error"), dict):
            raise APIError(
                envelope["error"],
                status=status,
                request_id=str(envelope.get("request_id", "")),
                retry_after=parse_retry_after(response.headers.get("Retry-After")),
            )
        # No answer of Orbit's: something in between spoke. What it says of a write proves nothing either way.
        cause = f"{status} {response.reason_phrase} without an answer of the server"
        if exchange.keys and (status >= HTTPStatus.INTERNAL_SERVER_ERROR or response.is_success):
            raise OutcomeUnknown(exchange.operation, exchange.keys, cause)
        raise APIError(
            {"code": "", "message": cause},
            status=status,
            retry_after=parse_retry_after(response.headers.get("Retry-After")),
        )
