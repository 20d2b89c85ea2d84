"""Options and arguments that several commands share, and how they are read."""

import json
import re
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from orbit.jsontext import Json, JsonError, parse


def _node_database(ctx: click.Context, param: click.Parameter, value: str | None) -> str:  # noqa: ARG001  (click's)
    """Take the database that a node would take: the option, ORBIT_DATABASE_URL, the settings file, the default."""
    from orbit.settings import settings_load

    return value or settings_load().database_url


database_url = click.option(
    "--database-url",
    callback=_node_database,
    metavar="URL",
    help="mysql+pymysql://user:password@host/name, or sqlite:///file; what a node would use if not given.",
)


class Name(click.ParamType[str]):
    """A name as the API takes it."""

    name = "name"
    _pattern = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the name's form."""
        if self._pattern.fullmatch(value) is None:
            self.fail("1 to 128 characters: an ASCII letter or digit, then letters, digits and _ . : -", param, ctx)
        return str(value)


class JsonText(click.ParamType[Json]):
    """JSON given in place, as `@file`, or as `-` for standard input; read strictly, as the server would."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Json:
        """Read the value; fail with the place and reason of the first mistake."""
        if not isinstance(value, str):
            return value
        try:
            return parse(_text(value))
        except OSError as error:
            self.fail(f"{value.removeprefix('@')}: {error.strerror}", param, ctx)
        except JsonError as error:
            self.fail(f"not JSON: {error}", param, ctx)


def _text(value: str) -> bytes | str:
    if value == "-":
        return sys.stdin.buffer.read()
    return Path(value[1:]).read_bytes() if value.startswith("@") else value


def print_json(value: Any) -> None:
    """Print an answer for programs, objects of the SDK included: JSON, indented, with the characters as they are."""
    from msgspec import to_builtins

    click.echo(json.dumps(to_builtins(value), indent=2, ensure_ascii=False))


def key_of(what: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """Make the option for a write's idempotency key, a new one unless the user has one; `what` names the write."""
    text = f"The identity of this {what}: the same again does nothing new. Random if not given."
    return click.option("--key", default=lambda: secrets.token_hex(16), help=text)


as_json = click.option("--json", "as_json", is_flag=True, help="Print the server's answer as JSON.")
