"""Child workflows on a real database: started once, told once, paused, cancelled and recovered with their parents."""

from typing import Any

import pytest

from definitions.store import VersionState
from definitions.versions import Change, version_move
from engine.states import Action
from engine.store.instances import Filter
from orbit.database import Database
from orbit.errors import StateConflict
from orbit.jsontext import Json
from pulse.states import ErrorClass
from tests.support.weave import Done, Weave

CHILD = """
orbit: weave/1
workflow: child
version: 1
input: {type: object, required: [n], properties: {n: {type: integer}, m: {type: integer, default: 7}}}
timeout: 1d
defaults: {queue: main, start_within: 10m, retry: {max_attempts: 1}}
steps:
  - {id: a, task: do.a@1, input: {n: "${ input.n }", m: "${ input.m }"}}
  - {id: gap, wait: {for: 10s}}
  - {id: b, task: do.b@1}
output: {n: "${ input.n }"}
"""
PARENT = """
orbit: weave/1
workflow: parent
version: 1
input: {type: object}
timeout: 1d
defaults: {queue: main, start_within: 10m}
steps:
  - {id: c, workflow: child, input: {n: 5}}
  - {id: x, task: do.x@1, input: {n: "${ steps.c.output.n + 1 }"}}
output: {n: "${ steps.c.output.n }"}
"""


def good(_step: str, _round: int, _params: Json) -> Done:
    return Done({})


def both(weave: Weave, parent: str = PARENT, child: str = CHILD) -> tuple[bytes, bytes]:
    """Publish and start; return the parent and its child."""
    weave.publish(child)
    weave.publish(parent)
    instance = weave.start("parent", business_key="k", labels={"team": "a"})
    weave.advance()
    (found,) = children(weave, instance)
    return instance, bytes.fromhex(found["id"])


def children(weave: Weave, instance: bytes) -> list[Any]:
    return weave.instances.instances_list(weave.namespace_id, Filter(parent_id=instance)).instances


def finish(weave: Weave, database: Database) -> None:
    weave.drive(good)
    database.clock.advance(seconds_forward=11)
    weave.drive(good)


def step(weave: Weave, instance: bytes, name: str) -> Any:
    return next(each for each in weave.instances.instance_steps(weave.namespace_id, instance) if each["id"] == name)


@pytest.mark.requirement("R097")
def test_a_child_runs_and_its_output_goes_to_its_parent(weave: Weave, database: Database) -> None:
    parent, child = both(weave)
    assert step(weave, parent, "c")["child_id"] == child.hex()
    assert step(weave, parent, "c")["task_id"] is None
    told = weave.get(child)
    assert (told["parent"], told["root_id"]) == ({"id": parent.hex(), "step": "c", "round": 1}, parent.hex())
    assert (told["input"], told["business_key"], told["labels"]) == ({"n": 5, "m": 7}, "k", {"team": "a"})
    explained = weave.instances.instance_explain(weave.namespace_id, parent)["waits_for"]
    assert [(each["kind"], each["child_id"], each["child_state"]) for each in explained] == [
        ("CHILD", child.hex(), "RUNNING")
    ]
    seen: list[tuple[str, Json]] = []

    def handlers(name: str, _round: int, params: Json) -> Done:
        seen.append((name, params))
        return Done({})

    weave.drive(handlers)
    database.clock.advance(seconds_forward=11)
    weave.drive(handlers)
    assert seen == [("a", {"n": 5, "m": 7}), ("b", None), ("x", {"n": 6})]
    assert [weave.get(each)["state"] for each in (parent, child)] == ["SUCCEEDED", "SUCCEEDED"]
    assert weave.get(parent)["output"] == {"n": 5}
    assert weave.get(parent)["parent"] is None
    assert weave.get(parent)["root_id"] == parent.hex()


