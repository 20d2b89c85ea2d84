"""Take instances with their steps, if nobody holds them and nothing waits to be applied to them: one round trip."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from sqlalchemy import false, select

from engine.store.instances import LOCK_FREE, Stored, stored_packed
from engine.store.steps import OF_INSTANCES, steps_of
from engine.tables import stimulus
from orbit.database.hot import Hot
from orbit.database.ids import ids_in, through

if TYPE_CHECKING:
    from orbit.database import Transaction

_WAITED_FOR = Hot(
    through(select(stimulus.c.instance_id), stimulus, "weave_stimulus_by_instance").where(
        ids_in(stimulus.c.instance_id), stimulus.c.held == false()
    )
)


def instances_take(tx: Transaction, ids: Collection[bytes], *, newest: int) -> list[Stored]:
    """Lock those of some instances that are free, and read their steps; `ids` is not empty.

    Left out are those that somebody else has locked, those in a newer form than `newest`, and those for which stimuli
    wait: what came first is applied first. (The locks of the latter are taken all the same, until the end.)
    """
    bound = {"ids": ids}
    locked, waiting, steps = tx.rows_each(
        [(LOCK_FREE, {"ids": ids, "newest": newest}), (_WAITED_FOR, bound), (OF_INSTANCES, bound)]
    )
    later = {row.instance_id for row in waiting}
    found = steps_of(ids, steps)
    return [
        stored.with_steps(found[stored.instance.id])
        for stored in stored_packed(locked)
        if stored.instance.id not in later
    ]
