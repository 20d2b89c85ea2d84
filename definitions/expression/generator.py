"""Syntax tree to nested Python closures: what runs when an expression is evaluated.

Values are plain JSON (None, bool, int, float, str, list, dict). Types are told apart exactly, because to Python True
equals 1 and here nothing but a bool is a bool. A closure raises Fault with the offset to blame; a path of names is one
closure, since most of what runs is paths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from definitions.expression.errors import Fault, FaultCode
from definitions.expression.functions import FUNCTIONS, Function, Refused, type_name
from definitions.expression.operations import OPERATIONS, ORDERS, int64
from definitions.expression.syntax import (
    Binary,
    Call,
    Conditional,
    Index,
    ListLiteral,
    Literal,
    Logic,
    MapLiteral,
    Name,
    Node,
    Select,
    Unary,
)

Closure = Callable[[Mapping[str, Any]], Any]

_ABSENT = frozenset({FaultCode.NO_SUCH_FIELD, FaultCode.INDEX_OUT_OF_RANGE})


def generate(node: Node) -> Closure:
    """Return the closure of a checked tree."""
    match node:
        case Literal(value=value):
            return lambda _scope: value
        case Name() | Select() | Index():
            return _path(node)
        case Call():
            return _call(node)
        case Unary():
            return _unary(node)
        case Binary():
            return _binary(node)
        case Logic():
            return _logic(node)
        case Conditional():
            return _conditional(node)
        case ListLiteral(items=items):
            makers = tuple(generate(item) for item in items)
            return lambda scope: [make(scope) for make in makers]
        case MapLiteral():
            return _map(node)


def _names(node: Node) -> list[tuple[str, int]] | None:
    """Return names and offsets of a pure path, or None where an index is computed or the root is no name."""
    found: list[tuple[str, int]] = []
    while True:
        match node:
            case Name(name=name, offset=offset):
                found.append((name, offset))
                return found[::-1]
            case Select(operand=operand, field=field, offset=offset):
                found.append((field, offset))
                node = operand
            case _:
                return None


def _path(node: Name | Select | Index) -> Closure:
    steps = _names(node)
    if steps is not None:
        return _name_path(steps)
    if isinstance(node, Index):
        return _index(generate(node.operand), generate(node.index), node.offset)
    assert isinstance(node, Select)
    operand, field, offset = generate(node.operand), node.field, node.offset

    def select(scope: Mapping[str, Any]) -> Any:
        return _field(operand(scope), field, offset)

    return select


def _name_path(steps: list[tuple[str, int]]) -> Closure:
    names = tuple(name for name, _ in steps)
    root, *rest = names

    def explain(scope: Mapping[str, Any]) -> Fault:
        """Walk again, slowly, to find the name that failed."""
        value: Any = scope
        for place, (name, offset) in enumerate(steps):
            if place == 0:
                if name not in scope:
                    return Fault(FaultCode.NO_SUCH_FIELD, f"`{name}` has no value here", offset)
                value = scope[name]
                continue
            try:
                value = _field(value, name, offset)
            except Fault as fault:
                if names[0] == "steps" and place <= 2:  # noqa: PLR2004  (steps.<id>.output)
                    message = f"step `{names[1]}` has no output: it was skipped, has not ended or has none"
                    return Fault(FaultCode.NO_SUCH_FIELD, message, offset)
                return fault
        raise AssertionError("the path failed once and can't succeed now: values do not change")

    missing = (KeyError, TypeError, IndexError)
    match rest:
        case []:

            def one(scope: Mapping[str, Any]) -> Any:
                try:
                    return scope[root]
                except missing:
                    raise explain(scope) from None

            return one
        case [second]:

            def two(scope: Mapping[str, Any]) -> Any:
                try:
                    return scope[root][second]
                except missing:
                    raise explain(scope) from None

            return two
        case [second, third, fourth]:

            def four(scope: Mapping[str, Any]) -> Any:
                try:
                    return scope[root][second][third][fourth]
                except missing:
                    raise explain(scope) from None

            return four
        case _:

            def many(scope: Mapping[str, Any]) -> Any:
                try:
                    value = scope[root]
                    for name in rest:
                        value = value[name]
                except missing:
                    raise explain(scope) from None
                return value

            return many


def _field(value: Any, name: str, offset: int) -> Any:
    if type(value) is not dict:
        message = f"{type_name(value)} has no field `{name}`"
        raise Fault(FaultCode.NO_SUCH_OVERLOAD, message, offset)
    try:
        return value[name]
    except KeyError:
        raise Fault(FaultCode.NO_SUCH_FIELD, f"there is no field `{name}`", offset) from None


def _index(operand: Closure, index: Closure, offset: int) -> Closure:
    def run(scope: Mapping[str, Any]) -> Any:
        value, key = operand(scope), index(scope)
        # Here the name, or the place, is a value: like every other it is not told.
        if type(value) is dict and type(key) is str:
            if key in value:
                return value[key]
            raise Fault(FaultCode.NO_SUCH_FIELD, "there is no field of that name", offset)
        if type(value) is list and type(key) is int:
            if 0 <= key < len(value):
                return value[key]
            message = f"the list has {len(value)} items, and the index is none of them"
            raise Fault(FaultCode.INDEX_OUT_OF_RANGE, message, offset)
        message = f"{type_name(value)} can't be indexed by {type_name(key)}"
        raise Fault(FaultCode.NO_SUCH_OVERLOAD, message, offset)

    return run


def _call(node: Call) -> Closure:
    if node.target is None and node.function == "has":
        return _has(generate(node.arguments[0]))
    if node.target is None and node.function == "default":
        return _default(generate(node.arguments[0]), generate(node.arguments[1]))
    function: Function = FUNCTIONS[node.function]
    makers = tuple(generate(part) for part in ((node.target,) if node.target else ()) + node.arguments)
    body, offset = function.body, node.offset

    def run(scope: Mapping[str, Any]) -> Any:
        values = [make(scope) for make in makers]
        try:
            return body(*values)
        except Refused as refused:
            raise Fault(refused.code, refused.message, offset) from None

    return run


def _has(path: Closure) -> Closure:
    def run(scope: Mapping[str, Any]) -> bool:
        try:
            path(scope)
        except Fault as fault:
            if fault.code in _ABSENT:
                return False
            raise
        return True

    return run


def _default(path: Closure, otherwise: Closure) -> Closure:
    def run(scope: Mapping[str, Any]) -> Any:
        try:
            return path(scope)
        except Fault as fault:
            if fault.code not in _ABSENT:
                raise
        return otherwise(scope)

    return run


def _not_bool(value: Any, operator: str, offset: int) -> Fault:
    return Fault(FaultCode.NO_SUCH_OVERLOAD, f"`{operator}` takes true or false, not {type_name(value)}", offset)


def _unary(node: Unary) -> Closure:
    operand, offset = generate(node.operand), node.offset
    if node.operator == "!":

        def invert(scope: Mapping[str, Any]) -> bool:
            value = operand(scope)
            if value is True:
                return False
            if value is False:
                return True
            raise _not_bool(value, "!", offset)

        return invert

    def negate(scope: Mapping[str, Any]) -> Any:
        value = operand(scope)
        if type(value) is int:
            return int64(-value, offset)
        if type(value) is float:
            return -value
        raise Fault(FaultCode.NO_SUCH_OVERLOAD, f"`-` does not take {type_name(value)}", offset)

    return negate


def _logic(node: Logic) -> Closure:
    parts = tuple((generate(operand), operand.offset) for operand in node.operands)
    operator = node.operator
    # `&&` stops at the first false, `||` at the first true; the operands before it must be bools.
    stop: Any = operator == "||"
    if len(parts) == 2:  # noqa: PLR2004  (the common case without a loop)
        (left, left_offset), (right, right_offset) = parts

        def two(scope: Mapping[str, Any]) -> Any:
            value = left(scope)
            if value is stop:
                return stop
            if type(value) is not bool:
                raise _not_bool(value, operator, left_offset)
            value = right(scope)
            if type(value) is not bool:
                raise _not_bool(value, operator, right_offset)
            return value

        return two

    def run(scope: Mapping[str, Any]) -> Any:
        for operand, offset in parts:
            value = operand(scope)
            if value is stop:
                return stop
            if type(value) is not bool:
                raise _not_bool(value, operator, offset)
        return not stop

    return run


def _conditional(node: Conditional) -> Closure:
    condition, then, otherwise = generate(node.condition), generate(node.then), generate(node.otherwise)
    offset = node.condition.offset

    def run(scope: Mapping[str, Any]) -> Any:
        value = condition(scope)
        if value is True:
            return then(scope)
        if value is False:
            return otherwise(scope)
        raise _not_bool(value, "?", offset)

    return run


def _map(node: MapLiteral) -> Closure:
    entries = tuple((generate(key), generate(value), key.offset) for key, value in node.entries)

    def run(scope: Mapping[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for make_key, make_value, offset in entries:
            key = make_key(scope)
            if type(key) is not str:
                message = f"the key of an object is a string, not {type_name(key)}"
                raise Fault(FaultCode.NO_SUCH_OVERLOAD, message, offset)
            if key in made:
                raise Fault(FaultCode.DUPLICATE_KEY, "a key stands twice in one object", offset)
            made[key] = make_value(scope)
        return made

    return run


def _binary(node: Binary) -> Closure:
    left, offset = generate(node.left), node.offset
    if isinstance(node.right, Literal):
        short = _with_literal(node, left, node.right.value)
        if short is not None:
            return short
    right, operation = generate(node.right), OPERATIONS[node.operator]
    return lambda scope: operation(left(scope), right(scope), offset)


def _with_literal(node: Binary, left: Closure, value: Any) -> Closure | None:
    """Return a shorter closure for `path == 'text'`, `path == null` and `path > 1`, which most conditions are."""
    operator, offset = node.operator, node.offset
    wanted = operator == "=="
    if operator in ("==", "!="):
        if value is None:
            return lambda scope: (left(scope) is None) is wanted
        if isinstance(value, str):
            # Nothing but a string equals a string, to Python too.
            return (lambda scope: left(scope) == value) if wanted else (lambda scope: left(scope) != value)
        return None
    if operator not in ORDERS or type(value) not in (int, float):
        return None
    compare, operation = ORDERS[operator], OPERATIONS[operator]

    def order(scope: Mapping[str, Any]) -> Any:
        found = left(scope)
        kind = type(found)
        # What is no number goes the long way, which knows what to say.
        return compare(found, value) if kind is int or kind is float else operation(found, value, offset)

    return order
