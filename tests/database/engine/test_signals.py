"""Signals on a real database: stored first, taken later, once; whoever races with them."""

from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from engine.signalling import KEPT_MAX, STORED_MAX, Message
from engine.states import INSTANCE_TERMINAL, Action
from engine.store.business_keys import BusinessKey
from orbit.errors import IdempotencyConflict, InvalidRequest, NotFound, PayloadTooLarge, StateConflict, TooManySignals
from orbit.jsontext import Json
from orbit.store.journal import Page, audit_list
from tests.support.weave import Done, Weave

APPROVAL = """
orbit: weave/1
workflow: approval
version: 1
on_failure: fail
defaults: {queue: main, start_within: 10m}
steps:
  - {id: approved, wait: {signal: approved, timeout: 1h, payload: {type: object, required: [by]}}}
  - {id: pay, task: do.a@1, input: {by: "${ steps.approved.output.by }"}}
output: "${ steps.approved.output }"
"""
BEFORE = """
orbit: weave/1
workflow: later
version: 1
on_failure: fail
defaults: {queue: main, start_within: 10m}
steps:
  - {id: a, task: do.a@1}
  - {id: first, wait: {signal: go, timeout: 1h}}
  - {id: second, wait: {signal: go, timeout: 1h}}
output: ["${ steps.first.output }", "${ steps.second.output }"]
"""
ANN: Json = {"by": "ann"}
HOUR = 3600


def answers(*_: object) -> Done:
    return Done({"ok": True})


def ended(weave: Weave, instance: bytes) -> tuple[str, Json]:
    weave.drive(answers)
    found = weave.get(instance)
    return found["state"], found["output"]


def test_a_signal_is_stored_wakes_the_instance_and_becomes_the_output(weave: Weave) -> None:
    weave.publish(APPROVAL)
    instance = weave.start("approval")
    weave.advance()
    woken = weave.woken
    sent = weave.signal(instance, "approved", ANN, signal="mail-7")
    assert (sent["instance_id"], sent["signal_id"], sent["deduplicated"]) == (instance.hex(), "mail-7", False)
    assert weave.woken == woken + 1
    assert weave.signals_of(instance) == [("mail-7", "KEPT", None)]
    assert ended(weave, instance) == ("SUCCEEDED", ANN)
    assert weave.signals_of(instance) == [("mail-7", "TAKEN", "approved")]
    kinds = [kind for kind, _ in weave.history(instance)]
    assert kinds[:5] == ["instance.started", "step.waiting", "signal.received", "signal.taken", "step.succeeded"]
    records = weave.database.transaction(lambda tx: audit_list(tx, weave.namespace_id, Page(5)))
    assert records[0].operation == "signal.send"


def test_signals_before_their_waits_are_kept_and_taken_in_order_each_once(weave: Weave) -> None:
    weave.publish(BEFORE)
    instance = weave.start("later")
    for number in (1, 2, 3):
        weave.signal(instance, "go", number, signal=f"s{number}")
        weave.advance()
    assert {state for _, state, _ in weave.signals_of(instance)} == {"KEPT"}
    assert ended(weave, instance) == ("SUCCEEDED", [1, 2])
    assert weave.signals_of(instance) == [
        ("s1", "TAKEN", "first"), ("s2", "TAKEN", "second"), ("s3", "LEFT_OVER", None),
    ]  # fmt: skip


def test_a_signal_before_its_instance_waits_for_the_business_key(weave: Weave) -> None:
    weave.publish(APPROVAL)
    to = ("approval", "order-1")
    assert weave.signal(to, "approved", ANN)["instance_id"] is None
    kept = weave.signals.signals_of_key(BusinessKey(weave.namespace_id, *to))
    assert [(each["state"], each["payload"], each["business_key"]) for each in kept] == [("KEPT", ANN, "order-1")]
    other = weave.start("approval", business_key="order-2")
    weave.drive(answers)
    assert weave.states(other)["approved"] == "WAITING"
    instance = weave.start("approval", business_key="order-1")
    assert ended(weave, instance) == ("SUCCEEDED", ANN)
    assert weave.signals.signals_of_key(BusinessKey(weave.namespace_id, *to)) == []
    again = weave.start("approval", business_key="order-1")
    weave.drive(answers)
    assert weave.states(again)["approved"] == "WAITING", "a signal is for one instance"


