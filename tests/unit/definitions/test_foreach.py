"""The language's `foreach`: its form, what its steps may read, its bounds, and what tools make of it."""

import json

import pytest

from definitions.compiler import Compiled, compile_definition
from definitions.diff import Verdict, diff_graphs
from definitions.graph import ForeachSpec, Graph, NodeKind
from definitions.graph_json import graph_from_json, graph_to_json
from definitions.mermaid import graph_to_mermaid
from definitions.structure import Block, structure_of
from definitions.svg import graph_to_svg

HEAD = """\
orbit: weave/1
workflow: conversion
version: 1
input:
  type: object
  required: [docs, one]
  properties:
    docs:
      type: array
      items: {type: object, required: [url], properties: {url: {type: string}, pages: {type: integer}}}
    one: {type: string}
defaults: {queue: q, start_within: 10s, attempt_timeout: 5s, retry: {max_attempts: 1}}
steps:
  - {id: first, task: t.first@1}
  - id: each
    foreach:
      items: ITEMS
      max_items: 20
      concurrency: 4
      steps:
        - id: fetch
          task: t.fetch@1
          input: FETCH
          output: {type: object, required: [n], properties: {n: {type: integer}}}
        - {id: store, task: t.store@1, input: "${ steps.fetch.output.n }", when: WHEN}
      output: OUTPUT
output: WHOLE
"""
GIVEN = {
    "ITEMS": "input.docs",
    "FETCH": "{url: '${ item.url }', index: '${ index }', first: '${ steps.first.output }'}",
    "WHEN": "'index > 2 && steps.fetch.output.n > 0'",
    "OUTPUT": "{n: '${ steps.fetch.output.n }', stored: '${ default(steps.store.output, null) }'}",
    "WHOLE": "{count: '${ size(steps.each.output) }', n: '${ steps.each.output[0].n + 1 }'}",
}


def compiled(**changes: str) -> Compiled:
    text = HEAD
    for name, value in {**GIVEN, **changes}.items():
        text = text.replace(name, value, 1)
    return compile_definition(text)


def graph_of(**changes: str) -> Graph:
    made = compiled(**changes)
    assert made.graph is not None, made.render()
    return made.graph


def test_the_steps_of_items_stand_within_their_foreach() -> None:
    graph = graph_of()
    assert [(node.id, node.kind, node.within) for node in graph.nodes] == [
        ("first", NodeKind.TASK, None),
        ("each", NodeKind.FOREACH, None),
        ("fetch", NodeKind.TASK, "each"),
        ("store", NodeKind.TASK, "each"),
    ]
    assert [(graph.nodes[edge.source].id, graph.nodes[edge.target].id) for edge in graph.edges] == [
        ("first", "each"),
        ("fetch", "store"),
    ]
    spec = graph.nodes[1].spec
    assert isinstance(spec, ForeachSpec)
    assert (spec.items_max, spec.concurrency, spec.last) == (20, 4, None)


