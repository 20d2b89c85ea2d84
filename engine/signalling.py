"""Send signals: stored under the lock of whom they are for, delivered by a stimulus, each identity once.

A signal is for an instance, or for whatever instance of a workflow has a business key; if none has it yet, the signal
is kept until one is started. Which wait takes it is decided by `engine.signals`.

The surprising rule: a signal that its instance could never take (no wait has its name, or none accepts its payload) is
refused here, so that its sender learns of it; one that comes before its instance is judged by the default version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from definitions.hints import did_you_mean
from definitions.limits import VALUE_BYTES_MAX
from engine.control import MISSING, conflict
from engine.flow import Flow
from engine.hiding import Hiding, payload_shown
from engine.ports import Flows, VersionFinder, hiding_known
from engine.scope import schema_failure
from engine.states import INSTANCE_TERMINAL, SignalState
from engine.stimulus import SignalReceived
from engine.store.business_keys import BusinessKey, business_keys_lock
from engine.store.instances import Stored, instance_find, instance_lock, instances_open
from engine.store.signals import (
    StoredSignal,
    signal_find,
    signals_count,
    signals_forget,
    signals_insert,
    signals_list,
    signals_of_keys,
)
from engine.store.stimuli import stimuli_insert
from orbit.canonical import canonical
from orbit.clock import SECOND, Micros, to_rfc3339
from orbit.errors import (
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    StateConflict,
    TooManySignals,
    Unavailable,
)
from orbit.idempotency import Answer, Command, Made, once
from orbit.ids import new_id, to_hex
from orbit.jsontext import Json, dumps, parse
from orbit.store.journal import Actor, AuditRecord, EventRecord, audit_insert, events_insert

if TYPE_CHECKING:
    from orbit.database import Database, Transaction

STORED_MAX = 1_000  # signals of one instance, over its whole life
KEPT_MAX = 100  # of them, those that no wait has taken; also those that are kept for one business key
LIVES_MICROS_DEFAULT: Micros = 7 * 86_400 * SECOND
LIVES_MICROS_MAX: Micros = 366 * 86_400 * SECOND
FORGOTTEN_AT_ONCE = 20

assert KEPT_MAX <= STORED_MAX, "what is kept is stored"


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent: `signal` is what its sender calls it, the same again is the same signal."""

    name: str
    payload: Json
    signal: str
    lives_micros: Micros = LIVES_MICROS_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """A message on its way to an instance, or with `business_key` to a workflow; `queues` is the sender's range."""

    command: Command
    actor: Actor
    message: Message
    instance_id: bytes | None = None
    workflow: str = ""
    business_key: str | None = None
    queues: frozenset[str] | None = None


