"""`orbit instance batch ...`: one decision about many instances, previewed, started, watched and stopped.

What is done with a batch once it has started is the same for batches of tasks.

What a batch decides is decided by the server, item by item, whether or not anybody watches.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from orbit.cli.instances import table
from orbit.cli.options import JsonText, as_json, key_of, print_json

if TYPE_CHECKING:
    from orbit.sdk.batch_models import Batch, BatchEntry, BatchPreview, CreateBatch, InstanceSelection
    from orbit.sdk.client import Client

CommandT = Callable[..., Any]

_OPERATIONS = ("pause", "resume", "cancel", "recover", "migrate")
_STATES = ("RUNNING", "NEEDS_RECOVERY", "ENDING", "COMPENSATING")
_CHOICE = (
    "ids", "workflow", "version", "state", "control", "business_key", "label", "created_after", "created_before",
)  # fmt: skip
_BATCH_HEAD = ("ID", "OPERATION", "STATE", "ALL", "DONE", "REFUSED", "PENDING", "STOPPED", "CREATED")


def _selects(command: CommandT) -> CommandT:
    """Add the options that say which instances are meant."""
    for decorate in (
        click.option("--created-before", metavar="INSTANT", help="Started before this instant."),
        click.option("--created-after", metavar="INSTANT", help="Started at this instant (RFC 3339) or later."),
        click.option("--label", metavar="NAME=VALUE", help="With this label."),
        click.option("--business-key", help="With this business key."),
        click.option("--control", type=click.Choice(["ACTIVE", "PAUSING", "PAUSED"], case_sensitive=False)),
        click.option("--state", type=click.Choice(_STATES, case_sensitive=False), help="In this state."),
        click.option("--version", type=click.IntRange(1), help="Of this version."),
        click.option("--workflow", help="Of this workflow."),
        click.option("--id", "ids", multiple=True, metavar="ID", help="This instance; may be given more than once."),
        click.argument("operation", type=click.Choice(_OPERATIONS)),
    ):
        command = decorate(command)
    return command


@click.command()
@_selects
@as_json
def preview(operation: str, as_json: bool, **said: Any) -> None:
    """Say which instances a batch would be about; nothing is changed.

    They are named by --id, or found by --workflow, --business-key or --label, narrowed by the rest. Only those are
    found for which the operation can be meant.
    """
    from orbit.sdk.client import Client

    with Client() as client:
        found = client.preview_batch(f"instance.{operation}", _selection(said))
    show_preview(found, "instances", ("ID", "WORKFLOW", "STATE", "CONTROL", "REVISION"), _cells, as_json=as_json)


@click.command()
@_selects
@click.option("--reason", required=True, help="Why, for the audit.")
@click.option("--rate", "rate_per_second", type=click.FloatRange(min=0, min_open=True), help="Items a second; 10.")
@click.option("--compensate", is_flag=True, help="For cancel: undo first what the steps have done.")
@click.option("--to-version", type=click.IntRange(1), help="For migrate: the version to go on with.")
@click.option("--action", type=click.Choice(["retry", "complete", "fail", "skip"]), help="For recover.")
@click.option("--step", help="For recover: the step; the one that has failed in each instance if not given.")
@click.option("--evidence", type=JsonText(), help="For recover: what it rests on, JSON, @FILE, or - (stdin).")
@click.option("--output", type=JsonText(), help="For recover complete: the output you vouch for.")
@click.option("--safety-statement", help="For recover retry: why it can't repeat an effect.")
@click.option("--watch", "is_watched", is_flag=True, help="Follow it to its end, and list what was refused.")
@key_of("batch")
@as_json
def start(operation: str, key: str, as_json: bool, is_watched: bool, **said: Any) -> None:
    """Start a batch: each instance is decided on its own, in order, and none is touched by another's refusal.

    The first line is the batch's id. `orbit instance batch preview` with the same options says first which instances
    it would be about.
    """
    from msgspec import UNSET

    from orbit.sdk.batch_models import CreateBatch

    request = CreateBatch(
        operation=f"instance.{operation}",
        instances=_selection(said),
        reason=said["reason"],
        rate_per_second=said["rate_per_second"],
        compensate=said["compensate"] or None,
        version=said["to_version"],
        action=None if said["action"] is None else said["action"].upper(),
        step=said["step"],
        evidence=UNSET if said["evidence"] is None else said["evidence"],
        output=UNSET if said["output"] is None else said["output"],
        safety_statement=said["safety_statement"],
    )
    begin(key, request, as_json=as_json, is_watched=is_watched)


@click.command()
@click.argument("batch_id", metavar="ID")
@as_json
def watch(batch_id: str, as_json: bool) -> None:
    """Follow a batch to its end, and list what was refused. Ends with 1 if something was, or if it was stopped."""
    from orbit.sdk.client import Client

    with Client() as client:
        _follow(client, batch_id, as_json=as_json)


@click.command()
@click.argument("batch_id", metavar="ID")
@as_json
def show(batch_id: str, as_json: bool) -> None:
    """Show a batch: what it decides, about what, why, and how far it is."""
    from orbit.sdk.client import Client

    with Client() as client:
        found = client.get_batch(batch_id)
    if as_json:
        print_json(found)
        return
    from orbit.jsontext import dumps

    click.echo(f"{_progress(found)}  {found.rate_per_second:g} a second")
    click.echo(f"selected  {dumps(found.selection).decode()}")
    click.echo(f"reason    {found.reason}")
    click.echo(f"created   {found.created_at}")
    if found.finished_at:
        click.echo(f"finished  {found.finished_at}")


@click.command()
@click.argument("batch_id", metavar="ID")
@click.option(
    "--state",
    type=click.Choice(["PENDING", "DONE", "REFUSED", "STOPPED"], case_sensitive=False),
    help="Only those in this state.",
)
@as_json
def items(batch_id: str, state: str | None, as_json: bool) -> None:
    """List a batch's items in order, with what came of each."""
    from orbit.sdk.client import Client

    with Client() as client:
        found = list(client.batch_items(batch_id, **({} if state is None else {"state": state})))
    if as_json:
        print_json(found)
        return
    for line in table(("ID", "ITEM", "OUTCOME"), [_item_cells(each) for each in found]):
        click.echo(line)


