"""The engine's tests run on a whole engine over Pulse, on every database."""

from collections.abc import Iterator

import pytest

from orbit.database import Database
from tests.support.weave import Weave


@pytest.fixture
def weave(database: Database) -> Iterator[Weave]:
    made = Weave(database)
    made.queue()
    yield made
    made.close()