def test_bounds_are_those_of_an_item_times_the_items() -> None:
    bounds = graph_of().bounds
    assert (bounds.tasks, bounds.concurrent_tasks) == (1 + 20 * 2, 4)
    # A task: 10 s until it is taken, then its own bound, then an attempt that is under way at its end.
    one = 10 + (10 + 3 * 5 + 2 * 2) + 5
    assert bounds.active_seconds == pytest.approx(one + 5 * 2 * one, rel=0.2)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"ITEMS": "input.one"}, "TYPE_MISMATCH", "goes over a list, this is string"),
        ({"ITEMS": "steps.fetch.output.n"}, "UNCERTAIN_REFERENCE", "it comes later"),
        ({"ITEMS": "item.url"}, "UNKNOWN_NAME", "in the steps and the `output` of a `foreach`"),
        ({"FETCH": "'${ item.url + 1 }'"}, "TYPE_MISMATCH", "string"),
        ({"FETCH": "'${ item.pages }'"}, "OPTIONAL_FIELD", "pages"),
        ({"FETCH": "'${ steps.each.output }'"}, "UNCERTAIN_REFERENCE", "this step is a part of it"),
        ({"FETCH": "'${ steps.store.output }'"}, "UNCERTAIN_REFERENCE", "it comes later"),
        ({"OUTPUT": "'${ steps.store.output }'"}, "UNCERTAIN_REFERENCE", "it has a `when`"),
        ({"WHOLE": "'${ steps.fetch.output }'"}, "UNCERTAIN_REFERENCE", "`steps.each.output`"),
        ({"WHOLE": "'${ default(steps.fetch.output, 1) }'"}, "UNCERTAIN_REFERENCE", "once for each item of `each`"),
        ({"WHOLE": "'${ item.url }'"}, "UNKNOWN_NAME", "in the steps and the `output` of a `foreach`"),
        ({"WHOLE": "'${ steps.each.output[0].m }'"}, "UNKNOWN_FIELD", "m"),
    ],
)
def test_what_an_expression_may_not_read(changes: dict[str, str], code: str, words: str) -> None:
    (finding,) = compiled(**changes).findings
    assert (finding.code, words in finding.message + (finding.hint or "")) == (code, True), finding.message


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("{items: input.docs, steps: [{id: a, task: t.a@1}]}", "MISSING_KEY"),
        ("{max_items: 3, steps: [{id: a, task: t.a@1}]}", "MISSING_KEY"),
        ("{items: input.docs, max_items: 3}", "MISSING_KEY"),
        ("{items: input.docs, max_items: 0, steps: [{id: a, task: t.a@1}]}", "OUT_OF_RANGE"),
        ("{items: input.docs, max_items: 10001, steps: [{id: a, task: t.a@1}]}", "OUT_OF_RANGE"),
        ("{items: input.docs, max_items: 3, concurrency: 101, steps: [{id: a, task: t.a@1}]}", "OUT_OF_RANGE"),
        ("{items: input.docs, max_items: 3, steps: []}", "EMPTY_STEPS"),
        ("{items: [1, 2], max_items: 3, steps: [{id: a, task: t.a@1}]}", "WRONG_TYPE"),
        ("{items: input.docs, max_items: 3, steps: [{id: a, return: {}}]}", "UNREACHABLE_JOIN"),
        ("{items: input.docs, max_items: 3, parallel: 3, steps: [{id: a, task: t.a@1}]}", "UNKNOWN_KEY"),
    ],
)
def test_what_a_foreach_may_not_say(line: str, code: str) -> None:
    found = compile_definition(
        HEAD.split("steps:\n", maxsplit=1)[0] + f"steps: [{{id: x, foreach: {line}}}]\n"
    ).findings
    assert [finding.code for finding in found] == [code]


def test_the_result_of_an_item_is_its_last_steps_output_if_nothing_else_is_said() -> None:
    text = HEAD.replace("      output: OUTPUT\n", "").replace(", when: WHEN", "")
    for name, value in {**GIVEN, "WHOLE": "{all: '${ steps.each.output }'}"}.items():
        text = text.replace(name, value, 1)
    made = compile_definition(text)
    assert made.graph is not None, made.render()
    spec = made.graph.nodes[1].spec
    assert isinstance(spec, ForeachSpec)
    assert (spec.last, spec.output) == ("store", None)


def test_a_graph_with_items_is_stored_and_read_again() -> None:
    graph = graph_of()
    document = json.loads(json.dumps(graph_to_json(graph)))
    assert graph_from_json(document) == graph
    assert "within" not in document["nodes"][0]


def test_drawings_show_the_steps_of_an_item_as_a_block() -> None:
    graph = graph_of()
    _, block = structure_of(graph)
    assert isinstance(block, Block)
    assert (block.opener.id, block.join, block.goes_on) == ("each", None, True)
    assert [[part.id for part in lane.parts if not isinstance(part, Block)] for lane in block.lanes] == [
        ["fetch", "store"]
    ]
    drawn = graph_to_svg(graph)
    assert "each item" in drawn
    assert "at most 20 items, 4 at once" in drawn
    text = graph_to_mermaid(graph)
    assert 'subgraph i2["each item of each"]' in text
    assert "n1 -.-> n2" in text
    assert "n1 --> n2" not in text


def test_a_diff_judges_the_steps_of_items_by_their_foreach() -> None:
    old = graph_of()
    assert diff_graphs(old, old).verdict is Verdict.SAME
    inside = diff_graphs(old, graph_of(FETCH="'${ item.url }'"))
    assert (inside.verdict, inside.at) == (Verdict.SAFE_AT, ("fetch",))
    items = diff_graphs(old, graph_of(OUTPUT="1", WHOLE="1"))
    assert (items.verdict, items.at) == (Verdict.SAFE_AT, ("each",))
