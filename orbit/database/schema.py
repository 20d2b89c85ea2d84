"""The metadata that all tables belong to; they are declared in each package's `tables.py`, and revisions make them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import MetaData

# Names are given so that a migration can name what it drops, on every database.
metadata = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s",
        "uq": "%(table_name)s_%(column_0_N_name)s_unique",
        "ck": "%(table_name)s_%(constraint_name)s",
        "pk": "%(table_name)s_pk",
    }
)

# Every table on MySQL: transactional, four-byte characters, binary comparison.
TABLE_OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
