"""A foreach on a database: items in order, some at once; failures, reviews, pauses; rows that get out of the way."""

from collections import Counter

import pytest
from sqlalchemy import text

from engine.states import Action
from orbit.errors import InvalidRequest, NotFound, StateConflict
from orbit.jsontext import Json
from pulse.states import ErrorClass
from tests.support.weave import Done, Handlers, Weave

EACH = """
orbit: weave/1
workflow: each
version: 1
input: {type: object, required: [docs], properties: {docs: {type: array, items: {type: string}}}}
timeout: 1d
defaults: {queue: main, start_within: 10m, retry: {max_attempts: 1}}
steps:
  - id: each
    foreach:
      items: input.docs
      max_items: 50
      concurrency: 3
      steps:
        - id: fetch
          task: do.a@1
          input: {doc: "${ item }", index: "${ index }"}
          output: {type: object, required: [size], properties: {size: {type: integer}}}
        - {id: store, task: do.b@1, input: {size: "${ steps.fetch.output.size }"}}
      output: {doc: "${ item }", size: "${ steps.fetch.output.size }"}
  - {id: after, task: do.c@1, input: "${ steps.each.output }"}
output: {all: "${ steps.each.output }"}
"""
BROKEN = Done(error=ErrorClass.NON_RETRYABLE, code="NO_SUCH_DOCUMENT")
UNKNOWN = Done(error=ErrorClass.UNKNOWN_OUTCOME)


def handlers(**special: Done | None) -> Handlers:
    """Answer fetches with the length of their document; `special` names steps as `fetch_3`."""

    def handle(step: str, _round: int, params: Json) -> Done | None:
        key = step.replace("[", "_").removesuffix("]")
        if key in special:
            return special[key]
        return Done({"size": len(params["doc"])}) if step.startswith("fetch") else Done({})

    return handle


@pytest.fixture
def each(weave: Weave) -> Weave:
    weave.publish(EACH)
    return weave


def docs(count: int) -> Json:
    return {"docs": ["x" * index for index in range(count)]}


def rows(weave: Weave, table: str) -> int:
    found = weave.database.transaction(lambda tx: tx.row(text(f"SELECT COUNT(*) AS n FROM {table}")))  # noqa: S608
    assert found is not None
    return int(found.n)


def items(weave: Weave, instance: bytes) -> list[Json]:
    return weave.instances.instance_items(weave.namespace_id, instance, "each").items


def test_items_run_some_at_once_and_their_results_stand_in_order(each: Weave) -> None:
    instance = each.start("each", docs(8))
    each.advance()
    claimed = {str(each.task.source_step): each for each in each.claim()}
    assert claimed.keys() == {"fetch[0]", "fetch[1]", "fetch[2]"}
    each.answer(claimed["fetch[1]"], Done({"size": 1}))
    each.drive(handlers())
    # Two of the three places are still taken, yet all others went through the third.
    assert [item["result"] is not None for item in items(each, instance)] == [False, True, False, *[True] * 5]
    for step in ("fetch[2]", "fetch[0]"):
        each.answer(claimed[step], Done({"size": 8}))
    each.drive(handlers())
    got = each.get(instance)
    sizes = [8, 1, 8, 3, 4, 5, 6, 7]
    assert got["state"] == "SUCCEEDED"
    assert got["output"] == {"all": [{"doc": "x" * index, "size": size} for index, size in enumerate(sizes)]}
    (step,) = [s for s in each.instances.instance_steps(each.namespace_id, instance) if s["id"] == "each"]
    assert step["items"] == {"count": 8, "begun": 8, "ended": 8, "under_way": 0}
    assert each.states(instance) == {"each": "SUCCEEDED", "after": "SUCCEEDED"}
    # What is done with lies apart: an advance reads the instance's own steps only.
    assert (rows(each, "weave_step"), rows(each, "weave_item")) == (2, 8)


