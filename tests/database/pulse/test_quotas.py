"""Application quotas: what queues of several namespaces share, in force beside their own limits."""

from dataclasses import replace

import pytest

from orbit.clock import SECOND
from orbit.errors import NotFound, StateConflict
from orbit.ids import new_id
from orbit.store.tenancy import NamespaceName, namespace_ensure
from pulse.quotas import QuotaChange, QuotaSettings, application_configure, application_get
from pulse.start import StartCode
from pulse.states import TaskState, WaitReason
from tests.support.applications import Application
from tests.support.pulse import Pulse


def test_r091_two_namespaces_of_one_application_never_hold_more_than_its_quota_together(pulse: Pulse) -> None:
    application = Application(pulse)
    application.configure(max_concurrency=3)
    for one in application.both:
        for _ in range(5):
            one.submit()
    claimed = application.claim()
    assert len(claimed) == 3
    assert pulse.start_all(claimed)[0].granted
    assert application.claim() == []
    pulse.succeed(claimed[0])
    assert len(application.claim()) == 1
    assert application.read()["active_tasks"] == "3"


def test_a_lowered_quota_revokes_nothing_and_a_dropped_one_holds_no_more(pulse: Pulse) -> None:
    application = Application(pulse)
    for one in application.both:
        for _ in range(4):
            one.submit()
    held = application.claim()
    assert len(held) == 8
    for _ in range(3):
        pulse.submit()
    application.configure(max_concurrency=2)
    assert all(outcome.granted for outcome in pulse.start_all(held))
    assert application.claim() == []
    for item in held[:6]:
        pulse.succeed(item)
    assert application.claim() == []
    pulse.succeed(held[6])
    assert len(application.claim()) == 1
    application.configure()
    assert len(application.claim()) == 2


def test_starts_of_all_queues_are_counted_in_one_window(pulse: Pulse) -> None:
    application = Application(pulse)
    application.configure(rate_per_second=5)
    for one in application.both:
        for _ in range(6):
            one.submit()
    claimed = application.claim()
    assert len(claimed) == 5
    assert all(outcome.granted for outcome in pulse.start_all(claimed))
    assert application.claim() == []
    pulse.pass_time(1.01)
    following = application.claim()
    assert len(following) == 5
    application.configure(rate_per_second=1)
    outcomes = pulse.start_all(following)
    assert [outcome.code for outcome in outcomes] == [None] + [StartCode.RATE_LIMITED] * 4
    assert all(0 < outcome.retry_after_micros <= SECOND for outcome in outcomes[1:])
    assert application.read()["active_tasks"] == "10"


def test_unfinished_tasks_of_all_queues_share_one_limit(pulse: Pulse) -> None:
    application = Application(pulse)
    application.configure(max_unfinished_tasks=3)
    first = pulse.submit()
    application.other.submit()
    outcomes = application.other.submit_all(*(application.other.submit_item() for _ in range(3)))
    assert [getattr(outcome, "code", "accepted") for outcome in outcomes] == [
        "accepted", "APPLICATION_QUOTA_EXCEEDED", "APPLICATION_QUOTA_EXCEEDED",
    ]  # fmt: skip
    assert pulse.refusal(key="again").code == "APPLICATION_QUOTA_EXCEEDED"
    pulse.cancel(first)
    assert pulse.submit(key="again") != first
    assert application.read()["unfinished_tasks"] == "3"


def test_a_queue_that_is_made_later_is_under_the_quota_too(pulse: Pulse) -> None:
    application = Application(pulse)
    application.configure(max_unfinished_tasks=1)
    pulse.queue("late")
    pulse.submit(queue="late")
    assert pulse.refusal().code == "APPLICATION_QUOTA_EXCEEDED"


def test_another_application_is_not_limited_and_not_seen(pulse: Pulse) -> None:
    application = Application(pulse)
    application.configure(max_unfinished_tasks=1)
    stranger = Pulse(pulse.database)
    named = NamespaceName("strangers", "default", "test")
    stranger.namespace_id = pulse.database.transaction(lambda tx: namespace_ensure(tx, named)).id
    stranger.queue()
    for _ in range(3):
        stranger.submit()
    with pytest.raises(NotFound):
        pulse.database.transaction(lambda tx: application_get(tx, stranger.namespace_id, application.id))


def test_a_stale_revision_is_refused_with_the_present_one(pulse: Pulse) -> None:
    application = Application(pulse)
    application.configure(max_concurrency=1)
    change = QuotaChange(application.id, 0, "a test", QuotaSettings(max_concurrency=2))
    command, actor = pulse.command("application.configure"), pulse.actor()
    with pytest.raises(StateConflict) as refused:
        pulse.database.transaction(lambda tx: application_configure(tx, command, actor, change))
    assert refused.value.details == {"current_revision": "1"}
    missing = replace(change, application_id=new_id())
    with pytest.raises(NotFound):
        pulse.database.transaction(lambda tx: application_configure(tx, command, actor, missing))


def test_why_a_task_waits_for_its_application(pulse: Pulse) -> None:
    application = Application(pulse)
    application.configure(max_concurrency=1)
    running, waits = pulse.submit(), pulse.submit()
    pulse.claim(1)
    pulse.serve()
    assert pulse.task(waits).wait_reason is WaitReason.APPLICATION_QUOTA
    assert pulse.task(running).state is TaskState.LEASED
