"""Batches: one decision about many tasks or instances, previewed, created, watched and stopped.

Which right a batch needs depends on what it does, so the operation's own scope is checked here; stopping one needs the
same. A batch is seen by who created it, and by callers whose range is all queues.
"""

from __future__ import annotations

import json
from collections import Counter

from msgspec import UNSET

from api.calls import Call, Operation, Reply
from api.models.batches import (
    Batch,
    BatchEntry,
    BatchPreview,
    BatchReceipt,
    CreateBatch,
    InstanceSelection,
    PreviewBatch,
    StopBatch,
    TaskSelection,
)
from api.parameters import CURSOR, LIMIT, word_parameter
from api.queries import Cursor, cursor_text, label_read
from api.resources.instance_selection import SCOPES as INSTANCE_SCOPES
from api.resources.instance_selection import instance_arguments, instances_selected, selected_json
from api.resources.recovery import evidence_read
from api.resources.task_lists import source_read
from engine.ports import Flows
from orbit.access import Scope
from orbit.clock import from_rfc3339, to_rfc3339
from orbit.database import Database, Transaction
from orbit.errors import InvalidRequest, NotFound, PayloadTooLarge
from orbit.ids import from_hex
from orbit.jsontext import Json
from pulse import limits
from pulse.batches import (
    BatchItemRow,
    BatchOrder,
    BatchRow,
    Subject,
    batch_create,
    batch_json,
    batch_read,
    batch_stop,
    batches_find,
    items_count,
    items_find,
)
from pulse.node import PulseNode
from pulse.states import ItemState, SourceKind, TaskState
from pulse.store.queue import queue_ids
from pulse.store.search import ChosenTask, TaskFilter
from pulse.task_batches import CANCEL, RETRY, REVIEW, TaskChoice, tasks_chosen

_MISSING = "no such batch"
_SHOWN_MAX = 20
SCOPES = {CANCEL: Scope.TASKS_CANCEL, REVIEW: Scope.TASKS_RECOVER, RETRY: Scope.TASKS_RECOVER, **INSTANCE_SCOPES}
_ANY = (Scope.TASKS_CANCEL, Scope.TASKS_RECOVER, Scope.INSTANCES_CONTROL, Scope.INSTANCES_RECOVER)


