"""Say in words why a task that a step waits for has not ended, from what Pulse shows of it.

Pure: the reading is `engine.service`'s, the choice of the one reason `pulse.tasks`'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.instance import ENGINE_ERROR, Instance
from engine.states import Control
from orbit.jsontext import Json
from pulse.states import TaskState, WaitReason

_ENDED = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED})


@dataclass(frozen=True, slots=True)
class TaskLook:
    """What Pulse says of a task: its state, why it waits and in which figures, and how its current attempt stands.

    Of a child: its state, and as `wait_reason` the code of what it is held by.
    """

    state: str
    wait_reason: str | None = None
    details: Mapping[str, Any] | None = None
    attempt: Mapping[str, Any] | None = None
    verification: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Json]:
        """Give what an explanation shows beside its words."""
        form: dict[str, Json] = {"task_state": self.state, "wait_reason": self.wait_reason}
        for name, value in (("wait", self.details), ("attempt", self.attempt), ("verification", self.verification)):
            if value is not None:
                form[name] = dict(value)
        return form


def words_of(look: TaskLook, instance: Instance) -> str:
    """Say how a task stands, as a clause behind its name."""
    if look.state in _ENDED:
        return f"which has ended {look.state}: its result {_until(instance)}"
    if look.state == TaskState.NEEDS_REVIEW:
        return f"whose outcome is unknown: its review {_until(instance)}"
    if look.state == TaskState.WAITING and look.wait_reason is not None:
        return f"which is WAITING ({look.wait_reason}): {_why(WaitReason(look.wait_reason), look.details or {})}"
    if look.attempt is not None:
        worker = look.attempt["worker"] or "a worker"
        since = look.attempt["started_at"]
        begun = f"since {since}" if since else "and it has not begun"
        return f"which is {look.state} as attempt {look.attempt['number']} on {worker}, {begun}"
    return f"which is {look.state}"


def review_words(look: TaskLook | None) -> str:
    """Say who settles a review: a verification that is under way, else a person."""
    verification = None if look is None else look.verification
    if verification is None:
        return "a person has to settle it"
    if verification["outcome"] is None:
        task = verification["task_id"]
        return f"it is being verified{f' by task {task}' if task else ''}"
    return f"its verification came to {verification['outcome']}, and a person has to settle it"


def _until(instance: Instance) -> str:
    if instance.control is not Control.ACTIVE:
        return "is kept until the instance is resumed"
    if instance.error is not None and instance.error.code == ENGINE_ERROR:
        return "is kept until a person has recovered the instance"
    return "is about to be applied"


def _why(reason: WaitReason, details: Mapping[str, Any]) -> str:
    match reason:
        case WaitReason.READY:
            ahead = details.get("ahead_in_lane", "0")
            return f"it is next as soon as a worker has room; {ahead} of its type are ahead of it"
        case WaitReason.DELAYED | WaitReason.BACKOFF:
            what = "its time comes" if reason is WaitReason.DELAYED else "it is tried again"
            return f"{what} at {details.get('available_at')}"
        case WaitReason.HELD:
            return f"it is held back by the pause since {details.get('held_since')}"
        case WaitReason.KEY_BLOCKED:
            full = [key for key in details.get("concurrency_keys", []) if int(key["active"]) >= key["limit"]]
            named = ", ".join(f"{key['key']} (held by {', '.join(key['held_by'])})" for key in full)
            return f"a concurrency key is taken: {named}" if named else "a concurrency key was taken"
        case WaitReason.QUEUE_PAUSED:
            by = details.get("paused_by")
            return "its queue is paused" + (
                f" by {by['actor']} since {by['at']} because {by['reason']!r}" if by is not None else ""
            )
        case WaitReason.CONCURRENCY_FULL:
            return f"its queue runs {details.get('active')} of at most {details.get('max_concurrency')} tasks"
        case WaitReason.RATE_LIMITED:
            most, ends_at = details.get("rate_per_second"), details.get("window_ends_at")
            return f"its queue starts at most {most} a second, and this second's are used up until {ends_at}"
        case WaitReason.APPLICATION_QUOTA:
            return "its application runs or starts as many as it may"
        case WaitReason.NO_COMPATIBLE_WORKER:
            return f"no worker that could run it is connected since {details.get('no_compatible_worker_since')}"
