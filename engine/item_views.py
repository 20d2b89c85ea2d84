"""The items of a foreach as people see them: those that are done with and those under way, in one list."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from engine.flow import Flow
from engine.hiding import result_shown
from engine.instance import Instance
from engine.items import item_step
from engine.store.items import items_page
from engine.store.records import values_load
from engine.views import item_json
from orbit.jsontext import Json

if TYPE_CHECKING:
    from orbit.database import Transaction


def begun_items(tx: Transaction, flow: Flow, instance: Instance, foreach: str, *, page: range) -> list[Json]:
    """Write those items of a page that have begun. They begin in order, so their indexes leave no gap."""
    step = instance.steps.get(foreach)
    begun = 0 if step is None or step.items is None else step.items.next
    indexes = range(page.start, min(page.stop, begun))
    if not indexes:
        return []
    settled = items_page(tx, instance.id, foreach, after_index=indexes.start - 1, limit=len(indexes))
    for step_name in flow.bodies[foreach].steps:
        undoing = flow.compensations.get(step_name)
        if undoing is not None and instance.compensation is not None:
            # What has undone the steps of an item lies beside them, under its own name.
            settled += items_page(tx, instance.id, undoing.id, after_index=indexes.start - 1, limit=len(indexes))
    ended = {step.id: step for item in settled for step in item.steps}
    texts = values_load(tx, [(instance.id, item_step(foreach, index)) for index in indexes])
    results = {slot: json.loads(text) for (_, slot), text in texts.items()}
    steps = {**instance.steps, **ended}
    return [
        {
            **item_json(flow, foreach, index, steps),
            "result": result_shown(flow.hiding, foreach, index, results.get(item_step(foreach, index))),
        }
        for index in indexes
    ]
