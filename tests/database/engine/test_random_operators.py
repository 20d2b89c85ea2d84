"""Random operators against random progress on a real database: nothing undocumented, nothing stuck, no orphan task."""

import os
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from sqlalchemy import select

from engine.states import INSTANCE_MOVES, INSTANCE_TERMINAL, STEP_MOVES, Action, InstanceState, StepState
from engine.tables import stimulus
from orbit.errors import InvalidRequest, StateConflict
from pulse.claim import Assignment
from pulse.states import ErrorClass
from pulse.tables import task
from tests.support.weave import TYPES, Done, Weave

MIXED = """
orbit: weave/1
workflow: mixed
version: 1
input: {type: object}
timeout: 2h
defaults: {queue: main, start_within: 10m, retry: {max_attempts: 2, backoff: 1s}}
steps:
  - {id: a, task: do.a@1, compensate: {task: undo.a@1, input: {ok: "${ default(steps.a.output.ok, null) }"}}}
  - id: both
    parallel:
      join: all
      branches:
        left: [{id: x, task: do.x@1, compensate: {task: undo.x@1}}, {id: w, wait: {for: 1m}}]
        right:
          - id: y
            task: do.y@1
            compensate: {task: undo.y@1}
            on_error:
              - {match: BROKEN, then: retry, max: 1}
              - {match: BROKEN, then: continue, value: {ok: false}}
  - id: p
    poll: {task: ask.p@1, input: {}, done_when: output.ok, every: 5s, max_rounds: 3, timeout: 10m}
  - {id: c, task: do.c@1, input: {a: "${ steps.a.output.ok }"}}
output: {ok: "${ steps.c.output.ok }"}
"""
FORKED = ("a", "x", "w", "y", "p", "c")  # nobody begins again with an undoing
STEPS = (*FORKED, "a.undo", "x.undo", "y.undo")
SEEDS = int(os.environ.get("ORBIT_OPERATOR_SEEDS", "3"))
INSTANCES = 3
INSTANCES_MAX = 5  # with forks of held ones
OPERATIONS = 80
DECISIONS = 3  # at least so many are accepted
OPERATIONS_MAX = 600


