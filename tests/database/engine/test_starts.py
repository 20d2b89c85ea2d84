"""What a version asks of its starts: one instance for each business key, limits of running instances; in races too."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import func, select

from definitions.compiler import compile_definition
from engine.signalling import Message
from engine.start import StartRequest
from engine.states import InstanceState
from engine.store.instances import Filter
from engine.tables import running
from orbit.errors import BusinessKeyInUse, InvalidRequest, OrbitError, TooManyRunning
from orbit.idempotency import Answer
from orbit.jsontext import Json
from tests.support.weave import Done, Weave

KEYED = """
orbit: weave/1
workflow: keyed
version: {version}
{rules}
defaults: {{queue: main, start_within: 10m}}
steps:
  - {{id: a, task: do.a@1}}
{more}
"""
WAIT = "  - {id: w, wait: {signal: go, timeout: 1d}}"


def text_of(rules: str, *, version: int = 1, more: str = "") -> str:
    return KEYED.format(rules=rules, version=version, more=more)


def answers(*_: object) -> Done:
    return Done({"ok": True})


def begin(weave: Weave, key: str | None = "k", **fields: Any) -> Answer:
    return weave.instances.instance_start(weave.request("keyed", business_key=key, **fields))


def finish(weave: Weave) -> None:
    weave.drive(answers)


def counted(weave: Weave) -> int:
    rows = weave.database.transaction(lambda tx: tx.rows(select(func.count()).select_from(running)))
    return int(rows[0][0])


def race(weave: Weave, requests: list[StartRequest], *, at_once: int = 6) -> list[Answer | OrbitError]:
    """Start from several threads, each with a transaction of its own, as several nodes would."""

    def run(request: StartRequest) -> Answer | OrbitError:
        (outcome,) = weave.starter._run([request])  # noqa: SLF001  (the batcher's greenlets belong to one thread)
        return outcome

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(run, requests))


def test_an_allowing_workflow_takes_any_number_with_one_key(weave: Weave) -> None:
    weave.publish(text_of("business_key_policy: ALLOW"))
    assert begin(weave).subject_id != begin(weave).subject_id


def test_reject_running_takes_the_next_when_the_first_has_ended(weave: Weave) -> None:
    weave.publish(text_of("business_key_policy: REJECT_RUNNING"))
    first = begin(weave)
    with pytest.raises(BusinessKeyInUse) as refused:
        begin(weave)
    assert refused.value.details == {"instance_id": first.subject_id.hex(), "state": "RUNNING"}
    assert begin(weave, "other").subject_id != first.subject_id
    finish(weave)
    second = begin(weave)
    assert second.subject_id != first.subject_id
    weave.cancel(second.subject_id)
    finish(weave)
    assert begin(weave).subject_id not in {first.subject_id, second.subject_id}


def test_reject_any_takes_one_for_ever(weave: Weave) -> None:
    weave.publish(text_of("business_key_policy: REJECT_ANY"))
    begin(weave)
    finish(weave)
    with pytest.raises(BusinessKeyInUse) as refused:
        begin(weave)
    assert (refused.value.details or {})["state"] == "SUCCEEDED"


def test_return_running_gives_the_unfinished_one(weave: Weave) -> None:
    weave.publish(text_of("business_key_policy: RETURN_RUNNING"))
    first = begin(weave)
    again = begin(weave)
    assert (again.subject_id, again.data["existing"], again.deduplicated) == (first.subject_id, True, False)
    assert again.data["instance"]["id"] == first.subject_id.hex()
    finish(weave)
    assert "existing" not in begin(weave).data


def test_a_replay_gives_the_first_answer_whatever_has_become_of_the_key(weave: Weave) -> None:
    weave.publish(text_of("business_key_policy: RETURN_RUNNING"))
    first = begin(weave)
    request = weave.request("keyed", key="again", business_key="k")
    given = weave.instances.instance_start(request)
    finish(weave)
    replayed = weave.instances.instance_start(request)
    assert (replayed.subject_id, replayed.deduplicated) == (first.subject_id, True)
    assert replayed.data == given.data


def test_a_signal_of_a_start_reaches_the_instance_that_is_given_back(weave: Weave) -> None:
    weave.publish(text_of("business_key_policy: RETURN_RUNNING", more=WAIT))
    first = begin(weave, signal=Message("go", 1, "one"))
    again = begin(weave, signal=Message("go", 2, "two"))
    once_more = begin(weave, signal=Message("go", 2, "two"))
    assert first.subject_id == again.subject_id == once_more.subject_id
    finish(weave)
    assert weave.signals_of(first.subject_id) == [("one", "TAKEN", "w"), ("two", "LEFT_OVER", None)]


def test_the_key_counts_across_versions_also_of_those_that_did_not_care(weave: Weave) -> None:
    weave.publish(text_of("business_key_policy: ALLOW"))
    first = begin(weave)
    weave.publish(text_of("business_key_policy: REJECT_RUNNING", version=2))
    with pytest.raises(BusinessKeyInUse) as refused:
        begin(weave)
    assert (refused.value.details or {})["instance_id"] == first.subject_id.hex()
    weave.publish(text_of("business_key_policy: REJECT_RUNNING", version=3))
    finish(weave)
    third = begin(weave)
    with pytest.raises(BusinessKeyInUse):
        begin(weave, version=2)
    assert weave.get(third.subject_id)["version"] == 3


def test_a_workflow_with_a_policy_asks_for_the_key(weave: Weave) -> None:
    weave.publish(text_of("business_key_policy: REJECT_ANY"))
    with pytest.raises(InvalidRequest) as refused:
        begin(weave, None)
    assert refused.value.pointer == "/business_key"


def test_starts_of_one_key_in_one_batch_see_each_other(weave: Weave) -> None:
    for policy, wanted in (("REJECT_RUNNING", BusinessKeyInUse), ("RETURN_RUNNING", Answer)):
        weave.publish(text_of(f"business_key_policy: {policy}", version=1 + (wanted is Answer)))
        requests = [weave.request("keyed", business_key=key) for key in (policy, f"{policy} 2") * 3]
        outcomes = weave.starter._run(requests)  # noqa: SLF001  (one batch, whatever the timing)
        assert [type(outcome) for outcome in outcomes[:2]] == [Answer, Answer]
        assert {type(outcome) for outcome in outcomes[2:]} == {wanted}
        found = {outcome.subject_id for outcome in outcomes if isinstance(outcome, Answer)}
        assert len(found) == 2


@pytest.mark.parametrize("policy", ["REJECT_RUNNING", "RETURN_RUNNING", "REJECT_ANY"])
def test_of_many_starts_with_one_key_at_once_one_makes_an_instance(weave: Weave, policy: str) -> None:
    weave.publish(text_of(f"business_key_policy: {policy}"))
    for number in range(3):
        outcomes = race(weave, [weave.request("keyed", business_key=f"k{number}") for _ in range(12)])
        made = [each for each in outcomes if isinstance(each, Answer) and "existing" not in each.data]
        assert len(made) == 1
        others = Counter(type(each) for each in outcomes if each is not made[0])
        assert others == {(Answer if policy == "RETURN_RUNNING" else BusinessKeyInUse): 11}
        listed = [each.subject_id for each in outcomes if isinstance(each, Answer)]
        assert set(listed) == {made[0].subject_id}


def test_a_workflow_runs_no_more_than_its_limit_and_gets_places_back(weave: Weave) -> None:
    weave.publish(text_of("max_running: 3"))
    started = [begin(weave, None).subject_id for _ in range(3)]
    with pytest.raises(TooManyRunning) as refused:
        begin(weave, None)
    assert refused.value.retryable
    weave.cancel(started[0])
    weave.advance()
    begin(weave, None)
    with pytest.raises(TooManyRunning):
        begin(weave, None)
    finish(weave)
    assert counted(weave) == 0
    begin(weave, None)


def test_of_many_starts_at_once_no_more_than_the_limit_run(weave: Weave) -> None:
    weave.publish(text_of("max_running: 5"))
    for _ in range(2):
        outcomes = race(weave, [weave.request("keyed") for _ in range(20)])
        assert Counter(type(each) for each in outcomes) == {Answer: 5, TooManyRunning: 15}
        finish(weave)
        assert counted(weave) == 0


def test_starts_and_ends_at_once_neither_lose_nor_invent_places(weave: Weave) -> None:
    weave.publish(text_of("max_running: 4"))
    for _ in range(5):
        with ThreadPoolExecutor(2) as pool:
            ends = pool.submit(weave.drive, answers)
            race(weave, [weave.request("keyed") for _ in range(8)], at_once=3)
            ends.result()
        wanted = Filter(state=InstanceState.RUNNING)
        open_ones = weave.instances.instances_list(weave.namespace_id, wanted).instances
        assert counted(weave) == len(open_ones) <= 4
    finish(weave)
    assert counted(weave) == 0


def test_an_instance_that_ends_at_once_takes_no_place(weave: Weave) -> None:
    weave.publish(text_of("max_running: 1").replace("{id: a, task: do.a@1}", "{id: a, return: {}}"))
    for _ in range(3):
        assert weave.get(begin(weave, None).subject_id)["state"] == "SUCCEEDED"
    assert counted(weave) == 0


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        ("business_key_policy: ONCE", "BAD_VALUE"),
        ("business_key_policy: 1", "WRONG_TYPE"),
        ("max_running: 0", "OUT_OF_RANGE"),
        ("max_running: 10001", "OUT_OF_RANGE"),
        ("max_running: many", "WRONG_TYPE"),
    ],
)
def test_rules_that_are_none_are_found(rules: str, code: str) -> None:
    found: Json = [finding.code.value for finding in compile_definition(text_of(rules)).findings]
    assert found == [code]