def test_a_childs_failure_is_its_steps_failure_with_code_and_link(weave: Weave, database: Database) -> None:
    parent, child = both(weave, child=CHILD.replace("timeout: 1d", "timeout: 1d\non_failure: fail"))
    weave.drive(lambda *_: Done(error=ErrorClass.NON_RETRYABLE, code="NO_LEDGER"))
    assert weave.get(child)["state"] == "FAILED"
    failed = step(weave, parent, "c")
    assert (failed["state"], failed["error"]["code"]) == ("FAILED", "NO_LEDGER")
    assert failed["error"]["details"]["child"] == child.hex()
    assert weave.get(parent)["state"] == "NEEDS_RECOVERY"
    with pytest.raises(Exception, match="say why another attempt"):
        weave.recover(parent, Action.RETRY, "c", safety_statement=None)
    weave.recover(parent, Action.RETRY, "c")
    again = step(weave, parent, "c")
    assert (again["round"], again["child_id"] != child.hex()) == (2, True)
    finish(weave, database)
    assert weave.get(parent)["state"] == "SUCCEEDED"
    assert [each["state"] for each in children(weave, parent)] == ["SUCCEEDED", "FAILED"]


@pytest.mark.parametrize("action", [Action.COMPLETE, Action.SKIP, Action.FAIL])
def test_a_failed_child_step_is_decided_like_a_task(weave: Weave, action: Action) -> None:
    text = PARENT.replace("${ steps.c.output.n + 1 }", "1").replace("${ steps.c.output.n }", "1")
    child = CHILD.replace("timeout: 1d", "timeout: 1d\non_failure: fail")
    parent, _ = both(weave, PARENT if action is Action.COMPLETE else text, child)
    weave.drive(lambda *_: Done(error=ErrorClass.NON_RETRYABLE))
    output = {"n": 9} if action is Action.COMPLETE else None
    if action is Action.COMPLETE:
        with pytest.raises(Exception, match="does not fit its schema"):
            weave.recover(parent, action, "c", output={"n": "nine"})
    weave.recover(parent, action, "c", output=output)
    weave.drive(good)
    expected = "FAILED" if action is Action.FAIL else "SUCCEEDED"
    assert weave.get(parent)["state"] == expected
    if action is Action.COMPLETE:
        assert weave.get(parent)["output"] == {"n": 9}


def test_a_child_that_waits_for_a_person_stops_its_parents_clocks_and_says_so(weave: Weave, database: Database) -> None:
    parent, child = both(weave, PARENT.replace("input: {n: 5}", "input: {n: 5}, timeout: 1h"))
    weave.drive(lambda *_: Done(error=ErrorClass.NON_RETRYABLE, code="NO_LEDGER"))
    assert weave.get(child)["state"] == "NEEDS_RECOVERY"
    assert (weave.get(parent)["state"], step(weave, parent, "c")["state"]) == ("RUNNING", "NEEDS_REVIEW")
    explained = weave.instances.instance_explain(weave.namespace_id, parent)
    assert "NEEDS_RECOVERY (NO_LEDGER) and waits for a person" in explained["summary"]
    with pytest.raises(StateConflict, match="recover that instance"):
        weave.recover(parent, Action.RETRY, "c")
    database.clock.advance(seconds_forward=80_000)  # the step's bound was an hour: nobody has been that fast
    weave.drive(good)
    assert step(weave, parent, "c")["state"] == "NEEDS_REVIEW"
    weave.recover(child, Action.RETRY, "a")
    weave.advance()
    assert step(weave, parent, "c")["state"] == "RUNNING"
    finish(weave, database)
    assert weave.get(parent)["state"] == "SUCCEEDED"


def test_a_cancel_goes_down_and_is_awaited(weave: Weave) -> None:
    parent, child = both(weave)
    running = weave.claim()
    weave.cancel(parent)
    assert weave.get(parent)["state"] == "ENDING"
    weave.advance()
    assert weave.get(child)["state"] == "ENDING"
    assert weave.get(parent)["state"] == "ENDING", "the task of the child still runs"
    weave.answer(running[0], Done({}))
    weave.advance()
    assert [weave.get(each)["state"] for each in (child, parent)] == ["CANCELLED", "CANCELLED"]
    assert weave.states(parent) == {"c": "CANCELLED", "x": "CANCELLED"}


def test_a_child_cancelled_by_its_own_operator_fails_the_step(weave: Weave) -> None:
    parent, child = both(weave)
    weave.cancel(child)
    weave.advance()
    failed = step(weave, parent, "c")
    assert (failed["state"], failed["error"]["code"]) == ("FAILED", "CHILD_CANCELLED")
    assert failed["error"]["details"]["child"] == child.hex()