def test_a_signal_by_business_key_reaches_the_unfinished_instance_or_the_next_one(weave: Weave) -> None:
    weave.publish(APPROVAL)
    first = weave.start("approval", business_key="k")
    assert weave.signal(("approval", "k"), "approved", ANN)["instance_id"] == first.hex()
    assert ended(weave, first) == ("SUCCEEDED", ANN)
    assert weave.signal(("approval", "k"), "approved", {"by": "bob"})["instance_id"] is None
    two = [weave.start("approval", business_key="k") for _ in range(2)]
    with pytest.raises(StateConflict) as refused:
        weave.signal(("approval", "k"), "approved", ANN)
    assert refused.value.details is not None
    assert set(refused.value.details["instance_ids"]) == {instance.hex() for instance in two}


def test_a_start_may_carry_a_first_signal(weave: Weave) -> None:
    weave.publish(APPROVAL)
    instance = weave.start("approval", signal=Message("approved", ANN, "with-the-start"))
    assert weave.states(instance)["approved"] == "SUCCEEDED", "in the start's own transaction"
    assert ended(weave, instance) == ("SUCCEEDED", ANN)
    with pytest.raises(InvalidRequest) as refused:
        weave.start("approval", signal=Message("approvd", ANN, "x"))
    assert refused.value.pointer == "/signal/name"


def test_the_same_signal_again_is_the_same_and_another_meaning_a_conflict(weave: Weave) -> None:
    weave.publish(BEFORE)
    instance = weave.start("later", business_key="k")
    sent = weave.signal(instance, "go", 1, signal="a")
    assert weave.signal(instance, "go", 1, signal="a")["id"] == sent["id"], "under another key"
    replayed = weave.signal(instance, "go", 1, key="key", signal="b")
    assert weave.signal(instance, "go", 1, key="key", signal="b") == {**replayed, "deduplicated": True}
    with pytest.raises(IdempotencyConflict):
        weave.signal(instance, "go", 2, signal="a")
    assert weave.signal(("later", "k"), "go", 1, signal="a")["id"] != sent["id"], "the address is part of the identity"
    assert [signal for signal, _, _ in weave.signals_of(instance)] == ["a", "b", "a"]


def test_what_nobody_could_take_is_refused(weave: Weave) -> None:
    weave.publish(APPROVAL)
    instance = weave.start("approval")
    with pytest.raises(InvalidRequest, match="did you mean") as refused:
        weave.signal(instance, "aproved", ANN)
    assert refused.value.pointer == "/name"
    with pytest.raises(InvalidRequest) as refused:
        weave.signal(instance, "approved", {"who": "ann"})
    assert refused.value.pointer == "/payload"
    with pytest.raises(PayloadTooLarge):
        weave.signal(instance, "approved", {"by": "x" * 65_536})
    with pytest.raises(InvalidRequest):
        weave.signal(("approval", "new"), "aproved", ANN)
    with pytest.raises(NotFound):
        weave.signal(("unknown", "new"), "approved", ANN)
    with pytest.raises(NotFound):
        weave.signal(bytes(16), "approved", ANN)
    for queues in (frozenset({"other"}), frozenset[str]()):
        for to in (instance, ("approval", "new")):
            with pytest.raises(NotFound):
                weave.signal(to, "approved", ANN, queues=queues)
    assert weave.signals_of(instance) == []


