"""The parallel blocks of a graph as the engine looks at them: which steps each lane has, and where its flow leaves it.

Made once per version with its Flow. A graph without a parallel block has none of this, and pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from definitions.graph import ForkSpec, Graph, JoinPolicy, JoinSpec, Node
from engine.items import OfItems, item_step, node_of_item

# Items of one foreach whose lanes are kept: more than can be under way at once.
ITEMS_KEPT = 256


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane: the FORK that opens it, its label, the lanes that it needs.

    `members` are all nodes in it, those of nested blocks too, in the graph's order; `exits` are the edges that leave
    it, each as its source and case.
    """

    block: str
    label: str
    needs: tuple[str, ...]
    members: tuple[str, ...]
    exits: tuple[tuple[Node, str | None], ...]

    @property
    def start(self) -> str:
        """Name its first node."""
        return self.members[0]


@dataclass(frozen=True, slots=True)
class ParallelBlock:
    """One parallel block: its FORK, its JOIN (None if every lane ends the instance), and its lanes by label.

    The lanes stand in a topological order of their needs. `around` is the block around it, with the lane it is in.
    """

    opener: str
    join: str | None
    policy: JoinPolicy
    needed: int
    lanes: Mapping[str, Lane]
    around: tuple[str, str] | None

    @property
    def takes_failures(self) -> bool:
        """Tell whether a failure in a lane is an outcome that the join judges, and holds nothing by itself."""
        return self.policy is not JoinPolicy.ALL


@dataclass(frozen=True, slots=True)
class Lanes:
    """All parallel blocks of a graph by their FORK's id, and where each node stands in them."""

    blocks: Mapping[str, ParallelBlock] = field(default_factory=dict)
    judged: Mapping[str, ParallelBlock] = field(default_factory=dict)  # by JOIN: those judged by outcomes
    needing: Mapping[str, Lane] = field(default_factory=dict)  # by first node: the lanes that need others
    absorbers: Mapping[str, Lane] = field(default_factory=dict)  # by node: the lane whose outcome its failure is
    concerned: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by node: the JOINs to judge when it ends

    def around(self, identifier: str) -> Iterator[ParallelBlock]:
        """Give the blocks around a node (around a block, for a JOIN) that take failures, from the inside out."""
        lane = self.absorbers.get(identifier)
        while lane is not None:
            block = self.blocks[lane.block]
            yield block
            lane = self.absorbers.get(block.opener)


def lanes_of(graph: Graph) -> Lanes:
    """Find the parallel blocks of a graph."""
    forks = {node.id: node.spec for node in graph.nodes if isinstance(node.spec, ForkSpec)}
    if not forks:
        return Lanes()
    nodes = {node.id: node for node in graph.nodes}
    joins = {node.spec.opens: (node.id, node.spec) for node in graph.nodes if isinstance(node.spec, JoinSpec)}
    chains = {node.id: tuple(_chain(nodes, node)) for node in graph.nodes}
    members: dict[tuple[str, str], list[str]] = {}
    for node in graph.nodes:
        for lane in chains[node.id]:
            members.setdefault(lane, []).append(node.id)
    exits: dict[tuple[str, str], dict[tuple[str, str | None], None]] = {}
    for edge in graph.edges:
        source, target = graph.nodes[edge.source], graph.nodes[edge.target]
        for lane in chains[source.id]:
            if lane not in chains[target.id]:
                exits.setdefault(lane, {})[source.id, edge.case] = None
    blocks: dict[str, ParallelBlock] = {}
    for fork, spec in forks.items():
        join, policy = joins.get(fork, (None, JoinSpec(JoinPolicy.ALL, fork)))
        made = {
            lane.label: Lane(
                fork,
                lane.label,
                lane.needs,
                tuple(members[fork, lane.label]),
                tuple((nodes[source], case) for source, case in exits.get((fork, lane.label), ())),
            )
            for lane in spec.lanes
        }
        blocks[fork] = ParallelBlock(fork, join, policy.policy, policy.needed, made, nodes[fork].inside)
    lanes = _indexed(blocks, chains)
    within = {node.id: node.within for node in graph.nodes if node.within is not None}
    return _with_items(lanes, within) if within else lanes


def _chain(nodes: Mapping[str, Node], node: Node) -> Iterator[tuple[str, str]]:
    """Give the lanes around a node from the inside out."""
    inside = node.inside
    while inside is not None:
        yield inside
        inside = nodes[inside[0]].inside


def _indexed(blocks: Mapping[str, ParallelBlock], chains: Mapping[str, tuple[tuple[str, str], ...]]) -> Lanes:
    judged = {block.join: block for block in blocks.values() if block.join is not None and block.takes_failures}
    needing = {lane.start: lane for block in blocks.values() for lane in block.lanes.values() if lane.needs}
    absorbers: dict[str, Lane] = {}
    concerned: dict[str, tuple[str, ...]] = {}
    for identifier, chain in chains.items():
        taking = [blocks[fork].lanes[label] for fork, label in chain if blocks[fork].takes_failures]
        if taking:
            absorbers[identifier] = taking[0]
        of_block = blocks.get(identifier)
        own = (of_block.join,) if of_block is not None and of_block.takes_failures else ()
        to_judge = [join for join in (*own, *(blocks[lane.block].join for lane in taking)) if join is not None]
        if to_judge:
            concerned[identifier] = tuple(to_judge)
    return Lanes(blocks, judged, needing, absorbers, concerned)


def _with_items(lanes: Lanes, within: Mapping[str, str]) -> Lanes:
    """Let lanes tell of the steps of items too: those of an item are made when they are asked for, and kept a while."""

    @lru_cache(maxsize=ITEMS_KEPT)
    def of_item(foreach: str, index: int) -> Lanes:
        return _lanes_of_item(lanes, {step for step in within if within[step] == foreach}, index)

    def aware(name: str) -> OfItems[Any]:
        def made(step: str, index: int, _part: Any) -> Any:
            return getattr(of_item(within[step], index), name)[item_step(step, index)]

        return OfItems(getattr(lanes, name), within, made)

    return Lanes(*(aware(each.name) for each in fields(Lanes)))


def _lanes_of_item(lanes: Lanes, parts: set[str], index: int) -> Lanes:
    def name(step: str) -> str:
        return item_step(step, index)

    def lane_of(lane: Lane) -> Lane:
        return blocks[name(lane.block)].lanes[lane.label]

    blocks = {
        name(opener): ParallelBlock(
            name(opener),
            None if block.join is None else name(block.join),
            block.policy,
            block.needed,
            {
                label: Lane(
                    name(opener),
                    label,
                    lane.needs,
                    tuple(map(name, lane.members)),
                    tuple((node_of_item(source, index), case) for source, case in lane.exits),
                )
                for label, lane in block.lanes.items()
            },
            None if block.around is None else (name(block.around[0]), block.around[1]),
        )
        for opener, block in lanes.blocks.items()
        if opener in parts
    }
    return Lanes(
        blocks,
        {name(join): blocks[name(block.opener)] for join, block in lanes.judged.items() if join in parts},
        {name(step): lane_of(lane) for step, lane in lanes.needing.items() if step in parts},
        {name(step): lane_of(lane) for step, lane in lanes.absorbers.items() if step in parts},
        {name(step): tuple(map(name, joins)) for step, joins in lanes.concerned.items() if step in parts},
    )