class Run:
    """One seeded run; what it finds is checked after every operation."""

    def __init__(self, weave: Weave, seed: int) -> None:
        self.weave = weave
        self.random = Random(seed)
        if seed % 2:
            weave.follow()
        weave.types = (*TYPES, "undo.a", "undo.x", "undo.y")
        for number, ahead in ((1, "do.c@1"), (2, "do.a@1"), (3, "do.c@1")):
            text = MIXED.replace("version: 1", f"version: {number}").replace("c, task: do.c@1", f"c, task: {ahead}")
            weave.publish(text.replace("max_rounds: 3", f"max_rounds: {2 + number}"))
        self.instances = [weave.start("mixed") for _ in range(INSTANCES)]
        self.running: list[Assignment] = []
        self.ended: list[bytes] = []
        self.accepted: Counter[str] = Counter()
        self.before = [self.look(instance) for instance in self.instances]

    def operate(self) -> None:
        operation = self.random.choice(
            ["advance", "advance", "advance", "claim", "claim", "answer", "answer", "answer", "time", "pause", "resume",
             "resume", "recover", "recover", "recover", "cancel", "fork", "migrate", "migrate"]
        )  # fmt: skip
        index = self.random.randrange(len(self.instances))
        if self.before[index][0] in INSTANCE_TERMINAL:
            self.ended.append(self.instances[index])
            self.instances[index] = self.successor(self.instances[index])
            self.before[index] = self.look(self.instances[index])
        instance = self.instances[index]
        try:
            if self.carry_out(operation, instance):
                self.accepted[operation] += 1
        except (StateConflict, InvalidRequest):
            pass  # what does not fit is refused, and changes nothing

    def carry_out(self, operation: str, instance: bytes) -> bool:
        weave, random = self.weave, self.random
        match operation:
            case "advance":
                weave.runner.due_in(0)
                weave.runner.run_once()
            case "claim":
                self.running += weave.claim()
            case "answer" if self.running:
                weave.answer(self.running.pop(random.randrange(len(self.running))), self.done())
            case "time":
                weave.database.clock.advance(seconds_forward=random.choice([1, 5, 60]))
            case "pause":
                weave.pause(instance)
            case "resume":
                weave.resume(instance)
            case "recover":
                output = {"ok": True} if random.random() < 0.7 else None
                weave.recover(instance, random.choice(list(Action)), self.step_of(instance), output=output)
            case "migrate":
                weave.migrate(instance, random.choice([1, 2, 3]))
            case "fork":
                return len(self.instances) < INSTANCES_MAX and self.fork(instance)
            case "cancel" if random.random() < 0.1:
                weave.cancel(instance, compensate=random.random() < 0.7)
            case _:
                return False
        return True

    def successor(self, ended: bytes) -> bytes:
        """Fork an instance that has ended, if that can be, or start another."""
        try:
            if self.random.random() < 0.7:
                told = self.weave.fork(ended, self.random.choice(FORKED), version=self.random.choice([None, 1, 2]))
                self.accepted["fork"] += 1
                return bytes.fromhex(told["instance"]["id"])
        except StateConflict:
            pass
        return self.weave.start("mixed")

    def fork(self, source: bytes) -> bool:
        """Fork one that may run or be held; the fork is one instance more."""
        told = self.weave.fork(source, self.random.choice(FORKED))
        self.instances.append(bytes.fromhex(told["instance"]["id"]))
        self.before.append(self.look(self.instances[-1]))
        return True

    def step_of(self, instance: bytes) -> str | None:
        """Choose a step that waits for a decision if there is one, and now and then any other."""
        steps = self.look(instance)[1]
        waiting = [name for name, step in steps.items() if step in {StepState.FAILED, StepState.NEEDS_REVIEW}]
        return self.random.choice(waiting if waiting and self.random.random() < 0.9 else [None, *STEPS])

    def done(self) -> Done:
        return self.random.choice(
            [
                Done({"ok": True}), Done({"ok": True}), Done({"ok": True}), Done({"ok": False}),
                Done(error=ErrorClass.NON_RETRYABLE), Done(error=ErrorClass.UNKNOWN_OUTCOME),
            ]
        )  # fmt: skip

    def look(self, instance: bytes) -> tuple[InstanceState, dict[str, StepState]]:
        steps = {name: StepState(state) for name, state in self.weave.states(instance).items()}
        return InstanceState(self.weave.get(instance)["state"]), steps

    def check(self) -> None:
        for index, instance in enumerate(self.instances):
            state, steps = self.look(instance)
            state_before, steps_before = self.before[index]
            assert state in reached(state_before)
            for name, step in steps.items():
                assert step in step_reached(steps_before[name])
            if state in INSTANCE_TERMINAL:
                assert self.unfinished(instance) == []
                assert self.weave.get(instance)["control"] == "ACTIVE"
            else:
                assert self.weave.instances.instance_explain(self.weave.namespace_id, instance)["waits_for"]
            self.before[index] = (state, steps)

    def unfinished(self, instance: bytes) -> Sequence[str]:
        query = select(task.c.state).where(task.c.source_id == instance, task.c.finished_at.is_(None))
        return [row.state for row in self.weave.database.transaction(lambda tx: tx.rows(query))]

    def finish(self) -> None:
        """Let people and workers do what is right until everything has ended."""
        good = Done({"ok": True})
        for assignment in self.running:
            self.weave.answer(assignment, good)
        for _ in range(30):
            for instance in self.instances:
                self.decide(instance)
            self.weave.drive(lambda *_: good)
            self.weave.database.clock.advance(seconds_forward=61)
            if all(state in INSTANCE_TERMINAL for state, _ in map(self.look, self.instances)):
                return
        raise AssertionError([self.look(instance) for instance in self.instances])

    def decide(self, instance: bytes) -> None:
        weave = self.weave
        state, steps = self.look(instance)
        if state in INSTANCE_TERMINAL:
            return
        weave.resume(instance)
        for name, step in steps.items():
            if step is StepState.NEEDS_REVIEW or (step is StepState.FAILED and state is InstanceState.NEEDS_RECOVERY):
                try:
                    weave.recover(instance, Action.COMPLETE, name, output={"ok": True})
                except StateConflict:
                    continue  # what came during the pause is applied first, or the instance ends
        if weave.get(instance)["state"] == "NEEDS_RECOVERY" and StepState.FAILED not in self.look(instance)[1].values():
            weave.recover(instance, Action.COMPLETE, output={"by": "hand"})


def reached(state: InstanceState) -> set[InstanceState]:
    found, todo = {state}, [state]
    while todo:
        new = INSTANCE_MOVES[todo.pop()] - found
        found |= new
        todo.extend(new)
    return found


def step_reached(state: StepState) -> set[StepState]:
    found, todo = {state}, [state]
    while todo:
        new = STEP_MOVES[todo.pop()] - found
        found |= new
        todo.extend(new)
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_operators_and_progress_in_any_order_break_nothing(weave: Weave, seed: int) -> None:
    run = Run(weave, seed)
    for number in range(OPERATIONS_MAX):
        run.operate()
        run.check()
        if number >= OPERATIONS and run.accepted["recover"] >= DECISIONS:
            break
    run.finish()
    run.check()
    assert weave.advance() == 0
    left = weave.database.transaction(lambda tx: tx.rows(select(stimulus.c.kind, stimulus.c.held)))
    assert list(left) == []
    everybody = [*run.instances, *run.ended]
    assert all(run.unfinished(instance) == [] for instance in everybody)
    codes = [(weave.get(instance)["error"] or {}).get("code") for instance in everybody]
    assert "ENGINE_ERROR" not in codes
    assert run.accepted["recover"] >= DECISIONS, "the operators did something"
