"""What public trackers tell of joins that hang or go on too early, modelled again: refused at publish, or it ends.

Each test names the trackers' issues. Where something is not refused, the instance is run in every combination of the
conditions, and with a failure at every step: it ends, or waits for a person.
"""

from itertools import product
from typing import Any

import pytest

from definitions.compiler import Compiled, compile_definition
from engine import joining
from engine.command import SubmitTask
from engine.flow import Flow
from engine.instance import Failure
from engine.simulator import Answer, Outcomes, Simulation
from engine.states import INSTANCE_TERMINAL, Action, InstanceState
from engine.stimulus import Outcome, Recovered

HEAD = """\
orbit: weave/1
workflow: fault
version: 1
input: {type: object, properties: {q: {type: string}, x: {type: boolean}, y: {type: boolean}}, required: [q, x, y]}
defaults: {queue: work, retry: {max_attempts: 1}}
steps:
"""
FAILED = Answer(Outcome.FAILED, error=Failure("BROKEN", "broken"))


def compiled(steps: str, head: str = HEAD) -> Compiled:
    return compile_definition(head + steps)


def flow_of(steps: str, head: str = HEAD) -> Flow:
    made = compiled(steps, head)
    assert made.graph is not None, made.render()
    return Flow(made.graph)


def codes(steps: str) -> list[str]:
    return [finding.code.value for finding in compiled(steps).findings]


def run(flow: Flow, *failing: str, **input_: Any) -> Outcomes:
    def script(command: SubmitTask) -> Answer:
        return FAILED if command.step in failing else Answer(output={"ok": True})

    return Simulation(flow, script, input_value={"q": "", "x": False, "y": False, **input_}).run()


def in_every_way(flow: Flow) -> list[tuple[dict[str, Any], str | None, Outcomes]]:
    """Run with all inputs, and with each of the tasks failing: every run ends, or holds a failure for a person."""
    tasks = [None, *(node.id for node in flow.graph.nodes if node.kind == "TASK")]
    found = []
    for q, x, y, failing in product(("", "1"), (False, True), (False, True), tasks):
        input_ = {"q": q, "x": x, "y": y}
        outcome = run(flow, *([failing] if failing else []), **input_)
        instance = outcome.instance
        is_held = any(joining.holds(flow, step) for step in instance.steps.values())
        assert instance.state in INSTANCE_TERMINAL or (instance.state is InstanceState.NEEDS_RECOVERY and is_held)
        if failing is None:
            assert instance.state is InstanceState.SUCCEEDED, f"{input_}: {instance.error}"
        found.append((input_, failing, outcome))
    return found


SWITCH = """\
  - id: fork
    parallel:
      join: {join}
      branches:
        p: [{{id: P, task: t.p@1}}]
        q:
          - id: Q
            branch:
              - {{when: input.q == '1', steps: [{{id: Q1, task: t.q@1}}]}}
              - else: []
        r: [{{id: R, task: t.r@1}}]
  - {{id: Z, task: t.z@1}}
"""


@pytest.mark.parametrize("join", ["all", "any", "settled", "{at_least: 2}", "{at_least: 3}"])
def test_c026_a_join_behind_a_switch_that_takes_its_default_opens(join: str) -> None:
    # Netflix/conductor 2758, 881, 1857, 884: the join waited for a task that the switch had never scheduled.
    flow = flow_of(SWITCH.format(join=join))
    in_every_way(flow)
    outcome = run(flow, q="")
    assert outcome.instance.steps["Q1"].state == "SKIPPED"
    assert outcome.instance.steps["Z"].state == "SUCCEEDED"


def test_a_join_names_no_steps_that_might_not_exist() -> None:
    # conductor-oss: a JOIN needs each task that it names to exist; here it has none to name.
    assert codes("  - id: f\n    parallel: {join: [P, Q], branches: {p: [{id: P, task: t.p@1}]}}\n") == ["WRONG_TYPE"]
    assert codes("  - id: f\n    parallel: {joinOn: [P], branches: {p: [{id: P, task: t.p@1}]}}\n") == ["UNKNOWN_KEY"]


def test_an_empty_join_is_refused() -> None:
    # conductor-oss/javascript-sdk 135: an empty `joinOn` passed at once.
    assert codes("  - id: f\n    parallel: {branches: {}}\n") == ["EMPTY_STEPS"]
    assert codes("  - id: f\n    parallel: {steps: []}\n") == ["EMPTY_STEPS"]
    assert codes("  - id: f\n    parallel: {branches: {a: []}}\n") == ["EMPTY_STEPS"]
    assert codes("  - id: f\n    parallel: {join: {}, branches: {p: [{id: P, task: t.p@1}]}}\n") == ["MISSING_KEY"]


