"""What expressions may read: along every path, behind every guard, with the types of the schemas."""

import pytest

from definitions.compiler import Compiled, compile_definition

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


def compile_steps(steps: str, rest: str = "") -> Compiled:
    indented = "".join(f"  {line}\n" for line in steps.strip("\n").splitlines())
    return compile_definition(f"{HEAD}steps:\n{indented}{rest}")


def codes(steps: str, rest: str = "") -> list[str]:
    return [finding.code.value for finding in compile_steps(steps, rest).findings]


CHOICE = "- id: c\n  branch:\n    - {when: input.amount > 1.0, steps: [{id: a, task: t.a@1}]}\n"

REFERENCES = {
    "itself": ("- {id: a, task: t.a@1, input: '${ steps.a.output }'}", "UNCERTAIN_REFERENCE"),
    "later": ("- {id: a, task: t.a@1, input: '${ steps.b.output }'}\n- {id: b, task: t.b@1}", "UNCERTAIN_REFERENCE"),
    "later with a guard": (
        "- {id: a, task: t.a@1, input: '${ default(steps.b.output, 1) }'}\n- {id: b, task: t.b@1}",
        "UNCERTAIN_REFERENCE",
    ),
    "beside": (
        "- id: p\n  parallel: {branches: {x: [{id: a, task: t.a@1}], y: [{id: b, set: {v: '${ steps.a.output }'}}]}}",
        "UNCERTAIN_REFERENCE",
    ),
    "beside with a guard": (
        "- id: p\n  parallel: {branches: {x: [{id: a, set: {}}], y: [{id: b, when: has(steps.a.output), set: {}}]}}",
        "UNCERTAIN_REFERENCE",
    ),
    "another case": (
        CHOICE + "    - else: [{id: b, set: {v: '${ steps.a.output }'}}]",
        "UNCERTAIN_REFERENCE",
    ),
    "behind one case": (
        CHOICE + "    - else: []\n- {id: b, set: {v: '${ steps.a.output }'}}",
        "UNCERTAIN_REFERENCE",
    ),
    "in a condition of its own branch": (
        "- id: c\n  branch:\n    - {when: steps.a.output.x == 1, steps: [{id: a, task: t.a@1}]}\n    - else: []",
        "UNCERTAIN_REFERENCE",
    ),
    "unknown": ("- {id: a, task: t.a@1, input: '${ steps.nobody.output }'}", "UNKNOWN_STEP"),
    "no output": ("- {id: w, wait: {for: 1s}}\n- {id: b, set: {v: '${ steps.w.output }'}}", "STEP_WITHOUT_OUTPUT"),
    "not its output": ("- {id: a, task: t.a@1}\n- {id: b, set: {v: '${ steps.a.state }'}}", "REFERENCE_FORM"),
    "a value of a poll": ("- {id: a, task: t.a@1, input: '${ output.x }'}", "UNKNOWN_NAME"),
    "a root of the full language": ("- {id: a, task: t.a@1, input: '${ item }'}", "UNKNOWN_NAME"),
    "a step without steps": ("- {id: a, task: t.a@1}\n- {id: b, set: {v: '${ a.output }'}}", "UNKNOWN_NAME"),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_reference_refused(name: str) -> None:
    steps, code = REFERENCES[name]
    assert codes(steps) == [code]


ALLOWED = {
    "behind a task": "- {id: a, task: t.a@1}\n- {id: b, set: {v: '${ steps.a.output.x }'}}",
    "behind a join": (
        "- id: p\n  parallel: {branches: {x: [{id: a, task: t.a@1}], y: [{id: c, task: t.c@1}]}}\n"
        "- {id: b, set: {v: '${ steps.a.output.x == steps.c.output.x }'}}"
    ),
    "guarded by and": (
        "- {id: a, task: t.a@1, when: input.amount > 1.0}\n"
        "- {id: b, set: {v: '${ has(steps.a.output) && steps.a.output.x == 1 }'}}"
    ),
    "guarded by or": (
        "- {id: a, task: t.a@1, when: input.amount > 1.0}\n"
        "- {id: b, set: {v: '${ !has(steps.a.output) || steps.a.output.x == 1 }'}}"
    ),
    "guarded by a conditional": (
        "- {id: a, task: t.a@1, when: input.amount > 1.0}\n"
        "- {id: b, set: {v: '${ has(steps.a.output.x) ? steps.a.output.x : 0 }'}}"
    ),
    "guarded by the step's when": (
        "- {id: a, task: t.a@1, when: input.amount > 1.0}\n"
        "- {id: b, when: has(steps.a.output), set: {v: '${ steps.a.output.x }'}}"
    ),
    "guarded by a case": (
        "- {id: a, task: t.a@1, when: input.amount > 1.0}\n"
        "- id: c\n  branch:\n    - {when: has(steps.a.output), steps: [{id: b, set: {v: '${ steps.a.output.x }'}}]}\n"
        "    - else: []"
    ),
    "guarded by a case that ends the instance": (
        "- id: c\n  branch:\n    - when: '!has(input.note)'\n      steps: [{id: f, fail: {code: NONE, message: no}}]\n"
        "    - else: [{id: a, task: t.a@1}]\n"
        "- {id: b, set: {v: '${ input.note + steps.a.output.x }'}}"
    ),
    "guarded by a step that ends the instance": (
        "- {id: r, when: '!has(input.note)', return: {}}\n- {id: b, set: {v: '${ input.note }'}}"
    ),
    "in a poll's conditions": (
        "- id: a\n  poll: {task: t.a@1, input: {n: '${ round }'}, done_when: output.x > round, every: 1s, "
        "max_rounds: 3, timeout: 1m}\n- {id: b, set: {v: '${ steps.a.output.x }'}}"
    ),
    "what set computes": "- {id: a, set: {x: 1}}\n- {id: b, set: {v: '${ steps.a.output.x + 1 }'}}",
    "instance and now": "- {id: a, set: {x: '${ instance.id } ${ instance.started_at } ${ now }'}}",
}


@pytest.mark.parametrize("name", ALLOWED)
def test_reference_allowed(name: str) -> None:
    assert codes(ALLOWED[name]) == []


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("input.nmae", None),  # the schema is open: the field may exist
        ("input.note + 'x'", "OPTIONAL_FIELD"),
        ("input.amount + 1", "TYPE_MISMATCH"),
        ("double(input.amount) + 1.0", None),
        ("input.amount > 'a'", "TYPE_MISMATCH"),
        ("input.name.first", "TYPE_MISMATCH"),
        ("input.any.first + 1", "OPTIONAL_FIELD"),
        ("default(input.any.first, 0) + 1", None),
        ("has(input.tags) && input.tags[0] == 1", "TYPE_MISMATCH"),
        ("instance.nmae", "UNKNOWN_FIELD"),
    ],
)
def test_types_come_from_the_schemas(expression: str, code: str | None) -> None:
    assert codes(f'- {{id: a, set: {{v: "${{ {expression} }}"}}}}') == ([] if code is None else [code])
