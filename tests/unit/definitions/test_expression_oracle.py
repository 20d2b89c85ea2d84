"""Random expressions agree with CEL's reference implementation, but for the deviations that docs/expressions.md lists.

Both run without static types (the oracle with its check disabled), since types from schemas are ours alone. Compared is
the value with its type, or that there is none; errors have different words.
"""

import os
import random
import re
from typing import Any

import pytest
from cel_expr_python import cel  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from definitions.codes import Code
from definitions.expression import EvaluationError, ExpressionInvalid, compile_expression
from definitions.expression.errors import FaultCode

DATA: dict[str, Any] = {
    "i": 7,
    "big": 9223372036854775807,
    "small": -9223372036854775808,
    "d": 2.5,
    "whole": 3.0,
    "s": "héllo",
    "empty": "",
    "t": True,
    "f": False,
    "n": None,
    "l": [1, 2.0, "a", None, [1], {"k": 1}],
    "m": {"a": 1, "b": {"c": "deep"}, "n": None, "l": [3, 4]},
}
OURS = {"input": DATA}
ERROR = object()
IS_LONG = os.environ.get("ORBIT_SOAK") == "1"
EXAMPLES = 2_000 if IS_LONG else 500  # which hypothesis makes, and shrinks
WRITTEN = 60_000 if IS_LONG else 2_000
SEED = int(os.environ.get("ORBIT_TEST_SEED") or random.randrange(2**32))

ENVIRONMENT = cel.NewEnv(variables={"input": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)})

LITERALS = [
    "0",
    "1",
    "-1",
    "2",
    "10",
    "0.0",
    "1.5",
    "-2.5",
    "1e3",
    "0x1F",
    "true",
    "false",
    "null",
    "''",
    "'a'",
    '"b\\n"',
    "9223372036854775807",
    "-9223372036854775808",
    "[]",
    "{}",
    "r'\\d'",
    "'\\u00e9'",
]
PATHS = [f"input.{name}" for name in DATA] + ["input.m.a", "input.m.b.c", "input.m.l", "input.absent"]
OPERATORS = ["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "in", "&&", "||"]
# What an expression is made of: `_` is another one, `@` an operator, `#` a path.
FORMS = [
    "(_ @ _)",
    "_ @ _",
    "!(_)",
    "-(_)",
    "(_ ? _ : _)",
    "[_, _]",
    "{'x': _, 'y': _}",
    "(_).x",
    "(_)[_]",
    "size(_)",
    "(_).size()",
    "(_).startsWith(_)",
    "(_).endsWith(_)",
    "(_).contains(_)",
    "int(_)",
    "double(_)",
    "has(#.x)",
    "has(#)",
]
paths = st.sampled_from(PATHS)


def _extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        *(st.tuples(*(_hole(part, inner) for part in re.split(r"([_@#])", form))).map("".join) for form in FORMS)
    )