def test_a_steps_time_out_cancels_the_child_and_waits_for_it(weave: Weave, database: Database) -> None:
    parent, child = both(weave, PARENT.replace("input: {n: 5}", "input: {n: 5}, timeout: 1m"))
    running = weave.claim()
    database.clock.advance(seconds_forward=61)
    weave.advance()
    assert weave.get(child)["state"] == "ENDING"
    assert step(weave, parent, "c")["reason"] == "STEP_TIMED_OUT"
    weave.answer(running[0], Done({}))
    weave.advance()
    assert weave.get(child)["state"] == "CANCELLED"
    assert step(weave, parent, "c")["error"]["code"] == "STEP_TIMED_OUT"
    assert weave.get(parent)["state"] == "NEEDS_RECOVERY"


def test_r225_a_pause_goes_down_and_is_quiet_only_when_the_child_is(weave: Weave, database: Database) -> None:
    parent, child = both(weave)
    running = weave.claim()
    assert weave.pause(parent)["control"] == "PAUSING"
    weave.advance()
    assert [weave.get(each)["control"] for each in (parent, child)] == ["PAUSING", "PAUSING"]
    weave.answer(running[0], Done({}))
    weave.advance()
    assert [weave.get(each)["control"] for each in (parent, child)] == ["PAUSED", "PAUSED"]
    assert weave.get(child)["pause"]["with_parent"]
    with pytest.raises(StateConflict, match="paused with its parent"):
        weave.resume(child)
    database.clock.advance(seconds_forward=3600)
    assert weave.work(good) == 0
    weave.resume(parent)
    weave.advance()
    assert [weave.get(each)["control"] for each in (parent, child)] == ["ACTIVE", "ACTIVE"]
    assert weave.states(child)["gap"] == "WAITING", "its wait has stood still"
    finish(weave, database)
    assert weave.get(parent)["state"] == "SUCCEEDED"


def test_a_childs_end_makes_a_pause_quiet_and_is_applied_after_it(weave: Weave, database: Database) -> None:
    parent, child = both(weave)
    weave.drive(good)
    database.clock.advance(seconds_forward=11)
    weave.advance()
    (last,) = weave.claim()
    weave.answer(last, Done({}))
    assert weave.pause(parent)["control"] == "PAUSING", "the child has not been told yet"
    weave.advance()
    assert weave.get(child)["state"] in {"SUCCEEDED", "RUNNING"}
    assert weave.get(parent)["control"] == "PAUSED"
    weave.resume(parent)
    finish(weave, database)
    assert weave.get(parent)["state"] == "SUCCEEDED"


def test_a_child_paused_by_its_own_operator_stays_so_when_its_parent_goes_on(weave: Weave, database: Database) -> None:
    parent, child = both(weave)
    weave.pause(child)
    weave.pause(parent)
    weave.advance()
    assert [weave.get(each)["control"] for each in (parent, child)] == ["PAUSED", "PAUSED"]
    weave.resume(parent)
    weave.advance()
    assert [weave.get(each)["control"] for each in (parent, child)] == ["ACTIVE", "PAUSED"]
    weave.resume(child)
    finish(weave, database)
    assert weave.get(parent)["state"] == "SUCCEEDED"


def test_a_child_of_a_paused_parent_is_born_paused(weave: Weave, database: Database) -> None:
    parent, first = both(weave, child=CHILD.replace("timeout: 1d", "timeout: 1d\non_failure: fail"))
    weave.drive(lambda *_: Done(error=ErrorClass.NON_RETRYABLE))
    weave.pause(parent)
    weave.recover(parent, Action.RETRY, "c")
    weave.advance()
    (second, _) = children(weave, parent)
    assert (second["control"], second["revision"]) == ("PAUSED", "0")
    assert weave.claim() == []
    assert second["id"] != first.hex()
    weave.resume(parent)
    finish(weave, database)
    assert weave.get(parent)["state"] == "SUCCEEDED"


