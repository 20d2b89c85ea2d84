"""`orbit task batch preview` and `start`: one decision about many tasks. The rest is as for instances."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from orbit.cli.batches import begin, show_preview
from orbit.cli.options import JsonText, Name, as_json, key_of

if TYPE_CHECKING:
    from orbit.sdk.batch_models import TaskSelection

CommandT = Callable[..., Any]

_OPERATIONS = ("cancel", "review", "retry")
_STATES = ("WAITING", "LEASED", "RUNNING", "NEEDS_REVIEW", "FAILED", "CANCELLED")
_CHOICE = ("ids", "queue", "state", "type", "business_key", "label", "source", "created_after", "created_before")


def _selects(command: CommandT) -> CommandT:
    """Add the options that say which tasks are meant."""
    for decorate in (
        click.option("--created-before", metavar="INSTANT", help="Accepted before this instant."),
        click.option("--created-after", metavar="INSTANT", help="Accepted at this instant (RFC 3339) or later."),
        click.option("--source", metavar="KIND:ID", help="Made by this, such as retry:TASK."),
        click.option("--label", metavar="NAME=VALUE", help="With this label."),
        click.option("--business-key", help="With this business key."),
        click.option("--type", "type", type=Name(), help="Of this type."),
        click.option("--state", type=click.Choice(_STATES, case_sensitive=False), help="In this state."),
        click.option("--queue", type=Name(), help="In this queue; it needs --created-after."),
        click.option("--id", "ids", multiple=True, metavar="ID", help="This task; may be given more than once."),
        click.argument("operation", type=click.Choice(_OPERATIONS)),
    ):
        command = decorate(command)
    return command


@click.command()
@_selects
@as_json
def preview(operation: str, as_json: bool, **said: Any) -> None:
    """Say which tasks a batch would be about; nothing is changed.

    They are named by --id, or found by the other options, and then only those for which the operation can be meant and
    that no workflow owns.
    """
    from orbit.sdk.client import Client

    with Client() as client:
        found = client.preview_batch(f"task.{operation}", _selection(said))
    show_preview(found, "tasks", ("ID", "TYPE", "QUEUE", "STATE", "REVISION"), _cells, as_json=as_json)


@click.command()
@_selects
@click.option("--reason", required=True, help="Why, for the audit.")
@click.option("--rate", "rate_per_second", type=click.FloatRange(min=0, min_open=True), help="Items a second; 10.")
@click.option(
    "--verdict", type=click.Choice(["succeeded", "failed", "retry"]), help="For review: what is said of each."
)
@click.option("--evidence", type=JsonText(), help="For review and retry: what it rests on, JSON, @FILE, or - (stdin).")
@click.option("--output", type=JsonText(), help="For review succeeded: the result that you vouch for, of each.")
@click.option("--safety-statement", help="For retry: why another attempt can't repeat an outside effect.")
@click.option("--watch", "is_watched", is_flag=True, help="Follow it to its end, and list what was refused.")
@key_of("batch")
@as_json
def start(operation: str, key: str, as_json: bool, is_watched: bool, **said: Any) -> None:
    """Start a batch: each task is decided on its own, in order, and none is touched by another's refusal.

    The first line is the batch's id. `orbit task batch preview` with the same options says first which tasks it would
    be about.
    """
    from msgspec import UNSET

    from orbit.sdk.batch_models import CreateBatch

    request = CreateBatch(
        operation=f"task.{operation}",
        tasks=_selection(said),
        reason=said["reason"],
        rate_per_second=said["rate_per_second"],
        verdict=None if said["verdict"] is None else said["verdict"].upper(),
        evidence=UNSET if said["evidence"] is None else said["evidence"],
        output=UNSET if said["output"] is None else said["output"],
        safety_statement=said["safety_statement"],
    )
    begin(key, request, as_json=as_json, is_watched=is_watched)


def _cells(each: Any) -> tuple[str, ...]:
    return each.id, f"{each.type}@{each.version}", each.queue or "", each.state, str(each.revision)


def _selection(said: dict[str, Any]) -> "TaskSelection":
    from orbit.sdk.batch_models import TaskSelection

    chosen = {name: said[name] for name in _CHOICE}
    return TaskSelection(**chosen | {"ids": list(said["ids"]) or None})
