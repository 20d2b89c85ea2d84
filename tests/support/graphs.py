"""Graphs written in Python, for tests of the engine that are not about the language."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from definitions.bounds import Bounds
from definitions.expression import compile_expression
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
    LaneSpec,
    Node,
    NodeKind,
    PollSpec,
    RetrySpec,
    ReturnSpec,
    SetSpec,
    SignalSpec,
    Spec,
    TaskSpec,
    UntilSpec,
    WaitSpec,
    handler_case,
)
from definitions.template import compile_template
from engine.recovery import has_output
from orbit.jsontext import Json

NO_BOUNDS = Bounds()


class Block(Struct, frozen=True):
    """A step of the language: a node, and for a branch or parallel block its parts by label."""

    id: str
    kind: NodeKind
    spec: Spec = None
    when: str | None = None
    parts: Mapping[str, Sequence["Block"]] = field(default_factory=dict)
    join: JoinPolicy = JoinPolicy.ALL
    at_least: int = 0
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    handlers: Sequence[tuple[Handler, Sequence["Block"]]] = ()
    compensate: TaskSpec | None = None

    def only_if(self, when: str) -> "Block":
        return replace(self, when=when)

    def undone(self, params: Json = None, **changes: Any) -> "Block":
        """Add a compensation; `changes` are fields of TaskSpec."""
        return replace(self, compensate=task_spec(f"undo.{self.id}", params, **changes))

    def on_error(self, match: str, then: Handling | Sequence["Block"], value: Json = None, **changes: Any) -> "Block":
        """Add an error handler: a way of handling, or its steps; `changes` are fields of Handler."""
        lane: Sequence[Block] = [] if isinstance(then, Handling) else then
        template = compile_template(value) if then is Handling.CONTINUE else None
        handler = Handler(match, then if isinstance(then, Handling) else Handling.STEPS, value=template, **changes)
        return replace(self, handlers=[*self.handlers, (handler, lane)])


def task_spec(type_: str = "do.it", params: Json = None, **changes: Any) -> TaskSpec:
    """A task with short bounds; `changes` are fields of TaskSpec."""
    spec = TaskSpec(
        type=type_,
        task_version=1,
        queue="main",
        input=compile_template(params),
        retry=RetrySpec(3, 1.0, 60.0),
        attempt_timeout_seconds=60.0,
        start_within_seconds=600.0,
        timeout_seconds=3600.0,
        priority=4,
    )
    return replace(spec, **changes)


def task(identifier: str, params: Json = None, **changes: Any) -> Block:
    return Block(identifier, NodeKind.TASK, task_spec(f"do.{identifier}", params, **changes))


def wait(identifier: str, seconds: float) -> Block:
    return Block(identifier, NodeKind.WAIT, WaitSpec(seconds))


def wait_until(identifier: str, until: str, timeout_seconds: float, *, continue_on_timeout: bool = False) -> Block:
    return Block(identifier, NodeKind.WAIT, UntilSpec(compile_expression(until), timeout_seconds, continue_on_timeout))


def wait_signal(
    identifier: str, name: str, timeout_seconds: float, *, goes_on: bool = False, accept_when: str | None = None
) -> Block:
    accepts = None if accept_when is None else compile_expression(accept_when)
    return Block(identifier, NodeKind.WAIT, SignalSpec(name, timeout_seconds, goes_on, None, accepts))


def child(identifier: str, params: Json = None, timeout_seconds: float | None = None) -> Block:
    """A child that takes an object with an integer `n`, and is bound to an hour."""
    spec = ChildSpec(
        workflow="child",
        version=1,
        input=compile_template(params),
        timeout_seconds=timeout_seconds,
        bound_seconds=3600.0,
        input_schema={"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}},
        output_schema={"type": ["object", "null"]},
        depth=1,
        queues=("main",),
    )
    return Block(identifier, NodeKind.WORKFLOW, spec)


def put(identifier: str, values: Json) -> Block:
    return Block(identifier, NodeKind.SET, SetSpec(compile_template(values)))


def fail(identifier: str, code: str = "REFUSED", message: str = "refused") -> Block:
    return Block(identifier, NodeKind.FAIL, FailSpec(code, compile_template(message)))


def done(identifier: str, output: Json = None) -> Block:
    return Block(identifier, NodeKind.RETURN, ReturnSpec(compile_template(output)))


def poll(
    identifier: str, done_when: str = "output.status == 'DONE'", fail_when: str | None = None, **changes: Any
) -> Block:
    """A poll every 10 s, at most 5 rounds in a day; `changes` are fields of PollSpec."""
    spec = PollSpec(
        task=task_spec(f"ask.{identifier}", {"round": "${ round }"}),
        done_when=compile_expression(done_when),
        fail_when=None if fail_when is None else compile_expression(fail_when),
        every_seconds=10.0,
        backoff=1.0,
        every_seconds_max=600.0,
        rounds_max=5,
        timeout_seconds=86_400.0,
        continue_on_round_error=False,
    )
    return Block(identifier, NodeKind.POLL, replace(spec, **changes))


def branch(identifier: str, cases: Mapping[str, Sequence[Block]]) -> Block:
    """A branch: each key is a condition, or `else`; it is the case's label too."""
    labels = tuple(Case(label, None if label == "else" else compile_expression(label)) for label in cases)
    return Block(identifier, NodeKind.BRANCH, BranchSpec(labels), parts=cases)


