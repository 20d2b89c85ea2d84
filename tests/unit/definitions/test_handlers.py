"""Error handlers in the language: what is read, what is found, what they make certain, what they add to the bounds."""

import pytest

from definitions.codes import Code
from definitions.compiler import Compiled, compile_definition
from definitions.diff import Verdict, diff_graphs
from definitions.graph import Graph, Handling, JoinPolicy, JoinSpec
from definitions.graph_json import graph_from_json, graph_to_json
from definitions.mermaid import graph_to_mermaid
from definitions.names import FAILURE_CLASSES
from definitions.structure import Block, structure_of
from definitions.svg import graph_to_svg
from pulse.states import ErrorClass

HEAD = """\
orbit: weave/1
workflow: handled
version: 1
input: {type: object, required: [n], properties: {n: {type: integer}}}
defaults: {queue: q, start_within: 20s, attempt_timeout: 5s, retry: {max_attempts: 1}}
steps:
"""
STEPS = """\
  - id: pay
    task: bank.pay@1
    output: {type: object, required: [ref], properties: {ref: {type: string}}, additionalProperties: false}
    on_error:
      - {match: RETRYABLE, then: retry, max: 2, backoff: 10s}
      - {match: NO_FUNDS, then: continue, value: {ref: none, why: "${ error.message }"}}
      - match: CLOSED
        steps:
          - {id: tell, task: mail.send@1, input: {text: "${ error.code }", all: "${ error.details }"}}
          - {id: end, return: {}, when: error.class == 'UNCLASSIFIED'}
      - {match: "*", then: fail}
  - {id: after, task: t.a@1, input: {ref: "${ default(steps.pay.output.ref, null) }"}}
"""


def compiled(steps: str) -> Compiled:
    return compile_definition(HEAD + steps)


def graph(steps: str = STEPS) -> Graph:
    made = compiled(steps)
    assert made.graph is not None, made.render()
    return made.graph


def codes(on_error: str, kind: str = "task: t.a@1") -> list[str]:
    return [finding.code.value for finding in compiled(f"  - {{id: a, {kind}, on_error: {on_error}}}\n").findings]


def test_handlers_become_part_of_their_node_and_their_steps_lanes_beside_it() -> None:
    made = graph()
    nodes = {node.id: node for node in made.nodes}
    assert [handler.then for handler in nodes["pay"].handlers] == list(Handling)
    assert nodes["pay"].handlers[0].retries_max == 2
    assert nodes["pay.handled"].spec == JoinSpec(JoinPolicy.ALL, "pay")
    assert [nodes[name].error_of for name in ("pay", "tell", "end", "after")] == [None, "pay", "pay", None]
    named = [(made.nodes[edge.source].id, made.nodes[edge.target].id, edge.case) for edge in made.edges]
    assert named == [
        ("pay", "tell", "on_error.3"),
        ("tell", "end", None),
        ("pay", "pay.handled", None),
        ("end", "pay.handled", None),
        ("pay.handled", "after", None),
    ]


def test_a_graph_with_handlers_has_a_form_that_older_nodes_leave_alone() -> None:
    made = graph()
    assert made.format == 2
    assert graph_from_json(graph_to_json(made)) == made
    assert graph("  - {id: a, task: t.a@1}\n").format == 1


