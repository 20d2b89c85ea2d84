"""A graph made ready for running: neighbours by step id, and the one rule that says where the flow goes.

Two refinements of the rule in `definitions.graph`. A FAILED step leaves its outgoing edges undecided: nothing behind it
is entered until a person has decided (or the instance ends), so that no join goes on past a failure. And a block that
is skipped by its own `when` opens none of its branches: its join takes over that outcome, so the flow goes on past it.
Joins of other policies than `all`, and steps with `needs`, are judged by `joining`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from jsonschema import Draft202012Validator

from definitions.expression import Expression
from definitions.graph import (
    HANDLER_CASE,
    BranchSpec,
    ChildSpec,
    FailSpec,
    ForeachSpec,
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
from engine.guards import Guard, guards_of, steps_in, undone_blocks_of, with_handlers_at_faces
from engine.hiding import UNDOING, Hiding
from engine.instance import Step
from engine.items import Item, OfItems, PerItem, item_step, node_of_item, own_name, parted
from engine.lanes import lanes_of
from engine.states import PASSED, STEP_UNFINISHED, StepReason, StepState
from orbit.schemas.validation import validator_of


class EdgeState(Enum):
    """What is known of an edge."""

    UNDECIDED = 0
    LIVE = 1
    DEAD = 2


Incoming = tuple[tuple[Node, str | None], ...]  # the sources of a node's edges with their cases


@dataclass(frozen=True, slots=True)
class Body:
    """What is run for each item of a foreach: its steps, and those of them that begin an item."""

    steps: tuple[str, ...]
    roots: tuple[str, ...]


class Flow:
    """A graph with its neighbours and schema validators, made once per version and shared by all its instances."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        within = {node.id: node.within for node in graph.nodes if node.within is not None}
        self._within = dict(within)
        # Compensations are nodes beside the flow: nothing leads to them, they are entered when the instance undoes.
        undoing = {node.id: undo for node in graph.nodes if (undo := _compensation(node)) is not None}
        self._within |= {undo.id: undo.within for undo in undoing.values() if undo.within is not None}
        self.compensations: Mapping[str, Node] = OfItems(
            undoing, within, lambda _step, index, node: node_of_item(node, index)
        )
        # The foreach steps of whose items something may have to be undone that has been put away.
        self.undone_loops = frozenset(undo.within for undo in undoing.values() if undo.within is not None)
        self.undone_blocks = undone_blocks_of(graph)
        # Whether an instance that ends may have something to undo: its own, or that of a child which runs then.
        self.can_undo = bool(self.compensations) or any(node.kind is NodeKind.WORKFLOW for node in graph.nodes)
        self.lanes = lanes_of(graph)
        self.guards = guards_of(graph, self.lanes)
        nodes = (*with_handlers_at_faces(graph.nodes, self.guards), *self.compensations.values())
        self.nodes: Mapping[str, Node] = PerItem(
            {node.id: node for node in nodes},
            self._within,
            lambda _step, index, node: node_of_item(node, index, within),
        )
        places = {node.id: (index,) for index, node in enumerate(nodes)}
        self.order: Mapping[str, tuple[int, ...]] = PerItem(
            places, self._within, lambda step, index, place: (*places[self._within[step]], index, *place)
        )
        incoming: dict[str, list[tuple[Node, str | None]]] = {node.id: [] for node in nodes}
        outgoing: dict[str, dict[str, None]] = {node.id: {} for node in nodes}
        for edge in graph.edges:
            source, target = nodes[edge.source], nodes[edge.target]
            incoming[target.id].append((source, edge.case))
            outgoing[source.id][target.id] = None
        self.incoming: Mapping[str, Incoming] = PerItem(
            {identifier: tuple(edges) for identifier, edges in incoming.items()}, self._within, _incoming_of_item
        )
        self.outgoing: Mapping[str, tuple[str, ...]] = PerItem(
            {identifier: tuple(targets) for identifier, targets in outgoing.items()},
            self._within,
            lambda _step, index, targets: tuple(item_step(target, index) for target in targets),
        )
        # The steps of the instance itself; those of items are entered with their item.
        self.own_steps = tuple(node.id for node in graph.nodes if node.within is None)
        self.roots = tuple(identifier for identifier in self.own_steps if not incoming[identifier])
        self.bodies: Mapping[str, Body] = {
            node.id: Body(
                tuple(part for part in within if within[part] == node.id),
                tuple(part for part in within if within[part] == node.id and not incoming[part]),
            )
            for node in graph.nodes
            if node.kind is NodeKind.FOREACH
        }
        self.queues = graph.queues
        self.hiding = Hiding(graph)
        self._child_validators: dict[str, Draft202012Validator] = {}
        self._output_validators: dict[str, Draft202012Validator | None] = {}

    def item_of(self, identifier: str) -> Item | None:
        """Tell whose part a step is; None for a step of the instance itself, and for what is no step."""
        found = parted(identifier) if self._within else None
        if found is None or found[0] not in self._within:
            return None
        return Item(self._within[found[0]], found[1])

    def knows(self, identifier: str) -> bool:
        """Tell whether that can be a step of an instance: one of its own, or one of an item."""
        return (identifier in self.nodes and identifier not in self._within) or self.item_of(identifier) is not None

    def seen_as(self, name: str, item: Item | None) -> str:
        """Give the id of the step that an expression in an item, or outside of any, means by a name.

        The output of a handled block is that of its face.
        """
        name = self.guards.face_of.get(name, name)
        is_part = item is not None and self._within.get(name) == item.foreach
        return item_step(name, item.index) if is_part and item is not None else name

    def faces_around(self, identifier: str) -> Iterator[str]:
        """Give the faces of the handled blocks around a step, for one of an item those around its foreach too."""
        if not self.guards.faces:
            return iter(())
        item = self.item_of(identifier)
        return self.guards.all_around(identifier, None if item is None else item.foreach)

    def steps_in(self, guard: Guard, steps: Mapping[str, Step]) -> Iterator[Step]:
        """Give the entered steps of a handled block, those of items that are under way too."""
        return steps_in(guard, steps, self._within)

    @cached_property
    def references(self) -> Mapping[str, frozenset[str]]:
        """The steps whose output each node may read."""
        found: dict[str, frozenset[str]] = {}
        for node in self.nodes.values():
            parts = [node.when, *_expressions(node.spec), *(handler.value for handler in node.handlers)]
            found[node.id] = frozenset[str]().union(*(part.step_references for part in parts if part is not None))
            if isinstance(node.spec, ForeachSpec) and node.spec.last is not None:
                found[node.id] |= {node.spec.last}
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
        name = own_name(node.id)
        if name not in self._output_validators:
            spec = node.spec.task if isinstance(node.spec, PollSpec) else node.spec
            schema = spec.output_schema if isinstance(spec, TaskSpec | ChildSpec) else None
            if isinstance(spec, SignalSpec):
                schema = spec.payload_schema
            if isinstance(spec, ForeachSpec):
                schema = {"type": "array", "maxItems": spec.items_max}
            self._output_validators[name] = None if schema is None else validator_of(schema)
        return self._output_validators[name]

    def child_validator(self, node: Node) -> Draft202012Validator:
        """Give the compiled validator of the input of a node's child."""
        name = own_name(node.id)
        if name not in self._child_validators:
            assert isinstance(node.spec, ChildSpec), f"node {node.id} has no child"
            self._child_validators[name] = validator_of(node.spec.input_schema)
        return self._child_validators[name]

    def opener(self, node: Node) -> str | None:
        """Name the block that a JOIN closes."""
        return node.spec.opens if isinstance(node.spec, JoinSpec) else None


