"""Area j of the public failures: what YAML does to definitions elsewhere, and what it does here."""

import time
import tracemalloc

from definitions.compiler import Compiled, compile_definition
from definitions.graph import TaskSpec
from orbit.schemas.soundness import with_defaults

HEAD = "orbit: weave/1\nworkflow: sample\nversion: 1\ndefaults: {queue: work}\n"


def findings(compiled: Compiled) -> list[tuple[str, int, int]]:
    return [(finding.code.value, finding.line, finding.column) for finding in compiled.findings]


def task_of(compiled: Compiled, index: int = 0) -> TaskSpec:
    assert compiled.graph is not None, compiled.render()
    spec = compiled.graph.nodes[index].spec
    assert isinstance(spec, TaskSpec)
    return spec


def test_c122_a_repeated_key_is_refused_with_the_place_of_the_second() -> None:
    twice = HEAD + "steps: [{id: a, task: t.a@1}]\nsteps: [{id: b, task: t.b@1}]\n"
    compiled = compile_definition(twice)
    assert findings(compiled) == [("YAML_DUPLICATE_KEY", 6, 1)]
    assert "`steps`" in compiled.findings[0].message
    inside = HEAD + ("steps:\n  - id: a\n    task: t.a@1\n    retry: {max_attempts: 2}\n    retry: {max_attempts: 3}\n")
    compiled = compile_definition(inside)
    assert findings(compiled) == [("YAML_DUPLICATE_KEY", 9, 5)]
    assert "`retry`" in compiled.findings[0].message
    assert compiled.graph is None


def test_c124_an_alias_bomb_is_refused_at_once_and_takes_no_memory() -> None:
    levels = ["        a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    levels += [f"        a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    text = HEAD + "steps:\n  - id: a\n    task: t.a@1\n    input:\n" + "\n".join(levels) + "\n"
    tracemalloc.start()
    started = time.process_time()
    compiled = compile_definition(text)
    seconds = time.process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert compiled.graph is None
    assert {code for code, _, _ in findings(compiled)} == {"YAML_ANCHOR", "YAML_ALIAS"}
    assert seconds < 1
    assert peak < 50 * 1024 * 1024


def test_c127_no_and_off_and_on_are_text() -> None:
    text = HEAD + (
        "steps:\n"
        "  - id: off\n    task: t.a@1\n    input: {country: no, on: yes, off: on}\n"
        "  - id: answer\n    branch:\n"
        "      - {when: input.answer == 'yes', steps: [{id: yes, task: t.yes@1}]}\n"
        "      - {when: input.answer == 'no', steps: [{id: no, task: t.no@1}]}\n"
        "      - else: []\n"
    )
    compiled = compile_definition(text)
    assert task_of(compiled).input.source == {"country": "no", "on": "yes", "off": "on"}
    assert compiled.graph is not None
    assert [node.id for node in compiled.graph.nodes] == ["off", "answer", "yes", "no", "answer.end"]
    second = compiled.graph.nodes[1].spec.cases[1].when  # type: ignore[union-attr]
    assert second is not None
    assert second.evaluate({"input": {"answer": "no"}}) is True
    assert second.evaluate({"input": {"answer": False}}) is False
    top = compile_definition(HEAD + "on: push\nsteps: [{id: a, task: t.a@1}]\n")
    assert findings(top) == [("UNKNOWN_KEY", 5, 1)]
    assert "`on`" in top.findings[0].message


def test_c129_dates_stay_the_text_that_was_written() -> None:
    schema = (
        "input:\n  type: object\n  required: [start]\n  properties:\n"
        "    start: {type: string, default: 2024-01-01}\n    at: {type: string, default: 2024-01-01T00:00:00Z}\n"
    )
    compiled = compile_definition(
        HEAD
        + schema
        + "steps: [{id: a, task: t.a@1, input: {s: '${ input.start }', t: '${ input.at }', u: 2024-01-01}}]\n"
    )
    spec = task_of(compiled)
    assert compiled.graph is not None
    value = with_defaults(compiled.graph.input_schema, {})
    assert value == {"start": "2024-01-01", "at": "2024-01-01T00:00:00Z"}
    assert spec.input.render({"input": value}) == {
        "s": "2024-01-01",
        "t": "2024-01-01T00:00:00Z",
        "u": "2024-01-01",
    }


def test_c131_steps_can_only_lead_forward() -> None:
    # A list runs in its order, so the only ways to a cycle would be a reference to a later step, and `needs`.
    text = HEAD + (
        "steps:\n"
        "  - {id: a, task: t.a@1, input: '${ steps.c.output }'}\n"
        "  - {id: b, task: t.b@1, input: '${ steps.a.output }'}\n"
        "  - {id: c, task: t.c@1, input: '${ steps.b.output }'}\n"
    )
    compiled = compile_definition(text)
    assert findings(compiled) == [("UNCERTAIN_REFERENCE", 6, 43)]
    assert "later" in compiled.findings[0].message
    needs = HEAD + "steps: [{id: d, task: t.d@1, needs: [e]}, {id: e, task: t.e@1, needs: [d]}]\n"
    assert findings(compile_definition(needs)) == [("MISPLACED_NEEDS", 5, 30), ("MISPLACED_NEEDS", 5, 64)]
    inside = HEAD + (
        "steps: [{id: p, parallel: {steps: [{id: d, task: t.d@1, needs: [e]}, {id: e, task: t.e@1, needs: [d]}]}}]\n"
    )
    compiled = compile_definition(inside)
    assert findings(compiled) == [("NEEDS_CYCLE", 5, 65)]
    assert "`d` needs `e` needs `d`" in compiled.findings[0].message


def test_c133_a_tab_is_named_with_its_place() -> None:
    behind = compile_definition(HEAD + "timeout: 1d\t# a day\nsteps: [{id: a, task: t.a@1}]\n")
    assert findings(behind) == [("YAML_TAB", 5, 12)]
    indented = compile_definition(HEAD + "steps:\n\t- {id: a, task: t.a@1}\n")
    assert findings(indented) == [("YAML_TAB", 6, 1)]
    for compiled in (behind, indented):
        assert "tab" in compiled.findings[0].message
        assert "spaces" in (compiled.findings[0].hint or "")


def test_c134_merge_keys_are_refused_and_never_a_literal_key() -> None:
    for merge in (
        "    retry: {<<: {max_attempts: 5, backoff: 2s}, max_attempts: 3}\n",
        "    retry: {max_attempts: 3, <<: {max_attempts: 5, backoff: 2s}}\n",
        "    retry: {<<: [{max_attempts: 5}, {backoff: 2s}]}\n",
        '    input: {"<<": {a: 1}}\n',
    ):
        compiled = compile_definition(HEAD + "steps:\n  - id: a\n    task: t.a@1\n" + merge)
        assert [code for code, _, _ in findings(compiled)] == ["YAML_MERGE_KEY"]
        assert "merge keys" in compiled.findings[0].message
    anchored = compile_definition(HEAD + "steps:\n  - &that {id: a, task: t.a@1}\n  - {<<: *that, id: b}\n")
    assert {code for code, _, _ in findings(anchored)} >= {"YAML_ANCHOR", "YAML_ALIAS", "YAML_MERGE_KEY"}
