"""Instances: start, read, list, steps, history, explain. How an instance moves is the engine's."""

from __future__ import annotations

from msgspec import UNSET

from api.calls import Call, Operation, Parameter, Reply
from api.models.instances import HistoryEntry, Instance, InstanceExplanation, InstanceResult, Item, Step
from api.models.workflows import StartInstance
from api.parameters import (
    AFTER_REVISION,
    BUSINESS_KEY,
    CREATED_AFTER,
    CREATED_BEFORE,
    CURSOR,
    LABEL,
    LIMIT,
    WAIT_SECONDS,
    number_parameter,
    text_parameter,
    word_parameter,
)
from api.queries import WAIT_SECONDS_MAX, Cursor, cursor_text
from api.resources.signals import message_read
from definitions.limits import ITEMS_MAX
from engine.service import Instances as EngineInstances
from engine.start import StartRequest
from engine.states import Control, InstanceState
from engine.store.instances import Filter, Place
from orbit.access import Scope
from orbit.errors import InvalidRequest
from orbit.jsontext import Json

_MISSING = "no such instance"
_PARENT_ID = Parameter("parent_id", "Children of this instance", {"type": "string", "pattern": "^[0-9a-f]{32}$"})
_VERSION_MAX = 2**31 - 1
_REVISION_MAX = 2**63 - 1