@pytest.mark.parametrize(("join", "seconds"), [("settled", 9.0), ("any", 2.0)])
def test_a_join_ends_early_only_where_that_is_its_rule(join: str, seconds: float) -> None:
    # Netflix/conductor 3317: it ended early when an optional branch failed, and the outputs of others were lost.
    flow = flow_of(f"""\
  - id: f
    parallel:
      join: {join}
      branches:
        optional: [{{id: o, task: t.o@1}}]
        quick: [{{id: q, task: t.q@1}}]
        slow: [{{id: s, task: t.s@1}}]
  - {{id: Z, set: {{q: "${{ has(steps.q.output) }}", s: "${{ has(steps.s.output) }}"}}}}
output: "${{ steps.Z.output }}"
""")
    spans = {"o": 1.0, "q": 2.0, "s": 9.0}

    def script(command: SubmitTask) -> Answer:
        outcome = Outcome.FAILED if command.step == "o" else Outcome.SUCCEEDED
        return Answer(outcome, output={}, after_seconds=spans[command.step])

    outcome = Simulation(flow, script, input_value={}).run()
    assert outcome.instance.state is InstanceState.SUCCEEDED
    joined = next(line for line in outcome.trace if line.entry.step == "f.end")
    assert joined.at_seconds == seconds
    assert outcome.output == {"q": True, "s": join == "settled"}


@pytest.mark.parametrize("join", ["all", "any", "{at_least: 2}"])
def test_a_retry_recomputes_the_join_and_leaves_the_siblings_alone(join: str) -> None:
    # Netflix/conductor 3630: the join stayed SCHEDULED after a retry; conductor-oss 310: siblings were reset.
    flow = flow_of(f"""\
  - id: f
    parallel:
      join: {join}
      branches: {{a: [{{id: A, task: t.a@1}}, {{id: A2, task: t.a@1}}], b: [{{id: B, task: t.b@1}}]}}
  - {{id: Z, task: t.z@1}}
""")
    submitted: list[str] = []

    def script(command: SubmitTask) -> Answer:
        submitted.append(command.step)
        fails = submitted.count(command.step) == 1 and (command.step == "A" or (command.step == "B" and join == "any"))
        return FAILED if fails else Answer(output={})

    simulation = Simulation(flow, script, input_value={})
    simulation.recover_at(60.0, Recovered(Action.RETRY, "A"))
    outcome = simulation.run()
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert submitted.count("B") == 1
    assert submitted.count("A") == 2


def test_a_path_that_leaves_by_an_error_does_not_strand_the_join() -> None:
    # camunda 19460, 19464, 13070: an inclusive gateway hung when one path left by an error or an end event.
    flow = flow_of("""\
  - id: f
    parallel:
      join: settled
      branches:
        one: [{id: A, task: t.a@1, when: input.x}, {id: A2, task: t.a@1}]
        two: [{id: B, task: t.b@1, when: input.y}, {id: stop, when: input.q == '1' && input.y, return: {early: true}}]
  - {id: Z, task: t.z@1}
""")
    in_every_way(flow)


def test_a_gateway_that_could_never_open_is_found_when_it_is_published() -> None:
    # bpmn-io/bpmnlint 151, bpmn-js-token-simulation 14: undecidable in free graphs, found here by structure.
    never = "  - id: f\n    parallel:\n      join: any\n      branches:\n"
    lanes = "        a: [{id: A, task: t.a@1, when: input.x}]\n        b: [{id: B, task: t.b@1, when: '!input.x'}]\n"
    assert codes(never + lanes) == ["UNSATISFIABLE_JOIN"]
    circle = "[{id: A, task: t.a@1, needs: [B]}, {id: B, task: t.b@1, needs: [A]}]"
    assert codes(f"  - id: f\n    parallel: {{steps: {circle}}}\n") == ["NEEDS_CYCLE"]
    ends = "        a: [{id: A, task: t.a@1}]\n        b: [{id: B, fail: {code: NO, message: no}}]\n"
    assert codes("  - id: f\n    parallel:\n      branches:\n" + ends) == ["UNREACHABLE_JOIN"]


