"""Steps with a child instance, as the pure core sees them.

A child is to its parent what a task is: the step is RUNNING while the child is unfinished, its end comes as the end of
a task, and it is asked to stop in the same way; so error handlers, joins, loops and recovery know no difference. A
child that waits for a person puts its step under review, so that no budget of the parent runs out meanwhile.

The surprising rule: nothing but an instruction ever goes down. A parent never looks into its child, and its pause is
quiet only when each child has said that it is.
"""

from __future__ import annotations

from definitions.graph import ChildSpec, Node, NodeKind
from definitions.limits import VALUE_BYTES_MAX
from engine import tasks
from engine.command import SubmitTask
from engine.draft import Draft
from engine.instance import Failure, Step
from engine.scope import ExpressionFailed, place_of, render, schema_failure
from engine.states import InstanceState, StepState
from engine.stimulus import Instructed, Instruction, Outcome, TaskEnded
from orbit.clock import seconds
from orbit.jsontext import dumps
from orbit.schemas.soundness import with_defaults

INPUT_INVALID = "INPUT_INVALID"
CANCELLED = "CHILD_CANCELLED"


def enter(draft: Draft, node: Node) -> None:
    """Enter a WORKFLOW node: its child is started at once. Raises ExpressionFailed."""
    spec = child_spec(node)
    value = with_defaults(spec.input_schema, render(draft, spec.input, place_of(node)))
    what = f"the input of {spec.workflow}@{spec.version}"
    error = schema_failure(draft.flow.child_validator(node).iter_errors(value), INPUT_INVALID, what)
    if error is None and len(dumps(value)) > VALUE_BYTES_MAX:
        error = Failure(INPUT_INVALID, f"{what} is larger than {VALUE_BYTES_MAX} bytes")
    if error is not None:
        raise ExpressionFailed(error)
    bound = seconds(spec.bound_seconds if spec.timeout_seconds is None else spec.timeout_seconds)
    timeout_at = None if spec.timeout_seconds is None else draft.now + bound
    step = draft.enter(node.id, StepState.RUNNING, round=1, timeout_at=timeout_at)
    draft.submit(SubmitTask(step.id, step.round, spec, value, draft.now, draft.now + bound, retry_of=step.retry_of))
    draft.record("step.submitted", step.id, workflow=spec.workflow, version=spec.version)


def ended(draft: Draft, node: Node, stimulus: TaskEnded) -> None:
    """Take the end of a step's child."""
    step = draft.steps[stimulus.step]
    if stimulus.outcome is Outcome.CANCELLED and step.reason is None and draft.state is not InstanceState.ENDING:
        details = None if stimulus.error is None else stimulus.error.details
        error = Failure(CANCELLED, "the child was cancelled, and not by this instance", details)
        stimulus = TaskEnded(stimulus.step, stimulus.round, Outcome.FAILED, error)
    tasks.ended(draft, node, stimulus)


def follow_all(draft: Draft) -> tuple[str, ...]:
    """Let all children be paused, or go on, with their parent; name them."""
    steps = _with_child(draft)
    for step in steps:
        draft.instruct(step, Instructed(Instruction.FOLLOW))
    return tuple(token(step.id, step.round) for step in steps)


def token(step: str, number: int) -> str:
    """Name a step's child among what a pause waits for."""
    return f"{step}#{number}"


def child_spec(node: Node) -> ChildSpec:
    """Give what a WORKFLOW node starts."""
    assert isinstance(node.spec, ChildSpec), f"node {node.id} has no child"
    return node.spec


def _with_child(draft: Draft) -> list[Step]:
    nodes = draft.flow.nodes
    return [
        step
        for step in draft.unfinished()
        if step.has_task and step.task_id is not None and nodes[step.id].kind is NodeKind.WORKFLOW
    ]
