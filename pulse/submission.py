"""Accept tasks: each with its receipt, its place in the backlog, its events and its entry in `ready`, all or nothing.

A replay wins over every refusal. A refused item leaves nothing behind and touches no other item of its batch. Locks:
receipts (sorted), gates, shares of fairness, pure inserts, and the backlog rows last: the caller takes the places of a
batch that fits (`pulse.acceptance`); only a nearly full queue, or one under quotas, is locked before the tasks are
inserted, and granted item by item, as they came.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from orbit.access import queue_not_found
from orbit.clock import to_rfc3339
from orbit.errors import ApplicationQuotaExceeded, InvalidRequest, NotFound, OrbitError, QueueFull, StateConflict
from orbit.idempotency import Answer, Command, replayed
from orbit.ids import new_id
from orbit.jsontext import dumps
from orbit.store.journal import EventRecord
from orbit.store.receipts import Receipt, receipts_delete, receipts_find, receipts_insert
from pulse import limits
from pulse.arrivals import arrivals_by_lane
from pulse.catalog import Catalog
from pulse.fairness import Arrival, fair_lock, fair_places
from pulse.handout import hand_out
from pulse.listener import Takings
from pulse.quotas import backlog_rooms
from pulse.requests import Policy, TaskRequest, Times, policy_of, times_of
from pulse.settle import Surroundings
from pulse.states import SourceKind, TaskState, WaitReason
from pulse.store.counters import backlog_lock, backlog_move
from pulse.store.gate import gates_lock
from pulse.store.lanes import LaneKey, delayed_insert, lane_create, lanes_count, lanes_find, ready_insert
from pulse.store.queue import queue_ids
from pulse.store.rows import dispatch_at
from pulse.store.search import labels_insert
from pulse.store.submit import tasks_insert
from pulse.telling import task_events_insert
from pulse.type_revision import TypeRevision

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction


class Submit(Struct, frozen=True):
    """One item to accept. `command` is None for owners that guard against repeats themselves (the engine).

    `is_gate_open` says that the owner knows that: it closes gates only under a lock that it holds now.
    """

    request: TaskRequest
    command: Command | None = None
    is_gate_open: bool = False


_DEFAULT = Policy()


@dataclass(slots=True)
class _Draft:
    """An item on its way through one transaction."""

    submit: Submit
    task_id: bytes
    queue_id: bytes = b""
    lane_id: bytes = b""
    answer: dict[str, Any] | None = None
    policy: Policy = _DEFAULT
    kind: TypeRevision | None = None
    times: Times | None = None
    is_held: bool = False
    fair_at: Micros | None = None
    outcome: Answer | OrbitError | None = None

    @property
    def is_open(self) -> bool:
        return self.outcome is None


def tasks_submit(
    tx: Transaction,
    submits: Sequence[Submit],
    around: Surroundings,
    *,
    takings: Takings | None = None,
    now: Micros | None = None,
) -> list[Answer | OrbitError]:
    """Accept a batch inside the caller's transaction; one outcome for each item, in order.

    With `takings` nobody is refused for want of room: what the batch takes of the queues' counters is counted there,
    for the caller to take at its end, and tasks may be handed out as they are made. `now` is the instant of a caller
    that has read it after its own last lock.
    """
    drafts = [_Draft(submit, submit.request.task_id or new_id()) for submit in submits]
    _replay(tx, drafts)
    _find_queues(tx, drafts)
    _find_types(tx, drafts, around.catalog)
    now = tx.now() if now is None else now
    _resolve_times(drafts, now=now)
    _find_lanes(tx, drafts, now=now)
    _find_gates(tx, drafts)
    accepted = [draft for draft in drafts if draft.is_open]
    receipts_insert(tx, [_receipt(draft, now=now) for draft in accepted if draft.submit.command is not None])
    shares = None
    if takings is None:
        shares = fair_lock(tx, [arrival for _, arrival in _arrivals(accepted, now=now)])
        accepted = _grant(tx, accepted)
    else:
        takings.places.update(draft.queue_id for draft in accepted)
    _place_fairly(tx, accepted, shares, now=now)
    entries = _insert(tx, accepted, around, takings, now=now)
    for draft in accepted:
        draft.outcome = Answer(draft.task_id, _answer(draft, now=now), deduplicated=False)
    if entries:
        tx.after_commit(lambda: around.on_ready(arrivals_by_lane(entries)))
    return _settle_twins(drafts)


def _replay(tx: Transaction, drafts: Sequence[_Draft]) -> None:
    """Answer what was accepted before; of several new items with one identity, the first stands for all."""
    commands = {draft.submit.command.receipt_id(): None for draft in drafts if draft.submit.command is not None}
    found = receipts_find(tx, list(commands))
    first: dict[bytes, _Draft] = {}
    for draft in drafts:
        command = draft.submit.command
        if command is None:
            continue
        identifier = command.receipt_id()
        receipt = found.get(identifier)
        try:
            if receipt is not None:
                draft.outcome = Answer(receipt.subject_id, replayed(receipt, command.meaning), deduplicated=True)
            elif identifier in first:
                draft.outcome = _Twin(first[identifier])
            else:
                first[identifier] = draft
        except OrbitError as error:
            draft.outcome = error


class _Twin(OrbitError):
    """Stands for an item whose identity an earlier item of the same batch has; never leaves this module."""

    def __init__(self, of: _Draft) -> None:
        super().__init__("twin")
        self.of = of


def _settle_twins(drafts: Sequence[_Draft]) -> list[Answer | OrbitError]:
    outcomes: list[Answer | OrbitError] = []
    for draft in drafts:
        outcome = draft.outcome
        if isinstance(outcome, _Twin):
            command, other = draft.submit.command, outcome.of.submit.command
            assert command is not None
            assert other is not None
            first = outcome.of.outcome
            if isinstance(first, Answer):
                same = Receipt(b"", command.namespace_id, other.meaning, first.subject_id, dumps(first.data), 0)
                try:
                    outcome = Answer(first.subject_id, replayed(same, command.meaning), deduplicated=True)
                except OrbitError as error:
                    outcome = error
            else:
                outcome = first
        assert outcome is not None
        outcomes.append(outcome)
    return outcomes


def _find_queues(tx: Transaction, drafts: Sequence[_Draft]) -> None:
    names: dict[bytes, set[str]] = defaultdict(set)
    for draft in drafts:
        if draft.is_open:
            names[draft.submit.request.namespace_id].add(draft.submit.request.queue)
    ids = {namespace: queue_ids(tx, namespace, names[namespace]) for namespace in sorted(names)}
    for draft in drafts:
        if draft.is_open:
            request = draft.submit.request
            queue_id = ids[request.namespace_id].get(request.queue)
            if queue_id is None:
                # A workflow's step is told which queue it lacks; a caller outside has just named it.
                is_owned = request.owner is not None
                draft.outcome = NotFound(f"there is no queue {request.queue!r}") if is_owned else queue_not_found()
            else:
                draft.queue_id = queue_id


def _find_types(tx: Transaction, drafts: Sequence[_Draft], catalog: Catalog) -> None:
    """Settle each task's policy and check its params, by what its type is registered as."""
    catalog.freshen(tx)
    for draft in drafts:
        if not draft.is_open:
            continue
        request, kind = draft.submit.request, None
        if request.type_revision_id is not None:
            kind = catalog.revision(tx, request.type_revision_id)
        else:
            kind = catalog.current(request.namespace_id, request.type, request.version)
            if kind is not None:
                draft.outcome = kind.params_fault(request.params, request.params_version)
        draft.kind = kind
        if kind is None and request.is_silent:
            continue
        try:
            draft.policy = policy_of(request.policy_wish(), None if kind is None else kind.policy)
        except InvalidRequest as error:
            draft.outcome = error


