"""No question about tasks walks over the whole table: each statement's plan, with many tasks, on both servers.

`ORBIT_SEARCH_TASKS` says with how many (100 000 if not given, 1 000 000 in a long run).
"""

import os
import time
from typing import Any

import pytest
from sqlalchemy import text

from orbit.clock import SECOND
from orbit.database import Database
from pulse.claim import Demand, claim
from pulse.doctor import examine
from pulse.key_limits import key_view
from pulse.states import SourceKind, TaskState
from pulse.store.search import TaskFilter, tasks_choose
from pulse.tasks import attempts_list, task_explain, task_get, tasks_list
from pulse.waker import keys_wake, lines_sweep
from tests.support.bulk import patient, tasks_copy, truncated
from tests.support.plans import plans, recorded
from tests.support.pulse import Pulse

pytestmark = pytest.mark.soak
TASKS = int(os.environ.get("ORBIT_SEARCH_TASKS", "1000000" if os.environ.get("ORBIT_SOAK") else "100000"))
LARGE = {"pulse_task", "pulse_ready", "pulse_key_line", "pulse_label"}
BROAD: Any = {"max_concurrency": 100_000, "rate_per_second": 1_000_000, "max_unfinished_tasks": 1_000_000}


@pytest.mark.databases("mariadb", "mysql")
@pytest.mark.timeout(3600)
def test_r190_no_question_about_tasks_walks_over_all_of_them(pulse: Pulse, database: Database) -> None:
    with truncated(database):
        _ask(pulse, database)
        # The doctor does look at every row, but at each of them once.
        began = time.perf_counter()
        with patient(database) as opened:
            assert examine(opened) == []
        print(f"{TASKS} tasks recounted in {time.perf_counter() - began:.1f} s")  # noqa: T201


def _ask(pulse: Pulse, database: Database) -> None:
    database.clock.go_on()  # copies are told apart by their instants
    pulse.queue(**BROAD)
    pulse.queue("side", **BROAD)
    pulse.serve()
    one = pulse.submit(business_key="b-1", concurrency_keys=("k",), labels='{"a": "b"}')
    pulse.submit(queue="side", business_key="b-2")
    tasks_copy(database, pulse.submit(business_key="b-3", labels='{"all": "of them"}'), count=TASKS)
    _analyze(database)
    pages = _pages(pulse, one)
    seat = pulse.seat()
    asked: dict[str, list[tuple[str, Any]]] = {}
    for name, wanted in pages.items():
        with recorded() as statements:
            database.transaction(lambda tx, wanted=wanted: tasks_list(tx, wanted))  # type: ignore[misc]
        asked[name] = statements
    labelled = TaskFilter(pulse.namespace_id, 20, label=("a", "b"))
    questions: dict[str, Any] = {
        "one task": lambda tx: task_get(tx, pulse.namespace_id, one),
        "its attempts": lambda tx: attempts_list(tx, pulse.namespace_id, one),
        "why it waits": lambda tx: task_explain(tx, pulse.namespace_id, one),
        "its key": lambda tx: key_view(tx, pulse.namespace_id, "k"),
        "what a batch is about": lambda tx: tasks_choose(tx, labelled, {TaskState.NEEDS_REVIEW}),
        "a claim": lambda tx: claim(tx, Demand([seat], {})),
    }
    for name, question in questions.items():
        with recorded() as statements:
            database.transaction(question)
        asked[name] = statements
    with recorded() as statements:
        pulse.deadlines.run_once()
        keys_wake(database, pulse)
        lines_sweep(database, pulse)
    asked["the sweeps"] = statements
    for name, statements in asked.items():
        for statement, parameters in statements:
            if statement.lstrip().upper().startswith(("SELECT", "UPDATE", "DELETE", "(SELECT")):
                _check(name, statement, plans(database, statement, parameters))


def _pages(pulse: Pulse, one: bytes) -> dict[str, TaskFilter]:
    """Name every way in which tasks are listed, with a filter that asks so."""
    row = pulse.task(one).row
    at = row.accepted_at
    return {
        "by business key": TaskFilter(pulse.namespace_id, 20, business_key="b-1"),
        "by business key of many": TaskFilter(pulse.namespace_id, 20, business_key="b-3"),
        "by source": TaskFilter(pulse.namespace_id, 20, source=(SourceKind.RETRY, one)),
        "by queue": TaskFilter(pulse.namespace_id, 20, queue_id=row.queue_id),
        "by queue and state": TaskFilter(
            pulse.namespace_id, 20, queue_id=row.queue_id, state=TaskState.FAILED, accepted_after=at,
            accepted_before=at + SECOND // 100,
        ),
        "by queue and type": TaskFilter(
            pulse.namespace_id, 20, queue_id=row.queue_id, type="echo", accepted_after=at,
            accepted_before=at + SECOND // 100,
        ),
        "by queue and time": TaskFilter(
            pulse.namespace_id, 20, queue_id=row.queue_id, accepted_after=at, accepted_before=at + SECOND // 100
        ),
        "by label": TaskFilter(pulse.namespace_id, 20, label=("a", "b")),
        "by label of many": TaskFilter(pulse.namespace_id, 20, label=("all", "of them")),
        "by label of many, the next page": TaskFilter(
            pulse.namespace_id, 20, label=("all", "of them"), before=(at + 700, one)
        ),
        "by label and queue": TaskFilter(pulse.namespace_id, 20, label=("a", "b"), queue_id=row.queue_id),
        "by label and business key": TaskFilter(pulse.namespace_id, 20, label=("a", "b"), business_key="b-1"),
        "by label and source": TaskFilter(pulse.namespace_id, 20, label=("a", "b"), source=(SourceKind.RETRY, one)),
        "the next page": TaskFilter(pulse.namespace_id, 20, queue_id=row.queue_id, before=(at + 700, one)),
        "two filters": TaskFilter(
            pulse.namespace_id, 20, queue_id=row.queue_id, business_key="b-1", accepted_after=at
        ),
    }  # fmt: skip


def _check(name: str, statement: str, rows: list[dict[str, Any]]) -> None:
    # What a SELECT sorts may be told beside another of its tables than the one that it sorts the rows of.
    sorting = {row.get("id") for row in rows if "filesort" in str(row.get("Extra"))}
    for row in rows:
        table, count = str(row.get("table")), int(row.get("rows") or 0)
        if table not in LARGE | {"t"}:
            continue
        is_scan = row.get("type") in {"ALL", "index"} and count > 1_000
        assert not is_scan, f"{name} walks over {table}: {row}\n{statement}"
        sorts = row.get("id") in sorting and count > 10_000
        assert not sorts, f"{name} sorts {count} rows of {table}: {rows}\n{statement}"


def _analyze(database: Database) -> None:
    database.transaction(lambda tx: tx.rows(text("ANALYZE TABLE pulse_task, pulse_ready, pulse_label")))