def test_there_is_one_word_for_not_run_and_one_rule_for_it() -> None:
    # argo 1386, 8654, 9153, 10321, 9621, 3378, 14774: Skipped, Omitted and Daemoned meant different things to a need.
    flow = flow_of("""\
  - id: f
    parallel:
      steps:
        - {id: A, task: t.a@1, when: input.x}
        - {id: B, task: t.b@1}
        - {id: onA, task: t.c@1, needs: [A]}
        - {id: onBoth, task: t.d@1, needs: [A, B]}
        - {id: behind, task: t.e@1, needs: [onA]}
  - {id: Z, task: t.z@1}
""")
    for input_, failing, outcome in in_every_way(flow):
        steps = outcome.instance.steps
        if failing is None:
            assert steps["onA"].state == steps["A"].state == steps["behind"].state
            assert steps["onBoth"].state == "SUCCEEDED"
            assert (steps["A"].state == "SKIPPED") is not input_["x"]


def test_the_output_of_a_step_that_may_be_skipped_has_to_be_guarded() -> None:
    # argo's two pages on outputs of skipped tasks: an empty string in one, an error in the other.
    graph = "[{id: A, task: t.a@1, when: input.x}, {id: B, task: t.b@1}, {id: C, task: t.c@1, needs: [A, B], %s}]"
    block = f"  - id: f\n    parallel: {{steps: {graph}}}\n"
    assert codes(block % "input: '${ steps.A.output.v }'") == ["UNCERTAIN_REFERENCE"]
    flow = flow_of(block % "input: '${ default(steps.A.output.ok, false) }'")
    in_every_way(flow)


def test_a_join_behind_a_branch_is_not_skipped_with_the_other_case() -> None:
    # apache/airflow 436, 11768, 7885, 19222, 46297, 55187: the join behind a branch was skipped with it.
    flow = flow_of("""\
  - id: route
    branch:
      - when: input.x
        steps: [{id: A, task: t.a@1}]
      - else: [{id: B, task: t.b@1}, {id: C, task: t.c@1, when: input.y}]
  - {id: Z, task: t.z@1}
""")
    for _, failing, outcome in in_every_way(flow):
        if failing is None:
            assert outcome.instance.steps["Z"].state == "SUCCEEDED"


@pytest.mark.parametrize("policy", ["hold", "fail"])
def test_nothing_is_running_for_ever_with_nothing_to_do(policy: str) -> None:
    # apache/dolphinscheduler 18131, 18318, 10476: RUNNING with CONTINUE, or a condition with nothing behind it.
    flow = flow_of(
        """\
  - id: f
    parallel:
      join: settled
      branches:
        a: [{id: A, task: t.a@1}]
        b: [{id: B, branch: [{when: input.x, steps: []}, {else: []}]}]
  - {id: last, branch: [{when: input.y, steps: [{id: L, task: t.l@1}]}, {else: []}]}
""",
        HEAD.replace("steps:", f"on_failure: {policy}\nsteps:"),
    )
    for _, failing, outcome in in_every_way(flow):
        if failing == "A":
            assert outcome.instance.state is InstanceState.SUCCEEDED


def test_a_failure_touches_only_what_needs_it() -> None:
    # PowerJob 446, 447, 478, 728: one failed branch stopped unrelated ones.
    flow = flow_of("""\
  - id: f
    parallel:
      join: settled
      steps:
        - {id: A, task: t.a@1}
        - {id: A1, task: t.a@1, needs: [A]}
        - {id: B, task: t.b@1}
        - {id: B1, task: t.b@1, needs: [B]}
  - {id: Z, task: t.z@1}
""")
    in_every_way(flow)
    steps = run(flow, "A").instance.steps
    assert {name: steps[name].state.value for name in ("A", "A1", "B", "B1", "Z")} == {
        "A": "FAILED",
        "A1": "SKIPPED",
        "B": "SUCCEEDED",
        "B1": "SUCCEEDED",
        "Z": "SUCCEEDED",
    }


def test_n_of_m_is_offered_and_ends_with_any_n() -> None:
    # cncf/wg-serverless 229, specification 351: n of m was dropped from the language.
    flow = flow_of("""\
  - id: f
    parallel:
      join: {at_least: 2}
      branches:
        a: [{id: A, task: t.a@1}]
        b: [{id: B, task: t.b@1}]
        c: [{id: C, task: t.c@1}]
  - {id: Z, task: t.z@1}
""")
    for _, failing, outcome in in_every_way(flow):
        assert failing == "Z" or outcome.instance.state is InstanceState.SUCCEEDED
    assert run(flow, "A", "B").instance.error == Failure(
        "JOIN_UNSATISFIED",
        "2 of 3 branches of f must be done, and 1 can be at most",
        {"needed": 2, "branches": {"a": "failed", "b": "failed", "c": None}, "step": "f.end"},
    )
