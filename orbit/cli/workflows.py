"""`orbit publish` and `orbit start`: bring a definition to the server and run it."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orbit.cli.options import JsonText, as_json, key_of, print_json
from orbit.jsontext import Json

if TYPE_CHECKING:
    from orbit.sdk.version_models import Notice


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@as_json
def publish(file: Path, as_json: bool) -> None:
    """Publish the workflow definition in FILE (- is standard input).

    The same content again is the same version. A definition with mistakes is not published: all of them are shown, each
    with its place.
    """
    from orbit.sdk.client import Client
    from orbit.sdk.errors import APIError

    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    with Client() as client:
        try:
            published = client.publish_workflow(text)
        except APIError as error:
            if error.code == "DEFINITION_INVALID":
                _show_findings(str(file), error.details)
            raise
    if as_json:
        print_json(
            {
                "workflow": published.workflow,
                "version": published.version,
                "digest": published.digest,
                "bounds": published.bounds,
                "deduplicated": published.deduplicated,
                "diff": published.diff,
                "warnings": published.warnings,
            }
        )
        return
    known = " (known already)" if published.deduplicated else ""
    click.echo(f"published  {published.workflow} version {published.version}{known}")
    bounds = published.bounds
    click.echo(
        f"bounds     at most {bounds.get('tasks')} tasks, {bounds.get('attempts')} attempts, "
        f"{bounds.get('concurrent_tasks')} at once"
    )
    if published.diff is not None:
        found = published.diff
        click.echo(f"running    {' '.join([found.verdict, *found.at])}, for instances of version {found.against}")
    _show_warnings(published.warnings)


@click.command()
@click.argument("workflow")
@click.option("--input", "input_", type=JsonText(), help="What the workflow asks for: JSON, @FILE, or - (stdin).")
@click.option("--version", type=click.IntRange(1), help="The version to run; the workflow's default one if not given.")
@click.option("--business-key", help="Your own look-up string.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label to find it by; may be repeated.")
@click.option("--pause-at", multiple=True, metavar="STEP", help="Pause before this step; may be repeated.")
@key_of("start")
@as_json
def start(workflow: str, input_: Json, version: int | None, business_key: str, **rest: Any) -> None:
    """Start an instance of WORKFLOW and print its id, alone on a line, for `orbit watch`."""
    from msgspec import UNSET

    from orbit.sdk.client import Client
    from orbit.sdk.models import StartInstance

    request = StartInstance(
        workflow=workflow,
        version=version,
        input=UNSET if input_ is None else input_,
        business_key=business_key,
        labels=_labels(rest["labels"]),
        pause_at=list(rest["pause_at"]) or None,
    )
    with Client() as client:
        started = client.start_instance(rest["key"], request)
    _show_warnings(started.warnings)
    if rest["as_json"]:
        instance = started.instance
        print_json(
            {
                "id": instance.id,
                "workflow": instance.workflow,
                "version": instance.version,
                "state": instance.state if started.current is None else started.current.state,
                "deduplicated": started.deduplicated,
            }
        )
        return
    click.echo(started.instance.id)


def _show_warnings(warnings: "Iterable[Notice]") -> None:
    """Print what was accepted and deserves a look, beside the answer and not in it."""
    for warning in warnings:
        click.secho(f"warning: {warning.message} ({warning.code})", fg="yellow", err=True)


def _show_findings(file: str, details: Any) -> None:
    """Print findings as `orbit check` does: a place that terminals and editors turn into a link, the line, a caret."""
    findings = details.get("findings", []) if isinstance(details, Mapping) else []
    for finding in findings:
        place = f"{file}:{finding.get('line')}:{finding.get('column')}"
        click.echo(f"{place}: {finding.get('code')}: {finding.get('message')}", err=True)
        if finding.get("source_line"):
            click.echo(f"    {finding['source_line']}", err=True)
            click.echo(f"    {' ' * (int(finding.get('caret') or 1) - 1)}^", err=True)
        if finding.get("hint"):
            click.echo(f"    hint: {finding['hint']}", err=True)


def _labels(said: Sequence[str]) -> dict[str, str] | None:
    labels = {}
    for each in said:
        name, separator, value = each.partition("=")
        if not name or not separator:
            raise click.BadParameter(f"a label is NAME=VALUE, not {each}", param_hint="--label")
        labels[name] = value
    return labels or None
