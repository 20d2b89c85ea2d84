"""How an instance comes to stand in each situation in which one that has not ended can stand."""

from collections.abc import Callable

from engine.states import Action
from engine.store.instances import Filter
from orbit.jsontext import Json
from pulse.states import ErrorClass
from tests.database.engine.workflows import TWO_TASKS
from tests.support.weave import TYPES, Done, Weave

HEAD = """
orbit: weave/1
workflow: two
version: 1
input: {type: object}
timeout: 2d
defaults: {queue: main, start_within: 10m, retry: {max_attempts: 1}}
steps:
"""
POLL = "{id: p, poll: {task: ask.p@1, done_when: 'output.done == true', every: 60s, max_rounds: 5, timeout: 1h}}"
UNTIL = "{id: nap, wait: {until: input.at, timeout: 1h}}"
RETRIED = "{id: a, task: do.a@1, on_error: [{match: '*', then: retry, max: 2, backoff: 5m}]}"
HANDLED = "{id: a, task: do.a@1, on_error: [{match: '*', steps: [{id: b, task: do.b@1}]}]}"
UNDONE = "{id: a, task: do.a@1, compensate: {task: undo.a@1}}\n  - {id: b, task: do.b@1}"
EACH = "{id: each, foreach: {items: '[1, 2, 3]', max_items: 3, concurrency: 2, steps: [{id: a, task: do.a@1}]}}"
JOIN = "{id: both, parallel: {join: %s, branches: {left: [{id: a, task: do.a@1}], right: [{id: b, task: do.b@1}]}}}"
BLOCK = "{id: both, on_error: [{match: '*', then: continue}], " + (JOIN % "all").removeprefix("{id: both, ")
RETURN = (
    "{id: both, parallel: {join: any, branches: {left: [{id: a, task: do.a@1}], right: [{id: b, task: do.b@1}]}}}\n"
    "  - {id: out, return: {}}"
)
CHILD = "{id: c, workflow: child}"
KEYED = "{id: a, task: do.a@1, concurrency_keys: ['k']}"
NAP = "{id: nap, wait: {for: 1h}}"
SIGNAL = "{id: ok, wait: {signal: approved, timeout: 1d}}"
BREAKPOINT = "{id: a, task: do.a@1, pause_at: step}"
OUTPUT = '{id: s, set: {n: 1}}\noutput: {v: "${ input.missing }"}'

BROKEN = Done(error=ErrorClass.NON_RETRYABLE)
UNKNOWN = Done(error=ErrorClass.UNKNOWN_OUTCOME)
Handler = Callable[[str, int, Json], Done | None]


def only(**answers: Done | None) -> Handler:
    """Answer for the named steps, and leave the others running."""
    return lambda step, *_: answers.get(step.split("[")[0].replace(".", "_"))


def started(weave: Weave, steps: str, **answers: Done | None) -> bytes:
    weave.types = (*TYPES, "undo.a")
    weave.publish(f"{HEAD}  - {steps}\n")
    one = weave.start("two")
    weave.drive(only(**answers))
    return one


def ready(weave: Weave) -> bytes:
    weave.publish(TWO_TASKS)
    return weave.start("two")


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
    return one


def with_kept_result(weave: Weave) -> bytes:
    one = ready(weave)
    (assignment,) = weave.claim()
    weave.pause(one)
    weave.answer(assignment, Done({}))
    weave.advance()
    return one


def with_kept_review(weave: Weave) -> bytes:
    one = ready(weave)
    (assignment,) = weave.claim()
    weave.pause(one)
    weave.answer(assignment, UNKNOWN)
    weave.advance()
    return one


def cancelled(weave: Weave, steps: str, *, compensate: bool = False, **answers: Done | None) -> bytes:
    one = started(weave, steps, **answers)
    weave.cancel(one, compensate=compensate)
    weave.drive(only())
    return one


def ending(weave: Weave) -> bytes:
    return cancelled(weave, "{id: a, task: do.a@1}")


def reviewed_while_ending(weave: Weave) -> bytes:
    return cancelled(weave, "{id: a, task: do.a@1}", a=UNKNOWN)


def held(weave: Weave) -> bytes:
    return started(weave, "{id: a, task: do.a@1}", a=BROKEN)


def held_and_paused(weave: Weave) -> bytes:
    one = held(weave)
    weave.pause(one)
    return one


def held_and_pausing(weave: Weave) -> bytes:
    one = started(weave, JOIN % "all", a=BROKEN)
    weave.pause(one)
    return one


def retried(weave: Weave) -> bytes:
    one = held(weave)
    weave.recover(one, Action.RETRY, "a")
    return one


