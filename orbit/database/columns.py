"""Column types that mean the same on MySQL, MariaDB and SQLite. Every text column is binary utf8mb4: no folding."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Integer, LargeBinary, String, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

_BINARY_TEXT = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}

ID_BYTES = 16
HASH_BYTES = 32


def identifier() -> TypeEngine[bytes]:
    """Hold a UUIDv7: BINARY(16)."""
    return LargeBinary(ID_BYTES).with_variant(mysql.BINARY(ID_BYTES), "mysql", "mariadb")


def digest() -> TypeEngine[bytes]:
    """Hold a SHA-256 hash: BINARY(32)."""
    return LargeBinary(HASH_BYTES).with_variant(mysql.BINARY(HASH_BYTES), "mysql", "mariadb")


def exact_key(length: int) -> TypeEngine[bytes]:
    """Hold a caller's own look-up bytes: VARBINARY, so that no trailing space is lost in comparisons."""
    return LargeBinary(length).with_variant(mysql.VARBINARY(length), "mysql", "mariadb")


def instant() -> TypeEngine[int]:
    """Hold microseconds since the Unix epoch, UTC: BIGINT."""
    return BigInteger()


def counter() -> TypeEngine[int]:
    """Hold a count or a span in microseconds: BIGINT (INTEGER on SQLite, where every integer has 64 bits)."""
    return BigInteger()


def small_int() -> TypeEngine[int]:
    """Hold a small number: INT."""
    return Integer()


def flag() -> TypeEngine[bool]:
    """Hold true or false: TINYINT(1)."""
    return Boolean(create_constraint=False)


def word(length: int) -> TypeEngine[str]:
    """Hold a name, state or code of at most `length` characters."""
    return String(length).with_variant(mysql.VARCHAR(length, **_BINARY_TEXT), "mysql", "mariadb")


def text() -> TypeEngine[str]:
    """Hold text of up to 16 MiB."""
    return Text().with_variant(mysql.MEDIUMTEXT(**_BINARY_TEXT), "mysql", "mariadb")


def payload() -> TypeEngine[bytes]:
    """Hold JSON as the UTF-8 bytes that were sent: MEDIUMBLOB, never a JSON column, which would change numbers."""
    return LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")
