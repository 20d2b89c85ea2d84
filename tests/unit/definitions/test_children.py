"""Child workflows at compile time: found or not, typed by what they leave, fed with what fits, bounded with them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from definitions.child_files import compile_file
from definitions.children import Child, ChildName, child_of, misfits, schema_of
from definitions.compiler import Compiled, compile_definition
from definitions.diff import diff_graphs
from definitions.expression.types import DYN, Kind, Type, of_value
from definitions.graph import ChildSpec, Graph
from definitions.graph_json import graph_from_json, graph_to_json
from definitions.schema import type_of_schema
from orbit.jsontext import Json
from orbit.schemas.validation import validator_of

CHILD = """\
orbit: weave/1
workflow: child
version: {version}
input: {{type: object, required: [n], properties: {{n: {{type: integer}}, m: {{type: integer, default: 1}}}}}}
timeout: 3h
defaults: {{queue: deep}}
steps:
  - {{id: a, task: t.a@1}}
  - {{id: p, poll: {{task: t.p@1, done_when: output.ok, every: 1m, max_rounds: 5, timeout: 1h}}}}
output: {{n: "${{ input.n }}", seen: "${{ steps.a.output }}"}}
"""
PARENT = """\
orbit: weave/1
workflow: parent
version: 1
input: {type: object, required: [s], properties: {s: {type: string}}}
defaults: {queue: main}
steps:
  - {id: c, workflow: CHILD}
  - {id: after, set: {n: "${ EXPRESSION }"}}
