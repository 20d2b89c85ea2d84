"""The blocks of a step graph, found again in its nodes and edges: what a drawing and a reader see as nested.

A graph lists its nodes block by block, so a block is one stretch of it: its opener, its lanes one after the other, its
join. A block without a join is one in which every lane ends the instance; nothing can follow it.
"""

from __future__ import annotations

from msgspec import Struct

from definitions.graph import BranchSpec, ForkSpec, Graph, Handling, JoinSpec, Node, NodeKind, handler_case

_OPENERS = frozenset({NodeKind.BRANCH, NodeKind.FORK})
_ENDS = frozenset({NodeKind.FAIL, NodeKind.RETURN})


class Lane(Struct, frozen=True):
    """One lane of a block: a case, a branch, the steps of an item, or a step of a dependency graph.

    Such a step `needs` other lanes by label. Or the steps of an error handler; `when` says when a case or a handler is
    taken.
    """

    label: str
    when: str | None
    parts: tuple[Part, ...]
    needs: tuple[str, ...] = ()

    @property
    def goes_on(self) -> bool:
        """Tell whether the flow can leave the lane at its end."""
        if not self.parts:
            return True
        last = self.parts[-1]
        if isinstance(last, Block):
            return last.goes_on
        return last.kind not in _ENDS or last.when is not None


class Block(Struct, frozen=True):
    """A block of steps: a branch, parallel or foreach, or a step with its error handlers; `join` may be None.

    `handled` is the join behind the steps of its error handlers, None where they have none.
    """

    opener: Node
    lanes: tuple[Lane, ...]
    join: Node | None
    handled: Node | None = None

    @property
    def has_needs(self) -> bool:
        """Tell whether the lanes have an order of their own."""
        return any(lane.needs for lane in self.lanes)

    @property
    def goes_on(self) -> bool:
        """Tell whether the flow can leave the block."""
        return self.join is not None or self.handled is not None or self.opener.kind is NodeKind.FOREACH


Part = Node | Block


def structure_of(graph: Graph) -> tuple[Part, ...]:
    """Return the steps of a graph as they were nested in its text."""
    return _Finder(graph).parts(0, len(graph.nodes))


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self._nodes = graph.nodes
        index = {node.id: place for place, node in enumerate(graph.nodes)}
        self._joins = {
            index[node.spec.opens]: place for place, node in enumerate(graph.nodes) if isinstance(node.spec, JoinSpec)
        }
        self._cases: dict[int, dict[str, int]] = {}
        for edge in graph.edges:
            if edge.case is not None:
                self._cases.setdefault(edge.source, {}).setdefault(edge.case, edge.target)
        self._lanes: dict[tuple[str, str], int] = {}  # where each lane of a fork starts
        for place, node in enumerate(graph.nodes):
            if node.inside is not None:
                self._lanes.setdefault(node.inside, place)

    def parts(self, start: int, stop: int) -> tuple[Part, ...]:
        found: list[Part] = []
        place = start
        while place < stop:
            part, place = self._part(place, stop)
            found.append(part)
        return tuple(found)

    def _part(self, place: int, stop: int) -> tuple[Part, int]:
        """Find what begins at a place, and where it ends."""
        node = self._nodes[place]
        join = self._joins.get(place)
        if node.kind is NodeKind.FOREACH:
            end = next((at for at in range(place + 1, stop) if self._nodes[at].within != node.id), stop)
            items = Lane("each item", None, self.parts(place + 1, end))
            return self._with_handlers(Block(node, (items,), None), place, end)
        if node.kind not in _OPENERS:
            if join is None:
                return node, place + 1
            past = Lane("done", None, ())
            return self._with_handlers(Block(node, (past,), None), place, place + 1)
        end = stop if join is None else join
        block = Block(node, self._lanes_of(node, place, end), None if join is None else self._nodes[join])
        return self._with_handlers(block, end, min(end + 1, stop))

    def _with_handlers(self, block: Block, face: int, end: int) -> tuple[Block, int]:
        """Add the lanes of the handlers that begin at a block's face, or at a step, beside its own."""
        join = self._joins.get(face)
        if join is None:
            return block, end
        labels = {
            handler_case(index): f"on {handler.match}"
            for index, handler in enumerate(block.opener.handlers)
            if handler.then is Handling.STEPS
        }
        starts = [self._cases[face][label] for label in labels]
        stops = [*starts[1:], join]
        lanes = [
            Lane(label, when, self.parts(start, stop))
            for (label, when), start, stop in zip(labels.items(), starts, stops, strict=True)
        ]
        return Block(block.opener, (*block.lanes, *lanes), block.join, self._nodes[join]), join + 1

    def _lanes_of(self, opener: Node, place: int, end: int) -> tuple[Lane, ...]:
        plans: list[tuple[str, str | None, tuple[str, ...]]]
        if isinstance(opener.spec, ForkSpec):
            plans = [(lane.label, None, lane.needs) for lane in opener.spec.lanes]
            starts = [self._lanes[opener.id, lane.label] for lane in opener.spec.lanes]
        else:
            assert isinstance(opener.spec, BranchSpec), f"node {opener.id} opens no lanes"
            plans = [
                (case.label, None if case.when is None else f"when {case.when.source}", ())
                for case in opener.spec.cases
            ]
            # An empty case leads straight to the join and has no stretch of its own.
            starts = [min(self._cases[place][case.label], end) for case in opener.spec.cases]
        stops = sorted({*starts, end})
        return tuple(
            Lane(label, when, self.parts(start, next((stop for stop in stops if stop > start), end)), needs)
            for (label, when, needs), start in zip(plans, starts, strict=True)
        )
