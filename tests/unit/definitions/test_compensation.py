"""Compensation in the language: what is read and found, what it may read itself, what it adds to the bounds."""

import pytest

from definitions.compiler import Compiled, compile_definition
from definitions.diff import Verdict, diff_graphs
from definitions.graph import Graph
from definitions.graph_json import graph_from_json, graph_to_json
from definitions.mermaid import graph_to_mermaid
from definitions.svg import graph_to_svg

HEAD = """\
orbit: weave/1
workflow: undone
version: 1
on_failure: compensate
input: {type: object, required: [n], properties: {n: {type: integer}, note: {type: string}}}
defaults: {queue: q, start_within: 20s, attempt_timeout: 5s, retry: {max_attempts: 1}}
steps:
"""
STEPS = """\
  - {id: before, task: t.b@1}
  - id: pay
    task: bank.pay@1
    compensate:
      task: bank.refund@3
      queue: refunds
      retry: {max_attempts: 7}
      timeout: 2h
      input: {ref: "${ default(steps.pay.output.ref, null) }", b: "${ steps.before.output.x }", n: "${ input.n }"}
  - {id: after, task: t.a@1, when: input.n > 1}
"""


def compiled(steps: str = STEPS, head: str = HEAD) -> Compiled:
    return compile_definition(head + steps)


def graph(steps: str = STEPS) -> Graph:
    made = compiled(steps)
    assert made.graph is not None, made.render()
    return made.graph


def test_a_compensation_is_a_task_of_its_own() -> None:
    made = graph()
    (node,) = [node for node in made.nodes if node.compensate is not None]
    assert node.id == "pay"
    undoing = node.compensate
    assert undoing is not None
    assert (undoing.type, undoing.task_version, undoing.queue) == ("bank.refund", 3, "refunds")
    assert (undoing.retry.attempts_max, undoing.timeout_seconds, undoing.start_within_seconds) == (7, 7200.0, 20.0)
    assert made.queues == {"q", "refunds"}
    assert made.format == 2
    assert graph_from_json(graph_to_json(made)) == made


def found(value: str, steps: str = STEPS) -> list[str]:
    text = steps.replace("default(steps.pay.output.ref, null)", value)
    return [f"{finding.code}: {finding.message}" for finding in compiled(text).findings]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("steps.pay.output.ref", "its outcome may be unknown when it is undone"),
        ("steps.after.output.ref", "it may not have run when `pay` is undone"),
    ],
)
def test_what_may_not_be_there_when_it_is_undone_is_guarded(value: str, why: str) -> None:
    (message,) = found(value)
    assert message.startswith("UNCERTAIN_REFERENCE")
    assert message.endswith(why)
    assert found(f"default({value}, null)") == []
    assert found(f"has({value.removesuffix('.ref')}) ? {value} : null") == []


def test_an_error_is_not_known_there() -> None:
    (message,) = found("error.code")
    assert message.startswith("UNKNOWN_NAME")


UNDONE = "compensate: {task: t.u@1}"


@pytest.mark.parametrize(
    ("step", "codes"),
    [
        ("{id: a, task: t.a@1, compensate: x}", ["WRONG_TYPE"]),
        ("{id: a, task: t.a@1, compensate: {input: 1}}", ["MISSING_KEY"]),
        ("{id: a, task: t.a@1, compensate: {task: t.u}}", ["BAD_TASK_TYPE"]),
        ("{id: a, task: t.a@1, compensate: {task: t.u@1, output: {}}}", ["UNKNOWN_KEY"]),
        ("{id: a, task: t.a@1, compensate: {task: t.u@1, on_error: []}}", ["UNKNOWN_KEY"]),
        ("{id: a, set: {}, compensate: {task: t.u@1}}", ["UNKNOWN_KEY"]),
        ("{id: a, branch: [{else: []}], compensate: {task: t.u@1}}", []),
        ("{id: a, foreach: {items: '[1]', max_items: 1, steps: [{id: i, set: {}}]}, compensate: {task: t.u@1}}", []),
        (
            f"{{id: a, parallel: {{branches: {{x: [{{id: b, task: t.b@1, {UNDONE}}}]}}}}, {UNDONE}}}",
            ["CONTRADICTION"],
        ),
        ("{id: a, wait: {for: 1s}, compensate: {task: t.u@1}}", []),
    ],
)
def test_what_is_wrong_with_a_compensation_is_found(step: str, codes: list[str]) -> None:
    known = "  - {id: z, task: t.z@1, compensate: {task: t.z@1}}\n"
    assert [finding.code.value for finding in compiled(f"{known}  - {step}\n").findings] == codes


