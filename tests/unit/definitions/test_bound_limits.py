"""The limits of what one instance may use: who is named, where, and what `orbit check` takes for them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from definitions.bound_limits import CEILINGS, DEFAULTS, BoundLimits, limits_from_json, limits_of
from definitions.children import Child, ChildName, child_of
from definitions.commands import check
from definitions.compiler import compile_definition
from definitions.findings import Finding

HEAD = "orbit: weave/1\nworkflow: w\nversion: 1\ndefaults: {queue: q}\n"
POLL = "poll: {task: t.q@1, done_when: output.ok, every: 1s, max_rounds: 10000, timeout: 1d}"
NESTED = f"""\
{HEAD}steps:
  - {{id: before, task: t.a@1}}
  - id: both
    parallel:
      branches:
        a: [{{id: ask, {POLL}}}]
        b: [{{id: pay, task: t.a@1}}]
"""


def found(text: str, allowed: BoundLimits, children: dict[ChildName, Child] | None = None) -> Finding | None:
    compiled = compile_definition(text, children or {}, allowed=allowed)
    assert {finding.code for finding in compiled.findings} <= {"BOUND_EXCEEDED"}
    return compiled.findings[0] if compiled.findings else None


def test_the_innermost_step_that_passes_a_limit_alone_is_pointed_at() -> None:
    finding = found(NESTED, limits_of({"max_tasks": 5_000}))
    assert finding is not None
    assert (finding.line, finding.excerpt[finding.caret - 1 :][:12]) == (10, "{id: ask, po")
    assert finding.message == "one instance could use 10002 tasks (`max_tasks` of the namespace is 5000)"
    assert finding.hint is not None
    assert finding.hint.startswith("the step `ask` alone passes a limit: ")
    assert found(NESTED, limits_of({"max_tasks": 10_002})) is None


def test_where_only_the_sum_passes_the_whole_is_pointed_at() -> None:
    finding = found(NESTED, limits_of({"max_tasks": 10_001, "max_concurrent_tasks": 1}))
    assert finding is not None
    assert finding.line == 1
    assert "2 tasks at once (`max_concurrent_tasks` of the namespace is 1)" in finding.message


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"max_attempts": 100}, "attempts (`max_attempts` of the namespace is 100)"),
        ({"max_rounds": 9_999}, "10000 rounds (`max_rounds` of the namespace is 9999)"),
        ({"max_stored_bytes": 1_000}, "stored bytes (`max_stored_bytes` of the namespace is 1000)"),
        ({"max_active_seconds": 60}, "of active time (`max_active_seconds` of the namespace is 1m)"),
    ],
)
def test_each_bound_has_its_limit(limit: dict[str, int], said: str) -> None:
    finding = found(NESTED, limits_of(limit))
    assert finding is not None
    assert finding.message.endswith(said)


def test_a_default_and_a_ceiling_are_told_from_a_namespaces_own() -> None:
    polls = HEAD + "steps:\n" + "".join(f"  - {{id: q{number}, {POLL}}}\n" for number in range(101))
    default = found(polls, DEFAULTS)
    assert default is not None
    assert "1010000 tasks (the default `max_tasks` is 100000)" in default.message
    ceiling = found(polls, CEILINGS)
    assert ceiling is not None
    assert "1010000 tasks (no namespace may allow more than 1000000)" in ceiling.message
    assert found(polls.replace(f"  - {{id: q100, {POLL}}}\n", ""), CEILINGS) is None


def test_the_active_time_that_counts_is_what_the_timeout_ends() -> None:
    text = HEAD + "TIMEOUT\nsteps:\n  - {id: p, wait: {for: 2h}, compensate: {task: t.a@1}}\n"
    assert found(text.replace("TIMEOUT", ""), limits_of({"max_active_seconds": 7_200})) is None
    finding = found(text.replace("TIMEOUT", "timeout: 90m"), limits_of({"max_active_seconds": 3_600}))
    assert finding is not None
    assert "1h30m of active time" in finding.message
    assert found(text.replace("TIMEOUT", "timeout: 1h"), limits_of({"max_active_seconds": 3_600})) is None


def test_what_a_child_can_use_counts_for_its_parent() -> None:
    inner = compile_definition(HEAD.replace("workflow: w", "workflow: inner") + f"steps: [{{id: q, {POLL}}}]\n").graph
    assert inner is not None
    children = {ChildName("inner"): child_of(inner)}
    parent = HEAD + "steps:\n  - {id: own, task: t.a@1}\n  - {id: c, workflow: inner}\n"
    assert found(parent, limits_of({"max_tasks": 10_001, "max_rounds": 10_000}), children) is None
    finding = found(parent, limits_of({"max_tasks": 9_999}), children)
    assert finding is not None
    assert (finding.line, finding.message.split(" (")[0]) == (7, "one instance could use 10001 tasks")
    assert finding.hint is not None
    assert "the step `c` alone" in finding.hint


def test_check_takes_the_limits_that_a_namespace_shows(tmp_path: Path) -> None:
    definition, limits = tmp_path / "w.yaml", tmp_path / "limits.json"
    definition.write_text(NESTED)
    shown = {"max_running": None, "bounds": DEFAULTS.values() | {"max_tasks": 5_000}, "bounds_set": ["max_tasks"]}
    limits.write_text(json.dumps(shown))
    assert CliRunner().invoke(check, [str(definition)]).exit_code == 0
    result = CliRunner().invoke(check, [str(definition), "--limits", str(limits)])
    assert result.exit_code == 1
    assert "10:13: BOUND_EXCEEDED" in result.output
    assert "`max_tasks` of the namespace is 5000" in result.output
    limits.write_text('{"bounds": {"max_taks": 1}}')
    refused = CliRunner().invoke(check, [str(definition), "--limits", str(limits)])
    assert (refused.exit_code, "did you mean `max_tasks`?" in refused.output) == (2, True)
    assert CliRunner().invoke(check, [str(definition), "--limits", str(tmp_path / "none")]).exit_code == 2


@pytest.mark.parametrize(
    "shown", [[], {}, {"bounds": {"max_tasks": "1"}}, {"bounds": {"max_tasks": True}}, {"bounds": {"max_tasks": 0}},
              {"bounds": {"max_tasks": 1_000_001}}]
)  # fmt: skip
def test_what_no_namespace_shows_is_refused(shown: object) -> None:
    with pytest.raises(ValueError, match=r"max_tasks|bounds|object"):
        limits_from_json(shown)


def test_limits_written_by_hand_are_all_the_namespaces_own() -> None:
    assert limits_from_json({"bounds": {"max_tasks": 7}}) == limits_of({"max_tasks": 7})
