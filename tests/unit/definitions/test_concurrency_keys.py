"""`concurrency_keys` in the language: read, checked, compiled, stored, compared and drawn."""

import pytest

from definitions import limits
from definitions.captions import facts_of
from definitions.compiler import Compiled, compile_definition
from definitions.diff import Verdict, diff_graphs
from definitions.graph import Graph, PollSpec, TaskSpec
from definitions.graph_json import graph_from_json, graph_to_json
from engine.flow import Flow
from engine.simulator import Answer, Simulation
from engine.states import InstanceState
from orbit.jsontext import Json
from pulse import limits as pulse_limits

HEAD = """\
orbit: weave/1
workflow: w
version: 1
input: {type: object, required: [supplier, n], properties: {supplier: {type: string}, n: {type: integer}}}
"""
DEFAULTS = "defaults: {queue: main}\n"
KEYED = "- {id: a, task: t.a@1, concurrency_keys: ['supplier:${ input.supplier }', plant]}"


def compile_steps(steps: str, defaults: str = DEFAULTS) -> Compiled:
    indented = "".join(f"  {line}\n" for line in steps.strip("\n").splitlines())
    return compile_definition(f"{HEAD}{defaults}steps:\n{indented}")


def graph_of(steps: str, defaults: str = DEFAULTS) -> Graph:
    compiled = compile_steps(steps, defaults)
    assert compiled.graph is not None, compiled.render()
    return compiled.graph


def keys_of(graph: Graph, at: int = 0) -> list[Json]:
    spec = graph.nodes[at].spec
    task = spec.task if isinstance(spec, PollSpec) else spec
    assert isinstance(task, TaskSpec)
    return [key.source for key in task.concurrency_keys]


def test_steps_polls_and_defaults_name_keys() -> None:
    assert keys_of(graph_of(KEYED)) == ["supplier:${ input.supplier }", "plant"]
    poll = """
- id: a
  poll:
    {task: t.a@1, done_when: 'true', every: 1s, max_rounds: 3, timeout: 1m, concurrency_keys: ['r:${ round }']}
"""
    assert keys_of(graph_of(poll)) == ["r:${ round }"]
    defaults = "defaults: {queue: main, concurrency_keys: ['${ input.supplier }']}\n"
    steps = "- {id: a, task: t.a@1}\n- {id: b, task: t.b@1, concurrency_keys: [own]}\n"
    steps += "- {id: c, task: t.c@1, concurrency_keys: []}"
    made = graph_of(steps, defaults)
    assert [keys_of(made, at) for at in range(3)] == [["${ input.supplier }"], ["own"], []]


def test_the_stored_graph_has_them_and_one_without_is_written_as_before() -> None:
    made = graph_of(KEYED)
    assert graph_from_json(graph_to_json(made)) == made
    plain = graph_to_json(graph_of("- {id: a, task: t.a@1}"))
    assert "concurrency_keys" not in plain["nodes"][0]["spec"]
    assert keys_of(graph_from_json(plain)) == []


def test_a_changed_key_is_a_difference_of_the_step() -> None:
    old, new = graph_of(KEYED), graph_of(KEYED.replace("plant", "plant:2"))
    found = diff_graphs(old, new)
    assert found.verdict is Verdict.INCOMPATIBLE
    assert [(reason.step, reason.what) for reason in found.reasons] == [("a", "concurrency_keys")]
    assert diff_graphs(old, graph_of(KEYED)).verdict is Verdict.SAME


def test_a_drawing_says_what_a_step_holds() -> None:
    assert "holds supplier:${ input.supplier }, plant" in facts_of(graph_of(KEYED).nodes[0])


@pytest.mark.parametrize(
    ("written", "code", "column"),
    [
        ("[a, b, c, d, e]", "OUT_OF_RANGE", 26),
        ("[7]", "WRONG_TYPE", 45),
        ("[{a: b}]", "WRONG_TYPE", 45),
        ("a", "WRONG_TYPE", 44),
        ("['']", "OUT_OF_RANGE", 45),
        ("['supplier:*']", "BAD_VALUE", 45),
        ("['${ nput.supplier }']", "UNKNOWN_NAME", 49),
        ("['${ input }']", "TYPE_MISMATCH", 45),
        ("['x:${ input }']", "TEMPLATE_TYPE", 50),
        ("['${ steps.b.output }']", "UNKNOWN_STEP", 55),
    ],
)
def test_what_can_be_no_key_is_found_at_its_place(written: str, code: str, column: int) -> None:
    compiled = compile_steps(f"- {{id: a, task: t.a@1, concurrency_keys: {written}}}")
    assert [(f.code.value, f.line, f.column) for f in compiled.findings] == [(code, 7, column)], compiled.render()


def test_the_limits_are_those_of_the_task_layer() -> None:
    assert limits.CONCURRENCY_KEYS_MAX == pulse_limits.CONCURRENCY_KEYS_MAX
    assert limits.CONCURRENCY_KEY_CHARACTERS_MAX == pulse_limits.KEY_CHARACTERS_MAX


def test_keys_are_rendered_for_every_task_and_what_is_none_fails_the_step() -> None:
    seen: list[tuple[str, ...]] = []

    def script(command: object) -> Answer:
        seen.append(command.concurrency_keys)  # type: ignore[attr-defined]
        return Answer()

    made = graph_of(
        "- {id: a, task: t.a@1, concurrency_keys: ['${ input.supplier }', 'n:${ input.n }', '${ input.n }']}"
    )
    done = Simulation(Flow(made), script, input_value={"supplier": "acme", "n": 7}).run()
    assert (done.instance.state, seen) == (InstanceState.SUCCEEDED, [("acme", "n:7", "7")])
    for supplier in ("", "k" * 129, "all*"):
        held = Simulation(Flow(made), script, input_value={"supplier": supplier, "n": 7}).run()
        error = held.instance.steps["a"].error
        assert error is not None
        assert (error.code, error.details["cause"]) == ("EXPRESSION_ERROR", "NO_KEY")  # type: ignore[index]
    assert len(seen) == 1