@pytest.mark.parametrize(
    ("on_error", "kind", "found"),
    [
        ("[]", "task: t.a@1", ["EMPTY_STEPS"]),
        ("[x]", "task: t.a@1", ["WRONG_TYPE"]),
        ("x", "task: t.a@1", ["WRONG_TYPE"]),
        ("[{then: continue}]", "task: t.a@1", ["MISSING_KEY"]),
        ('[{match: "*"}]', "task: t.a@1", ["MISSING_KEY"]),
        ('[{match: "*", then: retry}]', "task: t.a@1", ["MISSING_KEY"]),
        ('[{match: "*", then: retry, max: 0}]', "task: t.a@1", ["OUT_OF_RANGE"]),
        ('[{match: "*", then: retry, max: 1, backoff: 2d}]', "task: t.a@1", ["OUT_OF_RANGE"]),
        ('[{match: "*", then: retry, max: 1}]', "set: {}", ["CONTRADICTION"]),
        ('[{match: "*", then: fail, max: 1}]', "task: t.a@1", ["CONTRADICTION"]),
        ('[{match: "*", then: fail, value: 1}]', "task: t.a@1", ["CONTRADICTION"]),
        ('[{match: "*", then: fail, steps: [{id: b, set: {}}]}]', "task: t.a@1", ["CONTRADICTION"]),
        ('[{match: "*", steps: []}]', "task: t.a@1", ["EMPTY_STEPS"]),
        ('[{match: "*", then: goto}]', "task: t.a@1", ["BAD_VALUE"]),
        ('[{match: "?", then: fail}]', "task: t.a@1", ["BAD_NAME"]),
        ("[{match: NEEDS_HUMAN, then: fail}]", "task: t.a@1", ["CONTRADICTION"]),
        ("[{match: X, then: fail}, {match: X, then: continue}]", "task: t.a@1", ["UNREACHABLE_HANDLER"]),
        ('[{match: "*", then: fail}, {match: X, then: fail}]', "task: t.a@1", ["UNREACHABLE_HANDLER"]),
        ('[{match: "*", then: retry, max: 1}, {match: "*", then: fail}]', "task: t.a@1", []),
        ("[{match: X, then: fail}]", "fail: {code: A, message: b}", ["UNKNOWN_KEY"]),
        ("[{match: X, then: fail, hint: 1}]", "task: t.a@1", ["UNKNOWN_KEY"]),
        ('[{match: "*", then: continue, value: "${ error.kode }"}]', "task: t.a@1", ["UNKNOWN_FIELD"]),
        ('[{match: "*", then: continue, value: "${ steps.a.output }"}]', "task: t.a@1", ["UNCERTAIN_REFERENCE"]),
        ('[{match: "*", steps: [{id: a, set: {}}]}]', "task: t.a@1", ["DUPLICATE_ID"]),
    ],
)
def test_what_is_wrong_with_a_handler_is_found(on_error: str, kind: str, found: list[str]) -> None:
    assert codes(on_error, kind) == found


def test_the_failed_step_has_no_output_in_its_handler() -> None:
    step = "  - {id: a, task: t.a@1, on_error: [{match: X, steps: [{id: b, set: {x: '${ steps.a.output }'}}]}]}\n"
    (finding,) = compiled(step).findings
    assert finding.message == "step `a` can't be read here: its failure is handled here"


def test_error_is_known_in_handlers_only() -> None:
    (finding,) = compiled('  - {id: a, set: {x: "${ error.code }"}}\n').findings
    assert finding.code is Code.UNKNOWN_NAME
    assert finding.message == "`error` has no value here, only in error handlers"


def test_a_step_that_continues_has_an_output_of_either_form() -> None:
    step = """\
  - id: pay
    task: bank.pay@1
    output: {type: object, required: [ref, at], properties: {ref: {type: string}, at: {type: string}}}
    on_error: [{match: "*", then: continue, value: {ref: none, why: 1}}]
"""
    use = '  - {{id: b, task: t.b@1, input: {{x: "${{ {0} }}"}}}}\n'
    assert compiled(step + use.format("steps.pay.output.ref")).findings == ()
    (finding,) = compiled(step + use.format("steps.pay.output.at")).findings
    assert finding.code is Code.OPTIONAL_FIELD
    assert compiled(step + use.format("default(steps.pay.output.at, '')")).findings == ()


