"""The heart of Weave: one pure step of one instance.

`advance(flow, instance, stimuli, now) -> (instance, commands)`: no I/O, no clock, no randomness, no global. Stimuli are
applied in the order given, then what is due at `now`, then the flow runs on until it settles. The same inputs give the
same answer on a server, in the simulator and in a test.

The surprising rule: a value (an output, the input) that an expression needs and that nobody has loaded raises
`ValuesNeeded`; the caller loads it and calls again with the same arguments. So outputs are read only where they matter.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from definitions.graph import FailSpec, Node, NodeKind, PollSpec, ReturnSpec, SetSpec
from engine import (
    blocks,
    breakpoints,
    children,
    compensating,
    foreach,
    forking,
    handlers,
    joining,
    migration,
    pausing,
    polling,
    recovery,
    signals,
    tasks,
    waiting,
)
from engine.command import Commands
from engine.draft import Draft
from engine.flow import EdgeState, Flow, edge_state
from engine.handlers import Verdict
from engine.instance import OUTPUT, Failure, Instance, Step
from engine.scope import ExpressionFailed, choose, condition, place_of, render, render_text
from engine.standing import check_waits, next_due, step_due, with_clock
from engine.states import (
    INSTANCE_TERMINAL,
    PASSED,
    Action,
    Compensation,
    Control,
    Ending,
    InstanceState,
    StepReason,
    StepState,
)
from engine.stimulus import (
    CancelRequested,
    ChildQuiet,
    Forked,
    GateQuiet,
    LateSuccess,
    Migrated,
    Outcome,
    PauseRequested,
    Recovered,
    ResumeRequested,
    ReviewClosed,
    ReviewOpened,
    SignalReceived,
    Started,
    Stimulus,
    SubmissionRefused,
    TaskEnded,
)
from orbit.clock import Micros

__all__ = ["advance"]

# A failure is handled while the flow goes on, and beside another that waits for a person.
_GOING_ON = frozenset({InstanceState.RUNNING, InstanceState.NEEDS_RECOVERY})
_ENDS = frozenset({InstanceState.ENDING, InstanceState.COMPENSATING})


def advance(flow: Flow, instance: Instance, stimuli: Sequence[Stimulus], now: Micros) -> tuple[Instance, Commands]:
    """Apply stimuli and due timers to an instance; give its next state and what the shell has to do.

    The revision grows by one if anything changed. Raises ValuesNeeded (load them, call again); AssertionError is a bug.
    """
    draft = Draft(flow, instance, now)
    if flow.bodies:
        foreach.expect(draft, stimuli)
    for stimulus in stimuli:
        _apply(draft, stimulus)
        _settle(draft)
    if draft.state not in INSTANCE_TERMINAL and draft.control is Control.ACTIVE and draft.pause_wanted is None:
        _fire_timers(draft)
    after, commands = draft.freeze()
    after = with_clock(after, now)
    if after.state in INSTANCE_TERMINAL and after.finished_at is None:
        after = replace(after, finished_at=now)
    changed = bool(commands.steps or commands.history)
    after = replace(after, due_at=next_due(after), revision=instance.revision + changed)
    check_waits(after)
    return after, commands


def _apply(draft: Draft, stimulus: Stimulus) -> None:
    if isinstance(stimulus, LateSuccess):
        compensating.effect_seen(draft, stimulus)
        return
    if draft.state in INSTANCE_TERMINAL:
        if isinstance(stimulus, SignalReceived):
            return  # it came before the end and is left over, as the list of the instance's signals shows
        if isinstance(stimulus, Started | CancelRequested | ChildQuiet):
            return  # a parent's word that came too late changes nothing
        draft.record("stimulus.after_end", getattr(stimulus, "step", None), stimulus=type(stimulus).__name__)
        return
    match stimulus:
        case Started():
            draft.record("instance.started")
            for identifier in draft.flow.roots:
                if identifier not in draft.steps:  # an earlier root may have ended the instance
                    _enter(draft, identifier)
        case Forked():
            forking.apply(draft, stimulus)
            _enter_open(draft)
        case Migrated():
            migration.apply(draft, stimulus)
            if not recovery.is_engine_error(draft.error):
                _enter_open(draft)
        case CancelRequested():
            _cancel(draft, stimulus)
        case PauseRequested() | GateQuiet() | ChildQuiet() | ResumeRequested():
            pausing.apply(draft, stimulus)
            if isinstance(stimulus, ResumeRequested):
                signals.deliver(draft)
        case SignalReceived():
            signals.received(draft, stimulus)
        case Recovered():
            _recover(draft, stimulus)
        case TaskEnded() | ReviewOpened() | ReviewClosed() | SubmissionRefused():
            _apply_to_task(draft, stimulus)


def _enter_open(draft: Draft) -> None:
    """Enter all that is due and that no decision of this advance leads to."""
    for identifier in draft.flow.own_steps:
        if identifier not in draft.steps and draft.state not in INSTANCE_TERMINAL:
            _enter(draft, identifier)


def _cancel(draft: Draft, stimulus: CancelRequested) -> None:
    is_new = stimulus.compensate and draft.compensation is None and draft.flow.can_undo
    if draft.ending_as is Ending.CANCELLED and not is_new:
        return
    draft.record(
        "instance.cancel_requested",
        reason=stimulus.reason,
        by=stimulus.by,
        **({"compensate": True} if stimulus.compensate else {}),
    )
    error = Failure("CANCELLED", stimulus.reason)
    if compensating.is_underway(draft):
        compensating.end_cancelled(draft, error)
    elif draft.state is InstanceState.ENDING:
        draft.end_as(Ending.CANCELLED, error)
        if stimulus.compensate:
            draft.want_compensation()
    else:
        draft.begin_ending(Ending.CANCELLED, error, compensate=stimulus.compensate)


def _recover(draft: Draft, decision: Recovered) -> None:
    was = None if decision.step is None else draft.steps.get(decision.step)
    reopened = recovery.apply(draft, decision)
    if draft.flow.bodies:
        foreach.go_on(draft)
    if reopened is not None:
        _enter_again(draft, reopened)
    elif decision.action is Action.FAIL and was is not None and was.state is StepState.NEEDS_REVIEW:
        ended = TaskEnded(was.id, was.round, Outcome.FAILED, recovery.REVIEWED_FAILED)
        tasks.ended(draft, draft.flow.nodes[was.id], ended)


def _apply_to_task(draft: Draft, stimulus: TaskEnded | ReviewOpened | ReviewClosed | SubmissionRefused) -> None:
    step = draft.steps.get(stimulus.step)
    if step is None or not step.has_task or step.round != stimulus.round:
        # Said twice, or about a task that was given up: the step has been decided without it.
        draft.record("stimulus.superseded", stimulus.step, stimulus=type(stimulus).__name__, round=stimulus.round)
        return
    node = draft.flow.nodes[stimulus.step]
    draft.stand_at(node.id)
    match stimulus:
        case TaskEnded() if node.kind is NodeKind.WORKFLOW:
            children.ended(draft, node, stimulus)
        case TaskEnded():
            tasks.ended(draft, node, stimulus)
        case ReviewOpened():
            tasks.review_opened(draft, stimulus)
        case ReviewClosed():
            tasks.review_closed(draft, stimulus)
        case SubmissionRefused():
            tasks.refused(draft, node, stimulus)


def _settle(draft: Draft) -> None:
    """Let the flow run on from what was decided, judge failures, undo and end the instance if that is due."""
    while True:
        _decide_on(draft)
        if draft.state is InstanceState.RUNNING and draft.is_complete:
            _complete(draft)
        if draft.state not in _ENDS or draft.unfinished():
            return
        if draft.state is InstanceState.ENDING and draft.compensation is Compensation.WANTED:
            compensating.begin(draft)
        if draft.state is InstanceState.COMPENSATING:
            compensating.put_away(draft)
        node = compensating.next_node(draft) if draft.state is InstanceState.COMPENSATING else None
        if node is None:
            assert draft.ending_as is not None
            if draft.state is InstanceState.COMPENSATING:
                draft.compensation = Compensation.DONE
            _end(draft, InstanceState(draft.ending_as.value))
            return
        _run_or_fail(draft, node)


def _decide_on(draft: Draft) -> None:
    while draft.decided or draft.openings or draft.failures or draft.joins or draft.blocks:
        while (draft.decided or draft.openings) and draft.state is not InstanceState.ENDING:
            _flow_on(draft)
        draft.decided.clear()
        if draft.state is InstanceState.ENDING:
            draft.joins.clear()
            draft.blocks.clear()
        if draft.failures:
            _judge_failure(draft, draft.failures.popleft())
        elif draft.joins:
            join = next(iter(draft.joins))
            del draft.joins[join]
            joining.judge(draft, join)
        elif draft.blocks:
            face = next(iter(draft.blocks))
            del draft.blocks[face]
            blocks.judge(draft, face)


def _flow_on(draft: Draft) -> None:
    """Look behind one step that was decided, or begin with one of an item."""
    if draft.openings:
        _enter(draft, draft.openings.popleft())
        return
    identifier = draft.decided.popleft()
    if identifier not in draft.steps:
        return  # its item was done with meanwhile
    draft.look_at(identifier)
    for target in draft.flow.outgoing[identifier]:
        if target not in draft.steps or blocks.is_waiting_for_lanes(draft.steps[target]):
            _enter(draft, target)
    if draft.flow.bodies:
        foreach.decided(draft, identifier)


def _judge_failure(draft: Draft, step: Step) -> None:
    if draft.state is InstanceState.COMPENSATING:
        compensating.failed(draft, draft.steps[step.id])
        return
    step = draft.steps[step.id]
    if not step.waits_for_decision:
        return  # a failure before it has given its block up
    is_handled = draft.state in _GOING_ON and bool(draft.flow.nodes[step.id].handlers)
    if is_handled and blocks.close(draft, step):
        recovery.reconsider(draft)
        return
    draft.stand_at(step.id)
    verdict = handlers.judge(draft, step) if is_handled else Verdict.UNHANDLED
    match verdict:
        case Verdict.HANDLED:
            return
        case Verdict.ENTER:
            _enter_again(draft, step)
            return
        case Verdict.END:
            draft.begin_ending(Ending.FAILED, draft.failure_of(draft.steps[step.id]))
            return
    failed = draft.steps[step.id]
    if draft.flow.guards.faces and draft.state in _GOING_ON and blocks.takes_failure(draft, failed):
        recovery.reconsider(draft)
        return
    if joining.takes_failure(draft, failed) or (draft.flow.bodies and foreach.takes_failure(draft, failed)):
        return
    if draft.state is InstanceState.RUNNING:  # one reason to hold is enough; the step shows its own
        _hold_or_fail(draft, draft.failure_of(draft.steps[step.id]))


def _enter_again(draft: Draft, reopened: Step) -> None:
    """Enter a step that was taken back: what has had a task was let in by its `when`, the rest is judged anew."""
    opener = blocks.begin_again(draft, reopened) if draft.flow.guards.faces else None
    if opener is not None and opener.state is StepState.SUCCEEDED:
        _run_or_fail(draft, draft.flow.nodes[opener.id])
    elif opener is not None:
        _enter(draft, opener.id)  # its `when` could not be judged
    elif reopened.round or reopened.items is not None:
        _run_or_fail(draft, draft.flow.nodes[reopened.id])
    else:
        _enter(draft, reopened.id)


def _hold_or_fail(draft: Draft, error: Failure) -> None:
    if draft.flow.graph.on_failure != "hold":
        draft.begin_ending(Ending.FAILED, error)
    else:
        draft.move(InstanceState.NEEDS_RECOVERY)
        draft.error = error
        draft.record("instance.needs_recovery", error=error.to_json())


def _complete(draft: Draft) -> None:
    output = draft.flow.graph.output
    draft.stand_at(None)
    if output is not None:
        try:
            draft.keep(OUTPUT, render(draft, output))
        except ExpressionFailed as failed:
            _hold_or_fail(draft, failed.error)
            return
    _end(draft, InstanceState.SUCCEEDED)


def _end(draft: Draft, state: InstanceState) -> None:
    draft.move(state)
    draft.record(f"instance.{state.value.lower()}")


def _enter(draft: Draft, identifier: str) -> None:
    """Enter a node if all its incoming edges are decided: it runs if one is live, and is skipped if none is."""
    if identifier in draft.flow.lanes.judged:
        draft.joins[identifier] = None  # by the outcomes of its lanes, when the flow has settled
        return
    way = _way_in(draft, identifier)
    if way is EdgeState.UNDECIDED or (way is EdgeState.DEAD and blocks.ends_elsewhere(draft, identifier)):
        return
    own = draft.steps.get(identifier)
    if own is not None:
        draft.reopen(own)  # the end of a block that is done once more
    node = draft.flow.nodes[identifier]
    draft.stand_at(identifier)
    if way is EdgeState.DEAD:
        opener = draft.flow.opener(node)
        is_passed = opener is not None and draft.steps[opener].reason in PASSED
        draft.skip(identifier, StepReason.WHEN if is_passed else StepReason.DEAD_PATH)
        return
    try:
        if node.when is not None and not condition(draft, node.when, place_of(node)):
            draft.skip(identifier, StepReason.WHEN)
            return
    except ExpressionFailed as failed:
        draft.fail(identifier, failed.error)
        return
    if breakpoints.is_before(draft, node):
        breakpoints.reach(draft, node)
        return
    _run_or_fail(draft, node)


def _way_in(draft: Draft, identifier: str) -> EdgeState:
    flow = draft.flow
    lane = flow.lanes.needing.get(identifier)
    if lane is not None:
        return joining.way_in(draft, lane)
    edges = [edge_state(source, draft.steps.get(source.id), case) for source, case in flow.incoming[identifier]]
    if EdgeState.UNDECIDED in edges:
        return EdgeState.UNDECIDED
    if not edges or EdgeState.LIVE in edges:
        return EdgeState.LIVE
    opener = flow.opener(flow.nodes[identifier])
    # Where every lane was skipped by conditions of its own, the block has still run to its end.
    if opener is not None and opener in flow.lanes.blocks and draft.steps[opener].state is StepState.SUCCEEDED:
        return EdgeState.LIVE
    return EdgeState.DEAD


def _run_or_fail(draft: Draft, node: Node) -> None:
    draft.stand_at(node.id)
    try:
        _run(draft, node)
    except ExpressionFailed as failed:
        draft.fail(node.id, failed.error)


def _run(draft: Draft, node: Node) -> None:
    match node.kind, node.spec:
        case ((NodeKind.TASK | NodeKind.POLL), _):
            tasks.enter(draft, node)
        case NodeKind.BRANCH, _:
            draft.succeed(node.id, chosen=choose(draft, node))
        case ((NodeKind.FORK | NodeKind.JOIN), _):
            draft.succeed(node.id)
        case NodeKind.FOREACH, _:
            foreach.enter(draft, node)
        case NodeKind.WAIT, _:
            waiting.enter(draft, node)
        case NodeKind.WORKFLOW, _:
            children.enter(draft, node)
        case NodeKind.SET, SetSpec() as spec:
            draft.keep(node.id, render(draft, spec.values, place_of(node)))
            draft.succeed(node.id)
        case NodeKind.FAIL, FailSpec() as spec:
            error = Failure(spec.code, render_text(draft, spec.message, place_of(node)), {"step": node.id})
            draft.decide(node.id, StepState.FAILED, error=error)
            draft.record("step.failed", node.id, error=error.to_json())
            draft.begin_ending(Ending.FAILED, error)
        case NodeKind.RETURN, ReturnSpec() as spec:
            draft.keep(OUTPUT, render(draft, spec.output, place_of(node)))
            draft.succeed(node.id)
            draft.begin_ending(Ending.SUCCEEDED, None)
        case _:
            message = f"node {node.id} has kind {node.kind} with {type(node.spec).__name__}"
            raise AssertionError(message)


def _fire_timers(draft: Draft) -> None:
    """Fire what is due: the instance's own time-out first, then steps in the graph's order, once each."""
    if (
        draft.state is InstanceState.RUNNING
        and draft.before.clock_stopped_at is None
        and draft.now >= draft.before.deadline_at
    ):
        message = f"the instance did not end within {draft.flow.graph.timeout_seconds:g} s"
        draft.begin_ending(Ending.FAILED, Failure("INSTANCE_TIMED_OUT", message))
    while draft.state is not InstanceState.ENDING and draft.pause_wanted is None:
        due = next((step for step in draft.unfinished() if _is_due(step, draft.now)), None)
        if due is None:
            break
        try:
            _fire(draft, draft.flow.nodes[due.id], due)
        except ExpressionFailed as failed:
            draft.fail(due.id, failed.error)
        _settle(draft)
        if draft.state in INSTANCE_TERMINAL:
            return
    _settle(draft)


def _is_due(step: Step, now: Micros) -> bool:
    due_at = step_due(step)
    return due_at is not None and due_at <= now


def _fire(draft: Draft, node: Node, step: Step) -> None:
    draft.stand_at(step.id)
    if step.state is StepState.RUNNING:
        draft.cancel_task(step, StepReason.STEP_TIMED_OUT)
    elif step.reason is StepReason.BREAKPOINT:
        breakpoints.leave(draft, step)
        _run(draft, node)
    elif step.reason is StepReason.RETRY:
        handlers.begin_again(draft, step)
        _enter_again(draft, step)
    elif node.kind is NodeKind.FOREACH:
        foreach.fire(draft, step)
    elif step.reason in {StepReason.TIMER, StepReason.SIGNAL}:
        waiting.fire(draft, node, step)
    elif isinstance(node.spec, PollSpec) and step.timeout_at is not None and draft.now >= step.timeout_at:
        polling.exhausted(draft, step, "its time-out has passed")
    elif step.reason is StepReason.QUEUE_FULL:
        tasks.submit_again(draft, node, step)
    else:
        tasks.next_round(draft, node, step)
