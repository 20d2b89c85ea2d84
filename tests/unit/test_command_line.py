"""The command line's frame: commands are found by name, loaded when used, and end in words and an exit code."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest

from orbit.cli import program
from orbit.cli.options import JsonText
from orbit.errors import InvalidRequest, Unavailable
from orbit.sdk.errors import APIError, ConfigurationError, ConnectionFailed

MODULES_MAX = 260
HEAVY = {"sqlalchemy", "alembic", "gevent", "falcon", "httpx", "websockets", "yaml", "jsonschema", "rich", "msgspec"}


def orbit(*arguments: str, code: str = "") -> "subprocess.CompletedProcess[str]":
    start = [sys.executable, "-c", code] if code else [sys.executable, "-m", "orbit"]
    return subprocess.run([*start, *arguments], capture_output=True, text=True, check=False, timeout=120)


def test_help_names_every_command() -> None:
    result = orbit("--help")
    assert result.returncode == 0
    for name in ("bootstrap", "check", "db", "instance", "publish", "queues", "show", "start", "watch", "worker"):
        assert f"\n  {name} " in result.stdout
    assert "can't be loaded" not in result.stdout


def test_help_loads_little() -> None:
    """An idle machine shows it within 0.25 s. What is loaded holds that: a clock would also time other tests."""
    code = "import sys; from orbit.cli.program import run; run(['--help']);print(*sys.modules, file=sys.stderr)"
    loaded = orbit(code=code).stderr.split()
    assert "click" in loaded
    assert {name.partition(".")[0] for name in loaded} & HEAVY == set()
    assert len(loaded) < MODULES_MAX


def test_checking_a_definition_loads_no_database_and_no_validator() -> None:
    file = Path(__file__).parents[2] / "examples" / "payout" / "payout.yaml"
    call = f"run(['check', {str(file)!r}])"
    done = orbit(code=f"import sys; from orbit.cli.program import run; {call};print(*sys.modules, file=sys.stderr)")
    assert "is sound" in done.stdout
    # The last three are part of Python, and each took a tenth of the time in which the demo is to be checked.
    heavy = {"sqlalchemy", "gevent", "falcon", "jsonschema", "httpx", "cryptography", "_hashlib", "ssl", "difflib"}
    assert heavy.isdisjoint(done.stderr.split())


def test_a_command_ends_without_a_last_look_for_garbage() -> None:
    """At its end Python looks at every object that is not frozen: a quarter of the time of a short command."""
    code = "import atexit, gc, sys; from orbit.__main__ import main; sys.argv[1:] = ['--version']; "
    done = orbit(code=code + "atexit.register(lambda: print(gc.get_freeze_count(), len(gc.get_objects()))); main()")
    assert done.returncode == 0
    frozen, loose = map(int, done.stdout.splitlines()[-1].split())
    assert frozen > 100 * loose


def test_commands_of_other_packages_come_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [EntryPoint("db.check", "migrations.commands:check", program.ENTRY_POINT_GROUP)]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found if group == "orbit.commands" else [])
    made = program.program()
    with click.Context(made) as context:
        group = made.get_command(context, "db")
        assert isinstance(group, click.Group)
        assert group.list_commands(context) == ["check", "finalize"]
        assert group.get_command(context, "upgrade") is None
        assert made.get_command(context, "bootstrap") is None


def test_a_command_that_cannot_be_loaded_fails_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(program._OWN, "broken", "orbit.cli.absent:broken")  # noqa: SLF001
    assert program.run(["--help"]) == 0
    assert "broken" in capsys.readouterr().out
    assert program.run(["broken"]) == 1
    assert "orbit.cli.absent" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("a field is wrong"), 1),
        (ConfigurationError("ORBIT_URL is not set"), 1),
        (APIError({"code": "NOT_FOUND", "message": "no such task"}, status=404), 1),
        (Unavailable("the database is away"), 3),
        (ConnectionFailed("nobody listens"), 3),
        (APIError({"code": "UNAVAILABLE", "message": "shutting down"}, status=503), 3),
        (KeyboardInterrupt(), 130),
    ],
)
def test_a_refusal_is_one_line_and_an_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(program, "_load", lambda *_: click.Command("show", callback=fail))
    assert program.run(["show"]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.strip().splitlines()) == 1
    assert str(error) in printed.err


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(program, "_load", lambda *_: click.Command("show", callback=fail))
    with pytest.raises(ZeroDivisionError):
        program.run(["show"])


def test_a_wrong_command_line_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(["absent"]) == 2
    assert "No such command 'absent'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "meant"),
    [(["publsh", "file"], "publish"), (["instance", "pauze", "ID"], "pause"), (["instanc"], "instance")],
)
def test_a_mistyped_command_is_told_what_was_meant(
    said: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.run(said) == 2
    assert f"'{meant}'" in capsys.readouterr().err


def test_a_refusal_names_every_place_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [
        {"pointer": "", "message": "'amount' is a required property"},
        {"pointer": "/a", "message": "1 is no text"},
    ]
    details = {"pointer": "/input", "violations": places}

    def fail() -> None:
        raise APIError({"code": "INVALID_REQUEST", "message": "no fit", "details": details}, status=400)

    monkeypatch.setattr(program, "_load", lambda *_: click.Command("show", callback=fail))
    assert program.run(["show"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[1:] == ["  /: 'amount' is a required property", "  /a: 1 is no text"]


def test_the_packages_come_from_the_folder_of_the_command(tmp_path: Path) -> None:
    """A folder named like one of ours where the user stands must not be taken for it."""
    for name in ("api", "migrations", "definitions"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')")
    result = subprocess.run(
        [sys.executable, "-m", "orbit", "db", "check", "--database-url", "sqlite:///absent.db"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "behind" in result.stdout


def test_json_is_read_in_place_or_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "input.json"
    file.write_bytes('{"a": "ä"}'.encode())
    read = JsonText().convert
    assert read('{"a": 1.50}', None, None) == {"a": 1.5}
    assert read(f"@{file}", None, None) == {"a": "ä"}
    for wrong in ("{", '{"a": 1, "a": 2}', "NaN", f"@{tmp_path / 'absent'}"):
        with pytest.raises(click.BadParameter):
            read(wrong, None, None)
