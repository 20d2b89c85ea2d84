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

from msgspec.structs import replace

from definitions.graph import KeyPolicy, NodeKind
from definitions.limits import VALUE_BYTES_MAX
from definitions.registry import VersionToStart
from definitions.store import version_query
from engine.admission import Admitted, Entrant, Existing, admit
from engine.batch import Advancer, next_due
from engine.flow import Flow
from engine.instance import INPUT, Instance
from engine.ports import VersionFinder
from engine.scope import schema_failure
from engine.signalling import Message, check_message, check_size, first_signal, signal_existing
from engine.states import InstanceState
from engine.stimulus import Started
from engine.store.business_keys import BusinessKey
from engine.store.instances import Origin, Stored
from engine.store.limits import limits_query
from engine.store.signals import signals_insert
from engine.views import instance_json
from engine.work import Work
from orbit.batcher import Batcher
from orbit.canonical import compact
from orbit.clock import Micros, seconds
from orbit.database import Database
from orbit.errors import IdempotencyConflict, InvalidRequest, OrbitError, PayloadTooLarge
from orbit.idempotency import Answer, Command, replayed
from orbit.ids import new_id
from orbit.jsontext import Json
from orbit.schemas.soundness import with_defaults
from orbit.store.receipts import Receipt, receipts_find, receipts_insert, receipts_query

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
    pause_at: tuple[str, ...] = ()


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
            "instance_start", self._run, size=lambda request: len(compact(request.input))
        )

    def start(self, request: StartRequest) -> Answer:
        """Start one instance, or give the answer of the start that this is a replay of.

        Raises NotFound for an unknown workflow or version, StateConflict for one that takes no starts, InvalidRequest
        naming the place where the input does not fit, PayloadTooLarge, IdempotencyConflict, BusinessKeyInUse,
        TooManyRunning, Unavailable.
        """
        outcome = self._batcher.submit(request)
        if isinstance(outcome, OrbitError):
            raise outcome
        return outcome

    def check(self, tx: Transaction, request: StartRequest) -> None:
        """Refuse a request that could not be started now; raises as `start` does but for what runs already."""
        start = _Start(request, b"")
        self._check(tx, start, {})
        if isinstance(start.outcome, OrbitError):
            raise start.outcome

    def stop(self) -> None:
        """Finish what waits, then end."""
        self._batcher.stop()

    def _run(self, requests: Sequence[StartRequest]) -> list[Answer | OrbitError]:
        outcomes, due_in = self._database.transaction(lambda tx: self.start_all(tx, requests))
        if due_in is not None:
            self._on_started(due_in)
        return outcomes

    def start_all(
        self, tx: Transaction, requests: Sequence[StartRequest]
    ) -> tuple[list[Answer | OrbitError], Micros | None]:
        """Start instances in the given transaction; also say in how many microseconds the runner has to look."""
        starts = [_Start(request, request.command.receipt_id()) for request in requests]
        _read_ahead(tx, starts)
        self._replay(tx, starts)
        versions: dict[tuple[bytes, str, int | None], VersionToStart] = {}
        for start in starts:
            if start.outcome is None and start.twin_of is None:
                self._check(tx, start, versions)
        new = [start for start in starts if start.outcome is None and start.twin_of is None]
        dues = []
        while new:
            # Of starts with one business key each has to see what became of the one before it.
            now, new = _parted(new)
            dues += self._enter(tx, now)
        return [_outcome(start) for start in starts], min(dues, default=None)

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
            if request.business_key is None and flow.graph.starts.business_key_policy is not KeyPolicy.ALLOW:
                message = f"version {version} of {request.workflow} is one instance for each business key: give one"
                raise InvalidRequest(message, pointer="/business_key")
            _check_steps(flow, request.pause_at)
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

    def _enter(self, tx: Transaction, starts: Sequence[_Start]) -> list[Micros]:
        """Insert what is admitted and answer the rest; say in how many microseconds the runner should look."""
        admitted: list[_Start] = []
        dues: list[Micros] = []
        for start, verdict in zip(starts, admit(tx, [_entrant(start) for start in starts]), strict=True):
            match verdict:
                case Admitted(counted=counted):
                    assert start.origin is not None
                    if counted:
                        start.origin = replace(start.origin, counted=counted)
                    admitted.append(start)
                case Existing(stored=stored):
                    start.outcome = self._give_back(tx, start, stored)
                    dues.append(0)
                case OrbitError():
                    start.outcome = verdict
        due_in = self._insert(tx, admitted) if admitted else None
        return dues if due_in is None else [*dues, due_in]

    def _give_back(self, tx: Transaction, start: _Start, stored: Stored) -> Answer | OrbitError:
        """Answer a start with the unfinished instance that has its business key, and give that the start's signal."""
        request, origin = start.request, stored.origin
        try:
            if request.signal is not None:
                flow = self._advancer.flows.get(tx, origin.namespace_id, origin.workflow, origin.version)
                signal_existing(tx, request.signal, (stored, flow), sent_by=request.started_by)
        except OrbitError as error:
            return error
        answer: dict[str, Json] = {"instance": instance_json(stored), "existing": True}
        receipts_insert(tx, [_receipt(start, stored.instance.id, answer, tx.now())])
        return Answer(stored.instance.id, answer, deduplicated=False)

    def _insert(self, tx: Transaction, starts: Sequence[_Start]) -> Micros | None:
        now = tx.now()
        works = [_work(start, now) for start in starts]
        receipts = []
        for start, work in zip(starts, works, strict=True):
            answer: dict[str, Json] = {"instance": instance_json(work.stored)}
            if start.warning is not None:
                answer["warnings"] = [start.warning]
            start.outcome = Answer(work.instance.id, answer, deduplicated=False)
            receipts.append(_receipt(start, work.instance.id, answer, now))
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


