"""The compiler as a whole: all findings at once, references along every path, joins, bounds, and its speed."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from definitions import limits
from definitions.codes import Code
from definitions.compiler import Compiled, compile_definition
from definitions.expression import EvaluationError
from definitions.graph import (
    ForkSpec,
    Graph,
    JoinPolicy,
    JoinSpec,
    LaneSpec,
    NodeKind,
    PollSpec,
    SetSpec,
    TaskSpec,
    WaitSpec,
)
from definitions.graph_json import UnknownGraphFormat, graph_from_json, graph_to_json
from orbit import jsontext
from orbit.clock import SECOND
from pulse import limits as pulse_limits

HEAD = """\
orbit: weave/1
workflow: sample
version: 1
input:
  type: object
  required: [amount, name]
  properties:
    amount: {type: number}
    name: {type: string}
    note: {type: string}
    tags: {type: array, items: {type: string}}
    any: {}
defaults: {queue: work}
"""
HEAD_LINES = HEAD.count("\n")


def compile_steps(steps: str, rest: str = "") -> Compiled:
    indented = "".join(f"  {line}\n" for line in steps.strip("\n").splitlines())
    return compile_definition(f"{HEAD}steps:\n{indented}{rest}")


def graph_of(steps: str, rest: str = "") -> Graph:
    compiled = compile_steps(steps, rest)
    assert compiled.graph is not None, compiled.render()
    return compiled.graph


def codes(steps: str, rest: str = "") -> list[str]:
    return [finding.code.value for finding in compile_steps(steps, rest).findings]


def edges_of(graph: Graph) -> set[tuple[str, str, str | None]]:
    return {(graph.nodes[edge.source].id, graph.nodes[edge.target].id, edge.case) for edge in graph.edges}


ELEVEN = """\
orbit: weave/1
workflow: eleven mistakes
version: 1
input: {type: object, required: [amount], properties: {amount: {type: numbr}}}
timout: 1h
steps:
  - id: first
    task: bank.submit
    queue: q
    retry: {max_attempts: 500}
  - id: first
    wait: {for: 10}
  - id: choose
    branch:
      - when: input.amount >
        steps: []
  - id: third
    task: bank.query@1
    queue: q
    input: {ref: "id-${ steps.frist.output.ref }"}
    on_error: [{match: "*"}]
"""


def test_eleven_mistakes_get_eleven_findings_with_places_and_hints() -> None:
    findings = compile_definition(ELEVEN).findings
    assert [(finding.code.value, finding.line, finding.column) for finding in findings] == [
        ("BAD_NAME", 2, 11),
        ("SCHEMA_INVALID", 4, 71),
        ("UNKNOWN_KEY", 5, 1),
        ("BAD_TASK_TYPE", 8, 11),
        ("OUT_OF_RANGE", 10, 27),
        ("DUPLICATE_ID", 11, 9),
        ("BAD_DURATION", 12, 17),
        ("MISSING_ELSE", 14, 5),
        ("EXPRESSION_SYNTAX", 15, 29),
        ("UNKNOWN_STEP", 20, 31),
        ("MISSING_KEY", 21, 16),
    ]
    hints = {finding.code.value: finding.hint for finding in findings}
    assert hints["UNKNOWN_KEY"] == "did you mean `timeout`?"
    assert hints["UNKNOWN_STEP"] == "did you mean `steps.first.output`?"
    assert hints["BAD_DURATION"] == "write `10s`"
    by_code = {finding.code.value: finding for finding in findings}
    found = by_code["UNKNOWN_STEP"]
    assert found.excerpt[found.caret - 1 :].startswith("frist.output")


def test_a_finding_is_written_with_its_line_and_a_caret() -> None:
    text = compile_definition(ELEVEN).render("payout.yaml")
    assert "payout.yaml:5:1: UNKNOWN_KEY: a definition has no key `timout`\n    timout: 1h\n    ^\n" in text


def test_branch_parallel_wait_and_poll_become_nodes_edges_and_joins() -> None:
    graph = graph_of("""
