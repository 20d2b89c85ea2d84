"""Start instances: many at once in one transaction, idempotent, with their first advance.

A replay of an accepted start wins over every refusal; a refused one leaves nothing behind. The first advance runs in
the same transaction, so the first tasks are submitted when the caller gets its answer.

The surprising rule: the answer tells of the instance as it was accepted (RUNNING), not of what the first advance made
of it, because the same answer is given again to every replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from definitions.limits import VALUE_BYTES_MAX
from definitions.registry import VersionToStart
from definitions.schema import with_defaults
from engine.admission import Entrant, admit
from engine.batch import Advancer, Work, next_due
from engine.flow import Flow
from engine.instance import INPUT, Instance
from engine.ports import VersionFinder
from engine.scope import schema_failure
from engine.signalling import Message, check_message, check_size, first_signal
from engine.states import InstanceState
from engine.stimulus import Started
from engine.store.business_keys import BusinessKey
from engine.store.instances import Origin, Stored
from engine.store.signals import signals_insert
from engine.views import instance_json
from orbit.batcher import Batcher
from orbit.clock import Micros, seconds
from orbit.database import Database
from orbit.errors import IdempotencyConflict, InvalidRequest, OrbitError, PayloadTooLarge
from orbit.idempotency import Answer, Command, replayed
from orbit.ids import new_id
from orbit.jsontext import Json, dumps
from orbit.store.receipts import Receipt, receipts_find, receipts_insert

if TYPE_CHECKING:
    from orbit.database import Transaction


@dataclass(frozen=True, slots=True)
class StartRequest:
    """One instance to start. `version` None is the default one; `queues` is the caller's range, None for all."""

    command: Command
    workflow: str
    version: int | None
    input: Json
    started_by: str
    queues: frozenset[str] | None = None
    business_key: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    traceparent: str | None = None
    signal: Message | None = None


@dataclass(slots=True)
class _Start:
    """A request on its way through the transaction."""

    request: StartRequest
    receipt_id: bytes
    input: Json = None  # with the schema's defaults filled in, as the definition was checked
    outcome: Answer | OrbitError | None = None
    twin_of: _Start | None = None
    flow: Flow | None = None
    origin: Origin | None = None
    warning: Json = None  # of a deprecated version
    instance_id: bytes = field(default_factory=new_id)


class Starter:
    """Starts instances by group commit. `on_started` is told after COMMIT in how many microseconds a timer is due."""

    def __init__(
        self,
        database: Database,
        advancer: Advancer,
        find_version: VersionFinder,
        *,
        on_started: Callable[[Micros], None],
    ) -> None:
        self._database = database
        self._advancer = advancer
        self._find_version = find_version
        self._on_started = on_started
        self._batcher: Batcher[StartRequest, Answer | OrbitError] = Batcher(
            "instance_start", self._run, size=lambda request: len(dumps(request.input))
        )

    def start(self, request: StartRequest) -> Answer:
        """Start one instance, or give the answer of the start that this is a replay of.

        Raises NotFound for an unknown workflow or version, StateConflict for one that takes no starts, InvalidRequest
        naming the place where the input does not fit, PayloadTooLarge, IdempotencyConflict, Unavailable.
        """
        outcome = self._batcher.submit(request)
        if isinstance(outcome, OrbitError):
            raise outcome
        return outcome

    def stop(self) -> None:
        """Finish what waits, then end."""
        self._batcher.stop()

    def _run(self, requests: Sequence[StartRequest]) -> list[Answer | OrbitError]:
        outcomes, due_in = self._database.transaction(lambda tx: self._start_all(tx, requests))
        if due_in is not None:
            self._on_started(due_in)
        return outcomes

    def _start_all(
        self, tx: Transaction, requests: Sequence[StartRequest]
    ) -> tuple[list[Answer | OrbitError], Micros | None]:
        starts = [_Start(request, request.command.receipt_id()) for request in requests]
        self._replay(tx, starts)
        versions: dict[tuple[bytes, str, int | None], VersionToStart] = {}
        for start in starts:
            if start.outcome is None and start.twin_of is None:
                self._check(tx, start, versions)
        new = [start for start in starts if start.outcome is None and start.twin_of is None]
        due_in = self._insert(tx, new) if new else None
        return [_outcome(start) for start in starts], due_in

    def _replay(self, tx: Transaction, starts: Sequence[_Start]) -> None:
        found = receipts_find(tx, list({start.receipt_id for start in starts}))
        first: dict[bytes, _Start] = {}
        for start in starts:
            receipt = found.get(start.receipt_id)
            if receipt is not None:
                start.outcome = _replayed(receipt, start.request)
            elif start.receipt_id in first:
                start.twin_of = first[start.receipt_id]
            else:
                first[start.receipt_id] = start

    def _check(
        self, tx: Transaction, start: _Start, versions: dict[tuple[bytes, str, int | None], VersionToStart]
    ) -> None:
        """Find the version (once for a batch) and check the input; a refusal becomes the outcome."""
        request = start.request
        namespace_id = request.command.namespace_id
        wanted = (namespace_id, request.workflow, request.version)
        try:
            if wanted not in versions:
                versions[wanted] = self._find_version(tx, *wanted)
            version, start.warning = versions[wanted]
            flow = self._advancer.flows.get(tx, namespace_id, request.workflow, version)
            start.input = with_defaults(flow.graph.input_schema, request.input)
            check_input(flow, start.input)
            if request.signal is not None:
                check_size(request.signal.payload, pointer="/signal/payload")
                check_message(flow, request.signal, pointer="/signal")
        except OrbitError as error:
            if error.retryable:
                raise
            start.outcome = error
            return
        start.flow = flow
        start.origin = Origin(
            namespace_id=namespace_id,
            workflow=request.workflow,
            version=version,
            started_by=request.started_by,
            labels=request.labels,
            queues=request.queues,
            traceparent=request.traceparent,
            format=self._advancer.formats.to_write(tx),
        )

    def _insert(self, tx: Transaction, starts: Sequence[_Start]) -> Micros | None:
        admit(tx, [entrant for start in starts if (entrant := _entrant(start)) is not None])
        now = tx.now()
        works = [_work(start, now) for start in starts]
        receipts = []
        for start, work in zip(starts, works, strict=True):
            answer: dict[str, Json] = {"instance": instance_json(work.stored)}
            if start.warning is not None:
                answer["warnings"] = [start.warning]
            start.outcome = Answer(work.instance.id, answer, deduplicated=False)
            command = start.request.command
            receipts.append(
                Receipt(start.receipt_id, command.namespace_id, command.meaning, work.instance.id, dumps(answer), now)
            )
        receipts_insert(tx, receipts)
        signals_insert(
            tx,
            [
                first_signal(start.request.signal, work.stored)
                for start, work in zip(starts, works, strict=True)
                if start.request.signal is not None
            ],
        )
        self._advancer.run(tx, works, now=now)
        for work in works:
            if work.broken is not None:
                # The whole batch is rolled back; the batcher splits it, so that only this start fails.
                raise work.broken
        due_at = next_due(works)
        return None if due_at is None else due_at - now


