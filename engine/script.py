"""Scripted answers from YAML: what the tasks of a simulated instance do, faults among them.

Leaves the running to `engine.simulator`. An answer list is used up one submission after the other, and its last answer
goes on answering; a submission that nobody answers is a mistake of the script, never a guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping as Lookup
from dataclasses import dataclass

from definitions import limits, names
from definitions.codes import Code
from definitions.fields import Fields, Keys
from definitions.findings import Findings
from definitions.graph import ChildSpec, PollSpec, TaskSpec
from definitions.hints import did_you_mean
from definitions.yaml_tree import Broken, Mapping, Scalar, Sequence, YamlNode, to_json
from engine.command import SubmitTask
from engine.flow import Flow
from engine.instance import Failure
from engine.items import own_name
from engine.playing import Answer, OwnRun, Refusal
from engine.scope import schema_failure
from engine.simulator import SIGNAL_LIVES_SECONDS, Simulation
from engine.stimulus import Outcome
from orbit.errors import OrbitError
from orbit.jsontext import Json
from orbit.schemas.soundness import with_defaults

SCRIPT_KEYS = frozenset({"input", "answers", "signals", "pauses", "cancel"})

_OUTCOMES = ("output", "fail", "cancelled", "refused", "run")
_TIMES = ("after", "lost", "review", "late", "late_success", "duplicate")
_ANSWER = Keys("an answer", frozenset({*_OUTCOMES, *_TIMES}))
_RUN = Keys("`run`", SCRIPT_KEYS - {"input"}, {"input": "leave it out: the step gives the child its input"})
_FAIL = Keys("`fail`", frozenset({"code", "message"}))
_PAUSE = Keys("a pause", frozenset({"after", "for", "reason"}))
_CANCEL = Keys("`cancel`", frozenset({"after", "reason", "compensate"}))
_SIGNAL = Keys("a signal", frozenset({"name", "payload", "after", "lives"}))
_AFTER_SECONDS_DEFAULT = 1.0


# The flows of all children that a definition has, those of children too, by workflow and version.
Library = Lookup[tuple[str, int], Flow]


class AnswerMissing(Exception):
    """The script has no answer for a task that was submitted."""

    def __init__(self, step: str) -> None:
        super().__init__(f"the script has no answer for step {step}")
        self.step = step


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Somebody cancels the instance, so many seconds after its start."""

    after_seconds: float
    reason: str
    compensate: bool = False


