"""What a start has to settle before its instance exists: its business key, limits, the signals that wait for the key.

Only workflows that care are asked: those with a policy for keys, with a limit, or that wait for signals. All others pay
one read for the namespace's own limit. The locks are those of keys, then of limits, then of an instance that is given
back; whoever ends an instance needs none of the first two.

The surprising rule: a key's row is locked even if nothing waits there, so that a signal which is sent at the same time
is either seen here or finds the instance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from definitions.graph import KeyPolicy
from engine.store.business_keys import BusinessKey, business_keys_lock, business_keys_use
from engine.store.instances import Stored, instance_lock, instances_of_keys, instances_read
from engine.store.limits import (
    WHOLE_NAMESPACE,
    limit_lock,
    limits_of_namespaces,
    running_count,
    running_insert,
)
from engine.store.signals import signals_adopt, signals_of_keys
from orbit.errors import BusinessKeyInUse, OrbitError, TooManyRunning
from orbit.ids import to_hex

if TYPE_CHECKING:
    from orbit.database import Transaction

# Which limits count an instance, as `weave_instance.counted` has it.
BY_WORKFLOW, BY_NAMESPACE = 1, 2


@dataclass(frozen=True, slots=True)
class Entrant:
    """A start: the id that its instance will have, and what its version asks of starts.

    `key` is None without a business key, or where nobody cares for it; `takes` are the names of signals that it waits
    for. `has_signal` says that an instance that is given back gets a signal.
    """

    namespace_id: bytes
    workflow: str
    instance_id: bytes
    key: BusinessKey | None = None
    policy: KeyPolicy = KeyPolicy.ALLOW
    takes: frozenset[str] = frozenset()
    max_running: int | None = None
    has_signal: bool = False


@dataclass(frozen=True, slots=True)
class Admitted:
    """The instance may begin; `counted` says which limits count it."""

    counted: int = 0


@dataclass(frozen=True, slots=True)
class Existing:
    """There is an unfinished instance with the key, which the start gives instead; locked if it gets a signal."""

    stored: Stored


Verdict = Admitted | Existing | OrbitError


def admit(tx: Transaction, entrants: Sequence[Entrant]) -> list[Verdict]:
    """Judge starts, in order; no two of them have the same key. What is admitted is noted as if it had begun."""
    keyed = [entrant for entrant in entrants if entrant.key is not None]
    verdicts: dict[bytes, Verdict] = {entrant.instance_id: Admitted() for entrant in entrants}
    if keyed:
        verdicts |= _judge_keys(tx, keyed)
    _judge_limits(tx, [entrant for entrant in entrants if verdicts[entrant.instance_id] == Admitted()], verdicts)
    begun = [entrant for entrant in keyed if isinstance(verdicts[entrant.instance_id], Admitted)]
    if begun:
        business_keys_use(tx, {_address(entrant): entrant.instance_id for entrant in begun})
        adopt(tx, [entrant for entrant in begun if entrant.takes])
    return [verdicts[entrant.instance_id] for entrant in entrants]


def decide_key(policy: KeyPolicy, last: Stored | None) -> Admitted | Existing | BusinessKeyInUse:
    """Say what a policy makes of the last instance that was started with a key."""
    if policy is KeyPolicy.ALLOW or last is None:
        return Admitted()
    is_running = last.instance.finished_at is None
    if policy is KeyPolicy.RETURN_RUNNING:
        return Existing(last) if is_running else Admitted()
    if policy is KeyPolicy.REJECT_RUNNING and not is_running:
        return Admitted()
    what = "runs" if is_running else "has run"
    message = f"an instance with this business key {what} already, and the workflow takes one only"
    details = {"instance_id": to_hex(last.instance.id), "state": last.instance.state.value}
    return BusinessKeyInUse(message, details=details)


def ended_places(stored: Stored) -> list[tuple[bytes, str, bytes]]:
    """Name the places that an instance gives back when it ends."""
    origin, identifier = stored.origin, stored.instance.id
    places = []
    if origin.counted & BY_WORKFLOW:
        places.append((origin.namespace_id, origin.workflow, identifier))
    if origin.counted & BY_NAMESPACE:
        places.append((origin.namespace_id, WHOLE_NAMESPACE, identifier))
    return places


def _address(entrant: Entrant) -> bytes:
    assert entrant.key is not None, "only starts with a key are asked for it"
    return entrant.key.address


def _judge_keys(tx: Transaction, keyed: Sequence[Entrant]) -> dict[bytes, Verdict]:
    last = dict(business_keys_lock(tx, [entrant.key for entrant in keyed if entrant.key is not None]))
    strict = [entrant for entrant in keyed if entrant.policy is not KeyPolicy.ALLOW]
    if not strict:
        return {}
    known = instances_read(tx, [found for entrant in strict if (found := last[_address(entrant)]) is not None])
    fresh = _first_looks(tx, [entrant for entrant in strict if last[_address(entrant)] is None])
    verdicts: dict[bytes, Verdict] = {}
    for entrant in strict:
        identifier = last[_address(entrant)]
        former = fresh.get(_address(entrant)) if identifier is None else known.get(identifier)
        verdict = decide_key(entrant.policy, former)
        if isinstance(verdict, Existing) and entrant.has_signal:
            # Nothing but its lock keeps it from ending before it has the signal.
            verdict = decide_key(entrant.policy, instance_lock(tx, entrant.namespace_id, verdict.stored.instance.id))
        verdicts[entrant.instance_id] = verdict
    return verdicts


def _first_looks(tx: Transaction, entrants: Sequence[Entrant]) -> Mapping[bytes, Stored]:
    """Find instances of keys that have a row only now, by address: those of versions that did not care.

    An unfinished one counts before the newest.
    """
    wanted = {(key.namespace_id, key.key) for entrant in entrants if (key := entrant.key) is not None}
    found: dict[bytes, Stored] = {}
    for stored in instances_of_keys(tx, sorted(wanted)):
        assert stored.instance.business_key is not None
        key = BusinessKey(stored.origin.namespace_id, stored.origin.workflow, stored.instance.business_key)
        former = found.get(key.address)
        if former is None or (former.instance.finished_at is not None and stored.instance.finished_at is None):
            found[key.address] = stored
    return found


def _judge_limits(tx: Transaction, entrants: Sequence[Entrant], verdicts: dict[bytes, Verdict]) -> None:
    """Grant the room that limits leave, in the order of the starts, and count what is granted."""
    if not entrants:
        return
    own = limits_of_namespaces(tx, sorted({entrant.namespace_id for entrant in entrants}))
    maxima = {(namespace_id, WHOLE_NAMESPACE): most for namespace_id, most in own.items()}
    for entrant in entrants:
        if entrant.max_running is not None:
            # Of several versions in one batch each start obeys its own, below; the count must reach the highest.
            scope = (entrant.namespace_id, entrant.workflow)
            maxima[scope] = max(entrant.max_running, maxima.get(scope, 0))
    if not maxima:
        return
    running: dict[tuple[bytes, str], int] = defaultdict(int)
    for namespace_id, workflow in sorted(maxima):
        limit_lock(tx, namespace_id, workflow)
        most = maxima[namespace_id, workflow]
        running[namespace_id, workflow] = running_count(tx, namespace_id, workflow, at_most=most)
    counted = []
    for entrant in entrants:
        scopes = _scopes(entrant, own)
        full = next((scope for scope, most, _ in scopes if running[scope] >= most), None)
        if full is not None:
            whose = "the namespace" if full[1] == WHOLE_NAMESPACE else f"workflow {entrant.workflow}"
            verdicts[entrant.instance_id] = TooManyRunning(f"{whose} has as many running instances as it may have")
            continue
        for scope, _, _ in scopes:
            running[scope] += 1
            counted.append((*scope, entrant.instance_id))
        verdicts[entrant.instance_id] = Admitted(sum(bit for _, _, bit in scopes))
    running_insert(tx, counted)


def _scopes(entrant: Entrant, own: Mapping[bytes, int]) -> list[tuple[tuple[bytes, str], int, int]]:
    """List the limits over a start: what they count, how much, and their bit."""
    scopes = []
    if entrant.max_running is not None:
        scopes.append(((entrant.namespace_id, entrant.workflow), entrant.max_running, BY_WORKFLOW))
    if entrant.namespace_id in own:
        scopes.append(((entrant.namespace_id, WHOLE_NAMESPACE), own[entrant.namespace_id], BY_NAMESPACE))
    return scopes


def adopt(tx: Transaction, entrants: Sequence[Entrant]) -> None:
    """Give instances the signals that wait for their keys, which are locked."""
    takers = {_address(entrant): entrant for entrant in entrants}
    waiting = signals_of_keys(tx, sorted(takers))
    if not waiting:
        return
    now = tx.now()
    signals_adopt(
        tx,
        [
            (signal.id, taker.instance_id)
            for signal in waiting
            if signal.name in (taker := takers[signal.waits_for or b""]).takes and signal.expires_at > now
        ],
    )
