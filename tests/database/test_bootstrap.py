"""`orbit bootstrap`: one command makes all that a first caller needs, and running it again changes nothing."""

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import func, select

from api.bootstrap import Wanted, bootstrap, bootstrap_to_file
from api.commands import bootstrap as command
from orbit.access import Scope, secret_matches, token_from_header
from orbit.database import Database
from orbit.errors import InvalidRequest, StateConflict
from orbit.store.tenancy import NamespaceName, credential_find
from orbit.tables import application, audit, credential, namespace
from pulse.queues import QueueSettings
from pulse.tables import queue

WANTED = Wanted(
    named=NamespaceName("resources-demo", "default", "development"),
    queue="bootstrap",
    settings=QueueSettings(paused=False, max_concurrency=5, rate_per_second=7, max_unfinished_tasks=100),
    worker_access=True,
)


def counts(database: Database) -> list[int]:
    tables = [application, namespace, credential, queue, audit]
    statements = [select(func.count()).select_from(table) for table in tables]
    return database.transaction(lambda tx: [row[0] for each in statements if (row := tx.row(each)) is not None])


def test_r079_bootstrap_makes_everything_once(database: Database, short_folder: Path) -> None:
    path = short_folder / "new" / "credentials.json"
    made = bootstrap_to_file(database, WANTED, path)
    assert counts(database) == [1, 1, 1, 1, 2]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    written = path.read_bytes()
    again = bootstrap_to_file(database, WANTED, path)
    assert again == made
    assert path.read_bytes() == written
    assert counts(database) == [1, 1, 1, 1, 2]


def test_r079_the_credential_can_do_everything_on_all_queues(database: Database, short_folder: Path) -> None:
    path = short_folder / "credentials.json"
    bootstrap_to_file(database, WANTED, path)
    token = token_from_header(f"Bearer {json.loads(path.read_text())['token']}")
    stored = database.transaction(lambda tx: credential_find(tx, token.credential_id))
    assert stored is not None
    assert secret_matches(token.secret, stored.secret_hash)
    assert stored.credential.scopes == frozenset(Scope)
    assert stored.credential.queues is None


def test_rights_follow_the_latest_run(database: Database) -> None:
    without = replace(WANTED, worker_access=False)
    first = bootstrap(database, without)

    def scopes() -> frozenset[str]:
        stored = database.transaction(lambda tx: credential_find(tx, first.token.credential_id))
        assert stored is not None
        return stored.credential.scopes

    assert Scope.WORKERS_CONNECT not in scopes()
    assert bootstrap(database, WANTED, kept=first.token).token == first.token
    assert Scope.WORKERS_CONNECT in scopes()
    bootstrap(database, without, kept=first.token)
    assert Scope.WORKERS_CONNECT not in scopes()


def test_an_unknown_credential_in_the_file_is_replaced(database: Database, short_folder: Path) -> None:
    """As after the database was made anew."""
    path = short_folder / "credentials.json"
    path.write_text(json.dumps({"token": "0" * 32 + "." + "x" * 43}))
    path.chmod(0o644)
    made = bootstrap_to_file(database, WANTED, path)
    assert json.loads(path.read_text())["token"] == made.token.text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_valid_credential_of_another_namespace_is_not_lost(database: Database, short_folder: Path) -> None:
    path = short_folder / "credentials.json"
    bootstrap_to_file(database, WANTED, path)
    before = path.read_bytes()
    other = replace(WANTED, named=NamespaceName("other", "default", "development"))
    with pytest.raises(StateConflict, match="another namespace"):
        bootstrap_to_file(database, other, path)
    assert path.read_bytes() == before
    assert counts(database)[:2] == [1, 1]


@pytest.mark.parametrize("content", ["", "not json", "[]", '{"token": 3}', '{"token": "short"}', '{"other": 1}'])
@pytest.mark.databases("sqlite")
def test_another_file_is_not_overwritten(database: Database, short_folder: Path, content: str) -> None:
    path = short_folder / "credentials.json"
    path.write_text(content)
    with pytest.raises(InvalidRequest, match="not overwritten"):
        bootstrap_to_file(database, WANTED, path)
    assert path.read_text() == content
    assert counts(database) == [0, 0, 0, 0, 0]


def test_r079_the_command_runs_on_a_migrated_database(database_url: str, short_folder: Path) -> None:
    path = short_folder / "credentials.json"
    arguments = ["--application", "resources-demo", "--namespace", "default", "--environment", "development"]
    arguments += ["--queue", "bootstrap", "--worker-access", "--output", str(path), "--database-url", database_url]
    for _ in range(2):
        result = CliRunner().invoke(command, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        assert json.loads(path.read_text())["token"] not in result.output
    written = json.loads(path.read_text())
    assert (written["application"], written["queue"]) == ("resources-demo", "bootstrap")


def test_names_are_checked_before_anything_is_made() -> None:
    result = CliRunner().invoke(
        command,
        ["--application", "no spaces", "--queue", "q", "--output", "unused", "--database-url", "sqlite://"],
    )
    assert result.exit_code == 2
    assert "--application" in result.output
