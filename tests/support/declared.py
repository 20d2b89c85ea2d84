"""What the packages declare: their modules and tables, found in the tree and not listed by hand."""

import importlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("api", "definitions", "engine", "migrations", "orbit", "pulse")


def module_paths() -> list[Path]:
    """Return every Python file of the six packages, sorted."""
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    """Name the module that a file is."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_tables() -> None:
    """Import every `tables` module, so that the metadata is complete."""
    for path in module_paths():
        if path.name == "tables.py":
            importlib.import_module(module_name(path))
