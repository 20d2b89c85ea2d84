"""`orbit check`, and the graph as Mermaid."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from definitions.commands import check
from definitions.compiler import compile_definition
from definitions.mermaid import graph_to_mermaid

GOOD = "orbit: weave/1\nworkflow: w\nversion: 1\nsteps:\n  - {id: pause, wait: {for: 90s}}\n"
BAD = GOOD.replace("90s", "90")


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(GOOD)
    bad.write_text(BAD)
    return str(good), str(bad)


def test_a_sound_definition_is_told_with_its_bounds(files: tuple[str, str]) -> None:
    result = CliRunner().invoke(check, [files[0]])
    assert result.exit_code == 0
    assert "w version 1 is sound: at most 0 tasks" in result.output
    assert "1m30s of active time" in result.output


def test_findings_are_printed_for_people(files: tuple[str, str]) -> None:
    result = CliRunner().invoke(check, list(files))
    assert result.exit_code == 1
    assert f"{files[1]}:5:29: BAD_DURATION: " in result.output
    assert "                                ^" in result.output
    assert "hint: write `90s`" in result.output


def test_findings_are_printed_for_programs(files: tuple[str, str]) -> None:
    result = CliRunner().invoke(check, ["--format", "json", *files])
    assert result.exit_code == 1
    report = json.loads(result.output)["findings"]
    assert report[files[0]] == []
    assert [(finding["code"], finding["line"], finding["column"]) for finding in report[files[1]]] == [
        ("BAD_DURATION", 5, 29)
    ]


def test_findings_are_printed_for_github(files: tuple[str, str]) -> None:
    result = CliRunner().invoke(check, ["--format", "github", files[1]])
    assert result.output.startswith(f"::error file={files[1]},line=5,col=29,title=BAD_DURATION::")


def test_mermaid_shows_kinds_conditions_and_bounds_and_escapes_texts() -> None:
    text = (
        "orbit: weave/1\nworkflow: w\nversion: 1\ndefaults: {queue: q}\nsteps:\n"
        "  - id: choose\n    branch:\n"
        "      - when: input.name == 'a\"]; click x'\n        steps: [{id: pay, task: bank.pay@2}]\n"
        "      - else: []\n"
        "  - id: ask\n    poll: {task: bank.ask@1, done_when: output.ok, every: 30s, max_rounds: 9, timeout: 1h}\n"
    )
    graph = compile_definition(text).graph
    assert graph is not None
    assert graph_to_mermaid(graph).splitlines() == [
        "flowchart TD",
        '  n0{"choose"}',
        '  n1["pay<br/>bank.pay@2"]',
        '  n2(("join"))',
        '  n3[["ask<br/>bank.ask@1 every 30s, at most 9"]]',
        '  n0 -->|"input.name == #39;a#34;]#59; click x#39;"| n1',
        "  n1 --> n2",
        '  n0 -->|"else"| n2',
        "  n2 --> n3",
    ]