def _resolve_times(drafts: Sequence[_Draft], *, now: Micros) -> None:
    for draft in drafts:
        if draft.is_open:
            try:
                draft.times = times_of(draft.submit.request, deadline_micros=draft.policy.deadline_micros, now=now)
            except InvalidRequest as error:
                draft.outcome = error


def _find_lanes(tx: Transaction, drafts: Sequence[_Draft], *, now: Micros) -> None:
    keys = {_lane_key(draft) for draft in drafts if draft.is_open}
    lanes = lanes_find(tx, keys)
    for key in sorted(keys - lanes.keys()):
        if lanes_count(tx, key.queue_id) < limits.LANES_PER_QUEUE_MAX:
            lanes[key] = lane_create(tx, key, now=now)
    for draft in drafts:
        if draft.is_open:
            lane_id = lanes.get(_lane_key(draft))
            if lane_id is None:
                message = f"the queue already has {limits.LANES_PER_QUEUE_MAX} task types and versions"
                draft.outcome = StateConflict(message)
            else:
                draft.lane_id = lane_id


def _find_gates(tx: Transaction, drafts: Sequence[_Draft]) -> None:
    """Hold what stands behind a closed gate. The gate's lock comes before the inserts, which wait for nobody."""
    gated = [d for d in drafts if d.is_open and d.submit.request.gate_id is not None and not d.submit.is_gate_open]
    if gated:
        gates = gates_lock(tx, {gate_id for d in gated if (gate_id := d.submit.request.gate_id) is not None})
        closed = {gate.id for gate in gates if not gate.is_open}
        for draft in gated:
            draft.is_held = draft.submit.request.gate_id in closed


