"""`orbit check`, `diff`, `graph` and `schema`: definitions where they lie; no server, no database."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from definitions.bound_limits import BoundLimits
    from definitions.findings import Finding
    from definitions.graph import Graph


with_children = click.option(
    "--with",
    "others",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with a child workflow that does not lie beside the definition; may be given more than once.",
)


class _LimitsFile(click.ParamType["BoundLimits"]):
    """A file with what `orbit namespace show --json` prints."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> "BoundLimits":
        """Read the limits."""
        from definitions.bound_limits import BoundLimits, limits_from_json
        from orbit.jsontext import parse

        if isinstance(value, BoundLimits):
            return value
        try:
            return limits_from_json(parse(Path(value).read_bytes()))
        except OSError as error:
            self.fail(f"{value}: {error.strerror}", param, ctx)
        except ValueError as error:
            self.fail(f"{value}: {error}", param, ctx)


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "github"]),
    default="text",
    show_default=True,
    help="For people, for programs (one JSON object), or as annotations of a GitHub run.",
)
@click.option("--strict", is_flag=True, help="Find also every field that is read and that no schema declares.")
@click.option(
    "--limits",
    "allowed",
    type=_LimitsFile(),
    metavar="FILE",
    help="The limits of a namespace, as `orbit namespace show --json` prints them; else the defaults hold.",
)
@with_children
def check(
    files: tuple[Path, ...], form: str, strict: bool, allowed: "BoundLimits | None", others: tuple[Path, ...]
) -> None:
    """Check workflow definitions and print every finding with its place; ends with 0 only if there are none.

    Child workflows are looked for in the files beside each definition, and in those of --with.
    """
    from definitions.bound_limits import DEFAULTS
    from definitions.child_files import compile_file
    from definitions.duration import format_duration
    from orbit.jsontext import dumps

    found = 0
    report = {}
    for file in files:
        compiled = compile_file(file, others, is_strict=strict, allowed=allowed or DEFAULTS)
        found += len(compiled.findings)
        report[str(file)] = [finding.to_json() for finding in compiled.findings]
        if form == "github":
            for finding in compiled.findings:
                click.echo(_annotation(file, finding))
        elif form == "text" and compiled.graph is None:
            click.echo(compiled.render(str(file)))
        elif form == "text" and compiled.graph is not None:
            graph = compiled.graph
            proven = graph.bounds
            click.echo(
                f"{file}: {graph.workflow} version {graph.version} is sound: at most {proven.tasks} tasks, "
                f"{proven.attempts} attempts, {proven.concurrent_tasks} at once, "
                f"{format_duration(proven.active_seconds)} of active time"
            )
    if form == "json":
        click.echo(dumps({"findings": report}).decode())
    sys.exit(1 if found else 0)


def _annotation(file: Path, finding: "Finding") -> str:
    """Write a finding as a workflow command of GitHub, which ends at a line break and has signs of its own."""

    def escaped(text: str, more: str = "") -> str:
        for sign in f"%\r\n{more}":
            text = text.replace(sign, f"%{ord(sign):02X}")
        return text

    place = f"file={escaped(str(file), ',:')},line={finding.line},col={finding.column},title={finding.code}"
    words = finding.message if finding.hint is None else f"{finding.message}\nhint: {finding.hint}"
    return f"::error {place}::{escaped(words)}"


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["svg", "mermaid"]),
    default="svg",
    show_default=True,
    help="A picture that stands alone, or text that documents and tickets draw.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write it here, not to stdout.",
)
@with_children
def graph(file: Path, form: str, output: Path | None, others: tuple[Path, ...]) -> None:
    """Draw the steps of the definition in FILE with their kinds, conditions and bounds."""
    from definitions.mermaid import graph_to_mermaid
    from definitions.svg import graph_to_svg

    compiled = _graph_of(file, others)
    drawn = graph_to_svg(compiled) if form == "svg" else graph_to_mermaid(compiled)
    if output is None:
        click.echo(drawn, nl=False)
    else:
        output.write_text(drawn, encoding="utf-8")


@click.command()
@click.argument("old", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("new", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object.")
@with_children
def diff(old: Path, new: Path, as_json: bool, others: tuple[Path, ...]) -> None:
    """Say what the definition in NEW means for running instances of the one in OLD.

    The verdict is same, safe, safe-at STEPS (for instances that have begun none of them), needs-mapping (steps seem to
    be renamed) or incompatible. Ends with 0 for same and safe.
    """
    from definitions.diff import Verdict, diff_graphs
    from orbit.jsontext import dumps

    found = diff_graphs(_graph_of(old, others), _graph_of(new, others))
    if as_json:
        click.echo(dumps(found.to_json()).decode())
    else:
        click.echo(" ".join([found.verdict, *found.at]))
        for old_step, new_step in found.mapping.items():
            click.echo(f"  {old_step} seems to be {new_step} now")
        for reason in found.reasons:
            click.echo(f"  {reason}")
    sys.exit(0 if found.verdict in {Verdict.SAME, Verdict.SAFE} else 1)


def _graph_of(file: Path, others: tuple[Path, ...]) -> "Graph":
    """Compile a file, or show its findings and leave."""
    from definitions.child_files import compile_file

    compiled = compile_file(file, others)
    if compiled.graph is None:
        click.echo(compiled.render(str(file)), err=True)
        sys.exit(1)
    return compiled.graph


@click.command()
def schema() -> None:
    """Print the JSON Schema of workflow definitions, for editors."""
    import json

    from definitions.language_schema import language_schema

    click.echo(json.dumps(language_schema(), indent=2, ensure_ascii=False))