def _hole(part: str, inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return {"_": inner, "@": st.sampled_from(OPERATORS), "#": paths}.get(part, st.just(part))


expressions = st.recursive(st.one_of(st.sampled_from(LITERALS), paths), _extend, max_leaves=8)


def written(chance: random.Random, leaves: int) -> str:
    """Write a random expression of at most so many leaves: the same language, a hundred times as fast."""
    if leaves <= 1 or chance.random() < 0.2:
        return chance.choice(LITERALS if chance.random() < 0.5 else PATHS)
    form = chance.choice(FORMS)
    each = leaves // max(1, form.count("_"))
    parts = []
    for part in re.split(r"([_@#])", form):
        match part:
            case "_":
                parts.append(written(chance, chance.randint(1, max(1, each))))
            case "@":
                parts.append(chance.choice(OPERATORS))
            case "#":
                parts.append(chance.choice(PATHS))
            case _:
                parts.append(part)
    return "".join(parts)


def ours(text: str) -> Any:
    try:
        return compile_expression(text).evaluate(OURS)
    except (EvaluationError, ExpressionInvalid) as error:
        return error


def theirs(text: str) -> Any:
    try:
        value = ENVIRONMENT.compile(text, disable_check=True).eval(data=OURS)
    except Exception:  # noqa: BLE001  (the oracle raises RuntimeError and more)
        return ERROR
    return ERROR if value.type() == cel.Type.ERROR else value.plain_value()


def typed(value: Any) -> Any:
    """Make types part of a value, since to Python 1, 1.0 and True are equal."""
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return type(value).__name__, value


def is_listed(text: str, found: Any) -> bool:
    """Tell whether a difference is one of those that docs/expressions.md lists."""
    if "has(" in text and "absent" in text:
        return True  # has() of a path that ends early
    match found:
        case ExpressionInvalid(problems=problems):
            # Refused at publish what could at best be an error or a constant at run time.
            codes = {problem.code for problem in problems}
            return codes <= {Code.TYPE_MISMATCH, Code.WRONG_ARGUMENTS} | (
                {Code.UNKNOWN_FIELD} if "{" in text else set()
            )
        case EvaluationError(code=FaultCode.NOT_FINITE | FaultCode.DIVISION_BY_ZERO):
            return True  # CEL has infinities and NaN
        case EvaluationError(code=FaultCode.NO_SUCH_OVERLOAD, message=message) if "indexed by double" in message:
            return True
        case EvaluationError(code=FaultCode.NO_SUCH_OVERLOAD, message=message) if "`in` does not take" in message:
            return True
        case EvaluationError(code=FaultCode.NO_SUCH_OVERLOAD, message="int() does not take bool"):
            return True
        case EvaluationError():
            return "&&" in text or "||" in text  # CEL lets the other operand absorb an error
        case _:
            # CEL compares an int with a double as doubles, which rounds beyond 2**53.
            return any(number in text for number in ("922337203685477580", "input.big", "input.small"))


def compare(text: str) -> None:
    found, wanted = ours(text), theirs(text)
    if isinstance(found, Exception):
        assert wanted is ERROR or is_listed(text, found), f"{text}: {found!r}, CEL says {wanted!r}"
    elif wanted is ERROR or typed(found) != typed(wanted):
        assert is_listed(text, found), f"{text}: {found!r}, CEL says {wanted!r}"


@pytest.mark.soak
@pytest.mark.timeout(3600)
@given(expressions)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_agrees_with_the_reference_implementation(text: str) -> None:
    compare(text)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_agrees_on_many_more() -> None:
    chance = random.Random(SEED)
    agreed = values = 0
    for _ in range(WRITTEN):
        text = written(chance, 8)
        compare(text)
        agreed += 1
        values += not isinstance(ours(text), Exception)
    print(f"ORBIT_TEST_SEED={SEED}: {agreed} expressions agree, {values} of them have a value")  # noqa: T201
    assert values > WRITTEN // 10, "expressions that are all errors would show little"


DEVIATIONS = [
    # (expression, ours, CEL's): each is told in docs/expressions.md.
    ("input.absent && false", "NO_SUCH_FIELD", False),
    ("input.absent || true", "NO_SUCH_FIELD", True),
    ("1.0 / 0.0", "DIVISION_BY_ZERO", float("inf")),
    ("1e308 * 10.0", "NOT_FINITE", float("inf")),
    ("input.l[1.0]", "ExpressionInvalid", 2.0),
    ("has(input.absent.x)", False, ERROR),
    ("9223372036854775807 == 9223372036854775807.0", False, True),
    ("int(input.t)", "NO_SUCH_OVERLOAD", 1),
    ("double(' 1')", "CONVERSION_FAILED", 1.0),
    ("1 in {'x': 1}", "ExpressionInvalid", False),
    ("true ? 1 : {'x': 1}.y", "ExpressionInvalid", 1),
    ("input.i in input.m", "NO_SUCH_OVERLOAD", False),
]


@pytest.mark.parametrize(("text", "own", "other"), DEVIATIONS)
def test_listed_deviation_is_real(text: str, own: Any, other: Any) -> None:
    found = ours(text)
    if isinstance(found, EvaluationError):
        found = found.code
    elif isinstance(found, ExpressionInvalid):
        found = "ExpressionInvalid"
    assert found == own
    assert theirs(text) == other
