"""The step graph as a JSON document, and back: what is stored with a published version.

`format` numbers the form. Expressions are kept as text with their place in the file, so that a stored graph never
depends on how this version of Orbit compiles. They are compiled when they are first used: callers keep the graph.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict, replace

from definitions.bounds import Bounds
from definitions.expression import Expression, stored_expression
from definitions.graph import (
    BranchSpec,
    Case,
    ChildSpec,
    Edge,
    FailSpec,
    ForeachSpec,
    ForkSpec,
    Graph,
    Handler,
    Handling,
    JoinPolicy,
    JoinSpec,
    KeyPolicy,
    LaneSpec,
    Node,
    NodeKind,
    PollSpec,
    RetrySpec,
    ReturnSpec,
    SetSpec,
    SignalSpec,
    Spec,
    StartRules,
    TaskSpec,
    UntilSpec,
    WaitSpec,
)
from definitions.positions import Positions
from definitions.template import Template, stored_template
from orbit.formats import FIRST, NEWEST, StoredFormat
from orbit.jsontext import Json

FORMATS_READ = frozenset(range(FIRST, NEWEST[StoredFormat.GRAPH] + 1))

Document = dict[str, Any]


class UnknownGraphFormat(ValueError):
    """The graph was written by a newer Orbit; a node that meets one leaves its instances to others."""

    def __init__(self, number: object) -> None:
        super().__init__(f"graph format {number} is not known to this version")


def graph_to_json(graph: Graph) -> Json:
    """Write a graph as a JSON value. The same graph gives the same document."""
    return {
        "format": graph.format,
        "workflow": graph.workflow,
        "version": graph.version,
        "title": graph.title,
        "nodes": [_node_to_json(node) for node in graph.nodes],
        "edges": [[edge.source, edge.target, edge.case] for edge in graph.edges],
        "input_schema": graph.input_schema,
        "output": _template_to_json(graph.output),
        "timeout_seconds": graph.timeout_seconds,
        "on_failure": graph.on_failure,
        "bounds": asdict(graph.bounds),
        "starts": asdict(graph.starts),
        "output_schema": graph.output_schema,
        **({"redact": list(graph.redact)} if graph.redact else {}),
    }


def graph_from_json(document: Json) -> Graph:
    """Read what `graph_to_json` wrote. Raises UnknownGraphFormat."""
    if document["format"] not in FORMATS_READ:
        raise UnknownGraphFormat(document["format"])
    nodes = tuple(_node_from_json(node) for node in document["nodes"])
    edges = tuple(Edge(source, target, case) for source, target, case in document["edges"])
    return Graph(
        format=document["format"],
        workflow=document["workflow"],
        version=document["version"],
        title=document["title"],
        nodes=_with_lanes(nodes, edges),
        edges=edges,
        input_schema=document["input_schema"],
        output=_template_from_json(document["output"]),
        timeout_seconds=document["timeout_seconds"],
        on_failure=document["on_failure"],
        bounds=Bounds(**document["bounds"]),
        starts=_starts_from_json(document.get("starts")),
        output_schema=document.get("output_schema"),
        redact=tuple(document.get("redact", ())),
    )


def _with_lanes(nodes: tuple[Node, ...], edges: tuple[Edge, ...]) -> tuple[Node, ...]:
    """Find the lanes of FORKs that were stored without: one stretch of nodes each, from the fork's edge on."""
    if not any(node.kind is NodeKind.FORK and node.spec is None for node in nodes):
        return nodes
    found = list(nodes)
    index = {node.id: place for place, node in enumerate(nodes)}
    joins = {index[node.spec.opens]: place for place, node in enumerate(nodes) if isinstance(node.spec, JoinSpec)}
    for place, node in enumerate(nodes):  # an outer block comes before those in it, which then say it nearer
        if node.kind is not NodeKind.FORK:
            continue
        starts = {edge.target: edge.case or "" for edge in edges if edge.source == place}
        found[place] = replace(found[place], spec=ForkSpec(tuple(map(LaneSpec, starts.values()))))
        label = ""
        for inner in range(place + 1, joins.get(place, len(nodes))):
            label = starts.get(inner, label)
            found[inner] = replace(found[inner], inside=(node.id, label))
    return tuple(found)


