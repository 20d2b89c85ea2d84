"""One revision of a registered task type, ready for use: safety, policy, schemas compiled once, paths that are masked.

A revision never changes. Its content is stored as the JSON that `content_of` makes; the checks of what a caller sends
are here too, since they are the same rules read the other way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from jsonschema import Draft202012Validator
from msgspec import Struct

from orbit.clock import Micros, seconds
from orbit.errors import InvalidRequest
from orbit.jsontext import Json
from orbit.redaction import Path, below, masked, path_read, path_text, touches
from orbit.schemas.soundness import bad_defaults, endless_reference, foreign_references, violations
from orbit.schemas.validation import validator_of
from pulse.requests import PolicyWish, RetryWish
from pulse.states import RecoverySafety

if TYPE_CHECKING:
    from pulse.store.types import TypeRow

TYPE_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.:-]{0,127})@([1-9][0-9]{0,9})\Z")
ROOTS = ("params", "output", "error", "progress")
_SHOWN_MAX = 5
_WORDS_MAX = 200


class TypeKey(Struct, frozen=True, order=True):
    """A task type and its version."""

    type: str
    version: int

    def text(self) -> str:
        """Write it as type@version."""
        return f"{self.type}@{self.version}"


class Misfit(Struct, frozen=True):
    """Why a value does not fit its schema: where, as a JSON pointer within the value, and in words."""

    pointer: str
    message: str


class TypeRevision:
    """A registered type as a task or a lookup sees it."""

    def __init__(self, row: TypeRow) -> None:
        self.id = row.id
        self.namespace_id = row.namespace_id
        self.key = TypeKey(row.type, row.version)
        self.number = row.revision
        self.content: dict[str, Json] = json.loads(row.content)
        self.recovery = RecoverySafety(self.content["recovery"])
        named = self.content.get("verify_with")
        self.verify_with = None if named is None else type_key(named, pointer="/verify_with")
        self.policy = _policy(self.content.get("defaults") or {})
        self.redact: tuple[Path, ...] = tuple(
            path_read(text, roots=ROOTS, pointer="/redact") for text in self.content.get("redact") or ()
        )

    def params_fault(self, params: bytes, params_version: str) -> InvalidRequest | None:
        """Say why params can't be accepted; the error points into the request. None if they fit."""
        by_version = self._params_validators
        if not by_version:
            return None
        validator = by_version.get(params_version, by_version.get(None))
        if validator is None:
            known = ", ".join(sorted(version for version in by_version if version is not None))
            return InvalidRequest(f"{self.key.text()} knows the params versions {known}", pointer="/params_version")
        misfits = self._misfits(validator, json.loads(params), "params")
        if not misfits:
            return None
        first = misfits[0]
        return InvalidRequest(f"params of {self.key.text()}: {first.message}", pointer=f"/params{first.pointer}")

    def result_faults(self, output: bytes | None) -> list[Misfit]:
        """Say why an output is not the result that the type promises; nothing if it is."""
        if self._result_validator is None:
            return []
        return self._misfits(self._result_validator, None if output is None else json.loads(output), "output")

    def error_shown(self, error: str) -> str:
        """Write the JSON text of an error as it may be shown."""
        return _error_shown(error, below(self.redact, "error"))

    @property
    def error_paths(self) -> tuple[str, ...]:
        """Name the paths of its errors that are masked, as they were written."""
        return tuple(path_text(path) for path in self.redact if path[0] == "error")

    def _misfits(self, validator: Draft202012Validator, value: Json, root: str) -> list[Misfit]:
        found: list[Misfit] = []
        for error in validator.iter_errors(value):
            location = list(error.absolute_path)
            # The library's words quote the value, which must not be shown where it is masked.
            hidden = touches(self.redact, [root, *location])
            words = f"does not fit its schema ({error.validator})" if hidden else error.message[:_WORDS_MAX]
            found.append(Misfit("".join(f"/{_token(step)}" for step in location), words))
            if len(found) == _SHOWN_MAX:
                break
        return found

    @cached_property
    def _params_validators(self) -> dict[str | None, Draft202012Validator]:
        made: dict[str | None, Draft202012Validator] = {}
        if "params_schema" in self.content:
            made[None] = validator_of(self.content["params_schema"])
        for version, schema in (self.content.get("params_schemas") or {}).items():
            made[version] = validator_of(schema)
        return made

    @cached_property
    def _result_validator(self) -> Draft202012Validator | None:
        schema = self.content.get("result_schema")
        return None if schema is None else validator_of(schema)


def error_shown(error: str, redact: str) -> str:
    """Write the JSON text of an error without what a task's own paths, a JSON list, hide."""
    paths = [path_read(path, roots=ROOTS, pointer="") for path in json.loads(redact)]
    return _error_shown(error, below(paths, "error"))


def _error_shown(error: str, paths: Sequence[Path]) -> str:
    return json.dumps(masked(json.loads(error), paths), ensure_ascii=False) if paths else error


def type_key(text: str, *, pointer: str) -> TypeKey:
    """Read type@version; raises InvalidRequest at `pointer`."""
    match = TYPE_NAME.match(text)
    if match is None or int(match[2]) >= 2**31:
        raise InvalidRequest("a task type is written type@version", pointer=pointer)
    return TypeKey(match[1], int(match[2]))


def schemas_check(content: dict[str, Json]) -> None:
    """Raise InvalidRequest, pointing into the schema, for one that is unsound or would not end."""
    for pointer, schema in _schemas(content):
        for location, message in _unsound(schema):
            steps = "".join(f"/{_token(step)}" for step in location)
            raise InvalidRequest(f"not a sound JSON Schema: {message}", pointer=pointer + steps)


def _schemas(content: dict[str, Json]) -> Iterator[tuple[str, Json]]:
    for name in ("params_schema", "result_schema"):
        if name in content:
            yield f"/{name}", content[name]
    for version, schema in (content.get("params_schemas") or {}).items():
        yield f"/params_schemas/{_token(version)}", schema


def _unsound(schema: Json) -> Iterator[tuple[Sequence[str | int], str]]:
    if not isinstance(schema, (dict, bool)):
        yield (), "a schema is an object"
        return
    yield from violations(schema)
    yield from foreign_references(schema)
    endless = endless_reference(schema)
    if endless is not None:
        yield endless, "it applies itself to the same value again, or too many schemas at once"
    yield from bad_defaults(schema)


def _token(step: str | int) -> str:
    return str(step).replace("~", "~0").replace("/", "~1")


def _policy(defaults: dict[str, Json]) -> PolicyWish:
    retry = defaults.get("retry") or {}
    return PolicyWish(
        retry=RetryWish(
            attempts_max=retry.get("max_attempts"),
            backoff_micros=_span(retry.get("backoff_seconds")),
            backoff_micros_max=_span(retry.get("backoff_seconds_max")),
        ),
        attempt_timeout_micros=_span(defaults.get("attempt_timeout_seconds")),
        deadline_micros=_span(defaults.get("deadline_seconds")),
    )


def _span(value: float | None) -> Micros | None:
    return None if value is None else seconds(value)
