"""A graph made ready for running: neighbours by step id, and the one rule that says where the flow goes.

Two refinements of the rule in `definitions.graph`. A FAILED step leaves its outgoing edges undecided: nothing behind it
is entered until a person has decided (or the instance ends), so that no join goes on past a failure. And a block that
is skipped by its own `when` opens none of its branches: its join takes over that outcome, so the flow goes on past it.
Joins of other policies than `all`, and steps with `needs`, are judged by `joining`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cached_property

from jsonschema import Draft202012Validator

from definitions.expression import Expression
from definitions.graph import (
    BranchSpec,
    ChildSpec,
    FailSpec,
    Graph,
    JoinSpec,
    Node,
    NodeKind,
    PollSpec,
    ReturnSpec,
    SetSpec,
    SignalSpec,
    Spec,
    TaskSpec,
)
from definitions.template import Template
from engine.instance import Step
from engine.lanes import lanes_of
from engine.states import PASSED, StepState
from orbit.schemas.validation import validator_of


class EdgeState(Enum):
    """What is known of an edge."""

    UNDECIDED = 0
    LIVE = 1
    DEAD = 2


class Flow:
    """A graph with its neighbours and schema validators, made once per version and shared by all its instances."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: Mapping[str, Node] = {node.id: node for node in graph.nodes}
        self.order: Mapping[str, int] = {node.id: index for index, node in enumerate(graph.nodes)}
        incoming: dict[str, list[tuple[Node, str | None]]] = {node.id: [] for node in graph.nodes}
        outgoing: dict[str, dict[str, None]] = {node.id: {} for node in graph.nodes}
        for edge in graph.edges:
            source, target = graph.nodes[edge.source], graph.nodes[edge.target]
            incoming[target.id].append((source, edge.case))
            outgoing[source.id][target.id] = None
        self.incoming = {identifier: tuple(edges) for identifier, edges in incoming.items()}
        self.outgoing = {identifier: tuple(targets) for identifier, targets in outgoing.items()}
        self.roots = tuple(node.id for node in graph.nodes if not incoming[node.id])
        self.queues = graph.queues
        self.lanes = lanes_of(graph)
        self._child_validators: dict[str, Draft202012Validator] = {}
        self._output_validators: dict[str, Draft202012Validator | None] = {}

    @cached_property
    def references(self) -> Mapping[str, frozenset[str]]:
        """The steps whose output each node may read."""
        found: dict[str, frozenset[str]] = {}
        for node in self.graph.nodes:
            parts = [node.when, *_expressions(node.spec)]
            found[node.id] = frozenset[str]().union(*(part.step_references for part in parts if part is not None))
        return found

    @cached_property
    def output_references(self) -> frozenset[str]:
        """The steps whose output the workflow's own output may read."""
        return frozenset() if self.graph.output is None else self.graph.output.step_references

    @cached_property
    def input_validator(self) -> Draft202012Validator:
        """The compiled validator of an instance's input."""
        return validator_of(self.graph.input_schema)

    @cached_property
    def signals(self) -> Mapping[str, tuple[Node, ...]]:
        """The waits for each signal by its name, in the definition's order."""
        found: dict[str, tuple[Node, ...]] = {}
        for node in self.graph.nodes:
            if isinstance(node.spec, SignalSpec):
                found[node.spec.signal] = (*found.get(node.spec.signal, ()), node)
        return found

    def output_validator(self, node: Node) -> Draft202012Validator | None:
        """Give the compiled validator of a step's output, None if it declares no schema."""
        if node.id not in self._output_validators:
            spec = node.spec.task if isinstance(node.spec, PollSpec) else node.spec
            schema = spec.output_schema if isinstance(spec, TaskSpec | ChildSpec) else None
            if isinstance(spec, SignalSpec):
                schema = spec.payload_schema
            self._output_validators[node.id] = None if schema is None else validator_of(schema)
        return self._output_validators[node.id]

    def child_validator(self, node: Node) -> Draft202012Validator:
        """Give the compiled validator of the input of a node's child."""
        if node.id not in self._child_validators:
            assert isinstance(node.spec, ChildSpec), f"node {node.id} has no child"
            self._child_validators[node.id] = validator_of(node.spec.input_schema)
        return self._child_validators[node.id]

    def opener(self, node: Node) -> str | None:
        """Name the block that a JOIN closes."""
        return node.spec.opens if isinstance(node.spec, JoinSpec) else None


def _expressions(spec: Spec) -> list[Expression | Template | None]:
    match spec:
        case TaskSpec() | ChildSpec():
            return [spec.input]
        case PollSpec():
            return [spec.task.input, spec.done_when, spec.fail_when]
        case SignalSpec():
            return [spec.accept_when]
        case BranchSpec():
            return [case.when for case in spec.cases]
        case SetSpec():
            return [spec.values]
        case FailSpec():
            return [spec.message]
        case ReturnSpec():
            return [spec.output]
        case _:
            return []


def edge_state(source: Node, step: Step | None, case: str | None) -> EdgeState:
    """Judge one edge by its source: the rule of `definitions.graph` with this module's two refinements."""
    if step is None:
        return EdgeState.UNDECIDED
    opens_block = source.kind in {NodeKind.BRANCH, NodeKind.FORK}
    match step.state:
        case StepState.SUCCEEDED:
            is_live = source.kind is not NodeKind.BRANCH or case == step.chosen
        case StepState.SKIPPED:
            is_live = step.reason in PASSED and not opens_block
        case StepState.CANCELLED:
            is_live = False
        case _:
            return EdgeState.UNDECIDED
    return EdgeState.LIVE if is_live else EdgeState.DEAD
