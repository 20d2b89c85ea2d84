"""`on_error` on blocks and on the steps of items: what may be read behind them, what a retry may hold, their bounds."""

import pytest

from definitions.compiler import Compiled, compile_definition
from definitions.diff import Verdict, diff_graphs
from definitions.graph import Graph, NodeKind
from definitions.graph_json import graph_from_json, graph_to_json
from definitions.mermaid import graph_to_mermaid
from definitions.structure import Block, structure_of
from definitions.svg import graph_to_svg
from engine.coverage import items_of
from engine.flow import Flow

HEAD = """\
orbit: weave/1
workflow: w
version: 1
defaults: {queue: q, start_within: 10s, attempt_timeout: 5s, timeout: 5s, retry: {max_attempts: 1}}
input: {type: object, required: [list], properties: {list: {type: array, items: {type: integer}}}}
steps:
"""
BOTH = "parallel: {branches: {a: [{id: a, task: t.a@1}], b: [{id: b, task: t.b@1}]}}"
EACH = "foreach: {items: input.list, max_items: 6, concurrency: 2, steps: [{id: a, task: t.a@1}]}"
PICK = "branch: [{when: input.list.size() > 1, steps: [{id: a, task: t.a@1}]}, {else: []}]"


def compiled(steps: str) -> Compiled:
    return compile_definition(HEAD + steps)


def made(steps: str) -> Graph:
    found = compiled(steps)
    assert found.graph is not None, found.render()
    return found.graph


def block(kind: str, on_error: str, after: str = "null") -> str:
    return f'  - {{id: x, {kind}, on_error: [{on_error}]}}\n  - {{id: z, set: {{v: "${{ {after} }}"}}}}\n'


GOES_ON = '{match: "*", then: continue, value: {n: "${ error.step }"}}'
LANE = '{match: X, steps: [{id: h, task: t.h@1, input: {code: "${ error.code }", of: "${ error.step }"}}]}'


@pytest.mark.parametrize("kind", [BOTH, PICK, EACH])
@pytest.mark.parametrize("on_error", [GOES_ON, LANE, "{match: X, then: fail}", "{match: X, then: retry, max: 2}"])
def test_every_block_may_have_every_handler(kind: str, on_error: str) -> None:
    graph = made(block(kind, on_error))
    assert graph_from_json(graph_to_json(graph)) == graph
    opener = next(node for node in graph.nodes if node.id == "x")
    assert len(opener.handlers) == 1
    flow = Flow(graph)
    (guard,) = dict(flow.guards.faces).values()
    assert guard.face == ("x" if kind == EACH else "x.end")
    assert flow.nodes[guard.face].handlers == opener.handlers


@pytest.mark.parametrize(
    "kind", [BOTH, PICK, EACH, "parallel: {steps: [{id: a, task: t.a@1}, {id: b, task: t.b@1, needs: [a]}]}"]
)
def test_a_handlers_steps_read_nothing_of_the_block_that_has_failed(kind: str) -> None:
    lane = 'on_error: [{match: X, steps: [{id: h, task: t.h@1, input: "${ default(steps.a.output, null) }"}]}]'
    (finding,) = compiled(f"  - {{id: x, {kind}, {lane}}}\n").findings
    assert finding.message == "step `a` can't be read here: it is a part of `x`, whose failure is handled here"


def test_what_is_certain_behind_a_block_is_so_no_more_where_its_failure_is_handled() -> None:
    assert compiled(block(BOTH, "{match: X, then: fail}", "steps.a.output")).findings == ()
    for on_error in (GOES_ON, LANE):
        (finding,) = compiled(block(BOTH, on_error, "steps.a.output")).findings
        assert finding.code.value == "UNCERTAIN_REFERENCE"
        assert finding.message.endswith(
            "it may not have run, or not to its end, where the failure of a block around it is handled"
        )
        assert compiled(block(BOTH, on_error, "default(steps.a.output, null)")).findings == ()


def test_a_block_has_an_output_only_where_a_handler_gives_it_one() -> None:
    (finding,) = compiled(block(BOTH, GOES_ON, "steps.x.output.n")).findings
    assert finding.message.endswith("it has an output only where an error handler has given it one")
    assert compiled(block(BOTH, GOES_ON, "default(steps.x.output.n, null)")).findings == ()
    (finding,) = compiled(block(BOTH, LANE, "default(steps.x.output, null)")).findings
    assert finding.code.value == "STEP_WITHOUT_OUTPUT"


