"""One exchange of the client with the server: a write with its key, a read, or all pages of a list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from orbit.sdk import models
from orbit.sdk.transport import Answer, Exchange, Transport

ItemT = TypeVar("ItemT")


class Calls:
    """What every group of the client's methods stands on."""

    _transport: Transport

    def _write(self, path: str, operation: str, key: str, body: bytes) -> Any:
        return self._transport.send(Exchange("POST", path, operation, keys=[key], body=body)).data

    def _read(self, path: str, operation: str, **query: str | float | None) -> Answer:
        waits = query.get("wait_seconds")
        wait_seconds = float(waits) if waits else 0.0
        return self._transport.send(Exchange("GET", path, operation, query=query, wait_seconds=wait_seconds))

    def _pages(self, path: str, operation: str, query: Mapping[str, str | int], kind: type[ItemT]) -> Iterator[ItemT]:
        cursor: str | None = None
        while True:
            answer = self._read(path, operation, **query, cursor=cursor)
            for item in answer.data:
                yield models.read(item, kind)
            cursor = answer.next_cursor
            if cursor is None:
                return


def segment(text: str) -> str:
    """Make an id safe to stand in a path."""
    return quote(text, safe="")
