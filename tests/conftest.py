"""What all tests share: databases of every kind, and the check that nothing is left behind.

`database` runs a test once on SQLite, MariaDB and MySQL; `@pytest.mark.databases("mysql")` limits it, `--databases
sqlite` limits a whole run. `database_url` gives a migrated, empty database without opening it, for processes that do;
`blank_database_url` one without any schema.
"""

import os
import random
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from orbit.database import Database
from tests.support import leaks
from tests.support.guard import guards_stop
from tests.support.report import DatabaseReport, encodable
from tests.support.sessions import DatabaseKind, DatabaseSession

# A deadline measures the machine: on a busy one it fails a test and then spends minutes to shrink what was right. And
# whether a change may land must not be a matter of luck: the same examples run each time, the search is the soak's.
hypothesis.settings.register_profile("house", deadline=None, derandomize=True)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile("search" if os.environ.get("ORBIT_SOAK") else "house")

RUN_FOLDER = pytest.StashKey[Path]()
MISSING = pytest.StashKey[dict[DatabaseKind, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--databases",
        default=",".join(DatabaseKind),
        help="which databases the tests that need one run on, separated by commas (default: %(default)s)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[MISSING] = {}
    if not hasattr(config, "workerinput"):
        # A short path: a server's socket lies in it, and the system allows 107 bytes for that.
        config.stash[RUN_FOLDER] = Path(tempfile.mkdtemp(prefix="orbit-"))
        config.pluginmanager.register(DatabaseReport())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    config: pytest.Config = node.config  # type: ignore[attr-defined]
    node.workerinput["run_folder"] = str(config.stash[RUN_FOLDER])  # type: ignore[attr-defined]
    node.workerinput["owner_pid"] = os.getpid()  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    if RUN_FOLDER in config.stash:
        guards_stop(config.stash[RUN_FOLDER])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database_kind" in metafunc.fixturenames:
        wanted = [DatabaseKind(name) for name in metafunc.config.getoption("--databases").split(",")]
        for marker in metafunc.definition.iter_markers("databases"):
            wanted = [kind for kind in wanted if kind in {DatabaseKind(name) for name in marker.args}]
        metafunc.parametrize("database_kind", wanted, ids=str)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        kind = getattr(item, "callspec", None) and item.callspec.params.get("database_kind")  # type: ignore[attr-defined]
        if kind:
            item.user_properties.append(("database", str(kind)))


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, dict[str, object] | None, object]:
    """Escape what can't be sent from a worker: a lone surrogate in a failing test's values would end the run."""
    return encodable((yield))


@pytest.fixture(scope="session")
def database_session(request: pytest.FixtureRequest) -> Iterator[DatabaseSession]:
    """The test process's databases."""
    worker = getattr(request.config, "workerinput", None)
    folder = Path(worker["run_folder"]) if worker else request.config.stash[RUN_FOLDER]
    owner_pid = worker["owner_pid"] if worker else os.getpid()
    name = f"{owner_pid}_{worker['workerid'] if worker else 'main'}"
    session = DatabaseSession(folder, owner_pid, name)
    yield session
    session.close()


@pytest.fixture
def database_kind(request: pytest.FixtureRequest) -> DatabaseKind:
    """Which database the test runs on."""
    return DatabaseKind(request.param)


@pytest.fixture
def available_session(
    request: pytest.FixtureRequest, database_session: DatabaseSession, database_kind: DatabaseKind
) -> DatabaseSession:
    """The session, once it is known that the test's database can be had; MySQL may be missing, loudly."""
    missing = request.config.stash[MISSING]
    if database_kind is DatabaseKind.SQLITE:
        return database_session
    if database_kind not in missing:
        missing[database_kind] = database_session.why_missing(database_kind)
    if not missing[database_kind]:
        return database_session
    if database_kind is DatabaseKind.MYSQL and os.environ.get("REQUIRE_MYSQL") != "1":
        pytest.skip(f"MySQL: {missing[database_kind]}")
    pytest.fail(missing[database_kind])


@pytest.fixture
def database_url(available_session: DatabaseSession, database_kind: DatabaseKind, short_folder: Path) -> Iterator[str]:
    """The URL of a migrated, empty database."""
    with available_session.fresh_url(database_kind, short_folder) as url:
        yield url


@pytest.fixture
def blank_database_url(
    available_session: DatabaseSession, database_kind: DatabaseKind, short_folder: Path
) -> Iterator[str]:
    """The URL of a database without a schema."""
    with available_session.blank_url(database_kind, short_folder) as url:
        yield url


@pytest.fixture
def other_blank_database_url(
    available_session: DatabaseSession, database_kind: DatabaseKind, short_folder: Path
) -> Iterator[str]:
    """The URL of a second database without a schema."""
    with available_session.blank_url(database_kind, short_folder, "other") as url:
        yield url


@pytest.fixture
def database(available_session: DatabaseSession, database_kind: DatabaseKind, database_url: str) -> Iterator[Database]:
    """A migrated, empty database, opened as a node opens it; its clock is moved by `database.clock`."""
    opened, is_ours = available_session.fresh_database(database_kind, database_url)
    yield opened
    leaks.settle("database connections", lambda: leaks.checked_out(opened))
    if is_ours:
        opened.close()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short path, for sockets and embedded databases, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="orbit-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_luck(request: pytest.FixtureRequest) -> None:
    """Let a test draw the same jitter each time; it must say itself where a back-off has to be long or short."""
    random.seed(request.node.nodeid)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Fail a test that leaves a thread running."""
    before = leaks.threads()
    yield
    leaks.settle("threads", lambda: leaks.threads() - before)


@pytest.fixture(autouse=True, scope="module")
def no_greenlet_or_process_is_left() -> Iterator[None]:
    """Fail a module that leaves a greenlet or a child process running; looking for them is too slow for each test."""
    greenlets, children = leaks.greenlets(), leaks.children()
    yield
    leaks.settle("greenlets", lambda: leaks.greenlets() - greenlets)
    leaks.settle("child processes", lambda: leaks.children() - children)
