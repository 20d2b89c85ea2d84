"""The one path from a request's bytes to a validated model, and to the digest of what the request means.

Strict parsing first (repeated keys, NaN, surrogates, depth), then types and ranges by the model. The surprising rule:
payload fields are `msgspec.Raw`, the exact bytes that were sent, because a number that is parsed and written again may
read differently.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar, get_args, get_type_hints

import msgspec

from api.models.fields import Request
from orbit.canonical import digest
from orbit.errors import InvalidRequest, UnknownField
from orbit.jsontext import Json, JsonError, parse

ModelT = TypeVar("ModelT", bound=Request)

_AT = r"(?: - at `(?P<path>\$[^`]*|key` in `\$[^`]*)`)?\Z"
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>.*?)`" + _AT, re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>.*?)`" + _AT, re.DOTALL)
_OTHER = re.compile(r"(?P<words>.*?)" + _AT, re.DOTALL)
_FORM = re.compile(r"`str` matching regex '\\\\A(?P<form>.*)\\\\Z'")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")


@dataclass(frozen=True, slots=True)
class Body(Generic[ModelT]):
    """A validated body: the model, and the SHA-256 of what it means."""

    model: ModelT
    meaning: bytes


def body_read(data: bytes, model: type[ModelT]) -> Body[ModelT]:
    """Turn a body into its model; raise InvalidRequest or UnknownField with a pointer to the first bad field."""
    value = json_read(data)
    return Body(model_read(data, model), digest(meaning_of(value, model)))


def json_read(data: bytes) -> Json:
    """Parse a body strictly; raise InvalidRequest for what is not strict JSON."""
    try:
        return parse(data)
    except JsonError as error:
        message = f"the body is not valid JSON: {error.reason}"
        raise InvalidRequest(message, pointer="") from None


def model_read(data: bytes, model: type[ModelT], *, at: str = "") -> ModelT:
    """Check strictly parsed bytes against a model; `at` is the pointer of the value within the whole body."""
    try:
        return msgspec.json.decode(data, type=model)
    except msgspec.DecodeError as error:
        raise _refusal(str(error), at) from None


def meaning_of(value: Json, model: type[Request], *, without: frozenset[str] = frozenset()) -> Json:
    """Return what a valid request says, fields that are left out left out.

    Null counts as left out, so does 0 where the model says so; a payload is what it is, null included. A field added
    to a model later can't change the digest of an old request.
    """
    assert isinstance(value, dict)
    payloads, inner, unset = _special_fields(model)
    said: dict[str, Json] = {}
    for name, content in value.items():
        if name in without or (content is None and name not in payloads) or (name in unset and content == 0):
            continue
        said[name] = meaning_of(content, inner[name]) if name in inner else content
    return said


@cache
def _special_fields(model: type[Request]) -> tuple[frozenset[str], dict[str, type[Request]], frozenset[str]]:
    """Return a model's payload fields, its nested models, and the fields in which 0 counts as left out."""
    payloads = set()
    inner: dict[str, type[Request]] = {}
    for name, kind in get_type_hints(model).items():
        for part in get_args(kind) or (kind,):
            if part is msgspec.Raw:
                payloads.add(name)
            elif isinstance(part, type) and issubclass(part, Request):
                inner[name] = part
    return frozenset(payloads), inner, model.zero_means_omitted()


def pointer_of(path: str | None) -> str:
    """Turn msgspec's path (`$.a[0].b`) into an RFC 6901 pointer (`/a/0/b`); a key or value of a map names the map."""
    steps = []
    for match in _STEP.finditer(path or ""):
        name, index = match.groups()
        if name is None and index is None:
            break
        steps.append(index if name is None else pointer_token(name))
    return "".join(f"/{step}" for step in steps)


def pointer_token(name: str) -> str:
    """Escape one reference token of a pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _refusal(words: str, at: str) -> InvalidRequest:
    found = _UNKNOWN.match(words)
    if found is not None:
        message = f"the field {found['field'][:80]!r} is not known here"
        return UnknownField(message, pointer=f"{at}{pointer_of(found['path'])}/{pointer_token(found['field'])}")
    found = _MISSING.match(words)
    if found is not None:
        message = f"the field {found['field']!r} is required"
        return InvalidRequest(message, pointer=f"{at}{pointer_of(found['path'])}/{found['field']}")
    found = _OTHER.match(words)
    assert found is not None
    pointer = at + pointer_of(found["path"])
    message = _FORM.sub(_form, found["words"]).replace("Expected", "expected").replace("`", "")
    # Who reads only the message, as on a command line, must learn from it which field is meant.
    return InvalidRequest(f"the field {pointer[1:]!r}: {message}" if pointer else message, pointer=pointer)


def _form(found: re.Match[str]) -> str:
    """Say a pattern without its anchors, and with each backslash once: msgspec quotes it as Python would."""
    return "a text of the form " + found["form"].replace("\\\\", "\\")
