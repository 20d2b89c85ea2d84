"""The server's settings that decide whether an acknowledged commit can be lost, and whether they are safe ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

if TYPE_CHECKING:
    from orbit.database.transaction import Transaction

# Setting → its safe value, and what another one allows. A setting that a server does not have is left out.
_SERVER = {
    "innodb_flush_log_at_trx_commit": ("1", "a crash of the machine may lose the last second of commits"),
    "sync_binlog": ("1", "a crash of the machine may lose commits that a replica or a backup would need"),
    "innodb_doublewrite": ("ON", "a torn page may be beyond recovery"),
    "rpl_semi_sync_source_enabled": ("ON", "a failover to a replica may lose acknowledged commits"),
    "rpl_semi_sync_master_enabled": ("ON", "a failover to a replica may lose acknowledged commits"),
}
# PRAGMA → its safe values as numbers or words, and what another one allows.
_EMBEDDED = {
    "synchronous": (frozenset({"2", "3"}), "a crash of the machine may lose the last commits"),
    "journal_mode": (frozenset({"wal", "delete"}), "a crash may damage the file"),
}


@dataclass(frozen=True, slots=True)
class DurabilitySetting:
    """A setting as it is; `risk` says what it allows, None if it is safe."""

    name: str
    value: str
    risk: str | None


def durability_read(tx: Transaction) -> list[DurabilitySetting]:
    """Read the settings of the server that this transaction runs on."""
    if tx.is_sqlite:
        found: dict[str, str] = {}
        for name in _EMBEDDED:
            row: Any = tx.row(text(f"PRAGMA {name}"))
            found[name] = str(row[0])
        return [
            DurabilitySetting(name, value, None if value.lower() in _EMBEDDED[name][0] else _EMBEDDED[name][1])
            for name, value in found.items()
        ]
    names = ", ".join(f"'{name}'" for name in _SERVER)
    rows: Sequence[Any] = tx.rows(text(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"))
    values = {str(row[0]): str(row[1]) for row in rows}
    return [
        DurabilitySetting(name, values[name], None if values[name] == safe else risk)
        for name, (safe, risk) in _SERVER.items()
        if name in values
    ]
