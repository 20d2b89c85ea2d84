"""Templates: typed holes, text with holes, escapes, and what is refused."""

from typing import Any

import pytest

from definitions import limits
from definitions.codes import Code
from definitions.expression import EvaluationError, ExpressionInvalid
from definitions.template import compile_template
from orbit import jsontext

SCOPE: dict[str, Any] = {
    "input": {"id": 7, "name": "Ann", "rate": 1.5, "whole": 2.0, "ok": True, "note": None, "tags": ["a"]}
}


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("${ input.id }", 7),
        ("${input.tags}", ["a"]),
        ("${ input.note }", None),
        ("order ${ input.id } of ${ input.name }", "order 7 of Ann"),
        ("${ input.rate }/${ input.whole }/${ input.ok }", "1.5/2/true"),
        ("$${ input.id } costs $5", "${ input.id } costs $5"),
        ("$$${ input.id }", "$${ input.id }"),
        ("${ '}' + \"{\" }", "}{"),
        ("${ {'a': {'b': 1}}.a.b }", 1),
        ("", ""),
        ("plain", "plain"),
        (["${ input.id }", {"k": "${ input.name }", "n": 1.0}], [7, {"k": "Ann", "n": 1.0}]),
        (None, None),
    ],
)
def test_renders(template: Any, value: Any) -> None:
    found = compile_template(template).render(SCOPE)
    assert (type(found), found) == (type(value), value)


def test_keys_are_never_templates() -> None:
    assert compile_template({"${ input.id }": "${ input.id }"}).render(SCOPE) == {"${ input.id }": 7}


def test_step_references_of_all_holes() -> None:
    template = compile_template({"a": "${ steps.x.output }", "b": ["y ${ steps.y.output.z }"]})
    assert template.step_references == {"x", "y"}


@pytest.mark.parametrize("name", ["tags", "note"])
def test_only_scalars_stand_inside_a_text(name: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        compile_template(f"a ${{ input.{name} }}").render(SCOPE)
    assert caught.value.code == "NOT_TEXT"


def test_a_hole_that_is_not_closed_is_refused() -> None:
    for text in ("a ${ input.id", "${ '}'", "${"):
        with pytest.raises(ExpressionInvalid) as caught:
            compile_template(text)
        assert caught.value.problems[0].code is Code.TEMPLATE_SYNTAX


def test_a_value_that_repeats_a_large_part_is_stopped_before_it_is_written() -> None:
    template = compile_template(["${ input }"] * 2_000)
    with pytest.raises(EvaluationError) as caught:
        template.render({"input": {"text": "x" * 60_000}})
    assert caught.value.code == "RESULT_TOO_LARGE"
    with pytest.raises(EvaluationError):
        compile_template("${ input.t }" * 100 + "!").render({"input": {"t": "x" * 60_000}})


def test_rendering_leaves_the_scope_alone() -> None:
    scope = {"input": {"list": [1, 2]}}
    compile_template({"a": "${ input.list + [3] }", "b": "${ input.list }"}).render(scope)
    assert scope == {"input": {"list": [1, 2]}}


@pytest.mark.parametrize("kind", [list, dict])
def test_a_value_is_nested_no_deeper_than_json_is_read(kind: type) -> None:
    value: Any = 1
    for _ in range(limits.VALUE_DEPTH_MAX):
        value = [value] if kind is list else {"k": value}
    scope = {"input": {"deep": value}}
    rendered = compile_template("${ input.deep }").render(scope)
    assert jsontext.parse(jsontext.dumps(rendered)) == value
    for template in (["${ input.deep }"], "${ [input.deep] }"):
        with pytest.raises(EvaluationError) as caught:
            compile_template(template).render(scope)
        assert caught.value.code == "RESULT_TOO_LARGE"
    assert limits.VALUE_DEPTH_MAX == jsontext.MAX_DEPTH
