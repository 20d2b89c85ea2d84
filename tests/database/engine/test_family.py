"""Families of instances under random operators and progress: one end for all, nothing stuck, nobody left behind."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random

import pytest
from sqlalchemy import select

from engine.states import INSTANCE_TERMINAL, STEP_UNFINISHED, Action, Compensation, Control, StepState
from engine.store.instances import Filter, Stored, instances_read
from engine.store.steps import steps_load
from engine.tables import instance as table
from engine.tables import stimulus
from orbit.database import Database, Transaction
from orbit.errors import InvalidRequest, StateConflict
from pulse.claim import Assignment
from pulse.states import ErrorClass
from pulse.tables import task
from tests.support.weave import TYPES, Done, Weave

HEAD = "orbit: weave/1\nworkflow: {}\nversion: 1\ntimeout: 2h\ndefaults: {{queue: main, retry: {{max_attempts: 1}}}}\n"
LEAF = (
    HEAD.format("leaf") + "steps:\n  - {id: a, task: do.a@1, compensate: {task: undo.a@1}}\n"
    "  - {id: w, wait: {for: 5s}}\n  - {id: b, task: do.b@1}\n"
)
MIDDLE = (
    HEAD.format("middle").replace("timeout: 2h", "timeout: 2h\non_failure: fail")
    + "steps:\n  - {id: x, task: do.x@1, compensate: {task: undo.x@1}}\n"
    "  - {id: l, workflow: leaf, timeout: 30m, compensate: {task: undo.y@1}}\n"
)
TOP = HEAD.format("top") + (
    "steps:\n  - id: both\n    parallel:\n      branches:\n"
    "        left: [{id: m, workflow: middle}]\n        right: [{id: l, workflow: leaf}, {id: y, task: do.y@1}]\n"
)
OPERATIONS = 70


def family(weave: Weave) -> bytes:
    for text in (LEAF, MIDDLE, TOP):
        weave.publish(text)
    return weave.start("top")


def members(weave: Weave) -> list[Stored]:
    """All instances with their steps."""

    def read(tx: Transaction) -> list[Stored]:
        ids = [row.id for row in tx.rows(select(table.c.id).where(table.c.namespace_id == weave.namespace_id))]
        steps = steps_load(tx, ids)
        return [stored.with_steps(steps[identifier]) for identifier, stored in instances_read(tx, ids).items()]

    return weave.database.transaction(read)


class Run:
    """One seeded run over one family."""

    def __init__(self, weave: Weave, seed: int) -> None:
        self.weave = weave
        self.random = Random(seed)
        weave.types = (*TYPES, "undo.a", "undo.x", "undo.y")
        self.top = family(weave)
        self.running: list[Assignment] = []

    def operate(self) -> None:
        weave, random = self.weave, self.random
        chosen = random.choice(members(weave)).instance
        try:
            match random.choice(
                ["advance"] * 4
                + ["claim"] * 2
                + ["answer"] * 4
                + ["time", "pause", "resume", "resume", "recover", "recover", "cancel"]
            ):
                case "advance":
                    weave.runner.due_in(0)
                    weave.runner.run_once()
                case "claim":
                    self.running += weave.claim()
                case "answer" if self.running:
                    weave.answer(self.running.pop(random.randrange(len(self.running))), self.done())
                case "time":
                    weave.database.clock.advance(seconds_forward=random.choice([1, 6, 60]))
                case "pause":
                    weave.pause(chosen.id)
                case "resume":
                    weave.resume(chosen.id)
                case "cancel" if random.random() < 0.2:
                    weave.cancel(chosen.id, compensate=random.random() < 0.8)
                case "recover":
                    waiting = [
                        s.id for s in chosen.steps.values() if s.state in {StepState.FAILED, StepState.NEEDS_REVIEW}
                    ]
                    if waiting:
                        action = random.choice([Action.RETRY, Action.RETRY, Action.COMPLETE, Action.SKIP])
                        weave.recover(chosen.id, action, random.choice(waiting))
                case _:
                    pass
        except (StateConflict, InvalidRequest):
            pass

    def done(self) -> Done:
        return self.random.choice([Done({}), Done({}), Done({}), Done(error=ErrorClass.NON_RETRYABLE)])

    def settle(self) -> None:
        """Let every operator go home: all goes on, and whatever still fails is completed."""
        weave = self.weave
        for _ in range(60):
            for stored in members(weave):
                pause = stored.instance.pause
                if pause is not None and not pause.with_parent:
                    weave.resume(stored.instance.id)
                elif pause is not None and pause.is_own:
                    continue
            weave.advance()
            for assignment in self.running + list(weave.claim()):
                weave.answer(assignment, Done({}))
            self.running = []
            weave.advance()
            for stored in members(weave):
                for step in stored.instance.steps.values():
                    if step.state is StepState.FAILED and stored.instance.state.value == "NEEDS_RECOVERY":
                        with suppress(StateConflict):
                            weave.recover(stored.instance.id, Action.COMPLETE, step.id)
            weave.database.clock.advance(seconds_forward=6)
            if all(stored.instance.state in INSTANCE_TERMINAL for stored in members(weave)):
                return
        raise AssertionError([(s.origin.workflow, s.instance.state, s.instance.control) for s in members(weave)])


def check(weave: Weave, *, at_rest: bool) -> None:
    """Check what must always hold, and at rest what the stimuli under way would otherwise excuse."""
    found = {stored.instance.id: stored for stored in members(weave)}
    for stored in found.values():
        parent = stored.origin.parent
        if parent is None:
            continue
        above = found[parent.id].instance
        if stored.instance.state not in INSTANCE_TERMINAL:
            assert above.state not in INSTANCE_TERMINAL, "a parent has left its child behind"
        if at_rest and stored.instance.state not in INSTANCE_TERMINAL:
            pause = stored.instance.pause
            assert (above.control is Control.ACTIVE) or (
                stored.instance.control is not Control.ACTIVE or stored.instance.ending_as
            )
            assert above.control is not Control.ACTIVE or pause is None or not pause.with_parent
        # An operator who ends a child ends its pause, whatever its parent is.
        is_under_way = stored.instance.state not in INSTANCE_TERMINAL and stored.instance.ending_as is None
        if above.control is Control.PAUSED and is_under_way:
            assert stored.instance.control is Control.PAUSED, "a parent is quiet and its child is not"


@pytest.mark.parametrize("seed", range(6))
def test_random_operators_leave_no_family_in_pieces(weave: Weave, seed: int) -> None:
    run = Run(weave, seed)
    for _ in range(OPERATIONS):
        run.operate()
        check(weave, at_rest=False)
    weave.advance()
    check(weave, at_rest=True)
    run.settle()
    found = members(weave)
    assert not any(step.state in STEP_UNFINISHED for stored in found for step in stored.instance.steps.values())
    left = weave.database.transaction(lambda tx: tx.rows(select(task.c.state).where(task.c.finished_at.is_(None))))
    assert left == []
    assert weave.database.transaction(lambda tx: tx.rows(select(stimulus.c.id))) == []
    check_undone(found)


def check_undone(found: list[Stored]) -> None:
    """What a child says to have undone is not undone by its parent's step too, and it says so only if it has."""
    children = {stored.instance.id: stored.instance for stored in found if stored.origin.parent is not None}
    for stored in found:
        steps = stored.instance.steps
        for name, step in steps.items():
            if step.error is None or not step.error.is_undone:
                continue
            assert step.task_id is not None
            child = children[step.task_id]
            assert child.compensation is Compensation.DONE
            assert f"{name}.undo" not in steps or step.may_have_effect
        if stored.instance.compensation is Compensation.DONE:
            done = {name for name, step in steps.items() if step.may_have_effect}
            assert not {name for name in done if name in {"a", "x"} and f"{name}.undo" not in steps}


