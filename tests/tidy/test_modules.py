"""House rules that a reader of one module can't see broken: lengths, names, layers, where risky things may be."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.declared import ROOT, module_name, module_paths

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "lib", "shared", "stuff"}
CODE_FOLDERS = ("api", "bench", "definitions", "engine", "examples", "migrations", "orbit", "pulse", "tests", "tools")
# Only an entry point may patch: later is too late, and a user's process is not ours to patch.
MAY_PATCH = {"api/server.py", "api/commands.py", "orbit/__main__.py"}
THE_ONE_SLEEP = "tests/support/waiting.py"


def code_paths() -> list[Path]:
    return sorted(path for folder in CODE_FOLDERS for path in (ROOT / folder).rglob("*.py"))


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Name every function that is called, with its line: `sleep` for `time.sleep(1)` and `sleep(1)` alike."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
                yield name, node.lineno


def imported_roots(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names.update(alias.name.partition(".")[0] for alias in aliases)
            case ast.ImportFrom(module=str(module)):
                names.add(module.partition(".")[0])
    return names


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Every Python file of the project, parsed, by its path."""
    return {short(path): ast.parse(path.read_text()) for path in code_paths()}


def test_no_module_is_long() -> None:
    lengths = {short(path): len(path.read_text().splitlines()) for path in code_paths()}
    assert len(lengths) > 30
    assert {name: length for name, length in lengths.items() if length > FILE_LINES_MAX} == {}


def test_no_function_is_long(trees: dict[str, ast.Module]) -> None:
    long = {
        f"{name}:{node.lineno} {node.name}": length
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    }
    assert long == {}


def test_no_module_is_named_for_nothing() -> None:
    named = [short(path) for path in code_paths() if BANNED_NAMES & {*path.relative_to(ROOT).parts[:-1], path.stem}]
    assert named == []


def test_only_stores_and_tables_import_sqlalchemy(trees: dict[str, ast.Module]) -> None:
    allowed = re.compile(
        r"^(.*/)?(store|tables)\.py$|^(.*/)?store/.*|^orbit/database/.*|^migrations/.*|^(tests|tools|bench)/.*"
    )
    intruders = [
        name
        for name, tree in trees.items()
        if not allowed.match(name) and imported_roots(tree) & {"sqlalchemy", "alembic"}
    ]
    assert intruders == []


def test_no_test_sleeps(trees: dict[str, ast.Module]) -> None:
    sleepers = [
        f"{name}:{line}"
        for name, tree in trees.items()
        if name.startswith("tests/") and name != THE_ONE_SLEEP
        for called, line in calls(tree)
        if called in {"sleep", "idle"}
    ]
    assert sleepers == []


def test_yaml_is_only_loaded_safely(trees: dict[str, ast.Module]) -> None:
    unsafe = [
        f"{name}:{node.lineno}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in {"load", "load_all", "unsafe_load", "full_load"}
        and isinstance(node.value, ast.Name)
        and node.value.id == "yaml"
    ]
    assert unsafe == []


def test_only_entry_points_patch(trees: dict[str, ast.Module]) -> None:
    patchers = {
        name
        for name, tree in trees.items()
        if not name.startswith("tests/")
        for called, _ in calls(tree)
        if called.startswith("patch_")
    }
    assert patchers <= MAY_PATCH


def test_every_package_module_is_in_a_package() -> None:
    """A folder without `__init__.py` would be left out of the wheel."""
    assert [short(path) for path in module_paths() if not (path.parent / "__init__.py").exists()] == []


def test_no_module_is_dead(trees: dict[str, ast.Module]) -> None:
    """Every module is imported somewhere, or named where commands and public names are looked up."""
    named: set[str] = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=aliases):
                    named.update(alias.name for alias in aliases)
                case ast.ImportFrom(module=str(module), names=aliases):
                    named.update({module, *(f"{module}.{alias.name}" for alias in aliases)})
                case ast.Constant(value=str(text)):
                    named.add(text.partition(":")[0])
    named.update(re.findall(r"= ([\w.]+):", (ROOT / "setup.cfg").read_text()))
    # Alembic finds its own by their folder.
    loaded = re.compile(r"migrations\.(env|versions\.\w+)")
    dead = [
        name
        for path in module_paths()
        if path.name != "__init__.py" and (name := module_name(path)) not in named and not loaded.fullmatch(name)
    ]
    assert dead == []
