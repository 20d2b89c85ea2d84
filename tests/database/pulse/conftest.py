"""Pulse's tests run on every database; each ends with a recount of every counter."""

from collections.abc import Iterator

import pytest

from orbit.database import Database
from tests.support.pulse import Pulse


@pytest.fixture
def pulse(database: Database) -> Iterator[Pulse]:
    made = Pulse(database)
    yield made
    database.clock.offset_micros = 0
    assert made.drifts() == []