def _read_ahead(tx: Transaction, starts: Sequence[_Start]) -> None:
    """Read in one round trip what most starts ask for; a batch of a few is made of little else than round trips."""
    namespaces = {start.request.command.namespace_id for start in starts}
    wanted = {(start.request.command.namespace_id, start.request.workflow, start.request.version) for start in starts}
    versions = [version_query(*each) for each in wanted]
    receipts = receipts_query({start.receipt_id for start in starts})
    tx.read_ahead([*versions, limits_query(namespaces), receipts])


def check_input(flow: Flow, value: Json) -> None:
    """Check an input against the workflow's schema; raises InvalidRequest naming the place, or PayloadTooLarge."""
    if len(compact(value)) > VALUE_BYTES_MAX:
        message = f"the input is larger than {VALUE_BYTES_MAX} bytes: keep it elsewhere and pass a reference"
        raise PayloadTooLarge(message, pointer="/input")
    errors = flow.input_validator.iter_errors(value)
    failure = schema_failure(errors, "INVALID_REQUEST", "the input", hidden=flow.hiding.masks.input)
    if failure is not None:
        assert failure.details is not None
        first = failure.details["violations"][0]
        refusal = InvalidRequest(failure.message, pointer="/input" + first["pointer"])
        refusal.details = {**(refusal.details or {}), **failure.details}
        raise refusal


def _check_steps(flow: Flow, steps: Sequence[str]) -> None:
    for index, step in enumerate(steps):
        node = flow.nodes.get(step)
        if node is None or node.kind is NodeKind.JOIN:
            raise InvalidRequest(f"the workflow has no step {step}", pointer=f"/pause_at/{index}")


def _receipt(start: _Start, instance_id: bytes, answer: Json, now: Micros) -> Receipt:
    command = start.request.command
    return Receipt(start.receipt_id, command.namespace_id, command.meaning, instance_id, compact(answer), now)


def _key_of(start: _Start) -> BusinessKey | None:
    """Give the business key of a start whose version cares for it."""
    assert start.flow is not None
    request, rules = start.request, start.flow.graph.starts
    cares = bool(start.flow.signals) or rules.business_key_policy is not KeyPolicy.ALLOW
    if request.business_key is None or not cares:
        return None
    return BusinessKey(request.command.namespace_id, request.workflow, request.business_key)


def _parted(starts: Sequence[_Start]) -> tuple[list[_Start], list[_Start]]:
    """Part the first start with each business key from those that have to wait for it."""
    first: list[_Start] = []
    later: list[_Start] = []
    seen: set[BusinessKey] = set()
    for start in starts:
        key = _key_of(start)
        if key is not None and key in seen:
            later.append(start)
            continue
        first.append(start)
        if key is not None:
            seen.add(key)
    return first, later


def _entrant(start: _Start) -> Entrant:
    assert start.flow is not None
    request, rules = start.request, start.flow.graph.starts
    return Entrant(
        namespace_id=request.command.namespace_id,
        workflow=request.workflow,
        instance_id=start.instance_id,
        key=_key_of(start),
        policy=rules.business_key_policy,
        takes=frozenset(start.flow.signals),
        max_running=rules.max_running,
        has_signal=request.signal is not None,
    )


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
        pause_at=frozenset(start.request.pause_at),
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
