"""The nearest name to one that does not exist, for "did you mean" hints."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

_CHARACTERS_MAX = 64  # the comparison is quadratic in the length, and longer names are no typing mistakes
_CANDIDATES_MAX = 1_000


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name among `names` that `name` was probably meant to be, or None."""
    if not 0 < len(name) <= _CHARACTERS_MAX:
        return None
    from difflib import get_close_matches  # noqa: PLC0415  (a definition without mistakes needs no comparison)

    candidates = [other for other in islice(names, _CANDIDATES_MAX) if len(other) <= _CHARACTERS_MAX]
    folded = name.lower().replace("-", "_")
    for other in candidates:
        if other.lower().replace("-", "_") == folded:
            return other
    found = get_close_matches(name, candidates, n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(name: str, names: Iterable[str], form: str = "{}") -> str | None:
    """Return the hint for an unknown `name`; `form` is how the nearest name is written in its place."""
    found = nearest(name, names)
    return None if found is None else f"did you mean `{form.format(found)}`?"
