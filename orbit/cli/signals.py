"""`orbit instance signal` and `orbit instance signals`: tell an instance something, and see what it was told."""

from typing import TYPE_CHECKING

import click

from orbit.cli.instances import table
from orbit.cli.options import JsonText, as_json, key_of, print_json
from orbit.jsontext import Json

if TYPE_CHECKING:
    from orbit.sdk.signal_models import Signal

_workflow = click.option("--workflow", help="TARGET is a business key of this workflow, also of an instance to come.")


@click.command()
@click.argument("target", metavar="TARGET")
@click.argument("name", metavar="NAME")
@_workflow
@click.option("--payload", type=JsonText(), help="The output of the wait that takes it: JSON, @FILE, or - (stdin).")
@click.option("--signal-id", help="What you call this signal: the same again is the same signal. The key if not given.")
@click.option(
    "--ttl", "ttl_seconds", type=click.FloatRange(min=1), help="Seconds that it may wait; 7 days if not given."
)
@key_of("command")
@as_json
def signal(target: str, name: str, workflow: str | None, as_json: bool, **rest: Json) -> None:
    """Send the signal NAME to the instance TARGET, or with --workflow by its business key.

    A wait takes it now, or when it is reached; a signal that comes before its instance is kept for it.
    """
    from msgspec import UNSET

    from orbit.sdk.client import Client
    from orbit.sdk.signal_models import SendSignal

    request = SendSignal(
        name=name,
        payload=UNSET if rest["payload"] is None else rest["payload"],
        signal_id=rest["signal_id"],
        ttl_seconds=rest["ttl_seconds"],
    )
    key = rest["key"]
    with Client() as client:
        if workflow is None:
            done = client.signal_instance(target, key, request)
        else:
            done = client.send_signal(workflow, target, key, request)
    if as_json:
        print_json(done)
        return
    sent = done.signal
    whom = f"to {sent.instance_id}" if sent.instance_id else f"kept until {sent.expires_at} for {sent.business_key}"
    click.echo(f"{sent.id}  {sent.name}  {whom}")


@click.command()
@click.argument("target", metavar="TARGET")
@_workflow
@as_json
def signals(target: str, workflow: str | None, as_json: bool) -> None:
    """List the signals of the instance TARGET, or with --workflow those that wait for its business key."""
    from orbit.sdk.client import Client

    with Client() as client:
        found = list(client.instance_signals(target) if workflow is None else client.kept_signals(workflow, target))
    if as_json:
        print_json(found)
        return
    for line in table(("SENT", "NAME", "STATE", "STEP", "PAYLOAD"), [_cells(each) for each in found]):
        click.echo(line)


def _cells(each: "Signal") -> tuple[str, ...]:
    from orbit.jsontext import dumps

    return each.sent_at, each.name, each.state, each.step or "", dumps(each.payload).decode()