- id: start
  task: a.start@3
- id: route
  branch:
    - when: input.amount > 10.0
      steps: [{id: big, task: a.big@1}]
    - when: input.amount > 5.0
      steps: []
    - else: [{id: small, task: a.small@1}]
- id: both
  parallel:
    branches:
      left: [{id: l1, task: a.l@1}, {id: l2, wait: {for: 1m30s}}]
      right: [{id: r1, task: a.r@1}]
- id: ask
  poll: {task: a.ask@1, done_when: output.ok == true, every: 2s, max_rounds: 5, timeout: 1m}
""")
    assert edges_of(graph) == {
        ("start", "route", None),
        ("route", "big", "1"),
        ("route", "route.end", "2"),
        ("route", "small", "else"),
        ("big", "route.end", None),
        ("small", "route.end", None),
        ("route.end", "both", None),
        ("both", "l1", "left"),
        ("l1", "l2", None),
        ("both", "r1", "right"),
        ("l2", "both.end", None),
        ("r1", "both.end", None),
        ("both.end", "ask", None),
    }
    assert all(edge.source < edge.target for edge in graph.edges)
    nodes = {node.id: node for node in graph.nodes}
    assert nodes["route.end"].spec == JoinSpec(JoinPolicy.ALL, "route")
    assert (nodes["both"].kind, nodes["both"].spec) == (NodeKind.FORK, ForkSpec((LaneSpec("left"), LaneSpec("right"))))
    assert nodes["l2"].spec == WaitSpec(90.0)
    start, ask = nodes["start"].spec, nodes["ask"].spec
    assert isinstance(start, TaskSpec)
    assert (start.type, start.task_version, start.queue, start.priority) == ("a.start", 3, "work", 4)
    assert isinstance(ask, PollSpec)
    assert (ask.every_seconds, ask.rounds_max, ask.timeout_seconds, ask.backoff) == (2.0, 5, 60.0, 1.0)


def test_c024_a_step_behind_a_branch_is_joined_from_both_cases() -> None:
    graph = graph_of("""
- id: S
  branch:
    - when: input.name == 'x'
      steps: [{id: A, task: t.a@1}]
    - else: []
- id: M
  task: t.m@1
- id: END
  task: t.end@1
""")
    assert edges_of(graph) == {
        ("S", "A", "1"),
        ("S", "S.end", "else"),
        ("A", "S.end", None),
        ("S.end", "M", None),
        ("M", "END", None),
    }


def test_c026_an_empty_case_inside_a_parallel_branch_still_reaches_the_join() -> None:
    graph = graph_of("""
- id: fork
  parallel:
    branches:
      P: [{id: p, task: t.p@1}]
      Q:
        - id: q
          branch:
            - when: input.name == '1'
              steps: [{id: Q1, task: t.q@1}]
            - else: []
      R: [{id: r, task: t.r@1}]
- id: Z
  task: t.z@1
""")
    assert {source for source, target, _ in edges_of(graph) if target == "fork.end"} == {"p", "q.end", "r"}


def test_c029_the_output_of_a_step_that_may_be_skipped_must_be_guarded() -> None:
    step = "- {id: A, task: t.a@1, when: input.name == 'x'}\n- {id: B, task: t.b@1, input: {value: '${ %s }'}}"
    rest = "output: {rows: '${ %s }'}\n"
    bare, guarded = "steps.A.output.rows", "default(steps.A.output.rows, null)"
    assert codes(step % bare, rest % bare) == ["UNCERTAIN_REFERENCE", "UNCERTAIN_REFERENCE"]
    graph = graph_of(step % guarded, rest % guarded)
    spec = graph.nodes[1].spec
    assert isinstance(spec, TaskSpec)
    assert graph.output is not None
    assert spec.input.render({"input": {}, "steps": {}}) == {"value": None}
    assert graph.output.render({"input": {}, "steps": {}}) == {"rows": None}


def test_an_output_schema_gives_its_types_to_later_steps() -> None:
    steps = """