class Batches:
    """The batch resource."""

    def __init__(self, database: Database, pulse: PulseNode, flows: Flows) -> None:
        self._database = database
        self._pulse = pulse
        self._flows = flows

    def operations(self) -> list[Operation]:
        """Declare what can be done with batches."""
        scope, others = _ANY[0], _ANY[1:]
        return [
            Operation(
                "POST", "/v1/batches:preview", "Say what a batch would be about", self.preview, scope, BatchPreview,
                PreviewBatch, or_scopes=others,
            ),
            Operation(
                "POST", "/v1/batches", "Decide about many tasks or instances, item by item", self.create, scope,
                BatchReceipt, CreateBatch, keyed=True, creates=True, or_scopes=others,
            ),
            Operation(
                "GET", "/v1/batches", "List batches, newest first", self.list_page, scope, Batch,
                query=(LIMIT, CURSOR), is_page=True, or_scopes=others,
            ),
            Operation("GET", "/v1/batches/{batch_id}", "Read a batch and how far it is", self.get, scope, Batch,
                      or_scopes=others),
            Operation(
                "GET", "/v1/batches/{batch_id}/items", "List a batch's items, in order, with what came of each",
                self.items, scope, BatchEntry, is_page=True, or_scopes=others,
                query=(word_parameter("state", "In this state", [state.value for state in ItemState]), LIMIT, CURSOR),
            ),
            Operation(
                "POST", "/v1/batches/{batch_id}:stop", "Stop a batch before its next item", self.stop, scope,
                BatchReceipt, StopBatch, keyed=True, or_scopes=others,
            ),
        ]  # fmt: skip

    def preview(self, call: Call) -> Reply:
        """Say what would be decided about."""
        body = call.model(PreviewBatch)
        call.caller.require(SCOPES[body.operation])
        selected = self._database.transaction(lambda tx: self._selected(tx, call, body))
        states = Counter(state for _, state, _ in selected)
        first = [shown for _, _, shown in selected[:_SHOWN_MAX]]
        return call.data(
            {"operation": body.operation, "count": len(selected), "by_state": dict(states), "first": first}
        )

    def create(self, call: Call) -> Reply:
        """Create a batch; it begins at once."""
        body = call.model(CreateBatch)
        call.caller.require(SCOPES[body.operation])

        def choose(tx: Transaction) -> list[Subject]:
            return [subject for subject, _, _ in self._selected(tx, call, body)]

        order = BatchOrder(
            operation=body.operation,
            arguments=_arguments(body) if body.instances is None else instance_arguments(call, body),
            selection={name: call.value[name] for name in ("tasks", "instances") if name in call.value},
            choose=choose,
            rate_per_second=body.rate_per_second or limits.BATCH_RATE_DEFAULT,
            reason=body.reason,
        )
        command = call.command("batch.create")
        answer = self._database.transaction(lambda tx: batch_create(tx, command, call.actor, order))
        self._pulse.batch_created()
        return call.receipt(answer, creates=True)

    def _selected(
        self, tx: Transaction, call: Call, body: PreviewBatch | CreateBatch
    ) -> list[tuple[Subject, str, Json]]:
        """Read what is selected: each with its state and as it is shown."""
        about_instances = body.operation in INSTANCE_SCOPES
        said, other = (body.instances, body.tasks) if about_instances else (body.tasks, body.instances)
        name = "instances" if about_instances else "tasks"
        if said is None or other is not None:
            raise InvalidRequest(f"{body.operation} is about {name}: select those", pointer=f"/{name}")
        if isinstance(said, InstanceSelection):
            found = instances_selected(tx, call, self._flows, body.operation, said)
            return [
                (Subject(each.instance.id, each.instance.revision), each.instance.state.value, selected_json(each))
                for each in found
            ]
        tasks = tasks_chosen(tx, _choice(tx, call, body.operation, said))
        return [(Subject(task.id, task.revision), task.state.value, _selected(task)) for task in tasks]

    def list_page(self, call: Call) -> Reply:
        """List batches; what the caller may not see is left out, so a page may be short."""
        limit, cursor = call.query.limit(), call.query.cursor()
        before = None if cursor is None else (cursor.at, cursor.id)

        def read(tx: Transaction) -> tuple[list[Json], str | None]:
            rows = batches_find(tx, call.namespace_id, limit=limit, before=before)
            shown = [batch_json(row, items_count(tx, row.id)) for row in rows if _is_visible(call, row)]
            return shown, Cursor(rows[-1].created_at, rows[-1].id).text() if len(rows) == limit else None

        return call.page(*self._database.transaction(read))

    def get(self, call: Call) -> Reply:
        """Read a batch."""

        def read(tx: Transaction) -> Json:
            row = _visible(tx, call)
            return batch_json(row, items_count(tx, row.id))

        return call.data(self._database.transaction(read))

    def items(self, call: Call) -> Reply:
        """List a batch's items."""
        limit, parts = call.query.limit(), call.query.cursor_parts(1)
        after = -1 if parts is None else parts[0]
        if not isinstance(after, int) or isinstance(after, bool) or abs(after) > limits.BATCH_SUBJECTS_MAX:
            raise call.query.refused("cursor", "this is not a cursor of this list")
        word = call.query.word("state", tuple(state.value for state in ItemState))
        state = None if word is None else ItemState(word)

        def read(tx: Transaction) -> list[BatchItemRow]:
            return items_find(tx, _visible(tx, call).id, limit=limit, after=after, state=state)

        rows = self._database.transaction(read)
        return call.page(
            [_entry(row) for row in rows], cursor_text([rows[-1].position]) if len(rows) == limit else None
        )

    def stop(self, call: Call) -> Reply:
        """Stop a batch."""
        body = call.model(StopBatch)
        row = self._database.transaction(lambda tx: _visible(tx, call))
        call.caller.require(SCOPES[row.operation])
        command = call.command("batch.stop", resource=row.id.hex())
        answer = self._database.transaction(
            lambda tx: batch_stop(tx, command, call.actor, batch_id=row.id, reason=body.reason)
        )
        return call.receipt(answer, creates=False)


def _is_visible(call: Call, row: BatchRow) -> bool:
    return call.caller.queues is None or row.actor == call.caller.id.hex()


def _visible(tx: Transaction, call: Call) -> BatchRow:
    row = batch_read(tx, call.namespace_id, call.path_id("batch_id", message=_MISSING))
    if row is None or not _is_visible(call, row):
        raise NotFound(_MISSING)
    return row