def test_the_output_of_a_foreach_that_continues_is_of_either_form() -> None:
    assert compiled(block(EACH, GOES_ON, "steps.x.output")).findings == ()
    (finding,) = compiled(block(EACH, LANE, "steps.x.output")).findings
    assert finding.code.value == "UNCERTAIN_REFERENCE"


def test_the_block_can_not_be_read_by_what_handles_it_nor_by_what_is_in_it() -> None:
    for place in ('{match: X, steps: [{id: h, set: {v: "${ steps.x.output }"}}]}, ' + GOES_ON,):
        (finding,) = compiled(block(BOTH, place)).findings
        assert "its failure is handled here" in finding.message


def test_behind_a_branch_whose_ways_all_end_the_instance_the_flow_comes_from_its_handlers() -> None:
    first = "{when: input.list.size() > 1, steps: [{id: a, task: t.a@1}, {id: r, return: 1}]}"
    ends = f"branch: [{first}, {{else: [{{id: q, return: 2}}]}}]"
    graph = made(block(ends, GOES_ON, "default(steps.x.output.n, null)"))
    assert any(node.id == "x.end" for node in graph.nodes)
    (finding,) = compiled(block(ends, "{match: X, then: fail}")).findings
    assert finding.code.value == "UNREACHABLE_STEP"


@pytest.mark.parametrize(
    ("inner", "why"),
    [
        ("{id: a, task: t.a@1, compensate: {task: t.u@1}}", "only what `a` does last could be undone"),
        ("{id: a, foreach: {items: '[1]', max_items: 1, steps: [{id: i, set: {}}]}}", "all items of `a` would be"),
    ],
)
def test_a_block_that_can_not_be_done_once_more_is_not_retried(inner: str, why: str) -> None:
    kind = f"parallel: {{branches: {{a: [{inner}]}}}}"
    (finding,) = compiled(block(kind, "{match: X, then: retry, max: 1}")).findings
    assert finding.code.value == "CONTRADICTION"
    assert why in finding.message
    assert finding.hint is not None
    assert compiled(block(kind, GOES_ON)).findings == ()


def test_a_retry_of_a_block_counts_as_another_run_of_all_of_it() -> None:
    once, thrice = made(block(BOTH, LANE)).bounds, made(block(BOTH, "{match: X, then: retry, max: 2}")).bounds
    assert (once.tasks, thrice.tasks) == (3, 6)
    assert thrice.concurrent_tasks == 2
    assert thrice.active_seconds == 3 * (made(block(BOTH, "{match: X, then: fail}")).bounds.active_seconds)


def test_a_retry_of_a_foreach_counts_the_items_that_were_under_way() -> None:
    once, thrice = (
        made(block(EACH, "{match: X, then: fail}")).bounds,
        made(block(EACH, "{match: X, then: retry, max: 2}")).bounds,
    )
    assert (once.tasks, thrice.tasks) == (6, 10)
    assert thrice.active_seconds == once.active_seconds / 3 * 7


def test_a_change_of_a_block_s_handlers_is_a_change_of_the_block() -> None:
    old, new = made(block(BOTH, GOES_ON)), made(block(BOTH, "{match: X, then: fail}"))
    diff = diff_graphs(old, new)
    assert diff.verdict is Verdict.INCOMPATIBLE
    assert any(reason.step == "x" and reason.what == "on_error" for reason in diff.reasons)


@pytest.mark.parametrize("kind", [BOTH, PICK, EACH])
def test_the_steps_of_a_block_s_handlers_are_drawn_as_lanes_of_it(kind: str) -> None:
    graph = made(block(kind, LANE))
    drawn = structure_of(graph)[0]
    assert isinstance(drawn, Block)
    assert drawn.lanes[-1].when == "on X"
    assert drawn.handled is not None
    assert "on X" in graph_to_svg(graph)
    assert '|"on X"|' in graph_to_mermaid(graph)


def test_each_handler_of_a_block_is_something_to_cover() -> None:
    assert "error handler 1 of x took a failure" in {str(item) for item in items_of(made(block(BOTH, GOES_ON)))}


def test_steps_of_items_have_handlers_with_steps_and_read_the_item_and_the_error() -> None:
    inner = (
        "{id: a, task: t.a@1, on_error: [{match: X, steps: [{id: h, set: {n: '${ item }', c: '${ error.code }'}}]}]},"
        " {id: r, set: {v: '${ default(steps.h.output, null) }'}}"
    )
    graph = made(f"  - {{id: e, foreach: {{items: input.list, max_items: 3, steps: [{inner}]}}}}\n")
    assert all(node.within == "e" for node in graph.nodes if node.id != "e")
    assert {node.kind for node in graph.nodes if node.id == "a.handled"} == {NodeKind.JOIN}
