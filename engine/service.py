"""What the HTTP API calls: start, read, list, explain and watch instances.

Rights are the caller's business, except that an instance keeps the queue range of the credential that started it. Every
read is limited to one namespace; a foreign id is not found.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from definitions.graph import Graph
from engine.batch import Advancer
from engine.explain import children_of, explain, explain_newer, tasks_of
from engine.hiding import values_shown
from engine.instance import INPUT, OUTPUT
from engine.item_views import begun_items
from engine.ports import hiding_known
from engine.start import Starter, StartRequest
from engine.states import INSTANCE_TERMINAL, StepState
from engine.store.instance_lists import instances_page
from engine.store.instances import Filter, Place, Stored, instance_find, instance_unfinished, instances_read
from engine.store.look import instance_look
from engine.store.records import history_page
from engine.store.steps import steps_load
from engine.task_words import TaskLook
from engine.views import graph_states, history_json, instance_json, steps_json
from engine.watchers import Watchers
from orbit.clock import to_rfc3339
from orbit.database import Database
from orbit.errors import NotFound
from orbit.idempotency import Answer
from orbit.jsontext import Json
from pulse.states import TaskState
from pulse.tasks import attempts_list, task_explain
from pulse.verification import verifications_json

if TYPE_CHECKING:
    from orbit.database import Transaction

PAGE_MAX = 200
Range = frozenset[str] | None


@dataclass(frozen=True, slots=True)
class InstancesPage:
    """A page of instances, the newest start first, and the place where the next page begins; None at the end."""

    instances: list[Json]
    next_place: Place | None


@dataclass(frozen=True, slots=True)
class ItemsPage:
    """A page of items of a foreach in order, and the index with which the next page begins; None at the end."""

    items: list[Json]
    next_index: int | None


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """A page of history entries in order, and the revision after which the next page begins; None at the end."""

    entries: list[Json]
    next_revision: int | None


class Instances:
    """The instances of all namespaces, as a node serves them.

    `queues` is a reader's range, None for all: an instance whose workflow uses another queue is not found.
    """

    def __init__(self, database: Database, advancer: Advancer, starter: Starter, watchers: Watchers) -> None:
        self._database = database
        self._advancer = advancer
        self._starter = starter
        self._watchers = watchers

    def instance_start(self, request: StartRequest) -> Answer:
        """Start an instance or replay its receipt; see Starter.start for what is raised."""
        return self._starter.start(request)

    def instance_get(
        self,
        namespace_id: bytes,
        instance_id: bytes,
        *,
        wait_seconds: float = 0.0,
        after_revision: int | None = None,
        queues: Range = None,
    ) -> dict[str, Json]:
        """Read an instance with its input and output.

        With `wait_seconds` and `after_revision` it waits until the instance has a later revision; a terminal one is
        returned at once. With `wait_seconds` alone it waits until the instance is terminal. Raises NotFound.
        """
        if wait_seconds <= 0:
            return self._database.transaction(lambda tx: self._read(tx, namespace_id, instance_id, queues))[1]
        end = time.monotonic() + wait_seconds
        with self._watchers.watch(instance_id, awaits_end=after_revision is None) as watch:
            while True:
                stored, form = self._database.transaction(lambda tx: self._read(tx, namespace_id, instance_id, queues))
                revision, left = stored.instance.revision, end - time.monotonic()
                is_over = left <= 0 or self._watchers.is_stopping
                is_new = after_revision is not None and revision > after_revision
                if is_new or is_over or stored.instance.state in INSTANCE_TERMINAL:
                    return form
                watch.wait(revision, left)
                while after_revision is None and (seen := self._seen(namespace_id, instance_id, end)) is not None:
                    # It has moved but not ended: what it is now need not be read for a caller who wants its end.
                    watch.wait(seen, end - time.monotonic())

    def _seen(self, namespace_id: bytes, instance_id: bytes, end: float) -> int | None:
        """Give the revision of an instance whose end is still waited for; None if nobody need wait any more."""
        if time.monotonic() >= end or self._watchers.is_stopping:
            return None
        return self._database.transaction(lambda tx: instance_unfinished(tx, namespace_id, instance_id))

    def instances_list(
        self,
        namespace_id: bytes,
        wanted: Filter,
        *,
        after: Place | None = None,
        limit: int = PAGE_MAX,
        queues: Range = None,
    ) -> InstancesPage:
        """List instances, the newest start first. The order never changes, so a cursor made of a place is stable.

        What is out of the reader's range is left out, so a page may be short.
        """
        size = min(limit, PAGE_MAX)

        def read(tx: Transaction) -> InstancesPage:
            found = instances_page(tx, namespace_id, wanted, after=after, limit=size)
            last = found[-1].instance if len(found) == size else None
            place = None if last is None else Place(last.started_at, last.id)
            return InstancesPage([instance_json(each) for each in found if self._is_in_range(tx, each, queues)], place)

        return self._database.transaction(read)

    def instance_steps(self, namespace_id: bytes, instance_id: bytes, *, queues: Range = None) -> list[Json]:
        """List the instance's own steps in the definition's order, with rounds and task ids. Raises NotFound."""

        def read(tx: Transaction) -> list[Json]:
            stored = self._with_steps(tx, namespace_id, instance_id, queues)
            origin = stored.origin
            flow = self._advancer.flows.get(tx, namespace_id, origin.workflow, origin.version)
            reviewed = [step.task_id for step in stored.instance.steps.values() if step.state is StepState.NEEDS_REVIEW]
            verified = verifications_json(tx, [task_id for task_id in reviewed if task_id is not None])
            return steps_json(flow, stored.instance, verified)

        return self._database.transaction(read)

    def instance_items(
        self,
        namespace_id: bytes,
        instance_id: bytes,
        foreach: str,
        *,
        page: range = range(PAGE_MAX),
        queues: Range = None,
    ) -> ItemsPage:
        """List the items of a foreach that have begun, of those of a page of indexes, with their steps and results.

        Raises NotFound, for a step that is no foreach too.
        """
        page = page[:PAGE_MAX]

        def read(tx: Transaction) -> ItemsPage:
            stored = self._with_steps(tx, namespace_id, instance_id, queues)
            origin = stored.origin
            flow = self._advancer.flows.get(tx, namespace_id, origin.workflow, origin.version)
            if foreach not in flow.bodies:
                raise NotFound("the workflow has no such foreach step")
            items = begun_items(tx, flow, stored.instance, foreach, page=page)
            return ItemsPage(items, page.stop if len(items) == len(page) else None)

        return self._database.transaction(read)

    def instance_history(
        self,
        namespace_id: bytes,
        instance_id: bytes,
        *,
        after_revision: int = 0,
        limit: int = PAGE_MAX,
        queues: Range = None,
    ) -> HistoryPage:
        """Read the history in order, by whole advances: `limit` counts those. Raises NotFound."""
        size = min(limit, PAGE_MAX)

        def read(tx: Transaction) -> HistoryPage:
            self._found(tx, namespace_id, instance_id, queues)
            recorded = history_page(tx, instance_id, after_revision=after_revision, limit=size)
            next_revision = recorded[-1].revision if len(recorded) == size else None
            return HistoryPage(history_json(recorded), next_revision)

        return self._database.transaction(read)

    def instance_explain(self, namespace_id: bytes, instance_id: bytes, *, queues: Range = None) -> dict[str, Json]:
        """Say why an instance is not moving. Raises NotFound."""

        def read(tx: Transaction) -> dict[str, Json]:
            stored = self._with_steps(tx, namespace_id, instance_id, queues)
            origin, newest = stored.origin, self._advancer.formats.newest
            if origin.format > newest and stored.instance.state not in INSTANCE_TERMINAL:
                return explain_newer(stored.instance, origin.format, newest)
            flow = self._advancer.flows.get(tx, namespace_id, origin.workflow, origin.version)
            looks = _looks_at_children(tx, children_of(flow, stored.instance))
            looks |= {task_id: _look(tx, namespace_id, task_id) for task_id in tasks_of(flow, stored.instance)}
            return explain(flow, stored.instance, looks)

        return self._database.transaction(read)

    def instance_graph(
        self, namespace_id: bytes, instance_id: bytes, *, queues: Range = None
    ) -> tuple[Graph, dict[str, str]]:
        """Read the graph that an instance runs on, and the states of its steps by id. Raises NotFound."""

        def read(tx: Transaction) -> tuple[Graph, dict[str, str]]:
            stored = self._with_steps(tx, namespace_id, instance_id, queues)
            origin = stored.origin
            flow = self._advancer.flows.get(tx, namespace_id, origin.workflow, origin.version)
            return flow.graph, graph_states(flow, stored.instance)

        return self._database.transaction(read)

    def _found(self, tx: Transaction, namespace_id: bytes, instance_id: bytes, queues: Range) -> Stored:
        stored = instance_find(tx, namespace_id, instance_id)
        if stored is None or not self._is_in_range(tx, stored, queues):
            raise NotFound("no such instance")
        return stored

    def _is_in_range(self, tx: Transaction, stored: Stored, queues: Range) -> bool:
        if queues is None:
            return True
        origin = stored.origin
        return self._advancer.flows.get(tx, origin.namespace_id, origin.workflow, origin.version).queues <= queues

    def _with_steps(self, tx: Transaction, namespace_id: bytes, instance_id: bytes, queues: Range) -> Stored:
        stored = self._found(tx, namespace_id, instance_id, queues)
        return stored.with_steps(steps_load(tx, [instance_id])[instance_id])

    def _read(
        self, tx: Transaction, namespace_id: bytes, instance_id: bytes, queues: Range
    ) -> tuple[Stored, dict[str, Json]]:
        found = instance_look(tx, namespace_id, instance_id)
        if found is None or not self._is_in_range(tx, found[0], queues):
            raise NotFound("no such instance")
        stored, texts = found
        values = {
            name: None if (text := texts.get(slot)) is None else json.loads(text)
            for name, slot in (("input", INPUT), ("output", OUTPUT))
        }
        hiding = hiding_known(tx, self._advancer.flows, stored)
        return stored, {**instance_json(stored), **values_shown(hiding, values)}


def _look(tx: Transaction, namespace_id: bytes, task_id: bytes) -> TaskLook:
    task, waiting = task_explain(tx, namespace_id, task_id)
    attempt = None
    if task.state in {TaskState.LEASED, TaskState.RUNNING}:
        last = attempts_list(tx, namespace_id, task_id)[-1]
        started_at = None if last.started_at is None else to_rfc3339(last.started_at)
        attempt = {"number": last.number, "worker": last.worker, "started_at": started_at}
    reason, details = (None, None) if waiting is None else (waiting.reason.value, waiting.details)
    return TaskLook(task.state.value, reason, details, attempt, task.verification)


def _looks_at_children(tx: Transaction, ids: list[bytes]) -> dict[bytes, TaskLook]:
    """Look how children stand: their state, and the code of what they are held by."""
    found = instances_read(tx, ids)
    return {
        identifier: TaskLook(
            child.instance.state.value,
            None if child.instance.error is None else child.instance.error.code,
            {"control": child.instance.control.value},
        )
        for identifier, child in found.items()
    }