def full(weave: Weave) -> bytes:
    weave.queue("other", unfinished=1)
    weave.publish(TWO_TASKS.replace("queue: main", "queue: other"))
    weave.start("two")
    return weave.start("two")


def full_for_items(weave: Weave) -> bytes:
    weave.queue("other", unfinished=1)
    weave.publish(f"{HEAD}  - {EACH}\n".replace("queue: main", "queue: other"))
    return weave.start("two")


def timed_out(weave: Weave) -> bytes:
    one = started(weave, POLL)
    weave.database.clock.advance(seconds_forward=3601)
    weave.advance()
    return one


def reviewed_after_its_time(weave: Weave) -> bytes:
    weave.publish(f"{HEAD}  - {POLL}\n")
    one = weave.start("two")
    (assignment,) = weave.claim()
    weave.database.clock.advance(seconds_forward=3601)
    weave.advance()
    weave.answer(assignment, UNKNOWN)
    weave.advance()
    return one


def lost(weave: Weave) -> bytes:
    return started(weave, JOIN % "any" + f"\n  - {NAP}", a=Done({}))


def lost_under_review(weave: Weave) -> bytes:
    return started(weave, JOIN % "any" + f"\n  - {NAP}", a=Done({}), b=UNKNOWN)


def reopened(weave: Weave) -> bytes:
    one = started(weave, JOIN % "{at_least: 2}", a=BROKEN, b=Done({}))
    weave.recover(one, Action.RETRY, "a")
    weave.drive(only())
    return one


def returned(weave: Weave) -> bytes:
    return started(weave, RETURN, a=Done({}))


def failing(weave: Weave) -> bytes:
    weave.publish(f"{HEAD}  - {JOIN % 'all'}\n".replace("timeout: 2d", "timeout: 2d\non_failure: fail"))
    one = weave.start("two")
    weave.drive(only(a=BROKEN))
    return one


def compensating(weave: Weave) -> bytes:
    one = started(weave, UNDONE, a=Done({}), b=BROKEN)
    weave.cancel(one, compensate=True)
    weave.drive(only())
    return one


def compensating_and_pausing(weave: Weave) -> bytes:
    one = compensating(weave)
    weave.pause(one)
    return one


def compensating_and_paused(weave: Weave) -> bytes:
    one = started(weave, UNDONE, a=Done({}), b=BROKEN)
    weave.cancel(one, compensate=True)
    weave.pause(one)
    return one


def not_undone(weave: Weave) -> bytes:
    one = started(weave, UNDONE, a=Done({}), b=BROKEN)
    weave.cancel(one, compensate=True)
    weave.drive(only(a_undo=BROKEN))
    return one


def until(weave: Weave) -> bytes:
    text = f"{HEAD}  - {UNTIL}\n"
    weave.publish(text.replace("{type: object}", "{type: object, required: [at], properties: {at: {type: string}}}"))
    return weave.start("two", {"at": "2099-01-01T00:00:00Z"})


def stopped_items(weave: Weave) -> bytes:
    """The result of an item has no value, while another item is under way."""
    each = EACH.replace("}]}}", '}], output: "${ steps.a.output.n }"}}')
    weave.publish(f"{HEAD}  - {each}\n")
    one = weave.start("two")
    weave.advance()
    (first,) = [each for each in weave.claim() if each.task.source_step == "a[0]"]
    weave.answer(first, Done({}))
    weave.advance()
    return one


def parent(weave: Weave, child: str = "{id: a, task: do.a@1}", **answers: Done | None) -> bytes:
    weave.publish(f"{HEAD}  - {child}\n".replace("workflow: two", "workflow: child"))
    weave.publish(f"{HEAD}  - {CHILD}\n")
    one = weave.start("two")
    weave.drive(only(**answers))
    return one


def child_of(weave: Weave, instance: bytes) -> bytes:
    (found,) = weave.instances.instances_list(weave.namespace_id, Filter(parent_id=instance)).instances
    return bytes.fromhex(found["id"])


def parent_of_paused(weave: Weave) -> bytes:
    one = parent(weave)
    weave.pause(child_of(weave, one))
    return one


def paused_child(weave: Weave) -> bytes:
    one = parent(weave, NAP)
    weave.pause(one)
    weave.advance()
    return child_of(weave, one)


def new_child(weave: Weave) -> bytes:
    weave.publish(TWO_TASKS.replace("workflow: two", "workflow: child"))
    weave.publish(f"{HEAD}  - {CHILD}\n")
    one = weave.start("two")
    return child_of(weave, one)
