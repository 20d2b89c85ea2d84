"""Children by their files: for a definition that is looked at where it lies, without a server.

Beside what is given by name, the YAML files in the definition's own folder are looked at, and only if it names a child.
Of several versions of a workflow the highest is the default one. A file with findings is no child. Files, unlike
published versions, may lead back to where one began: whatever does is told to be circular.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from definitions import limits
from definitions.bound_limits import CEILINGS, BoundLimits
from definitions.bounds import NOTHING
from definitions.children import Child, ChildName, child_of
from definitions.compiler import Compiled, compile_definition
from definitions.graph import Graph

_SUFFIXES = frozenset({".yaml", ".yml"})


# The graphs of a definition's children, those of children too, by workflow and version.
Family = dict[tuple[str, int], Graph]


def compile_file(
    file: Path, others: Iterable[Path] = (), *, is_strict: bool = False, allowed: BoundLimits = CEILINGS
) -> Compiled:
    """Compile a definition file with the children that its steps name. Raises OSError if a file can't be read.

    What a namespace could allow is let through, unless it is said what one instance may use at most.
    """
    return compile_family(file, others, is_strict=is_strict, allowed=allowed)[0]


def compile_family(
    file: Path, others: Iterable[Path] = (), *, is_strict: bool = False, allowed: BoundLimits = CEILINGS
) -> tuple[Compiled, Family]:
    """Compile a definition file and give its children's graphs too. Raises OSError if a file can't be read."""
    data = file.read_bytes()
    compiled = compile_definition(data, is_strict=is_strict, allowed=allowed)
    if not compiled.wanted:
        return compiled, {}
    files = {path.resolve() for path in (*others, *_beside(file)) if path.stat().st_size <= limits.SOURCE_BYTES_MAX}
    # What a child may use is for its own publication to say, and part of what its parent uses.
    found = {path: compile_definition(path.read_bytes(), allowed=CEILINGS) for path in files}
    finder = _Finder({file.resolve(): compiled, **found})
    children = finder.children_of(file.resolve())
    return compile_definition(data, children, is_strict=is_strict, allowed=allowed), finder.family


def _beside(file: Path) -> Iterator[Path]:
    return (other for other in sorted(file.parent.iterdir()) if other.suffix in _SUFFIXES and other.is_file())


class _Finder:
    """Compiles files in the order of their needs."""

    def __init__(self, files: dict[Path, Compiled]) -> None:
        self._files = files
        self._done: dict[Path, Child | None] = {}
        self._open: list[Path] = []
        self._circular: set[Path] = set()
        self.family: Family = {}

    def children_of(self, path: Path) -> dict[ChildName, Child]:
        """Find the children that a file names, as far as there are files for them."""
        self._open.append(path)
        found = {name: child for name in self._files[path].wanted if (child := self._find(name)) is not None}
        self._open.pop()
        return found

    def _find(self, name: ChildName) -> Child | None:
        fitting = [
            (compiled.identity[1], path)
            for path, compiled in self._files.items()
            if compiled.identity is not None
            and compiled.identity[0] == name.workflow
            and name.version in {0, compiled.identity[1]}
        ]
        return self._child(max(fitting)[1]) if fitting else None

    def _child(self, path: Path) -> Child | None:
        if path in self._open:
            self._circular.update(self._open[self._open.index(path) :])
            return self._circle(path)
        if path not in self._done:
            compiled = self._files[path]
            if compiled.wanted:
                compiled = compile_definition(path.read_bytes(), self.children_of(path), allowed=CEILINGS)
            child = None if compiled.graph is None else child_of(compiled.graph)
            if compiled.graph is not None:
                self.family[compiled.graph.workflow, compiled.graph.version] = compiled.graph
            self._done[path] = self._circle(path) if path in self._circular else child
        return self._done[path]

    def _circle(self, path: Path) -> Child:
        identity = self._files[path].identity
        assert identity is not None, "only what has an identity is found by name"
        return Child(*identity, {}, {}, NOTHING, 0.0, 1, frozenset(), is_circular=True)