def _choice(tx: Transaction, call: Call, operation: str, said: TaskSelection) -> TaskChoice:
    """Read a selection; raises InvalidRequest for one that no index serves, NotFound for a queue out of range."""
    caller = call.caller
    filters = (said.queue, said.state, said.type, said.business_key, said.source, said.label, said.created_after)
    if said.ids is not None:
        if any(value is not None for value in (*filters, said.created_before)):
            raise InvalidRequest("ids and a filter exclude each other", pointer="/tasks/ids")
        named = sorted({from_hex(each) for each in said.ids})
        return TaskChoice(caller.namespace_id, operation, named, None, caller.queues)
    narrow = (said.business_key, said.source, said.label)
    if said.queue is None and not any(narrow):
        raise InvalidRequest("ids, queue, business_key, source or label is required", pointer="/tasks")
    if not any(narrow) and said.created_after is None:
        raise InvalidRequest("within a queue created_after is required", pointer="/tasks/created_after")
    queue_id = None
    if said.queue is not None:
        caller.require_queue(said.queue)
        queue_id = queue_ids(tx, caller.namespace_id, {said.queue}).get(said.queue)
        if queue_id is None:
            raise NotFound("no such queue")
    wanted = TaskFilter(
        namespace_id=caller.namespace_id,
        limit=limits.BATCH_SUBJECTS_MAX + 1,
        queue_id=queue_id,
        business_key=said.business_key,
        source=None if said.source is None else _source(said.source),
        state=None if said.state is None else TaskState(said.state),
        type=said.type,
        accepted_after=_instant(said.created_after, "/tasks/created_after"),
        accepted_before=_instant(said.created_before, "/tasks/created_before"),
        label=None if said.label is None else label_read(said.label, pointer="/tasks/label"),
    )
    return TaskChoice(caller.namespace_id, operation, None, wanted, caller.queues)


def _source(text: str) -> tuple[SourceKind, bytes]:
    found = source_read(text)
    if found is None:
        message = "a source is written kind:id, such as workflow:INSTANCE_ID"
        raise InvalidRequest(message, pointer="/tasks/source")
    return found


def _instant(text: str | None, pointer: str) -> int | None:
    return None if text is None else from_rfc3339(text, pointer=pointer)


def _arguments(body: CreateBatch) -> Json:
    """Return what the operation needs beside a task; raises InvalidRequest for what is missing or too much."""
    arguments: dict[str, Json] = {}
    if body.operation != CANCEL:
        if body.evidence is UNSET:
            raise InvalidRequest("a decision needs evidence", pointer="/evidence")
        arguments["evidence"] = evidence_read(body.evidence)
    if body.operation == REVIEW and body.verdict is None:
        raise InvalidRequest("a review needs a verdict", pointer="/verdict")
    if body.operation != REVIEW and body.verdict is not None:
        raise InvalidRequest("only a review has a verdict", pointer="/verdict")
    is_again = body.operation == RETRY or body.verdict == "RETRY"
    if is_again and body.safety_statement is None:
        raise InvalidRequest("a retry needs a safety statement", pointer="/safety_statement")
    if body.output is not UNSET:
        if body.verdict != "SUCCEEDED":
            raise InvalidRequest("only the verdict SUCCEEDED has an output", pointer="/output")
        if len(bytes(body.output)) > limits.OUTPUT_BYTES_MAX:
            raise PayloadTooLarge(f"an output may have {limits.OUTPUT_BYTES_MAX} bytes", pointer="/output")
        arguments["output"] = bytes(body.output).decode()
    return arguments | {"verdict": body.verdict, "safety_statement": body.safety_statement}


def _selected(task: ChosenTask) -> Json:
    return {
        "id": task.id.hex(),
        "state": task.state,
        "queue": task.queue,
        "type": task.type,
        "version": task.version,
        "revision": str(task.revision),
    }


def _entry(row: BatchItemRow) -> Json:
    return {
        "position": row.position,
        "subject_id": row.subject_id.hex(),
        "subject_revision": str(row.subject_revision),
        "state": row.state,
        "outcome": None if row.outcome is None else json.loads(row.outcome),
        "done_at": None if row.done_at is None else to_rfc3339(row.done_at),
    }
