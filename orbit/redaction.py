"""Masking of payloads: which parts of a JSON value are never shown, and the value as it may be shown.

A path is a JSON pointer (RFC 6901) whose step `*` stands for every member of an object or list. What it names, with all
that is inside, is shown as MASK. The surprising rule: a path that names nothing masks nothing, so a typing mistake is
found only by looking; whoever declares paths is told so in the documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orbit.errors import InvalidRequest
from orbit.jsontext import Json

MASK = "[redacted]"
PATHS_MAX = 64
STEPS_MAX = 32

Path = tuple[str, ...]


def path_read(text: str, *, roots: Iterable[str], pointer: str) -> Path:
    """Read a path that begins with one of `roots`; raises InvalidRequest at `pointer` for anything else."""
    names = sorted(roots)
    steps = tuple(step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:])
    if not text.startswith("/") or not steps or steps[0] not in names or len(steps) > STEPS_MAX:
        shown = " or ".join(f"/{name}" for name in names)
        raise InvalidRequest(f"a path is a JSON pointer that begins with {shown}", pointer=pointer)
    return steps


def path_text(path: Path) -> str:
    """Write a path as it is read."""
    return "".join(f"/{step.replace('~', '~0').replace('/', '~1')}" for step in path)


def below(paths: Iterable[Path], *steps: str) -> list[Path]:
    """Return what the paths say about the part of a value that `steps` lead to; the empty path is all of it."""
    return [
        path[len(steps) :] for path in paths if all(_meets(own, step) for own, step in zip(path, steps, strict=False))
    ]


def masked(value: Json, paths: Sequence[Path]) -> Json:
    """Return `value` with what the paths name masked; null stays null, the rest is not copied."""
    if not paths or value is None:
        return value
    if () in paths:
        return MASK
    if isinstance(value, dict):
        return {key: masked(inner, below(paths, key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [masked(inner, below(paths, str(index))) for index, inner in enumerate(value)]
    return value


def covers(paths: Iterable[Path], path: Path) -> bool:
    """Say whether what a path names, all of it, is masked by other paths; a `*` of the path needs one of theirs."""
    return any(
        len(own) <= len(path) and all(left in ("*", right) for left, right in zip(own, path, strict=False))
        for own in paths
    )


def touches(paths: Iterable[Path], location: Sequence[str | int]) -> bool:
    """Say whether the value at a location is masked, holds something masked, or lies within it."""
    steps = [str(step) for step in location]
    return any(all(_meets(own, step) for own, step in zip(path, steps, strict=False)) for path in paths)


def _meets(own: str, step: str) -> bool:
    return own in ("*", step) or step == "*"
