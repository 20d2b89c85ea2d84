"""Multiplies one waiting instance: the same rows as a start would have written, by the database's own copies of them.

Starting hundreds of thousands over HTTP would take longer than everything that is measured among them.
"""

import contextlib
import os

import pymysql
from sqlalchemy import make_url

# The tables in which a waiting instance has rows, and the column that names it.
OWNED = {
    "weave_instance": "id",
    "weave_step": "instance_id",
    "weave_value": "instance_id",
    "weave_history": "instance_id",
}
CHUNK = 10_000


def waiting_copies(database_url: str, seed: str, wanted: int) -> None:
    """Copy the instance whose id in hex is `seed` until `wanted` waiting instances are open."""
    url = make_url(database_url)
    connection = pymysql.connect(
        host=url.host, port=url.port or 3306, user=url.username, password=url.password or "", database=url.database
    )
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM weave_instance WHERE workflow = 'waits'")
        (known,) = cursor.fetchone() or (0,)
        cursor.execute("CREATE TEMPORARY TABLE fresh (id BINARY(16) PRIMARY KEY)")
        for begun in range(known, wanted, CHUNK):
            count = min(CHUNK, wanted - begun)
            cursor.execute("DELETE FROM fresh")
            cursor.executemany("INSERT INTO fresh VALUES (%s)", [(os.urandom(16),) for _ in range(count)])
            for table, key in OWNED.items():
                cursor.execute(f"SHOW COLUMNS FROM {table}")
                others = ", ".join(f"s.`{row[0]}`" for row in cursor.fetchall() if row[0] != key)
                names = others.replace("s.", "")
                cursor.execute(
                    f"INSERT INTO {table} (`{key}`, {names}) "  # noqa: S608  (our own names)
                    f"SELECT fresh.id, {others} FROM {table} s CROSS JOIN fresh WHERE s.`{key}` = %s",
                    (bytes.fromhex(seed),),
                )
            connection.commit()
        for table in OWNED:
            cursor.execute(f"ANALYZE TABLE {table}")
