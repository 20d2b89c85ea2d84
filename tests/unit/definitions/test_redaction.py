"""What a definition masks: which paths it may name, where masked values go, and where they may not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from definitions.children import ChildName, child_of
from definitions.codes import Code
from definitions.compiler import Compiled, compile_definition
from definitions.diff import Verdict, diff_graphs
from definitions.expression.origins import origins_of
from definitions.expression.parser import parse
from definitions.graph import Graph
from definitions.graph_json import graph_from_json, graph_to_json
from definitions.masks import NOTHING, Masks, masks_of, texts_of
from orbit.formats import NEWEST, StoredFormat
from orbit.jsontext import Json
from orbit.redaction import PATHS_MAX, covers, masked

FRAME = """\
orbit: weave/1
workflow: pay
version: 1
input:
  type: object
  required: [card, note]
  additionalProperties: false
  properties:
    card: {type: object, required: [number, owner], properties: {number: {type: string}, owner: {type: string}}}
    note: {type: string}
    list: {type: array, items: {type: object, required: [pin], properties: {pin: {type: string}, n: {type: integer}}}}
defaults: {queue: main, start_within: 1h}
"""
STEPS = "steps: [{id: a, task: t.a@1}, {id: w, wait: {signal: ok, timeout: 1h}}, {id: z, wait: {for: 1s}}]\n"


def compiled(redact: str, rest: str = STEPS) -> Compiled:
    return compile_definition(f"{FRAME}redact: {redact}\n{rest}")


def graph_of(redact: str, rest: str = STEPS) -> Graph:
    made = compiled(redact, rest)
    assert made.graph is not None, made.render()
    return made.graph


def masks(redact: str, rest: str) -> Masks:
    return masks_of(graph_of(redact, rest))


@pytest.mark.parametrize(
    ("path", "code", "hint"),
    [
        ("/inptu/card", Code.REDACT_PATH, "did you mean `/input/card`?"),
        ("/labels", Code.REDACT_PATH, "write it as `/input/card`"),
        ("input.card.number", Code.REDACT_PATH, "write `/input/card/number`"),
        ("'steps.a.output[0]'", Code.REDACT_PATH, "write `/steps/a/output/0`"),
        ('""', Code.REDACT_PATH, "write it as `/input/card`"),
        (
            "/input/card/nmber",
            Code.UNKNOWN_FIELD,
            "did you mean `/input/card/number`? Else name this one in `properties`",
        ),
        ("/input/crad/number", Code.UNKNOWN_FIELD, "did you mean `/input/card`?"),
        ("/input/note/x", Code.REDACT_PATH, "write `/input/note`"),
        ("/input/list/pin", Code.REDACT_PATH, "write `/input/list/*/pin` for every item"),
        ("/signals", Code.REDACT_PATH, "there is `/signals/ok`"),
        ("/signals/okk/pin", Code.REDACT_PATH, "did you mean `/signals/ok`?"),
        ("/steps", Code.REDACT_PATH, "write `/steps/<id>/output`, or `input`, `error`, `progress`, `evidence`"),
        ("/steps/b/output", Code.UNKNOWN_STEP, "there is `/steps/a`, `/steps/w`, `/steps/z`"),
        ("/steps/A/output", Code.UNKNOWN_STEP, "did you mean `/steps/a/output`?"),
        ("/steps/a/outptu", Code.REDACT_PATH, "did you mean `/steps/a/output`?"),
        ("/steps/z/output", Code.REDACT_PATH, "mask the value that it is made of"),
        ("/steps/w/progress", Code.REDACT_PATH, "mask the value that it is made of"),
        ("/steps/a/error/code", Code.REDACT_PATH, "its code and class are read by error handlers and always shown"),
        ("7", Code.WRONG_TYPE, "write it as `/input/card`"),
        ("/output" + "/x" * 40, Code.REDACT_PATH, "mask what is around it"),
    ],
)
def test_a_path_that_leads_to_nothing_is_found(path: str, code: Code, hint: str | None) -> None:
    findings = compiled(f"[{path}]").findings
    assert [(finding.code, finding.hint) for finding in findings] == [(code, hint)]
    assert (findings[0].line, findings[0].column) == (13, 10)


@pytest.mark.parametrize(
    "path",
    ["/input", "/input/list/*/pin", "/input/list/0", "/input/card/extra/deep", "/output/any", "/signals/ok/a/b",
     "/steps/a/output/x/*", "/steps/a/input", "/steps/a/error", "/steps/a/error/details/x", "/steps/a/progress",
     "/steps/z/evidence/scan", "/steps/w/output"],
)  # fmt: skip
def test_a_path_that_may_lead_to_something_is_taken(path: str) -> None:
    graph = graph_of(f"[{path}]")
    assert graph.redact == (path,)
    assert graph_from_json(json.loads(json.dumps(graph_to_json(graph)))).redact == (path,)


def test_needless_and_too_many_paths_are_found() -> None:
    found = compiled("[/input/card/number, /input/card, /input/card, /input/list/0, /input/list/*]").findings
    assert [(finding.code, finding.column) for finding in found] == [
        (Code.CONTRADICTION, column) for column in (10, 43, 56)
    ]
    many = ", ".join(f"/output/x{number}" for number in range(65))
    assert [finding.code for finding in compiled(f"[{many}]").findings] == [Code.OUT_OF_RANGE]
    assert [finding.code for finding in compiled("/input").findings] == [Code.WRONG_TYPE]
    at_a_step = compile_definition(FRAME + "steps: [{id: a, task: t.a@1, redact: [/x]}]\n").findings
    assert [finding.code for finding in at_a_step] == [Code.UNKNOWN_KEY]
    assert "at the top of the definition" in str(at_a_step[0].hint)


def test_what_masks_nothing_is_written_as_before() -> None:
    made = compile_definition(FRAME + STEPS)
    assert made.graph is not None
    assert masks_of(made.graph) is NOTHING
    assert (made.graph.format, "redact" in graph_to_json(made.graph)) == (1, False)
    assert graph_of("[/input]").format == 3 <= NEWEST[StoredFormat.GRAPH]


WHERE = """\
steps:
  - id: a
    task: t.a@1
    input:
      whole: "${ input.card }"
      part: "${ input.card.owner }"
      text: "no ${ input.card.number }"
      has: "${ has(input.card.number) }"
    compensate: {task: t.u@1, input: {n: ["${ input.card.number }"]}}
    on_error:
      - match: "*"
        then: continue
        value: {late: "${ error.details.iban }", own: "${ error.code }"}
  - {id: s, set: {'a/b': '${ {"c": input.card, "d": [input.note, input.card.number]} }', o: "${ steps.a.output }"}}
  - id: each
    foreach:
      items: default(input.list, [])
      max_items: 3
      steps:
        - id: g
          poll:
            task: t.b@1
            input: {it: "${ item }", n: "${ index }"}
            done_when: "true"
            every: 1s
            max_rounds: 2
            timeout: 1m
      output: {pin: "${ item.pin }", got: "${ steps.g.output }"}
  - id: choose
    branch:
      - {when: input.card.number == "1", steps: [{id: r, return: {n: "${ steps.each.output[0].pin }"}}]}
      - else: []
  - {id: w, wait: {signal: ok, timeout: 1h}}
  - {id: t, task: t.c@1, input: "${ input.card.number == 'x' ? steps.w.output : null }"}