- id: a
  task: t.a@1
  output: {type: object, required: [risk], additionalProperties: false, properties: {risk: {type: number}}}
- id: b
  branch:
    - {when: steps.a.output.risk, steps: []}
    - {when: steps.a.output.rsik > 1, steps: []}
    - else: []
"""
    compiled = compile_steps(steps)
    assert [finding.code for finding in compiled.findings] == [Code.CONDITION_NOT_BOOLEAN, Code.UNKNOWN_FIELD]
    assert compiled.findings[1].hint == "did you mean `risk`?"


def test_top_level_keys_of_the_full_language_are_refused() -> None:
    assert codes("- {id: a, task: t.a@1}", "labels: {a: b}\n") == ["UNKNOWN_KEY"]


def test_bounds_follow_the_structure() -> None:
    graph = graph_of("""
- id: a
  task: t.a@1
  start_within: 10s
  attempt_timeout: 5s
  timeout: 30s
  retry: {max_attempts: 2}
- id: p
  parallel:
    branches:
      x: [{id: b, task: t.b@1, start_within: 10s, attempt_timeout: 5s, timeout: 60s}]
      y: [{id: w, wait: {for: 2m}}]
- id: c
  branch:
    - when: input.name == 'x'
      steps:
        - id: q
          poll: {task: t.q@1, done_when: output.ok, every: 10s, max_rounds: 4, timeout: 1h, start_within: 1s,
            attempt_timeout: 1s, retry: {max_attempts: 1}}
    - else: [{id: d, task: t.d@1, start_within: 1s, attempt_timeout: 1s, timeout: 2s}]
""")
    bounds = graph.bounds
    assert bounds.tasks == 1 + 1 + 4
    assert bounds.attempts == (2 + 2 + 100) + (3 + 2 + 100) + 4 * (1 + 2 + 100)  # own, lost, put off
    assert bounds.rounds == 4
    assert bounds.concurrent_tasks == 1
    poll_task = 1 + (1 + 3 * 1) + 1  # wait for room, its own time-out, the attempt under way
    assert bounds.active_seconds == (10 + 30 + 5) + 120 + (4 * poll_task + 3 * 10)
    assert graph.timeout_seconds == bounds.active_seconds + limits.TIMEOUT_ALLOWANCE_SECONDS


def test_parallel_branches_add_their_tasks_at_once() -> None:
    branches = "".join(f"      b{number}: [{{id: t{number}, task: t.a@1}}]\n" for number in range(7))
    assert graph_of(f"- id: p\n  parallel:\n    branches:\n{branches}").bounds.concurrent_tasks == 7


def test_no_publication_over_the_bounds() -> None:
    poll = "poll: {task: t.q@1, done_when: output.ok, every: 1s, max_rounds: 10000, timeout: 1d}"
    steps = "\n".join(f"- {{id: q{number}, {poll}}}" for number in range(11))
    assert codes(steps) == ["BOUND_EXCEEDED"]
    long = "\n".join(f"- {{id: w{number}, wait: {{for: 300d}}}}" for number in range(2))
    assert codes(long) == ["BOUND_EXCEEDED"]
    assert codes(long, "timeout: 366d\n") == []


def test_the_step_overrides_defaults_overrides_the_platform() -> None:
    graph = graph_of("""
