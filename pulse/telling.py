"""Write the events of tasks so that subscriptions can choose by task type, which a task's row only names by its lane.

Where nobody in the namespace does, that costs nothing; else each lane is read once in the life of a process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orbit.store.journal import EventRecord, events_insert
from orbit.store.subscribers import Subscribers
from pulse.store.lanes import lanes_by_id

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


def task_events_insert(tx: Transaction, records: Sequence[EventRecord], *, now: Micros) -> None:
    """Write events about tasks, each with its queue and lane."""
    subscribers = tx.memory(Subscribers)
    subscribers.freshen(tx)
    if subscribers.by_namespace:
        lanes_learn(tx, subscribers, records)
    events_insert(tx, records, now=now)


def lanes_learn(tx: Transaction, subscribers: Subscribers, records: Sequence[EventRecord]) -> None:
    """See to it that the task types of the events' lanes are known, where somebody asks for them."""
    asked = {record.lane_id for record in records if subscribers.asks_task_types(record.namespace_id)}
    missing = {lane_id for lane_id in asked if lane_id is not None} - subscribers.task_types.keys()
    if missing:
        found = lanes_by_id(tx, missing)
        subscribers.learn_task_types({key: f"{lane.type}@{lane.version}" for key, lane in found.items()})