def _incoming_of_item(_step: str, index: int, edges: Incoming) -> Incoming:
    return tuple((node_of_item(source, index), case) for source, case in edges)


def is_undoing(step: str) -> bool:
    """Tell whether a step's id is that of a compensation; of a step of an item that is `fetch.undo[3]`."""
    return own_name(step).endswith(UNDOING)


def undone_step(step: str) -> str:
    """Give the id of the step that a compensation undoes; any other id as it is."""
    found = parted(step)
    return step.removesuffix(UNDOING) if found is None else item_step(found[0].removesuffix(UNDOING), found[1])


def _compensation(node: Node) -> Node | None:
    """Make the node of a step's compensation: a task like any other, with an id that no author can write."""
    if node.compensate is None:
        return None
    place = (node.line, node.column)
    return Node(f"{node.id}{UNDOING}", NodeKind.TASK, node.compensate, None, None, *place, within=node.within)


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
        case ForeachSpec():
            return [spec.items, spec.output]
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
    if case is not None and case.startswith(HANDLER_CASE) and step.state is not StepState.FAILED:
        return EdgeState.UNDECIDED if step.state in STEP_UNFINISHED else EdgeState.DEAD
    opens_block = source.kind in {NodeKind.BRANCH, NodeKind.FORK}
    match step.state:
        case StepState.SUCCEEDED:
            is_live = source.kind is not NodeKind.BRANCH or case == step.chosen
        case StepState.SKIPPED:
            is_live = step.reason in PASSED and not opens_block
        case StepState.CANCELLED:
            is_live = False
        case StepState.FAILED if step.reason is StepReason.HANDLED:
            is_live = case == step.chosen
        case StepState.FAILED if step.reason is StepReason.BLOCK_FAILED:
            is_live = False
        case _:
            return EdgeState.UNDECIDED
    return EdgeState.LIVE if is_live else EdgeState.DEAD
