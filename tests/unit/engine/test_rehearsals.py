"""Scripts and test files: what is wrong with them is found at its place, faults do what they say, coverage counts."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from definitions.compiler import compile_definition
from engine.commands import simulate
from engine.commands import test as run_tests
from engine.coverage import covered_by, items_of
from engine.flow import Flow
from engine.rehearsal import Run, differences, read_rehearsals, read_script, run

DEFINITION = """\
orbit: weave/1
workflow: sample
version: 1
on_failure: fail
input: {type: object, required: [n], properties: {n: {type: integer}, kind: {type: string, default: plain}}}
defaults: {queue: q, start_within: 1m, timeout: 1h}
steps:
  - {id: first, task: a.b@1, input: {kind: "${ input.kind }"}}
  - id: choose
    branch:
      - when: input.n > 5
        steps: [{id: ask, poll: {task: a.c@1, done_when: output.ok, every: 10s, max_rounds: 3, timeout: 1h}}]
      - else: []
  - {id: last, when: input.n > 1, wait: {for: 1h}}
output: {kind: "${ input.kind }"}
"""
ANSWERS = "answers: {first: {output: {}}, ask: {output: {ok: true}}}\n"


def flow_of(text: str = DEFINITION) -> Flow:
    compiled = compile_definition(text)
    assert compiled.graph is not None, compiled.render()
    return Flow(compiled.graph)


def played(script: str) -> Run:
    flow = flow_of()
    scenario, findings = read_script(script.encode(), flow)
    assert scenario is not None, [finding.render() for finding in findings]
    return run(scenario, flow)


def history(made: Run, step: str) -> list[str]:
    assert made.outcomes is not None
    return [line.entry.kind for line in made.outcomes.trace if line.entry.step == step]


def state_of(made: Run) -> str:
    assert made.outcomes is not None
    return made.outcomes.instance.state.value


@pytest.mark.parametrize(
    ("script", "code", "place"),
    [
        ("input: {n: 1}\nanswer: {}\n", "UNKNOWN_KEY", (2, 1)),
        ("input: {n: one}\n", "BAD_VALUE", (1, 8)),
        ("answers: {}\n", "BAD_VALUE", (1, 1)),
        ("input: {n: 1}\nanswers: {frist: {}}\n", "UNKNOWN_STEP", (2, 11)),
        ("input: {n: 1}\nanswers: {choose: {}}\n", "UNKNOWN_STEP", (2, 11)),
        ("input: {n: 1}\nanswers: {first: 7}\n", "WRONG_TYPE", (2, 18)),
        ("input: {n: 1}\nanswers: {first: []}\n", "BAD_VALUE", (2, 18)),
        ("input: {n: 1}\nanswers: {first: {output: 1, fail: {code: A}}}\n", "CONTRADICTION", (2, 30)),
        ("input: {n: 1}\nanswers: {first: {refused: QUEUE_FULL, after: 1s}}\n", "CONTRADICTION", (2, 40)),
        ("input: {n: 1}\nanswers: {first: {fail: {message: no}}}\n", "MISSING_KEY", (2, 25)),
        ("input: {n: 1}\nanswers: {first: {after: 5}}\n", "BAD_DURATION", (2, 26)),
        ("input: {n: 1}\nanswers: {first: {late: 1}}\n", "WRONG_TYPE", (2, 25)),
        ("input: {n: 1}\ncancel: {reason: x}\n", "MISSING_KEY", (2, 9)),
        ("input: {n: 1}\npauses: [{for: 1m}]\n", "MISSING_KEY", (2, 10)),
        ("input: {n: 1}\npauses: [5m]\n", "WRONG_TYPE", (2, 10)),
        ("- 1\n", "WRONG_TYPE", (1, 1)),
        ("input: {n: 1}\ninput: {n: 1}\n", "YAML_DUPLICATE_KEY", (2, 1)),
    ],
)
def test_mistakes_of_a_script_are_found_at_their_place(script: str, code: str, place: tuple[int, int]) -> None:
    scenario, findings = read_script(script.encode(), flow_of())
    assert scenario is None
    assert [(finding.code, (finding.line, finding.column)) for finding in findings] == [(code, place)]


def test_a_script_that_is_no_text_or_too_large_is_refused() -> None:
    for text, code in ((b"\xff", "NOT_UTF8"), (b"#" * 300_000, "SOURCE_TOO_LARGE"), (b"", "EMPTY_DOCUMENT")):
        scenario, findings = read_script(text, flow_of())
        assert (scenario, [finding.code for finding in findings]) == (None, [code])


def test_defaults_of_the_input_are_filled_in() -> None:
    made = played("input: {n: 1}\n" + ANSWERS)
    assert made.outcomes is not None
    assert made.outcomes.output == {"kind": "plain"}


def test_virtual_time_takes_no_time_and_counts_exactly() -> None:
    made = played("input: {n: 9}\nanswers: {first: {after: 2s}, ask: [{output: {ok: false}}, {output: {ok: true}}]}\n")
    assert (state_of(made), made.tasks) == ("SUCCEEDED", {"first": 1, "ask": 2})
    assert made.elapsed_seconds == 2 + 1 + 10 + 1 + 3600


def test_the_last_answer_goes_on_answering() -> None:
    made = played("input: {n: 9}\nanswers: {first: {}, ask: {output: {ok: false}}}\n")
    assert (state_of(made), made.tasks["ask"]) == ("FAILED", 3)


def test_a_submission_without_an_answer_fails_the_run() -> None:
    made = played("input: {n: 9}\nanswers: {first: {}}\n")
    assert (made.outcomes, made.missing) == (None, "ask")


def test_a_lost_worker_takes_its_time() -> None:
    assert played("input: {n: 1}\nanswers: {first: {lost: 30s, after: 2s}}\n").elapsed_seconds == 32


def test_a_review_stands_between_a_task_and_its_end() -> None:
    made = played("input: {n: 1}\nanswers: {first: {review: 2h}}\n")
    assert history(made, "first") == ["step.submitted", "step.needs_review", "step.review_closed", "step.succeeded"]
    assert state_of(made) == "SUCCEEDED"
    assert made.elapsed_seconds >= 7200


def test_a_duplicate_result_changes_nothing() -> None:
    made = played("input: {n: 2}\nanswers: {first: {duplicate: 5s}}\n")
    assert history(made, "first") == ["step.submitted", "step.succeeded", "stimulus.superseded"]
    assert (state_of(made), made.elapsed_seconds) == ("SUCCEEDED", 3601)


def test_a_late_result_keeps_a_cancelled_instance_until_it_comes() -> None:
    script = "input: {n: 1}\nanswers: {first: {after: 50s%s}}\ncancel: {after: 10s}\n"
    late, obedient = played(script % ", late: true"), played(script % "")
    assert (state_of(late), late.elapsed_seconds, history(late, "first")[-1]) == ("CANCELLED", 50, "step.succeeded")
    assert (state_of(obedient), obedient.elapsed_seconds) == ("CANCELLED", 10)


def test_refusals_that_pass_are_tried_again_and_others_fail_the_step() -> None:
    full = played("input: {n: 1}\nanswers: {first: [{refused: QUEUE_FULL}, {refused: QUEUE_FULL}, {}]}\n")
    assert (state_of(full), full.tasks) == ("SUCCEEDED", {"first": 1})
    forbidden = played("input: {n: 1}\nanswers: {first: {refused: FORBIDDEN}}\n")
    assert (state_of(forbidden), forbidden.tasks) == ("FAILED", {})


@pytest.mark.parametrize(
    ("expect", "differs"),
    [
        ("state: SUCCEEDED", None),
        ("state: FAILED", 'state: expected "FAILED", got "SUCCEEDED"'),
        ("error: SOME", 'error: expected "SOME", got null'),
        ("output: {kind: plain}", None),
        ("output: null", 'output: expected null, got {"kind":"plain"}'),
        ("path: [first, choose, ask, last]", None),
        ("path: [first]", 'path: expected ["first"], got ["first","choose","ask","last"]'),
        ("steps: {ask: SUCCEEDED, last: SUCCEEDED}", None),
        ("steps: {ask: SKIPPED}", 'step ask: expected "SKIPPED", got "SUCCEEDED"'),
        ('cases: {choose: "1"}', None),
        ("cases: {choose: else}", 'case of choose: expected "else", got "1"'),
        ("tasks: 2", None),
        ("tasks: 3", "tasks: expected 3, got 2"),
        ("tasks: {first: 1, ask: 2}", "tasks of ask: expected 2, got 1"),
        ("time: 1h2s", None),
        ("time: 2h", "time: expected 2h, got 1h2s"),
        ("time: {min: 1h, max: 2h}", None),
        ("time: {max: 1h}", "time: expected 0s to 1h, got 1h2s"),
    ],
)
def test_each_expectation_is_compared(expect: str, differs: str | None) -> None:
    text = f"workflow: x\ntests:\n  - name: t\n    input: {{n: 9}}\n    {ANSWERS}    expect: {{{expect}}}\n"
    flow = flow_of()
    (rehearsal,), findings = read_rehearsals(text.encode(), flow)
    assert findings == ()
    assert differences(rehearsal.expected, run(rehearsal.scenario, flow)) == ([] if differs is None else [differs])


def test_coverage_counts_steps_cases_skips_and_exhausted_polls() -> None:
    flow = flow_of()
    assert sorted(map(str, items_of(flow.graph))) == [
        "case 1 of choose was taken",
        "case else of choose was taken",
        "poll ask was exhausted",
        "step ask has run",
        "step choose has run",
        "step first has run",
        "step last has run",
        "step last was skipped by its `when`",
    ]
    made = played("input: {n: 1}\n" + ANSWERS)
    assert made.outcomes is not None
    assert sorted(map(str, covered_by(flow.graph, made.outcomes.trace))) == [
        "case else of choose was taken",
        "step choose has run",
        "step first has run",
        "step last was skipped by its `when`",
    ]


def test_the_command_simulates(tmp_path: Path) -> None:
    definition, script = tmp_path / "sample.yaml", tmp_path / "script.yaml"
    definition.write_text(DEFINITION)
    script.write_text("input: {n: 2}\n" + ANSWERS)
    arguments = [str(definition), "--script", str(script)]
    shown = CliRunner().invoke(simulate, arguments)
    assert shown.exit_code == 0, shown.output
    assert "       1.000  step.succeeded           first\n" in shown.output
    assert shown.output.endswith('SUCCEEDED after 1h1s with 1 tasks\noutput: {"kind":"plain"}\n')
    report = json.loads(CliRunner().invoke(simulate, [*arguments, "--json"]).output)
    assert (report["state"], report["elapsed_seconds"], report["tasks"]) == ("SUCCEEDED", 3601.0, {"first": 1})
    script.write_text("input: {n: 2}\n")
    missing = CliRunner().invoke(simulate, arguments)
    assert (missing.exit_code, "no answer for step first" in missing.output) == (1, True)
    script.write_text("input: {}\n")
    assert f"{script}:1:8: BAD_VALUE" in CliRunner().invoke(simulate, arguments).output


def test_the_command_tests_and_demands_coverage(tmp_path: Path) -> None:
    (tmp_path / "sample.yaml").write_text(DEFINITION)
    file = tmp_path / "sample.test.yaml"
    good = f"workflow: sample.yaml\ntests:\n  - name: t\n    input: {{n: 9}}\n    {ANSWERS}    expect: {{tasks: 2}}\n"
    file.write_text(good)
    passed = CliRunner().invoke(run_tests, [str(tmp_path)])
    assert passed.exit_code == 0, passed.output
    assert "5 of 8 covered (62 %)" in passed.output
    assert "not covered: poll ask was exhausted" in passed.output
    too_little = CliRunner().invoke(run_tests, [str(file), "--min-coverage", "63"])
    assert (too_little.exit_code, "covered less than 63 %" in too_little.output) == (1, True)
    file.write_text(good.replace("tasks: 2", "tasks: 3"))
    failed = CliRunner().invoke(run_tests, [str(file)])
    assert failed.exit_code == 1
    assert f"FAILED {file}: t\n       tasks: expected 3, got 2\n" in failed.output
    for text, words in (
        (good.replace("sample.yaml", "other.yaml"), "there is no file"),
        (good.replace("expect", "expects"), "UNKNOWN_KEY"),
        ("tests: []\n", "MISSING_KEY"),
    ):
        file.write_text(text)
        refused = CliRunner().invoke(run_tests, [str(file)])
        assert (refused.exit_code, words in refused.output) == (1, True), refused.output
    file.unlink()
    nothing = CliRunner().invoke(run_tests, [str(tmp_path)])
    assert (nothing.exit_code, "no test was found" in nothing.output) == (1, True)


def test_a_pause_keeps_results_and_lets_waits_stand_still() -> None:
    script = "input: {n: 2}\nanswers: {first: {after: 50s}}\npauses: [{after: 10s, for: 5m}, {after: 1h%s}]\n"
    made = played(script % ", for: 10m")
    # The result came after 50 s and was kept until 310 s; the wait of an hour stood still for ten minutes.
    assert (state_of(made), made.elapsed_seconds) == ("SUCCEEDED", 310 + 3600 + 600)
    assert history(made, "first") == ["step.submitted", "step.succeeded"]
    for_ever = played(script % "")
    assert for_ever.outcomes is not None
    assert (state_of(for_ever), for_ever.outcomes.instance.control) == ("RUNNING", "PAUSED")


PARENT = """\
orbit: weave/1
workflow: parent
version: 1
on_failure: fail
defaults: {queue: q, start_within: 1m, timeout: 1h}
steps:
  - {id: first, task: a.b@1, compensate: {task: a.undo@1}}
  - {id: below, workflow: middle, input: {n: 3}, on_error: [{match: BUSY, then: continue, value: {n: 0}}]}
