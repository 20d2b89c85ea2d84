"""Tasks: submit, cancel, read, list, explain. What a task is and does is Pulse's; rights and shapes are checked here.

The surprising rule: the items of a batch are checked one by one, so that one bad item refuses itself only; but a body
that is not strict JSON refuses them all, because then nobody can say where an item ends.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from api.bodies import meaning_of, model_read
from api.calls import Call, Operation, Reply
from api.envelope import error_json
from api.models.answers import Event
from api.models.tasks import (
    Attempt,
    BatchItem,
    BatchResult,
    CancelResult,
    CancelTask,
    Explanation,
    SubmitBatch,
    SubmitTask,
    Task,
    TaskResult,
)
from api.parameters import AFTER_REVISION, CURSOR, LIMIT, WAIT_SECONDS
from api.queries import WAIT_SECONDS_MAX
from api.resources.journal import events_page, page_of
from api.resources.task_lists import LIST_PARAMETERS, attempt_json, filter_of, page_cursor
from api.submissions import task_request
from orbit.access import Scope
from orbit.canonical import digest
from orbit.database import Database, Transaction
from orbit.errors import InvalidRequest, NotFound, OrbitError
from orbit.idempotency import Answer, Command
from orbit.jsontext import Json
from orbit.store.journal import EventChoice, events_list
from pulse.cancellation import Cancel, task_cancel
from pulse.node import PulseNode
from pulse.requests import TaskRequest
from pulse.states import TERMINAL
from pulse.submission import Submit
from pulse.tasks import Standing, TaskView, attempts_list, task_explain, task_get, task_stands, tasks_list

_MISSING = "no such task"
_SUBMIT = "task.submit"


class Tasks:
    """The task resource."""

    def __init__(self, database: Database, pulse: PulseNode, *, is_draining: Callable[[], bool]) -> None:
        self._database = database
        self._pulse = pulse
        self._is_draining = is_draining

    def operations(self) -> list[Operation]:
        """Declare what can be done with tasks."""
        return [
            Operation(
                "POST", "/v1/tasks", "Submit a task", self.submit, Scope.TASKS_SUBMIT, TaskResult, SubmitTask,
                keyed=True, creates=True,
            ),
            Operation(
                "POST", "/v1/tasks:batch", "Submit up to 32 tasks, each on its own", self.submit_batch,
                Scope.TASKS_SUBMIT, BatchResult, SubmitBatch,
            ),
            Operation(
                "GET", "/v1/tasks", "List tasks, newest first", self.list_page, Scope.TASKS_READ, Task,
                query=(*LIST_PARAMETERS, LIMIT, CURSOR), is_page=True,
            ),
            Operation(
                "GET", "/v1/tasks/{task_id}", "Read a task, or wait until it changes", self.get, Scope.TASKS_READ, Task,
                query=(WAIT_SECONDS, AFTER_REVISION),
            ),
            Operation("GET", "/v1/tasks/{task_id}:explain", "Say why a task waits", self.explain, Scope.TASKS_READ,
                      Explanation),
            Operation("GET", "/v1/tasks/{task_id}/attempts", "List a task's attempts, in order", self.attempts,
                      Scope.TASKS_READ, Attempt, is_page=True),
            Operation(
                "GET", "/v1/tasks/{task_id}/events", "List a task's events, newest first", self.events,
                Scope.TASKS_READ, Event, query=(LIMIT, CURSOR), is_page=True,
            ),
            Operation(
                "POST", "/v1/tasks/{task_id}:cancel", "Cancel a task, or ask its handler to stop", self.cancel,
                Scope.TASKS_CANCEL, CancelResult, CancelTask, keyed=True,
            ),
        ]  # fmt: skip

    def submit(self, call: Call) -> Reply:
        """Submit one task."""
        body = call.model(SubmitTask)
        call.caller.require_queue(body.queue)
        request = task_request(body, namespace_id=call.namespace_id)
        self._check_origin(call, request, at="")
        outcome = self._pulse.submissions.submit(Submit(request, call.command(_SUBMIT)))
        if isinstance(outcome, OrbitError):
            raise outcome
        return call.receipt(outcome, creates=True, more=self._current(call, [outcome])[0])

    def submit_batch(self, call: Call) -> Reply:
        """Submit many tasks; each item is answered with the status and body that it would have got alone."""
        items = call.value["items"]
        outcomes: list[Answer | OrbitError | None] = [None] * len(items)
        submits: dict[int, Submit] = {}
        for index, raw in enumerate(call.model(SubmitBatch).items):
            try:
                submits[index] = self._batch_item(call, bytes(raw), items[index], f"/items/{index}")
            except OrbitError as error:
                outcomes[index] = error
        if submits:
            decided = self._pulse.submissions.submit_many(list(submits.values()))
            for index, outcome in zip(submits, decided, strict=True):
                outcomes[index] = _at(outcome, f"/items/{index}")
        answers = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
        current = dict(zip(map(id, answers), self._current(call, answers), strict=True))
        return call.data({"items": [_item_json(n, outcome, current) for n, outcome in enumerate(outcomes)]})

    def get(self, call: Call) -> Reply:
        """Read a task; with `wait_seconds` as soon as it has changed, at the latest after that time."""
        wait_seconds = call.query.seconds("wait_seconds", maximum=WAIT_SECONDS_MAX) or 0.0
        after_revision = call.query.number("after_revision", minimum=0, maximum=2**64 - 1)
        if wait_seconds:
            self._wait(call, after_revision, wait_seconds)
        return call.data(self._in_range(call).as_json())

    def _wait(self, call: Call, after_revision: int | None, seconds: float) -> None:
        """Wait until a task is what the caller waits for; what is read meanwhile is one row."""
        task_id = call.path_id("task_id", message=_MISSING)

        def read() -> Standing:
            found = self._database.transaction(lambda tx: task_stands(tx, call.namespace_id, task_id))
            if not call.caller.covers(found.queue):
                raise NotFound(_MISSING)
            return found

        def is_new(found: Standing) -> bool:
            if self._is_draining() or found.state in TERMINAL:  # who waits asks again elsewhere
                return True
            return after_revision is not None and found.revision > after_revision

        self._pulse.changes.wait_for(task_id, read, until=is_new, seconds=seconds)

    def list_page(self, call: Call) -> Reply:
        """List tasks; what is out of range is left out, so a page may be short."""
        limit = call.query.limit()
        cursor = call.query.cursor()

        def read(tx: Transaction) -> list[TaskView]:
            wanted = filter_of(tx, call, limit=limit, before=None if cursor is None else (cursor.at, cursor.id))
            return [] if wanted is None else tasks_list(tx, wanted)

        found = self._database.transaction(read)
        shown = [view.as_json() for view in found if call.caller.covers(view.queue)]
        return call.page(shown, page_cursor(found, limit))

    def explain(self, call: Call) -> Reply:
        """Say why a task waits."""
        view = self._in_range(call)
        found, waiting = self._database.transaction(lambda tx: task_explain(tx, call.namespace_id, view.id))
        reason = None if waiting is None else waiting.reason
        details = {} if waiting is None else waiting.details
        return call.data({"task_id": found.id.hex(), "state": found.state, "reason": reason, "details": details})

    def attempts(self, call: Call) -> Reply:
        """List a task's attempts; there are never more than fit on a page."""
        view = self._in_range(call)
        found = self._database.transaction(lambda tx: attempts_list(tx, call.namespace_id, view.id))
        return call.page([attempt_json(attempt, view) for attempt in found], None)

    def events(self, call: Call) -> Reply:
        """List a task's events."""
        view = self._in_range(call)
        page, choice = page_of(call), EventChoice(subject_id=view.id)
        return events_page(
            call, self._database.transaction(lambda tx: events_list(tx, call.namespace_id, page, choice))
        )

    def cancel(self, call: Call) -> Reply:
        """Cancel a task."""
        view = self._in_range(call)
        body = call.model(CancelTask)
        command = call.command("task.cancel", resource=view.id.hex())
        wish = Cancel(view.id, body.reason)
        answer = self._database.transaction(lambda tx: task_cancel(tx, command, call.actor, wish, self._pulse))
        return call.receipt(answer, creates=False)

    def _batch_item(self, call: Call, raw: bytes, value: Json, at: str) -> Submit:
        body = model_read(raw, BatchItem, at=at)
        call.caller.require_queue(body.queue)
        request = task_request(body, namespace_id=call.namespace_id, at=at)
        self._check_origin(call, request, at=at)
        # The key is the identity, not the meaning: the item may be sent again alone, with the key in the header.
        meaning = digest(meaning_of(value, BatchItem, without=frozenset({"idempotency_key"})))
        return Submit(request, Command(call.namespace_id, _SUBMIT, "", body.idempotency_key, meaning))

    def _check_origin(self, call: Call, request: TaskRequest, *, at: str) -> None:
        """Refuse a `derived_from` that the caller can't see."""
        origin = request.derived_from
        if origin is None:
            return
        try:
            call.caller.require_queue(self._read(call, origin).queue)
        except NotFound:
            message = "derived_from names no task that is in range"
            raise InvalidRequest(message, pointer=f"{at}/derived_from") from None

    def _current(self, call: Call, answers: list[Answer]) -> list[dict[str, Json]]:
        """Read what replayed tasks are now, for their receipts tell of then; nothing for new ones."""
        ids = {answer.subject_id for answer in answers if answer.deduplicated}
        if not ids:
            return [{} for _ in answers]
        views = self._database.transaction(lambda tx: {each: task_get(tx, call.namespace_id, each) for each in ids})
        now = {each: {"state": view.state, "revision": str(view.revision)} for each, view in views.items()}
        return [{"current": now[answer.subject_id]} if answer.deduplicated else {} for answer in answers]

    def _read(self, call: Call, task_id: bytes) -> TaskView:
        return self._database.transaction(lambda tx: task_get(tx, call.namespace_id, task_id))

    def _in_range(self, call: Call) -> TaskView:
        view = self._read(call, call.path_id("task_id", message=_MISSING))
        if not call.caller.covers(view.queue):
            raise NotFound(_MISSING)
        return view


def _at(outcome: Answer | OrbitError, at: str) -> Answer | OrbitError:
    """Say in which item the field stands that the task layer refuses."""
    if isinstance(outcome, InvalidRequest) and outcome.pointer is not None:
        return type(outcome)(outcome.message, pointer=at + outcome.pointer)
    return outcome


def _item_json(index: int, outcome: Answer | OrbitError | None, current: dict[int, dict[str, Json]]) -> Json:
    assert outcome is not None, "every item is decided"
    if isinstance(outcome, OrbitError):
        return {"index": index, "status": outcome.status, "error": error_json(outcome)}
    status = HTTPStatus.OK if outcome.deduplicated else HTTPStatus.CREATED
    data = {"deduplicated": outcome.deduplicated, **outcome.data, **current[id(outcome)]}
    return {"index": index, "status": int(status), "data": data}
