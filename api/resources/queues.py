"""Queues: create, read, list, configure. What a queue is and how its limits move is Pulse's; rights are checked here.

The surprising rule: a missing queue and one out of range are answered alike, so that ids can't be probed.
"""

from __future__ import annotations

from api.calls import Call, Operation, Reply
from api.models.fields import revision_number
from api.models.queues import ConfigureQueue, CreateQueue, Queue, QueueResult
from api.parameters import CURSOR, LIMIT
from api.queries import cursor_text
from orbit.access import Scope, queue_not_found
from orbit.database import Database
from orbit.idempotency import Answer
from pulse.limits import UNFINISHED_TASKS_DEFAULT
from pulse.queues import Queue as StoredQueue
from pulse.queues import QueueChange, QueueSettings, queue_configure, queue_create, queue_get, queues_list

_MISSING = queue_not_found().message


class Queues:
    """The queue resource."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def operations(self) -> list[Operation]:
        """Declare what can be done with queues."""
        return [
            Operation(
                "POST", "/v1/queues", "Create a queue", self.create, Scope.QUEUES_MANAGE, QueueResult, CreateQueue,
                keyed=True, creates=True,
            ),
            Operation(
                "GET", "/v1/queues", "List the queues in range, by name", self.list_page, Scope.QUEUES_READ, Queue,
                query=(LIMIT, CURSOR), is_page=True,
            ),
            Operation("GET", "/v1/queues/{queue_id}", "Read a queue", self.get, Scope.QUEUES_READ, Queue),
            Operation(
                "POST", "/v1/queues/{queue_id}:configure", "Replace a queue's control parameters", self.configure,
                Scope.QUEUES_MANAGE, QueueResult, ConfigureQueue, keyed=True,
            ),
        ]  # fmt: skip

    def create(self, call: Call) -> Reply:
        """Create a queue; needs the range of all queues, since a new one would be outside any list."""
        call.caller.require_all_queues()
        body = call.model(CreateQueue)
        settings = QueueSettings(
            paused=False,
            max_concurrency=body.max_concurrency,
            rate_per_second=body.rate_per_second,
            max_unfinished_tasks=body.max_unfinished_tasks or UNFINISHED_TASKS_DEFAULT,
        )
        command = call.command("queue.create")
        answer = self._database.transaction(
            lambda tx: queue_create(tx, command, call.actor, name=body.name, settings=settings)
        )
        return call.receipt(answer, creates=True)

    def get(self, call: Call) -> Reply:
        """Read a queue with its backlog as it is now."""
        return call.data(self._in_range(call).as_json())

    def list_page(self, call: Call) -> Reply:
        """List queues by name; what is out of range is left out, so a page may be short."""
        limit = call.query.limit()
        parts = call.query.cursor_parts(1)
        if parts is not None and not isinstance(parts[0], str):
            raise call.query.refused("cursor", "this is not a cursor of this list")
        after_name = None if parts is None else parts[0]
        found = self._database.transaction(
            lambda tx: queues_list(tx, call.namespace_id, limit=limit, after_name=after_name)
        )
        next_cursor = cursor_text([found[-1].name]) if len(found) == limit else None
        return call.page([queue.as_json() for queue in found if call.caller.covers(queue.name)], next_cursor)

    def configure(self, call: Call) -> Reply:
        """Replace a queue's control parameters at the revision that the caller has read."""
        body = call.model(ConfigureQueue)
        revision = revision_number(body.expected_revision, pointer="/expected_revision")
        queue = self._in_range(call)
        settings = QueueSettings(
            paused=body.paused,
            max_concurrency=body.max_concurrency,
            rate_per_second=body.rate_per_second,
            max_unfinished_tasks=body.max_unfinished_tasks,
        )
        change = QueueChange(queue_id=queue.id, expected_revision=revision, reason=body.reason, settings=settings)
        command = call.command("queue.configure", resource=queue.id.hex())
        answer: Answer = self._database.transaction(lambda tx: queue_configure(tx, command, call.actor, change))
        return call.receipt(answer, creates=False)

    def _in_range(self, call: Call) -> StoredQueue:
        queue_id = call.path_id("queue_id", message=_MISSING)
        queue = self._database.transaction(lambda tx: queue_get(tx, call.namespace_id, queue_id))
        call.caller.require_queue(queue.name)
        return queue
