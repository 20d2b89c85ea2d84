"""From a validated body to a schedule's configuration: spans, instants, and what must be said together."""

from __future__ import annotations

from msgspec import UNSET

from api.models.schedules import Configuration, MisfireRule, OverlapRule, PreviewSchedule, ScheduledTask, TimeFields
from api.submissions import retry_wish
from orbit.access import Credential
from orbit.clock import Micros, from_rfc3339, seconds
from orbit.errors import InvalidRequest
from orbit.jsontext import dumps
from pulse import limits
from pulse.schedules.content import Content, InstanceTarget, TaskTarget
from pulse.schedules.manage import ScheduleOrder
from pulse.schedules.policy import Misfire, MisfirePolicy, Overlap, OverlapPolicy
from pulse.schedules.rules import TimeRule, rule_check

_BOUNDS = ("max_count", "max_age_seconds", "rate_per_second")


def order_of(body: Configuration, caller: Credential) -> ScheduleOrder:
    """Make a configuration; raises InvalidRequest naming what is missing, too much, or excludes another field."""
    if (body.task is None) == (body.workflow is None):
        raise InvalidRequest("either task or workflow is required", pointer="/task")
    if body.workflow is None:
        assert body.task is not None, "one of them is there"
        payload = b"null" if body.task.params is UNSET else bytes(body.task.params)
    else:
        payload = b"{}" if body.workflow.input is UNSET else bytes(body.workflow.input)
    said = body.workflow
    content = Content(
        name=body.name,
        rule=rule_of(body),
        misfire=_misfire(body.misfire, body.misfire_grace_seconds),
        overlap=_overlap(body.overlap),
        task=None if body.task is None else _task(body.task),
        instance=None
        if said is None
        else InstanceTarget(
            workflow=said.workflow, version=said.version, business_key=said.business_key, labels=said.labels or {}
        ),
    )
    return ScheduleOrder(content, payload, caller)


def preview_order(body: PreviewSchedule, caller: Credential, *, start: Micros, is_needed: bool) -> ScheduleOrder | None:
    """Make the configuration of a preview, which only has a rule; None if none is said. Raises InvalidRequest."""
    if not is_needed and body.cron is None and body.every_seconds is None:
        return None
    rule = rule_of(body)
    rule_check(rule, start=start)
    plain = Content(
        name="preview",
        rule=rule,
        misfire=Misfire(policy=MisfirePolicy.SKIP),
        overlap=Overlap(policy=OverlapPolicy.ALLOW),
    )
    return ScheduleOrder(plain, b"null", caller)


def rule_of(body: TimeFields) -> TimeRule:
    """Read when a schedule fires."""
    return TimeRule(
        cron=body.cron,
        timezone=body.timezone,
        every_micros=_span(body.every_seconds),
        anchor_at=instant_of(body.anchor_at, "/anchor_at"),
        starts_at=instant_of(body.starts_at, "/starts_at"),
        ends_at=instant_of(body.ends_at, "/ends_at"),
    )


def instant_of(text: str | None, pointer: str) -> Micros | None:
    """Read an instant; raises InvalidRequest at `pointer`."""
    return None if text is None else from_rfc3339(text, pointer=pointer)


def _misfire(said: MisfireRule, grace_seconds: float | None) -> Misfire:
    policy = MisfirePolicy(said.policy)
    is_bounded = policy is MisfirePolicy.CATCH_UP
    for name in _BOUNDS:
        if (getattr(said, name) is None) is is_bounded:
            message = f"{policy} needs this bound" if is_bounded else f"{policy} has no such bound"
            raise InvalidRequest(message, pointer=f"/misfire/{name}")
    return Misfire(
        policy=policy,
        grace_micros=limits.MISFIRE_GRACE_MICROS_DEFAULT if grace_seconds is None else seconds(grace_seconds),
        max_count=said.max_count,
        max_age_micros=_span(said.max_age_seconds),
        rate_per_second=said.rate_per_second,
    )


def _overlap(said: OverlapRule) -> Overlap:
    policy = OverlapPolicy(said.policy)
    if (said.max_backlog is None) is (policy is OverlapPolicy.QUEUE):
        message = "QUEUE needs this bound" if said.max_backlog is None else f"{policy} has no such bound"
        raise InvalidRequest(message, pointer="/overlap/max_backlog")
    return Overlap(policy=policy, max_backlog=said.max_backlog)


def _task(said: ScheduledTask) -> TaskTarget:
    return TaskTarget(
        queue=said.queue,
        type=said.type,
        version=said.version,
        params_version="1" if said.params_version is None else said.params_version,
        priority=limits.PRIORITY_DEFAULT if said.priority is None else said.priority,
        retry=retry_wish(said.retry),
        attempt_timeout_micros=_span(said.attempt_timeout_seconds),
        start_within_micros=_span(said.start_within_seconds),
        deadline_micros=_span(said.deadline_seconds),
        business_key=said.business_key,
        labels=None if not said.labels else dumps(said.labels).decode(),
        concurrency_keys=() if said.concurrency_keys is None else tuple(said.concurrency_keys),
        fairness_key=said.fairness_key,
    )


def _span(value: float | None) -> Micros | None:
    return None if value is None else seconds(value)
