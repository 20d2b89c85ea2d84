"""Where the value of an expression comes from: which parts of what it reads are found again where in the result.

Of a copy (a path, a field of an object that is made here, either side of `? :`) every part is known; what is computed
comes as a whole from all that it looks at. `has()` tells no value. The surprising rule: an index that is computed
stands for every element, so `*` in a source may mean more than is read, never less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from definitions.expression.syntax import (
    Call,
    Conditional,
    Index,
    ListLiteral,
    Literal,
    MapLiteral,
    Name,
    Node,
    Select,
    children,
)

Path = tuple[str, ...]
EACH = "*"


class Origin(NamedTuple):
    """What is at `target` of the result comes from `source`, which begins with a root's name.

    A copy has the same parts inside; what is not one is computed from all that is inside the source.
    """

    target: Path
    source: Path
    is_copy: bool


def origins_of(tree: Node) -> tuple[Origin, ...]:
    """List what a value comes from; nothing for one that is written in the expression itself."""
    return tuple(dict.fromkeys(_origins(tree)))


def _origins(node: Node) -> Iterator[Origin]:
    match node:
        case Literal():
            return
        case Name(name=name):
            yield Origin((), (name,), is_copy=True)
        case Select(operand=operand, field=name):
            yield from _part(_origins(operand), name)
        case Index(operand=operand, index=index):
            yield from _part(_origins(operand), str(index.value) if isinstance(index, Literal) else EACH)
            yield from _computed([index])
        case Call(function="has", target=None):
            return
        case Call(function="default", target=None):
            for argument in node.arguments:
                yield from _origins(argument)
        case Conditional(condition=condition, then=then, otherwise=otherwise):
            yield from _computed([condition])
            yield from _origins(then)
            yield from _origins(otherwise)
        case ListLiteral(items=items):
            for place, item in enumerate(items):
                yield from _within(str(place), _origins(item))
        case MapLiteral(entries=entries):
            for key, value in entries:
                yield from _within(str(key.value) if isinstance(key, Literal) else EACH, _origins(value))
                yield from _computed([key])
        case _:
            yield from _computed(children(node))


def _within(step: str, inner: Iterable[Origin]) -> Iterator[Origin]:
    return (origin._replace(target=(step, *origin.target)) for origin in inner)


def _part(whole: Iterable[Origin], step: str) -> Iterator[Origin]:
    """Say where one part of a value comes from."""
    for origin in whole:
        if not origin.target:
            yield origin._replace(source=(*origin.source, step)) if origin.is_copy else origin
        elif EACH in (step, origin.target[0]) or step == origin.target[0]:
            yield origin._replace(target=origin.target[1:])


def _computed(parts: Iterable[Node]) -> Iterator[Origin]:
    for part in parts:
        for origin in _origins(part):
            yield Origin((), origin.source, is_copy=False)