output: {got: "${ steps.below.output.n }"}
"""
MIDDLE = """\
orbit: weave/1
workflow: middle
version: 1
on_failure: fail
input: {type: object, required: [n], properties: {n: {type: integer}}}
defaults: {queue: q, start_within: 1m, timeout: 1h}
redact: [/output/n]
steps:
  - {id: ask, task: a.c@1, input: {n: "${ input.n }"}, compensate: {task: a.undo@1}}
  - {id: sign, wait: {signal: ok, timeout: 1h}}
  - {id: deep, workflow: leaf}
output: {n: "${ input.n }"}
"""
LEAF = """\
orbit: weave/1
workflow: leaf
version: 1
defaults: {queue: q, start_within: 1m, timeout: 1h}
steps: [{id: end, task: a.d@1}]
"""
FAMILY_TESTS = """\
workflow: parent.yaml
tests:
  - name: children run on one clock
    answers:
      first: {after: 2s}
      below:
        run:
          answers: {ask: {after: 3s}, deep: {run: {answers: {end: {after: 4s}}}}}
          signals: [{name: ok, after: 10s}]
    expect:
      state: SUCCEEDED
      output: {got: 3}
      time: 16s
      tasks: {first: 1, below: 1}
      children: {below: {state: SUCCEEDED, output: {n: 3}, time: 14s, path: [ask, sign, deep],
                         children: {deep: {state: SUCCEEDED, time: 4s, tasks: 1}}}}
  - name: an error handler takes what a child fails with
    answers: {first: {}, below: {run: {answers: {ask: {fail: {code: BUSY}}}}}}
    expect: {state: SUCCEEDED, output: {got: 0}, steps: {below: SUCCEEDED},
             children: {below: {state: FAILED, error: BUSY, path: [ask]}}}
  - name: a cancel goes down and everything is undone
    cancel: {after: 1m, compensate: true}
    answers:
      first: {}
      first.undo: {}
      below: {run: {answers: {ask: {}, ask.undo: {after: 5s}}}}
    expect: {state: CANCELLED, path: [first, below, first.undo],
             children: {below: {state: CANCELLED, path: [ask, sign, ask.undo]}}}
  - name: a child under review keeps its parent waiting
    answers: {first: {}, below: {run: {answers: {ask: {review: 1h}, deep: {}}, signals: [{name: ok}]}}}
    expect: {state: SUCCEEDED, time: {min: 1h}}
