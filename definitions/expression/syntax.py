"""The syntax tree of an expression. Offsets count characters of its text; every node has the one to blame.

`&&` and `||` chains are one node with many operands, so that a long chain is not a deep tree.
Nodes are never changed; they are not frozen because a frozen dataclass takes three times as long to make. A tree has no
cycles, so that the garbage collector need not know of it: it would look through all of a large definition in one go.
"""

from __future__ import annotations

from msgspec import Struct


class Literal(Struct):
    """null, a bool, a number or a text."""

    value: str | int | float | bool | None
    offset: int


class Name(Struct):
    """A root: `input`, `steps`, `output`, ..."""

    name: str
    offset: int


class Select(Struct, gc=False):
    """`operand.field`; `offset` is that of the field's name."""

    operand: Node
    field: str
    offset: int


class Index(Struct, gc=False):
    """`operand[index]`; `offset` is that of the bracket."""

    operand: Node
    index: Node
    offset: int


class Call(Struct, gc=False):
    """A function, or a method when `target` is not None; `offset` is that of its name."""

    function: str
    target: Node | None
    arguments: tuple[Node, ...]
    offset: int


class Unary(Struct, gc=False):
    """`!operand` or `-operand`."""

    operator: str
    operand: Node
    offset: int


class Binary(Struct, gc=False):
    """An arithmetic operator, a comparison or `in`; `offset` is that of the operator."""

    operator: str
    left: Node
    right: Node
    offset: int


class Logic(Struct, gc=False):
    """`a && b && ...` or `a || b || ...`, two operands at least."""

    operator: str
    operands: tuple[Node, ...]
    offset: int


class Conditional(Struct, gc=False):
    """`condition ? then : otherwise`; `offset` is that of the question mark."""

    condition: Node
    then: Node
    otherwise: Node
    offset: int


class ListLiteral(Struct, gc=False):
    """`[a, b]`."""

    items: tuple[Node, ...]
    offset: int


class MapLiteral(Struct, gc=False):
    """`{"a": b}`."""

    entries: tuple[tuple[Node, Node], ...]
    offset: int


Node = Literal | Name | Select | Index | Call | Unary | Binary | Logic | Conditional | ListLiteral | MapLiteral


def children(node: Node) -> tuple[Node, ...]:
    """Return the parts of `node`, from left to right."""
    match node:
        case Select(operand=operand) | Unary(operand=operand):
            return (operand,)
        case Index(operand=operand, index=index):
            return (operand, index)
        case Call(target=target, arguments=arguments):
            return arguments if target is None else (target, *arguments)
        case Binary(left=left, right=right):
            return (left, right)
        case Logic(operands=operands):
            return operands
        case Conditional(condition=condition, then=then, otherwise=otherwise):
            return (condition, then, otherwise)
        case ListLiteral(items=items):
            return items
        case MapLiteral(entries=entries):
            return tuple(part for entry in entries for part in entry)
        case _:
            return ()


def path_of(node: Node) -> tuple[str, ...] | None:
    """Return `("steps", "a", "output")` for `steps.a.output` and for `steps.a["output"]`, None for what is no path."""
    names: list[str] = []
    while True:
        if isinstance(node, Select):  # asked for at every part of every path, and nearly always this
            names.append(node.field)
            node = node.operand
            continue
        match node:
            case Name(name=name):
                names.append(name)
                return tuple(reversed(names))
            case Index(operand=operand, index=Literal(value=str() as key)):
                names.append(key)
                node = operand
            case _:
                return None