@dataclass(frozen=True, slots=True)
class Pausing:
    """Somebody pauses the instance, so many seconds after its start, and resumes it so many later; None is never."""

    after_seconds: float
    for_seconds: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Sending:
    """Somebody sends a signal, so many seconds after the start; 0 is before the first step."""

    name: str
    payload: Json
    after_seconds: float
    lives_seconds: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run to simulate: the input with its defaults, the answers by step, signals, pauses, perhaps a cancel."""

    input: Json
    answers: Lookup[str, tuple[Answer | Refusal | OwnRun, ...]]
    signals: tuple[Sending, ...]
    pauses: tuple[Pausing, ...]
    cancel: Cancellation | None

    def send(self, simulation: Simulation) -> None:
        """Let a simulation get what comes from outside."""
        for sent in self.signals:
            simulation.signal_at(sent.after_seconds, sent.name, sent.payload, lives_seconds=sent.lives_seconds)
        for pause in self.pauses:
            simulation.pause_at(pause.after_seconds, pause.reason)
            if pause.for_seconds is not None:
                simulation.resume_at(pause.after_seconds + pause.for_seconds, pause.reason)
        if self.cancel is not None:
            cancel = self.cancel
            simulation.cancel_at(cancel.after_seconds, cancel.reason, compensate=cancel.compensate)


class Script:
    """The answers of one scenario, as a simulation asks for them; used once. `accepted` counts the tasks by step.

    `accepted_of_items` counts those of single items once more. `family` are the steps that lead to a child, each with a
    slash behind it.
    """

    def __init__(self, scenario: Scenario, family: str = "") -> None:
        self._family = family
        self._answers = scenario.answers
        self._asked: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.accepted_of_items: Counter[str] = Counter()

    def __call__(self, command: SubmitTask) -> Answer | Refusal | OwnRun:
        """Answer one submission. Raises AnswerMissing."""
        # What is said of one item counts for it alone; what is said of a step counts for every item from the beginning.
        own = own_name(command.step)
        listed = self._answers.get(command.step) or self._answers.get(own)
        if not listed:
            raise AnswerMissing(f"{self._family}{command.step}")
        answer = listed[min(self._asked[command.step], len(listed) - 1)]
        self._asked[command.step] += 1
        if not isinstance(answer, Refusal):
            self.accepted[own] += 1
            if own != command.step:
                self.accepted_of_items[command.step] += 1
        return answer


def read_scenario(fields: Fields, flow: Flow, library: Library) -> Scenario:
    """Read the keys of a script out of a mapping; findings tell what is wrong, and then it must not be run."""
    node = fields.node("input")
    value = with_defaults(flow.graph.input_schema, {} if node is None else to_json(node))
    failure = schema_failure(flow.input_validator.iter_errors(value), "INVALID_REQUEST", "the input")
    if failure is not None:
        place = fields.mapping.place if node is None else node.place
        fields.findings.at(Code.BAD_VALUE, place, failure.message)
    return _read_rest(fields, value, flow, library)


def _read_rest(fields: Fields, value: Json, flow: Flow, library: Library) -> Scenario:
    return Scenario(
        input=value,
        answers=_read_answers(fields, flow, library),
        signals=_read_signals(fields, flow),
        pauses=_read_pauses(fields),
        cancel=_read_cancel(fields),
    )


def _read_pauses(fields: Fields) -> tuple[Pausing, ...]:
    listed = fields.sequence_of("pauses")
    read = (_read_pause(node, fields.findings) for node in (() if listed is None else listed.items))
    return tuple(pausing for pausing in read if pausing is not None)


def _read_pause(node: YamlNode, findings: Findings) -> Pausing | None:
    if isinstance(node, Broken):
        return None
    if not isinstance(node, Mapping):
        findings.at(Code.WRONG_TYPE, node.place, "a pause must be an object such as `{after: 2h, for: 10m}`")
        return None
    fields = Fields(node, _PAUSE, findings)
    after = fields.duration("after", 0, limits.SPAN_SECONDS_MAX, required=True)
    return Pausing(after or 0.0, _span(fields, "for"), fields.text("reason") or "paused by the script")


def _read_signals(fields: Fields, flow: Flow) -> tuple[Sending, ...]:
    listed = fields.sequence_of("signals")
    read = (_read_signal(node, fields.findings, flow) for node in (() if listed is None else listed.items))
    return tuple(sending for sending in read if sending is not None)


def _read_signal(node: YamlNode, findings: Findings, flow: Flow) -> Sending | None:
    if isinstance(node, Broken):
        return None
    if not isinstance(node, Mapping):
        findings.at(Code.WRONG_TYPE, node.place, "a signal must be an object such as `{name: approved, after: 2h}`")
        return None
    fields = Fields(node, _SIGNAL, findings)
    name = fields.text("name", required=True)
    if name is not None and name not in flow.signals:
        place = fields.mapping.entries["name"][1].place
        findings.at(Code.BAD_VALUE, place, f"no step waits for signal `{name[:80]}`", did_you_mean(name, flow.signals))
    lives = _span(fields, "lives")
    return Sending(
        name=name or "",
        payload=_value(fields, "payload"),
        after_seconds=_span(fields, "after") or 0.0,
        lives_seconds=SIGNAL_LIVES_SECONDS if lives is None else lives,
    )


def _read_cancel(fields: Fields) -> Cancellation | None:
    mapping = fields.mapping_of("cancel")
    if mapping is None:
        return None
    inner = Fields(mapping, _CANCEL, fields.findings)
    after = inner.duration("after", 0, limits.SPAN_SECONDS_MAX, required=True)
    reason = inner.text("reason") or "cancelled by the script"
    return Cancellation(after or 0.0, reason, _flag(inner, "compensate"))


def _read_answers(fields: Fields, flow: Flow, library: Library) -> dict[str, tuple[Answer | Refusal | OwnRun, ...]]:
    mapping = fields.mapping_of("answers")
    if mapping is None:
        return {}
    with_task = [name for name, node in flow.nodes.items() if isinstance(node.spec, (TaskSpec, PollSpec, ChildSpec))]
    answers = {}
    for step, (key, node) in mapping.entries.items():
        if own_name(step) not in with_task or not (step in with_task or flow.knows(step)):
            message = f"there is no step `{step[:80]}` with a task or a child"
            fields.findings.at(Code.UNKNOWN_STEP, key.place, message, did_you_mean(step, with_task))
            continue
        listed = node.items if isinstance(node, Sequence) else (node,)
        if not listed:
            fields.findings.at(Code.BAD_VALUE, node.place, "a list of answers must have one at least")
        spec = flow.nodes[step].spec
        child = library.get((spec.workflow, spec.version)) if isinstance(spec, ChildSpec) else None
        read = (_read_answer(item, fields.findings, child, library) for item in listed)
        answers[step] = tuple(answer for answer in read if answer is not None)
    return answers


def _read_answer(
    node: YamlNode, findings: Findings, child: Flow | None, library: Library
) -> Answer | Refusal | OwnRun | None:
    if not isinstance(node, Mapping):
        message = "an answer must be an object such as `{output: {}, after: 2s}`"
        findings.at(Code.WRONG_TYPE, node.place, message)
        return None
    fields = Fields(node, _ANSWER, findings)
    said = [name for name in _OUTCOMES if fields.has(name)]
    if len(said) > 1:
        message = f"an answer has one of {', '.join(_OUTCOMES)}, this one has {' and '.join(said)}"
        findings.at(Code.CONTRADICTION, fields.key_place(said[1]), message)
        return None
    if said == ["refused"]:
        return _read_refusal(fields)
    if said == ["run"]:
        return _read_run(fields, child, library)
    outcome, error = _read_outcome(fields)
    lost = _span(fields, "lost") or 0.0
    return Answer(
        outcome=outcome,
        output=_value(fields, "output"),
        error=error,
        after_seconds=lost + (_AFTER_SECONDS_DEFAULT if not fields.has("after") else _span(fields, "after") or 0.0),
        reviewed_after_seconds=_span(fields, "review"),
        ignores_cancel=_flag(fields, "late"),
        repeated_after_seconds=_span(fields, "duplicate"),
        succeeds_late_after_seconds=_late_success(fields, outcome),
    )


def _late_success(fields: Fields, outcome: Outcome) -> float | None:
    if fields.has("late_success") and outcome is Outcome.SUCCEEDED:
        message = "a task that succeeds has no later success"
        hint = "write it beside `fail` or `cancelled`: its worker reports a success after that"
        fields.findings.at(Code.CONTRADICTION, fields.key_place("late_success"), message, hint)
    return _span(fields, "late_success")


def _read_run(fields: Fields, child: Flow | None, library: Library) -> OwnRun | None:
    """Read the script of a child that runs by its own definition."""
    _refuse_times(fields, "a child that runs takes its own time")
    if child is None:
        message = "only a child workflow runs by its own definition"
        fields.findings.at(Code.BAD_VALUE, fields.key_place("run"), message, "write `output`, `fail` or `cancelled`")
        return None
    mapping = fields.mapping_of("run")
    if mapping is None:
        return None
    scenario = _read_rest(Fields(mapping, _RUN, fields.findings), None, child, library)
    return OwnRun(child, lambda family: Script(scenario, family), scenario.send)


def _read_outcome(fields: Fields) -> tuple[Outcome, Failure | None]:
    if fields.has("cancelled"):
        _flag(fields, "cancelled")
        return Outcome.CANCELLED, None
    mapping = fields.mapping_of("fail")
    if mapping is None:
        return Outcome.SUCCEEDED, None
    inner = Fields(mapping, _FAIL, fields.findings)
    code = inner.text("code", required=True, form=names.ERROR_CODE)
    return Outcome.FAILED, Failure(code or "FAILED", inner.text("message") or "as the script says")


def _read_refusal(fields: Fields) -> Refusal:
    code = fields.text("refused", form=names.ERROR_CODE) or "REFUSED"
    _refuse_times(fields, "what is refused is no task")
    return Refusal(Failure(code, "refused by the script"), retryable=code in _retryable_codes())


def _refuse_times(fields: Fields, why: str) -> None:
    for other in _TIMES:
        if fields.has(other):
            message = f"{why}, so `{other}` has no meaning"
            fields.findings.at(Code.CONTRADICTION, fields.key_place(other), message, "leave it out")


def _retryable_codes() -> set[str]:
    """Name the refusals after which the same submission may be taken later."""
    kinds = list(OrbitError.__subclasses__())
    return {kind.code for kind in kinds if kind.retryable}


def _span(fields: Fields, name: str) -> float | None:
    return fields.duration(name, 0, limits.SPAN_SECONDS_MAX)


def _flag(fields: Fields, name: str) -> bool:
    node = fields.node(name)
    if node is None:
        return False
    if not isinstance(node, Scalar) or not isinstance(node.value, bool):
        fields.findings.at(Code.WRONG_TYPE, node.place, f"`{name}` must be true or false")
        return False
    return node.value


def _value(fields: Fields, name: str) -> Json:
    node = fields.node(name)
    return None if node is None else to_json(node)
