"""One instance on its way through a transaction, and the values that its advances ask for.

Values are read when an advance asks for them and kept for those that follow in the same transaction; what an advance
has put away or undone is not in the database yet, so it is looked for here first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from definitions.graph import NodeKind
from engine.command import CancelTask, Commands, InstructChild, SettledItem, TakeSignal
from engine.effects import EFFECTS, EFFECTS_SEEN, Effect, in_order, parted_past, past_slot
from engine.family import Born
from engine.flow import Flow
from engine.instance import OUTPUT, SIGNALS, Instance, Step
from engine.items import own_name, parted
from engine.ports import TaskLayer
from engine.recent_outputs import RecentOutputs
from engine.states import StepReason
from engine.stimulus import Stimulus
from engine.store.effects import effects_latest
from engine.store.instances import Stored
from engine.store.items import items_page
from engine.store.records import Recorded, values_load
from engine.store.signals import signals_kept
from engine.store.stimuli import Pending
from orbit.clock import Micros
from orbit.jsontext import Json

if TYPE_CHECKING:
    from orbit.database import Transaction


@dataclass(slots=True)
class Work:
    """One instance on its way through the transaction: what it was, what is applied, what it has become."""

    stored: Stored
    flow: Flow
    stimuli: list[Stimulus]
    pending: Sequence[Pending] = ()
    is_new: bool = False
    instance: Instance = field(init=False)
    changed_steps: set[str] = field(default_factory=set)
    settled: list[SettledItem] = field(default_factory=list)
    reset: set[str] = field(default_factory=set)
    effects: list[Effect] = field(default_factory=list)
    undone: set[str] = field(default_factory=set)
    values: dict[str, Json] = field(default_factory=dict)
    kept: dict[str, Json] = field(default_factory=dict)
    recorded: list[Recorded] = field(default_factory=list)
    cancels: list[CancelTask] = field(default_factory=list)
    takes: list[TakeSignal] = field(default_factory=list)
    pause: str | None = None
    instructions: list[InstructChild] = field(default_factory=list)
    children: list[Born] = field(default_factory=list)
    has_told: bool = False  # stimuli for parents or children were stored: there is something to do at once
    broken: Exception | None = None

    def __post_init__(self) -> None:
        self.instance = self.stored.instance


def take(work: Work, after: Instance, commands: Commands, now: Micros) -> None:
    """Note what an advance has made of an instance and what it asks for."""
    work.instance = after
    work.stimuli = []
    work.changed_steps |= commands.steps
    work.pause = work.pause or commands.pause
    work.cancels.extend(commands.cancels)
    work.settled.extend(commands.settled)
    if commands.takes:
        work.takes.extend(commands.takes)
        work.values[SIGNALS] = after.values[SIGNALS]  # what was taken is gone for the advances that follow
    work.instructions.extend(commands.instructions)
    kept = commands.values or {}
    if commands.reset:
        work.reset |= commands.reset
        for slot in commands.reset:
            work.kept.pop(slot, None)
            work.values.pop(slot, None)
    work.kept |= kept
    work.values |= kept
    if commands.effects or commands.undone:
        work.effects.extend(commands.effects)
        work.undone.update(commands.undone)
        if EFFECTS in after.values:
            work.values[EFFECTS] = after.values[EFFECTS]
    if commands.history:
        work.recorded.append(Recorded(after.revision, now, commands.history))


def values_of_works(tx: Transaction, tasks: TaskLayer, needed: Sequence[tuple[Work, frozenset[str]]]) -> None:
    """Load what advances have asked for, each kind of value in one statement."""
    _load_signals(tx, [work for work, slots in needed if SIGNALS in slots])
    stored: list[tuple[Work, str, tuple[bytes, str]]] = []
    of_tasks: list[tuple[Work, str, bytes | None]] = []
    for work, slots in needed:
        for slot in slots - {SIGNALS}:
            if _load_effects(tx, work, slot):
                continue
            node = work.flow.nodes.get(own_name(slot))
            if node is not None and node.kind in {NodeKind.TASK, NodeKind.POLL} and not _is_given(work, slot):
                of_tasks.append((work, slot, _step_of(work, slot).task_id))
            elif node is not None and node.kind is NodeKind.WORKFLOW and not _is_given(work, slot):
                child_id = _step_of(work, slot).task_id
                assert child_id is not None, f"step {slot} has an output and no child"
                stored.append((work, slot, (child_id, OUTPUT)))
            else:
                stored.append((work, slot, (work.instance.id, slot)))
    texts = values_load(tx, [key for _, _, key in stored])
    for work, slot, key in stored:
        # A child may end without an output; whatever else is asked for has been kept.
        work.values[slot] = None if key[1] == OUTPUT and key not in texts else json.loads(texts[key])
    ids = [task_id for _, _, task_id in of_tasks if task_id is not None]
    outputs = tx.memory(RecentOutputs).found(ids) if ids else {}
    unknown = [task_id for task_id in ids if task_id not in outputs]
    if unknown:
        outputs |= tasks.outputs(tx, unknown)
    for work, slot, task_id in of_tasks:
        text = outputs.get(task_id) if task_id is not None else None
        work.values[slot] = None if text is None else json.loads(text)


def _load_signals(tx: Transaction, works: Sequence[Work]) -> None:
    if works:
        kept = signals_kept(tx, [work.instance.id for work in works])
        for work in works:
            work.values[SIGNALS] = kept[work.instance.id]


def _is_given(work: Work, step: str) -> bool:
    """Tell whether a step's output is a person's or an error handler's, not its task's."""
    return _step_of(work, step).reason in {StepReason.RECOVERED, StepReason.HANDLED}


def _step_of(work: Work, identifier: str) -> Step:
    """Give a step by its id, also one that was put away with its item and is looked at to be undone."""
    step = work.instance.steps.get(identifier)
    if step is None:
        name, index = parted(identifier) or ("", 0)
        around = work.flow.nodes[name].within
        assert around is not None, f"step {identifier} was never entered"
        step = next(each for each in work.values[past_slot(around, index)] if each.id == identifier)
    return step


def _load_effects(tx: Transaction, work: Work, slot: str) -> bool:
    """Load what was put away and is to be undone, if it is that which is asked for."""
    past = parted_past(slot)
    if slot == EFFECTS:
        seen = EFFECTS_SEEN + len(work.undone)
        found = {each.step: each for each in (*effects_latest(tx, work.instance.id, seen), *work.effects)}
        left = [each for name, each in found.items() if name not in work.undone]
        work.values[slot] = in_order(left)[:EFFECTS_SEEN]
    elif past is not None:
        name, index = past
        here = [item.steps for item in work.settled if (item.foreach, item.index) == past]
        stored = () if here else items_page(tx, work.instance.id, name, after_index=index - 1, limit=1)
        steps = [item.steps for item in stored if item.index == index]
        work.values[slot] = (here or steps or [()])[-1]
    return slot == EFFECTS or past is not None
