"""The one order of locks: what a transaction touches first, seen by the statements that it sends.

SQLite sends its statements through SQLAlchemy, which lets a test listen; their order is the same elsewhere.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event

from orbit.database import Database
from pulse.start import StartCode
from pulse.submission import tasks_submit
from tests.support.pulse import Pulse

pytestmark = pytest.mark.databases("sqlite")


@contextmanager
def statements_heard() -> Iterator[list[str]]:
    """Hear the text of every statement; what was rolled back has let go of its locks and is forgotten."""
    heard: list[str] = []

    def hear(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        heard.append(statement)

    def forget(_connection: Any) -> None:
        heard.clear()

    event.listen(Engine, "before_cursor_execute", hear)
    event.listen(Engine, "rollback", forget)
    try:
        yield heard
    finally:
        event.remove(Engine, "rollback", forget)
        event.remove(Engine, "before_cursor_execute", hear)


def first_touch(heard: list[str], table: str) -> int:
    """Return the place of the first statement that names a table."""
    return next(index for index, statement in enumerate(heard) if table in statement)


def test_a_refused_start_locks_concurrency_keys_before_usage(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    pulse.submit(concurrency_keys=("k",))
    (leased,) = pulse.claim()
    pulse.configure(queue_id, paused=True)
    with statements_heard() as heard:
        assert pulse.start(leased).code is StartCode.QUEUE_PAUSED
    assert first_touch(heard, "pulse_key ") < first_touch(heard, "pulse_queue_usage")
    assert pulse.drifts() == []


def test_a_fair_submission_locks_its_share_before_the_backlog(pulse: Pulse, database: Database) -> None:
    pulse.queue()
    pulse.submit(fairness_key="f")
    item = pulse.submit_item(fairness_key="f")
    with statements_heard() as heard:
        database.transaction(lambda tx: tasks_submit(tx, [item], pulse))
    assert first_touch(heard, "pulse_fair_share") < first_touch(heard, "pulse_queue_backlog")