def test_on_failure_compensate_needs_something_to_undo() -> None:
    (finding,) = compiled("  - {id: a, task: t.a@1}\n").findings
    assert finding.code.value == "CONTRADICTION"
    assert finding.message == "`on_failure: compensate` undoes nothing: no step has `compensate`"
    assert finding.excerpt.startswith("on_failure")


def test_no_guard_helps_a_compensation_to_read_a_step_of_items() -> None:
    item = "  - {id: e, foreach: {items: '[1]', max_items: 1, steps: [{id: x, task: t.a@1}]}}\n"
    undo = "  - {id: a, task: t.a@1, compensate: {task: t.u@1, input: {x: '${ default(steps.x.output, 1) }'}}}\n"
    (finding,) = compiled(item + undo).findings
    assert finding.code.value == "UNCERTAIN_REFERENCE"
    assert finding.message == (
        "step `x` can't be read here: it runs once for each item of `e`: read the list of results, `steps.e.output`"
    )


def test_bounds_add_every_compensation_one_after_the_other_behind_the_time_out() -> None:
    step = "  - {{id: {0}, task: t.a@1{1}}}\n"
    undo = ", compensate: {task: t.u@1}"
    plain = compiled(step.format("a", "") + step.format("b", ""), HEAD.replace("compensate", "fail")).graph
    undone = compiled(step.format("a", undo) + step.format("b", undo)).graph
    assert plain is not None
    assert undone is not None
    assert undone.bounds.tasks == 2 * plain.bounds.tasks
    assert undone.bounds.active_seconds == 2 * plain.bounds.active_seconds
    assert undone.bounds.concurrent_tasks == 1
    short = compiled(step.format("a", undo), HEAD.replace("on_failure", "timeout: 10s\non_failure")).graph
    assert short is not None
    assert short.bounds.active_seconds == 10 + plain.bounds.active_seconds / 2


def test_a_changed_compensation_is_a_changed_step() -> None:
    changed = diff_graphs(graph(), graph(STEPS.replace("refund@3", "refund@4")))
    assert (changed.verdict, changed.at) == (Verdict.SAFE_AT, ("pay",))
    assert [reason.what for reason in changed.reasons if reason.step] == ["compensate"]


def test_compensations_are_drawn() -> None:
    assert "undone by bank.refund@3 on refunds" in graph_to_svg(graph())
    assert 'n1 -.-> u1>"undone by bank.refund@3"]' in graph_to_mermaid(graph())


ITEM = (
    "  - {{id: e, foreach: {{items: '[7, 8]', max_items: 40, concurrency: 5, steps: [{{id: v, set: {{n: 1}}}}, "
    "{{id: x, task: t.a@1, compensate: {{task: t.u@1, input: {{x: '${{ {0} }}'}}}}}}, {{id: w, task: t.w@1}}]}}}}\n"
    "  - {{id: after, task: t.a@1}}\n"
)


@pytest.mark.parametrize(
    "value",
    ["item", "index", "default(steps.x.output, 1)", "default(steps.w.output, 1)", "default(steps.v.output.n, 1)"],
)
def test_a_compensation_of_a_step_of_items_reads_its_item_and_guarded_the_steps_of_it(value: str) -> None:
    assert compiled(ITEM.format(value)).findings == ()


def test_what_is_certain_before_a_step_of_items_is_so_when_it_is_undone() -> None:
    assert compiled(ITEM.format("steps.v.output.n")).findings == ()
    (finding,) = compiled(ITEM.format("steps.x.output")).findings
    assert finding.message.endswith("its outcome may be unknown when it is undone")


def test_the_bounds_of_a_compensation_of_items_are_those_of_every_item_one_after_the_other() -> None:
    one, many = compiled(ITEM.format("item")).graph, compiled(ITEM.format("item").replace("40", "80")).graph
    assert one is not None
    assert many is not None
    assert one.bounds.tasks == 40 * 3 + 1
    assert many.bounds.tasks == 80 * 3 + 1
    # Items run some at once, and are undone one by one.
    assert one.bounds.concurrent_tasks == 5
    assert many.bounds.active_seconds > 1.9 * one.bounds.active_seconds
