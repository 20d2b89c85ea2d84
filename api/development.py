"""What `orbit dev` needs before it serves: a folder with an embedded database, its schema, a credential and a queue.

The credential is made once and printed once; later runs use the one in the folder's file.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from api.bootstrap import Wanted, bootstrap_to_file
from migrations.upgrade import upgrade
from orbit.database import Database
from orbit.store.tenancy import NamespaceName
from pulse.queues import QueueSettings

QUEUE = "default"
_SETTINGS = QueueSettings(paused=False, max_concurrency=100, rate_per_second=1_000, max_unfinished_tasks=100_000)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Where the database and the credential are."""

    database_url: str
    credentials: Path


def development_prepare(folder: Path, *, port: int, say: Callable[[str], None]) -> Prepared:
    """Make what is missing in the folder, which only its owner may read. Raises Unavailable if a node is using it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    url = f"sqlite:///{folder.resolve() / 'orbit.db'}"
    credentials = folder / "credentials.json"
    is_new = not credentials.exists()
    upgrade(url)
    wanted = Wanted(NamespaceName("dev", "default", "development"), QUEUE, _SETTINGS, worker_access=True)
    with closing(Database.open(url)) as database:
        address = f"http://127.0.0.1:{port}"
        made = bootstrap_to_file(database, wanted, credentials, url=address if port else None)
    if is_new:
        say(f"credential   {made.token.text()}")
        say(f"             kept in {credentials}; it is not shown again")
    say(f"queue        {made.queue}")
    say(f"use it with  export ORBIT_URL={address} ORBIT_CREDENTIALS_FILE={credentials.resolve()}")
    return Prepared(url, credentials)
