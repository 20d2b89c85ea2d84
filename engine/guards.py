"""The blocks of a graph whose failures are handled: what stands in each, and which of them a failed step concerns.

A block's `face` is the step that fails when the block does, and at which its handlers begin: the JOIN that closes a
branch or a parallel block, or the FOREACH itself. Made once per version with its Flow; a graph without a handled block
has none of this, and pays nothing. What becomes of such a block is decided in `blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from definitions.graph import Graph, JoinSpec, Node, NodeKind
from engine.instance import Step
from engine.items import OfItems, item_step, parted
from engine.lanes import Lanes

_BLOCKS = frozenset({NodeKind.BRANCH, NodeKind.FORK, NodeKind.FOREACH})


@dataclass(frozen=True, slots=True)
class Guard:
    """One handled block: `members` are its own nodes without the face, `loops` the foreach steps in it.

    `may_restart` tells whether all of it can be done once more: nothing in it is a child or is undone.
    """

    face: str
    opener: str
    members: tuple[str, ...]
    loops: tuple[str, ...]
    may_restart: bool

    @property
    def is_foreach(self) -> bool:
        """Tell whether it is the items of a foreach that are handled together."""
        return self.face == self.opener


@dataclass(frozen=True, slots=True)
class Guards:
    """All handled blocks by their face; `around` are the faces around each node, from the inside out.

    `asked` are those of them whose handlers see a failure of the node: none that lies outside a join which takes it.
    """

    faces: Mapping[str, Guard] = field(default_factory=dict)
    around: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    asked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    face_of: Mapping[str, str] = field(default_factory=dict)  # by the id of a branch or parallel block

    def all_around(self, identifier: str, foreach: str | None) -> Iterator[str]:
        """Give the faces around a step, for one of an item those around its foreach too."""
        yield from self.around.get(identifier, ())
        if foreach is not None:
            if foreach in self.faces:
                yield foreach
            yield from self.around.get(foreach, ())


def guards_of(graph: Graph, lanes: Lanes) -> Guards:
    """Find the handled blocks of a graph."""
    opened = [(place, node) for place, node in enumerate(graph.nodes) if node.handlers and (node.kind in _BLOCKS)]
    if not opened:
        return Guards()
    joins = {node.spec.opens: place for place, node in enumerate(graph.nodes) if isinstance(node.spec, JoinSpec)}
    ends = [(place, _end_of(graph.nodes, place, joins)) for place, _ in opened]
    guards = [_guard(graph.nodes, place, end) for place, end in ends]
    faces = {guard.face: guard for guard in guards}
    around: dict[str, tuple[str, ...]] = {}
    asked: dict[str, tuple[str, ...]] = {}
    index = {node.id: place for place, node in enumerate(graph.nodes)}
    for place, node in enumerate(graph.nodes):
        found = [
            (start, graph.nodes[end].id)
            for start, end in ends
            if graph.nodes[start].kind is not NodeKind.FOREACH
            and start <= place < end
            and graph.nodes[start].within == node.within
        ][::-1]
        if found:
            lane = lanes.absorbers.get(node.id)
            limit = -1 if lane is None else index[lane.block]
            around[node.id] = tuple(face for _, face in found)
            asked[node.id] = tuple(face for start, face in found if start > limit)
    within = {node.id: node.within for node in graph.nodes if node.within is not None}
    face_of = {guard.opener: guard.face for guard in faces.values() if not guard.is_foreach}
    return Guards(
        OfItems(faces, within, lambda _step, number, guard: _of_item(guard, number)),
        OfItems(around, within, _faces_of_item),
        OfItems(asked, within, _faces_of_item),
        face_of,
    )


def _end_of(nodes: Sequence[Node], place: int, joins: Mapping[str, int]) -> int:
    """Give the place behind the last node of a block, which for a branch or parallel block is its JOIN's."""
    opener = nodes[place]
    if opener.kind is not NodeKind.FOREACH:
        return joins[opener.id]
    return next((at for at in range(place + 1, len(nodes)) if nodes[at].within != opener.id), len(nodes))


def _guard(nodes: Sequence[Node], place: int, end: int) -> Guard:
    opener, inner = nodes[place], nodes[place:end]
    may_restart = not any(node.kind is NodeKind.WORKFLOW or node.compensate is not None for node in inner)
    if opener.kind is NodeKind.FOREACH:
        return Guard(opener.id, opener.id, (), (opener.id,), may_restart)
    own = tuple(node.id for node in inner if node.within == opener.within)
    loops = tuple(node.id for node in inner if node.kind is NodeKind.FOREACH)
    return Guard(nodes[end].id, opener.id, own, loops, may_restart and not loops)


def undone_blocks_of(graph: Graph) -> Mapping[str, Guard]:
    """Find the branches and parallel blocks that are undone as a whole, by the id of each."""
    opened = [
        place
        for place, node in enumerate(graph.nodes)
        if node.compensate is not None and node.kind in _BLOCKS and node.kind is not NodeKind.FOREACH
    ]
    if not opened:
        return {}
    joins = {node.spec.opens: place for place, node in enumerate(graph.nodes) if isinstance(node.spec, JoinSpec)}
    # A block without a join is one in which every way ends the instance: nothing comes behind it.
    ends = [(place, joins.get(graph.nodes[place].id, len(graph.nodes) - 1)) for place in opened]
    blocks = {graph.nodes[place].id: _guard(graph.nodes, place, end) for place, end in ends}
    within = {node.id: node.within for node in graph.nodes if node.within is not None}
    return OfItems(blocks, within, lambda _step, index, block: _of_item(block, index))


def _of_item(guard: Guard, index: int) -> Guard:
    members = tuple(item_step(member, index) for member in guard.members)
    face, opener = item_step(guard.face, index), item_step(guard.opener, index)
    return Guard(face, opener, members, guard.loops, guard.may_restart)


def _faces_of_item(_step: str, index: int, faces: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(item_step(face, index) for face in faces)


def with_handlers_at_faces(nodes: Sequence[Node], guards: Guards) -> tuple[Node, ...]:
    """Move the handlers of blocks from the author's step to the step that fails when the block does."""
    moved = {guards.face_of[node.id]: node.handlers for node in nodes if node.id in guards.face_of}
    if not moved:
        return tuple(nodes)
    return tuple(
        replace(node, handlers=moved.get(node.id, () if node.id in guards.face_of else node.handlers)) for node in nodes
    )


def steps_in(guard: Guard, steps: Mapping[str, Step], within: Mapping[str, str]) -> Iterator[Step]:
    """Give the entered steps of a block, those of items that are under way too."""
    for member in guard.members:
        if member in steps:
            yield steps[member]
    if guard.loops:
        for name, step in steps.items():
            found = parted(name)
            if found is not None and within.get(found[0]) in guard.loops:
                yield step
