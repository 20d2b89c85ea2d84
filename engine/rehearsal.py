"""Rehearsals: the YAML test files beside definitions. What each runs, what it expects, and how the two differ.

A test file names its definition and lists tests; each is a scenario with expectations. Nothing that is not written is
expected, but for one thing: a run that the script leaves without an answer has failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as Lookup
from dataclasses import dataclass, field
from pathlib import Path

from definitions import limits, names
from definitions.codes import Code
from definitions.duration import format_duration
from definitions.fields import Fields, Keys
from definitions.findings import Finding, Findings
from definitions.graph import ChildSpec
from definitions.hints import did_you_mean
from definitions.source import Source
from definitions.yaml_tree import Broken, Mapping, YamlNode, read_yaml, to_json
from engine.coverage import Item, covered_by, path_of
from engine.exploring import Choice, Order, Ordered, Search, explore
from engine.flow import Flow
from engine.playing import Outcomes
from engine.script import SCRIPT_KEYS, AnswerMissing, Library, Scenario, Script, read_scenario
from engine.simulator import Simulation
from engine.states import INSTANCE_TERMINAL, InstanceState, StepState
from orbit.canonical import canonical
from orbit.clock import SECOND
from orbit.jsontext import Json

_SCRIPT = Keys("a script", SCRIPT_KEYS)
_FILE = Keys("a test file", frozenset({"workflow", "tests"}))
_TEST = Keys("a test", SCRIPT_KEYS | {"name", "expect"})
_EXPECT = Keys(
    "`expect`", frozenset({"state", "error", "output", "path", "steps", "cases", "tasks", "time", "children"}), {}
)
_TIME = Keys("`time`", frozenset({"min", "max"}))
NO_CHILDREN: Library = {}

# How a run can end: by itself, or where only a person can go on. RUNNING is a parent whose child waits for one.
_ENDS = INSTANCE_TERMINAL | {InstanceState.NEEDS_RECOVERY, InstanceState.RUNNING}
_STATES = tuple(state.value for state in InstanceState if state in _ENDS)


@dataclass(frozen=True, slots=True)
class Expectations:
    """What a run has to show; None is not looked at. `tasks` counts all, or by step; times in seconds.

    `children` says it by step of those that run by their own definitions, of several the last.
    """

    state: str | None = None
    error: str | None = None
    output: tuple[Json] | None = None  # in a tuple, because null is an output
    path: list[str] | None = None
    steps: dict[str, Json] | None = None
    cases: dict[str, Json] | None = None
    tasks: int | dict[str, Json] | None = None
    time: tuple[float, float] | None = None
    children: Lookup[str, Expectations] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """One test: its name, what it runs and what it expects."""

    name: str
    scenario: Scenario
    expected: Expectations


@dataclass(frozen=True, slots=True)
class Run:
    """A scenario that has been run. `missing` is the step that the script has no answer for, and then nothing else."""

    outcomes: Outcomes | None
    tasks: dict[str, int]
    missing: str | None
    elapsed_seconds: float
    tasks_of_items: dict[str, int] = field(default_factory=dict)
    children: tuple[ChildRun, ...] = ()

    def covered(self, flow: Flow) -> frozenset[Item]:
        """List what the run has covered."""
        return frozenset() if self.outcomes is None else covered_by(flow.graph, self.outcomes.trace)

    def family(self) -> Iterator[ChildRun]:
        """Give all children that ran by their own definitions, each before its own."""
        for child in self.children:
            yield child
            yield from child.run.family()


@dataclass(frozen=True, slots=True)
class ChildRun:
    """A child that ran by its own definition."""

    step: str
    flow: Flow
    run: Run


def read_script(text: bytes, flow: Flow, library: Library = NO_CHILDREN) -> tuple[Scenario | None, tuple[Finding, ...]]:
    """Read a script file: a scenario without expectations, or what is wrong with it."""
    tree, findings = _open(text)
    fields = None if tree is None else Fields(tree, _SCRIPT, findings)
    scenario = None if fields is None else read_scenario(fields, flow, library)
    return (None if findings else scenario), findings.sorted()


def definition_of(text: bytes, file: Path) -> tuple[Path | None, tuple[Finding, ...]]:
    """Read which definition a test file is about, as a path beside it."""
    tree, findings = _open(text)
    if tree is None:
        return None, findings.sorted()
    fields = Fields(tree, _FILE, findings)
    name = fields.text("workflow", required=True)
    if name is None:
        return None, findings.sorted()
    path = file.parent / name
    if not path.is_file():
        findings.at(Code.BAD_VALUE, tree.entries["workflow"][1].place, f"there is no file {path}")
        return None, findings.sorted()
    return path, ()


def read_rehearsals(
    text: bytes, flow: Flow, library: Library = NO_CHILDREN
) -> tuple[list[Rehearsal], tuple[Finding, ...]]:
    """Read the tests of a file; with findings, none of them should be run."""
    tree, findings = _open(text)
    rehearsals: list[Rehearsal] = []
    if tree is not None:
        listed = Fields(tree, _FILE, findings).sequence_of("tests", required=True)
        for node in () if listed is None else listed.items:
            if isinstance(node, Mapping):
                rehearsals.append(_read_rehearsal(Fields(node, _TEST, findings), flow, library))
            elif not isinstance(node, Broken):
                findings.at(Code.WRONG_TYPE, node.place, "a test must be an object with `name`, `answers` and `expect`")
    return rehearsals, findings.sorted()


def run(scenario: Scenario, flow: Flow) -> Run:
    """Run a scenario in virtual time."""
    script = Script(scenario)
    simulation = Simulation(flow, script, input_value=scenario.input)
    scenario.send(simulation)
    try:
        outcomes = simulation.run()
    except AnswerMissing as missing:
        return Run(None, dict(script.accepted), missing.step, 0.0)
    return _made(outcomes, script)


def _made(outcomes: Outcomes, script: Script) -> Run:
    instance = outcomes.instance
    ended_at = instance.finished_at
    last = outcomes.trace[-1].at_seconds if outcomes.trace else 0.0
    elapsed = last if ended_at is None else (ended_at - instance.started_at) / SECOND
    children = []
    for child in outcomes.children:
        assert isinstance(child.script, Script), "it was made of a scenario"
        children.append(ChildRun(child.step, child.flow, _made(child.outcomes, child.script)))
    items = dict(script.accepted_of_items)
    return Run(outcomes, dict(script.accepted), None, elapsed, items, tuple(children))


def orders(scenario: Scenario, flow: Flow, search: Search, *, runs_max: int) -> Iterator[Order]:
    """Run a scenario in every order in which its tasks can end; at most so many. Raises AnswerMissing."""

    def prepare(choice: Choice) -> Ordered:
        simulation = Ordered(flow, Script(scenario), choice, input_value=scenario.input)
        scenario.send(simulation)
        return simulation

    return explore(prepare, search, runs_max=runs_max)


def differences(expected: Expectations, made: Run) -> list[str]:
    """Say in what a run differs from what was expected; nothing if it does not."""
    if made.outcomes is None:
        return [f"the script has no answer for step {made.missing}"]
    instance = made.outcomes.instance
    found: list[str] = []

    def compare(what: str, wanted: Json, got: Json) -> None:
        if canonical(wanted) != canonical(got):
            found.append(f"{what}: expected {canonical(wanted).decode()}, got {canonical(got).decode()}")

    if expected.state is not None:
        compare("state", expected.state, instance.state.value)
    if expected.error is not None:
        compare("error", expected.error, None if instance.error is None else instance.error.code)
    if expected.output is not None:
        compare("output", expected.output[0], made.outcomes.output)
    if expected.path is not None:
        compare("path", expected.path, path_of(made.outcomes.trace))
    for step, state in (expected.steps or {}).items():
        entered = made.outcomes.step(step)
        compare(f"step {step}", state, StepState.PENDING.value if entered is None else entered.state.value)
    for step, case in (expected.cases or {}).items():
        entered = made.outcomes.step(step)
        compare(f"case of {step}", case, None if entered is None else entered.chosen)
    if isinstance(expected.tasks, dict):
        for step, count in expected.tasks.items():
            compare(f"tasks of {step}", count, {**made.tasks, **made.tasks_of_items}.get(step, 0))
    elif expected.tasks is not None:
        compare("tasks", expected.tasks, sum(made.tasks.values()))
    if expected.time is not None and not expected.time[0] <= made.elapsed_seconds <= expected.time[1]:
        low, high = map(format_duration, expected.time)
        wanted = low if low == high else f"{low} to {high}"
        found.append(f"time: expected {wanted}, got {format_duration(made.elapsed_seconds)}")
    last = {child.step: child.run for child in made.children}
    for step, inner in expected.children.items():
        if step in last:
            found += (f"child {step}: {line}" for line in differences(inner, last[step]))
        else:
            found.append(f"child {step}: it did not run by its own definition")
    return found


def _open(text: bytes) -> tuple[Mapping | None, Findings]:
    try:
        source = Source(text.decode("utf-8").removeprefix("\ufeff"))
    except UnicodeDecodeError:
        findings = Findings(Source(""))
        findings.at(Code.NOT_UTF8, (1, 1), "the file is not UTF-8")
        return None, findings
    findings = Findings(source)
    if len(text) > limits.SOURCE_BYTES_MAX:
        findings.at(Code.SOURCE_TOO_LARGE, (1, 1), f"a script may have {limits.SOURCE_BYTES_MAX} bytes")
        return None, findings
    tree = read_yaml(source, findings)
    if tree is not None and not isinstance(tree, Mapping):
        findings.at(Code.WRONG_TYPE, tree.place, "the file must hold an object")
        return None, findings
    return tree, findings


def _read_rehearsal(fields: Fields, flow: Flow, library: Library) -> Rehearsal:
    name = fields.text("name", required=True, characters_max=limits.TITLE_CHARACTERS_MAX)
    scenario = read_scenario(fields, flow, library)
    mapping = fields.mapping_of("expect", required=True)
    expected = Expectations()
    if mapping is not None:
        expected = _read_expected(Fields(mapping, _EXPECT, fields.findings), flow, library)
    return Rehearsal(name or "", scenario, expected)


def _read_expected(fields: Fields, flow: Flow, library: Library) -> Expectations:
    output = fields.node("output")
    path = fields.sequence_of("path")
    if path is not None:
        for item in path.items:
            _check_step(item, to_json(item), fields.findings, flow)
    return Expectations(
        state=fields.choice("state", _STATES),
        error=fields.text("error", form=names.ERROR_CODE),
        output=None if output is None else (to_json(output),),
        path=None if path is None else to_json(path),
        steps=_by_step(fields, "steps", flow),
        cases=_by_step(fields, "cases", flow),
        tasks=_tasks(fields, flow),
        time=_time(fields),
        children=_children(fields, flow, library),
    )


def _children(fields: Fields, flow: Flow, library: Library) -> dict[str, Expectations]:
    mapping = fields.mapping_of("children")
    found: dict[str, Expectations] = {}
    for step, (key, node) in ({} if mapping is None else mapping.entries).items():
        spec = flow.nodes[step].spec if step in flow.nodes or flow.knows(step) else None
        child = library.get((spec.workflow, spec.version)) if isinstance(spec, ChildSpec) else None
        if child is None:
            names_of_children = [name for name, other in flow.nodes.items() if isinstance(other.spec, ChildSpec)]
            message = f"there is no step `{step[:80]}` with a child workflow"
            fields.findings.at(Code.UNKNOWN_STEP, key.place, message, did_you_mean(step, names_of_children))
        elif isinstance(node, Mapping):
            found[step] = _read_expected(Fields(node, _EXPECT, fields.findings), child, library)
        else:
            fields.findings.at(Code.WRONG_TYPE, node.place, "what is expected of a child must be an object")
    return found


def _by_step(fields: Fields, name: str, flow: Flow) -> dict[str, Json] | None:
    mapping = fields.mapping_of(name)
    if mapping is None:
        return None
    for step, (key, _) in mapping.entries.items():
        _check_step(key, step, fields.findings, flow)
    by_step: dict[str, Json] = to_json(mapping)
    return by_step


def _check_step(node: YamlNode, step: Json, findings: Findings, flow: Flow) -> None:
    if step not in flow.nodes and not flow.knows(str(step)):
        hint = did_you_mean(str(step), flow.nodes)
        findings.at(Code.UNKNOWN_STEP, node.place, f"there is no step `{str(step)[:80]}`", hint)


def _tasks(fields: Fields, flow: Flow) -> int | dict[str, Json] | None:
    if isinstance(fields.node("tasks"), Mapping):
        return _by_step(fields, "tasks", flow)
    return fields.integer("tasks", 0, limits.BOUND_TASKS_CEILING)


def _time(fields: Fields) -> tuple[float, float] | None:
    node = fields.node("time")
    if node is None:
        return None
    if not isinstance(node, Mapping):
        exactly = fields.duration("time", 0, limits.SPAN_SECONDS_MAX)
        return None if exactly is None else (exactly, exactly)
    inner = Fields(node, _TIME, fields.findings)
    low = inner.duration("min", 0, limits.SPAN_SECONDS_MAX)
    high = inner.duration("max", 0, limits.SPAN_SECONDS_MAX)
    return (low or 0.0, limits.SPAN_SECONDS_MAX if high is None else high)
