"""Parallel blocks as they are written: join policies, dependency graphs, what is certain behind them, their bounds."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from definitions import joins
from definitions.compiler import Compiled, compile_definition
from definitions.diff import Verdict, diff_graphs
from definitions.graph import ForkSpec, Graph, JoinPolicy, JoinSpec, LaneSpec
from definitions.graph_json import graph_from_json, graph_to_json
from definitions.mermaid import graph_to_mermaid
from definitions.structure import Block, structure_of
from definitions.svg import graph_to_svg
from engine.flow import Flow
from engine.simulator import Answer, Simulation
from engine.states import InstanceState

DOCS = Path(__file__).parents[3] / "docs"
HEAD = """\
orbit: weave/1
workflow: sample
version: 1
input: {type: object, required: [go], properties: {go: {type: boolean}}}
defaults: {queue: work}
steps:
"""


def compiled(steps: str) -> Compiled:
    return compile_definition(HEAD + "".join(f"  {line}\n" for line in steps.strip("\n").split("\n")))


def graph_of(steps: str) -> Graph:
    made = compiled(steps)
    assert made.graph is not None, made.render()
    return made.graph


def messages(steps: str) -> list[tuple[str, str]]:
    return [(finding.code.value, finding.message) for finding in compiled(steps).findings]


def block(join: str, *lanes: str, after: str = "") -> str:
    lines = ["- id: p", "  parallel:", f"    join: {join}", "    branches:"]
    lines += [f"      b{number}: [{lane}]" for number, lane in enumerate(lanes)]
    return "\n".join([*lines, after])


def needing(*steps: str, join: str = "all", after: str = "") -> str:
    lines = ["- id: p", "  parallel:", f"    join: {join}", "    steps:", *(f"      - {{{step}}}" for step in steps)]
    return "\n".join([*lines, after])


TASKS = ("{id: a, task: t.a@1}", "{id: b, task: t.b@1}", "{id: c, task: t.c@1}")
GRAPH = ("id: c, task: t.c@1, needs: [a, b]", "id: a, task: t.a@1", "id: b, task: t.b@1", "id: d, wait: {for: 1s}")


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("all", JoinSpec(JoinPolicy.ALL, "p")),
        ("any", JoinSpec(JoinPolicy.ANY, "p")),
        ("settled", JoinSpec(JoinPolicy.SETTLED, "p")),
        ("{at_least: 2}", JoinSpec(JoinPolicy.AT_LEAST, "p", 2)),
    ],
)
def test_each_policy_is_read_drawn_and_kept(text: str, spec: JoinSpec) -> None:
    graph = graph_of(block(text, *TASKS))
    assert graph.nodes[-1].spec == spec
    assert graph_from_json(graph_to_json(graph)) == graph
    assert f"join {spec.words}" in graph_to_svg(graph)
    assert ("join" if text == "all" else f"join {spec.words}") in graph_to_mermaid(graph)


def test_a_stored_graph_without_lanes_has_them_found_again() -> None:
    lanes = "{x: [{id: n1, task: t.a@1}, {id: n2, task: t.a@1}], y: [{id: n3, task: t.a@1}]}"
    nested = f"{{id: n, parallel: {{branches: {lanes}}}}}"
    graph = graph_of(block("all", TASKS[0], f"{nested}, {TASKS[1]}", TASKS[2]))
    document = graph_to_json(graph)
    for node in document["nodes"]:
        node.pop("inside", None)
        node["spec"] = None if node["kind"] == "FORK" else node["spec"]
    assert graph_from_json(document) == graph


@pytest.mark.parametrize(
    "join", ["every", "3", "at_least", "{at_least: 0}", "{at_most: 1}", "{at_least: two}", "[any]"]
)
def test_a_policy_that_does_not_exist_is_refused(join: str) -> None:
    assert len(compiled(block(join, *TASKS)).findings) in {1, 2}


def test_a_dependency_graph_is_sorted_by_what_its_steps_need() -> None:
    graph = graph_of(needing(*GRAPH))
    assert [node.id for node in graph.nodes] == ["p", "a", "b", "c", "d", "p.end"]
    assert graph.nodes[0].spec == ForkSpec((LaneSpec("a"), LaneSpec("b"), LaneSpec("c", ("a", "b")), LaneSpec("d")))
    names = [node.id for node in graph.nodes]
    edges = {(names[edge.source], names[edge.target], edge.case) for edge in graph.edges}
    assert edges == {
        ("p", "a", "a"),
        ("p", "b", "b"),
        ("p", "d", "d"),
        ("a", "c", None),
        ("b", "c", None),
        ("c", "p.end", None),
        ("d", "p.end", None),
    }
    assert graph_from_json(graph_to_json(graph)) == graph
    (part,) = structure_of(graph)
    assert isinstance(part, Block)
    assert [(lane.label, lane.needs) for lane in part.lanes] == [("a", ()), ("b", ()), ("c", ("a", "b")), ("d", ())]


def test_a_dependency_graph_is_drawn_in_rows_with_the_ways_between() -> None:
    drawn = graph_to_svg(graph_of(needing(*GRAPH)))
    assert "needs a, b</text>" in drawn
    tops = {
        name: int(drawn.split(f'id="step-{name}"')[1].split('y="')[1].split('"')[0]) for name in ("a", "b", "c", "d")
    }
    assert tops["a"] == tops["b"] == tops["d"] < tops["c"]
    ways = [line for line in drawn.splitlines() if 'class="flow"' in line and "C" in line]
    assert len(ways) == 2


def test_mistakes_in_needs_are_all_found_with_their_places() -> None:
    steps = needing(
        "id: a, task: t.a@1, needs: [b, nothing, a]",
        "id: b, task: t.b@1, needs: [c, c]",
        "id: cc, task: t.c@1, needs: [a]",
        "id: c, task: t.d@1, needs: [a, 7]",
    )
    found = [(finding.code.value, finding.hint) for finding in compiled(steps).findings]
    assert found == [
        ("NEEDS_CYCLE", "leave one of these needs out"),
        ("UNKNOWN_NEED", "a step can need only steps that stand beside it in the same list"),
        ("NEEDS_CYCLE", "leave this need out"),
        ("DUPLICATE_NEED", "name it once"),
        ("WRONG_TYPE", "write `needs: [a, b]`"),
    ]
    assert "`a` needs `b` needs `c` needs `a`" in compiled(steps).findings[0].message


def test_branches_and_steps_exclude_each_other() -> None:
    text = "- id: p\n  parallel:\n    branches: {x: [{id: a, task: t.a@1}]}\n    steps: [{id: b, task: t.b@1}]"
    assert [code for code, _ in messages(text)] == ["CONTRADICTION"]
    assert [code for code, _ in messages("- {id: p, parallel: {}}")] == ["MISSING_KEY"]
    assert [code for code, _ in messages("- {id: p, parallel: {steps: []}}")] == ["EMPTY_STEPS"]


EXAMPLES = re.findall(
    r"^```yaml\n(.*?)^```$", (DOCS / "joins.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_the_page_compile(example: str) -> None:
    known = "required: [amount, strict], properties: {amount: {type: number}, strict: {type: boolean}}"
    head = HEAD.replace("required: [go], properties: {go: {type: boolean}}", known)
    made = compile_definition(head + example.replace("\n", "\n  ").join(["  ", "\n"]))
    assert made.graph is not None, made.render()


# What is certain


@pytest.mark.parametrize("join", ["any", "{at_least: 2}", "settled"])
def test_behind_other_joins_than_all_nothing_is_certain_and_all_can_be_guarded(join: str) -> None:
    bare = "- {id: z, task: t.z@1, input: '${ steps.a.output.x }'}"
    guarded = "- {id: z, task: t.z@1, input: '${ default(steps.a.output.x, 1) }'}"
    found = messages(block(join, *TASKS, after=bare))
    assert [code for code, _ in found] == ["UNCERTAIN_REFERENCE"]
    assert "which does not need every branch" in found[0][1]
    assert compiled(block(join, *TASKS, after=guarded)).graph is not None
    assert compiled(block("all", *TASKS, after=bare)).graph is not None


def test_within_a_branch_its_own_steps_are_certain_whatever_the_join() -> None:
    lane = "{id: a, task: t.a@1}, {id: b, task: t.b@1, input: '${ steps.a.output.x }'}"
    assert compiled(block("any", lane, "{id: c, task: t.c@1}")).graph is not None


def test_needs_give_certainty_along_the_graph() -> None:
    reads = "input: ['${ steps.a.output }', '${ steps.b.output }']"
    assert compiled(needing(*GRAPH, f"id: e, task: t.e@1, needs: [c], {reads}")).graph is not None
    found = messages(needing(*GRAPH, f"id: e, task: t.e@1, needs: [b], {reads}"))
    assert [code for code, _ in found] == ["UNCERTAIN_REFERENCE"]
    assert "name it in `needs`" in found[0][1]


def test_a_single_need_has_run_where_the_step_runs_even_if_it_can_be_skipped() -> None:
    a = "id: a, task: t.a@1, when: input.go"
    reads = "input: '${ steps.a.output }'"
    diamond = ("id: b, task: t.b@1, needs: [a]", "id: c, task: t.c@1, needs: [a]")
    assert compiled(needing(a, f"id: b, task: t.b@1, needs: [a], {reads}")).graph is not None
    assert compiled(needing(a, *diamond, f"id: d, task: t.d@1, needs: [b, c], {reads}")).graph is not None
    assert compiled(needing(a, *diamond, "id: d, task: t.d@1, needs: [b, c], input: '${ steps.c.output }'")).graph
    found = messages(needing(a, "id: b, task: t.b@1", f"id: d, task: t.d@1, needs: [a, b], {reads}"))
    assert [code for code, _ in found] == ["UNCERTAIN_REFERENCE"]
    guarded = "input: '${ default(steps.a.output, null) }'"
    assert compiled(needing(a, "id: b, task: t.b@1", f"id: d, task: t.d@1, needs: [a, b], {guarded}")).graph


def test_behind_a_graph_that_needs_all_what_can_not_be_skipped_is_certain() -> None:
    steps = ("id: a, task: t.a@1, when: input.go", "id: b, task: t.b@1", "id: c, task: t.c@1, needs: [a]")
    certain = "- {id: z, set: {v: '${ steps.b.output }'}}"
    assert compiled(needing(*steps, after=certain)).graph is not None
    found = messages(needing(*steps, after="- {id: z, set: {v: '${ steps.c.output }'}}"))
    assert [code for code, _ in found] == ["UNCERTAIN_REFERENCE"]
    assert "skipped if all that it needs is" in found[0][1]


# Joins that can't be kept


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        (block("{at_least: 4}", *TASKS), "UNSATISFIABLE_JOIN"),
        (block("any", "{id: a, task: t.a@1, when: input.go}"), "UNSATISFIABLE_JOIN"),
        (block("{at_least: 2}", "{id: a, task: t.a@1, when: input.go}", TASKS[1]), "UNSATISFIABLE_JOIN"),
        (block("any", "{id: a, return: {}}"), "UNSATISFIABLE_JOIN"),
        (block("settled", TASKS[0], "{id: z, return: {}}"), "UNREACHABLE_JOIN"),
        (
            needing("id: a, task: t.a@1, when: input.go", "id: b, task: t.b@1, needs: [a]", join="any"),
            "UNSATISFIABLE_JOIN",
        ),
        (needing("id: a, return: {}", "id: b, task: t.b@1"), "UNREACHABLE_JOIN"),
        (
            needing("id: a, return: {}", "id: b, task: t.b@1, needs: [a]", "id: c, task: t.c@1", join="any"),
            "UNREACHABLE_STEP",
        ),
    ],
)
def test_a_join_that_can_not_be_satisfied_on_some_path_is_refused(steps: str, code: str) -> None:
    assert [found for found, _ in messages(steps)] == [code]


@pytest.mark.parametrize(
    "steps",
    [
        block("any", "{id: a, task: t.a@1, when: input.go}", TASKS[1]),
        block("{at_least: 3}", *TASKS),
        block("settled", "{id: a, task: t.a@1, when: input.go}"),
        block("any", TASKS[0], "{id: limit, wait: {for: 1h}}, {id: late, fail: {code: LATE, message: late}}"),
        needing("id: a, task: t.a@1, when: input.go", "id: z, return: {}, needs: [a]", "id: y, set: {}, needs: [z]"),
    ],
)
def test_a_join_that_can_be_satisfied_whatever_is_skipped_is_taken(steps: str) -> None:
    graph = graph_of(steps)
    for go in (True, False):
        outcome = Simulation(Flow(graph), lambda _command: Answer(output={}), input_value={"go": go}).run()
        assert outcome.instance.state is InstanceState.SUCCEEDED


# Bounds


def test_losers_may_run_beside_what_comes_next_and_are_counted() -> None:
    steps = block("any", *TASKS, after="- {id: z, task: t.z@1}")
    proven = graph_of(steps).bounds
    assert (proven.tasks, proven.concurrent_tasks, proven.lingering_tasks) == (4, 3, 2)
    twice = steps + "\n" + steps.replace("id: ", "id: x")
    assert graph_of(twice).bounds.concurrent_tasks == 5
    assert graph_of(block("all", *TASKS, after="- {id: z, task: t.z@1}")).bounds.lingering_tasks == 0


def test_a_graph_takes_its_longest_way_and_its_widest_cut() -> None:
    steps = [f"id: s{number}, task: t.a@1, needs: [{f's{number - 1}' if number else ''}]" for number in range(5)]
    proven = graph_of(needing(*steps, "id: other, task: t.a@1")).bounds
    assert (proven.tasks, proven.concurrent_tasks) == (6, 2)
    alone = graph_of(needing("id: other, task: t.a@1")).bounds
    assert proven.active_seconds == pytest.approx(5 * alone.active_seconds)


@st.composite
def acyclic(draw: st.DrawFn) -> dict[str, tuple[str, ...]]:
    count = draw(st.integers(1, 7))
    return {
        str(index): tuple(str(need) for need in draw(st.sets(st.integers(0, index - 1), max_size=3))) if index else ()
        for index in range(count)
    }


@given(needs=acyclic(), weights=st.lists(st.integers(0, 9), min_size=7, max_size=7))
def test_the_widest_cut_is_that_of_trying_all(needs: dict[str, tuple[str, ...]], weights: list[int]) -> None:
    ancestors = joins.ancestors_of(needs)
    weight = dict(zip(needs, weights, strict=False))
    best = 0
    for mask in range(2 ** len(needs)):
        chosen = [label for index, label in enumerate(needs) if mask >> index & 1]
        if not any(other in ancestors[label] for label in chosen for other in chosen):
            best = max(best, sum(weight[label] for label in chosen))
    assert joins.widest(needs, weight) == best


@given(needs=acyclic(), conditional=st.sets(st.integers(0, 6).map(str)), skipped=st.sets(st.integers(0, 6).map(str)))
def test_what_is_certain_has_run_whatever_is_skipped(
    needs: dict[str, tuple[str, ...]], conditional: set[str], skipped: set[str]
) -> None:
    ran: set[str] = set()
    for label, needed in needs.items():
        if (not needed or any(need in ran for need in needed)) and not (label in conditional and label in skipped):
            ran.add(label)
    for label, certain in joins.certain_at(needs, frozenset(conditional)).items():
        assert label not in ran or certain <= ran
    assert joins.certain_after(needs, frozenset(conditional)) <= ran


def test_the_largest_graph_is_read_in_time_and_a_larger_one_refused() -> None:
    steps = [
        f"id: s{number}, task: t.a@1, needs: [{', '.join(f's{n}' for n in range(number))}]" for number in range(100)
    ]
    assert graph_of(needing(*steps)).bounds.concurrent_tasks == 1
    assert [code for code, _ in messages(needing(*steps, "id: s100, task: t.a@1"))] == ["OUT_OF_RANGE"]
    circles = [
        f"id: s{number}, task: t.a@1, needs: [{', '.join(f's{n}' for n in range(100))}]" for number in range(100)
    ]
    assert {code for code, _ in messages(needing(*circles))} <= {"NEEDS_CYCLE", "TOO_MANY_FINDINGS"}


# Versions


@pytest.mark.parametrize(
    ("old", "new", "verdict", "at"),
    [
        (block("any", *TASKS), block("any", *TASKS), Verdict.SAME, ()),
        (block("all", *TASKS), block("any", *TASKS), Verdict.INCOMPATIBLE, ("p",)),
        (needing(*GRAPH), needing(*GRAPH[:3], "id: d, wait: {for: 1s}, needs: [a]"), Verdict.INCOMPATIBLE, ("p",)),
    ],
)
def test_a_block_is_another_one_if_its_join_or_its_needs_are(
    old: str, new: str, verdict: Verdict, at: tuple[str, ...]
) -> None:
    found = diff_graphs(graph_of(old), graph_of(new))
    assert (found.verdict, found.at) == (verdict, at)


def test_a_changed_join_is_safe_for_those_before_the_block() -> None:
    first = "- {id: first, task: t.z@1}\n"
    found = diff_graphs(graph_of(first + block("any", *TASKS)), graph_of(first + block("{at_least: 2}", *TASKS)))
    assert (found.verdict, found.at) == (Verdict.SAFE_AT, ("p",))
    assert [str(reason) for reason in found.reasons] == ["step p: join: any → at least 2"]


def test_no_guard_helps_to_read_a_step_of_items_that_is_needed() -> None:
    steps = needing(
        "id: e, foreach: {items: '[1]', max_items: 1, steps: [{id: x, task: t.a@1}]}",
        "id: b, needs: [e], set: {x: '${ default(steps.x.output, 1) }'}",
    )
    (finding,) = compiled(steps).findings
    assert finding.code.value == "UNCERTAIN_REFERENCE"
    assert "it runs once for each item of `e`" in finding.message
