"""The items of a foreach in a graph: how their steps are named, and the parts of the graph made for one of them.

A step's id is the only one of its name in a definition, so `fetch[3]` names the step `fetch` of the item with index 3,
whatever foreach it stands in. What a graph says of `fetch` is made for `fetch[3]` when somebody asks: nothing is stored
for an item, and a graph with 10 000 items is as small as its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec.structs import replace

from definitions.graph import JoinSpec, Node

_FORM = re.compile(r"([^\[]+)\[(0|[1-9][0-9]{0,4})\]")

PartT = TypeVar("PartT")


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """One item: its foreach and its index in the list, from 0."""

    foreach: str
    index: int


def item_step(step: str, index: int) -> str:
    """Name a step of an item."""
    return f"{step}[{index}]"


def parted(identifier: str) -> tuple[str, int] | None:
    """Part the id of an item's step into the step's own and the index; None for any other id."""
    if identifier[-1:] != "]":
        return None
    found = _FORM.fullmatch(identifier)
    return None if found is None else (found[1], int(found[2]))


def own_name(identifier: str) -> str:
    """Give the name that a step has in the definition."""
    found = parted(identifier)
    return identifier if found is None else found[0]


def items_slot(foreach: str) -> str:
    """Name the value that holds the list of a foreach."""
    return f"@items:{foreach}"


def node_of_item(node: Node, index: int, within: Mapping[str, str] | None = None) -> Node:
    """Make a node for one item of the foreach that it stands within; `within` tells it of other nodes."""
    spec, error_of = node.spec, node.error_of
    if isinstance(spec, JoinSpec):
        spec = replace(spec, opens=item_step(spec.opens, index))
    if error_of is not None and within is not None and within.get(error_of) == node.within:
        error_of = item_step(error_of, index)
    return replace(node, id=item_step(node.id, index), spec=spec, error_of=error_of)


class PerItem(dict[str, PartT]):
    """What a graph says by step id, in its order; for a step of an item it is made when it is asked for."""

    def __init__(
        self, known: Mapping[str, PartT], within: Mapping[str, str], make: Callable[[str, int, PartT], PartT]
    ) -> None:
        super().__init__(known)
        self._within = within
        self._make = make

    def __missing__(self, identifier: str) -> PartT:
        found = parted(identifier)
        if found is None or found[0] not in self._within:
            raise KeyError(identifier)
        step, index = found
        return self._make(step, index, self[step])


class OfItems(PerItem[PartT]):
    """A PerItem of what only some steps have: it tells of a step of an item whether there is such a part."""

    def __contains__(self, identifier: object) -> bool:
        return super().__contains__(own_name(str(identifier)))

    def get(self, identifier: str, default: Any = None) -> Any:
        """Give the part of a step, of an item's too; the default if it has none."""
        try:
            return self[identifier]
        except KeyError:
            return default
