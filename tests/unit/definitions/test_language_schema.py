"""The schema for editors says of a definition's form what the compiler says."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from definitions.codes import Code
from definitions.commands import schema as schema_command
from definitions.compiler import compile_definition
from definitions.language_schema import language_schema
from orbit.jsontext import dumps

SCHEMA = language_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
EXAMPLES = sorted(
    path for path in (Path(__file__).parents[3] / "examples").rglob("*.yaml") if not path.name.endswith(".test.yaml")
)

# What a mistake of form is called by the compiler; of the others the schema knows nothing.
OF_FORM = {
    Code.UNKNOWN_KEY,
    Code.MISSING_KEY,
    Code.WRONG_TYPE,
    Code.BAD_VALUE,
    Code.BAD_NAME,
    Code.BAD_TASK_TYPE,
    Code.BAD_DURATION,
    Code.STEP_KIND_MISSING,
    Code.STEP_KIND_AMBIGUOUS,
    Code.EMPTY_STEPS,
    Code.MISSING_ELSE,
}

# Every key of the language, as JSON, which is YAML too.
TASK = {
    "queue": "q",
    "start_within": "1h",
    "attempt_timeout": "10s",
    "priority": 4,
    "retry": {"max_attempts": 4, "backoff": "2s", "max_backoff": "1m"},
    "task": "a.b@1",
    "input": {"name": "${ input.name }"},
    "output": {"type": "object"},
}
UNDO = {key: value for key, value in TASK.items() if key != "output"}
HANDLERS = [
    {"match": "RETRYABLE", "then": "retry", "max": 2, "backoff": "1s"},
    {"match": "E_1", "then": "continue", "value": {"code": "${ error.code }"}},
    {"match": "E_2", "steps": [{"id": "h1", "wait": {"for": "1s"}}]},
    {"match": "*", "then": "fail"},
]
WHOLE: dict[str, Any] = {
    "orbit": "weave/1",
    "workflow": "whole",
    "version": 1,
    "title": "Every key once",
    "input": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
    "timeout": "3d",
    "on_failure": "hold",
    "defaults": {"queue": "d", "timeout": "2h"},
    "steps": [
        {
            "id": "a",
            "title": "A task",
            "when": 'input.name == "x"',
            "timeout": "1h",
            "on_error": HANDLERS,
            "compensate": UNDO,
            **TASK,
        },
        {
            "id": "b",
            "branch": [
                {"when": 'input.name == "y"', "steps": [{"id": "b1", "wait": {"for": "1s"}}]},
                {"when": True, "steps": []},
                {"else": [{"id": "b2", "set": {"x": 1}}]},
            ],
        },
        {"id": "c", "parallel": {"join": "all", "branches": {"one": [{"id": "c1", "task": "a.b@1"}]}}},
        {
            "id": "d",
            "poll": {
                **TASK,
                "done_when": "output.state == 1",
                "fail_when": "output.state == 2",
                "every": "1s",
                "backoff": 2,
                "max_every": "5s",
                "max_rounds": 9,
                "timeout": "1h",
                "on_round_error": "continue",
            },
        },
        {"id": "u", "wait": {"until": "input.name", "timeout": "1h", "on_timeout": "continue"}},
        {"id": "e", "when": "false", "fail": {"code": "BAD", "message": "no"}},
        {"id": "f", "return": {"x": "${ input.name }"}},
    ],
}


def paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Name every key and item, but nothing inside schemas and templates, whose form is free."""
    if path:
        yield path
    if path and path[-1] in {"input", "output", "set", "return"}:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from paths(item, (*path, index))


def changed(path: tuple[str | int, ...], change: str, value: Any = None) -> Any:
    whole = copy.deepcopy(WHOLE)
    holder: Any = whole
    for part in path[:-1]:
        holder = holder[part]
    if change == "removed":
        del holder[path[-1]]
    elif change == "misspelt":
        holder[f"{path[-1]}_zz"] = holder.pop(path[-1])
    else:
        holder[path[-1]] = value
    return whole


def agree(document: Any) -> None:
    compiled = compile_definition(dumps(document))
    of_form = [finding for finding in compiled.findings if finding.code in OF_FORM]
    wrong = [error.message for error in VALIDATOR.iter_errors(document)]
    assert bool(of_form) == bool(wrong), f"{compiled.render()}\n{wrong}\n{json.dumps(document)}"


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert compile_definition(dumps(WHOLE)).graph is not None
    agree(WHOLE)


@pytest.mark.parametrize("path", list(paths(WHOLE)), ids=lambda path: "/".join(map(str, path)))
def test_both_say_the_same_of_every_change(path: tuple[str | int, ...]) -> None:
    agree(changed(path, "removed"))
    if isinstance(path[-1], str):
        agree(changed(path, "misspelt"))
    values: tuple[Any, ...] = (None, True, 7, "seven", "7s", [], {}, [{"id": "z"}])
    for value in values:
        agree(changed(path, "replaced", value))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_the_examples_fit(file: Path) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(yaml.safe_load(file.read_text()))] == []


def test_the_command_prints_it() -> None:
    assert json.loads(CliRunner().invoke(schema_command).output) == SCHEMA
