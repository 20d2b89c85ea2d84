"""`:explain` of every situation in which an instance that has not ended can stand, and that none of them is suspected.

A situation is what the tables allow: each state of an instance with each control, each state of an unfinished step with
each reason. The last tests say that none is left out.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest

from engine.instance import Instance
from engine.states import STEP_UNFINISHED, Control, InstanceState, StepReason, StepState
from engine.watchdog import examine
from orbit.database import Transaction
from orbit.errors import StateConflict
from pulse.queues import QueueChange, QueueSettings, queue_configure
from pulse.states import WaitReason
from pulse.store.queue import queue_ids
from tests.database.engine import situations
from tests.database.engine.situations import (
    BLOCK,
    BREAKPOINT,
    BROKEN,
    EACH,
    HANDLED,
    HEAD,
    JOIN,
    KEYED,
    NAP,
    OUTPUT,
    POLL,
    RETRIED,
    SIGNAL,
    UNKNOWN,
)
from tests.database.engine.workflows import TWO_TASKS
from tests.support.weave import Done, Weave


@dataclass(frozen=True)
class Situation:
    """How an instance comes to stand somewhere, where that is, and what has to be said of it."""

    make: Callable[[Weave], bytes]
    kinds: tuple[str, ...]
    words: tuple[str, ...]
    step: tuple[str, StepState, StepReason | None] | None = None
    state: InstanceState = InstanceState.RUNNING
    control: Control = Control.ACTIVE


W, R, N = StepState.WAITING, StepState.RUNNING, StepState.NEEDS_REVIEW
PAUSING, PAUSED = Control.PAUSING, Control.PAUSED
NEEDS_RECOVERY, ENDING, COMPENSATING = (
    InstanceState.NEEDS_RECOVERY,
    InstanceState.ENDING,
    InstanceState.COMPENSATING,
)

SITUATIONS = {
    "a task that no worker has": Situation(
        situations.ready,
        ("TASK",),
        ("NO_COMPATIBLE_WORKER", "no worker that could run it is connected since 20"),
        ("a", R, None),
    ),
    "a task that runs": Situation(situations.running, ("TASK",), ("RUNNING as attempt 1", "since 20"), ("a", R, None)),
    "a retried step": Situation(situations.retried, ("TASK",), ("waits for task",), ("a", R, None)),
    "handler's steps": Situation(
        lambda weave: situations.started(weave, HANDLED, a=BROKEN), ("TASK",), ("step b waits",), ("b", R, None)
    ),
    "its bound has passed": Situation(
        situations.timed_out, ("TASK",), ("was asked to stop (STEP_TIMED_OUT)",), ("p", R, StepReason.STEP_TIMED_OUT)
    ),
    "a loser that still runs": Situation(
        situations.lost, ("TASK", "TIMER"), ("was asked to stop (BRANCH_LOST)",), ("b", R, StepReason.BRANCH_LOST)
    ),
    "a cancelled task": Situation(
        situations.ending,
        ("TASK",),
        ("ends as CANCELLED", "was asked to stop (INSTANCE_ENDED)"),
        ("a", R, StepReason.INSTANCE_ENDED),
        ENDING,
    ),
    "a failing instance": Situation(
        situations.failing, ("TASK",), ("ends as FAILED",), ("b", R, StepReason.INSTANCE_ENDED), ENDING
    ),
    "a returned instance": Situation(
        situations.returned, ("TASK",), ("ends as SUCCEEDED",), ("b", R, StepReason.INSTANCE_ENDED), ENDING
    ),
    "a review": Situation(
        lambda weave: situations.started(weave, "{id: a, task: do.a@1}", a=UNKNOWN),
        ("REVIEW",),
        ("waits for a review", "a person has to settle it"),
        ("a", N, None),
    ),
    "a review while it ends": Situation(
        situations.reviewed_while_ending,
        ("REVIEW",),
        ("ends as CANCELLED", "waits for a review", "was asked to stop (INSTANCE_ENDED)"),
        ("a", N, StepReason.INSTANCE_ENDED),
        ENDING,
    ),
    "a review after its bound": Situation(
        situations.reviewed_after_its_time, ("REVIEW",), ("STEP_TIMED_OUT",), ("p", N, StepReason.STEP_TIMED_OUT)
    ),
    "a review of a loser": Situation(
        situations.lost_under_review, ("TIMER", "REVIEW"), ("BRANCH_LOST",), ("b", N, StepReason.BRANCH_LOST)
    ),
    "a wait": Situation(
        lambda weave: situations.started(weave, NAP),
        ("TIMER",),
        ("step nap waits until 20",),
        ("nap", W, StepReason.TIMER),
    ),
    "a wait for an instant": Situation(
        situations.until,
        ("TIMER",),
        ("waits until 2099-01-01T00:00:00.000000Z, and at most until 20",),
        ("nap", W, StepReason.TIMER),
    ),
    "a signal": Situation(
        lambda weave: situations.started(weave, SIGNAL),
        ("SIGNAL",),
        ("waits for signal approved until 20",),
        ("ok", W, StepReason.SIGNAL),
    ),
    "a poll's gap": Situation(
        lambda weave: situations.started(weave, POLL, p=Done({"done": False})),
        ("TIMER",),
        ("asks again (round 2)",),
        ("p", W, StepReason.POLL_GAP),
    ),
    "a full queue": Situation(
        situations.full, ("QUEUE_FULL",), ("waits for room on queue other",), ("a", W, StepReason.QUEUE_FULL)
    ),
    "a full queue for items": Situation(
        situations.full_for_items,
        ("ITEMS", "TASK", "QUEUE_FULL"),
        ("tries again with the other items of each", "more are tried at"),
        ("each", W, StepReason.QUEUE_FULL),
    ),
    "a handler's retry": Situation(
        lambda weave: situations.started(weave, RETRIED, a=BROKEN),
        ("TIMER",),
        ("tried again by an error handler at",),
        ("a", W, StepReason.RETRY),
    ),
    "items": Situation(
        lambda weave: situations.started(weave, EACH),
        ("ITEMS", "TASK", "TASK"),
        ("0 of 3 have ended, 2 are under way",),
        ("each", W, StepReason.ITEMS),
    ),
    "a join": Situation(
        lambda weave: situations.started(weave, JOIN % "any"),
        ("TASK", "TASK", "JOIN"),
        ("0 of 1 needed branches are done, there are 2; open: left, right",),
        ("a", R, None),
    ),
    "a step of a block that has failed": Situation(
        lambda weave: situations.started(weave, BLOCK, a=BROKEN),
        ("TASK", "BLOCK"),
        ("was asked to stop (BLOCK_FAILED)",),
        state=InstanceState.RUNNING,
    ),
    "a reopened join": Situation(
        situations.reopened,
        ("TASK", "JOIN"),
        ("1 of 2 needed branches are done", "open: left"),
        ("both.end", W, StepReason.JOIN),
    ),
    "a breakpoint": Situation(
        lambda weave: situations.started(weave, BREAKPOINT),
        ("PAUSE", "BREAKPOINT"),
        ("is PAUSED", "begins when the instance is resumed"),
        ("a", W, StepReason.BREAKPOINT),
        control=PAUSED,
    ),
    "a pause": Situation(
        situations.paused,
        ("PAUSE", "TASK"),
        ("is PAUSED: paused by test", "it is held back by the pause"),
        control=PAUSED,
    ),
    "a pause that is not quiet": Situation(
        situations.pausing, ("PAUSE", "TASK"), ("is PAUSING", "still runs: its tasks"), control=PAUSING
    ),
    "a pause with a result": Situation(
        situations.with_kept_result,
        ("PAUSE", "TASK"),
        ("has ended SUCCEEDED: its result is kept until the instance is resumed",),
        ("a", R, None),
        control=PAUSED,
    ),
    "a pause with an unknown outcome": Situation(
        situations.with_kept_review,
        ("PAUSE", "TASK"),
        ("whose outcome is unknown: its review is kept until the instance is resumed",),
        ("a", R, None),
        control=PAUSED,
    ),
    "a failure": Situation(
        situations.held,
        ("RECOVERY",),
        ("waits for a person to recover it from BROKEN", "step a has failed"),
        state=NEEDS_RECOVERY,
    ),
    "a failure in a pause": Situation(
        situations.held_and_paused, ("PAUSE", "RECOVERY"), ("is PAUSED",), state=NEEDS_RECOVERY, control=PAUSED
    ),
    "a failure beside work in a pause": Situation(
        situations.held_and_pausing,
        ("PAUSE", "RECOVERY", "TASK", "JOIN"),
        ("is PAUSING",),
        state=NEEDS_RECOVERY,
        control=PAUSING,
    ),
    "an output that has no value": Situation(
        lambda weave: situations.started(weave, OUTPUT), ("RECOVERY",), ("EXPRESSION_ERROR",), state=NEEDS_RECOVERY
    ),
    "an undoing": Situation(
        situations.compensating,
        ("TASK",),
        ("undoes what it did, then ends as CANCELLED", "step a.undo waits"),
        ("a.undo", R, None),
        COMPENSATING,
    ),
    "an undoing that is paused": Situation(
        situations.compensating_and_paused,
        ("PAUSE", "TASK"),
        ("undoes what it did",),
        state=COMPENSATING,
        control=PAUSED,
    ),
    "an undoing that is being paused": Situation(
        situations.compensating_and_pausing,
        ("PAUSE", "TASK"),
        ("undoes what it did",),
        state=COMPENSATING,
        control=PAUSING,
    ),
    "an undoing that has failed": Situation(
        situations.not_undone, ("RECOVERY",), ("step a.undo has failed",), state=NEEDS_RECOVERY
    ),
    "items of which one has failed": Situation(
        situations.stopped_items, ("ITEMS", "TASK"), ("none begins any more because of",), ("a[1]", R, None)
    ),
    "a child": Situation(situations.parent, ("CHILD",), ("waits for its child", "which is RUNNING"), ("c", R, None)),
    "a child that has failed": Situation(
        lambda weave: situations.parent(weave, a=BROKEN),
        ("CHILD",),
        ("which is NEEDS_RECOVERY (BROKEN)", "waits for a person since"),
        ("c", N, None),
    ),
    "a child that somebody has paused": Situation(
        situations.parent_of_paused, ("CHILD",), ("which is RUNNING and PAUSING",), ("c", R, None)
    ),
    "a child that is paused with its parent": Situation(
        situations.paused_child, ("PAUSE", "TIMER"), ("only the resume of its parent",), control=PAUSED
    ),
    "a child that has not begun": Situation(situations.new_child, ("RUNNER",), ("begins at once",)),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_stand_still_is_explained_and_not_suspected(weave: Weave, name: str) -> None:
    situation = SITUATIONS[name]
    one = situation.make(weave)
    told = weave.get(one)
    assert (told["state"], told["control"]) == (situation.state, situation.control)
    if situation.step is not None:
        step, state, reason = situation.step
        assert stands(weave, one).get(step) == (state, reason), stands(weave, one)
    found = weave.instances.instance_explain(weave.namespace_id, one)
    assert sorted(each["kind"] for each in found["waits_for"]) == sorted(situation.kinds)
    assert all(each["text"] in found["summary"] for each in found["waits_for"])
    for words in situation.words:
        assert words in found["summary"]
    assert examine(weave.database) == [], "what waits for something with a name is not stuck"


def stands(weave: Weave, instance: bytes) -> dict[str, tuple[StepState, StepReason | None]]:
    """Read how the entered steps stand, those of items too."""
    found = load(weave, instance)
    return {name: (step.state, step.reason) for name, step in found.steps.items()}


def load(weave: Weave, instance: bytes) -> Instance:
    order = weave.order("instance.pause", instance)
    return weave.database.transaction(lambda tx: weave.controls.locked(tx, order).instance)


# Of a step that has failed beside others, SKIPPED or SUCCEEDED there is nothing to wait for.
WAITING_REASONS = frozenset(
    {
        StepReason.ITEMS,
        StepReason.TIMER,
        StepReason.SIGNAL,
        StepReason.BREAKPOINT,
        StepReason.POLL_GAP,
        StepReason.QUEUE_FULL,
        StepReason.JOIN,
        StepReason.RETRY,
    }
)
STOPPING_REASONS = frozenset({StepReason.STEP_TIMED_OUT, StepReason.INSTANCE_ENDED, StepReason.BRANCH_LOST})
# What is stopped because its block has failed, and the end of that block, which waits for it: situations are to come.
OF_BLOCKS = frozenset({StepReason.BLOCK_FAILED})
DECIDED_REASONS = frozenset(
    {StepReason.WAIT_TIMED_OUT, StepReason.WHEN, StepReason.DEAD_PATH, StepReason.HANDLED, StepReason.RECOVERED}
)


def test_every_reason_of_a_step_is_one_of_these() -> None:
    """A new reason needs a situation here."""
    assert frozenset(StepReason) == WAITING_REASONS | STOPPING_REASONS | OF_BLOCKS | DECIDED_REASONS


def test_every_way_in_which_a_step_can_stand_has_a_situation() -> None:
    wanted: set[tuple[StepState, StepReason | None]] = {(W, reason) for reason in WAITING_REASONS}
    wanted |= {(state, reason) for state in (R, N) for reason in (None, *STOPPING_REASONS)}
    found = {situation.step[1:] for situation in SITUATIONS.values() if situation.step is not None}
    assert found == wanted
    assert {state for state, _ in wanted} == STEP_UNFINISHED


def test_every_way_in_which_an_instance_can_stand_has_a_situation() -> None:
    may_be_paused = (InstanceState.RUNNING, NEEDS_RECOVERY, COMPENSATING)
    wanted = {(state, control) for state in may_be_paused for control in Control} | {(ENDING, Control.ACTIVE)}
    assert {(situation.state, situation.control) for situation in SITUATIONS.values()} == wanted


def test_an_engine_error_says_that_results_are_kept(weave: Weave, monkeypatch: pytest.MonkeyPatch) -> None:
    weave.publish(f"{HEAD}  - {JOIN % 'all'}\n")
    one = weave.start("two")
    left, right = weave.claim()
    monkeypatch.setattr("engine.batch.advance", broken)
    weave.answer(left, Done({}))
    weave.advance()
    weave.answer(right, Done({}))
    weave.advance()
    monkeypatch.undo()
    found = weave.instances.instance_explain(weave.namespace_id, one)
    assert [each["kind"] for each in found["waits_for"]] == ["RECOVERY", "TASK", "TASK", "JOIN"]
    assert "ENGINE_ERROR" in found["summary"]
    assert found["summary"].count("is kept until a person has recovered the instance") == 2
    assert examine(weave.database) == []


def broken(*_: object) -> None:
    raise ZeroDivisionError("planted")


def pause_queue(weave: Weave) -> None:
    settings = QueueSettings(paused=True, max_concurrency=9, rate_per_second=9, max_unfinished_tasks=9)

    def change(tx: Transaction) -> None:
        (queue_id,) = queue_ids(tx, weave.namespace_id, {"main"}).values()
        command = weave.command("queue.configure", "main")
        queue_configure(tx, command, weave.actor, QueueChange(queue_id, 1, "the bank is away", settings))

    weave.database.transaction(change)


def test_why_a_task_waits_is_said_in_words_with_its_figures(weave: Weave) -> None:
    weave.publish(f"{HEAD}  - {KEYED}\n")
    first = weave.start("two")
    weave.claim()
    second = weave.start("two")
    weave.claim()
    (told,) = weave.instances.instance_explain(weave.namespace_id, second)["waits_for"]
    holder = weave.instances.instance_steps(weave.namespace_id, first)[0]["task_id"]
    assert told["wait_reason"] == WaitReason.KEY_BLOCKED
    assert f"a concurrency key is taken: k (held by {holder})" in told["text"]
    assert told["wait"]["concurrency_keys"][0]["held_by"] == [holder]
    pause_queue(weave)
    weave.publish(TWO_TASKS.replace("version: 1", "version: 2"))
    (told,) = weave.instances.instance_explain(weave.namespace_id, weave.start("two"))["waits_for"]
    assert told["wait_reason"] == WaitReason.QUEUE_PAUSED
    assert "its queue is paused by test since 20" in told["text"]
    assert "because 'the bank is away'" in told["text"]
    assert told["wait"]["paused_by"]["reason"] == "the bank is away"


def test_an_ended_instance_waits_for_nothing(weave: Weave) -> None:
    one = situations.ready(weave)
    weave.drive(lambda *_: Done({}))
    found = weave.instances.instance_explain(weave.namespace_id, one)
    assert (found["waits_for"], found["summary"]) == ([], "the instance has ended SUCCEEDED")
    with suppress(StateConflict):
        weave.pause(one)
    assert weave.instances.instance_explain(weave.namespace_id, one) == found
