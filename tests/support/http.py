"""A caller of the HTTP API inside the test's process: every answer is checked against the OpenAPI document.

So a test that calls an operation also proves that the document tells the truth about it: no answer has a status that is
not listed, and none has a shape that is not described.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import falcon
import falcon.testing
from jsonschema import Draft202012Validator

from api.app import app_make
from api.authentication import Authenticator
from api.calls import Operation
from api.openapi import document_make
from orbit.access import Scope
from orbit.database import Database
from orbit.ids import new_id
from orbit.jsontext import dumps, parse
from orbit.store.tenancy import Namespace, NamespaceName, credential_insert, namespace_ensure

_HEX_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Got:
    """An answer: its status, its headers in lower case, its JSON."""

    status: int
    headers: Mapping[str, str]
    json: Any
    body: bytes

    @property
    def data(self) -> Any:
        """The data of a success."""
        return self.json["data"]

    @property
    def code(self) -> str:
        """The code of a refusal."""
        return str(self.json["error"]["code"])

    @property
    def pointer(self) -> str | None:
        """The pointer of a refusal."""
        pointer: str | None = self.json["error"].get("details", {}).get("pointer")
        return pointer


class Api:
    """The application of some operations over a database; callers are made by `caller`."""

    def __init__(
        self, database: Database, operations: Iterable[Operation], authenticator: Authenticator | None = None
    ) -> None:
        self.database = database
        self.operations = list(operations)
        self.document = document_make(self.operations, version="0.0.0")
        self.authenticator = authenticator or Authenticator(database)
        self.observed: list[tuple[str, str, int]] = []
        app = app_make(
            self.operations,
            self.authenticator,
            lambda method, route, status, _seconds: self.observed.append((method, route, status)),
        )
        self.client = falcon.testing.TestClient(app)
        self._paths = {
            path: re.compile(re.sub(r"\{\w+\}", "[^/]+", path.replace(".", r"\.")) + r"\Z")
            for path in sorted({operation.path for operation in self.operations}, key=lambda path: ":" not in path)
        }

    def namespace(self, name: str = "default", *, application: str = "tests") -> Namespace:
        """Make a namespace, or return the one of this name."""
        return self.database.transaction(lambda tx: namespace_ensure(tx, NamespaceName(application, name, "test")))

    def caller(
        self,
        scopes: Collection[str] = tuple(Scope),
        *,
        queues: Collection[str] | None = None,
        namespace: str = "default",
    ) -> "Caller":
        """Make a credential and a caller that uses it."""
        owner = self.namespace(namespace)
        token = self.database.transaction(
            lambda tx: credential_insert(tx, owner.id, name="test", scopes=scopes, queues=queues)
        )
        return Caller(self, token.text(), token.credential_id)

    def request(self, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str]) -> Got:
        """Send a request and check the answer against the document."""
        result = self.client.simulate_request(method, path=urlsplit(path).path, query_string=urlsplit(path).query,
                                              body=body, headers=dict(headers))  # fmt: skip
        answer_headers = {name.lower(): value for name, value in result.headers.items()}
        is_json = answer_headers.get("content-type", "").startswith("application/json") and bool(result.content)
        got = Got(result.status_code, answer_headers, parse(result.content) if is_json else None, result.content)
        self._check(method, urlsplit(path).path, got)
        return got

    def _check(self, method: str, path: str, got: Got) -> None:
        if got.json is not None and "openapi" not in got.json:
            assert _HEX_ID.fullmatch(got.json["request_id"])
        template = next((template for template, pattern in self._paths.items() if pattern.match(path)), None)
        described = self.document["paths"].get(template, {}).get(method.lower())
        if described is None:
            return
        assert str(got.status) in described["responses"], f"{method} {template} answered {got.status}, undocumented"
        response = described["responses"][str(got.status)]
        if "$ref" in response:
            response = self.document["components"]["responses"]["Refusal"]
        content = response.get("content", {})
        media_type = got.headers.get("content-type", "").partition(";")[0]
        assert not content or media_type in content, f"{method} {template} answered {media_type}, undocumented"
        schema = content.get("application/json", {}).get("schema")
        if schema is not None and media_type == "application/json":
            whole = schema | {"components": self.document["components"]}
            Draft202012Validator(whole).validate(got.json)


class Caller:
    """One credential; sends JSON with a new idempotency key unless told otherwise."""

    def __init__(self, api: Api, token: str, credential_id: bytes) -> None:
        self.api = api
        self.token = token
        self.credential_id = credential_id

    def get(self, path: str) -> Got:
        """Read."""
        return self.api.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})

    def post(
        self,
        path: str,
        body: Any = None,
        *,
        key: str | None = "",
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Got:
        """Send a body (`raw` as it is, else `body` as JSON); an empty `key` is a new one, None sends none."""
        sent = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        if key is not None:
            sent["Idempotency-Key"] = key or new_id().hex()
        content = raw if raw is not None else dumps(body)
        return self.api.request("POST", path, body=content, headers=sent | dict(headers or {}))

    def put(self, path: str, body: Any) -> Got:
        """Send a body as JSON, without an idempotency key."""
        sent = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        return self.api.request("PUT", path, body=dumps(body), headers=sent)