def _lane_key(draft: _Draft) -> LaneKey:
    return LaneKey(draft.queue_id, draft.submit.request.type, draft.submit.request.version)


def _grant(tx: Transaction, drafts: Sequence[_Draft]) -> list[_Draft]:
    """Lock the backlogs, give places in order of arrival, and take back the receipts of the refused."""
    if not drafts:
        return []
    backlogs = backlog_lock(tx, {draft.queue_id for draft in drafts})
    room = {queue_id: row.max_unfinished_tasks - row.unfinished for queue_id, row in backlogs.items()}
    quotas = {queue_id: row.quota_id for queue_id, row in backlogs.items() if row.quota_id is not None}
    shared = backlog_rooms(tx, quotas)
    granted: list[_Draft] = []
    for draft in drafts:
        quota = shared.get(draft.queue_id)
        if draft.submit.request.verifies is not None:
            # The task that it is about holds a place already; without the verification it would hold it for ever.
            room[draft.queue_id] -= 1
            granted.append(draft)
            continue
        if room[draft.queue_id] <= 0:
            draft.outcome = QueueFull()
        elif quota is not None and quota.left <= 0:
            draft.outcome = ApplicationQuotaExceeded()
        else:
            room[draft.queue_id] -= 1
            granted.append(draft)
            if quota is not None:
                quota.left -= 1
    refused = [d.submit.command.receipt_id() for d in drafts if not d.is_open and d.submit.command is not None]
    receipts_delete(tx, refused)
    backlog_move(tx, Counter(draft.queue_id for draft in granted))
    return granted


def _insert(
    tx: Transaction, drafts: Sequence[_Draft], around: Surroundings, takings: Takings | None, *, now: Micros
) -> list[dict[str, Any]]:
    """Insert accepted tasks, hand out those that need not wait, and return the entries of the others in `ready`."""
    if not drafts:
        return []
    rows = [_row(draft, now=now) for draft in drafts]
    handed = None if takings is None else hand_out(tx, rows, around, takings, now=now)
    if any(row["labels"] is not None for row in rows):
        labels_insert(tx, rows)
    tasks_insert(tx, rows)
    ready_rows: list[dict[str, Any]] = []
    delayed_rows: list[dict[str, Any]] = []
    for draft in drafts:
        assert draft.times is not None
        available_at, priority = draft.times.available_at, draft.submit.request.priority
        if draft.is_held or (handed is not None and draft.task_id in handed.task_ids):
            continue
        if available_at > now:
            delayed_rows.append({"due_at": available_at, "task_id": draft.task_id})
        else:
            at = draft.fair_at or dispatch_at(accepted_at=now, available_at=available_at, priority=priority)
            ready_rows.append({"lane_id": draft.lane_id, "dispatch_at": at, "task_id": draft.task_id})
    ready_insert(tx, ready_rows)
    delayed_insert(tx, delayed_rows)
    task_events_insert(tx, [_submitted(draft) for draft in drafts], now=now)
    if handed is not None:
        handed.insert(tx)
    return ready_rows


def _submitted(draft: _Draft) -> EventRecord:
    namespace_id = draft.submit.request.namespace_id
    return EventRecord(namespace_id, "task.submitted", draft.task_id, 1, "{}", draft.queue_id, draft.lane_id)


def _place_fairly(
    tx: Transaction, drafts: Sequence[_Draft], shares: Mapping[bytes, Micros] | None, *, now: Micros
) -> None:
    """Give tasks with a fairness key their places in `ready`; those that enter it later get theirs then.

    `shares` are those that are locked already, if they are.
    """
    for draft in drafts:
        draft.fair_at = None if draft.submit.request.fairness_key is None else 0
    arrivals = _arrivals(drafts, now=now)
    places = fair_places(tx, [arrival for _, arrival in arrivals], shares)
    for (draft, _), place in zip(arrivals, places, strict=True):
        draft.fair_at = place