def parallel(
    identifier: str, branches: Mapping[str, Sequence[Block]], join: str = "all", *, at_least: int = 0
) -> Block:
    lanes = ForkSpec(tuple(LaneSpec(label) for label in branches))
    return Block(identifier, NodeKind.FORK, lanes, parts=branches, join=JoinPolicy(join), at_least=at_least)


def dependent(
    identifier: str, steps: Sequence[tuple[Block, Sequence[str]]], join: str = "all", *, at_least: int = 0
) -> Block:
    """A dependency graph: each step with the ids that it needs, which stand before it."""
    needs = {step.id: tuple(needed) for step, needed in steps}
    lanes = ForkSpec(tuple(LaneSpec(label, needed) for label, needed in needs.items()))
    parts = {step.id: [step] for step, _ in steps}
    return Block(identifier, NodeKind.FORK, lanes, parts=parts, join=JoinPolicy(join), at_least=at_least, needs=needs)


Ends = list[tuple[int, str | None]]


def foreach(identifier: str, items: str, steps: Sequence[Block], **changes: Any) -> Block:
    """A foreach whose items leave the output of their last step if that has one; `changes` are of ForeachSpec."""
    end = steps[-1]
    last = end.id if has_output(Node(end.id, end.kind, end.spec, None, None, 1, 1)) else None
    spec = ForeachSpec(compile_expression(items), items_max=10, concurrency=10, output=None, last=last)
    return Block(identifier, NodeKind.FOREACH, replace(spec, **changes), parts={"each item": steps})


class _Lowering:
    def __init__(self) -> None:
        self.within: str | None = None
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self.inside: tuple[str, str] | None = None
        self.error_of: str | None = None

    def sequence(self, blocks: Sequence[Block], ends: Ends) -> Ends:
        for block in blocks:
            ends = [(self.block(block, ends), None)]
        return ends

    def node(self, node: Node, ends: Ends) -> int:
        self.nodes.append(replace(node, inside=self.inside, within=self.within))
        index = len(self.nodes) - 1
        self.edges.extend(Edge(source, index, case) for source, case in ends)
        return index

    def block(self, block: Block, ends: Ends) -> int:
        when = None if block.when is None else compile_expression(block.when)
        handlers = tuple(handler for handler, _ in block.handlers)
        line = len(self.nodes) + 1
        node = Node(block.id, block.kind, block.spec, when, None, line, 1, handlers=handlers, error_of=self.error_of)
        index = self.node(replace(node, compensate=block.compensate), ends)
        if not block.parts:
            return self.handled(block, index)
        if block.kind is NodeKind.FOREACH:
            inside, self.inside, self.within = self.inside, None, block.id
            self.sequence(block.parts["each item"], [])
            self.inside, self.within = inside, None
            return self.handled(block, index)
        outer = self.inside
        lanes: dict[str, Ends] = {}
        for label, blocks in block.parts.items():
            if block.kind is NodeKind.FORK:
                self.inside = (block.id, label)
            ways = [end for need in block.needs.get(label, ()) for end in lanes[need]]
            lanes[label] = self.sequence(blocks, ways or [(index, label)])
        self.inside = outer
        needed = {need for needs in block.needs.values() for need in needs}
        spec = JoinSpec(block.join, block.id, block.at_least)
        join = Node(f"{block.id}.end", NodeKind.JOIN, spec, None, None, 0, 0)
        ends = [end for label, lane in lanes.items() if label not in needed for end in lane]
        return self.handled(block, self.node(join, ends))

    def handled(self, block: Block, index: int) -> int:
        """Add the steps of a block's handlers and the join behind them; without such steps it is its own end."""
        face = self.nodes[index].id
        outside, self.error_of = self.error_of, face
        ends = [
            end
            for place, (_, lane) in enumerate(block.handlers)
            if lane
            for end in self.sequence(lane, [(index, handler_case(place))])
        ]
        self.error_of = outside
        if not ends:
            return index
        spec = JoinSpec(JoinPolicy.ALL, face)
        return self.node(Node(f"{block.id}.handled", NodeKind.JOIN, spec, None, None, 0, 0), [(index, None), *ends])


def graph(
    *blocks: Block,
    output: Json = None,
    timeout: float = 7 * 86_400.0,
    on_failure: str = "hold",
    input_schema: Json = True,
    version: int = 1,
) -> Graph:
    lowering = _Lowering()
    lowering.sequence(blocks, [])
    return Graph(
        format=1,
        workflow="test",
        version=version,
        title=None,
        nodes=tuple(lowering.nodes),
        edges=tuple(lowering.edges),
        input_schema=input_schema,
        output=None if output is None else compile_template(output),
        timeout_seconds=timeout,
        on_failure=on_failure,
        bounds=NO_BOUNDS,
    )