def check_input(flow: Flow, value: Json) -> None:
    """Check an input against the workflow's schema; raises InvalidRequest naming the place, or PayloadTooLarge."""
    if len(dumps(value)) > VALUE_BYTES_MAX:
        message = f"the input is larger than {VALUE_BYTES_MAX} bytes: keep it elsewhere and pass a reference"
        raise PayloadTooLarge(message, pointer="/input")
    failure = schema_failure(flow.input_validator.iter_errors(value), "INVALID_REQUEST", "the input")
    if failure is not None:
        assert failure.details is not None
        first = failure.details["violations"][0]
        refusal = InvalidRequest(failure.message, pointer="/input" + first["pointer"])
        refusal.details = {**(refusal.details or {}), **failure.details}
        raise refusal


def _entrant(start: _Start) -> Entrant | None:
    """Say what a start has to settle about its business key; None if its workflow does not care."""
    assert start.flow is not None
    request, names = start.request, start.flow.signals
    if request.business_key is None or not names:
        return None
    key = BusinessKey(request.command.namespace_id, request.workflow, request.business_key)
    return Entrant(key, start.instance_id, frozenset(names))


def _work(start: _Start, now: Micros) -> Work:
    assert start.flow is not None
    assert start.origin is not None
    deadline_at = now + seconds(start.flow.graph.timeout_seconds)
    instance = Instance(
        id=start.instance_id,
        state=InstanceState.RUNNING,
        revision=0,
        started_at=now,
        deadline_at=deadline_at,
        business_key=start.request.business_key,
    )
    work = Work(Stored(start.origin, instance), start.flow, [Started()], is_new=True)
    work.values[INPUT] = work.kept[INPUT] = start.input
    return work


def _replayed(receipt: Receipt, request: StartRequest) -> Answer | OrbitError:
    try:
        return Answer(receipt.subject_id, replayed(receipt, request.command.meaning), deduplicated=True)
    except IdempotencyConflict as conflict:
        return conflict


def _outcome(start: _Start) -> Answer | OrbitError:
    first = start.twin_of
    if first is None:
        assert start.outcome is not None
        return start.outcome
    assert first.outcome is not None
    if isinstance(first.outcome, OrbitError):
        return first.outcome
    if first.request.command.meaning != start.request.command.meaning:
        return IdempotencyConflict()
    return Answer(first.outcome.subject_id, first.outcome.data, deduplicated=True)
