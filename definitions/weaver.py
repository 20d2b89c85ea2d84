"""A checked model to a step graph: one walk over the blocks that compiles expressions, proves references and bounds.

The walk goes on after mistakes, so that all are found; the graph is only used if there are none. A step that is wrong
in itself counts as finished and of unknown type, so that one mistake is one finding.
"""

from __future__ import annotations

from msgspec.structs import replace

from definitions import bounds, child_steps, joins
from definitions.block_checks import check_lanes, check_retry, check_undone_once
from definitions.bounds import Bounds
from definitions.children import Children, schema_of
from definitions.codes import Code
from definitions.expression import Environment, Type
from definitions.expression.checker import NOTHING, Paths
from definitions.expression.types import DYN, NULL, Kind, union
from definitions.expressions import ExpressionCompiler
from definitions.findings import Findings
from definitions.graph import (
    HANDLED,
    BranchSpec,
    Case,
    Edge,
    FailSpec,
    ForeachSpec,
    ForkSpec,
    Handler,
    Handling,
    JoinPolicy,
    JoinSpec,
    LaneSpec,
    Node,
    NodeKind,
    ReturnSpec,
    SetSpec,
    SignalSpec,
    Spec,
    UntilSpec,
    WaitSpec,
    handler_case,
)
from definitions.model import (
    BranchModel,
    ChildModel,
    DefinitionModel,
    FailModel,
    ForeachModel,
    JoinModel,
    LaneModel,
    ParallelModel,
    PollModel,
    ReturnModel,
    SetModel,
    SignalModel,
    StepModel,
    TaskModel,
    UntilModel,
    WaitModel,
)
from definitions.polls import poll_bounds, poll_spec
from definitions.schema import type_of_schema
from definitions.scope import (
    BLOCKS,
    WITH_OUTPUT,
    WITHOUT_OWN_OUTPUT,
    At,
    Catalogue,
    ResultOf,
    Scope,
    round_roots,
    signal_roots,
)
from definitions.source import Source
from definitions.task_weaver import TaskWeaver
from definitions.tasks import spec_of
from definitions.template import Template
from definitions.walk import Frontier, Spot, Walked, Woven
from definitions.yaml_tree import YamlNode
from orbit.jsontext import Json

_SKIPPED = "skipped"  # the case of an edge that is never chosen: it only keeps a join behind its block


