"""The Falcon application: routes made from the operations, and the middleware around every request.

A request gets its id first, so that every answer carries one. Authentication runs once a route is found that asks for
it. Nothing here knows a resource; `api/server.py` says which operations there are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import falcon

from api.authentication import Authenticator
from api.calls import Operation, call_read
from api.envelope import JSON_TYPE, error_of, refusal
from orbit.ids import new_id
from orbit.logs import get_logger

_log = get_logger(__name__)

Observe = Callable[[str, str, int, float], None]  # method, route, status, seconds


class Endpoint:
    """All operations of one path, as Falcon wants them: one responder for each method."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.operations = {operation.method: operation for operation in operations}
        for method, operation in self.operations.items():
            setattr(self, f"on_{method.lower()}", partial(_respond, operation))


def _respond(operation: Operation, req: falcon.Request, resp: falcon.Response, **path: str) -> None:
    reply = operation.handle(call_read(req, operation, path))
    resp.status = reply.status
    resp.data = reply.body
    resp.content_type = reply.content_type
    for name, value in reply.headers.items():
        resp.set_header(name, value)


class RequestFrame:
    """Gives a request its id, authenticates it, and logs and counts how it ended. No body or header is ever logged."""

    def __init__(self, authenticator: Authenticator, observe: Observe) -> None:
        self._authenticator = authenticator
        self._observe = observe

    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        """Mint the request's id."""
        req.context.request_id = new_id()
        req.context.began = time.perf_counter()

    def process_resource(
        self, req: falcon.Request, _resp: falcon.Response, resource: Any, _params: dict[str, str]
    ) -> None:
        """Authenticate the caller, unless the operation is open to all; an unknown method asks for a caller too."""
        if not isinstance(resource, Endpoint):
            return
        operation = resource.operations.get(req.method)
        if operation is None or operation.scope is not None:
            req.context.credential = self._authenticator.authenticate(req.get_header("Authorization"))

    def process_response(
        self,
        req: falcon.Request,
        resp: falcon.Response,
        _resource: object,
        _succeeded: bool,  # noqa: FBT001
    ) -> None:
        """Log and count the answer."""
        seconds = time.perf_counter() - req.context.began
        status = resp.status_code
        self._observe(req.method, req.uri_template or "", status, seconds)
        level = logging.DEBUG if status < HTTPStatus.BAD_REQUEST else logging.INFO
        if not _log.isEnabledFor(level):
            return
        extra = {
            "request_id": req.context.request_id,
            "method": req.method,
            "path": req.path,
            "status": status,
            "ms": round(seconds * 1000, 1),
        }
        _log.log(level, "request.answered", extra=extra)


def app_make(operations: Iterable[Operation], authenticator: Authenticator, observe: Observe) -> falcon.App[Any, Any]:
    """Build the application that serves these operations."""
    app = falcon.App(middleware=[RequestFrame(authenticator, observe)])
    app.resp_options.default_media_type = JSON_TYPE
    app.req_options.strip_url_path_trailing_slash = False
    app.add_error_handler(Exception, _on_error)
    app.add_error_handler(falcon.HTTPError, _on_error)
    by_path: dict[str, list[Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, []).append(operation)
    for path, group in by_path.items():
        # A caller's own key may hold any character, slashes too: it goes to the end of the path.
        app.add_route(path.replace("{key}", "{key:path}"), Endpoint(group))
    return app


def _on_error(req: falcon.Request, resp: falcon.Response, raised: Exception, _params: dict[str, str]) -> None:
    request_id = cast("bytes", req.context.request_id)
    answer = refusal(request_id, error_of(raised, request_id))
    resp.status = answer.status
    resp.data = answer.body
    resp.content_type = JSON_TYPE
    for name, value in answer.headers.items():
        resp.set_header(name, value)
    if isinstance(raised, falcon.HTTPMethodNotAllowed):
        resp.set_header("Allow", (raised.headers or {}).get("Allow", ""))  # type: ignore[union-attr]