"""


def child(version: int = 1) -> Child:
    return child_of(graph_of(compile_definition(CHILD.format(version=version))))


def graph_of(compiled: Compiled) -> Graph:
    assert compiled.graph is not None, compiled.render()
    return compiled.graph


CHILDREN = {ChildName("child"): child(2), ChildName("child", 1): child(1), ChildName("child", 2): child(2)}


def parent(step: str = "child, input: {n: 1}", expression: str = "steps.c.output.n + 1") -> Compiled:
    return compile_definition(PARENT.replace("CHILD", step).replace("EXPRESSION", expression), CHILDREN)


def codes(compiled: Compiled) -> list[str]:
    return [finding.code.value for finding in compiled.findings]


def test_a_child_is_pinned_when_its_parent_is_compiled() -> None:
    compiled = parent()
    assert compiled.wanted == {ChildName("child")}
    assert compiled.identity == ("parent", 1)
    spec = graph_of(compiled).nodes[0].spec
    assert isinstance(spec, ChildSpec)
    assert (spec.workflow, spec.version, spec.depth, spec.queues) == ("child", 2, 1, ("deep",))
    assert spec.bound_seconds == 3 * 3600
    assert graph_of(parent("child@1, input: {n: 1}, timeout: 1h")).nodes[0].spec != spec
    assert graph_of(compiled).queues == {"deep"}
    stored = graph_from_json(graph_to_json(graph_of(compiled)))
    assert stored == graph_of(compiled)


@pytest.mark.parametrize(
    ("step", "expression", "code"),
    [
        ("nobody, input: {n: 1}", "1", "CHILD_UNKNOWN"),
        ("child@9, input: {n: 1}", "1", "CHILD_UNKNOWN"),
        ("parent, input: {n: 1}", "1", "CHILD_CYCLE"),
        ("child", "1", "CHILD_INPUT"),
        ("child, input: {n: one}", "1", "CHILD_INPUT"),
        ("child, input: {n: '${ input.s }'}", "1", "CHILD_INPUT"),
        ("child, input: {m: '${ 1 + 1 }'}", "1", "CHILD_INPUT"),
        ("child, input: '${ input.s }'", "1", "CHILD_INPUT"),
        ("child, input: {n: 1}", "steps.c.output.n + 'x'", "TYPE_MISMATCH"),
        ("child, input: {n: 1}", "steps.c.output.nope", "UNKNOWN_FIELD"),
        ("child@, input: {n: 1}", "1", "BAD_NAME"),
        ("child, input: {n: 1}, queue: q", "1", "UNKNOWN_KEY"),
        ("child, input: {n: 1}, timeout: soon", "1", "BAD_DURATION"),
    ],
)
def test_a_mistake_about_a_child_is_found_at_its_place(step: str, expression: str, code: str) -> None:
    compiled = parent(step, expression)
    assert codes(compiled) == [code], compiled.render()
    assert compiled.findings[0].line in {7, 8}


def test_a_wrong_child_makes_no_further_findings() -> None:
    assert codes(parent("nobody", "steps.c.output.whatever.deep")) == ["CHILD_UNKNOWN"]


def test_a_default_of_the_childs_schema_need_not_be_given() -> None:
    assert codes(parent("child, input: {n: '${ size(input.s) }'}")) == []


def test_a_child_that_leaves_no_output_has_none_to_read() -> None:
    silent = CHILD.format(version=1).partition("output:")[0]
    quiet = {ChildName("child"): child_of(graph_of(compile_definition(silent)))}
    text = PARENT.replace("CHILD", "child, input: {n: 1}").replace("EXPRESSION", "steps.c.output")
    assert codes(compile_definition(text, quiet)) == ["STEP_WITHOUT_OUTPUT"]
    ends = silent + "  - {id: early, return: {n: 1}}\n"
    early = {ChildName("child"): child_of(graph_of(compile_definition(ends)))}
    assert codes(compile_definition(text, early)) == [], "what a `return` leaves is not known, and may be read"


def test_a_parents_bounds_hold_its_childs() -> None:
    inner, outer = CHILDREN[ChildName("child")].bounds, graph_of(parent()).bounds
    assert (outer.tasks, outer.attempts, outer.rounds) == (inner.tasks, inner.attempts, inner.rounds)
    assert outer.concurrent_tasks == inner.concurrent_tasks
    assert outer.active_seconds == inner.active_seconds
    assert outer.stored_bytes > inner.stored_bytes
    many = PARENT.replace("CHILD", "child, input: {n: 1}").replace("EXPRESSION", "1") + "".join(
        f"  - {{id: c{n}, workflow: child, input: {{n: 1}}}}\n" for n in range(9)
    )
    assert graph_of(compile_definition(many, CHILDREN)).bounds.tasks == 10 * inner.tasks


def test_another_version_of_a_child_is_another_step_to_a_diff() -> None:
    found = diff_graphs(graph_of(parent("child@1, input: {n: 1}")), graph_of(parent("child@2, input: {n: 1}")))
    assert found.at == ("c",)
    assert ("version", "1", "2") in {(reason.what, reason.old, reason.new) for reason in found.reasons}


def test_children_are_found_in_the_files_beside_a_definition(tmp_path: Path) -> None:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    text = PARENT.replace("CHILD", "middle, input: {s: x}").replace("EXPRESSION", "1")
    top = write("top.yaml", text)
    assert codes(compile_file(top)) == ["CHILD_UNKNOWN"]
    middle = PARENT.replace("CHILD", "child@1, input: {n: 1}").replace("EXPRESSION", "1")
    aside = write("elsewhere/middle.yaml", middle.replace("workflow: parent", "workflow: middle"))
    write("child.yaml", CHILD.format(version=1))
    write("newer.yaml", CHILD.format(version=2))
    write("broken.yaml", "orbit: [")
    spec = graph_of(compile_file(top, [aside])).nodes[0].spec
    assert isinstance(spec, ChildSpec)
    assert (spec.workflow, spec.depth, spec.queues) == ("middle", 2, ("deep",))
    newest = write("newest.yaml", middle.replace("child@1", "child"))
    inner = graph_of(compile_file(newest)).nodes[0].spec
    assert isinstance(inner, ChildSpec)
    assert inner.version == 2, "of several files the highest version is the default one"


def test_files_that_lead_back_are_a_circle(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "c"), ("c", "a")):
        text = (
            PARENT.replace("CHILD", other).replace("EXPRESSION", "1").replace("workflow: parent", f"workflow: {name}")
        )
        (tmp_path / f"{name}.yaml").write_text(
            text.replace("input: {type: object, required: [s], properties: {s: {type: string}}}\n", "")
        )
    for name in "abc":
        assert codes(compile_file(tmp_path / f"{name}.yaml")) == ["CHILD_CYCLE"]


VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(0, 9) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=6,
)


@given(value=VALUES)
def test_what_a_type_promises_its_values_keep(value: Json) -> None:
    schema = schema_of(of_value(value))
    assert list(validator_of(schema).iter_errors(value)) == []
    assert type_of_schema(schema).kind in {of_value(value).kind, Kind.NUMBER}
    assert misfits(of_value(value), schema) == []


@given(value=VALUES, wanted=VALUES)
def test_a_misfit_is_never_said_of_what_fits(value: Json, wanted: Json) -> None:
    schema = schema_of(of_value(wanted))
    if misfits(of_value(value), schema):
        assert list(validator_of(schema).iter_errors(value)) != []


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert misfits(DYN, {"type": "object", "required": ["a"]}) == []
    assert misfits(Type(Kind.MAP), {"type": "object", "required": ["a"]}) == []
