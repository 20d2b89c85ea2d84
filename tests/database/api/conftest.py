"""An API over the test's database, without sockets."""

import pytest

from api.resources.journal import Journal
from api.resources.queues import Queues
from orbit.database import Database
from tests.support.http import Api, Caller


@pytest.fixture
def api(database: Database) -> Api:
    """The application with all resources."""
    return Api(database, [*Queues(database).operations(), *Journal(database).operations()])


@pytest.fixture
def caller(api: Api) -> Caller:
    """A caller who may do everything in the default namespace."""
    return api.caller()
