"""`orbit instance ...`: what an operator does to an instance. Each command asks for a reason, for the audit."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from orbit.cli.options import JsonText, as_json, key_of, print_json

if TYPE_CHECKING:
    from orbit.sdk.client import Client
    from orbit.sdk.models import ControlResult

CommandT = Callable[..., Any]


def _operator(command: CommandT) -> CommandT:
    """Add what every command takes: the instance, the reason, the revision, the key."""
    for decorate in (
        as_json,
        key_of("command"),
        click.option(
            "--revision",
            "expected_revision",
            type=click.IntRange(1),
            help="Only if the instance is still at this revision.",
        ),
        click.option("--reason", required=True, help="Why, for the audit."),
        click.argument("instance_id", metavar="ID"),
    ):
        command = decorate(command)
    return command


@click.command()
@_operator
@click.option("--compensate", is_flag=True, help="Undo first what its steps have done, where the definition says how.")
def cancel(**said: Any) -> None:
    """End an instance as CANCELLED: what waits is cancelled, what runs is asked to stop.

    It says what the instance is then; `orbit watch ID` follows it to its end.
    """
    _control(lambda client: client.cancel_instance, **said)


@click.command()
@_operator
def pause(**said: Any) -> None:
    """Let nothing of an instance begin any more; what runs goes on, and its results are kept.

    PAUSED says that nothing runs, PAUSING that something still does. Waits and time budgets stand still.
    """
    _control(lambda client: client.pause_instance, **said)


@click.command()
@_operator
def resume(**said: Any) -> None:
    """Let a paused instance go on, with what was left of every wait and budget."""
    _control(lambda client: client.resume_instance, **said)


@click.command()
@click.argument("instance_id", metavar="ID")
@click.argument("action", type=click.Choice(["retry", "complete", "fail", "skip"]))
@click.option("--step", help="The step; left out for an instance that is held itself.")
@click.option("--output", type=JsonText(), help="For complete: the output you vouch for, JSON, @FILE, or - (stdin).")
@click.option("--evidence", type=JsonText(), required=True, help="What the decision rests on: JSON, @FILE, or -.")
@click.option("--reason", required=True, help="Why, for the audit.")
@click.option("--safety-statement", help="Why a retry can't repeat an effect; asked for where one is possible.")
@click.option("--revision", type=click.IntRange(1), help="Only if the instance is at this revision; default: as it is.")
@click.option("--dry-run", is_flag=True, help="Say what it would do, and do nothing.")
@key_of("decision")
@as_json
def recover(instance_id: str, action: str, revision: int | None, key: str, **rest: Any) -> None:
    """Decide about a failed step, a step under review, or a held instance.

    retry starts the step anew, complete takes an output from you, skip goes on without it, fail ends a failed step's
    instance or judges that a reviewed task has failed.
    """
    from msgspec import UNSET

    from orbit.sdk.client import Client
    from orbit.sdk.models import RecoverInstance

    with Client() as client:
        request = RecoverInstance(
            action=action.upper(),
            expected_revision=revision or client.get_instance(instance_id).revision,
            evidence=rest["evidence"],
            reason=rest["reason"],
            step=rest["step"],
            output=UNSET if rest["output"] is None else rest["output"],
            safety_statement=rest["safety_statement"],
            dry_run=rest["dry_run"] or None,
        )
        done = client.recover_instance(instance_id, key, request)
    if rest["as_json"]:
        print_json(done)
        return
    click.echo(f"{done.instance.id}  {_change(done.before, done.after)}{'  (dry run)' if done.dry_run else ''}")
    before, after = done.before.get("step"), done.after.get("step")
    if before and after:
        click.echo(f"{after['id']}  {_change(before, after)}")


def _change(before: dict[str, Any], after: dict[str, Any]) -> str:
    return f"{before['state']} -> {after['state']}"


def _control(
    verb: Callable[["Client"], Callable[..., "ControlResult"]],
    *,
    instance_id: str,
    key: str,
    as_json: bool,
    **said: Any,
) -> None:
    """Send a command with one of the client's methods and say how the instance is then."""
    from orbit.sdk.client import Client

    with Client() as client:
        done = verb(client)(instance_id, key, **said)
    if as_json:
        print_json(done)
        return
    instance = done.instance
    ending = "" if instance.ending_as is None else f" as {instance.ending_as}"
    paused = "" if instance.control in {"", "ACTIVE"} else f"  {instance.control}"
    click.echo(f"{instance.id}  {instance.state}{ending}{paused}  revision {instance.revision}")