class Signals:
    """The signals of a node. `wake` is the local runner's."""

    def __init__(self, database: Database, flows: Flows, find_version: VersionFinder, wake: Callable[[], None]) -> None:
        self._database = database
        self._flows = flows
        self._find_version = find_version
        self._wake = wake

    def signal_send(self, sending: Sending) -> Answer:
        """Store a signal, or give the answer of the one that this repeats.

        Raises NotFound for an instance or workflow that is not there or out of range, StateConflict for an instance
        that has ended or a business key that several unfinished ones have, InvalidRequest for what nobody could take,
        PayloadTooLarge, TooManySignals, IdempotencyConflict.
        """
        check_size(sending.message.payload, pointer="/payload")
        send = self._to_key if sending.instance_id is None else self._to_instance
        return self._database.transaction(lambda tx: once(tx, sending.command, lambda: send(tx, sending)))

    def signals_of_instance(self, namespace_id: bytes, instance_id: bytes) -> list[Json]:
        """List an instance's signals, the earliest first. Raises NotFound."""

        def read(tx: Transaction) -> list[Json]:
            stored = instance_find(tx, namespace_id, instance_id)
            if stored is None:
                raise NotFound(MISSING)
            has_ended = stored.instance.state in INSTANCE_TERMINAL
            hiding = hiding_known(tx, self._flows, stored)
            now = tx.now()
            return [signal_json(hiding, each, now=now, has_ended=has_ended) for each in signals_list(tx, instance_id)]

        return self._database.transaction(read)

    def signals_of_key(self, key: BusinessKey) -> list[Json]:
        """List what is kept for a business key that no instance has yet, the earliest first."""

        def read(tx: Transaction) -> list[Json]:
            found = signals_of_keys(tx, [key.address])
            hiding = self._default_hiding(tx, key) if found else None
            now = tx.now()
            return [signal_json(hiding, each, now=now, has_ended=False) for each in found]

        return self._database.transaction(read)

    def _to_instance(self, tx: Transaction, sending: Sending) -> Made:
        assert sending.instance_id is not None
        stored = instance_lock(tx, sending.command.namespace_id, sending.instance_id)
        if stored is None:
            raise NotFound(MISSING)
        flow = self._flow_of(tx, stored)
        _check_range(flow, sending, MISSING)
        identity = identity_of(b"instance", sending.instance_id, sending.message)
        known = _known(tx, identity, sending.message)
        return known or self._store(tx, sending, identity, (stored, flow))

    def _to_key(self, tx: Transaction, sending: Sending) -> Made:
        assert sending.business_key is not None
        key = BusinessKey(sending.command.namespace_id, sending.workflow, sending.business_key)
        business_keys_lock(tx, [key])
        identity = identity_of(b"key", key.address, sending.message)
        known = _known(tx, identity, sending.message)
        if known is not None:
            return known
        found = self._addressee(tx, key, sending)
        if found is not None:
            return self._store(tx, sending, identity, found)
        version = self._find_version(tx, key.namespace_id, key.workflow, None)
        default = self._flows.get(tx, key.namespace_id, key.workflow, version.number)
        _check_range(default, sending, f"workflow {key.workflow} is not published")
        check_message(default, sending.message)
        waiting = signals_of_keys(tx, [key.address])
        now = tx.now()
        if sum(signal.expires_at > now for signal in waiting) >= KEPT_MAX:
            raise TooManySignals(f"{KEPT_MAX} signals wait for this business key already")
        signals_forget(tx, now=now, limit=FORGOTTEN_AT_ONCE)
        return _keep(tx, sending, _row(sending, identity, None, key.address, now))

    def _addressee(self, tx: Transaction, key: BusinessKey, sending: Sending) -> tuple[Stored, Flow] | None:
        """Find and lock the one unfinished instance that can take a signal by its business key."""
        found = []
        for stored in instances_open(tx, key.namespace_id, key.workflow, key.key):
            flow = self._flow_of(tx, stored)
            if sending.message.name in flow.signals:
                _check_range(flow, sending, MISSING)
                found.append((stored, flow))
        if len(found) > 1:
            ids: Json = [to_hex(stored.instance.id) for stored, _ in found]
            message = "several unfinished instances have this business key: signal one of them by its id"
            raise StateConflict(message, details={"instance_ids": ids})
        if not found:
            return None
        locked = instance_lock(tx, key.namespace_id, found[0][0].instance.id)
        if locked is None or locked.instance.state in INSTANCE_TERMINAL:
            return None  # it has ended meanwhile: the signal is for the next one
        return locked, found[0][1]

    def _store(self, tx: Transaction, sending: Sending, identity: bytes, to: tuple[Stored, Flow]) -> Made:
        stored, flow = to
        instance = stored.instance
        if instance.state in INSTANCE_TERMINAL:
            raise conflict(instance)
        check_message(flow, sending.message)
        now = tx.now()
        _check_room(tx, instance.id, now)
        to_origin = replace(sending, workflow=stored.origin.workflow)
        made = _keep(tx, to_origin, _row(to_origin, identity, instance.id, None, now), revision=instance.revision)
        stimuli_insert(tx, [(instance.id, SignalReceived(sending.message.name))])
        tx.after_commit(self._wake)
        return made

    def _default_hiding(self, tx: Transaction, key: BusinessKey) -> Hiding | None:
        """Give the masks of the version that a signal for nobody yet was judged by, None if there is none now."""
        try:
            version = self._find_version(tx, key.namespace_id, key.workflow, None)
            return self._flows.get(tx, key.namespace_id, key.workflow, version.number).hiding
        except (NotFound, StateConflict, Unavailable):
            return None

    def _flow_of(self, tx: Transaction, stored: Stored) -> Flow:
        origin = stored.origin
        return self._flows.get(tx, origin.namespace_id, origin.workflow, origin.version)