- {id: a, task: t.a@1, queue: own, priority: 9, retry: {backoff: 10m}, timeout: 20s}
""")
    spec = graph.nodes[0].spec
    assert isinstance(spec, TaskSpec)
    assert (spec.queue, spec.priority) == ("own", 9)
    assert (spec.retry.attempts_max, spec.retry.backoff_seconds, spec.retry.backoff_seconds_max) == (3, 600.0, 600.0)
    assert (spec.timeout_seconds, spec.attempt_timeout_seconds, spec.start_within_seconds) == (20.0, 20.0, 20.0)


def test_the_graph_survives_its_json_form() -> None:
    poll = "{task: t.a@1, input: {n: '${ round }'}, done_when: output.x > round, every: 1s, max_rounds: 3, timeout: 1m}"
    graph = graph_of(f"- id: a\n  poll: {poll}", "output: {a: 'x ${ input.name }', b: [1, 2.0, null]}\n")
    text = jsontext.dumps(graph_to_json(graph))
    again = graph_from_json(jsontext.parse(text))
    assert again == graph
    assert jsontext.dumps(graph_to_json(again)) == text
    assert json.loads(text)["format"] == 1


def test_a_newer_graph_format_is_told_from_a_broken_one() -> None:
    document: dict[str, Any] = graph_to_json(graph_of("- {id: a, task: t.a@1}"))
    with pytest.raises(UnknownGraphFormat):
        graph_from_json({**document, "format": 1000})


def test_run_time_errors_name_the_place_in_the_file() -> None:
    folded = ">-\n      one ${ input.name }\n      two ${ steps.a.output.x }\n"
    steps = f"- {{id: a, task: t.a@1}}\n- id: b\n  set:\n    v: {folded}"
    spec = graph_from_json(graph_to_json(graph_of(steps))).nodes[1].spec
    assert isinstance(spec, SetSpec)
    with pytest.raises(EvaluationError) as caught:
        spec.values.render({"input": {"name": "n"}, "steps": {"a": {"output": {}}}})
    error = caught.value
    assert (error.code, error.line, error.column) == ("NO_SUCH_FIELD", HEAD_LINES + 7, 31)


def test_bytes_that_are_not_utf8_and_files_that_are_too_large() -> None:
    compiled = compile_definition(b"orbit: weave/1\nworkflow: \xff\n")
    assert [(finding.code, finding.line, finding.column) for finding in compiled.findings] == [(Code.NOT_UTF8, 2, 11)]
    assert compile_definition(b"x" * (5 * 1024 * 1024)).findings[0].code is Code.SOURCE_TOO_LARGE
    assert compile_definition("a: \ud800").findings[0].code is Code.NOT_UTF8
    assert compile_definition("\ufeff" + HEAD + "steps: [{id: a, task: t.a@1}]\n").graph is not None


def test_the_same_text_gives_the_same_outcome() -> None:
    first, second = compile_definition(ELEVEN), compile_definition(ELEVEN.encode())
    assert first == second
    assert len(first.digest) == 32


def large(steps: int) -> str:
    body = "\n".join(
        f"- {{id: s{number}, task: t.a{number}@1, when: 'input.amount > {number}.5 && input.name != \"n{number}\"', "
        f"input: {{a: '${{ input.name }}-{number}', b: '${{ default(steps.s{number - 1}.output.ref, {number}) }}'}}}}"
        if number
        else "- {id: s0, task: t.a@1}"
        for number in range(steps)
    )
    return f"{HEAD}timeout: 10d\nsteps:\n{body}\n"


def _seconds_of(text: str) -> float:
    started = time.process_time()
    compile_definition(text)
    return time.process_time() - started


@pytest.mark.parametrize(("steps", "seconds"), [(500, 0.6), (1_000, 1.3)])
def test_a_large_definition_compiles_in_time(steps: int, seconds: float) -> None:
    # Idle, 500 steps take 0.12 s of processor time and 1 000 take 0.3 s; the rest is room for a busy machine.
    text = large(steps)
    compiled = compile_definition(text)
    assert min(_seconds_of(text) for _ in range(2)) < seconds
    assert compiled.graph is not None, compiled.render()
    assert len(compiled.graph.nodes) == steps


def test_more_steps_than_allowed_are_refused() -> None:
    assert [finding.code for finding in compile_definition(large(1_001)).findings] == [Code.OUT_OF_RANGE]


def _loading_seconds_of(document: Any) -> float:
    started = time.process_time()
    graph_from_json(document)
    return time.process_time() - started


def test_loading_a_large_graph_compiles_nothing_yet() -> None:
    text = large(500)
    compiled = compile_definition(text)
    assert compiled.graph is not None
    document = graph_to_json(compiled.graph)
    loaded = graph_from_json(document)
    assert loaded == compiled.graph
    # A tenth of compiling it in fact; compared, since a busy machine slows both.
    assert min(_loading_seconds_of(document) for _ in range(3)) < _seconds_of(text) / 3
    spec = loaded.nodes[7].spec
    assert isinstance(spec, TaskSpec)
    assert spec.input.step_references == {"s6"}
    scope = {"input": {"name": "Ann", "amount": 9}, "steps": {"s6": {"output": {"ref": "r"}}}}
    assert [spec.input.render(scope) for _ in range(2)] == [{"a": "Ann-7", "b": "r"}] * 2
    condition = loaded.nodes[7].when
    assert condition is not None
    assert [condition.evaluate(scope) for _ in range(2)] == [True, True]


def test_a_task_may_be_what_pulse_accepts() -> None:
    second = SECOND
    assert limits.ATTEMPTS_MAX == pulse_limits.ATTEMPTS_MAX
    assert limits.ATTEMPTS_DEFAULT == pulse_limits.ATTEMPTS_DEFAULT
    assert limits.ATTEMPTS_LOST_MAX == pulse_limits.LOST_MAX
    assert limits.DEFERRALS_MAX == pulse_limits.DEFERRALS_MAX
    assert limits.ERROR_BYTES_MAX == pulse_limits.ERROR_BYTES_MAX
    assert limits.PROGRESS_BYTES_MAX == pulse_limits.PROGRESS_BYTES_MAX
    assert limits.PRIORITY_MAX == pulse_limits.PRIORITY_MAX
    assert limits.PRIORITY_DEFAULT == pulse_limits.PRIORITY_DEFAULT
    assert limits.BACKOFF_SECONDS_MIN * second == pulse_limits.BACKOFF_MICROS_MIN
    assert limits.BACKOFF_SECONDS_MAX * second <= pulse_limits.BACKOFF_MICROS_CAP_MAX
    assert limits.ATTEMPT_TIMEOUT_SECONDS_MAX * second <= pulse_limits.ATTEMPT_TIMEOUT_MICROS_MAX
    assert limits.SPAN_SECONDS_MAX * second <= pulse_limits.DEADLINE_MICROS_MAX
    assert limits.VALUE_BYTES_MAX == pulse_limits.PARAMS_BYTES_MAX == pulse_limits.OUTPUT_BYTES_MAX


def test_the_example_is_sound_and_ends_soon() -> None:
    compiled = compile_definition((Path(__file__).parents[3] / "examples" / "payout" / "payout.yaml").read_bytes())
    assert compiled.graph is not None, compiled.render()
    assert {node.kind for node in compiled.graph.nodes} >= {
        NodeKind.TASK,
        NodeKind.BRANCH,
        NodeKind.FORK,
        NodeKind.JOIN,
        NodeKind.WAIT,
        NodeKind.POLL,
    }
    queues = {node.spec.queue for node in compiled.graph.nodes if isinstance(node.spec, TaskSpec)}
    assert queues == {"payments"}


def test_a_step_without_a_kind_is_found_whatever_its_other_keys_resemble() -> None:
    """`retry` resembles `return`, but it is a key of its own and excuses nothing."""
    assert codes("- id: a\n  queue: q\n  retry: {max_attempts: 2}") == ["STEP_KIND_MISSING"]
    assert codes("- id: a\n  returns: 1") == ["UNKNOWN_KEY"]