def test_an_empty_list_succeeds_at_once_and_a_long_one_fails(each: Weave) -> None:
    empty, long = each.start("each", docs(0)), each.start("each", docs(51))
    each.drive(handlers())
    assert each.get(empty)["output"] == {"all": []}
    got = each.get(long)
    assert (got["state"], got["error"]["code"], got["error"]["details"]["items"]) == (
        "NEEDS_RECOVERY",
        "ITEMS_EXCEEDED",
        51,
    )
    # A person may vouch for a list of results; what is no list is refused.
    with pytest.raises(InvalidRequest, match="schema"):
        each.recover(long, Action.COMPLETE, "each", output={"no": "list"})
    each.recover(long, Action.COMPLETE, "each", output=[1])
    each.drive(handlers())
    assert each.get(long)["output"] == {"all": [1]}


def test_a_failed_item_keeps_new_ones_back_until_a_person_has_decided(each: Weave) -> None:
    instance = each.start("each", docs(7))
    each.drive(handlers(fetch_1=BROKEN))
    got = each.get(instance)
    assert (got["state"], got["error"]["details"]["step"]) == ("NEEDS_RECOVERY", "fetch[1]")
    shown = items(each, instance)
    # The items beside it went on to their ends; none has begun after the failure was known.
    assert [[step["state"] for step in item["steps"]] for item in shown] == [
        ["SUCCEEDED", "SUCCEEDED"],
        ["FAILED", "PENDING"],
        ["SUCCEEDED", "SUCCEEDED"],
    ]
    told = each.instances.instance_explain(each.namespace_id, instance)
    assert "step each waits for its items: 2 of 7 have ended, 1 are under way" in told["summary"]
    with pytest.raises(StateConflict, match="no step of an item that is under way"):
        each.recover(instance, Action.RETRY, "fetch[0]")
    with pytest.raises(InvalidRequest, match="no step"):
        each.recover(instance, Action.RETRY, "fetch[x]")
    with pytest.raises(InvalidRequest, match="schema"):
        each.recover(instance, Action.COMPLETE, "fetch[1]", output={"size": "big"})
    with pytest.raises(StateConflict, match="needed by step each"):
        each.recover(instance, Action.SKIP, "fetch[1]")
    told = each.recover(instance, Action.RETRY, "fetch[1]")
    assert told["after"]["state"] == "RUNNING"
    each.drive(handlers())
    assert [result["size"] for result in each.get(instance)["output"]["all"]] == [0, 1, 2, 3, 4, 5, 6]


def test_one_step_of_an_item_can_be_completed_by_a_person(each: Weave) -> None:
    instance = each.start("each", docs(4))
    each.drive(handlers(fetch_3=BROKEN))
    each.recover(instance, Action.COMPLETE, "fetch[3]", output={"size": 99})
    each.drive(handlers())
    assert [result["size"] for result in each.get(instance)["output"]["all"]] == [0, 1, 2, 99]


def test_a_review_of_one_item_lets_the_others_go_on(each: Weave) -> None:
    instance = each.start("each", docs(6))
    each.drive(handlers(fetch_0=UNKNOWN))
    assert each.get(instance)["state"] == "RUNNING"
    states = [item["steps"][0]["state"] for item in items(each, instance)]
    assert states == ["NEEDS_REVIEW", *["SUCCEEDED"] * 5]
    each.recover(instance, Action.RETRY, "fetch[0]")
    each.drive(handlers())
    assert each.get(instance)["state"] == "SUCCEEDED"


def test_a_late_success_for_an_item_that_is_done_with_is_noted(each: Weave) -> None:
    instance = each.start("each", docs(1))
    each.advance()
    (first,) = each.claim()
    each.answer(first, UNKNOWN)
    each.advance()
    each.recover(instance, Action.RETRY, "fetch[0]")
    for _ in ("fetch", "store"):
        (assignment,) = each.claim()
        each.answer(assignment, Done({"size": 0}))
        each.advance()
    each.answer(first, Done({"size": 0}))
    each.drive(handlers())
    assert ("step.late_success", "fetch[0]") in each.history(instance)
    assert each.get(instance)["state"] == "SUCCEEDED"


