"""Access to MySQL, MariaDB and SQLite: transactions, retries, column types and the one clock."""

from orbit.database.clock import DatabaseClock
from orbit.database.connect import ConnectionLimits
from orbit.database.database import Database, Pool
from orbit.database.failures import RunAgain, is_passing
from orbit.database.schema import TABLE_OPTIONS, metadata
from orbit.database.transaction import Transaction

__all__ = [
    "TABLE_OPTIONS",
    "ConnectionLimits",
    "Database",
    "DatabaseClock",
    "Pool",
    "RunAgain",
    "Transaction",
    "is_passing",
    "metadata",
]
