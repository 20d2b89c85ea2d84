"""Measures how late a task reaches a worker, by listening to what the dispatcher hands out.

The figure is taken from the assignment itself, whose spans were made on the database's clock: no node's clock is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pulse.claim import Assignment
from pulse.dispatch import Dispatcher
from pulse.sessions import CancelNotice, Outbox, Session, SessionHello


class MeasuredDispatcher:
    """The dispatcher, with every session's outbox measured. `observe` gets seconds from due to handed out."""

    def __init__(self, dispatcher: Dispatcher, observe: Callable[[float], None]) -> None:
        self._dispatcher = dispatcher
        self._observe = observe

    def attach(self, hello: SessionHello, outbox: Outbox) -> Session:
        """Record a worker's connection."""
        return self._dispatcher.attach(hello, _MeasuredOutbox(outbox, self._observe))

    def open(self, session: Session) -> None:
        """Let a session get tasks."""
        self._dispatcher.open(session)

    def detach(self, session: Session) -> None:
        """Forget a connection that ended."""
        self._dispatcher.detach(session)

    def capacity(self, session: Session, capacity: int) -> None:
        """Set a session's declared room."""
        self._dispatcher.capacity(session, capacity)


class _MeasuredOutbox:
    def __init__(self, outbox: Outbox, observe: Callable[[float], None]) -> None:
        self._outbox = outbox
        self._observe = observe

    def has_room(self) -> bool:
        """Say whether the way is free enough for another batch."""
        return self._outbox.has_room()

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Measure, then hand out."""
        for assignment in assignments:
            task = assignment.task
            handed_out_at = task.deadline_at - assignment.deadline_in_micros
            self._observe(max(0, handed_out_at - max(task.accepted_at, task.available_at)) / 1_000_000)
        self._outbox.assign(assignments)

    def cancel(self, notices: Sequence[CancelNotice]) -> None:
        """Ask for attempts to be stopped."""
        self._outbox.cancel(notices)

    def drain(self, spread_ms: int) -> None:
        """Say that this node goes away."""
        self._outbox.drain(spread_ms)
