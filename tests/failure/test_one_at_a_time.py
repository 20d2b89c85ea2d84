"""`max_concurrency: 1` and a concurrency key of limit 1 while workers are killed and frozen past their lease.

By the database's record, no two attempts are RUNNING at the same time, ever. `ORBIT_SOAK=1` freezes and kills more.
"""

import os
import random
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from orbit.clock import SECOND
from orbit.sdk.models import SubmitTask
from pulse.tables import attempt
from tests.support.fleet import Crew, Fleet, fleet, submit_many
from tests.support.waiting import wait_until

pytestmark = pytest.mark.soak
ROUNDS = 4 if os.environ.get("ORBIT_SOAK") else 1
LEASE_SECONDS = 30.0
END_SECONDS_MAX = 240.0


def spans(installed: Fleet) -> list[tuple[int, int]]:
    """Read when each started attempt ran, by the database's clock, in order."""
    columns = (attempt.c.started_at, attempt.c.finished_at)
    with installed.opened() as database:
        rows: list[Any] = list(database.transaction(lambda tx: tx.rows(select(*columns))))
    return sorted((row[0], row[1] or 2**62) for row in rows if row[0] is not None)


@pytest.mark.databases("mysql")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("limited_by", ["queue", "key"])
@pytest.mark.requirement("R045", "R002")
def test_r176_never_two_at_once_under_kills_and_freezes(database_url: str, short_folder: Path, limited_by: str) -> None:
    keys = ["only"] if limited_by == "key" else None
    with fleet(short_folder, database_url, max_concurrency=1 if limited_by == "queue" else 100) as installed:
        nodes = [installed.node(), installed.node()]
        workers = [installed.worker(nodes[n % 2], Crew(types=["work.safe"], capacity=4)) for n in range(3)]
        client = installed.client(nodes[0])
        requests = [
            SubmitTask(queue="main", type="work.safe", version=1, params={"seconds": 0.4}, concurrency_keys=keys)
            for _ in range(30 * ROUNDS)
        ]
        submit_many(client, requests, prefix=limited_by)
        for number in range(ROUNDS):
            installed.wait_begun(4 * number + 3, timeout=END_SECONDS_MAX)
            # One of them runs a task: it is killed, or frozen until long after another has begun it again.
            for worker in workers:
                worker.signal(signal.SIGSTOP)
            frozen = list(workers)
            random.shuffle(frozen)
            frozen.pop().kill()
            workers = [*frozen, installed.worker(nodes[0], Crew(types=["work.safe"], capacity=4))]
            before = len(installed.begun())
            wait_until(
                lambda before=before: len(installed.begun()) >= before + 4,  # type: ignore[misc]
                END_SECONDS_MAX,
                what="another goes on once the lease has run out",
            )
            for worker in frozen:
                worker.signal(signal.SIGCONT)
        wait_until(lambda: not installed.open_tasks(), END_SECONDS_MAX, what="the end of all tasks")
        ran = spans(installed)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(ran)), "two ran at the same time"
        states = installed.task_states()
        assert states.get("SUCCEEDED", 0) + states.get("NEEDS_REVIEW", 0) == len(requests)
        assert installed.drifts() == []
        longest = max(end - begin for begin, end in ran) / SECOND
        print(f"{len(ran)} attempts one after the other, the longest {longest:.1f} s; {states}")  # noqa: T201
