"""Ten tasks beside a heap of somebody else's, on real nodes with real workers: they are out within one round.

`ORBIT_ORDER_TASKS` says how many the greedy side has (200 000 is a full run). A round between applications is one
claim of one node, all that it leases carries the same instant; within a lane it is a turn of every fairness key.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from api.bootstrap import Wanted, bootstrap_to_file
from orbit.clock import Micros
from orbit.database import Database
from orbit.sdk.models import SubmitTask
from orbit.store.tenancy import NamespaceName
from pulse.fairness import quantum
from pulse.queues import QueueSettings
from pulse.tables import attempt, session
from tests.support.bulk import tasks_copy, truncated
from tests.support.fleet import Crew, Fleet, fleet, submit_many
from tests.support.running import NodeProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.soak
TASKS = int(os.environ.get("ORBIT_ORDER_TASKS", "2000"))
ROOM = 16
FEW = 10
BUSY = 100  # so many of the greedy side have begun before the few come
END_SECONDS_MAX = 120.0
_BROAD: Any = {"max_concurrency": 100_000, "rate_per_second": 1_000_000, "max_unfinished_tasks": 1_000_000}


@dataclass(frozen=True)
class Lease:
    """An attempt as it was handed out: by which node and when."""

    task_id: bytes
    node: str
    at: Micros


def leases(database: Database) -> list[Lease]:
    """Read all that was handed out, in order."""
    columns = (attempt.c.task_id, session.c.node, attempt.c.leased_at)
    wanted = select(*columns).join(session, session.c.id == attempt.c.session_id).order_by(attempt.c.leased_at)
    rows: list[Any] = list(database.transaction(lambda tx: tx.rows(wanted)))
    return [Lease(bytes(row[0]), row[1], row[2]) for row in rows]


def now(database: Database) -> Micros:
    """Read the database's clock."""
    return database.transaction(lambda tx: tx.now())


@dataclass(frozen=True)
class Crowd:
    """Nodes with workers of a greedy and of a modest side on each; the greedy one has a heap of tasks."""

    greedy: Fleet
    modest: Fleet
    servers: Sequence[NodeProcess]
    database: Database

    def submit(self, side: Fleet, count: int, *, fairness_key: str | None) -> set[str]:
        """Submit tasks of one side."""
        request = SubmitTask(queue="main", type="work.safe", version=1, params={}, fairness_key=fairness_key)
        return set(submit_many(side.client(self.servers[0]), [request] * count, prefix=f"{fairness_key}-{count}"))

    def is_manned(self, count: int) -> bool:
        """Say whether so many workers are connected."""
        rows = self.database.transaction(lambda tx: tx.rows(select(session.c.id)))
        return len(rows) == count


@contextmanager
def crowded(folder: Path, url: str, *, nodes: int, is_shared: bool) -> Iterator[Crowd]:
    """Make the crowd; with `is_shared` both sides are one application, whose tasks differ by their fairness key."""
    with (
        fleet(folder, url, **_BROAD) as greedy,
        closing(Database.open(url)) as database,
        truncated(database),
    ):
        modest = greedy
        if not is_shared:
            modest = replace(greedy, credentials=folder / "modest.json")
            settings = QueueSettings(paused=False, **_BROAD)
            wanted = Wanted(NamespaceName("modest", "default", "test"), "main", settings, worker_access=True)
            bootstrap_to_file(database, wanted, modest.credentials)
        crowd = Crowd(greedy, modest, [greedy.node() for _ in range(nodes)], database)
        (first,) = crowd.submit(greedy, 1, fairness_key="greedy" if is_shared else None)
        tasks_copy(database, bytes.fromhex(first), count=TASKS, step_micros=quantum(4) if is_shared else 7)
        sides = [greedy] if is_shared else [modest, greedy]
        for side in sides:
            for server in crowd.servers:
                side.worker(server, Crew(types=["work.safe"], capacity=ROOM))
        wait_until(lambda: crowd.is_manned(len(sides) * nodes), END_SECONDS_MAX, what="all workers' connections")
        yield crowd
        # Before the tables are emptied under them.
        greedy.kill_all()


@pytest.mark.databases("mysql")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("is_shared", [False, True], ids=["application", "fairness_key"])
@pytest.mark.requirement("R092")
def test_r093_ten_tasks_beside_a_heap_are_out_within_one_round_of_real_nodes(
    database_url: str, short_folder: Path, nodes: int, *, is_shared: bool
) -> None:
    with crowded(short_folder, database_url, nodes=nodes, is_shared=is_shared) as crowd:
        crowd.greedy.wait_begun(BUSY, timeout=END_SECONDS_MAX)
        few = crowd.submit(crowd.modest, FEW, fairness_key="modest" if is_shared else None)
        ids, known_at = {bytes.fromhex(task_id) for task_id in few}, now(crowd.database)
        out: list[Lease] = []

        def is_out() -> bool:
            out[:] = leases(crowd.database)
            return ids <= {lease.task_id for lease in out}

        wait_until(is_out, END_SECONDS_MAX, what="all of the few")
        last = max(lease.at for lease in out if lease.task_id in ids)
        takers = {lease.node for lease in out if lease.task_id in ids}
        after = [lease for lease in out if known_at < lease.at <= last]
        rounds = [len({lease.at for lease in after if lease.node == node}) for node in takers]
        # A node that took none of them says nothing: it may go on while the one that knows of them stands still.
        others = sum(lease.task_id not in ids for lease in after if lease.node in takers)
        # Within a lane a round is a place for each key; a node may have leased all its room before it looks again.
        bound = (FEW if is_shared else ROOM) + nodes * ROOM
        print(  # noqa: T201
            f"{TASKS} beside {FEW} on {nodes} nodes: leased {max(0, last - known_at) / 1_000:.0f} ms after they were"
            f" known, in rounds {rounds} of those that took them, with {others} others (at most {bound})"
        )
        # A claim that had looked before they were there may still be on its way: then theirs is the second.
        assert is_shared or all(count <= 2 for count in rounds)
        assert others <= bound
        wait_until(
            lambda: few <= {line.task_id for line in crowd.greedy.begun()},
            END_SECONDS_MAX,
            what="the start of all of the few",
        )
