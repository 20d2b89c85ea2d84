"""The compiled step graph: what the compiler produces and the engine runs.

A graph is data: it has a stable JSON form that is stored with a published version. Its rule of flow is one sentence:
a node is *entered* when all its incoming edges are decided; it runs if at least one of them is live, and is SKIPPED
(a dead path) if none is. That makes every join safe against any combination of skips.

Edges are decided when their source is decided. An edge is live when its source was live and ended SUCCEEDED, or was
skipped by its own `when` (the flow goes on past it), and, for an edge that leaves a BRANCH, when its `case` is the
chosen one. FAILED, CANCELLED and dead-path SKIPPED sources make dead edges.

The lanes of a FORK are its branches, or the steps of its dependency graph. A join with another policy than `all` is
judged by the outcomes of its lanes, not by its edges; so is a step with `needs`, by the lanes that it needs.

An edge whose case is that of an error handler leads into the handler's steps: it is live when its source FAILED and
that handler took the failure, and then it is the only one. The lanes of a step's handlers and the step itself meet in a
JOIN `<step id>.handled`, so that the flow goes on past the step either way.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from definitions.bounds import Bounds
    from definitions.expression import Expression
    from definitions.template import Template
    from orbit.jsontext import Json


class NodeKind(StrEnum):
    """What a node does when it is entered."""

    TASK = "TASK"  # one Pulse task
    BRANCH = "BRANCH"  # chooses one case; its outgoing edges carry `case`
    FORK = "FORK"  # starts every branch of a `parallel` block, or every step of it that needs no other
    JOIN = "JOIN"  # ends a branch or parallel block
    FOREACH = "FOREACH"  # runs the nodes that stand `within` it once for each item of a list
    WAIT = "WAIT"  # a durable timer, or a signal with its bound
    POLL = "POLL"  # bounded rounds, each one Pulse task
    SET = "SET"  # values computed from what is known
    FAIL = "FAIL"  # ends the instance FAILED
    RETURN = "RETURN"  # ends the instance SUCCEEDED
    WORKFLOW = "WORKFLOW"  # a child instance of another published version


class JoinPolicy(StrEnum):
    """When a join lets the flow go on, judged over the outcomes of its lanes: done, skipped, failed, cancelled."""

    ALL = "all"  # no lane has failed and all have ended; a failure holds the instance, or ends it
    ANY = "any"  # one lane is done; the others lose
    AT_LEAST = "at_least"  # so many lanes are done; the others lose
    SETTLED = "settled"  # all lanes have ended, however


class KeyPolicy(StrEnum):
    """What a start does about other instances of the workflow, of any version, with the same business key."""

    ALLOW = "ALLOW"  # nothing
    REJECT_RUNNING = "REJECT_RUNNING"  # it is refused while one is unfinished
    RETURN_RUNNING = "RETURN_RUNNING"  # it gives the unfinished one, if there is one
    REJECT_ANY = "REJECT_ANY"  # it is refused if there has ever been one


class StartRules(Struct, frozen=True):
    """What a version asks of its starts; `max_running` None is no limit."""

    business_key_policy: KeyPolicy = KeyPolicy.ALLOW
    max_running: int | None = None


class RetrySpec(Struct, frozen=True):
    """The retry policy of a step's task; the units are in the names."""

    attempts_max: int
    backoff_seconds: float
    backoff_seconds_max: float


class TaskSpec(Struct, frozen=True, gc=False):
    """How a TASK node, or one round of a POLL node, is submitted to Pulse."""

    type: str  # task type, without its version
    task_version: int
    queue: str
    input: Template
    retry: RetrySpec
    attempt_timeout_seconds: float
    start_within_seconds: float
    timeout_seconds: float  # the step's bound: the task's deadline counts from its submission
    priority: int
    output_schema: Json | None = None
    concurrency_keys: tuple[Template, ...] = ()


class Handling(StrEnum):
    """What an error handler does with a failure that it matches; the words are those of the language."""

    RETRY = "retry"  # a new task that continues the line of the failed one, a bounded number of times
    CONTINUE = "continue"  # the step counts as done, with the handler's value as its output
    STEPS = "steps"  # the handler's own steps run, then the flow goes on past the step
    FAIL = "fail"  # the instance fails, whoever else could still go on


class Handler(Struct, frozen=True, gc=False):
    """One entry of a step's `on_error`; `match` is an error code, a failure class, or `*` for all."""

    match: str
    then: Handling
    retries_max: int = 0
    backoff_seconds: float = 0.0  # before the first retry; doubles with each
    value: Template | None = None  # of CONTINUE


HANDLED = ".handled"  # of the id of the join behind a step with handler steps
HANDLER_CASE = "on_error."  # no case of an author's has a dot


def handler_case(index: int) -> str:
    """Name the edges into the steps of a step's handler, which is counted from 0."""
    return f"{HANDLER_CASE}{index + 1}"


class Case(Struct, frozen=True, gc=False):
    """One case of a BRANCH: its label on the edges and its condition; `when` is None for `else`."""

    label: str
    when: Expression | None


class BranchSpec(Struct, frozen=True):
    """The cases of a BRANCH node in the order in which they are tried."""

    cases: tuple[Case, ...]


class ForeachSpec(Struct, frozen=True):
    """What a FOREACH goes over, and what each item leaves: `output`, or the output of step `last`, or null."""

    items: Expression
    items_max: int
    concurrency: int
    output: Template | None
    last: str | None


class WaitSpec(Struct, frozen=True):
    """A durable wait for a span of time."""

    for_seconds: float


