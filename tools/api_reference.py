"""Write the generated parts of `docs/http-api.md` and `docs/errors.md`; with `--check`, only say whether they are true.

The table of operations is made from what a node serves, that of errors from the classes of `orbit.errors` and `api`.
"""

import argparse
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from api.calls import Operation
from api.connection_caps import TooManyConnections  # noqa: F401  (registers its code)
from api.server import Node
from orbit.database import Database
from orbit.errors import OrbitError

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN = "<!-- generated: {name} -->"
END = "<!-- end -->"


def operations_table(operations: Iterable[Operation]) -> str:
    """Write the operations as a table, in the order of their paths."""
    lines = ["| operation | scope | key | what it does |", "|---|---|---|---|"]
    for operation in sorted(operations, key=lambda each: (each.path, each.method)):
        scopes = () if operation.scope is None else (operation.scope, *operation.or_scopes)
        scope = " or ".join(f"`{each}`" for each in scopes) or "none"
        key = "yes" if operation.keyed else ""
        lines.append(f"| `{operation.method} {operation.path}` | {scope} | {key} | {operation.summary} |")
    return "\n".join(lines)


def errors_table() -> str:
    """Write the codes as a table, by status."""
    lines = ["| code | status | send again | meaning |", "|---|---|---|---|"]
    kinds = {kind.code: kind for kind in reversed(_subclasses(OrbitError)) if kind.code != OrbitError.code}
    for kind in sorted(kinds.values(), key=lambda each: (each.status, each.code)):
        meaning = (kind.__doc__ or "").partition("\n")[0].rstrip(".")
        lines.append(f"| `{kind.code}` | {kind.status} | {'yes' if kind.retryable else 'no'} | {meaning} |")
    lines.append("| `INTERNAL` | 500 | no | A fault of the server; its log tells more under the request id |")
    return "\n".join(lines)


def replaced(text: str, name: str, content: str) -> str:
    """Return a document with the generated part of this name replaced."""
    begin = BEGIN.format(name=name)
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(END)
    return f"{head}{begin}\n{content}\n{END}{tail}"


def documents() -> dict[Path, str]:
    """Return what the documents should be."""
    with closing(Database.open("sqlite://")) as database:
        node = Node(database, name="reference")
        try:
            operations = operations_table(node.operations)
        finally:
            node.stop()
    api, errors = DOCS / "http-api.md", DOCS / "errors.md"
    return {
        api: replaced(api.read_text(encoding="utf-8"), "operations", operations),
        errors: replaced(errors.read_text(encoding="utf-8"), "errors", errors_table()),
    }


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    stale = [path for path, text in documents().items() if path.read_text(encoding="utf-8") != text]
    for path in stale:
        if is_check:
            print(f"{path} is stale: run python -m tools.api_reference", file=sys.stderr)
        else:
            path.write_text(documents()[path], encoding="utf-8")
    return 1 if is_check and stale else 0


def _subclasses(kind: type[OrbitError]) -> list[type[OrbitError]]:
    """List all kinds of refusal that are sent by the API, a general one after its special ones."""
    ours = [each for each in kind.__subclasses__() if each.__module__.partition(".")[0] in {"api", "orbit"}]
    return [deeper for each in ours for deeper in (each, *_subclasses(each))]


if __name__ == "__main__":
    sys.exit(main())
