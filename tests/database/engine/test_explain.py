"""`:explain` of every situation in which an instance that has not ended can stand."""

from collections.abc import Callable

import pytest

from engine.states import Action, Control
from orbit.jsontext import Json
from pulse.states import ErrorClass
from tests.database.engine.workflows import TWO_TASKS
from tests.support.weave import Done, Weave

WAITS = """
orbit: weave/1
workflow: two
version: 1
timeout: 2d
defaults: {queue: main, start_within: 10m}
steps:
  - %s
"""
TIMER = WAITS % "{id: nap, wait: {for: 1h}}"
SIGNAL = WAITS % "{id: ok, wait: {signal: approved, timeout: 1d}}"
BREAKPOINT = WAITS % "{id: a, task: do.a@1, pause_at: step}"
POLL = WAITS % (
    "{id: p, poll: {task: ask.p@1, done_when: 'output.done == true', every: 60s, max_rounds: 5, timeout: 1h}}"
)


def processing(*_: Json) -> Done:
    return Done({"done": False})


def started(weave: Weave, text: str) -> bytes:
    weave.publish(text)
    return weave.start("two")


def told(weave: Weave, instance: bytes) -> tuple[list[str], str]:
    found = weave.instances.instance_explain(weave.namespace_id, instance)
    assert found["summary"], "it says something"
    assert all(reason["text"] for reason in found["waits_for"]), "each reason does"
    return [reason["kind"] for reason in found["waits_for"]], found["summary"]


def ready(weave: Weave) -> bytes:
    return started(weave, TWO_TASKS)


def running(weave: Weave) -> bytes:
    one = ready(weave)
    weave.claim()
    return one


def paused(weave: Weave) -> bytes:
    one = ready(weave)
    weave.pause(one)
    return one


def pausing(weave: Weave) -> bytes:
    one = running(weave)
    weave.pause(one)
    assert weave.get(one)["control"] == Control.PAUSING
    return one


def ending(weave: Weave) -> bytes:
    one = running(weave)
    weave.cancel(one)
    return one


def reviewed(weave: Weave) -> bytes:
    one = ready(weave)
    weave.drive(lambda *_: Done(error=ErrorClass.UNKNOWN_OUTCOME))
    return one


def held(weave: Weave) -> bytes:
    one = ready(weave)
    weave.drive(lambda *_: Done(error=ErrorClass.NON_RETRYABLE))
    return one


def retried(weave: Weave) -> bytes:
    one = held(weave)
    weave.recover(one, Action.RETRY, "a")
    return one


def refused(weave: Weave) -> bytes:
    weave.queue("other", unfinished=1)
    weave.publish(TWO_TASKS.replace("queue: main", "queue: other"))
    weave.start("two")
    return weave.start("two")


def asking(weave: Weave) -> bytes:
    one = started(weave, POLL)
    weave.drive(processing)
    return one


def timed_out(weave: Weave) -> bytes:
    one = started(weave, POLL)
    weave.claim()
    weave.database.clock.advance(seconds_forward=3601)
    weave.advance()
    return one


@pytest.mark.parametrize(
    ("make", "kinds", "words"),
    [
        (ready, ["TASK"], "which is WAITING"),
        (running, ["TASK"], "RUNNING"),
        (paused, ["PAUSE", "TASK"], "is PAUSED"),
        (pausing, ["PAUSE", "TASK"], "is PAUSING"),
        (ending, ["TASK"], "ends as CANCELLED"),
        (reviewed, ["REVIEW"], "waits for a review"),
        (held, ["RECOVERY"], "waits for a person to recover it from BROKEN: as the test wants"),
        (retried, ["TASK"], "waits for task"),
        (refused, ["QUEUE_FULL"], "waits for room on queue other"),
        (asking, ["TIMER"], "asks again (round 2)"),
        (timed_out, ["TASK"], "was asked to stop (STEP_TIMED_OUT)"),
        (lambda weave: started(weave, TIMER), ["TIMER"], "waits until"),
        (lambda weave: started(weave, SIGNAL), ["SIGNAL"], "approved"),
        (lambda weave: started(weave, BREAKPOINT), ["PAUSE", "BREAKPOINT"], "is PAUSED"),
    ],
)
def test_a_stand_still_is_explained(weave: Weave, make: Callable[[Weave], bytes], kinds: list[str], words: str) -> None:
    found, summary = told(weave, make(weave))
    assert found == kinds
    assert words in summary