@pytest.mark.requirement("R013")
def test_a_late_or_repeated_end_of_an_items_task_starts_nothing_again(each: Weave) -> None:
    instance = each.start("each", docs(5))
    started: Counter[str] = Counter()

    def count(step: str, number: int, params: Json) -> Done | None:
        started[step] += 1
        return handlers()(step, number, params)

    each.drive(count)
    assert each.get(instance)["state"] == "SUCCEEDED"
    running = each.start("each", docs(5))
    each.advance()
    each.work(handlers())
    each.advance()
    each.repeat_last_stimulus(running, "fetch[0]")  # its next step runs
    each.advance()
    each.work(handlers())
    each.advance()
    each.repeat_last_stimulus(running, "fetch[0]")  # the item is done with
    each.drive(handlers())
    assert each.get(running)["state"] == "SUCCEEDED"
    assert [kind for kind, _ in each.history(running)].count("stimulus.superseded") == 2
    assert [kind for kind, _ in each.history(running)].count("step.submitted") == 11
    assert set(started.values()) == {1}


def test_a_pause_keeps_items_back_and_a_resume_goes_on(each: Weave) -> None:
    instance = each.start("each", docs(5))
    each.advance()
    each.work(handlers())
    each.pause(instance)
    each.database.clock.advance(seconds_forward=3600)
    each.advance()
    assert each.claim() == []
    assert len(items(each, instance)) == 3
    each.resume(instance)
    each.drive(handlers())
    assert each.get(instance)["state"] == "SUCCEEDED"


def test_a_cancel_stops_items_under_way_and_begins_none(each: Weave) -> None:
    instance = each.start("each", docs(9))
    each.advance()
    running = sorted(each.claim(), key=lambda task: str(task.task.source_step))
    assert each.cancel(instance)["state"] == "ENDING"
    each.answer(running[0], Done({"size": 0}))
    for task in running[1:]:
        each.answer(task, Done(error=ErrorClass.NON_RETRYABLE, code="STOPPED"))
    each.drive(handlers())
    assert each.get(instance)["state"] == "CANCELLED"
    assert each.states(instance) == {"each": "CANCELLED", "after": "CANCELLED"}
    shown = [[step["state"] for step in item["steps"]] for item in items(each, instance)]
    assert len(shown) == 3
    assert shown[0][0] == "SUCCEEDED"


def test_a_full_queue_is_tried_by_one_timer_in_the_order_of_the_items(weave: Weave) -> None:
    weave.queue("other", unfinished=2)
    weave.publish(EACH.replace("queue: main", "queue: other"))
    instance = weave.start("each", docs(5))
    weave.advance()
    assert sorted(step for step in waiting(weave, instance)) == ["each", "fetch[2]"]
    told = weave.instances.instance_explain(weave.namespace_id, instance)
    assert "fetch[2] waits for room on queue other, tries again with the other items of each" in told["summary"]
    order: list[str] = []

    def fetch(step: str, number: int, params: Json) -> Done | None:
        order.append(step)
        return handlers()(step, number, params)

    for _ in range(40):
        weave.drive(fetch)
        if weave.get(instance)["state"] == "SUCCEEDED":
            break
        weave.database.clock.advance(seconds_forward=31)
    assert weave.get(instance)["state"] == "SUCCEEDED"
    # What comes back from a full queue comes in the order of the items; two run at once, in any order.
    fetches = [step for step in order if step.startswith("fetch")]
    assert [sorted(fetches[:2]), sorted(fetches[2:4]), fetches[4:]] == [
        ["fetch[0]", "fetch[1]"],
        ["fetch[2]", "fetch[3]"],
        ["fetch[4]"],
    ]
    assert len(order) == len(set(order)) == 11


def waiting(weave: Weave, instance: bytes) -> list[str]:
    reasons = weave.instances.instance_explain(weave.namespace_id, instance)["waits_for"]
    return [reason["step"] for reason in reasons if reason["kind"] in {"QUEUE_FULL", "ITEMS"}]


def test_items_are_read_in_pages(each: Weave) -> None:
    instance = each.start("each", docs(5))
    each.drive(handlers())
    page = each.instances.instance_items(each.namespace_id, instance, "each", page=range(2))
    assert ([item["index"] for item in page.items], page.next_index) == ([0, 1], 2)
    page = each.instances.instance_items(each.namespace_id, instance, "each", page=range(4, 6))
    assert ([item["index"] for item in page.items], page.next_index) == ([4], None)
    assert [step["id"] for step in page.items[0]["steps"]] == ["fetch[4]", "store[4]"]
    with pytest.raises(NotFound):
        each.instances.instance_items(each.namespace_id, instance, "after")