def check_size(payload: Json, *, pointer: str) -> None:
    """Raise PayloadTooLarge for a payload that a step's output could not be."""
    if len(dumps(payload)) > VALUE_BYTES_MAX:
        message = f"a signal's payload may have {VALUE_BYTES_MAX} bytes: keep it elsewhere and send a reference"
        raise PayloadTooLarge(message, pointer=pointer)


def check_message(flow: Flow, message: Message, *, pointer: str = "") -> None:
    """Raise InvalidRequest for a signal that no wait of a definition could take."""
    waits = flow.signals.get(message.name)
    if waits is None:
        graph = flow.graph
        hint = did_you_mean(message.name, flow.signals)
        said = f"version {graph.version} of {graph.workflow} waits for no signal {message.name}"
        raise InvalidRequest(said if hint is None else f"{said}: {hint}", pointer=f"{pointer}/name")
    failure = None
    for node in waits:
        validator = flow.output_validator(node)
        if validator is None:
            return
        errors = validator.iter_errors(message.payload)
        hidden = flow.hiding.masks.signals.get(message.name, ())
        failure = schema_failure(errors, "INVALID_REQUEST", "the payload", hidden=hidden)
        if failure is None:
            return
    assert failure is not None
    assert failure.details is not None
    refusal = InvalidRequest(failure.message, pointer=f"{pointer}/payload{failure.details['violations'][0]['pointer']}")
    refusal.details = {**(refusal.details or {}), **failure.details}
    raise refusal


def identity_of(kind: bytes, address: bytes, message: Message) -> bytes:
    """Name a signal by whom it is for and what its sender calls it."""
    return hashlib.sha256(b"\x00".join((kind, address, message.signal.encode()))).digest()


def meaning_of(message: Message) -> bytes:
    """Hash what a signal says."""
    return hashlib.sha256(canonical([message.name, message.payload])).digest()


def signal_json(hiding: Hiding | None, stored: StoredSignal, *, now: Micros, has_ended: bool) -> dict[str, Json]:
    """Write a signal with what may be shown of its payload; `has_ended` tells of its instance."""
    state = _state(stored, now=now, has_ended=has_ended)
    return {**_receipt(stored), "state": state, **_details(hiding, stored)}


def _state(stored: StoredSignal, *, now: Micros, has_ended: bool) -> str:
    if stored.taken_at is not None:
        return SignalState.TAKEN.value
    if stored.expires_at <= now:
        return SignalState.EXPIRED.value
    return SignalState.LEFT_OVER.value if has_ended else SignalState.KEPT.value


def _receipt(stored: StoredSignal) -> dict[str, Json]:
    return {
        "id": to_hex(stored.id),
        "instance_id": None if stored.instance_id is None else to_hex(stored.instance_id),
        "workflow": stored.workflow,
        "business_key": stored.business_key,
        "name": stored.name,
        "signal_id": stored.signal,
        "sent_at": to_rfc3339(stored.sent_at),
        "expires_at": to_rfc3339(stored.expires_at),
    }


def _details(hiding: Hiding | None, stored: StoredSignal) -> dict[str, Json]:
    return {
        "payload": payload_shown(hiding, stored.name, parse(stored.payload)),
        "sent_by": stored.sent_by,
        "taken_at": None if stored.taken_at is None else to_rfc3339(stored.taken_at),
        "step": stored.step,
    }


def _check_range(flow: Flow, sending: Sending, message: str) -> None:
    if sending.queues is not None and not flow.queues <= sending.queues:
        raise NotFound(message)


