"""What a new version means for running instances: each verdict, and that none promises too much."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from definitions.commands import diff as diff_command
from definitions.compiler import compile_definition
from definitions.diff import Verdict, diff_graphs
from definitions.graph import Edge, Graph, NodeKind, WaitSpec
from tests.support.random_workflows import workflows

OLD = """\
orbit: weave/1
workflow: sample
version: 1
timeout: 9d
input:
  type: object
  required: [n, k]
  additionalProperties: false
  properties: {n: {type: integer}, k: {}}
defaults: {queue: q}
steps:
  - {id: first, task: a.a@1}
  - id: both
    parallel:
      branches:
        left: [{id: one, task: a.b@1, input: {n: "${ input.n }"}}]
        right: [{id: two, wait: {for: 1m}}]
  - id: choose
    branch:
      - when: input.n > 5
        steps: [{id: large, set: {x: 1}}]
      - else: []
  - {id: ask, poll: {task: a.c@1, done_when: output.ok, every: 10s, max_rounds: 3, timeout: 1h}}
output: {n: "${ input.n }"}
"""


def graph_of(text: str) -> Graph:
    compiled = compile_definition(text)
    assert compiled.graph is not None, compiled.render()
    return compiled.graph


def verdict(*changes: tuple[str, str]) -> tuple[str, tuple[str, ...]]:
    text = OLD
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    found = diff_graphs(graph_of(OLD), graph_of(text))
    assert bool(found.reasons) == (found.verdict is not Verdict.SAME)
    return found.verdict.value, found.at


@pytest.mark.parametrize(
    ("old", "new", "expected", "at"),
    [
        ("version: 1", "version: 2\ntitle: Other words", "same", ()),
        ("- {id: first,", "# a comment\n\n  - {id: first, title: Begin,", "same", ()),
        ("timeout: 9d", "timeout: 8d", "safe", ()),
        ("timeout: 9d", "timeout: 9d\non_failure: fail", "safe", ()),
        ("output: {n: ", "output: {m: ", "safe", ()),
        ("required: [n, k]", "required: [n]", "safe", ()),
        ("properties: {n: ", "properties: {m: {}, n: ", "safe", ()),
        ("output: {n", "  - {id: more, wait: {for: 1s}}\noutput: {n", "safe", ()),
        ("max_rounds: 3", "max_rounds: 4", "safe-at", ("ask",)),
        ("task: a.c@1", "task: a.c@2", "safe-at", ("ask",)),
        ("input.n > 5", "input.n > 6", "safe-at", ("choose",)),
        ("set: {x: 1}", "set: {x: 1.0}", "safe-at", ("large",)),
        ("for: 1m}}]", "for: 1m}}, {id: new, wait: {for: 1s}}]", "safe-at", ("both.end",)),
        ("  - id: choose", "  - {id: new, wait: {for: 1s}}\n  - id: choose", "safe-at", ("choose",)),
        ("        steps: [{id: large, set: {x: 1}}]", "        steps: []", "safe-at", ("large",)),
        ("- else: []", "- else: [{id: small, set: {x: 2}}]", "safe-at", ("choose.end",)),
        ("id: large", "id: huge", "needs-mapping", ("large",)),
        ("id: first", "id: start", "needs-mapping", ("first",)),
        ("workflow: sample", "workflow: other", "incompatible", ()),
        ("task: a.a@1", "task: a.a@2", "incompatible", ("first",)),
        (
            "steps:\n  - {id: first",
            "steps:\n  - {id: new, wait: {for: 1s}}\n  - {id: first",
            "incompatible",
            ("first",),
        ),
        ("type: integer", "type: number", "incompatible", ()),
        ("properties: {n: ", "properties: {m: {default: 1}, n: ", "incompatible", ()),
    ],
)
def test_each_change_has_its_verdict(old: str, new: str, expected: str, at: tuple[str, ...]) -> None:
    assert verdict((old, new)) == (expected, at)


def test_changes_of_two_branches_are_both_told() -> None:
    assert verdict(("a.b@1", "a.b@2"), ("for: 1m", "for: 2m")) == ("safe-at", ("one", "two"))
    assert verdict(("a.b@1", "a.b@2"), ("a.c@1", "a.c@2")) == ("safe-at", ("one",))  # `ask` comes after `one`


def test_a_schema_that_may_refuse_what_was_taken_is_incompatible() -> None:
    assert verdict(("required: [n, k]", "required: [n, k, m]"), ("{n: {type", "{m: {}, n: {type"))[0] == "incompatible"
    open_one = OLD.replace("  additionalProperties: false\n", "")
    further = open_one.replace("properties: {n: ", "properties: {m: {type: string}, n: ")
    assert diff_graphs(graph_of(open_one), graph_of(further)).verdict is Verdict.INCOMPATIBLE


def test_reasons_say_what_differs() -> None:
    text = OLD.replace("max_rounds: 3", "max_rounds: 4").replace("id: large", "id: huge")
    found = diff_graphs(graph_of(OLD), graph_of(text))
    assert [str(reason) for reason in found.reasons] == [
        "step large: is gone",
        "step choose.end: comes after: choose (else), large → choose (else), huge",
        "step ask: rounds_max: 3 → 4",
        "step huge: is new",
    ]
    assert found.mapping == {"large": "huge"}


@given(workflows())
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_a_graph_is_the_same_as_itself_whatever_its_titles(graph: Graph) -> None:
    moved = replace(graph, title="x", nodes=tuple(replace(node, title="y", line=9, column=9) for node in graph.nodes))
    assert diff_graphs(graph, moved).verdict is Verdict.SAME


@given(workflows(), workflows(), st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_what_an_instance_has_begun_before_the_named_steps_is_unchanged(
    old: Graph, other: Graph, data: st.DataObject
) -> None:
    """Over unrelated graphs and over one with a changed step: nothing outside of what lies behind `at` differs."""
    index = data.draw(st.integers(0, len(old.nodes) - 1))
    node = replace(old.nodes[index], kind=NodeKind.WAIT, spec=WaitSpec(12345.0))
    changed = replace(old, nodes=(*old.nodes[:index], node, *old.nodes[index + 1 :]))
    for new in (changed, other):
        found = diff_graphs(old, new)
        behind = descendants(old, set(found.at))
        for step in (each.id for each in old.nodes if each.id not in behind):
            assert meaning(old, step) == meaning(new, step)
    assert old.nodes[index].id in diff_graphs(old, changed).at


def descendants(graph: Graph, steps: set[str]) -> set[str]:
    found = set(steps)
    sources: dict[int, set[int]] = {}
    for edge in graph.edges:
        sources.setdefault(edge.target, set()).add(edge.source)
    for place, node in enumerate(graph.nodes):  # in topological order; the steps of items come after their foreach
        before = {graph.nodes[source].id for source in sources.get(place, set())} | {node.within}
        if before & found:
            found.add(node.id)
    return found


def meaning(graph: Graph, step: str) -> object:
    places = [place for place, node in enumerate(graph.nodes) if node.id == step]
    assert len(places) == 1, f"{step} is not in the graph"
    node = graph.nodes[places[0]]
    ways: set[tuple[str, str | None]] = {way(graph, edge) for edge in graph.edges if edge.target == places[0]}
    return (node.kind, repr(node.spec), repr(node.when), ways)


def way(graph: Graph, edge: Edge) -> tuple[str, str | None]:
    return graph.nodes[edge.source].id, edge.case


def test_the_command_tells_verdict_and_reasons(tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(OLD)
    new.write_text(OLD.replace("id: large", "id: huge"))
    shown = CliRunner().invoke(diff_command, [str(old), str(new)])
    assert shown.exit_code == 1
    assert shown.output.startswith("needs-mapping large\n  large seems to be huge now\n  step large: is gone\n")
    report = json.loads(CliRunner().invoke(diff_command, [str(old), str(new), "--json"]).output)
    assert (report["verdict"], report["at"], report["mapping"]) == ("needs-mapping", ["large"], {"large": "huge"})
    assert report["reasons"][0] == {"step": "large", "what": "is gone", "old": None, "new": None}
    assert CliRunner().invoke(diff_command, [str(old), str(old)]).output == "same\n"
    new.write_text(OLD.replace("1m", "1"))
    refused = CliRunner().invoke(diff_command, [str(old), str(new)])
    assert (refused.exit_code, "BAD_DURATION" in refused.output) == (1, True)
