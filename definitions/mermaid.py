"""A step graph as Mermaid text, for documents and tickets.

Blocks are drawn by their nodes and edges; what a node waits for or runs is its second line. Texts of the author are
escaped, so that no title can change the drawing.
"""

from __future__ import annotations

from collections.abc import Mapping

from definitions.captions import handling_of
from definitions.duration import format_duration
from definitions.graph import (
    HANDLED,
    BranchSpec,
    ChildSpec,
    FailSpec,
    ForeachSpec,
    Graph,
    Handler,
    JoinPolicy,
    JoinSpec,
    Node,
    NodeKind,
    PollSpec,
    TaskSpec,
    UntilSpec,
    WaitSpec,
    handler_case,
)

_SHAPES = {
    NodeKind.TASK: ('["', '"]'),
    NodeKind.BRANCH: ('{"', '"}'),
    NodeKind.FORK: ('[/"', '"\\]'),
    NodeKind.JOIN: ('(("', '"))'),
    NodeKind.FOREACH: ('{{"', '"}}'),
    NodeKind.WAIT: ('(["', '"])'),
    NodeKind.POLL: ('[["', '"]]'),
    NodeKind.SET: ('["', '"]'),
    NodeKind.FAIL: ('(["', '"])'),
    NodeKind.RETURN: ('(["', '"])'),
    NodeKind.WORKFLOW: ('[["', '"]]'),
}
_STATE_STYLES = {
    "SUCCEEDED": "stroke:#2c7a3f,stroke-width:3px",
    "RUNNING": "stroke:#2f6fde,stroke-width:3px",
    "WAITING": "stroke:#9a5b00,stroke-width:3px",
    "NEEDS_REVIEW": "stroke:#a13d8f,stroke-width:4px",
    "FAILED": "stroke:#c22f2f,stroke-width:4px",
    "SKIPPED": "stroke-dasharray:4 4",
    "CANCELLED": "stroke-dasharray:4 4",
}
_LABEL_CHARACTERS_MAX = 60


def graph_to_mermaid(graph: Graph, states: Mapping[str, str] | None = None) -> str:
    """Write the graph as a Mermaid flowchart, with the states of an instance's steps by id if they are given."""
    lines = ["flowchart TD"]
    within: str | None = None
    for index, node in enumerate(graph.nodes):
        if node.within != within:
            if within is not None:
                lines.append("  end")
            if node.within is not None:
                lines.append(f'  subgraph i{index}["each item of {_escaped(node.within)}"]')
            within = node.within
        opening, closing = _SHAPES[node.kind]
        shown = [*_lines_of(node), *([states[node.id]] if states and node.id in states else [])]
        label = "<br/>".join(_escaped(line) for line in shown)
        lines.append(f"  n{index}{opening}{label}{closing}")
        if node.compensate is not None:
            words = _escaped(f"undone by {node.compensate.type}@{node.compensate.task_version}")
            lines.append(f'  n{index} -.-> u{index}>"{words}"]')
    if within is not None:
        lines.append("  end")
    lines += [f"  n{foreach} -.-> n{first}" for foreach, first in _ways_into_items(graph)]
    # The handlers of a branch or parallel block begin at its end.
    openers = {node.id: node for node in graph.nodes}
    handlers = {node.id: openers[node.spec.opens].handlers for node in graph.nodes if isinstance(node.spec, JoinSpec)}
    for edge in graph.edges:
        source = graph.nodes[edge.source]
        case = _case_text(source, edge.case, handlers.get(source.id, source.handlers))
        arrow = f'-->|"{_escaped(case)}"|' if case else "-->"
        lines.append(f"  n{edge.source} {arrow} n{edge.target}")
    if states:
        lines += _state_classes(graph, states)
    return "\n".join(lines) + "\n"


def _state_classes(graph: Graph, states: Mapping[str, str]) -> list[str]:
    lines = [f"  classDef {state} {style}" for state, style in _STATE_STYLES.items()]
    return lines + [
        f"  class n{index} {states[node.id]}"
        for index, node in enumerate(graph.nodes)
        if states.get(node.id) in _STATE_STYLES
    ]


def _ways_into_items(graph: Graph) -> list[tuple[int, int]]:
    """Pair each foreach with the nodes that begin its items."""
    place = {node.id: index for index, node in enumerate(graph.nodes)}
    targets = {edge.target for edge in graph.edges}
    return [
        (place[node.within], index)
        for index, node in enumerate(graph.nodes)
        if node.within is not None and index not in targets
    ]


def _lines_of(node: Node) -> list[str]:
    if isinstance(node.spec, JoinSpec):
        if node.id.endswith(HANDLED):
            return ["handled"]
        return ["join"] if node.spec.policy is JoinPolicy.ALL else [f"join {node.spec.words}"]
    lines = [node.id]
    match node.spec:
        case TaskSpec(type=name, task_version=version):
            lines.append(f"{name}@{version}")
        case PollSpec() as poll:
            every = format_duration(poll.every_seconds)
            lines.append(f"{poll.task.type}@{poll.task.task_version} every {every}, at most {poll.rounds_max}")
        case ForeachSpec(items=items, items_max=count, concurrency=concurrency):
            lines.append(f"for each of {items.source}, at most {count}, {concurrency} at once")
        case WaitSpec(for_seconds=seconds):
            lines.append(f"wait {format_duration(seconds)}")
        case UntilSpec(until=until, timeout_seconds=timeout):
            lines.append(f"wait until {until.source}, at most {format_duration(timeout)}")
        case ChildSpec(workflow=workflow, version=version):
            lines.append(f"workflow {workflow}@{version}")
        case FailSpec(code=code):
            lines.append(f"fail {code}")
        case _ if node.kind in (NodeKind.SET, NodeKind.RETURN):
            lines.append(node.kind.value.lower())
    if node.when is not None:
        lines.append(f"when {node.when.source}")
    lines += [f"on {handler.match} {handling_of(handler)}" for handler in node.handlers]
    return lines


def _case_text(source: Node, case: str | None, handlers: tuple[Handler, ...]) -> str | None:
    """Return what stands at an edge: a case's condition, a parallel branch's name, what an error handler matches."""
    for index, handler in enumerate(handlers):
        if case == handler_case(index):
            return f"on {handler.match}"
    if isinstance(source.spec, BranchSpec):
        for each in source.spec.cases:
            if each.label == case and each.when is not None:
                return each.when.source
    return case


def _escaped(text: str) -> str:
    shown = text if len(text) <= _LABEL_CHARACTERS_MAX else text[: _LABEL_CHARACTERS_MAX - 1] + "…"
    return "".join(
        character if character.isalnum() or character in " _.,:@()[]/+*-=…" else f"#{ord(character)};"
        for character in shown
    )
