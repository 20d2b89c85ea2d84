"""What a step says about itself in a drawing: its kind, what it runs, and its bounds."""

from __future__ import annotations

from definitions.duration import format_duration
from definitions.graph import (
    ChildSpec,
    FailSpec,
    ForeachSpec,
    Handler,
    Handling,
    JoinSpec,
    Node,
    NodeKind,
    PollSpec,
    SetSpec,
    SignalSpec,
    TaskSpec,
    UntilSpec,
    WaitSpec,
)

_WORDS = {NodeKind.FORK: "parallel"}


def kind_word(node: Node) -> str:
    """Name a node's kind as the language does."""
    return _WORDS.get(node.kind, node.kind.value.lower())


def facts_of(node: Node) -> list[str]:
    """Return what a node runs or waits for, what bounds it, and what handles its failure, a line each."""
    facts = [*_own_facts(node), *(f"on {handler.match}: {handling_of(handler)}" for handler in node.handlers)]
    if node.compensate is not None:
        facts.append(f"undone by {_task(node.compensate)}")
    return [*facts, *(["pauses before it"] if node.pause_at else [])]


def handling_of(handler: Handler) -> str:
    """Say in words what an error handler does."""
    match handler.then:
        case Handling.RETRY:
            gap = f" after {format_duration(handler.backoff_seconds)}" if handler.backoff_seconds else ""
            return f"retry at most {handler.retries_max} times{gap}"
        case Handling.STEPS:
            return "its steps"
        case _:
            return handler.then.value


def _own_facts(node: Node) -> list[str]:
    match node.spec:
        case TaskSpec() as task:
            return [_task(task), *_keys(task), *_task_bounds(task)]
        case PollSpec() as poll:
            ends = [f"done when {poll.done_when.source}"]
            if poll.fail_when is not None:
                ends.insert(0, f"fails when {poll.fail_when.source}")
            return [_task(poll.task), *_keys(poll.task), _rhythm(poll), *ends]
        case ForeachSpec():
            return [
                f"for each item of {node.spec.items.source}",
                f"at most {node.spec.items_max} items, {node.spec.concurrency} at once",
            ]
        case WaitSpec(for_seconds=seconds):
            return [f"for {format_duration(seconds)}"]
        case UntilSpec(until=until, timeout_seconds=timeout):
            return [f"until {until.source}", f"at most {format_duration(timeout)}"]
        case SignalSpec():
            return _signal(node.spec)
        case ChildSpec(workflow=workflow, version=version, timeout_seconds=timeout):
            return [f"{workflow}@{version}", *([] if timeout is None else [f"at most {format_duration(timeout)}"])]
        case FailSpec(code=code):
            return [code]
        case SetSpec(values=values) if isinstance(values.source, dict):
            return [", ".join(values.source)]
        case JoinSpec():
            return [node.spec.words]
        case _:
            return []


def _signal(wait: SignalSpec) -> list[str]:
    accepts = [] if wait.accept_when is None else [f"accepts when {wait.accept_when.source}"]
    ending = ", then goes on" if wait.continue_on_timeout else ""
    return [f"signal {wait.signal}", *accepts, f"at most {format_duration(wait.timeout_seconds)}{ending}"]


def _task(task: TaskSpec) -> str:
    return f"{task.type}@{task.task_version} on {task.queue}"


def _keys(task: TaskSpec) -> list[str]:
    return [f"holds {', '.join(str(key.source) for key in task.concurrency_keys)}"] if task.concurrency_keys else []


def _task_bounds(task: TaskSpec) -> list[str]:
    attempts = "1 attempt" if task.retry.attempts_max == 1 else f"{task.retry.attempts_max} attempts"
    each, whole = format_duration(task.attempt_timeout_seconds), format_duration(task.timeout_seconds)
    return [f"at most {attempts} of {each}, {whole} in all"]


def _rhythm(poll: PollSpec) -> str:
    growth = ""
    if poll.backoff != 1.0:
        growth = f" times {poll.backoff:g} up to {format_duration(poll.every_seconds_max)}"
    bounds = f"at most {poll.rounds_max} rounds, {format_duration(poll.timeout_seconds)}"
    return f"every {format_duration(poll.every_seconds)}{growth}, {bounds}"