def _known(tx: Transaction, identity: bytes, message: Message) -> Made | None:
    """Find the signal that a sending repeats; raise IdempotencyConflict if it said something else."""
    known = signal_find(tx, identity)
    if known is None:
        return None
    if known.meaning != meaning_of(message):
        raise IdempotencyConflict
    return Made(known.id, {"signal": _receipt(known)})


def _row(
    sending: Sending, identity: bytes, instance_id: bytes | None, waits_for: bytes | None, now: Micros
) -> StoredSignal:
    row = signal_row(sending.message, sending.command.namespace_id, identity, sent_by=sending.actor.name, now=now)
    return replace(
        row,
        instance_id=instance_id,
        waits_for=waits_for,
        workflow=sending.workflow,
        business_key=sending.business_key,
    )


def _check_room(tx: Transaction, instance_id: bytes, now: Micros) -> None:
    counts = signals_count(tx, instance_id=instance_id, now=now)
    if counts.stored >= STORED_MAX or counts.waiting >= KEPT_MAX:
        said = f"the instance has had {counts.stored} signals (at most {STORED_MAX}), {counts.waiting} of them wait"
        raise TooManySignals(f"{said} (at most {KEPT_MAX})")


def signal_existing(tx: Transaction, message: Message, to: tuple[Stored, Flow], *, sent_by: str) -> None:
    """Give the signal of a start to the locked, unfinished instance that the start is answered with.

    Raises InvalidRequest, IdempotencyConflict, TooManySignals.
    """
    stored, flow = to
    check_message(flow, message, pointer="/signal")
    identity = identity_of(b"instance", stored.instance.id, message)
    if _known(tx, identity, message) is not None:
        return
    now = tx.now()
    _check_room(tx, stored.instance.id, now)
    row = signal_row(message, stored.origin.namespace_id, identity, sent_by=sent_by, now=now)
    signals_insert(tx, [replace(row, instance_id=stored.instance.id, workflow=stored.origin.workflow)])
    stimuli_insert(tx, [(stored.instance.id, SignalReceived(message.name))])


def first_signal(message: Message, stored: Stored) -> StoredSignal:
    """Make the row of a signal that a start carries."""
    instance, origin = stored.instance, stored.origin
    identity = identity_of(b"instance", instance.id, message)
    row = signal_row(message, origin.namespace_id, identity, sent_by=origin.started_by, now=instance.started_at)
    return replace(row, instance_id=instance.id, workflow=origin.workflow)


def signal_row(message: Message, namespace_id: bytes, identity: bytes, *, sent_by: str, now: Micros) -> StoredSignal:
    """Make a row that has no address yet."""
    return StoredSignal(
        id=new_id(),
        namespace_id=namespace_id,
        identity=identity,
        meaning=meaning_of(message),
        instance_id=None,
        waits_for=None,
        workflow="",
        business_key=None,
        name=message.name,
        signal=message.signal,
        payload=dumps(message.payload),
        sent_by=sent_by,
        sent_at=now,
        expires_at=now + message.lives_micros,
    )


def _keep(tx: Transaction, sending: Sending, row: StoredSignal, *, revision: int = 0) -> Made:
    """Store a signal with its event and its audit record."""
    signals_insert(tx, [row])
    receipt = _receipt(row)
    subject = row.id if row.instance_id is None else row.instance_id
    kind = "signal.kept" if row.instance_id is None else "instance.signalled"
    data = {"workflow": row.workflow, "signal": receipt["id"], "name": row.name, "signal_id": row.signal}
    event = EventRecord(row.namespace_id, kind, subject, revision, dumps(data).decode(), workflow=row.workflow)
    events_insert(tx, [event], now=row.sent_at)
    record = AuditRecord(
        namespace_id=row.namespace_id,
        actor=sending.actor,
        operation="signal.send",
        subject_kind="signal" if row.instance_id is None else "instance",
        subject_id=subject,
        reason=None,
        before=None,
        after=receipt,
    )
    audit_insert(tx, record, now=row.sent_at)
    return Made(row.id, {"signal": receipt})
