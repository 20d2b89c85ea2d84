"""One call of one operation: what is the same for all of them, in one place and one order.

An operation is data: method, path, scope, models. The application's routes and the OpenAPI document are both made from
it, so neither can drift from what is served. The order of checks: who calls, the scope, the query, the body's type and
length, its content, the idempotency key. What a resource adds are queue ranges and everything that needs a database.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import falcon
from msgspec import Raw, Struct

from api.bodies import json_read, meaning_of, model_read
from api.envelope import JSON_TYPE, NO_SUCH_RESOURCE, page_body, success_body, success_body_of
from api.models.fields import KEY_PATTERN, Request
from api.queries import Query
from orbit.access import Credential, Scope
from orbit.canonical import digest
from orbit.errors import InvalidRequest, NotFound, PayloadTooLarge, RequestTimeout, UnsupportedMediaType
from orbit.idempotency import Answer, Command
from orbit.ids import from_hex
from orbit.jsontext import Json
from orbit.store.journal import Actor

ModelT = TypeVar("ModelT", bound=Request)

BODY_BYTES_MAX = 512 * 1024
YAML_TYPE = "application/yaml"
_KEY = re.compile(KEY_PATTERN)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter, for the check and for the document."""

    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """What an operation answers; `headers` beside the content type."""

    body: bytes
    status: int = 200
    content_type: str = JSON_TYPE
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `scope` is None where no credential is asked for; `keyed` asks for an Idempotency-Key.

    `answer` is the model of the data, `is_page` says that the data is a list of it. With `takes_yaml` a body may also
    be a YAML text, which the handler finds in `Call.text`. `creates` says that a first success is 201. `other_types`
    are media types that a success may have instead of the JSON envelope. With any of `or_scopes` a caller is let in
    too: the handler then asks for the one that it needs.
    """

    method: str
    path: str
    summary: str
    handle: Callable[[Call], Reply]
    scope: Scope | None
    answer: type[Struct] | None = None
    request: type[Request] | None = None
    query: tuple[Parameter, ...] = ()
    keyed: bool = False
    creates: bool = False
    is_page: bool = False
    takes_yaml: bool = False
    other_types: tuple[str, ...] = ()
    or_scopes: tuple[Scope, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One request as its operation sees it, checked as far as that goes without a database."""

    request_id: bytes
    credential: Credential | None
    path: dict[str, str]
    query: Query
    body: Request | None
    value: Json
    text: bytes | None
    key: str | None

    @property
    def caller(self) -> Credential:
        """Return the credential of an operation that asks for one."""
        assert self.credential is not None, "the operation has no scope"
        return self.credential

    @property
    def namespace_id(self) -> bytes:
        """Return the caller's namespace, the only one that it can see."""
        return self.caller.namespace_id

    @property
    def actor(self) -> Actor:
        """Name the caller for audit records."""
        return Actor(self.caller.id.hex(), self.request_id)

    def model(self, kind: type[ModelT]) -> ModelT:
        """Return the body, which the operation declared to be of this model."""
        assert isinstance(self.body, kind), "the operation declares another model"
        return self.body

    def meaning(self) -> bytes:
        """Hash what the request means: its body with omitted fields left out."""
        assert self.body is not None, "the operation has no body"
        return digest(meaning_of(self.value, type(self.body)))

    def command(self, operation: str, *, resource: str = "", meaning: bytes | None = None) -> Command:
        """Name this change by namespace, operation, resource and key."""
        assert self.key is not None, "the operation is not keyed"
        said = self.meaning() if meaning is None else meaning
        return Command(self.namespace_id, operation, resource, self.key, said)

    def path_id(self, name: str, *, message: str = NO_SUCH_RESOURCE) -> bytes:
        """Read an id in the path; what is no id is not found, like one that does not exist."""
        try:
            return from_hex(self.path[name])
        except InvalidRequest:
            raise NotFound(message) from None

    def data(self, data: Json, *, status: int = 200) -> Reply:
        """Answer with data."""
        return Reply(success_body(self.request_id, data), status)

    def data_written(self, data: bytes | Raw) -> Reply:
        """Answer with data that is JSON text already, such as a large document as it is stored."""
        return Reply(success_body_of(self.request_id, bytes(data)))

    def page(self, items: Sequence[Json], next_cursor: str | None) -> Reply:
        """Answer with one page of a list."""
        return Reply(page_body(self.request_id, list(items), next_cursor))

    def receipt(self, answer: Answer, *, creates: bool, more: dict[str, Json] | None = None) -> Reply:
        """Answer a change with its receipt: 201 for a first creation, 200 for a change and for every replay."""
        data = {"deduplicated": answer.deduplicated, **answer.data, **(more or {})}
        return self.data(data, status=201 if creates and not answer.deduplicated else 200)


def call_read(req: falcon.Request, operation: Operation, path: dict[str, str]) -> Call:
    """Check a request against its operation and return the call; raises the refusal of the first thing wrong."""
    credential = cast("Credential | None", getattr(req.context, "credential", None))
    if operation.scope is not None:
        assert credential is not None, "the middleware authenticates every operation with a scope"
        credential.require_any((operation.scope, *operation.or_scopes))
    query = Query(req, [parameter.name for parameter in operation.query])
    body: Request | None = None
    value: Json = None
    text: bytes | None = None
    if operation.request is not None:
        data = _body_bytes(req, takes_yaml=operation.takes_yaml)
        if operation.takes_yaml and _media_type(req) != JSON_TYPE:
            text = data
        else:
            value = json_read(data)
            body = model_read(data, operation.request)
    key = _idempotency_key(req) if operation.keyed else None
    return Call(req.context.request_id, credential, path, query, body, value, text, key)


def _media_type(req: falcon.Request) -> str:
    return (req.content_type or "").partition(";")[0].strip().lower()


def _body_bytes(req: falcon.Request, *, takes_yaml: bool) -> bytes:
    allowed = (JSON_TYPE, YAML_TYPE) if takes_yaml else (JSON_TYPE,)
    if _media_type(req) not in allowed:
        raise UnsupportedMediaType(f"send the body as {' or '.join(allowed)}")
    message = f"a body may have {BODY_BYTES_MAX} bytes"
    if (req.content_length or 0) > BODY_BYTES_MAX:
        raise PayloadTooLarge(message)
    try:
        data: bytes = req.bounded_stream.read(BODY_BYTES_MAX + 1)
    except TimeoutError:
        raise RequestTimeout("the body did not arrive in time") from None
    if len(data) > BODY_BYTES_MAX:
        raise PayloadTooLarge(message)
    return data


def _idempotency_key(req: falcon.Request) -> str:
    key = req.get_header("Idempotency-Key")
    if key is None:
        raise InvalidRequest("the header Idempotency-Key is required")
    if not _KEY.match(key):
        raise InvalidRequest("the header Idempotency-Key has 1 to 128 printable ASCII characters")
    return key
