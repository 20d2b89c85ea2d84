"""An HTTP server that answers from a script, or cuts the connection after it has read a request."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CUT = "cut"


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Script:
    """Answers in order: (status, body, headers), or CUT; the last one stands for all that follow."""

    answers: list[Any] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    url: str = ""

    def success(self, data: Any, *, status: int = 200, next_cursor: str | None = None) -> None:
        self.answers.append((status, {"request_id": "r" * 32, "data": data, "next_cursor": next_cursor}, {}))

    def refusal(self, status: int, code: str, headers: dict[str, str] | None = None, **more: Any) -> None:
        error = {"code": code, "message": "no", **more}
        self.answers.append((status, {"request_id": "e" * 32, "error": error}, headers or {}))


@contextmanager
def scripted_server() -> Iterator[Script]:
    """Serve a script on loopback."""
    script = Script()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            script.seen.append(Seen(self.command, self.path, dict(self.headers.items()), body))
            answer = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
            if answer == CUT:
                self.close_connection = True
                return
            status, content, headers = answer
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _answer  # noqa: N815  # the names of the standard library

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
