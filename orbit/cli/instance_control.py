"""`orbit instance ...`: what an operator does to an instance. Each command asks for a reason, for the audit."""

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from orbit.cli.options import as_json, print_json

if TYPE_CHECKING:
    from orbit.sdk.models import ControlResult

CommandT = Callable[..., Any]


def _operator(command: CommandT) -> CommandT:
    """Add what every command takes: the instance, the reason, the revision, the key."""
    for decorate in (
        as_json,
        click.option(
            "--key", help="The identity of this command: the same again does nothing new. Random if not given."
        ),
        click.option("--revision", type=click.IntRange(1), help="Only if the instance is still at this revision."),
        click.option("--reason", required=True, help="Why, for the audit."),
        click.argument("instance_id", metavar="ID"),
    ):
        command = decorate(command)
    return command


@click.command()
@_operator
def cancel(instance_id: str, reason: str, revision: int | None, key: str | None, as_json: bool) -> None:  # noqa: FBT001
    """End an instance as CANCELLED: what waits is cancelled, what runs is asked to stop.

    It says what the instance is then; `orbit watch ID` follows it to its end.
    """
    from orbit.sdk.client import Client

    with Client() as client:
        done = client.cancel_instance(instance_id, _key(key), reason=reason, expected_revision=revision)
    _say(done, as_json=as_json)


def _key(key: str | None) -> str:
    return key or secrets.token_hex(16)


def _say(done: "ControlResult", *, as_json: bool) -> None:
    if as_json:
        from msgspec import to_builtins

        print_json(to_builtins(done))
        return
    instance = done.instance
    ending = "" if instance.ending_as is None else f" as {instance.ending_as}"
    click.echo(f"{instance.id}  {instance.state}{ending}  revision {instance.revision}")
