"""Finds blocks that could never go on: joins that no path satisfies, and retries of what can't be done once more."""

from __future__ import annotations

from collections.abc import Mapping

from definitions.codes import Code
from definitions.findings import Findings
from definitions.graph import Handling, JoinPolicy
from definitions.model import ChildModel, ForeachModel, JoinModel, StepModel
from definitions.scope import steps_inside


def check_lanes(
    step: StepModel,
    join: JoinModel,
    goes_on: Mapping[str, bool],
    *,
    always: frozenset[str],
    findings: Findings,
) -> None:
    """Refuse a join that is not reached or not satisfied on some path that no failure is on."""
    ending = [label for label in goes_on if label in always and not goes_on[label]]
    if join.policy in {JoinPolicy.ALL, JoinPolicy.SETTLED}:
        for label in ending:
            message = f"the branch `{label}` always ends the instance, so the join can never be reached"
            findings.at(Code.UNREACHABLE_JOIN, step.place, message, "end the instance after the block")
        return
    needed = join.at_least if join.policy is JoinPolicy.AT_LEAST else 1
    sure = [label for label in goes_on if label in always and goes_on[label]]
    if len(sure) < needed and goes_on:
        doubtful = ", ".join(f"`{label}`" for label in goes_on if label not in sure)
        who = f"{len(sure)} of {len(goes_on)} branches are sure to run to their end"
        because = f": {doubtful} can be skipped or end the instance" if doubtful else ""
        message = f"this join needs {needed} done, but only {who}{because}"
        hint = "give a branch a step without `when`, ask for fewer, or use `join: settled`"
        findings.at(Code.UNSATISFIABLE_JOIN, join.place, message, hint)


def check_retry(step: StepModel, findings: Findings) -> None:
    """Refuse a retry of a block in which something can't be done once more."""
    for inner in (step, *steps_inside(step)):
        what = None
        if isinstance(inner.kind, ChildModel):
            what = f"`{inner.id}` is a child workflow, and what it did would be done again"
        elif inner.compensate is not None:
            what = f"only what `{inner.id}` does last could be undone"
        elif inner is not step and isinstance(inner.kind, ForeachModel):
            what = f"all items of `{inner.id}` would be done again"
        if what is not None:
            place = next(each.place for each in step.on_error if each.then is Handling.RETRY)
            hint = "put the retry on the steps inside that can fail"
            findings.at(Code.CONTRADICTION, place, f"this block can't be done once more: {what}", hint)
            return


def check_undone_once(step: StepModel, findings: Findings) -> None:
    """Refuse a compensation inside a block that is undone as a whole: it would be undone twice."""
    for inner in steps_inside(step):
        if inner.compensate is not None:
            message = f"`{inner.id}` is undone with the block `{step.id}` around it already"
            hint = "leave one of the two compensations out"
            findings.at(Code.CONTRADICTION, inner.compensate.place, message, hint)
