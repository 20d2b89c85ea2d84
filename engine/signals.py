"""Waits for signals, as the pure core sees them: which stored signal ends which wait.

A signal is stored first and matched later: when it comes, when a wait for its name is entered, or at the last moment of
a wait. Waits of one name take signals in the order in which they began, and each takes the earliest that it accepts. A
signal that does not fit a wait (its schema, its `accept_when`) is left for others and ends nothing.

The surprising rule: a wait whose bound has come looks once more, so a signal that was stored before its time-out fired
wins, whichever of the two the engine hears of first.
"""

from __future__ import annotations

from definitions.duration import format_duration
from definitions.graph import Node, SignalSpec
from engine.draft import Draft
from engine.instance import SIGNALS, Failure, Signal, Step
from engine.scope import ExpressionFailed, ValuesNeeded, condition, place_of
from engine.states import Control, StepReason, StepState
from engine.stimulus import SignalReceived
from orbit.clock import seconds, to_rfc3339

TIMED_OUT = "WAIT_TIMEOUT"


def enter(draft: Draft, node: Node, spec: SignalSpec) -> None:
    """Enter a wait for a signal; one that is stored already ends it at once."""
    due_at = draft.now + seconds(spec.timeout_seconds)
    step = draft.enter(node.id, StepState.WAITING, reason=StepReason.SIGNAL, due_at=due_at)
    draft.record("step.waiting", node.id, reason=StepReason.SIGNAL.value, signal=spec.signal, until=to_rfc3339(due_at))
    if draft.control is Control.ACTIVE:
        _look(draft, node, step)


def received(draft: Draft, stimulus: SignalReceived) -> None:
    """Take the news that a signal was stored."""
    draft.record("signal.received", None, name=stimulus.name)
    deliver(draft, stimulus.name)


def deliver(draft: Draft, name: str | None = None) -> None:
    """Let every wait for a name (None: for any) look at what is stored, in the order in which they began."""
    waiting = [step for step in draft.unfinished() if step.reason is StepReason.SIGNAL]
    for step in sorted(waiting, key=lambda step: step.entered_at):
        node = draft.flow.nodes[step.id]
        if name is None or signal_spec(node).signal == name:
            _look(draft, node, step)


def time_out(draft: Draft, node: Node, step: Step) -> None:
    """End a wait whose bound has come, unless a signal is there after all."""
    if _look(draft, node, step):
        return
    spec = signal_spec(node)
    if spec.continue_on_timeout:
        draft.decide(step.id, StepState.SUCCEEDED, reason=StepReason.WAIT_TIMED_OUT)
        draft.record("step.succeeded", step.id, timed_out=True)
        return
    left = sum(signal.name == spec.signal for signal in _stored(draft))
    message = f"no signal {spec.signal} came within {format_duration(spec.timeout_seconds)}"
    details = {"signal": spec.signal, "left_over": left}
    draft.fail(step.id, Failure(TIMED_OUT, message if not left else f"{message} that it accepts", details))


def _look(draft: Draft, node: Node, step: Step) -> bool:
    """Let a wait take the earliest stored signal that it accepts; tell whether there was one."""
    draft.stand_at(step.id)
    for signal in _stored(draft):
        if signal.name == signal_spec(node).signal and _accepts(draft, node, signal):
            draft.take_signal(signal, step)
            draft.record("signal.taken", step.id, name=signal.name, signal=signal.signal)
            draft.keep(step.id, signal.payload)
            draft.succeed(step.id)
            return True
    return False


def _accepts(draft: Draft, node: Node, signal: Signal) -> bool:
    validator = draft.flow.output_validator(node)
    if validator is not None and not validator.is_valid(signal.payload):
        return False
    accept_when = signal_spec(node).accept_when
    if accept_when is None:
        return True
    root = {"id": signal.signal, "payload": signal.payload, "sent_at": to_rfc3339(signal.sent_at)}
    try:
        return condition(draft, accept_when, place_of(node), more={"signal": root})
    except ExpressionFailed:
        return False  # whoever may send anything must not be able to break the instance


def _stored(draft: Draft) -> list[Signal]:
    """List what is stored and still alive, the earliest first. Raises ValuesNeeded."""
    if SIGNALS not in draft.values:
        raise ValuesNeeded(frozenset({SIGNALS}))
    return [signal for signal in draft.values[SIGNALS] if signal.expires_at > draft.now]


def signal_spec(node: Node) -> SignalSpec:
    """Give what a wait for a signal waits for."""
    assert isinstance(node.spec, SignalSpec), f"node {node.id} waits for no signal"
    return node.spec
