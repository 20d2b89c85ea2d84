"""Tasks as they are shown: views, lists, attempts, and why a task waits. Everything is read from rows."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orbit.clock import SECOND, Micros, to_rfc3339
from orbit.errors import NotFound
from orbit.jsontext import Json, dumps
from orbit.redaction import Path, below, masked, path_read
from pulse.claim import window_room
from pulse.explain import limit_details, place_details, unserved_since
from pulse.quotas import Permits, permits_read
from pulse.states import RecoverySafety, SourceKind, TaskState, WaitReason
from pulse.store.counters import Usage, usage_read
from pulse.store.rows import dispatch_at
from pulse.store.search import TaskFilter, tasks_find
from pulse.store.session import SessionRow, sessions_live
from pulse.store.task import (
    AttemptView,
    Standing,
    TaskRow,
    attempts_view,
    outputs_read,
    references_read,
    task_standing,
    task_states,
    task_view,
)
from pulse.type_revision import ROOTS
from pulse.verification import verifications_json

if TYPE_CHECKING:
    from orbit.database import Transaction

__all__ = [
    "AttemptView",
    "Standing",
    "TaskView",
    "attempts_list",
    "outputs_get",
    "task_explain",
    "task_get",
    "task_stands",
    "task_states",
    "tasks_list",
]

_SESSIONS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task as shown. JSON fields are text; `output` is what the worker sent, `wait_reason` tells why it waits.

    `as_json` masks what its type or its workflow hides; `output` and `row` do not.
    """

    id: bytes
    namespace_id: bytes
    queue: str
    type: str
    version: int
    state: TaskState
    wait_reason: WaitReason | None
    revision: int
    accepted_at: Micros
    row: TaskRow
    output: bytes | None
    output_ref: str | None = None
    verification: dict[str, Json] | None = None

    @property
    def hidden(self) -> tuple[Path, ...]:
        """Return the paths that are masked: of its type now and at its acceptance, and its own."""
        texts = (self.row.redact, self.row.redact_frozen, self.row.redact_now)
        return paths_of(texts)

    def as_json(self) -> dict[str, Json]:
        """Write it as the API shows it."""
        row, hidden = self.row, self.hidden
        return {
            "id": self.id.hex(),
            "namespace_id": self.namespace_id.hex(),
            "queue": self.queue,
            "type": self.type,
            "version": self.version,
            "state": self.state,
            "wait_reason": self.wait_reason,
            "revision": str(self.revision),
            "priority": row.priority,
            "params": masked(json.loads(row.params), below(hidden, "params")),
            "params_version": row.params_version,
            "business_key": None if row.business_key is None else row.business_key.decode(),
            "concurrency_keys": [] if row.concurrency_keys is None else json.loads(row.concurrency_keys),
            "fairness_key": None if row.fairness_key is None else row.fairness_key.decode(),
            "labels": {} if row.labels is None else json.loads(row.labels),
            "source": _source(row),
            "operation_id": (row.operation_id or self.id).hex(),
            "retry_of": _hex(row.retry_of),
            "derived_from": _hex(row.derived_from),
            "traceparent": row.traceparent,
            "accepted_at": to_rfc3339(row.accepted_at),
            "available_at": to_rfc3339(row.available_at),
            "start_deadline_at": _instant(row.start_deadline_at),
            "deadline_at": to_rfc3339(row.deadline_at),
            "finished_at": _instant(row.finished_at),
            "attempt_timeout_seconds": row.attempt_timeout_micros / SECOND,
            "retry": {
                "max_attempts": row.attempts_max,
                "backoff_seconds": row.backoff_micros / SECOND,
                "backoff_seconds_max": row.backoff_micros_max / SECOND,
            },
            "attempts": row.starts_count,
            "attempts_failed": row.failed_count,
            "attempts_lost": row.lost_count,
            "deferrals": row.deferred_count,
            "cancel_requested_at": _instant(row.cancel_requested_at),
            "recovery": row.recovery,
            "verification": self.verification,
            "error": None if row.error is None else masked(json.loads(row.error), below(hidden, "error")),
            "output": None if self.output is None else masked(json.loads(self.output), below(hidden, "output")),
            "output_ref": None if self.output_ref is None else json.loads(self.output_ref),
        }


def paths_of(texts: Iterable[str | None]) -> tuple[Path, ...]:
    """Read stored lists of masked paths."""
    found = {path for text in texts if text is not None for path in json.loads(text)}
    return tuple(path_read(path, roots=ROOTS, pointer="") for path in sorted(found))


def _hex(identifier: bytes | None) -> str | None:
    return None if identifier is None else identifier.hex()


def _instant(at: Micros | None) -> str | None:
    return None if at is None else to_rfc3339(at)


def _source(row: TaskRow) -> dict[str, Json]:
    source: dict[str, Json] = {"kind": row.source_kind, "id": _hex(row.source_id)}
    if row.source_kind == SourceKind.SCHEDULE:
        source["scheduled_at"] = row.source_step
    elif row.source_step is not None:
        source |= {"step": row.source_step, "round": row.source_round}
    return source


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a task waits, in words and data."""

    reason: WaitReason
    details: dict[str, Json]


_MISSING = "no such task"


def task_get(tx: Transaction, namespace_id: bytes, task_id: bytes) -> TaskView:
    """Read one task; raises NotFound if the namespace has none of this id."""
    row = task_view(tx, namespace_id, task_id)
    if row is None:
        raise NotFound(_MISSING)
    return _views(tx, namespace_id, [row])[0]


def task_stands(tx: Transaction, namespace_id: bytes, task_id: bytes) -> Standing:
    """Read no more of a task than its queue, state and revision; raises NotFound."""
    standing = task_standing(tx, namespace_id, task_id)
    if standing is None:
        raise NotFound(_MISSING)
    return standing


def tasks_list(tx: Transaction, wanted: TaskFilter) -> list[TaskView]:
    """Read a page of tasks, newest first."""
    return _views(tx, wanted.namespace_id, tasks_find(tx, wanted))


def attempts_list(tx: Transaction, namespace_id: bytes, task_id: bytes) -> list[AttemptView]:
    """Read a task's attempts in order, with what is masked masked; raises NotFound."""
    hidden = task_get(tx, namespace_id, task_id).hidden
    return [attempt_shown(attempt, hidden) for attempt in attempts_view(tx, task_id)]


