"""Pulse's tests run on every database, on a clock that only they move; each ends with a recount of every counter."""

from collections.abc import Iterator

import pytest

from orbit.clock import SECOND, Micros
from orbit.database import Database
from tests.support.pulse import Pulse
from tests.support.schedules import Scheduling


@pytest.fixture
def pulse(database: Database) -> Iterator[Pulse]:
    database.clock.stand_still()
    made = Pulse(database)
    yield made
    database.clock.go_on()
    database.clock.offset_micros = 0
    assert made.drifts() == []


@pytest.fixture
def schedules(pulse: Pulse) -> Scheduling:
    """Schedules for tasks in `main`."""
    pulse.queue()
    return Scheduling(pulse)


@pytest.fixture
def anchor(schedules: Scheduling) -> Micros:
    """The first instant of a schedule: far enough ahead that no test reaches it by being slow."""
    return (schedules.now() // SECOND + 3600) * SECOND
