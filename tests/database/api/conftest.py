"""An API over the test's database, without sockets: a whole node whose loops are not started."""

from collections.abc import Iterator

import pytest

from api.server import Node
from orbit.database import Database
from tests.support.http import Api, Caller


@pytest.fixture
def node(database: Database) -> Iterator[Node]:
    """A node that serves, but neither claims nor sweeps nor advances by itself."""
    made = Node(database, name="test")
    yield made
    made.stop()


@pytest.fixture
def api(database: Database, node: Node) -> Api:
    """The application with all resources."""
    return Api(database, node.operations, node.authenticator)


@pytest.fixture
def caller(api: Api) -> Caller:
    """A caller who may do everything in the default namespace."""
    return api.caller()