output: {list: "${ steps.each.output }", w: "${ steps.w.output }"}
"""
REDACT = "[/input/card/number, /input/list/*/pin, /steps/a/error/details/iban, /steps/g/output/tok, /signals/ok/pin]"


def test_masks_follow_values_through_the_definition() -> None:
    found = masks(REDACT, WHERE)
    assert found.input == (("card", "number"), ("list", "*", "pin"))
    assert found.signals == {"ok": (("pin",),)}
    a = found.of_step("a")
    assert a.input == (("text",), ("whole", "number"))
    assert (a.undoing, a.output, a.error) == ((("n", "0"),), (("late",),), (("details", "iban"),))
    assert found.of_step("s").output == (("a/b", "c", "number"), ("a/b", "d", "1"), ("o", "late"))
    assert found.of_step("g").input == (("it", "pin"),)
    assert found.of_step("each").output == (("*", "got", "tok"), ("*", "pin"))
    assert found.of_step("t").input == ((),)
    assert found.output == (("list", "*", "got", "tok"), ("list", "*", "pin"), ("n",), ("w", "pin"))
    assert "choose" not in found.steps


@pytest.mark.parametrize(
    ("rest", "what"),
    [
        ("steps: [{id: a, fail: {code: NO, message: 'card ${ input.card.number }'}}]\n", "the message of a failure"),
        ("steps: [{id: a, task: t.a@1, concurrency_keys: ['c:${ input.card.number }']}]\n", "a concurrency key"),
        (
            "steps: [{id: a, task: t.a@1, compensate: {task: t.u@1, concurrency_keys: ['${ input.card.number }']}}]\n",
            "a concurrency key",
        ),
        ("steps: [{id: a, wait: {until: input.card.number, timeout: 1h}}]\n", "the instant of a wait"),
    ],
)
def test_a_masked_value_is_not_used_where_it_would_be_shown(rest: str, what: str) -> None:
    (finding,) = compiled("[/input/card]", rest).findings
    assert (finding.code, finding.line) == (Code.REDACT_SHOWN, 14)
    assert finding.message.startswith(what)
    assert compiled("[/input/note]", rest).graph is not None


def test_a_child_masks_what_its_parent_masks() -> None:
    bare = FRAME.replace("workflow: pay", "workflow: settle") + STEPS + 'output: {o: "${ input.card.number }", p: 1}\n'
    rest = (
        'steps: [{id: c, workflow: settle, input: {card: "${ input.card }", note: x}}]\n'
        'output: {all: "${ steps.c.output }"}\n'
    )

    def parent(child: str, redact: str) -> Compiled:
        made = compile_definition(child)
        assert made.graph is not None, made.render()
        head = "" if redact == "[]" else f"redact: {redact}\n"
        return compile_definition(f"{FRAME}{head}{rest}", {ChildName("settle"): child_of(made.graph)})

    (finding,) = parent(bare, "[/input/card/number]").findings
    assert finding.code is Code.REDACT_SHOWN
    assert finding.hint == "publish a version of `settle` with `redact: [/input/card/number]`"
    masking = bare.replace("steps:", "redact: [/input/card/number, /output/p]\nsteps:")
    graph = parent(masking, "[/input/card/number]").graph
    assert graph is not None
    assert masks_of(graph).output == (("all", "o"), ("all", "p"))
    # The child's masks count also where the parent has none of its own.
    alone = parent(masking, "[]").graph
    assert alone is not None
    assert masks_of(graph_from_json(json.loads(json.dumps(graph_to_json(alone))))).output == (
        ("all", "o"),
        ("all", "p"),
    )
    assert alone.format == 3
    assert parent(masking, "[/input/card]").findings[0].code is Code.REDACT_SHOWN


def test_a_version_that_masks_less_takes_no_running_instance() -> None:
    old, more, less = graph_of("[/input/card/number]"), graph_of("[/input/card]"), graph_of("[/input/card/owner]")
    assert diff_graphs(old, old).verdict is Verdict.SAME
    wider = diff_graphs(old, more)
    assert (wider.verdict, str(wider.reasons[0]).split(":")[0]) == (Verdict.SAFE, "masks more")
    narrower = diff_graphs(more, less)
    assert (narrower.verdict, narrower.is_forbidden) == (Verdict.INCOMPATIBLE, True)
    assert narrower.reasons[0].what == "no longer masks /input/card, which instances were promised"


def test_origins_of_what_is_copied_and_what_is_computed() -> None:
    def origins(text: str) -> list[tuple[str, str, bool]]:
        return [("/".join(one.target), "/".join(one.source), one.is_copy) for one in origins_of(parse(text))]

    assert origins("input.a[0]['b']") == [("", "input/a/0/b", True)]
    assert origins("input.a[index].b") == [("", "input/a/*/b", True), ("", "index", False)]
    assert origins("{'x': input.a, input.k: 1}.x") == [("", "input/a", True), ("", "input/k", False)]
    assert origins("[input.a, 1][0]") == [("", "input/a", True)]
    assert origins("input.c ? input.a : null") == [("", "input/c", False), ("", "input/a", True)]
    assert origins("default(input.a, input.b)") == [("", "input/a", True), ("", "input/b", True)]
    assert origins("has(input.a) || input.b.size() > 1") == [("", "input/b", False)]


PATHS = st.lists(st.lists(st.sampled_from(["a", "b", "*", "0"]), max_size=3).map(tuple), max_size=4)
VALUES: st.SearchStrategy[Json] = st.recursive(
    st.just("seen"), lambda inner: st.dictionaries(st.sampled_from(["a", "b"]), inner) | st.lists(inner, max_size=2)
)


@given(paths=PATHS, value=VALUES)
def test_paths_that_are_cut_short_mask_at_least_as_much(paths: list[tuple[str, ...]], value: Json) -> None:
    def texts_left(shown: Json) -> int:
        return json.dumps(shown).count("seen")

    assert texts_left(masked(value, [*paths, ("a",)])) <= texts_left(masked(value, paths))
    wide = [(f"k{number}", *path) for number in range(PATHS_MAX) for path in [*paths, ("a",), ("b",)]]
    written = texts_of(wide, "params")
    assert len(written) <= PATHS_MAX
    short = [tuple(text.split("/")[2:]) for text in written]
    assert all(covers(short, path) for path in wide)
