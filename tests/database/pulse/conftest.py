"""Pulse's tests run on every database, on a clock that only they move; each ends with a recount of every counter."""

from collections.abc import Iterator

import pytest

from orbit.database import Database
from tests.support.pulse import Pulse


@pytest.fixture
def pulse(database: Database) -> Iterator[Pulse]:
    database.clock.stand_still()
    made = Pulse(database)
    yield made
    database.clock.go_on()
    database.clock.offset_micros = 0
    assert made.drifts() == []