@click.command("list")
@click.option("--count", type=click.IntRange(1), default=20, show_default=True, help="At most so many.")
@as_json
def list_(count: int, as_json: bool) -> None:
    """List batches, of tasks too, the newest first."""
    from itertools import islice

    from orbit.sdk.client import Client

    with Client() as client:
        found = list(islice(client.list_batches(), count))
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each.id,
            each.operation,
            each.state,
            *(str(number) for number in (each.items.all, each.items.done, each.items.refused, each.items.pending)),
            str(each.items.stopped),
            each.created_at[:19],
        )
        for each in found
    ]
    for line in table(_BATCH_HEAD, rows):
        click.echo(line)


@click.command()
@click.argument("batch_id", metavar="ID")
@click.option("--reason", required=True, help="Why, for the audit.")
@key_of("stop")
@as_json
def stop(batch_id: str, reason: str, key: str, as_json: bool) -> None:
    """Stop a batch before its next item; what was done stays done."""
    from orbit.sdk.client import Client

    with Client() as client:
        done = client.stop_batch(batch_id, key, reason=reason)
    if as_json:
        print_json(done)
    else:
        click.echo(_progress(done.batch))


def _selection(said: dict[str, Any]) -> "InstanceSelection":
    from orbit.sdk.batch_models import InstanceSelection

    chosen = {name: said[name] for name in _CHOICE}
    return InstanceSelection(**chosen | {"ids": list(said["ids"]) or None})


def _cells(each: Any) -> tuple[str, ...]:
    return each.id, f"{each.workflow}@{each.version}", each.state, each.control, str(each.revision)


def show_preview(
    found: "BatchPreview", what: str, head: tuple[str, ...], cells: Callable[[Any], tuple[str, ...]], *, as_json: bool
) -> None:
    """Print what a batch would be about: counts by state, and the first of them."""
    if as_json:
        print_json(found)
        return
    states = ", ".join(f"{count} {state}" for state, count in sorted(found.by_state.items()))
    click.echo(f"{found.count} {what}{f': {states}' if states else ''}")
    if found.first:
        for line in table(head, [cells(each) for each in found.first]):
            click.echo(line)
    if found.count > len(found.first):
        click.echo(f"and {found.count - len(found.first)} more")


def begin(key: str, request: "CreateBatch", *, as_json: bool, is_watched: bool) -> None:
    """Start a batch, print its id, and follow it if that is wanted."""
    from orbit.sdk.client import Client

    with Client() as client:
        done = client.create_batch(key, request)
        if as_json and not is_watched:
            print_json(done)
            return
        if not as_json:
            click.echo(done.batch.id)
        if is_watched:
            _follow(client, done.batch.id, as_json=as_json)


def _follow(client: "Client", batch_id: str, *, as_json: bool) -> None:
    """Say how far a batch is until it has ended, then what was refused; leave with 1 if not all was done."""
    say = (lambda _line: None) if as_json else click.echo
    batch = client.batch_result(batch_id, lambda seen: say(_progress(seen)))
    refused = list(client.batch_items(batch_id, state="REFUSED")) if batch.items.refused else []
    if as_json:
        print_json({"batch": batch, "refused": refused})
    for each in refused:
        say("  ".join(_item_cells(each)))
    if batch.items.done != batch.items.all:
        raise SystemExit(1)


def _progress(batch: "Batch") -> str:
    counts = batch.items
    parts = [f"{counts.done} of {counts.all} done"]
    parts += [
        f"{count} {what}"
        for what, count in (("refused", counts.refused), ("pending", counts.pending), ("stopped", counts.stopped))
        if count
    ]
    return f"{batch.operation}  {batch.state}  {', '.join(parts)}"


def _item_cells(entry: "BatchEntry") -> tuple[str, ...]:
    outcome = entry.outcome
    if not isinstance(outcome, dict):
        return entry.subject_id, entry.state, ""
    if "code" in outcome:
        reasons = (outcome.get("details") or {}).get("reasons", [])
        more = "".join(f"; {each.get('step') or 'definition'}: {each.get('what')}" for each in reasons[1:])
        return entry.subject_id, entry.state, f"{outcome['code']}: {outcome.get('message', '')}{more}"
    if "successor" in outcome:
        return entry.subject_id, entry.state, f"retried as {outcome['successor']}"
    outcome = outcome.get("task", outcome)
    if "cancel_requested" in outcome:
        asked = ", asked to stop" if outcome["cancel_requested"] else ""
        return entry.subject_id, entry.state, f"{outcome.get('state')}{asked}"
    control = outcome.get("control")
    paused = "" if control in {None, "ACTIVE"} else f" {control}"
    return entry.subject_id, entry.state, f"{outcome.get('state', '')}{paused} at revision {outcome.get('revision')}"