def test_a_quick_pause_and_resume_leaves_nothing_paused(weave: Weave, database: Database) -> None:
    parent, child = both(weave)
    for _ in range(3):
        weave.pause(parent)
        weave.resume(parent)
    weave.advance()
    assert [weave.get(each)["control"] for each in (parent, child)] == ["ACTIVE", "ACTIVE"]
    finish(weave, database)
    assert weave.get(parent)["state"] == "SUCCEEDED"


def test_children_of_children_are_cancelled_to_the_last(weave: Weave) -> None:
    weave.publish(CHILD)
    middle = PARENT.replace("workflow: parent", "workflow: middle")
    weave.publish(middle)
    weave.publish(PARENT.replace("workflow: child, input: {n: 5}", "workflow: middle@1"))
    top = weave.start("parent")
    weave.advance()
    (second,) = children(weave, top)
    (third,) = children(weave, bytes.fromhex(second["id"]))
    assert third["root_id"] == second["root_id"] == top.hex()
    weave.pause(top)
    weave.advance()
    assert [weave.get(bytes.fromhex(each["id"]))["control"] for each in (second, third)] == ["PAUSED", "PAUSED"]
    weave.cancel(top)
    weave.advance()
    states = [weave.get(bytes.fromhex(each))["state"] for each in (top.hex(), second["id"], third["id"])]
    assert states == ["CANCELLED"] * 3


def test_a_retired_child_goes_on_for_the_parents_that_were_published_with_it(weave: Weave, database: Database) -> None:
    weave.publish(CHILD)
    weave.publish(PARENT)
    change = Change(namespace_id=weave.namespace_id, workflow="child", actor=weave.actor, reason="old")
    database.transaction(lambda tx: version_move(tx, change, 1, VersionState.RETIRED))
    weave.publish(PARENT)  # the same text again is the same version, whatever its children are now
    parent = weave.start("parent")
    finish(weave, database)
    assert weave.get(parent)["state"] == "SUCCEEDED"
    with pytest.raises(AssertionError, match="CHILD_RETIRED"):
        weave.publish(PARENT.replace("version: 1", "version: 2"))


ASKING = """
orbit: weave/1
workflow: child
version: 1
input: {type: object}
timeout: 1d
defaults: {queue: main, start_within: 10m}
steps:
  - {id: a, task: do.a@1}
  - {id: ok, wait: {signal: approved, timeout: 1h}}
"""
KEPT = PARENT.replace(", input: {n: 5}", "").replace("steps.c.output.n + 1", "1").replace("steps.c.output.n", "1")


def test_a_signal_that_was_kept_for_its_business_key_is_given_to_a_child(weave: Weave) -> None:
    weave.publish(ASKING)
    weave.publish(KEPT)
    weave.signal(("child", "k"), "approved", {"by": "ann"}, signal="early")
    weave.signal(("child", "other"), "approved", None, signal="of another")
    parents = [weave.start("parent", business_key="k"), weave.start("parent")]
    weave.drive(good)
    (asked,), (alone,) = (children(weave, parent) for parent in parents)
    assert weave.signals_of(bytes.fromhex(asked["id"])) == [("early", "TAKEN", "ok")]
    assert (asked["state"], alone["state"]) == ("SUCCEEDED", "RUNNING")
    assert [weave.get(parent)["state"] for parent in parents] == ["SUCCEEDED", "RUNNING"]


def test_a_child_that_is_born_paused_finds_its_signals_when_it_begins(weave: Weave) -> None:
    weave.publish(ASKING)
    weave.publish(KEPT.replace("steps:", "steps:\n  - {id: w, wait: {for: 5s}}"))
    parent = weave.start("parent", business_key="k")
    weave.signal(("child", "k"), "approved", None, signal="early")
    weave.database.clock.advance(seconds_forward=6)
    weave.runner.run_once()  # the child is born, and has not begun
    (child,) = children(weave, parent)
    weave.pause(bytes.fromhex(child["id"]))
    weave.drive(good)
    assert children(weave, parent)[0]["control"] == "PAUSED"
    assert weave.signals_of(bytes.fromhex(child["id"])) == []
    weave.resume(bytes.fromhex(child["id"]))
    weave.drive(good)
    assert weave.get(parent)["state"] == "SUCCEEDED"
