"""Random mutations of a good definition: never a traceback, and what is accepted has a whole graph."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from definitions.compiler import compile_definition
from definitions.graph import NodeKind
from definitions.graph_json import graph_from_json, graph_to_json

EXAMPLE = (Path(__file__).parents[3] / "examples" / "payout" / "payout.yaml").read_text(encoding="utf-8")
EXAMPLES = 10_000 if os.environ.get("ORBIT_SOAK") == "1" else 100
LINES = EXAMPLE.splitlines(keepends=True)
WORDS = sorted({word for line in LINES for word in line.replace(":", " : ").replace(",", " , ").split()})

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
    lines = list(LINES)
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
    ends = {NodeKind.FAIL, NodeKind.RETURN}
    entered = {edge.target for edge in graph.edges}
    for index, node in enumerate(graph.nodes):
        assert node.spec is not None or node.kind is NodeKind.FORK
        assert index == 0 or index in entered
    sources = {edge.source for edge in graph.edges}
    open_ends = [node for index, node in enumerate(graph.nodes) if index not in sources and node.kind not in ends]
    assert len(open_ends) <= 1