def _arrivals(drafts: Sequence[_Draft], *, now: Micros) -> list[tuple[_Draft, Arrival]]:
    """Return the drafts with a fairness key that enter `ready` at once."""
    arrivals: list[tuple[_Draft, Arrival]] = []
    for draft in drafts:
        request, times = draft.submit.request, draft.times
        assert times is not None
        if request.fairness_key is not None and not draft.is_held and times.available_at <= now:
            plain = dispatch_at(accepted_at=now, available_at=times.available_at, priority=request.priority)
            key = request.fairness_key.encode()
            arrivals.append((draft, Arrival(draft.lane_id, key, plain, request.priority)))
    return arrivals


def _row(draft: _Draft, *, now: Micros) -> dict[str, Any]:
    request, times = draft.submit.request, draft.times
    assert times is not None
    owner = request.owner
    return {
        "id": draft.task_id,
        "namespace_id": request.namespace_id,
        "queue_id": draft.queue_id,
        "lane_id": draft.lane_id,
        "state": TaskState.WAITING,
        "wait_reason": _wait_reason(draft, times, now=now),
        "priority": request.priority,
        "attempts_max": draft.policy.retry.attempts_max,
        "backoff_micros": draft.policy.retry.backoff_micros,
        "backoff_micros_max": draft.policy.retry.backoff_micros_max,
        "attempt_timeout_micros": draft.policy.attempt_timeout_micros,
        "accepted_at": now,
        "available_at": times.available_at,
        "start_deadline_at": times.start_deadline_at,
        "deadline_at": times.deadline_at,
        "business_key": None if request.business_key is None else request.business_key.encode(),
        "source_kind": _source_kind(request),
        "source_id": _maker(request) if owner is None else owner.instance_id,
        "source_step": _instant_of(request) if owner is None else owner.step,
        "source_round": None if owner is None else owner.round,
        "retry_of": request.retry_of,
        "operation_id": request.operation_id,
        "fencing_base": request.fencing_base,
        "derived_from": request.derived_from,
        "params_version": request.params_version,
        "params": request.params,
        "labels": request.labels,
        "traceparent": request.traceparent,
        "gate_id": request.gate_id,
        "held_since": now if draft.is_held else None,
        "concurrency_keys": _keys(request),
        "fairness_key": None if request.fairness_key is None else request.fairness_key.encode(),
        "fair_at": draft.fair_at,
        "recovery": None if draft.kind is None else draft.kind.recovery,
        "type_revision_id": None if draft.kind is None else draft.kind.id,
        "redact": request.redact,
    }


def _keys(request: TaskRequest) -> str | None:
    """Write the keys as they are kept, each once; most tasks have none."""
    if not request.concurrency_keys:
        return None
    return msgspec.json.encode(list(dict.fromkeys(request.concurrency_keys))).decode()


def _wait_reason(draft: _Draft, times: Times, *, now: Micros) -> WaitReason:
    if draft.is_held:
        return WaitReason.HELD
    return WaitReason.DELAYED if times.available_at > now else WaitReason.READY


def _maker(request: TaskRequest) -> bytes | None:
    return request.verifies or request.retry_of or request.schedule_id


def _instant_of(request: TaskRequest) -> str | None:
    """Write the instant of a schedule that a task stands for; it is kept where a workflow's step would stand."""
    return None if request.scheduled_at is None else to_rfc3339(request.scheduled_at)


def _source_kind(request: TaskRequest) -> SourceKind:
    if request.owner is not None:
        return SourceKind.WORKFLOW
    if request.verifies is not None:
        return SourceKind.VERIFICATION
    if request.schedule_id is not None:
        return SourceKind.SCHEDULE
    return SourceKind.API if request.retry_of is None else SourceKind.RETRY


def _receipt(draft: _Draft, *, now: Micros) -> Receipt:
    command = draft.submit.command
    assert command is not None
    answer = msgspec.json.encode(_answer(draft, now=now))
    return Receipt(command.receipt_id(), command.namespace_id, command.meaning, draft.task_id, answer, now)


def _answer(draft: _Draft, *, now: Micros) -> dict[str, Any]:
    """Return what the first answer says of the task: what never changes, and the state at its acceptance."""
    if draft.answer is None:
        draft.answer = {"task": _first_view(draft, now=now)}
    return draft.answer


def _first_view(draft: _Draft, *, now: Micros) -> dict[str, Any]:
    request, times = draft.submit.request, draft.times
    assert times is not None
    return {
        "id": draft.task_id.hex(),
        "queue": request.queue,
        "type": request.type,
        "version": request.version,
        "state": TaskState.WAITING,
        "accepted_at": to_rfc3339(now),
        "available_at": to_rfc3339(times.available_at),
        "deadline_at": to_rfc3339(times.deadline_at),
        "revision": "1",
    }