def _starts_from_json(document: Document | None) -> StartRules:
    if document is None:  # a version that was published before there were rules
        return StartRules()
    return StartRules(KeyPolicy(document["business_key_policy"]), document["max_running"])


def _node_to_json(node: Node) -> Document:
    within = {} if node.within is None else {"within": node.within}
    extra: Document = {}
    if node.handlers:
        extra["handlers"] = [_handler_to_json(handler) for handler in node.handlers]
    if node.compensate is not None:
        extra["compensate"] = _task_to_json(node.compensate)
    if node.error_of is not None:
        extra["error_of"] = node.error_of
    return {
        **within,
        "id": node.id,
        "kind": node.kind.value,
        "title": node.title,
        "line": node.line,
        "column": node.column,
        "when": _expression_to_json(node.when),
        "pause_at": node.pause_at,
        "spec": _spec_to_json(node.spec),
        **({} if node.inside is None else {"inside": list(node.inside)}),
        **extra,
    }


def _handler_to_json(handler: Handler) -> Document:
    return {**asdict(replace(handler, value=None)), "value": _template_to_json(handler.value)}


def _handler_from_json(document: Document) -> Handler:
    changed = {"then": Handling(document["then"]), "value": _template_from_json(document["value"])}
    return Handler(**{**document, **changed})


def _node_from_json(document: Document) -> Node:
    kind = NodeKind(document["kind"])
    return Node(
        id=document["id"],
        kind=kind,
        spec=_spec_from_json(kind, document["spec"]),
        when=_expression_from_json(document["when"]),
        title=document["title"],
        line=document["line"],
        column=document["column"],
        inside=(inside[0], inside[1]) if (inside := document.get("inside")) else None,
        pause_at=document.get("pause_at", False),
        within=document.get("within"),
        handlers=tuple(map(_handler_from_json, document.get("handlers", ()))),
        error_of=document.get("error_of"),
        compensate=_task_from_json(document["compensate"]) if "compensate" in document else None,
    )


def _expression_to_json(expression: Expression | None) -> Document | None:
    if expression is None:
        return None
    return {
        "text": expression.source,
        "at": [list(run) for run in expression.positions.runs],
        "steps": sorted(expression.step_references),
    }


def _expression_from_json(document: Document | None) -> Expression | None:
    return None if document is None else _certain_expression(document)


def _certain_expression(document: Document) -> Expression:
    return stored_expression(
        document["text"], positions=Positions.of(document["at"]), step_references=frozenset(document["steps"])
    )


def _template_to_json(template: Template | None) -> Document | None:
    if template is None:
        return None
    at = {pointer: [list(run) for run in positions.runs] for pointer, positions in template.places.items()}
    return {"value": template.source, "at": at, "steps": sorted(template.step_references)}


def _template_from_json(document: Document | None) -> Template | None:
    return None if document is None else _certain_template(document)


def _certain_template(document: Document) -> Template:
    places = {pointer: Positions.of(runs) for pointer, runs in document["at"].items()}
    return stored_template(document["value"], places=places, step_references=frozenset(document["steps"]))


def _task_to_json(task: TaskSpec) -> Document:
    return {
        "type": task.type,
        "task_version": task.task_version,
        "queue": task.queue,
        "input": _template_to_json(task.input),
        "retry": asdict(task.retry),
        "attempt_timeout_seconds": task.attempt_timeout_seconds,
        "start_within_seconds": task.start_within_seconds,
        "timeout_seconds": task.timeout_seconds,
        "priority": task.priority,
        "output_schema": task.output_schema,
        # Left out where there are none: a graph that does not use them is written as it always was.
        **(
            {"concurrency_keys": [_template_to_json(key) for key in task.concurrency_keys]}
            if task.concurrency_keys
            else {}
        ),
    }


def _task_from_json(document: Document) -> TaskSpec:
    changed = {
        "input": _certain_template(document["input"]),
        "retry": RetrySpec(**document["retry"]),
        "concurrency_keys": tuple(_certain_template(key) for key in document.get("concurrency_keys", ())),
    }
    return TaskSpec(**{**document, **changed})


