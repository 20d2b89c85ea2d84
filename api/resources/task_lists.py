"""Which tasks a list shows: its parameters, the rule that it needs a narrow filter; and the form of one attempt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from api.calls import Call
from api.parameters import BUSINESS_KEY, CREATED_AFTER, CREATED_BEFORE, LABEL, text_parameter, word_parameter
from api.queries import Cursor
from orbit.clock import Micros, to_rfc3339
from orbit.database import Transaction
from orbit.errors import InvalidRequest
from orbit.ids import from_hex
from orbit.jsontext import Json
from pulse.states import SourceKind, TaskState
from pulse.store.queue import queue_ids
from pulse.store.search import TaskFilter
from pulse.tasks import AttemptView, TaskView

LIST_PARAMETERS = (
    text_parameter("queue", "In this queue, by name"),
    word_parameter("state", "In this state", [state.value for state in TaskState]),
    text_parameter("type", "Of this type"),
    BUSINESS_KEY,
    text_parameter("source", "Made by this, such as workflow:INSTANCE_ID", length_max=64),
    LABEL,
    CREATED_AFTER,
    CREATED_BEFORE,
)


def filter_of(tx: Transaction, call: Call, *, limit: int, before: tuple[Micros, bytes] | None) -> TaskFilter | None:
    """Read the filter of a list; None if it names a queue that is not there for this caller.

    Raises InvalidRequest for a search that no index serves: a list needs a business key, a source, a label or a queue,
    and within a queue a state or type needs a bound in time.
    """
    query = call.query
    queue = query.text("queue", length_max=128)
    business_key = query.text("business_key", length_max=128)
    source, label = query.text("source", length_max=64), query.label()
    if queue is None and business_key is None and source is None and label is None:
        message = "a list of tasks needs queue, business_key, source or label"
        raise InvalidRequest(message)
    state, type_ = query.text("state"), query.text("type", length_max=128)
    accepted_after = query.instant("created_after")
    is_wide = business_key is None and source is None and label is None and accepted_after is None
    if is_wide and (state is not None or type_ is not None):
        raise query.refused("created_after", "a list by state or type within a queue needs this bound")
    if state is not None and state not in set(TaskState):
        raise query.refused("state", "this is no state of a task")
    queue_id = None
    if queue is not None:
        queue_id = queue_ids(tx, call.namespace_id, {queue}).get(queue) if call.caller.covers(queue) else None
        if queue_id is None:
            return None
    return TaskFilter(
        namespace_id=call.namespace_id,
        limit=limit,
        queue_id=queue_id,
        business_key=business_key,
        source=None if source is None else _source(call, source),
        state=None if state is None else TaskState(state),
        type=type_,
        accepted_after=accepted_after,
        accepted_before=query.instant("created_before"),
        before=before,
        label=label,
    )


def page_cursor(found: list[TaskView], limit: int) -> str | None:
    """Write the cursor of the next page, or None if this is the last one."""
    return Cursor(found[-1].accepted_at, found[-1].id).text() if len(found) == limit else None


def attempt_json(attempt: AttemptView, task: TaskView) -> Json:
    """Write an attempt as the API shows it."""
    return {
        "id": attempt.id.hex(),
        "number": attempt.number,
        "state": attempt.state,
        "type": task.type,
        "version": task.version,
        "worker": attempt.worker,
        "session_id": attempt.session_id.hex(),
        "node": attempt.node,
        "leased_at": to_rfc3339(attempt.leased_at),
        "started_at": None if attempt.started_at is None else to_rfc3339(attempt.started_at),
        "finished_at": None if attempt.finished_at is None else to_rfc3339(attempt.finished_at),
        "error": None if attempt.error is None else json.loads(attempt.error),
        "progress": None if attempt.progress is None else json.loads(attempt.progress),
        "late": [_late_json(report) for report in attempt.late],
    }


def _late_json(report: Mapping[str, Any]) -> Json:
    return {
        "message_id": report["message_id"].hex(),
        "outcome": report["outcome"],
        "output": None if report["output"] is None else json.loads(report["output"]),
        "output_ref": None if report["output_ref"] is None else json.loads(report["output_ref"]),
        "error": None if report["error"] is None else json.loads(report["error"]),
        "recorded_at": to_rfc3339(report["recorded_at"]),
    }


def source_read(text: str) -> tuple[SourceKind, bytes] | None:
    """Read a source, written kind:id; None for anything else."""
    kind, _, identifier = text.partition(":")
    if kind.upper() not in set(SourceKind):
        return None
    try:
        return SourceKind(kind.upper()), from_hex(identifier)
    except InvalidRequest:
        return None


def _source(call: Call, source: str) -> tuple[SourceKind, bytes]:
    found = source_read(source)
    if found is None:
        raise call.query.refused("source", "a source is written kind:id, such as workflow:INSTANCE_ID")
    return found
