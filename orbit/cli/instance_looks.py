"""`orbit instance list`, `explain`, `history` and `graph`: what instances there are, why one stands, what it did."""

from typing import Any

import click

from orbit.cli.instances import entry_line, table
from orbit.cli.options import as_json, print_json

_STATES = ("RUNNING", "NEEDS_RECOVERY", "ENDING", "COMPENSATING", "SUCCEEDED", "FAILED", "CANCELLED")
_COUNT_DEFAULT = 50


@click.command("list")
@click.option("--workflow", help="Of this workflow.")
@click.option("--version", type=click.IntRange(1), help="Of this version.")
@click.option("--state", type=click.Choice(_STATES, case_sensitive=False), help="In this state.")
@click.option(
    "--control", type=click.Choice(["ACTIVE", "PAUSING", "PAUSED"], case_sensitive=False), help="Paused or not."
)
@click.option("--business-key", help="With this business key.")
@click.option("--created-after", metavar="INSTANT", help="Started at this instant (RFC 3339) or later.")
@click.option("--created-before", metavar="INSTANT", help="Started before this instant.")
@click.option("--count", type=click.IntRange(1), default=_COUNT_DEFAULT, show_default=True, help="At most so many.")
@as_json
def list_(count: int, as_json: bool, **wanted: Any) -> None:
    """List instances, the newest start first."""
    from itertools import islice

    from orbit.sdk.client import Client

    query = {name: value for name, value in wanted.items() if value is not None}
    with Client() as client:
        found = list(islice(client.list_instances(**query), count))
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each.id,
            f"{each.workflow}@{each.version}",
            each.state if each.control in {"", "ACTIVE"} else f"{each.state} ({each.control})",
            each.business_key or "",
            each.started_at[:19],
        )
        for each in found
    ]
    for line in table(("ID", "WORKFLOW", "STATE", "BUSINESS KEY", "STARTED"), rows):
        click.echo(line)


@click.command()
@click.argument("instance_id", metavar="ID")
@as_json
def explain(instance_id: str, as_json: bool) -> None:
    """Say why an instance is not moving: one line for each thing that it waits for."""
    from orbit.sdk.client import Client

    with Client() as client:
        found = client.explain_instance(instance_id)
    if as_json:
        print_json(found)
        return
    click.echo(f"{found.state}: {found.summary}")
    for reason in found.waits_for:
        click.echo(f"  {reason.get('kind', '')}: {reason.get('text', '')}")


@click.command()
@click.argument("instance_id", metavar="ID")
@as_json
def history(instance_id: str, as_json: bool) -> None:
    """Print what happened to an instance, in order."""
    from orbit.sdk.client import Client

    with Client() as client:
        entries = list(client.instance_history(instance_id))
    if as_json:
        print_json(entries)
        return
    for entry in entries:
        click.echo(entry_line(entry))


@click.command()
@click.argument("instance_id", metavar="ID")
@as_json
def recoveries(instance_id: str, as_json: bool) -> None:
    """List what people have decided about an instance, with the evidence, and what came too late after that."""
    from orbit.jsontext import dumps
    from orbit.sdk.client import Client

    with Client() as client:
        found = list(client.instance_recoveries(instance_id))
    if as_json:
        print_json(found)
        return
    for each in found:
        about = "the instance" if each.step is None else f"step {each.step}, round {each.round}"
        click.echo(f"{each.at}  {each.action} of {about}, to revision {each.revision}")
        click.echo(f"  by        {each.actor}: {each.reason}")
        click.echo(f"  evidence  {dumps(each.evidence).decode()}  sha256 {each.evidence_sha256}")
        if each.safety_statement is not None:
            click.echo(f"  safety    {each.safety_statement}")
        for late in each.superseded:
            click.echo(
                f"  too late  {late.get('recorded_at')}  {late.get('outcome')}: {dumps(late.get('output')).decode()}"
            )


@click.command()
@click.argument("instance_id", metavar="ID")
@click.option(
    "--format", "form", type=click.Choice(["svg", "mermaid"]), default="svg", show_default=True, help="What to write."
)
@click.option("--output", "-o", type=click.File("w", encoding="utf-8"), default="-", help="A file.")
def graph(instance_id: str, form: str, output: Any) -> None:
    """Draw an instance's steps with the state of each."""
    from orbit.sdk.client import Client

    with Client() as client:
        output.write(client.instance_graph(instance_id, form=form))