class InstanceResource:
    """The instance resource."""

    def __init__(self, instances: EngineInstances) -> None:
        self._instances = instances

    def operations(self) -> list[Operation]:
        """Declare what can be done with instances."""
        return [
            Operation(
                "POST", "/v1/instances", "Start an instance", self.start, Scope.INSTANCES_START, InstanceResult,
                StartInstance, keyed=True, creates=True,
            ),
            Operation(
                "GET", "/v1/instances", "List instances, the newest start first", self.list_page, Scope.INSTANCES_READ,
                Instance, is_page=True,
                query=(
                    text_parameter("workflow", "Of this workflow"),
                    number_parameter("version", "Of this version", maximum=_VERSION_MAX),
                    word_parameter("state", "In this state", [state.value for state in InstanceState]),
                    word_parameter("control", "So controlled", [control.value for control in Control]),
                    LABEL,
                    _PARENT_ID, BUSINESS_KEY, CREATED_AFTER, CREATED_BEFORE, LIMIT, CURSOR,
                ),
            ),
            Operation(
                "GET", "/v1/instances/{instance_id}", "Read an instance, or wait until it changes", self.get,
                Scope.INSTANCES_READ, Instance, query=(WAIT_SECONDS, AFTER_REVISION),
            ),
            Operation("GET", "/v1/instances/{instance_id}/steps", "List its steps, in the definition's order",
                      self.steps, Scope.INSTANCES_READ, Step, is_page=True),
            Operation(
                "GET", "/v1/instances/{instance_id}/steps/{step}/items", "List the items of a foreach that have begun",
                self.items, Scope.INSTANCES_READ, Item, query=(LIMIT, CURSOR), is_page=True,
            ),
            Operation(
                "GET", "/v1/instances/{instance_id}/history", "List what happened, in order", self.history,
                Scope.INSTANCES_READ, HistoryEntry, query=(LIMIT, CURSOR), is_page=True,
            ),
            Operation("GET", "/v1/instances/{instance_id}:explain", "Say why it is not moving", self.explain,
                      Scope.INSTANCES_READ, InstanceExplanation),
        ]  # fmt: skip

    def start(self, call: Call) -> Reply:
        """Start an instance; it keeps the queue range of this credential for life."""
        body = call.model(StartInstance)
        request = StartRequest(
            command=call.command("instance.start"),
            workflow=body.workflow,
            version=body.version,
            input={} if body.input is UNSET else call.value["input"],
            started_by=call.actor.name,
            queues=call.caller.queues,
            business_key=body.business_key,
            labels=body.labels or {},
            traceparent=body.traceparent,
            signal=None if body.signal is None else message_read(body.signal, key=call.key),
            pause_at=tuple(body.pause_at or ()),
        )
        answer = self._instances.instance_start(request)
        more: dict[str, Json] = {}
        if answer.deduplicated:
            now = self._instances.instance_get(call.namespace_id, answer.subject_id)
            more = {"current": {"state": now["state"], "revision": now["revision"]}}
        # What runs already was not created by this request.
        return call.receipt(answer, creates="existing" not in answer.data, more=more)

    def get(self, call: Call) -> Reply:
        """Read an instance; with `wait_seconds` as soon as it has changed, at the latest after that time."""
        found = self._instances.instance_get(
            call.namespace_id,
            self._id(call),
            wait_seconds=call.query.seconds("wait_seconds", maximum=WAIT_SECONDS_MAX) or 0.0,
            after_revision=call.query.number("after_revision", minimum=0, maximum=_REVISION_MAX),
            queues=call.caller.queues,
        )
        return call.data(found)

    def list_page(self, call: Call) -> Reply:
        """List instances."""
        query = call.query
        state = query.text("state")
        if state is not None and state not in set(InstanceState):
            raise query.refused("state", "this is no state of an instance")
        control = query.text("control")
        if control is not None and control not in set(Control):
            raise query.refused("control", "this is no control of an instance")
        wanted = Filter(
            workflow=query.text("workflow", length_max=128),
            version=query.number("version", minimum=1, maximum=_VERSION_MAX),
            state=None if state is None else InstanceState(state),
            control=None if control is None else Control(control),
            business_key=query.text("business_key", length_max=128),
            label=query.label(),
            parent_id=query.identifier("parent_id"),
            started_after=query.instant("created_after"),
            started_before=query.instant("created_before"),
        )
        narrow = (wanted.workflow, wanted.state, wanted.business_key, wanted.label, wanted.started_after)
        if control is not None and not any(each is not None for each in narrow):
            message = "a list by control needs `workflow`, `state`, `business_key`, `label` or `created_after`"
            raise InvalidRequest(message)
        cursor = query.cursor()
        after = None if cursor is None else Place(cursor.at, cursor.id)
        page = self._instances.instances_list(
            call.namespace_id, wanted, after=after, limit=query.limit(), queues=call.caller.queues
        )
        place = page.next_place
        return call.page(page.instances, None if place is None else Cursor(place.started_at, place.id).text())

    def steps(self, call: Call) -> Reply:
        """List an instance's own steps; a definition's bounds keep them few enough for one page."""
        return call.page(
            self._instances.instance_steps(call.namespace_id, self._id(call), queues=call.caller.queues), None
        )

    def items(self, call: Call) -> Reply:
        """List the items of a foreach, in the order of its list."""
        parts = call.query.cursor_parts(1)
        first = 0 if parts is None else parts[0]
        if not isinstance(first, int) or not 0 <= first <= ITEMS_MAX:
            raise call.query.refused("cursor", "this is not a cursor of this list")
        indexes = range(first, first + call.query.limit())
        page = self._instances.instance_items(
            call.namespace_id, self._id(call), call.path["step"], page=indexes, queues=call.caller.queues
        )
        return call.page(page.items, None if page.next_index is None else cursor_text([page.next_index]))

    def history(self, call: Call) -> Reply:
        """List what happened; `limit` counts whole advances."""
        parts = call.query.cursor_parts(1)
        after_revision = 0 if parts is None else parts[0]
        if not isinstance(after_revision, int) or not 0 <= after_revision <= _REVISION_MAX:
            raise call.query.refused("cursor", "this is not a cursor of this list")
        page = self._instances.instance_history(
            call.namespace_id,
            self._id(call),
            after_revision=after_revision,
            limit=call.query.limit(),
            queues=call.caller.queues,
        )
        return call.page(page.entries, None if page.next_revision is None else cursor_text([page.next_revision]))

    def explain(self, call: Call) -> Reply:
        """Say why an instance is not moving."""
        return call.data(self._instances.instance_explain(call.namespace_id, self._id(call), queues=call.caller.queues))

    def _id(self, call: Call) -> bytes:
        return call.path_id("instance_id", message=_MISSING)