def test_an_ended_instance_takes_no_signal_and_never_changes(weave: Weave) -> None:
    weave.publish(APPROVAL)
    instance = weave.start("approval")
    weave.signal(instance, "approved", ANN, signal="a")
    weave.cancel(instance)
    before = weave.get(instance)
    weave.advance()
    assert weave.get(instance) == before
    assert weave.signals_of(instance) == [("a", "LEFT_OVER", None)]
    with pytest.raises(StateConflict) as refused:
        weave.signal(instance, "approved", ANN)
    assert refused.value.details == {"state": "CANCELLED", "current_revision": before["revision"]}
    assert weave.signal(instance, "approved", ANN, signal="a")["signal_id"] == "a", "a repetition wins over a refusal"


def test_a_pause_keeps_signals_for_the_resume(weave: Weave) -> None:
    weave.publish(APPROVAL)
    instance = weave.start("approval")
    weave.pause(instance)
    weave.signal(instance, "approved", ANN)
    weave.database.clock.advance(seconds_forward=3 * HOUR)
    weave.drive(answers)
    assert (weave.get(instance)["control"], weave.states(instance)["approved"]) == ("PAUSED", "WAITING")
    weave.resume(instance)
    assert ended(weave, instance) == ("SUCCEEDED", ANN)


def test_an_expired_signal_is_taken_by_nobody_and_forgotten_if_it_has_no_instance(weave: Weave) -> None:
    weave.publish(BEFORE)
    minute = 60_000_000
    instance = weave.start("later", business_key="used")
    weave.signal(instance, "go", 1, signal="old", lives_micros=minute)
    weave.signal(("later", "k"), "go", 1, lives_micros=minute)
    weave.database.clock.advance(seconds_forward=60)
    weave.drive(answers)
    assert weave.states(instance)["first"] == "WAITING"
    assert weave.signals_of(instance) == [("old", "EXPIRED", None)]
    weave.signal(("later", "other"), "go", 2)
    assert weave.signals.signals_of_key(BusinessKey(weave.namespace_id, "later", "k")) == []
    late = weave.start("later", business_key="k")
    assert weave.signals_of(late) == []


