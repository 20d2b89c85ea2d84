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

    Such a step `needs` other lanes by label; `when` is the source of a case's condition.
    Or the steps of an error handler; `when` says when a case or a handler is taken.
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
    """A block of steps: a branch, parallel or foreach, or a step with its error handlers; `join` may be None."""

    opener: Node
    lanes: tuple[Lane, ...]
    join: Node | None

    @property
    def has_needs(self) -> bool:
        """Tell whether the lanes have an order of their own."""
        return any(lane.needs for lane in self.lanes)

    @property
    def goes_on(self) -> bool:
        """Tell whether the flow can leave the block."""
        return self.join is not None or self.opener.kind is NodeKind.FOREACH


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
            node = self._nodes[place]
            if node.kind is NodeKind.FOREACH:
                end = next((at for at in range(place + 1, stop) if self._nodes[at].within != node.id), stop)
                found.append(Block(node, (Lane("each item", None, self.parts(place + 1, end)),), None))
                place = end
                continue
            join = self._joins.get(place)
            if node.kind not in _OPENERS and join is None:
                found.append(node)
                place += 1
                continue
            end = stop if join is None else join
            found.append(Block(node, self._lanes_of(node, place, end), None if join is None else self._nodes[join]))
            place = end + 1
        return tuple(found)

    def _lanes_of(self, opener: Node, place: int, end: int) -> tuple[Lane, ...]:
        plans: list[tuple[str, str | None, tuple[str, ...]]]
        if isinstance(opener.spec, ForkSpec):
            plans = [(lane.label, None, lane.needs) for lane in opener.spec.lanes]
            starts = [self._lanes[opener.id, lane.label] for lane in opener.spec.lanes]
        elif isinstance(opener.spec, BranchSpec):
            plans = [
                (case.label, None if case.when is None else f"when {case.when.source}", ())
                for case in opener.spec.cases
            ]
            # An empty case leads straight to the join and has no stretch of its own.
            starts = [min(self._cases[place][case.label], end) for case in opener.spec.cases]
        else:
            # The way past a step that has error handlers is a lane beside theirs.
            labels = {
                handler_case(index): f"on {handler.match}"
                for index, handler in enumerate(opener.handlers)
                if handler.then is Handling.STEPS
            }
            plans = [("done", None, ()), *((label, when, ()) for label, when in labels.items())]
            starts = [end, *(self._cases[place][label] for label in labels)]
        stops = sorted({*starts, end})
        return tuple(
            Lane(label, when, self.parts(start, next((stop for stop in stops if stop > start), end)), needs)
            for (label, when, needs), start in zip(plans, starts, strict=True)
        )