def test_results_that_are_too_large_fail_the_foreach_when_the_others_have_settled(each: Weave) -> None:
    each.publish(
        EACH.replace("version: 1\n", "version: 2\n", 1).replace(
            '      output: {doc: "${ item }", size', '      output: {doc: "${ steps.fetch.output }", size'
        )
    )
    instance = each.start("each", docs(6))
    big = Done({"size": 1, "text": "y" * 30_000})
    each.drive(lambda step, _round, _params: big if step.startswith("fetch") else Done({}))
    got = each.get(instance)
    assert (got["state"], got["error"]["code"]) == ("NEEDS_RECOVERY", "RESULTS_TOO_LARGE")
    assert got["error"]["details"]["step"] == "each"
    assert each.states(instance)["each"] == "FAILED"
    each.recover(instance, Action.RETRY, "each")
    assert each.states(instance)["each"] == "FAILED"
    each.recover(instance, Action.COMPLETE, "each", output=[])
    each.drive(handlers())
    assert each.get(instance)["output"] == {"all": []}


@pytest.mark.requirement("R013")
def test_an_item_whose_handler_outlives_its_time_out_is_never_begun_again(weave: Weave) -> None:
    text = EACH.replace("task: do.a@1\n", "task: do.a@1\n          timeout: 1m\n          attempt_timeout: 1m\n")
    weave.publish(text)
    instance = weave.start("each", docs(4))
    weave.advance()
    running = {str(task.task.source_step): task for task in weave.claim()}
    weave.database.clock.advance(seconds_forward=90)
    weave.advance()
    # Its bound has passed: it is asked to stop, and nothing else happens while it may still take effect.
    assert [kind for kind, step in weave.history(instance) if step == "fetch[1]"][-1] == "step.cancel_requested"
    assert weave.claim() == []
    weave.answer(running["fetch[1]"], Done({"size": 7}))
    weave.answer(running["fetch[0]"], BROKEN)
    weave.drive(handlers())
    assert weave.get(instance)["state"] == "NEEDS_RECOVERY"
    assert [step["id"] for step in items(weave, instance)[1]["steps"] if step["state"] == "SUCCEEDED"] == [
        "fetch[1]",
        "store[1]",
    ]
    submitted = [step for kind, step in weave.history(instance) if kind == "step.submitted"]
    assert sorted(map(str, submitted)) == ["fetch[0]", "fetch[1]", "fetch[2]", "store[1]"]


def test_a_fork_copies_results_and_runs_a_foreach_as_a_whole(each: Weave) -> None:
    source = each.start("each", docs(3))
    each.drive(handlers())
    with pytest.raises(InvalidRequest, match="step each runs again"):
        each.fork(source, "each", safety_statement=None)
    behind = bytes.fromhex(each.fork(source, "after")["instance"]["id"])
    each.drive(handlers())
    assert each.get(behind)["output"] == each.get(source)["output"]
    assert items(each, behind) == []
    again = bytes.fromhex(each.fork(source, "each")["instance"]["id"])
    each.drive(handlers())
    assert each.get(again)["output"] == each.get(source)["output"]
    assert len(items(each, again)) == 3


def test_a_migration_leaves_alone_what_items_have_begun(each: Weave) -> None:
    second = EACH.replace("version: 1\n", "version: 2\n")
    each.publish(second.replace("input: {size: ", "input: {bytes: "))
    third = EACH.replace("version: 1\n", "version: 3\n")
    each.publish(third.replace('input: "${ steps.each.output }"', "input: 1"))
    instance = each.start("each", docs(5), version=1)
    each.advance()
    each.work(handlers())
    each.advance()
    with pytest.raises(StateConflict) as refused:
        each.migrate(instance, 2)
    assert "store" in str(refused.value.details)
    each.migrate(instance, 3)
    each.drive(handlers())
    got = each.get(instance)
    assert (got["version"], got["state"], len(got["output"]["all"])) == (3, "SUCCEEDED", 5)