def _spec_to_json(spec: Spec) -> Document | None:
    match spec:
        case TaskSpec():
            return _task_to_json(spec)
        case BranchSpec(cases=cases):
            return {"cases": [{"label": case.label, "when": _expression_to_json(case.when)} for case in cases]}
        case ForeachSpec():
            return {
                "items": _expression_to_json(spec.items),
                "items_max": spec.items_max,
                "concurrency": spec.concurrency,
                "output": _template_to_json(spec.output),
                "last": spec.last,
            }
        case WaitSpec(for_seconds=for_seconds):
            return {"for_seconds": for_seconds}
        case UntilSpec():
            return {
                "until": _expression_to_json(spec.until),
                "timeout_seconds": spec.timeout_seconds,
                "continue_on_timeout": spec.continue_on_timeout,
            }
        case SignalSpec():
            return {
                "signal": spec.signal,
                "timeout_seconds": spec.timeout_seconds,
                "continue_on_timeout": spec.continue_on_timeout,
                "payload_schema": spec.payload_schema,
                "accept_when": _expression_to_json(spec.accept_when),
            }
        case PollSpec():
            return {
                "task": _task_to_json(spec.task),
                "done_when": _expression_to_json(spec.done_when),
                "fail_when": _expression_to_json(spec.fail_when),
                "every_seconds": spec.every_seconds,
                "backoff": spec.backoff,
                "every_seconds_max": spec.every_seconds_max,
                "rounds_max": spec.rounds_max,
                "timeout_seconds": spec.timeout_seconds,
                "continue_on_round_error": spec.continue_on_round_error,
            }
        case SetSpec(values=values):
            return {"values": _template_to_json(values)}
        case FailSpec(code=code, message=message):
            return {"code": code, "message": _template_to_json(message)}
        case ReturnSpec(output=output):
            return {"output": _template_to_json(output)}
        case ChildSpec():
            return {
                "workflow": spec.workflow,
                "version": spec.version,
                "input": _template_to_json(spec.input),
                "timeout_seconds": spec.timeout_seconds,
                "bound_seconds": spec.bound_seconds,
                "input_schema": spec.input_schema,
                "output_schema": spec.output_schema,
                "depth": spec.depth,
                "queues": list(spec.queues),
                **({"redact": list(spec.redact)} if spec.redact else {}),
            }
        case ForkSpec(lanes=lanes):
            return {"lanes": [{"label": lane.label, "needs": list(lane.needs)} for lane in lanes]}
        case JoinSpec(policy=policy, opens=opens, at_least=at_least):
            return {"policy": policy.value, "opens": opens, **({"at_least": at_least} if at_least else {})}
        case None:
            return None


def _spec_from_json(kind: NodeKind, document: Document | None) -> Spec:
    if document is None:
        return None
    match kind:
        case NodeKind.TASK:
            return _task_from_json(document)
        case NodeKind.BRANCH:
            cases = (Case(case["label"], _expression_from_json(case["when"])) for case in document["cases"])
            return BranchSpec(tuple(cases))
        case NodeKind.FOREACH:
            items = _certain_expression(document["items"])
            return ForeachSpec(**{**document, "items": items, "output": _template_from_json(document["output"])})
        case NodeKind.WAIT if "until" in document:
            return UntilSpec(**{**document, "until": _certain_expression(document["until"])})
        case NodeKind.WAIT if "signal" in document:
            return SignalSpec(**{**document, "accept_when": _expression_from_json(document["accept_when"])})
        case NodeKind.WAIT:
            return WaitSpec(**document)
        case NodeKind.POLL:
            changed: Document = {
                "task": _task_from_json(document["task"]),
                "done_when": _certain_expression(document["done_when"]),
                "fail_when": _expression_from_json(document["fail_when"]),
            }
            return PollSpec(**{**document, **changed})
        case NodeKind.SET:
            return SetSpec(_certain_template(document["values"]))
        case NodeKind.FAIL:
            return FailSpec(document["code"], _certain_template(document["message"]))
        case NodeKind.RETURN:
            return ReturnSpec(_certain_template(document["output"]))
        case NodeKind.WORKFLOW:
            changed = {
                "input": _certain_template(document["input"]),
                "queues": tuple(document["queues"]),
                "redact": tuple(document.get("redact", ())),
            }
            return ChildSpec(**{**document, **changed})
        case NodeKind.JOIN:
            return JoinSpec(**{**document, "policy": JoinPolicy(document["policy"])})
        case NodeKind.FORK:
            return ForkSpec(tuple(LaneSpec(lane["label"], tuple(lane["needs"])) for lane in document["lanes"]))
