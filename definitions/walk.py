"""What the walk over a definition's blocks carries along and leaves behind; the walk itself is `definitions.weaver`."""

from __future__ import annotations

from msgspec import Struct

from definitions.bounds import Bounds
from definitions.expression import Expression
from definitions.graph import Edge, Node
from definitions.model import StepModel
from definitions.scope import Catalogue, Scope
from definitions.template import Template
from orbit.jsontext import Json

Frontier = list[tuple[int, str | None]]  # sources of the edges into whatever comes next, with their case


class Spot(Struct, frozen=True):
    """One step on the walk: its condition, the edges that lead to it, and what is certain where it runs."""

    step: StepModel
    when: Expression | None
    frontier: Frontier
    scope: Scope


class Walked(Struct, frozen=True):
    """A lane that has been walked: its open ends and bounds, what is certain if it has run, and at its end anyway."""

    ends: Frontier
    bounds: Bounds
    gained: Scope
    left: Scope
    goes_on: bool  # False if it always ends the instance where it runs


class Woven(Struct, frozen=True):
    """The outcome of the walk. `output` is None where the definition has none; `undoing` are the compensations.

    `catalogue` knows all steps and the types of their outputs, `parts` the bounds of each: in a foreach, of one item.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    output: Template | None
    bounds: Bounds
    undoing: Bounds
    catalogue: Catalogue
    parts: dict[str, Bounds]
    output_schema: Json | None = None
