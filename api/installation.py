"""All six packages come from one folder, or the node does not start.

Their names are short and plain, so another distribution could bring a folder called `api` or `engine`; half of each
would fail in ways that nobody understands.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from orbit.errors import OrbitError

PACKAGES = ("api", "definitions", "engine", "migrations", "orbit", "pulse")


class MixedInstallation(OrbitError):
    """A package of another origin stands in front of ours."""


def root_folder() -> Path:
    """Return the folder that this package lies in."""
    return Path(__file__).resolve().parent.parent


def installation_check() -> None:
    """Raise MixedInstallation, naming the intruder, unless all six packages lie beside this one."""
    root = root_folder()
    for name in PACKAGES:
        spec = find_spec(name)
        origin = None if spec is None or spec.origin is None else Path(spec.origin).resolve().parent
        if origin != root / name:
            message = f"the package {name!r} is taken from {origin}, not from {root}: remove it from the Python path"
            raise MixedInstallation(message)
