"""What a waiting task waits for, in figures for people: all of it read from rows, nothing locked.

Which of it is *the* reason is decided in `pulse.tasks`. Who paused a queue is told as long as its audit is kept.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from orbit.clock import Micros, to_rfc3339
from orbit.jsontext import Json
from pulse import limits
from pulse.key_limits import key_view
from pulse.quotas import Permits
from pulse.states import WaitReason
from pulse.store.explain import pause_find, sessions_ended
from pulse.store.task import TaskRow, ready_ahead
from pulse.window import stands

if TYPE_CHECKING:
    from orbit.database import Transaction
    from pulse.store.counters import Usage

_AHEAD_MAX = 10_000
_SESSIONS_MAX = 500


def place_details(tx: Transaction, row: TaskRow, *, place: Micros) -> dict[str, Json]:
    """Say where a task stands: behind how many in its lane, before which keys, behind whose gate."""
    details: dict[str, Json] = {"available_at": to_rfc3339(row.available_at)}
    if row.held_since is not None:
        details |= {"held_since": to_rfc3339(row.held_since), "held_by": row.gate_id.hex()}
    if row.wait_reason == WaitReason.READY:
        ahead = ready_ahead(tx, lane_id=row.lane_id, dispatch_at=place, task_id=row.id, limit=_AHEAD_MAX)
        details["ahead_in_lane"] = str(ahead)
    if row.concurrency_keys is not None:
        details["concurrency_keys"] = _keys(tx, row)
    return details


def _keys(tx: Transaction, row: TaskRow) -> list[Json]:
    """Say of each of a task's keys who holds it and how many wait for it."""
    views = [key_view(tx, row.namespace_id, name) for name in json.loads(row.concurrency_keys)]
    return [
        {
            "key": view.pattern,
            "limit": view.limit,
            "active": str(view.active),
            "waiting": str(view.waiting),
            "held_by": [task_id.hex() for task_id in view.holders],
        }
        for view in views
    ]


def limit_details(tx: Transaction, row: TaskRow, usage: Usage, permits: Permits, *, now: Micros) -> dict[str, Json]:
    """Say what the queue and its application allow and use, until when a window counts, and who paused the queue."""
    details: dict[str, Json] = {
        "paused": usage.paused,
        "active": str(usage.active),
        "max_concurrency": usage.max_concurrency,
        "rate_per_second": usage.rate_per_second,
        **_window(usage.window_started_at, usage.window_used, now=now),
    }
    if usage.paused:
        pause = pause_find(tx, row.namespace_id, row.queue_id)
        if pause is not None:
            details["paused_by"] = {"actor": pause.actor, "at": to_rfc3339(pause.at), "reason": pause.reason}
    application_id = permits.of_queue.get(row.queue_id)
    if application_id is not None:
        quota = permits.quotas[application_id]
        active, _ = permits.used.get(application_id, (0, 0))
        details["application"] = {
            "id": application_id.hex(),
            "active": str(active),
            "max_concurrency": quota.max_concurrency,
            "rate_per_second": quota.rate_per_second,
            **_window(quota.window_started_at, quota.window_used, now=now),
        }
    return details


def _window(started_at: Micros, used: int, *, now: Micros) -> dict[str, Json]:
    """Write a rate window; once it is over, nothing of it is used."""
    is_standing = stands(started_at, now=now)
    return {
        "window_started_at": to_rfc3339(started_at),
        "window_ends_at": to_rfc3339(started_at + limits.RATE_WINDOW_MICROS) if is_standing else None,
        "window_used": str(used) if is_standing else "0",
    }


def unserved_since(tx: Transaction, row: TaskRow) -> Micros:
    """Say since when no worker was there that could run a task: the last one's end, or its acceptance if that is later.

    Of the workers that have gone only the latest are looked at.
    """
    ended = sessions_ended(tx, row.namespace_id, limit=_SESSIONS_MAX)
    handler = f"{row.type}@{row.version}"
    gone: list[Micros] = [item.ended_at for item in ended if handler in item.handlers and row.queue in item.queues]
    return max(*gone, int(row.accepted_at)) if gone else int(row.accepted_at)