"""


@pytest.fixture
def family(tmp_path: Path) -> Path:
    for name, text in (("parent", PARENT), ("middle", MIDDLE), ("leaf", LEAF)):
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "parent.test.yaml").write_text(FAMILY_TESTS)
    return tmp_path


def test_children_run_by_their_own_definitions(family: Path) -> None:
    (family / "middle.test.yaml").write_text(
        "workflow: middle.yaml\ntests: [{name: t, input: {n: 1}, answers: {ask: {fail: {code: NO}}},"
        " expect: {state: FAILED}}]\n"
    )
    ran = CliRunner().invoke(run_tests, [str(family)])
    assert ran.exit_code == 0, ran.output
    assert "5 tests, 0 failed" in ran.output
    # What it did as a child counts: only a time-out of its wait is left.
    assert "middle.yaml: 5 of 6 covered" in ran.output
    assert "not covered: wait sign has timed out" in ran.output


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ("{run: {answers: {ask: {}}, input: {n: 1}}}", "UNKNOWN_KEY", "the step gives the child its input"),
        ("{run: {answers: {aks: {}}}}", "UNKNOWN_STEP", "did you mean `ask`?"),
        ("{run: {}, after: 1s}", "CONTRADICTION", "a child that runs takes its own time"),
        ("{run: {}, output: 1}", "CONTRADICTION", "an answer has one of"),
        ("{run: {answers: {ask: {run: {}}}}}", "BAD_VALUE", "only a child workflow runs"),
        ("{run: 7}", "WRONG_TYPE", "must be an object"),
    ],
)
def test_mistakes_in_the_script_of_a_child_are_found(family: Path, answer: str, code: str, words: str) -> None:
    script = family / "script.yaml"
    script.write_text(f"answers: {{first: {{}}, below: {answer}}}\n")
    ran = CliRunner().invoke(simulate, [str(family / "parent.yaml"), "--script", str(script)])
    assert ran.exit_code == 1
    assert f": {code}: " in ran.output
    assert words in ran.output


def test_a_missing_answer_of_a_child_is_named_with_the_way_to_it(family: Path) -> None:
    script = family / "script.yaml"
    script.write_text(
        "answers: {first: {}, below: {run: {answers: {ask: {}, deep: {run: {}}}, signals: [{name: ok}]}}}\n"
    )
    ran = CliRunner().invoke(simulate, [str(family / "parent.yaml"), "--script", str(script)])
    assert ran.exit_code == 1
    assert "there is no answer for step below/deep/end" in ran.output


def test_the_command_prints_children_in_the_order_of_all_that_happens(family: Path) -> None:
    script = family / "script.yaml"
    script.write_text("answers: {first: {}, below: {run: {answers: {ask: {}, deep: {}}, signals: [{name: ok}]}}}\n")
    command = [str(family / "parent.yaml"), "--script", str(script)]
    lines = CliRunner().invoke(simulate, command).output.splitlines()
    kinds = [" ".join(line.split()[1:3]) for line in lines]
    assert kinds.index("step.succeeded below/ask") < kinds.index("step.succeeded below/deep")
    assert kinds.index("instance.succeeded below/") < kinds.index("step.succeeded below")
    assert lines[-1] == 'output: {"got":"[redacted]"}'  # as on a node: the child masks it
    report = json.loads(CliRunner().invoke(simulate, [*command, "--json"]).output)
    (child,) = report["children"]
    assert (child["step"], child["workflow"], child["state"], child["output"]) == (
        "below", "middle", "SUCCEEDED", {"n": "[redacted]"}
    )  # fmt: skip
    explored = CliRunner().invoke(simulate, [*command, "--explore", "50"])
    assert "1 runs, all orders" in explored.output


def test_a_late_success_is_told_before_and_after_the_end() -> None:
    made = played("input: {n: 1}\nanswers: {first: {fail: {code: GONE}, late_success: 5m}}\n")
    assert state_of(made) == "FAILED"
    assert history(made, "first") == ["step.submitted", "step.failed", "step.effect_after_end"]
    assert made.outcomes is not None
    assert made.outcomes.trace[-1].at_seconds == 301
    assert made.elapsed_seconds == 1