def test_signals_are_bounded_for_an_instance_and_for_a_business_key(
    weave: Weave, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.signalling.KEPT_MAX", 3)
    monkeypatch.setattr("engine.signalling.STORED_MAX", 4)
    assert KEPT_MAX <= STORED_MAX
    weave.publish(BEFORE)
    instance = weave.start("later")
    for to in (instance, ("later", "k")):
        for number in range(3):
            weave.signal(to, "go", number)
        with pytest.raises(TooManySignals) as refused:
            weave.signal(to, "go", 4)
        assert refused.value.retryable
    weave.work(answers)
    weave.advance()
    assert [state for _, state, _ in weave.signals_of(instance)] == ["TAKEN", "TAKEN", "LEFT_OVER"]


def test_a_wait_that_failed_may_be_completed_by_a_person(weave: Weave) -> None:
    weave.publish(APPROVAL.replace("on_failure: fail", "on_failure: hold"))
    instance = weave.start("approval")
    weave.database.clock.advance(seconds_forward=HOUR)
    weave.advance()
    assert weave.get(instance)["error"]["code"] == "WAIT_TIMEOUT"
    with pytest.raises(InvalidRequest):
        weave.recover(instance, Action.COMPLETE, "approved", output={"who": "ann"})
    weave.recover(instance, Action.COMPLETE, "approved", output=ANN)
    assert ended(weave, instance) == ("SUCCEEDED", ANN)


def test_a_signal_and_its_time_out_at_once_have_one_winner(weave: Weave) -> None:
    weave.publish(APPROVAL)
    for _ in range(6):
        instance = weave.start("approval")
        weave.database.clock.advance(seconds_forward=HOUR)
        with ThreadPoolExecutor(2) as pool:
            sent = pool.submit(weave.signal, instance, "approved", ANN, signal="a")
            pool.submit(weave.advance).result()
            refused = sent.exception()
        weave.drive(answers)
        state = weave.get(instance)["state"]
        if refused is None and weave.signals_of(instance) == [("a", "TAKEN", "approved")]:
            assert state == "SUCCEEDED"
        else:
            assert refused is None or isinstance(refused, StateConflict)
            assert state == "FAILED"
            assert weave.signals_of(instance) in ([], [("a", "LEFT_OVER", None)])


def test_a_signal_and_a_cancel_at_once_have_one_winner(weave: Weave) -> None:
    weave.publish(APPROVAL.replace("  - {id: pay", "  - {id: z, wait: {for: 1s}}\n  - {id: pay"))
    for number in range(6):
        instance = weave.start("approval")
        calls = [lambda i=instance: weave.signal(i, "approved", ANN, signal="a"), lambda i=instance: weave.cancel(i)]
        with ThreadPoolExecutor(2) as pool:
            told = [pool.submit(call).exception() for call in (calls if number % 2 else calls[::-1])]
        assert all(error is None or isinstance(error, StateConflict) for error in told)
        weave.drive(answers)
        assert weave.get(instance)["state"] == "CANCELLED"
        assert weave.states(instance)["approved"] in {"CANCELLED", "SUCCEEDED"}
        assert [state for _, state, _ in weave.signals_of(instance)] in ([], ["LEFT_OVER"], ["TAKEN"])


def test_one_identity_from_many_senders_at_once_is_one_signal(weave: Weave) -> None:
    weave.publish(BEFORE)
    instance = weave.start("later", business_key="k")
    for to in (instance, ("later", "k"), ("later", "new")):
        with ThreadPoolExecutor(6) as pool:
            sent = list(pool.map(lambda _, to=to: weave.signal(to, "go", 1, signal="same"), range(12)))
        assert len({each["id"] for each in sent}) == 1
    assert len(weave.signals_of(instance)) == 2


def test_a_signal_and_the_start_of_its_instance_at_once_always_meet(weave: Weave) -> None:
    weave.publish(APPROVAL)
    for number in range(10):
        to = ("approval", f"k{number}")
        with ThreadPoolExecutor(2) as pool:
            sent = pool.submit(weave.signal, to, "approved", ANN)
            instance = weave.start("approval", business_key=to[1])
            sent.result()
        assert ended(weave, instance) == ("SUCCEEDED", ANN)


@pytest.mark.parametrize("seed", range(3))
def test_signals_in_any_order_with_pauses_and_recoveries_are_each_taken_once(weave: Weave, seed: int) -> None:
    patient = BEFORE.replace("on_failure: fail", "on_failure: hold").replace("start_within: 10m", "start_within: 30d")
    weave.publish(patient.replace("task: do.a@1", "task: do.a@1, timeout: 30d"))
    random = Random(seed)
    instance = weave.start("later")
    sent = 0
    for _ in range(60):
        match random.choice(["signal", "pause", "resume", "advance", "work", "time", "recover"]):
            case "signal":
                weave.signal(instance, "go", sent, signal=f"s{sent}")
                sent += 1
            case "pause" if weave.get(instance)["state"] not in INSTANCE_TERMINAL:
                weave.pause(instance)
            case "resume":
                weave.resume(instance)
            case "advance":
                weave.advance()
            case "work":
                weave.work(answers)
            case "time":
                weave.database.clock.advance(seconds_forward=random.choice([10, 1900]))
            case "recover":
                failed = [step for step, state in weave.states(instance).items() if state == "FAILED"]
                if failed:
                    weave.recover(instance, Action.RETRY, failed[0])
        if weave.get(instance)["state"] in INSTANCE_TERMINAL:
            break
    else:
        weave.resume(instance)
        for number in range(2):
            weave.signal(instance, "go", f"end {number}")
        for _ in range(3):
            weave.drive(answers)
            for step, state in weave.states(instance).items():
                if state == "FAILED":
                    weave.recover(instance, Action.RETRY, step)
    found = weave.get(instance)
    assert found["state"] == "SUCCEEDED"
    taken = [(signal, step) for signal, state, step in weave.signals_of(instance) if state == "TAKEN"]
    assert [step for _, step in taken] == ["first", "second"]
    assert found["output"][0] != found["output"][1]
