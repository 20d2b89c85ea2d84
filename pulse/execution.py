"""What workers do with attempts, group-committed: one batcher an operation, each batch one transaction.

A caller's greenlet waits until COMMIT. The same code serves every connection of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from orbit.batcher import Batcher
from orbit.database import Pool
from pulse.lease import Held, Progress, RenewOutcome, Resumed, Verdict, progress, release, renew, resume
from pulse.listener import BacklogShort, FollowLater, TaskFollower
from pulse.report import Report, ReportOutcome, report
from pulse.start import KeysFirst, StartCode, StartItem, StartOutcome, start

if TYPE_CHECKING:
    from orbit.database import Database, Transaction
    from pulse.sessions import Session
    from pulse.settle import Surroundings

ItemT = TypeVar("ItemT")
OutcomeT = TypeVar("OutcomeT")


class Execution:
    """Start, renew, report, release and progress of attempts, for all sessions of this node."""

    def __init__(self, database: Database, around: Surroundings) -> None:
        self._database = database
        self._around = around
        self.follower: TaskFollower | None = None  # registered by the composition root
        self.starts: Batcher[StartItem, StartOutcome] = Batcher("start", self._start)
        self.renewals: Batcher[Held, RenewOutcome] = Batcher("renew", self._batch(renew))
        self.reports: Batcher[Report, ReportOutcome] = Batcher("report", self._report, size=_report_bytes, lanes=2)
        self.releases: Batcher[Held, bool] = Batcher("release", self._batch(lambda tx, b: release(tx, b, around)))
        self.progresses: Batcher[Progress, None] = Batcher("progress", self._batch(_progress))

    def _batch(
        self, work: Callable[[Transaction, Sequence[ItemT]], Sequence[OutcomeT]]
    ) -> Callable[[Sequence[ItemT]], Sequence[OutcomeT]]:
        def run(batch: Sequence[ItemT]) -> Sequence[OutcomeT]:
            return self._run(lambda tx: work(tx, batch))

        return run

    def _start(self, batch: Sequence[StartItem]) -> Sequence[StartOutcome]:
        """Grant or refuse Starts, at first without the keys' locks, which hardly any batch needs."""
        try:
            return self._run(lambda tx: start(tx, batch, self._around, with_keys=False))
        except KeysFirst:
            return self._run(lambda tx: start(tx, batch, self._around))

    def _report(self, batch: Sequence[Report]) -> Sequence[ReportOutcome]:
        """Record results, and let owners go on in the same transaction where that can be."""
        follower = self.follower
        if follower is not None and follower.is_willing():
            try:
                return self._run(lambda tx: report(tx, batch, self._around, follower))
            except BacklogShort:
                follower.gave_up()
            except FollowLater:
                pass
        return self._run(lambda tx: report(tx, batch, self._around))

    def _run(self, work: Callable[[Transaction], Sequence[OutcomeT]]) -> Sequence[OutcomeT]:
        return self._database.transaction(work, pool=Pool.DISPATCH)

    def stop(self) -> None:
        """Finish what is under way in every batcher."""
        for batcher in (self.starts, self.renewals, self.reports, self.releases, self.progresses):
            batcher.stop()

    def start(self, session: Session, items: Sequence[StartItem]) -> list[StartOutcome]:
        """Ask for Starts; one outcome for each item, in order, after COMMIT."""
        session.answered([item.attempt_id for item in items])
        outcomes = self.starts.submit_many(items)
        gone = [
            item.attempt_id
            for item, outcome in zip(items, outcomes, strict=True)
            if not outcome.granted and outcome.code not in {StartCode.RATE_LIMITED, StartCode.ALREADY_STARTED}
        ]
        session.drop(gone)
        return outcomes

    def renew(self, session: Session, items: Sequence[Held]) -> list[RenewOutcome]:
        """Extend leases; one outcome for each item, in order, after COMMIT."""
        outcomes = self.renewals.submit_many(items)
        session.drop([outcome.attempt_id for outcome in outcomes if outcome.lease_micros is None])
        return outcomes

    def report(self, session: Session, reports: Sequence[Report]) -> list[ReportOutcome]:
        """Record results; one outcome for each, in order, after COMMIT."""
        session.answered([])
        outcomes = self.reports.submit_many(reports)
        session.drop([item.attempt_id for item in reports])
        return outcomes

    def release(self, session: Session, items: Sequence[Held]) -> list[bool]:
        """Give back what was not started; one answer for each item, in order, after COMMIT."""
        session.answered([])
        outcomes = self.releases.submit_many(items)
        session.drop([item.attempt_id for item in items])
        return outcomes

    def give_back(self, items: Sequence[Held]) -> None:
        """Undo claims whose session has gone."""
        self.releases.submit_many(items)

    def progress(self, items: Sequence[Progress]) -> None:
        """Keep the last progress of attempts."""
        self.progresses.submit_many(items)

    def resume(self, session: Session, items: Sequence[Held]) -> list[Resumed]:
        """Move a reconnected worker's attempts to its new session; one verdict for each, in order."""
        if not items:
            return []
        verdicts = self._database.transaction(lambda tx: resume(tx, session.id, items), pool=Pool.DISPATCH)
        for verdict in verdicts:
            if verdict.verdict in {Verdict.HELD, Verdict.START_AGAIN}:
                session.hold(verdict.attempt_id, b"", has_answered=True)
        return verdicts


def _progress(tx: Transaction, batch: Sequence[Progress]) -> list[None]:
    # Of several reports of one attempt in a batch the last one counts.
    progress(tx, list({item.held.attempt_id: item for item in batch}.values()))
    return [None] * len(batch)


def _report_bytes(item: Report) -> int:
    return 256 + len(item.output or b"")