def attempt_shown(attempt: AttemptView, hidden: Sequence[Path]) -> AttemptView:
    """Mask an attempt's error, progress and late reports."""
    if not hidden:
        return attempt
    late = tuple(
        {
            **report,
            "output": _shown(report["output"], below(hidden, "output")),
            "error": _shown(report["error"], below(hidden, "error")),
        }
        for report in attempt.late
    )
    error, progress = (
        _shown(text, below(hidden, root)) for text, root in ((attempt.error, "error"), (attempt.progress, "progress"))
    )
    return replace(attempt, error=error, progress=progress, late=late)


def _shown(text: str | bytes | None, paths: Sequence[Path]) -> Any:
    return text if text is None or not paths else dumps(masked(json.loads(text), paths)).decode()


def outputs_get(tx: Transaction, task_ids: Collection[bytes]) -> dict[bytes, bytes]:
    """Read the outputs of tasks that succeeded, as JSON text; one that lies elsewhere is `{"output_ref": {...}}`."""
    outputs = outputs_read(tx, task_ids)
    silent = [task_id for task_id in task_ids if task_id not in outputs]
    references = references_read(tx, silent) if silent else {}
    return outputs | {key: f'{{"output_ref":{text}}}'.encode() for key, text in references.items()}


def task_explain(tx: Transaction, namespace_id: bytes, task_id: bytes) -> tuple[TaskView, Waiting | None]:
    """Say why a task waits, derived from rows; None if it does not wait."""
    view = task_get(tx, namespace_id, task_id)
    if view.state is not TaskState.WAITING:
        return view, None
    row = view.row
    usage = usage_read(tx, [row.queue_id])[row.queue_id]
    sessions = sessions_live(tx, namespace_id, limit=_SESSIONS_MAX)
    permits = permits_read(tx, [usage])
    now = tx.now()
    reason = _reason(row, _Surroundings(usage, sessions, permits), now=now)
    plain = dispatch_at(accepted_at=row.accepted_at, available_at=row.available_at, priority=row.priority)
    serving = sum(_serves(item, row) for item in sessions)
    details = place_details(tx, row, place=row.fair_at or plain)
    details |= limit_details(tx, row, usage, permits, now=now) | {"compatible_workers": serving}
    if not serving:
        details["no_compatible_worker_since"] = to_rfc3339(unserved_since(tx, row))
    return view, Waiting(reason, details)


def _views(tx: Transaction, namespace_id: bytes, rows: list[TaskRow]) -> list[TaskView]:
    succeeded = [row.id for row in rows if row.state == TaskState.SUCCEEDED]
    outputs = outputs_read(tx, succeeded)
    references = references_read(tx, [key for key in succeeded if outputs.get(key) in (None, b"null")])
    verified = [row.id for row in rows if row.recovery == RecoverySafety.VERIFY and row.starts_count]
    verifications = verifications_json(tx, verified)
    waiting = [row for row in rows if row.wait_reason == WaitReason.READY]
    usages = usage_read(tx, {row.queue_id for row in waiting}) if waiting else {}
    sessions = sessions_live(tx, namespace_id, limit=_SESSIONS_MAX) if waiting else []
    permits = permits_read(tx, usages.values())
    now = tx.now() if waiting else 0
    return [
        TaskView(
            id=row.id,
            namespace_id=row.namespace_id,
            queue=row.queue,
            type=row.type,
            version=row.version,
            state=TaskState(row.state),
            wait_reason=(
                None
                if row.wait_reason is None
                else _reason(row, _Surroundings(usages.get(row.queue_id), sessions, permits), now=now)
            ),
            revision=row.revision,
            accepted_at=row.accepted_at,
            row=row,
            output=outputs.get(row.id),
            output_ref=references.get(row.id),
            verification=verifications.get(row.id),
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What a waiting task may wait for."""

    usage: Usage | None
    sessions: list[SessionRow]
    permits: Permits


def _reason(row: TaskRow, standing: _Surroundings, *, now: Micros) -> WaitReason:
    """Derive why a task waits: what is stored, else the first thing that stands in its way."""
    stored, usage = WaitReason(row.wait_reason), standing.usage
    if stored is not WaitReason.READY or usage is None:
        return stored
    if usage.paused:
        return WaitReason.QUEUE_PAUSED
    if not any(_serves(item, row) for item in standing.sessions):
        return WaitReason.NO_COMPATIBLE_WORKER
    if usage.active >= usage.max_concurrency:
        return WaitReason.CONCURRENCY_FULL
    if window_room(usage, now=now) - usage.leased_unstarted <= 0:
        return WaitReason.RATE_LIMITED
    quota = standing.permits.claim_rooms(now=now).get(row.queue_id)
    if quota is not None and quota.left <= 0:
        return WaitReason.APPLICATION_QUOTA
    return WaitReason.READY


def _serves(session: SessionRow, row: TaskRow) -> bool:
    return f"{row.type}@{row.version}" in session.handlers and row.queue in session.queues
