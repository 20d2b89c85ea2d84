"""The types of events that there are: what a subscription may ask for, each with its meaning for people.

Claims and starts are not among them. They are read from the attempt; an event for each would double what a task writes.
"""

from __future__ import annotations

EVENT_TYPES = {
    "application.configured": "An application's quotas were replaced",
    "batch.created": "A batch was created",
    "batch.done": "A batch has decided about all its items",
    "batch.stopped": "A batch was stopped",
    "concurrency_key.configured": "The limit of a concurrency key was set",
    "instance.cancel_requested": "An instance is to be cancelled",
    "instance.cancelled": "An instance has ended: cancelled",
    "instance.compensating": "An instance begins to undo what it did",
    "instance.compensation_abandoned": "A person let an instance end with effects that were not undone",
    "instance.ending": "An instance ends, and waits for what still runs",
    "instance.failed": "An instance has ended: failed",
    "instance.forked": "An instance began as the fork of another",
    "instance.migrated": "An instance goes on with another version",
    "instance.needs_recovery": "An instance waits for a person's decision",
    "instance.paused": "An instance is paused, and nothing of it runs",
    "instance.paused_with_parent": "An instance is paused because its parent is",
    "instance.pausing": "An instance is paused; something of it still runs",
    "instance.recovered": "An instance goes on after a decision",
    "instance.recovery_decided": "A person has decided about an instance as a whole",
    "instance.resumed": "A paused instance goes on",
    "instance.signalled": "A signal was sent to an instance",
    "instance.started": "An instance was started",
    "instance.stays_paused": "A parent was resumed, but its child was paused on its own too",
    "instance.stuck": "An instance waits for nothing: a fault of the engine",
    "instance.succeeded": "An instance has ended: succeeded",
    "instance.tasks_quiet": "Nothing of a pausing instance's own tasks runs any more",
    "queue.configured": "A queue's settings were replaced",
    "queue.created": "A queue was created",
    "schedule.configured": "A schedule was replaced",
    "schedule.created": "A schedule was created",
    "schedule.ended": "A schedule has no instant left",
    "schedule.paused": "A schedule was paused",
    "schedule.resumed": "A schedule goes on",
    "schedule.stopped": "A schedule fires no more: whoever it acts for has lost the right",
    "signal.kept": "A signal is kept for an instance to come",
    "step.effect_after_end": "A task of an instance that has ended reports a success that nobody undoes",
    "subscription.configured": "A subscription was configured",
    "subscription.created": "A subscription was created",
    "subscription.deleted": "A subscription was deleted",
    "subscription.overflowed": "A subscription's backlog passed its bound; it gets nothing more until it is resumed",
    "subscription.resumed": "An overflowed subscription reads on from where it stopped",
    "task.cancelled": "A task has ended: cancelled",
    "task.contradicted": "A success was reported for a task that had ended otherwise",
    "task.evidence_received": "A late answer is evidence for an open review",
    "task.failed": "A task has ended: failed",
    "task.retry_scheduled": "A task failed and will be tried again",
    "task.review_needed": "A task's outcome is unknown: it waits for a review",
    "task.submitted": "A task was accepted",
    "task.succeeded": "A task has ended: succeeded",
    "task.verified": "A verification of a task has ended",
    "task.verifying": "A verification of a task has begun",
    "task_type.registered": "A task type was registered or changed",
    "workflow.activated": "A version was taken back into use",
    "workflow.default_set": "A workflow's default version was pinned, or follows again",
    "workflow.deprecated": "Starts of a version warn from now on",
    "workflow.published": "A version was published",
    "workflow.retired": "Starts of a version are refused from now on",
}

ALL_OF = ".*"


def is_known(pattern: str) -> bool:
    """Say whether a pattern can ever match: a type, or all types of a subject such as `task.*`."""
    if pattern in EVENT_TYPES:
        return True
    prefix = pattern.removesuffix("*")
    return pattern.endswith(ALL_OF) and any(name.startswith(prefix) for name in EVENT_TYPES)