def test_what_is_certain_behind_handler_steps_is_certain_on_each_way() -> None:
    step = """\
  - id: pay
    task: bank.pay@1
    on_error:
      - match: "*"
        steps: [{id: other, task: t.o@1}LAST]
"""
    use = '  - {{id: b, task: t.b@1, input: {{x: "${{ {0} }}"}}}}\n'
    goes_on, ends = step.replace("LAST", ""), step.replace("LAST", ", {id: stop, return: {}}")
    (finding,) = compiled(goes_on + use.format("steps.pay.output.x")).findings
    assert finding.code is Code.UNCERTAIN_REFERENCE
    assert finding.message.endswith("it has no output where an error handler took its failure")
    (finding,) = compiled(goes_on + use.format("steps.other.output.x")).findings
    assert finding.message.endswith("it runs only if `pay` fails")
    assert compiled(goes_on + use.format("default(steps.other.output.x, steps.pay.output.x)")).findings != ()
    assert compiled(ends + use.format("steps.pay.output.x")).findings == ()
    assert compiled(goes_on + use.format("has(steps.pay.output) ? steps.pay.output : null")).findings == ()


def test_handler_steps_can_have_handlers_and_see_the_nearest_error() -> None:
    made = graph("""\
  - id: a
    task: t.a@1
    on_error:
      - match: "*"
        steps:
          - id: b
            task: t.b@1
            input: {of_a: "${ error.code }"}
            on_error: [{match: "*", steps: [{id: c, set: {of_b: "${ error.code }"}}]}]
          - {id: d, set: {of_a: "${ error.code }"}}
""")
    assert {node.id: node.error_of for node in made.nodes if node.error_of} == {"b": "a", "c": "b", "d": "a"}
    assert graph_from_json(graph_to_json(made)) == made


def test_bounds_count_every_retry_and_the_longest_handler() -> None:
    plain = graph("  - {id: a, task: t.a@1}\n").bounds
    retried = graph('  - {id: a, task: t.a@1, on_error: [{match: "*", then: retry, max: 2, backoff: 10s}]}\n').bounds
    assert (retried.tasks, retried.attempts) == (3 * plain.tasks, 3 * plain.attempts)
    assert retried.active_seconds == 3 * plain.active_seconds + 10 + 20
    assert retried.concurrent_tasks == 1
    lanes = graph("""\
  - id: a
    task: t.a@1
    on_error:
      - {match: X, steps: [{id: b, wait: {for: 1h}}]}
      - {match: Y, steps: [{id: c, task: t.c@1}, {id: d, task: t.d@1}]}
""").bounds
    assert lanes.tasks == 3
    assert lanes.active_seconds == plain.active_seconds + 3600


def test_the_classes_are_those_of_the_task_layer() -> None:
    assert set(FAILURE_CLASSES) == set(ErrorClass) - {ErrorClass.NEEDS_HUMAN}


def test_a_changed_handler_is_a_changed_step() -> None:
    old = graph()
    assert diff_graphs(old, graph()).verdict is Verdict.SAME
    changed = diff_graphs(old, graph(STEPS.replace("max: 2", "max: 3")))
    assert changed.verdict is Verdict.INCOMPATIBLE  # every instance has begun the first step
    assert [reason.step for reason in changed.reasons if reason.step] == ["pay"]
    lane = diff_graphs(old, graph(STEPS.replace("id: tell, task: mail.send@1", "id: tell, task: mail.send@2")))
    assert lane.verdict is Verdict.SAFE_AT
    assert lane.at == ("tell",)


def test_handlers_are_drawn() -> None:
    made = graph()
    first = structure_of(made)[0]
    assert isinstance(first, Block)
    assert [(lane.label, lane.when) for lane in first.lanes] == [("done", None), ("on_error.3", "on CLOSED")]
    svg = graph_to_svg(made)
    for words in ("on RETRYABLE: retry at most 2 times after 10s", "on CLOSED", "on *: fail", 'id="step-tell"'):
        assert words in svg
    mermaid = graph_to_mermaid(made)
    assert '-->|"on CLOSED"|' in mermaid
    assert '(("handled"))' in mermaid
