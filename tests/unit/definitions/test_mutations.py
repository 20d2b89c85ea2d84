"""Random mutations of a good definition: never a traceback, and what is accepted has a whole graph."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from definitions.compiler import compile_definition
from definitions.expression import Expression
from definitions.graph import Graph, NodeKind
from definitions.graph_json import graph_from_json, graph_to_json
from definitions.template import Template
from engine.command import SubmitTask
from engine.flow import Flow
from engine.instance import Failure
from engine.simulator import Answer, Simulation
from engine.stimulus import Outcome
from tests.support.random_definitions import definition

EXAMPLES = 10_000 if os.environ.get("ORBIT_SOAK") == "1" else 100
FOLDER = Path(__file__).parents[3] / "examples"
# All that ship, and random ones, which use the language in ways that nobody would write.
TEXTS = [
    *(path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*/*.yaml")) if ".test." not in path.name),
    *(definition(seed)[0] for seed in range(12)),
]
WORDS = sorted({word for text in TEXTS for word in text.replace(":", " : ").replace(",", " , ").split()})

fragments = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(
        ["null", "[]", "{}", "''", "- ", "? ", "&a ", "*a", "!t ", "|", ">", "${", "}", "$${ ", "\t", "\n", "  "]
    ),
    st.sampled_from(
        ["steps.submit.output", "input", "has(", "default(", "&&", "1e999", "-1", "9" * 30, "#/x", "$ref: "]
    ),
    st.text(max_size=6),
)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    lines = draw(st.sampled_from(TEXTS)).splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.integers(0, 5)):
            case 0:
                del lines[at]
            case 1:
                lines.insert(draw(st.integers(0, len(lines) - 1)), lines[at])
            case 2:
                other = draw(st.integers(0, len(lines) - 1))
                lines[at], lines[other] = lines[other], lines[at]
            case 3:
                lines[at] = "  " * draw(st.integers(0, 3)) + lines[at].lstrip()
            case _:
                column = draw(st.integers(0, len(lines[at])))
                end = min(len(lines[at]), column + draw(st.integers(0, 8)))
                lines[at] = lines[at][:column] + draw(fragments) + lines[at][end:]
    return "".join(lines)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@given(mutated())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_mutation_is_refused_with_places_or_compiles_to_a_whole_graph(text: str) -> None:
    compiled = compile_definition(text.encode("utf-8", "surrogatepass"))
    graph = compiled.graph
    assert (graph is None) == bool(compiled.findings)
    line_count = text.count("\n") + text.count("\r") + 2
    for finding in compiled.findings:
        assert 1 <= finding.line <= line_count
        assert finding.column >= 1
        assert finding.render()
    if graph is None:
        return
    assert graph_from_json(graph_to_json(graph)) == graph
    entered = {edge.target for edge in graph.edges}
    left = {edge.source for edge in graph.edges}
    # One way in and at most one way out, of the whole and of what is run for each item.
    begun, open_ends = Counter[str | None](), Counter[str | None]()
    for index, node in enumerate(graph.nodes):
        assert node.spec is not None or node.kind is NodeKind.FORK
        begun[node.within] += index not in entered
        open_ends[node.within] += index not in left and node.kind not in {NodeKind.FAIL, NodeKind.RETURN}
    assert set(begun.values()) == {1}
    assert set(open_ends.values()) <= {0, 1}
    names = {node.id for node in graph.nodes}
    assert all(reading.step_references <= names for reading in readings_in(graph))
    run(graph)


def readings_in(value: object) -> Iterator[Expression | Template]:
    """Find everything in a graph that reads values, wherever it stands."""
    if isinstance(value, Expression | Template):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from readings_in(item)
    elif is_dataclass(value):
        yield from readings_in([getattr(value, each.name) for each in fields(value)])
    elif isinstance(value, Struct):
        yield from readings_in([getattr(value, name) for name in value.__struct_fields__])


def run(graph: Graph) -> None:
    """Run what was accepted, each task failing in its turn: it ends, and reads no output that is not there."""
    for failing in range(3):
        asked = 0

        def script(command: SubmitTask, failing: int = failing) -> Answer:
            nonlocal asked
            asked += 1
            if asked % 3 == failing:
                return Answer(Outcome.FAILED, error=Failure("BROKEN", "it broke"))
            return Answer(output={"step": command.step})

        outcome = Simulation(Flow(graph), script, input_value={}).run()
        absent = [line for line in outcome.trace if "NO_SUCH_FIELD" in str(line.entry.data)]
        assert [line for line in absent if "steps" in str(line.entry.data)] == []


def test_every_reference_of_a_graph_is_looked_at() -> None:
    text, graph = definition(1)
    names = {name for reading in readings_in(graph) for name in reading.step_references}
    assert names == set(re.findall(r"steps\.(\w+)", text))
