"""The binary operators on JSON values, by CEL's rules: no coercion, 64-bit integers, finite doubles.

An operation takes both values and the offset to blame, and raises Fault. Types are compared exactly: to Python True
equals 1, here nothing but a bool is a bool.
"""

from __future__ import annotations

import math
import operator as operators
from collections.abc import Callable
from typing import Any

from definitions.expression.errors import Fault, FaultCode
from definitions.expression.functions import type_name
from definitions.limits import INT64_MAX, INT64_MIN, RESULT_CHARACTERS_MAX, RESULT_ITEMS_MAX

Operation = Callable[[Any, Any, int], Any]


def equal(left: Any, right: Any) -> bool:
    """Compare two JSON values as CEL does: numbers by value, all else only with its own type."""
    kind, other = type(left), type(right)
    if kind is other:
        if kind is list:
            return len(left) == len(right) and all(map(equal, left, right))
        if kind is dict:
            return left.keys() == right.keys() and all(equal(value, right[key]) for key, value in left.items())
        return bool(left == right)
    if (kind is int and other is float) or (kind is float and other is int):
        return bool(left == right)
    return False


def int64(value: int, offset: int) -> int:
    """Return `value` if it fits 64 bits, else raise Fault."""
    if INT64_MIN <= value <= INT64_MAX:
        return value
    raise Fault(FaultCode.INTEGER_OVERFLOW, "the result does not fit a 64-bit integer", offset)


def _finite(value: float, offset: int) -> float:
    if math.isfinite(value):
        return value
    raise Fault(FaultCode.NOT_FINITE, "the result is too large for a double", offset)


def _mismatch(operator: str, left: Any, right: Any, offset: int) -> Fault:
    message = f"`{operator}` does not take {type_name(left)} and {type_name(right)}"
    return Fault(FaultCode.NO_SUCH_OVERLOAD, message, offset)


def _add(left: Any, right: Any, offset: int) -> Any:
    kind = type(left)
    if kind is not type(right):
        raise _mismatch("+", left, right, offset)
    if kind is int:
        return int64(left + right, offset)
    if kind is float:
        return _finite(left + right, offset)
    if kind is str or kind is list:
        if len(left) + len(right) > (RESULT_CHARACTERS_MAX if kind is str else RESULT_ITEMS_MAX):
            raise Fault(FaultCode.RESULT_TOO_LARGE, f"the {type_name(left)} grows too large", offset)
        return left + right
    raise _mismatch("+", left, right, offset)


def _arithmetic(operator: str, compute: Callable[[Any, Any], Any]) -> Operation:
    def run(left: Any, right: Any, offset: int) -> Any:
        kind = type(left)
        if kind is type(right):
            if kind is int:
                return int64(compute(left, right), offset)
            if kind is float:
                return _finite(compute(left, right), offset)
        raise _mismatch(operator, left, right, offset)

    return run


def _divide(left: Any, right: Any, offset: int) -> Any:
    kind = type(left)
    if kind is not type(right) or kind not in (int, float):
        raise _mismatch("/", left, right, offset)
    if right == 0:
        raise Fault(FaultCode.DIVISION_BY_ZERO, "division by zero", offset)
    if kind is float:
        return _finite(left / right, offset)
    quotient = abs(left) // abs(right)  # CEL rounds towards zero, Python down
    return int64(quotient if (left < 0) == (right < 0) else -quotient, offset)


def _modulo(left: Any, right: Any, offset: int) -> int:
    if type(left) is not int or type(right) is not int:
        raise _mismatch("%", left, right, offset)
    if right == 0:
        raise Fault(FaultCode.DIVISION_BY_ZERO, "division by zero", offset)
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


def _order(operator: str, compare: Callable[[Any, Any], bool]) -> Operation:
    def run(left: Any, right: Any, offset: int) -> bool:
        kind, other = type(left), type(right)
        numbers = (kind is int or kind is float) and (other is int or other is float)
        if numbers or (kind is other and (kind is str or kind is bool)):
            return compare(left, right)
        raise _mismatch(operator, left, right, offset)

    return run


def _in(left: Any, right: Any, offset: int) -> bool:
    if type(right) is list:
        return any(equal(left, item) for item in right)
    if type(right) is dict and type(left) is str:
        return left in right
    raise _mismatch("in", left, right, offset)


ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operators.lt,
    "<=": operators.le,
    ">": operators.gt,
    ">=": operators.ge,
}

OPERATIONS: dict[str, Operation] = {
    "==": lambda left, right, _offset: equal(left, right),
    "!=": lambda left, right, _offset: not equal(left, right),
    **{operator: _order(operator, compare) for operator, compare in ORDERS.items()},
    "+": _add,
    "-": _arithmetic("-", operators.sub),
    "*": _arithmetic("*", operators.mul),
    "/": _divide,
    "%": _modulo,
    "in": _in,
}
