"""The OpenAPI 3.1 document, made from the operations and models that serve and validate the requests.

There is no second description to keep in step. The one translation: our patterns end in a `Z` escape, for
which the document's dialect of regular expressions writes `$`, without Python's exception for a trailing newline.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from api.calls import YAML_TYPE, Operation
from api.envelope import JSON_TYPE
from api.models.answers import ErrorContent
from api.models.fields import KEY_PATTERN
from api.models.tasks import BatchItem
from orbit.jsontext import Json

_HEX_ID: Json = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_PATH_FIELD = re.compile(r"\{(\w+)\}")
# What any operation may answer beside its own success; the codes are in docs/errors.md.
_REFUSALS = {
    "400": "a field, header or parameter is wrong",
    "401": "no valid credential",
    "403": "the credential lacks the scope",
    "404": "no such resource, or out of range",
    "405": "the resource does not have that method",
    "408": "the request did not arrive in time",
    "409": "another state or revision, or the idempotency key was used for something else",
    "413": "the body or a field is too large",
    "415": "the body's type is not taken here",
    "422": "the workflow definition has findings",
    "429": "a limit is reached: wait for Retry-After, then send the same again",
    "500": "a fault of the server",
    "503": "the database is away or the node is shutting down: wait for Retry-After",
}


def document_make(operations: Iterable[Operation], *, version: str) -> Json:
    """Make the document for these operations."""
    listed = list(operations)
    paths: dict[str, dict[str, Json]] = {}
    for operation in listed:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Orbit",
            "version": version,
            "description": "Durable tasks (Pulse) and workflows (Weave). Clients ignore unknown response fields.",
        },
        "paths": paths,
        "components": {
            "schemas": _components(listed),
            "securitySchemes": {"credential": {"type": "http", "scheme": "bearer"}},
            "responses": {"Refusal": _json_response("A refusal", _error_envelope())},
        },
    }


def _operation(operation: Operation) -> Json:
    content: dict[str, Json] = {
        "operationId": _operation_id(operation),
        "summary": operation.summary,
        "parameters": [*_path_parameters(operation.path), *_query_parameters(operation)],
        "responses": _responses(operation),
        "security": _security(operation),
    }
    if operation.keyed:
        content["parameters"].append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": True,
                "description": "The same key and request again get the same receipt",
                "schema": {"type": "string", "pattern": _ecma(KEY_PATTERN), "minLength": 1, "maxLength": 128},
            }
        )
    if operation.request is not None:
        media: dict[str, Json] = {JSON_TYPE: {"schema": _reference(operation.request)}}
        if operation.takes_yaml:
            media[YAML_TYPE] = {"schema": {"type": "string"}}
        content["requestBody"] = {"required": True, "content": media}
    return content


def _security(operation: Operation) -> Json:
    if operation.scope is None:
        return []
    return [{"credential": [str(scope)]} for scope in (operation.scope, *operation.or_scopes)]


def _operation_id(operation: Operation) -> str:
    words = re.sub(r"[^A-Za-z0-9]+", "_", operation.path.removeprefix("/v1")).strip("_")
    return f"{operation.method.lower()}_{words}"


def _responses(operation: Operation) -> Json:
    refusals = {
        status: {"$ref": "#/components/responses/Refusal"} | {"description": words}
        for status, words in _REFUSALS.items()
        if _is_possible(operation, status)
    }
    if operation.answer is None:
        return {"200": {"description": "Success"}, **refusals}
    data = _reference(operation.answer)
    properties: dict[str, Json] = {"request_id": _HEX_ID, "data": data}
    if operation.is_page:
        properties["data"] = {"type": "array", "items": data}
        properties["next_cursor"] = {"type": ["string", "null"]}
    envelope = {"type": "object", "properties": properties, "required": list(properties)}
    success = {"200": _json_response("Success" if not operation.creates else "The receipt of a replay", envelope)}
    for media_type in operation.other_types:
        success["200"]["content"][media_type] = {"schema": {"type": "string"}}
    if operation.creates:
        success["201"] = _json_response("The receipt of a first creation", envelope)
    return {**success, **refusals}


def _is_possible(operation: Operation, status: str) -> bool:
    match status:
        case "401" | "403":
            return operation.scope is not None
        case "404":
            return "{" in operation.path or operation.request is not None
        case "408" | "413" | "415" | "422" | "429" | "409":
            return operation.request is not None
        case _:
            return True


def _path_parameters(path: str) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PATH_FIELD.findall(path)
    ]


def _query_parameters(operation: Operation) -> list[Json]:
    return [
        {
            "name": parameter.name,
            "in": "query",
            "required": False,
            "description": parameter.description,
            "schema": parameter.schema,
        }
        for parameter in operation.query
    ]


def _error_envelope() -> Json:
    properties = {"request_id": _HEX_ID, "error": _reference(ErrorContent)}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _json_response(description: str, schema: Json) -> Json:
    return {"description": description, "content": {JSON_TYPE: {"schema": schema}}}


def _reference(model: type[Struct]) -> Json:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _components(operations: Sequence[Operation]) -> Json:
    models: list[type[Struct]] = [ErrorContent, BatchItem]
    for operation in operations:
        models += [model for model in (operation.request, operation.answer) if model is not None]
    unique = sorted(set(models), key=lambda model: model.__name__)
    _, components = msgspec.json.schema_components(unique, ref_template="#/components/schemas/{name}")
    return _translated(components)


def _translated(value: Json) -> Json:
    """Write every pattern in the document's dialect."""
    if isinstance(value, dict):
        return {
            name: _ecma(content) if name == "pattern" and isinstance(content, str) else _translated(content)
            for name, content in value.items()
        }
    return [_translated(item) for item in value] if isinstance(value, list) else value


def _ecma(pattern: str) -> str:
    return pattern.replace(r"\A", "^").replace(r"\Z", "$")
