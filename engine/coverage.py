"""What of a workflow simulated runs have covered: steps, cases, skips, and what waits, polls and joins came to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from definitions.graph import BranchSpec, Graph, JoinSpec, PollSpec, SignalSpec
from engine import joining, polling, signals
from engine.flow import is_undoing, undone_step
from engine.items import own_name
from engine.playing import Line
from engine.states import StepReason

# A step has run if its history has one of these: what was skipped, or cancelled before it began, has none.
_RAN = frozenset({"step.submitted", "step.waiting", "step.succeeded", "step.failed"})


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """One thing to cover; `case` is the label of a branch's case, or the number of an error handler."""

    step: str
    what: str  # ran | case | skipped | exhausted | signalled | timed_out | unsatisfied | handled | undone
    case: str | None = None

    def __str__(self) -> str:
        match self.what:
            case "ran":
                return f"step {self.step} has run"
            case "case":
                return f"case {self.case} of {self.step} was taken"
            case "handled":
                return f"error handler {self.case} of {self.step} took a failure"
            case "undone":
                return f"step {self.step} was undone"
            case "skipped":
                return f"step {self.step} was skipped by its `when`"
            case "signalled":
                return f"wait {self.step} was ended by its signal"
            case "timed_out":
                return f"wait {self.step} has timed out"
            case "unsatisfied":
                return f"the join of {self.step} could not be satisfied"
            case _:
                return f"poll {self.step} was exhausted"


def items_of(graph: Graph) -> frozenset[Item]:
    """List what there is to cover."""
    found: set[Item] = set()
    for node in graph.nodes:
        if isinstance(node.spec, JoinSpec):
            if node.spec.needed:
                found.add(Item(node.spec.opens, "unsatisfied"))
            continue
        found.add(Item(node.id, "ran"))
        if node.when is not None:
            found.add(Item(node.id, "skipped"))
        if node.compensate is not None:
            found.add(Item(node.id, "undone"))
        found |= {Item(node.id, "handled", str(index + 1)) for index in range(len(node.handlers))}
        if isinstance(node.spec, BranchSpec):
            found |= {Item(node.id, "case", case.label) for case in node.spec.cases}
        if isinstance(node.spec, PollSpec):
            found.add(Item(node.id, "exhausted"))
        if isinstance(node.spec, SignalSpec):
            found |= {Item(node.id, "signalled"), Item(node.id, "timed_out")}
    return frozenset(found)


def path_of(trace: Iterable[Line]) -> list[str]:
    """Name the steps that ran, in the order in which they began; joins are no steps of the author, compensations are.

    A step of items stands once, where the first item began it.
    """
    ran = (line.entry.step for line in trace if line.entry.kind in _RAN)
    return list(
        dict.fromkeys(own_name(step) for step in ran if step is not None and ("." not in step or is_undoing(step)))
    )


def covered_by(graph: Graph, trace: Iterable[Line]) -> frozenset[Item]:
    """List what one run has covered."""
    lines = list(trace)
    opens = {node.id: node.spec.opens for node in graph.nodes if isinstance(node.spec, JoinSpec)}
    found = {Item(undone_step(step), "undone" if is_undoing(step) else "ran") for step in path_of(lines)}
    for line in lines:
        step, data = None if line.entry.step is None else own_name(line.entry.step), line.entry.data
        match line.entry.kind:
            case "step.succeeded" if step is not None and "case" in data:
                found.add(Item(step, "case", data["case"]))
            case "step.succeeded" if step is not None and "timed_out" in data:
                found.add(Item(step, "timed_out"))
            case "signal.taken" if step is not None:
                found.add(Item(step, "signalled"))
            case "step.failed" if step is not None and data["error"]["code"] == signals.TIMED_OUT:
                found.add(Item(step, "timed_out"))
            case "step.error_handled" if step is not None:
                found.add(Item(opens.get(step, step), "handled", str(data["handler"])))
            case "step.skipped" if step is not None and data["reason"] == StepReason.WHEN:
                found.add(Item(step, "skipped"))
            case "step.failed" if step is not None and data["error"]["code"] == polling.EXHAUSTED:
                found.add(Item(step, "exhausted"))
            case "step.failed" if step is not None and data["error"]["code"] == joining.UNSATISFIED:
                found |= {
                    Item(node.spec.opens, "unsatisfied")
                    for node in graph.nodes
                    if node.id == step and isinstance(node.spec, JoinSpec)
                }
    return frozenset(found & items_of(graph))
