"""Hints at what an author meant: definitions as people write them who know other languages."""

from pathlib import Path

import pytest

from definitions.codes import Code
from definitions.commands import _annotation
from definitions.compiler import compile_definition
from definitions.findings import Finding

HEAD = "orbit: weave/1\nworkflow: pay\nversion: 1\ninput: {type: object, required: [amount, tags], properties: "
HEAD += "{amount: {type: number}, tags: {type: array, items: {type: string}}}}\ndefaults: {queue: main}\n"


def hints(text: str) -> list[tuple[str, str | None]]:
    return [(finding.code.value, finding.hint) for finding in compile_definition(text).findings]


def of_steps(steps: str) -> list[tuple[str, str | None]]:
    return hints(f"{HEAD}steps:\n{steps}\n")


@pytest.mark.parametrize(
    ("step", "code", "hint"),
    [
        ("{id: a, call: t.a@1}", "UNKNOWN_KEY", "did you mean `task`?"),
        ("{id: a, if: input.amount > 1, task: t.a@1}", "UNKNOWN_KEY", "did you mean `when`?"),
        ("{id: a, task: t.a@1, depends_on: [b]}", "UNKNOWN_KEY", "did you mean `needs`?"),
        ("{id: a, task: t.a@1, params: {x: 1}}", "UNKNOWN_KEY", "did you mean `input`?"),
        ("{id: a, wait: 10m}", "WRONG_TYPE", "write `wait: {for: 10m}`"),
        ("{id: a, task: t.a@1, retry: 3}", "WRONG_TYPE", "write `retry: {max_attempts: 3}`"),
        ("{id: a, task: t.a@1, compensate: t.u@1}", "WRONG_TYPE", "write `compensate: {task: t.u@1}`"),
        ("{id: a, wait: {signal: ok}}", "MISSING_KEY", "add `timeout: 1h`"),
        ("{task: t.a@1}", "MISSING_KEY", "add `id: submit`"),
        ("{id: my-step, task: t.a@1}", "BAD_NAME", "write `my_step`"),
        ("{id: 1st, task: t.a@1}", "BAD_NAME", "write `s_1st`"),
        ("{id: a, task: bank.pay}", "BAD_TASK_TYPE", "write `bank.pay@1`"),
        ("{id: a, fail: {code: not found, message: x}}", "BAD_NAME", "write `NOT_FOUND`"),
        ("{id: a, task: t.a@1, priority: 99}", "OUT_OF_RANGE", "the most is `priority: 9`"),
        ("{id: a, task: t.a@1, timeout: 1ms}", "OUT_OF_RANGE", "the least is `timeout: 100ms`"),
        ("{id: a, task: t.a@1, priority: high}", "WRONG_TYPE", "it is from 0 to 9"),
        ("{id: a, wait: {signal: ok, timeout: 1h, on_timeout: ignore}}", "BAD_VALUE", "did you mean `continue`?"),
        (
            '{id: a, wait: {until: "2026-11-30", timeout: 1h}}',
            "TYPE_MISMATCH",
            """write "'2026-11-30'": a text in an expression has quotes of its own""",
        ),
        ("{id: a, task: t.a@1, when: input.amount > '100'}", "TYPE_MISMATCH", "leave the quotes out: `100`"),
        ("{id: a, task: t.a@1, when: 'input.tags[0] == 5'}", "TYPE_MISMATCH", "put quotes around it: `'5'`"),
        ("{id: a, task: t.a@1, when: 'input.tags[0] == input.amount'}", "TYPE_MISMATCH",
         "convert one with int(...), double(...) or string(...)"),
        ("{id: a, task: t.a@1, when: input.tags.length > 1}", "TYPE_MISMATCH", "write `size(...)` around it"),
        ("{id: a, task: t.a@1, when: not input.amount}", "EXPRESSION_SYNTAX", "write `!`"),
        ("{id: a, task: t.a@1, input: {x: ${ input.amount }}}", "YAML_SYNTAX",
         'inside { } and [ ] put quotes around it: `"${ input.amount }"`'),
        ('{id: a, task: t.a@1, input: {x: "${ steps.zzz.output }"}}', "UNKNOWN_STEP", "there is `a`"),
    ],
)  # fmt: skip
def test_what_was_meant_is_said(step: str, code: str, hint: str) -> None:
    assert of_steps(f"  - {step}") == [(code, hint)]


def test_the_answer_of_a_round_is_not_read_as_that_of_a_step() -> None:
    step = "{id: p, poll: {task: t.a@1, done_when: steps.p.output.ok, every: 1s, max_rounds: 2, timeout: 1m}}"
    (finding,) = compile_definition(f"{HEAD}steps:\n  - {step}\n").findings
    assert "what the round answered is `output` here" in finding.message


def test_an_annotation_of_github_is_one_line() -> None:
    finding = Finding(Code.BAD_VALUE, 3, 4, "100 % wrong\nor more", "mend: it", "x", 1)
    shown = _annotation(Path("a,b:c.yaml"), finding)
    assert shown == (
        "::error file=a%2Cb%3Ac.yaml,line=3,col=4,title=BAD_VALUE::100 %25 wrong%0Aor more%0Ahint: mend: it"
    )


def test_a_strict_check_finds_what_no_schema_declares_once_for_each_path() -> None:
    text = f"""{HEAD}steps:
  - {{id: a, task: t.a@1}}
  - {{id: b, task: t.b@1, output: {{type: object, properties: {{x: {{type: object}}}}, required: [x]}}}}
  - id: c
    set:
      deep: "${{ steps.a.output.one.two.three }}"
      open: "${{ steps.b.output.x.y }}"
      guarded: "${{ default(steps.a.output.one, 1) }}"
      proven: "${{ has(steps.a.output.one) ? steps.a.output.one : 2 }}"
      known: "${{ input.amount }}"
      whole: "${{ steps.a.output }}"
"""
    assert compile_definition(text).graph is not None
    found = compile_definition(text, is_strict=True).findings
    assert [(finding.code, finding.line) for finding in found] == [
        (Code.UNDECLARED_FIELD, 11),
        (Code.UNDECLARED_FIELD, 12),
    ]
    assert "`one`" in found[0].message
    assert "`y`" in found[1].message
