"""Child workflows as a definition sees them: published elsewhere, named in a step, never looked into.

What a child is to its parent is a `Child`: what it takes and leaves, and what it can use at most. The compiler gets all
that it may need beforehand, since it reads no database; what it asked for is in its outcome, so that a caller knows
what to read. A child is a version that was published before its parent and never changes, so no chain of children can
lead back to where it began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from definitions.expression.types import DYN, NUMERIC, Kind, Type
from definitions.graph import ChildSpec
from definitions.masks import masks_of, texts_of
from definitions.schema import type_of_schema
from orbit.jsontext import Json

if TYPE_CHECKING:
    from definitions.bounds import Bounds
    from definitions.graph import Graph


class ChildName(Struct, frozen=True, order=True):
    """How a step names a child: `version` 0 is the workflow's default one."""

    workflow: str
    version: int = 0

    def __str__(self) -> str:
        return f"{self.workflow}@{self.version}" if self.version else self.workflow


class Child(Struct, frozen=True):
    """A workflow version as a child. `output_schema` is None if it never has an output.

    `depth` counts the children below it, itself included; `queues` are those of all of them. `redact` are the paths in
    its input and output that it never shows.
    """

    workflow: str
    version: int
    input_schema: Json
    output_schema: Json | None
    bounds: Bounds
    timeout_seconds: float
    depth: int
    queues: frozenset[str]
    redact: tuple[str, ...] = ()
    is_retired: bool = False
    is_circular: bool = False  # among files only: it leads back to itself


Children = Mapping[ChildName, Child]


def child_of(graph: Graph, *, is_retired: bool = False) -> Child:
    """See a compiled version as a child."""
    depths = [node.spec.depth for node in graph.nodes if isinstance(node.spec, ChildSpec)]
    return Child(
        workflow=graph.workflow,
        version=graph.version,
        input_schema=graph.input_schema,
        output_schema=graph.output_schema,
        bounds=graph.bounds,
        timeout_seconds=graph.timeout_seconds,
        depth=1 + max(depths, default=0),
        queues=graph.queues,
        redact=_redacted(graph),
        is_retired=is_retired,
    )


def _redacted(graph: Graph) -> tuple[str, ...]:
    masks = masks_of(graph)
    return (*texts_of(masks.input, "input"), *texts_of(masks.output, "output"))


def schema_of(kind: Type) -> Json:
    """Write a type as the JSON Schema that promises it; what is not known promises nothing."""
    match kind.kind:
        case Kind.DYN:
            return {}
        case Kind.LIST:
            items = {} if kind.items is None else schema_of(kind.items)
            return {"type": "array", "items": items}
        case Kind.MAP:
            schema: dict[str, Json] = {
                "type": "object",
                "properties": {name: schema_of(inner) for name, inner in kind.fields.items()},
                "required": sorted(kind.required),
            }
            return schema | ({"additionalProperties": False} if kind.closed else {})
        case _:
            return {"type": _WORDS[kind.kind]}


# A double may be written without a fraction, and is then read as an int.
_WORDS = {
    Kind.NULL: "null",
    Kind.BOOL: "boolean",
    Kind.INT: "integer",
    Kind.DOUBLE: "number",
    Kind.NUMBER: "number",
    Kind.STRING: "string",
}


def misfits(given: Type, schema: Json) -> list[str]:
    """Say what certainly does not fit a child's input schema of a value of this type; what is not known may fit."""
    return list(_misfits(given, type_of_schema(schema), schema, "the input"))


def _misfits(given: Type, wanted: Type, schema: Json, what: str) -> Iterator[str]:
    if Kind.DYN in (given.kind, wanted.kind):
        return
    if given.kind is not wanted.kind and not {given.kind, wanted.kind} <= NUMERIC:
        yield f"{what} must be {wanted}, not {given}"
        return
    if given.kind is Kind.LIST:
        items = schema.get("items") if isinstance(schema, dict) else None
        yield from _misfits(given.items or DYN, wanted.items or DYN, items, f"an item of {what}")
    if given.kind is not Kind.MAP:
        return
    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    for name in sorted(wanted.required - given.fields.keys()) if given.closed else ():
        has_default = isinstance(properties.get(name), dict) and "default" in properties[name]
        if not has_default:
            yield f"{what} needs `{name}`"
    for name, inner in given.fields.items():
        if name in wanted.fields:
            yield from _misfits(inner, wanted.fields[name], properties.get(name), f"`{name}` of {what}")
        elif wanted.closed:
            yield f"{what} may not have `{name}`"