class Weaver:
    """Walks one definition; used once."""

    def __init__(self, model: DefinitionModel, source: Source, findings: Findings, children: Children) -> None:
        self._model = model
        self._children = children
        self._findings = findings
        self._expressions = ExpressionCompiler(source, findings)
        self._catalogue = Catalogue(model.steps, is_strict=model.is_strict)
        self._input_type = type_of_schema(model.input_schema, has_defaults=True)
        self._nodes: list[Node] = []
        self._edges: list[Edge] = []
        self._inside: tuple[str, str] | None = None  # the innermost parallel lane around what is walked
        self._within: str | None = None  # the foreach around the step that is walked
        self._items_max = 1  # how often that step can run, for as many items
        self._tasks = TaskWeaver(model.defaults, self._expressions, findings)
        self._undoing: list[Bounds] = []
        self._parts: dict[str, Bounds] = {}  # of each step, by its id
        self._items: dict[str, Bounds] = {}  # of one item, by foreach

    def weave(self) -> Woven:
        """Walk everything and return the graph's parts; they are complete only if no finding was added."""
        scope = Scope()
        _, total = self._block(self._model.steps, [], scope)
        output = None
        schema: Json = {} if any(node.kind is NodeKind.RETURN for node in self._nodes) else None
        if self._model.output is not None:
            checked = self._expressions.template(self._model.output, self._environment(scope, None))
            output = checked.template
            schema = schema_of(checked.type) if schema is None else {}  # what a `return` gives is not compared with it
        ends = bounds.sequence([total, bounds.value(), bounds.value()])  # the instance's own input and output
        # A child that runs when the instance fails undoes what it did by its own definition.
        has_child = any(node.kind is NodeKind.WORKFLOW for node in self._nodes)
        if self._model.on_failure == "compensate" and not self._undoing and not has_child:
            message = "`on_failure: compensate` undoes nothing: no step has `compensate`"
            place = self._model.on_failure_place
            self._findings.at(Code.CONTRADICTION, place, message, "say how a step is undone, or write `fail`")
        undoing = bounds.sequence(self._undoing)
        nodes, edges = tuple(self._nodes), tuple(self._edges)
        return Woven(nodes, edges, output, ends, undoing, self._catalogue, self._parts, schema)

    def _environment(self, scope: Scope, at: At, extra: dict[str, Type] | None = None) -> Environment:
        return self._catalogue.environment(scope, input_type=self._input_type, at=at, extra=extra or {})

    def _block(self, steps: tuple[StepModel, ...], frontier: Frontier, scope: Scope) -> tuple[Frontier, Bounds]:
        """Walk a list of steps; return its open ends and its bounds, and leave what it makes certain in `scope`."""
        parts = []
        for step in steps:
            if not scope.reachable:
                message = f"the step `{step.id}` is never reached: every way to it has ended the instance"
                hint = "leave it out, or give the step that ends the instance a `when`"
                self._findings.at(Code.UNREACHABLE_STEP, step.place, message, hint)
                # What follows is walked once more as if it were reachable, for the mistakes in it.
                scope.reachable = True
            frontier, part = self._step(step, frontier, scope)
            parts.append(part)
        return frontier, bounds.sequence(parts)

    def _step(self, step: StepModel, frontier: Frontier, scope: Scope) -> tuple[Frontier, Bounds]:
        frontier, part, _ = self._conditional(step, frontier, scope)
        return frontier, part

    def _conditional(self, step: StepModel, frontier: Frontier, scope: Scope) -> tuple[Frontier, Bounds, Scope]:
        """Walk a step; beside its ends and bounds, return what is certain if it has run."""
        if step.when is None:
            frontier, part = self._guarded(Spot(step, None, frontier, scope))
            self._parts[step.id] = part
            return frontier, part, scope
        checked = self._expressions.condition(step.when, self._environment(scope, step.id))
        inner = scope.copy(checked.proves)
        frontier, part = self._guarded(Spot(step, checked.expression, frontier, inner))
        self._parts[step.id] = part
        # Skipped or not, the flow goes on and nothing that happened inside is certain; but behind a step that ends the
        # instance its `when` did not hold.
        if not inner.reachable:
            scope.known |= checked.refutes
        return frontier, part, inner

    def _guarded(self, spot: Spot) -> tuple[Frontier, Bounds]:
        """Walk a step and then what handles its failure; a handler knows what was certain before the step."""
        step = spot.step
        if not step.on_error and step.compensate is None:
            return self._kind(spot)
        before, opener = spot.scope.copy(), len(self._nodes)
        ends, part = self._kind(spot)
        if step.kind is None or opener == len(self._nodes):
            return ends, part
        if step.compensate is not None:
            self._compensation(step, step.compensate, before, opener)
        if not step.on_error:
            return ends, part
        # What handles a block begins at its end, which it then has also if every way through it ends the instance.
        return self._handled(spot, before, opener, (ends or self._join(step, [(opener, _SKIPPED)]), part))

    def _compensation(self, step: StepModel, task: TaskModel, before: Scope, index: int) -> None:
        environment = self._catalogue.undoing(before, input_type=self._input_type, step=step.id)
        spec, part = self._tasks.woven(task, environment)
        if isinstance(step.kind, BLOCKS):
            check_undone_once(step, self._findings)
        self._undoing.append(bounds.times(part, self._items_max))
        self._nodes[index] = replace(self._nodes[index], compensate=spec)

    def _handled(
        self, spot: Spot, before: Scope, opener: int, walked: tuple[Frontier, Bounds]
    ) -> tuple[Frontier, Bounds]:
        step, (ends, part), source = spot.step, walked, walked[0][0][0]
        has_own_output = not isinstance(step.kind, WITHOUT_OWN_OUTPUT)
        face = before.error_of = self._nodes[source].id
        outputs = [self._catalogue.output_of(step.id)] if has_own_output else []
        lanes, left, handlers = [], [], []
        for index, model in enumerate(step.on_error):
            here = before.copy()
            value = None
            if model.then is Handling.STEPS:
                lane_ends, lane = self._block(model.steps, [(source, handler_case(index))], here)
                ends = [*ends, *lane_ends]
                lanes.append(lane)
                left += [here] if here.reachable else []
            elif model.then is Handling.CONTINUE:
                checked = self._expressions.template(model.value, self._environment(here, step.id))
                value = checked.template
                outputs.append(checked.type)
                lanes.append(bounds.value())
                left += [] if has_own_output else [here]
            if model.match is not None and model.then is not None:
                handlers.append(Handler(model.match, model.then, model.retries_max, model.backoff, value))
        self._nodes[opener] = replace(self._nodes[opener], handlers=tuple(handlers))
        if outputs:
            self._catalogue.learn(step.id, union(outputs))
        spot.scope.meet_or_become(left)
        retries = [(each.retries_max, each.backoff_seconds) for each in handlers]
        part = bounds.sequence([self._retried(step, part, retries), bounds.choice(lanes)])
        if any(model.then is Handling.STEPS for model in step.on_error):
            line, column = step.place
            spec = JoinSpec(JoinPolicy.ALL, face)
            place = (line, column, self._inside)
            join = Node(f"{step.id}{HANDLED}", NodeKind.JOIN, spec, None, None, *place, within=self._within)
            return [(self._append(join, ends), None)], bounds.sequence([part, bounds.record()])
        return ends, part

    def _retried(self, step: StepModel, part: Bounds, retries: list[tuple[int, float]]) -> Bounds:
        """Return the bounds of a step that its handlers may do again; what can't be done again is found here."""
        if isinstance(step.kind, BLOCKS) and any(times for times, _ in retries):
            check_retry(step, self._findings)
        if isinstance(step.kind, ForeachModel):
            times = sum(times for times, _ in retries)
            loop = self._loop(step.kind, self._items.get(step.id, bounds.NOTHING), retries=times)
            return bounds.sequence([loop, bounds.retried(bounds.NOTHING, retries)])
        return bounds.retried(part, retries)

    def _kind(self, spot: Spot) -> tuple[Frontier, Bounds]:
        match spot.step.kind:
            case TaskModel() as task:
                return self._task(spot, task)
            case PollModel() as poll:
                return self._poll(spot, poll)
            case BranchModel() as branch:
                return self._branch(spot, branch)
            case ParallelModel() as parallel:
                return self._parallel(spot, parallel)
            case ForeachModel() as foreach:
                return self._foreach(spot, foreach)
            case WaitModel(seconds=seconds):
                spec = WaitSpec(seconds or 0.0)
                return [(self._add(spot, NodeKind.WAIT, spec), None)], bounds.wait(seconds or 0.0)
            case UntilModel() as until:
                return self._until(spot, until)
            case SignalModel() as signal:
                return self._signal(spot, signal)
            case ChildModel() as child:
                return self._child(spot, child)
            case SetModel(values=values):
                return self._set(spot, values)
            case FailModel(code=code, message=message):
                text = self._template(spot, message)
                return self._end(spot, NodeKind.FAIL, FailSpec(code, text) if code and text else None)
            case ReturnModel(output=output):
                value = self._template(spot, output)
                return self._end(spot, NodeKind.RETURN, ReturnSpec(value) if value else None)
            case None:
                self._succeed(spot, DYN)
                return spot.frontier, bounds.NOTHING

    def _template(self, spot: Spot, node: YamlNode | None) -> Template | None:
        return self._expressions.template(node, self._environment(spot.scope, spot.step.id)).template

    def _add(self, spot: Spot, kind: NodeKind, spec: Spec) -> int:
        line, column = spot.step.place
        step = spot.step
        place = (line, column, self._inside, step.pause_at, self._within)
        node = Node(step.id, kind, spec, spot.when, step.title, *place)
        return self._append(replace(node, error_of=spot.scope.error_of), spot.frontier)

    def _append(self, node: Node, frontier: Frontier) -> int:
        index = len(self._nodes)
        self._nodes.append(node)
        self._edges.extend(Edge(source, index, case) for source, case in frontier)
        return index

    def _succeed(self, spot: Spot, output: Type) -> None:
        self._catalogue.learn(spot.step.id, output)
        spot.scope.available.add(spot.step.id)

    def _set(self, spot: Spot, values: YamlNode | None) -> tuple[Frontier, Bounds]:
        checked = self._expressions.template(values, self._environment(spot.scope, spot.step.id))
        index = self._add(spot, NodeKind.SET, SetSpec(checked.template) if checked.template else None)
        self._succeed(spot, checked.type)
        return [(index, None)], bounds.value()

    def _until(self, spot: Spot, wait: UntilModel) -> tuple[Frontier, Bounds]:
        spec = None
        timeout = wait.timeout or 0.0
        if wait.until is not None:
            checked = self._expressions.instant(wait.until, self._environment(spot.scope, spot.step.id))
            if checked is not None and checked.expression is not None:
                spec = UntilSpec(checked.expression, timeout, wait.continue_on_timeout)
        return [(self._add(spot, NodeKind.WAIT, spec), None)], bounds.wait(timeout)

    def _signal(self, spot: Spot, wait: SignalModel) -> tuple[Frontier, Bounds]:
        payload = type_of_schema(wait.payload_schema)
        accepts = None
        if wait.accept_when is not None:
            environment = self._environment(spot.scope, spot.step.id, signal_roots(payload))
            accepts = self._expressions.condition(wait.accept_when, environment).expression
        timeout = wait.timeout or 0.0
        spec = None
        if wait.name is not None:
            spec = SignalSpec(wait.name, timeout, wait.continue_on_timeout, wait.payload_schema, accepts)
        index = self._add(spot, NodeKind.WAIT, spec)
        if wait.continue_on_timeout:
            self._catalogue.learn(spot.step.id, payload)  # known, and not certain to be there
        else:
            self._succeed(spot, payload)
        return [(index, None)], bounds.signal(timeout)

    def _end(self, spot: Spot, kind: NodeKind, spec: Spec) -> tuple[Frontier, Bounds]:
        index = self._add(spot, kind, spec)
        spot.scope.reachable = False
        return ([(index, None)] if spot.step.when is not None else []), bounds.value()

    # Tasks

    def _task(self, spot: Spot, task: TaskModel) -> tuple[Frontier, Bounds]:
        spec, part = self._tasks.woven(task, self._environment(spot.scope, spot.step.id))
        index = self._add(spot, NodeKind.TASK, spec)
        self._succeed(spot, type_of_schema(task.output_schema))
        return [(index, None)], part

    def _poll(self, spot: Spot, poll: PollModel) -> tuple[Frontier, Bounds]:
        step, scope = spot.step, spot.scope
        policy = self._tasks.policy(poll.task, poll.timeout)
        output = type_of_schema(poll.task.output_schema)
        inside = self._environment(scope, step.id, round_roots())
        template = self._expressions.template(poll.task.input, inside).template
        keys = self._tasks.keys(poll.task, inside)
        judging = self._environment(scope, step.id, round_roots(output))
        fails = self._expressions.condition(poll.fail_when, judging).expression if poll.fail_when else None
        done = self._expressions.condition(poll.done_when, judging).expression if poll.done_when else None
        spec, part = None, bounds.NOTHING
        if policy:
            part = poll_bounds(poll, policy)
            if template and done and poll.task.type:
                spec = poll_spec(poll, spec_of(poll.task, policy, template, keys), done, fails)
        index = self._add(spot, NodeKind.POLL, spec)
        self._succeed(spot, output)
        return [(index, None)], part

    def _child(self, spot: Spot, child: ChildModel) -> tuple[Frontier, Bounds]:
        environment = self._environment(spot.scope, spot.step.id)
        found = child_steps.resolve(child, self._model, self._children, self._findings)
        checked = self._expressions.template(child.input, environment, absent={})
        spec, part = None, bounds.NOTHING
        if found is not None:
            child_steps.check_input(child, found, checked, self._findings)
            spec = child_steps.spec_of(child, found, checked.template)
            part = bounds.child(found.bounds)
        index = self._add(spot, NodeKind.WORKFLOW, spec)
        if found is not None and found.output_schema is None:
            self._catalogue.learn_silent(spot.step.id)
        output = None if found is None else found.output_schema
        self._succeed(spot, DYN if output is None else type_of_schema(output))
        return [(index, None)], part

    # Blocks

    def _branch(self, spot: Spot, branch: BranchModel) -> tuple[Frontier, Bounds]:
        step, scope = spot.step, spot.scope
        # The node comes first to keep the order, its cases are known only after their conditions are compiled.
        opener = self._add(spot, NodeKind.BRANCH, None)
        cases: list[Case] = []
        ends: Frontier = []
        left: list[Scope] = []
        parts: list[Bounds] = []
        refuted: Paths = NOTHING  # what is known because no earlier case held
        for case in branch.cases:
            here = scope.copy(refuted)
            condition = None
            if case.when is not None:
                checked = self._expressions.condition(case.when, self._environment(here, step.id))
                condition = checked.expression
                here.known |= checked.proves
                refuted |= checked.refutes
            cases.append(Case(case.label, condition))
            open_ends, part = self._block(case.steps, [(opener, case.label)], here)
            ends += open_ends
            parts.append(part)
            if here.reachable:
                left.append(here)
        self._nodes[opener] = replace(self._nodes[opener], spec=BranchSpec(tuple(cases)))
        if left:
            scope.available |= set.intersection(*(end.available for end in left))
            scope.known |= frozenset.intersection(*(end.known for end in left))
        elif branch.cases:
            scope.reachable = False
        if not ends and spot.when is not None:
            ends = [(opener, _SKIPPED)]
        total = bounds.sequence([bounds.choice(parts), bounds.record(), bounds.record()])
        return self._join(step, ends), total

    def _parallel(self, spot: Spot, parallel: ParallelModel) -> tuple[Frontier, Bounds]:
        step, scope = spot.step, spot.scope
        lanes = {lane.label: lane for lane in parallel.lanes}
        needs = {label: lane.needs for label, lane in lanes.items()}
        order = joins.in_order(needs)
        opener = self._add(spot, NodeKind.FORK, ForkSpec(tuple(LaneSpec(label, needs[label]) for label in order)))
        conditional = frozenset(label for label, lane in lanes.items() if all(each.when for each in lane.steps))
        certain = joins.certain_at(needs, conditional)
        walked: dict[str, Walked] = {}
        outer, self._inside = self._inside, None
        for label in order:
            here = scope.copy()
            for earlier in certain[label]:
                here.learn(walked[earlier].gained)
            self._inside = (step.id, label)
            ways = [end for need in needs[label] for end in walked[need].ends]
            walked[label] = self._lane(lanes[label], ways if needs[label] else [(opener, label)], here)
        self._inside = outer
        always = joins.certain_after(needs, conditional)
        goes_on = {label: walked[label].goes_on for label in order}
        check_lanes(step, parallel.join, goes_on, always=always, findings=self._findings)
        if parallel.join.policy is JoinPolicy.ALL:
            # Then the flow goes on only when no lane has failed, so what those that can't be skipped did is certain.
            for label in order:
                if not parallel.is_graph or label in always:
                    scope.learn(walked[label].gained if parallel.is_graph else walked[label].left)
        needed = frozenset(need for lane in needs.values() for need in lane)
        ends = [end for label in order if label not in needed for end in walked[label].ends]
        enough = {JoinPolicy.ANY: 1, JoinPolicy.AT_LEAST: parallel.join.at_least}.get(parallel.join.policy)
        side_by_side = bounds.parallel({label: walked[label].bounds for label in order}, needs, enough=enough)
        return self._join(step, ends, parallel.join), bounds.sequence([side_by_side, bounds.record(), bounds.record()])

    def _foreach(self, spot: Spot, foreach: ForeachModel) -> tuple[Frontier, Bounds]:
        step, scope = spot.step, spot.scope
        checked = None
        if foreach.items is not None:
            checked = self._expressions.items(foreach.items, self._environment(scope, step.id))
        opener = self._add(spot, NodeKind.FOREACH, None)
        here = scope.of_items(DYN if checked is None else checked.type.items or DYN)
        around = self._inside, self._within
        self._inside, self._within, self._items_max = None, step.id, foreach.max_items or 1
        _, part = self._block(foreach.steps, [], here)
        (self._inside, self._within), self._items_max = around, 1  # a foreach stands in no other
        if not here.reachable:
            message = "every item always ends the instance, so the foreach never has a result"
            self._findings.at(Code.UNREACHABLE_JOIN, step.place, message, "end the instance after the foreach")
        output, last, kind = None, None, NULL
        if foreach.has_output:
            result = self._expressions.template(foreach.output, self._environment(here, ResultOf(step.id)))
            output, kind = result.template, result.type
        elif foreach.steps and isinstance(foreach.steps[-1].kind, WITH_OUTPUT):
            last = foreach.steps[-1].id
            kind = self._catalogue.output_of(last) if last in here.available else DYN
        if checked is not None and checked.expression is not None and foreach.max_items is not None:
            spec = ForeachSpec(checked.expression, foreach.max_items, foreach.concurrency, output, last)
            self._nodes[opener] = replace(self._nodes[opener], spec=spec)
        self._succeed(spot, Type(Kind.LIST, items=kind))
        self._items[step.id] = part
        return [(opener, None)], self._loop(foreach, part)

    def _loop(self, foreach: ForeachModel, part: Bounds, *, retries: int = 0) -> Bounds:
        return bounds.foreach(part, items_max=foreach.max_items or 1, concurrency=foreach.concurrency, retries=retries)

    def _lane(self, lane: LaneModel, ways: Frontier, scope: Scope) -> Walked:
        """Walk one lane; of a step of a dependency graph, tell what is certain if it has run."""
        if not ways:
            message = f"the step `{lane.label}` is never reached: what it needs always ends the instance"
            hint = "leave it out, or give the step that ends the instance a `when`"
            self._findings.at(Code.UNREACHABLE_STEP, lane.steps[0].place, message, hint)
        start = len(self._nodes)
        if len(lane.steps) == 1:
            ends, part, inner = self._conditional(lane.steps[0], ways, scope)
            goes_on = inner.reachable or lane.steps[0].when is not None
        else:
            ends, part = self._block(lane.steps, ways, scope)
            inner, goes_on = scope, scope.reachable
        if not ends and lane.needs:
            # It ends the instance where it runs. Where it is skipped, what needs it is decided by its first step.
            ends = [(start, _SKIPPED)]
        return Walked(ends, part, inner, scope, goes_on)

    def _join(self, step: StepModel, ends: Frontier, join: JoinModel | None = None) -> Frontier:
        if not ends:
            return []
        line, column = step.place
        policy, at_least = (JoinPolicy.ALL, 0) if join is None else (join.policy, join.at_least)
        spec = JoinSpec(policy, step.id, at_least)
        node = Node(f"{step.id}.end", NodeKind.JOIN, spec, None, None, line, column, self._inside, within=self._within)
        return [(self._append(node, ends), None)]