@pytest.mark.parametrize("what", ["cancel", "pause"])
@pytest.mark.databases("mariadb", "mysql")
def test_a_childs_end_races_its_parents_operator(weave: Weave, what: str) -> None:
    tops = [family(weave) for _ in range(1)] + [weave.start("top") for _ in range(7)]
    weave.advance()
    weave.drive(lambda *_: Done({}))
    weave.database.clock.advance(seconds_forward=6)
    weave.advance()
    last = weave.claim()
    others = [Weave(weave.database, beside=weave) for _ in range(2)]

    def answer() -> None:
        for assignment in last:
            weave.answer(assignment, Done({}))

    def operate() -> None:
        for top in tops:
            with suppress(StateConflict):
                (others[0].cancel if what == "cancel" else others[0].pause)(top)

    def advance() -> None:
        for _ in range(30):
            others[1].runner.due_in(0)
            others[1].runner.run_once()

    with ThreadPoolExecutor(3) as threads:
        for done in [threads.submit(each) for each in (answer, operate, advance)]:
            done.result()
    weave.advance()
    check(weave, at_rest=True)
    if what == "pause":
        assert {weave.get(top)["control"] for top in tops if weave.get(top)["finished_at"] is None} <= {"PAUSED"}
        for top in tops:
            if weave.get(top)["finished_at"] is None:
                weave.resume(top)
    for _ in range(4):
        weave.drive(lambda *_: Done({}))
        weave.database.clock.advance(seconds_forward=6)
    assert {weave.get(top)["state"] for top in tops} <= (
        {"CANCELLED", "SUCCEEDED"} if what == "cancel" else {"SUCCEEDED"}
    )
    check(weave, at_rest=True)
    for other in others:
        other.close()


def test_a_node_may_die_between_a_childs_end_and_its_parents_advance(weave: Weave, database: Database) -> None:
    weave.publish(LEAF)
    weave.publish(HEAD.format("one") + "steps: [{id: l, workflow: leaf}, {id: y, task: do.y@1}]\n")
    top = weave.start("one")
    weave.drive(lambda *_: Done({}))
    database.clock.advance(seconds_forward=6)
    weave.advance()
    (last,) = weave.claim()
    weave.answer(last, Done({}))
    weave.runner.run_once()  # the child has ended, and its parent has not heard of it
    (child,) = weave.instances.instances_list(weave.namespace_id, Filter(parent_id=top)).instances
    assert (child["state"], weave.states(top)["l"]) == ("SUCCEEDED", "RUNNING")
    weave.close()
    again = Weave(database, beside=weave)
    again.drive(lambda *_: Done({}))
    assert again.get(top)["state"] == "SUCCEEDED"
    again.close()
