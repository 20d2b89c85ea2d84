"""What a driver's error means to us: try the whole transaction again, the database is away, or a bug.

The numbers are MySQL's and MariaDB's; the texts of SQLite's few cases are its own result names.
"""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy.exc import DBAPIError, IntegrityError

# 1213 deadlock and 1205 lock wait time-out (which alone rolls back one statement only: never go on after it),
# 3572 NOWAIT on MySQL, 1020 a row changed under MariaDB's snapshot isolation.
_CONTENDED = frozenset({1213, 1205, 3572, 1020})
_DUPLICATE = frozenset({1062})
# Gone, lost, refused, shutting down, read-only after a failover, too many connections, Galera not ready, time-out.
_AWAY = frozenset(
    {2002, 2003, 2006, 2013, 2014, 2055, 1053, 1290, 1836, 1040, 1047, 1158, 1159, 1160, 1161, 1927, 4031, 0}
)
_STATEMENT_TIME_OUT = frozenset({3024, 1969})


class RunAgain(Exception):
    """What was read without a lock had changed when it was locked: roll back and run the whole transaction again."""


class Failure(StrEnum):
    """How a failed transaction is dealt with."""

    CONTENDED = "CONTENDED"  # roll back, wait a little, run it all again
    DUPLICATE = "DUPLICATE"  # another transaction inserted the same key first: run it all again, now it is seen
    AWAY = "AWAY"  # the database can't be reached or can't write: try once more, then 503
    BUG = "BUG"  # ours


def classify(error: DBAPIError) -> Failure:
    """Say what a driver error means."""
    arguments = getattr(error.orig, "args", ())
    number = arguments[0] if arguments and isinstance(arguments[0], int) else None
    if number in _CONTENDED or number in _STATEMENT_TIME_OUT:
        return Failure.CONTENDED
    if number in _DUPLICATE or (isinstance(error, IntegrityError) and "UNIQUE" in str(error.orig)):
        return Failure.DUPLICATE
    if number in _AWAY or error.connection_invalidated:
        return Failure.AWAY
    if number is None and "locked" in str(error.orig):
        return Failure.CONTENDED
    return Failure.BUG


def is_passing(error: Exception) -> bool:
    """Tell whether the whole transaction is run again for an error, so that nothing in it may catch it."""
    return isinstance(error, RunAgain) or (isinstance(error, DBAPIError) and classify(error) is not Failure.BUG)
