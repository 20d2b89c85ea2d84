"""`orbit simulate` and `orbit test`: workflows in virtual time; no server, no database."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from definitions.commands import with_children

if TYPE_CHECKING:
    from definitions.findings import Finding
    from engine.coverage import Item
    from engine.flow import Flow
    from engine.playing import Line
    from engine.rehearsal import Run
    from engine.script import Library, Scenario
    from orbit.jsontext import Json

_SUFFIX = ".test.yaml"
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("file", type=_FILE)
@click.option("--script", required=True, type=_FILE, help="YAML with `input`, `answers` by step, and perhaps `cancel`.")
@click.option("--json", "as_json", is_flag=True, help="Print the run as one JSON object.")
@click.option(
    "--explore",
    "runs_max",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run every order in which tasks can end and timers fire, N runs at most, and print in which ways it ended.",
)
@with_children
def simulate(
    file: Path,
    script: Path,
    as_json: bool,
    runs_max: int | None,
    others: tuple[Path, ...],
) -> None:
    """Run the definition in FILE in virtual time with scripted answers, and print all that happens.

    What runs is what a server runs; an hour of waiting takes no time. Ends with 1 if the definition or the script has
    mistakes, or the script lacks an answer.
    """
    from engine.rehearsal import read_script, run
    from engine.script import AnswerMissing

    flow, library = _flow(file, others)
    scenario, findings = read_script(script.read_bytes(), flow, library)
    if scenario is None:
        _refuse(script, findings)
    if runs_max is not None:
        try:
            _explore(scenario, flow, runs_max, as_json=as_json)
        except AnswerMissing as missing:
            click.echo(f"{script}: there is no answer for step {missing.step}", err=True)
            sys.exit(1)
        return
    made = run(scenario, flow)
    if made.outcomes is None:
        click.echo(f"{script}: there is no answer for step {made.missing}", err=True)
        sys.exit(1)
    if as_json:
        _print_json(made, flow)
    else:
        _print_run(made, flow)


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--min-coverage",
    type=click.IntRange(0, 100),
    default=0,
    help="Fail if less of a definition is covered, in per cent: steps, cases, skips, exhausted polls, error handlers "
    "and more.",
)
@with_children
def test(paths: tuple[Path, ...], min_coverage: int, others: tuple[Path, ...]) -> None:
    """Run the test files in PATHS (files, or folders with `*.test.yaml`; the current folder if none is given).

    A test file names its `workflow` and lists `tests`, each with `name`, `input`, `answers` and `expect`. Ends with 1
    if a test fails, a file has mistakes, or too little is covered.
    """
    from definitions.child_files import compile_family
    from engine.flow import Flow
    from engine.rehearsal import definition_of, differences, read_rehearsals, run

    failed = ran = 0
    of_children: defaultdict[tuple[str, int], set[Item]] = defaultdict(set)
    covered: dict[Path, tuple[Path, Flow, set[Item]]] = {}  # two test files of one definition count together
    for file in _test_files(paths or (Path(),)):
        text = file.read_bytes()
        definition, findings = definition_of(text, file)
        if definition is None:
            failed += _show(file, findings)
            continue
        compiled, family = compile_family(definition, others)
        if compiled.graph is None:
            failed += _show(definition, compiled.findings)
            continue
        _, flow, items = covered.setdefault(definition.resolve(), (definition, Flow(compiled.graph), set()))
        library = {name: Flow(graph) for name, graph in family.items()}
        rehearsals, findings = read_rehearsals(text, flow, library)
        if findings:
            failed += _show(file, findings)
            continue
        for rehearsal in rehearsals:
            made = run(rehearsal.scenario, flow)
            items |= made.covered(flow)
            for child in made.family():
                of_children[_identity(child.flow)] |= child.run.covered(child.flow)
            wrong = differences(rehearsal.expected, made)
            ran += 1
            failed += bool(wrong)
            click.echo(f"{'FAILED' if wrong else 'ok':7}{file}: {rehearsal.name}")
            for line in wrong:
                click.echo(f"       {line}")
    for _, flow, items in covered.values():
        items.update(of_children[_identity(flow)])  # what it did as a child counts for its own tests too
    if not ran and not failed:
        click.echo(f"no test was found: test files are named *{_SUFFIX}", err=True)
        sys.exit(1)
    too_little = [path for path, flow, items in covered.values() if _print_coverage(path, flow, items) < min_coverage]
    click.echo(f"{ran} tests, {failed} failed")
    for path in too_little:
        click.echo(f"{path} is covered less than {min_coverage} %", err=True)
    sys.exit(1 if failed or too_little else 0)


def _explore(scenario: Scenario, flow: Flow, runs_max: int, *, as_json: bool) -> None:
    """Print each way in which the orders end, how many come to it, and the first of them."""
    from engine.exploring import Search
    from engine.rehearsal import orders
    from orbit.jsontext import dumps

    search = Search()
    ends: dict[str, tuple[dict[str, Json], list[str]]] = {}
    counts: Counter[str] = Counter()
    for order in orders(scenario, flow, search, runs_max=runs_max):
        instance = order.outcomes.instance
        error = None if instance.error is None else instance.error.code
        output = _shown(flow, order.outcomes.output)
        end: dict[str, Json] = {"state": instance.state.value, "error": error, "output": output}
        key = dumps(end).decode()
        ends.setdefault(key, (end, list(order.events)))
        counts[key] += 1
    if as_json:
        found = [{**end, "orders": counts[key], "first": first} for key, (end, first) in ends.items()]
        report = {"runs": search.run_count, "complete": search.is_complete, "ends": found}
        click.echo(dumps(report).decode())
        return
    how = "all orders" if search.is_complete else "more orders are left"
    click.echo(f"{search.run_count} runs, {how}; {search.merged_count} of them led to where another had been")
    for key, (end, first) in ends.items():
        error = f" {end['error']}" if end["error"] else ""
        output = "" if end["output"] is None else f", output {dumps(end['output']).decode()}"
        click.echo(f"{counts[key]:6}  {end['state']}{error}{output}")
        click.echo(f"        as in: {', '.join(first) or 'the only order'}")


def _test_files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(path.rglob(f"*{_SUFFIX}"))
        else:
            yield path


def _flow(file: Path, others: tuple[Path, ...]) -> tuple[Flow, Library]:
    from definitions.child_files import compile_family
    from engine.flow import Flow

    compiled, family = compile_family(file, others)
    if compiled.graph is None:
        _refuse(file, compiled.findings)
    return Flow(compiled.graph), {name: Flow(graph) for name, graph in family.items()}


def _refuse(file: Path, findings: Iterable[Finding]) -> NoReturn:
    _show(file, findings)
    sys.exit(1)


def _show(file: Path, findings: Iterable[Finding]) -> int:
    """Print findings; count the file as one failure."""
    for finding in findings:
        click.echo(finding.render(str(file)), err=True)
    return 1


def _print_coverage(path: Path, flow: Flow, items: set[Item]) -> float:
    """Print what of a definition is covered and what is not; return the share in per cent."""
    from engine.coverage import items_of

    wanted = items_of(flow.graph)
    share = 100 * len(items) / len(wanted)
    click.echo(f"{path}: {len(items)} of {len(wanted)} covered ({share:.0f} %)")
    for item in sorted(wanted - items, key=lambda item: (flow.order[item.step], item)):
        click.echo(f"       not covered: {item}")
    return share


def _shown(flow: Flow, output: Json) -> Json:
    """Give an output as a server would show it: what the definition masks is masked here too."""
    from engine.hiding import values_shown

    return values_shown(flow.hiding, {"output": output})["output"]


def _print_run(made: Run, flow: Flow) -> None:
    from definitions.duration import format_duration
    from orbit.jsontext import dumps

    assert made.outcomes is not None
    for at_seconds, line, family in _lines(made):
        entry = line.entry
        data = dumps(dict(entry.data)).decode() if entry.data else ""
        click.echo(f"{at_seconds:12.3f}  {entry.kind:24} {family + (entry.step or ''):16} {data}".rstrip())
    instance = made.outcomes.instance
    tasks = sum(made.tasks.values())
    click.echo(f"{instance.state} after {format_duration(made.elapsed_seconds)} with {tasks} tasks")
    if instance.error is not None:
        click.echo(f"error: {instance.error.code}: {instance.error.message}")
    if made.outcomes.output is not None:
        click.echo(f"output: {dumps(_shown(flow, made.outcomes.output)).decode()}")


def _lines(made: Run, family: str = "", since_seconds: float = 0.0) -> list[tuple[float, Line, str]]:
    """List all that happened, in children too, in its order; the steps that lead to a child stand before its own."""
    from orbit.clock import SECOND

    assert made.outcomes is not None
    found = [(since_seconds + line.at_seconds, line, family) for line in made.outcomes.trace]
    for child in made.children:
        assert child.run.outcomes is not None
        later = (child.run.outcomes.instance.started_at - made.outcomes.instance.started_at) / SECOND
        found += _lines(child.run, f"{family}{child.step}/", since_seconds + later)
    return sorted(found, key=lambda entry: entry[1].order)


def _identity(flow: Flow) -> tuple[str, int]:
    return flow.graph.workflow, flow.graph.version


def _print_json(made: Run, flow: Flow) -> None:
    from orbit.jsontext import dumps

    click.echo(dumps(_report(made, flow)).decode())


def _report(made: Run, flow: Flow) -> dict[str, Json]:
    assert made.outcomes is not None
    instance = made.outcomes.instance
    trace = [
        {"at_seconds": line.at_seconds, "kind": line.entry.kind, "step": line.entry.step, "data": dict(line.entry.data)}
        for line in made.outcomes.trace
    ]
    return {
        "state": instance.state.value,
        "error": None if instance.error is None else instance.error.to_json(),
        "output": _shown(flow, made.outcomes.output),
        "tasks": made.tasks,
        "elapsed_seconds": made.elapsed_seconds,
        "trace": trace,
        "children": [
            {"step": child.step, "workflow": child.flow.graph.workflow, "version": child.flow.graph.version}
            | _report(child.run, child.flow)
            for child in made.children
        ],
    }