class UntilSpec(Struct, frozen=True):
    """A durable wait until an instant, which the expression gives as RFC 3339 text when the step begins."""

    until: Expression
    timeout_seconds: float
    continue_on_timeout: bool


class SignalSpec(Struct, frozen=True):
    """A durable wait for a signal, whose payload becomes the step's output.

    A signal that does not fit `payload_schema` or `accept_when` is left for others. After a time-out that goes on the
    step has no output.
    """

    signal: str
    timeout_seconds: float
    continue_on_timeout: bool
    payload_schema: Json | None
    accept_when: Expression | None


class PollSpec(Struct, frozen=True):
    """A bounded poll; `every` counts from a round's end to the next round's start."""

    task: TaskSpec
    done_when: Expression
    fail_when: Expression | None
    every_seconds: float
    backoff: float  # factor on `every` after each round, 1.0 is none
    every_seconds_max: float
    rounds_max: int
    timeout_seconds: float
    continue_on_round_error: bool


class SetSpec(Struct, frozen=True):
    """Values that become the step's output."""

    values: Template


class FailSpec(Struct, frozen=True):
    """End the instance FAILED with this code and message."""

    code: str
    message: Template


class ReturnSpec(Struct, frozen=True):
    """End the instance SUCCEEDED with this output."""

    output: Template


class ChildSpec(Struct, frozen=True):
    """A child instance of a version that was resolved when the parent was published, and what it takes.

    `timeout_seconds` bounds the step; None leaves it to the child's own bound, `bound_seconds`. `depth` counts the
    children below this step, `queues` are those of all of them. `output_schema` is what is known of its output,
    and `redact` what of that is masked, as paths that begin with `/output`.
    """

    workflow: str
    version: int
    input: Template
    timeout_seconds: float | None
    bound_seconds: float
    input_schema: Json
    output_schema: Json | None
    depth: int
    queues: tuple[str, ...]
    redact: tuple[str, ...] = ()


class LaneSpec(Struct, frozen=True):
    """One lane of a FORK: a named branch, or one step of a dependency graph with the lanes that it needs."""

    label: str
    needs: tuple[str, ...] = ()


class ForkSpec(Struct, frozen=True):
    """The lanes of a FORK in a topological order of their needs."""

    lanes: tuple[LaneSpec, ...]

    @property
    def has_needs(self) -> bool:
        """Tell whether the lanes are the steps of a dependency graph with an order of its own."""
        return any(lane.needs for lane in self.lanes)


class JoinSpec(Struct, frozen=True):
    """How a JOIN is judged; a BRANCH is always closed by `all`."""

    policy: JoinPolicy
    opens: str  # the BRANCH or FORK node that this join closes
    at_least: int = 0  # the lanes that AT_LEAST needs

    @property
    def needed(self) -> int:
        """Give how many lanes must be done; 0 where the policy counts none."""
        return 1 if self.policy is JoinPolicy.ANY else self.at_least

    @property
    def words(self) -> str:
        """Write the policy as the language does."""
        return f"at least {self.at_least}" if self.policy is JoinPolicy.AT_LEAST else self.policy.value


Spec = (
    TaskSpec
    | BranchSpec
    | ForeachSpec
    | WaitSpec
    | UntilSpec
    | SignalSpec
    | PollSpec
    | SetSpec
    | FailSpec
    | ReturnSpec
    | ForkSpec
    | ChildSpec
    | JoinSpec
    | None
)


class Node(Struct, frozen=True, gc=False):
    """One node; `id` is the author's step id, a JOIN's is `<block id>.end`. Line and column are those of the step.

    `inside` is the innermost parallel lane around it: the FORK's id and the lane's label.
    `within` names the FOREACH of whose items the node is a part. No edge leads into or out of such a part: its nodes
    without an incoming edge begin each item.
    """

    id: str
    kind: NodeKind
    spec: Spec
    when: Expression | None
    title: str | None
    line: int
    column: int
    inside: tuple[str, str] | None = None
    pause_at: bool = False  # the instance pauses before it runs
    within: str | None = None
    handlers: tuple[Handler, ...] = ()
    error_of: str | None = None  # the step whose error is `error` in this node's expressions
    compensate: TaskSpec | None = None  # the task that undoes what the node has done


class Edge(Struct, frozen=True):
    """A way from `source` to `target`, indexes into `Graph.nodes`; `case` names a branch's case or a fork's branch."""

    source: int
    target: int
    case: str | None = None


class Graph(Struct, frozen=True):
    """A compiled workflow version. `nodes` stand in a topological order, so every edge points forward.

    `output_schema` is what its output is known to be; None if it never has one. `redact` are the paths that the
    definition masks; what follows from them is `definitions.masks`'.
    """

    format: int
    workflow: str
    version: int
    title: str | None
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    input_schema: Json
    output: Template | None
    timeout_seconds: float
    on_failure: str  # "hold" | "fail" | "compensate"
    bounds: Bounds
    starts: StartRules = StartRules()
    output_schema: Json | None = None
    redact: tuple[str, ...] = ()

    @property
    def queues(self) -> frozenset[str]:
        """The queues that its steps, and those of its children, name."""
        return frozenset().union(*(queues_of(node) for node in self.nodes))


def queues_of(node: Node) -> tuple[str, ...]:
    """Name the queues that a node's tasks, or those of its child, go to."""
    spec = node.spec.task if isinstance(node.spec, PollSpec) else node.spec
    if isinstance(spec, ChildSpec):
        return spec.queues if node.compensate is None else (*spec.queues, node.compensate.queue)
    undoing = () if node.compensate is None else (node.compensate.queue,)
    return (spec.queue, *undoing) if isinstance(spec, TaskSpec) else undoing
