"""Reads lists of steps from the YAML tree: which kind each is, and the values of that kind.

A step with a mistake stays in the model, so that references to it are judged as if it were right.
"""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

from definitions import keys, limits, names
from definitions.advice import is_habit
from definitions.children import ChildName
from definitions.codes import Code
from definitions.expression.parser import KEYWORDS
from definitions.fields import Fields, kind_of
from definitions.findings import Findings
from definitions.foreach_fields import read_foreach
from definitions.handlers import read_handlers
from definitions.hints import nearest
from definitions.model import (
    BranchModel,
    CaseModel,
    ChildModel,
    FailModel,
    Kind,
    NeedsModel,
    PollModel,
    ReturnModel,
    SetModel,
    StepModel,
    TaskModel,
)
from definitions.parallel_fields import read_needs, read_parallel
from definitions.task_fields import read_task
from definitions.wait_fields import read_wait
from definitions.yaml_tree import Broken, Mapping, Sequence, YamlNode


class StepReader(Struct):
    """Reads steps and keeps their ids apart over the whole definition."""

    findings: Findings
    _ids: dict[str, tuple[str, int]] = field(default_factory=dict)  # folded id → id and line
    _foreach_depth: int = 0
    count: int = 0

    def read_list(self, node: YamlNode | None, what: str, *, may_be_empty: bool = False) -> tuple[StepModel, ...]:
        """Read a list of steps that run in order; `what` names it in messages."""
        steps = self.read_graph(node, what, may_be_empty=may_be_empty)
        for step in steps:
            if step.needs is not None:
                message = "`needs` has a meaning in `parallel: {steps: ...}` only: these steps run in order"
                self.findings.at(Code.MISPLACED_NEEDS, step.needs.place, message, "leave it out")
        return steps

    def read_graph(self, node: YamlNode | None, what: str, *, may_be_empty: bool = False) -> tuple[StepModel, ...]:
        """Read a list of steps that may say what they need."""
        if node is None or isinstance(node, Broken):
            return ()
        if not isinstance(node, Sequence):
            message = f"{what} must be a list of steps, not {kind_of(node)}"
            self.findings.at(Code.WRONG_TYPE, node.place, message, "begin each step with `- id: `")
            return ()
        if not node.items and not may_be_empty:
            self.findings.at(Code.EMPTY_STEPS, node.place, f"{what} must have a step at least")
        steps = [self._step(item) for item in node.items if not isinstance(item, Broken)]
        return tuple(step for step in steps if step is not None)

    def _step(self, node: YamlNode) -> StepModel | None:
        if not isinstance(node, Mapping):
            message = f"a step must be an object with `id` and a kind, not {kind_of(node)}"
            self.findings.at(Code.WRONG_TYPE, node.place, message)
            return None
        self.count += 1
        if self.count == limits.STEPS_MAX + 1:
            message = f"a definition may have {limits.STEPS_MAX} steps"
            self.findings.at(Code.OUT_OF_RANGE, node.place, message)
        kind = self._kind_of(node)
        fields = Fields(node, keys.STEP_KEYS[kind] if kind else keys.ANY_STEP, self.findings)
        identifier = self._identifier(fields)
        return StepModel(
            id=identifier or "",
            kind=self._read_kind(kind, fields) if kind else None,
            when=fields.scalar_of("when"),
            title=fields.text("title", characters_max=limits.TITLE_CHARACTERS_MAX),
            place=node.place,
            needs=self._needs(fields),
            pause_at=fields.choice("pause_at", ("step",)) is not None,
            on_error=read_handlers(fields, kind, self.read_list) if kind in keys.HANDLED_KINDS else (),
            compensate=self._compensation(fields) if kind in keys.COMPENSATED_KINDS else None,
        )

    def _needs(self, fields: Fields) -> NeedsModel | None:
        return read_needs(fields) if fields.has("needs") else None

    def _compensation(self, fields: Fields) -> TaskModel | None:
        mapping = fields.mapping_of("compensate")
        return None if mapping is None else read_task(Fields(mapping, keys.COMPENSATION, self.findings))

    def _kind_of(self, node: Mapping) -> str | None:
        found = [name for name in node.entries if name in keys.KINDS]
        if len(found) > 1:
            place = node.entries[found[1]][0].place
            message = f"a step has one kind, this one has {' and '.join(f'`{name}`' for name in found)}"
            self.findings.at(Code.STEP_KIND_AMBIGUOUS, place, message, "make two steps of it")
            return None
        if found:
            return found[0]
        # A word that is nearly a kind gets its finding as an unknown key.
        excused = any(
            nearest(name, keys.KINDS) or is_habit(name, keys.KINDS)
            for name in node.entries
            if name not in keys.ANY_STEP.allowed
        )
        if not excused:
            message = f"a step needs a kind: {', '.join(keys.KINDS)}"
            self.findings.at(Code.STEP_KIND_MISSING, node.place, message)
        return None

    def _read_kind(self, kind: str, fields: Fields) -> Kind | None:
        match kind:
            case "task":
                return read_task(fields)
            case "branch":
                return self._branch(fields)
            case "parallel":
                return read_parallel(self, fields)
            case "foreach":
                return self._foreach(fields)
            case "wait":
                return read_wait(fields)
            case "poll":
                return self._poll(fields)
            case "workflow":
                return self._child(fields)
            case "set":
                return SetModel(fields.mapping_of("set"))
            case "fail":
                return self._fail(fields)
            case _:
                return ReturnModel(fields.node("return"))

    def _identifier(self, fields: Fields) -> str | None:
        identifier = fields.text("id", required=True, form=names.IDENTIFIER)
        if identifier is None:
            return None
        place = fields.mapping.entries["id"][1].place
        if identifier in KEYWORDS:
            message = f"`{identifier}` is a word of the expression language and can't be an id"
            self.findings.at(Code.BAD_NAME, place, message)
            return None
        earlier = self._ids.get(identifier.lower())
        if earlier is not None:
            same = "" if earlier[0] == identifier else f" (as `{earlier[0]}`; capitals make no difference)"
            message = f"the id `{identifier}` stands twice; the first is in line {earlier[1]}{same}"
            self.findings.at(Code.DUPLICATE_ID, place, message)
            return None
        self._ids[identifier.lower()] = (identifier, place[0])
        return identifier

    def _branch(self, fields: Fields) -> Kind | None:
        node = fields.sequence_of("branch")
        if node is None:
            return None
        if len(node.items) > limits.CASES_MAX:
            message = f"a branch may have {limits.CASES_MAX} cases, not {len(node.items)}"
            self.findings.at(Code.OUT_OF_RANGE, node.place, message)
        cases = [self._case(item, index) for index, item in enumerate(node.items)]
        read = tuple(case for case in cases if case is not None)
        others = [case for case in read[:-1] if case.label == "else"]
        for case in others:
            message = "`else` must be the last case: what follows it would never be looked at"
            self.findings.at(Code.ELSE_NOT_LAST, case.place, message)
        if not others and None not in cases and (not read or read[-1].label != "else"):
            place = fields.key_place("branch")
            message = "a branch needs `else`: what happens when no case holds"
            self.findings.at(Code.MISSING_ELSE, place, message, "add `- else: []` to go on without a step")
        return BranchModel(read)

    def _case(self, node: YamlNode, index: int) -> CaseModel | None:
        if isinstance(node, Broken):
            return None
        if not isinstance(node, Mapping):
            message = f"a case must be an object with `when` and `steps`, or with `else`, not {kind_of(node)}"
            self.findings.at(Code.WRONG_TYPE, node.place, message)
            return None
        fields = Fields(node, keys.CASE, self.findings)
        if fields.has("else"):
            for other in ("when", "steps"):
                if fields.has(other):
                    message = f"a case has `when` and `steps`, or `else` alone, not `else` and `{other}`"
                    self.findings.at(Code.STEP_KIND_AMBIGUOUS, fields.key_place(other), message)
            steps = self.read_list(fields.node("else"), "`else`", may_be_empty=True)
            return CaseModel("else", None, steps, fields.key_place("else"))
        when = fields.scalar_of("when", required=True)
        steps = self.read_list(fields.node("steps", required=True), "`steps`", may_be_empty=True)
        return CaseModel(str(index + 1), when, steps, node.place)

    def _foreach(self, fields: Fields) -> Kind | None:
        if self._foreach_depth:
            message = "a foreach can't stand within another: the items of both would multiply"
            hint = "make one list of both before it, or a child workflow of the inner one"
            self.findings.at(Code.FOREACH_NESTED, fields.key_place("foreach"), message, hint)
        self._foreach_depth += 1
        mapping = fields.mapping_of("foreach")
        model = None if mapping is None else read_foreach(Fields(mapping, keys.FOREACH, self.findings), self.read_list)
        self._foreach_depth -= 1
        return model

    def _child(self, fields: Fields) -> Kind:
        written = fields.text("workflow", required=True, form=names.CHILD)
        match = names.CHILD.pattern.fullmatch(written) if written else None
        node = fields.node("input")
        return ChildModel(
            name=ChildName(match.group(1), int(match.group(2) or 0)) if match else None,
            input=node,
            timeout=fields.duration("timeout", limits.SPAN_SECONDS_MIN, limits.SPAN_SECONDS_MAX),
            place=fields.mapping.entries["workflow"][1].place,
            input_place=fields.mapping.place if node is None else node.place,
        )

    def _poll(self, fields: Fields) -> Kind | None:
        mapping = fields.mapping_of("poll")
        if mapping is None:
            return None
        inner = Fields(mapping, keys.POLL, self.findings)
        every = inner.duration("every", limits.SPAN_SECONDS_MIN, limits.SPAN_SECONDS_MAX, required=True)
        max_every = inner.duration("max_every", limits.SPAN_SECONDS_MIN, limits.SPAN_SECONDS_MAX)
        if every and max_every and every > max_every:
            message = "`every` is longer than `max_every`"
            self.findings.at(Code.CONTRADICTION, inner.key_place("every"), message)
        timeout = inner.duration("timeout", limits.SPAN_SECONDS_MIN, limits.SPAN_SECONDS_MAX, required=True)
        rounds = inner.integer("max_rounds", limits.POLL_ROUNDS_MIN, limits.POLL_ROUNDS_MAX, required=True)
        on_error = inner.choice("on_round_error", ("fail", "continue"))
        task = read_task(inner)
        return PollModel(
            # `timeout` is the poll's here; a round has the time that its attempts can take.
            task=replace(task, options=replace(task.options, timeout=None)),
            done_when=inner.scalar_of("done_when", required=True),
            fail_when=inner.scalar_of("fail_when"),
            every=every,
            backoff=inner.number("backoff", limits.POLL_BACKOFF_MIN, limits.POLL_BACKOFF_MAX) or 1.0,
            max_every=max_every,
            max_rounds=rounds,
            timeout=timeout,
            continue_on_round_error=on_error == "continue",
        )

    def _fail(self, fields: Fields) -> Kind | None:
        mapping = fields.mapping_of("fail")
        if mapping is None:
            return None
        inner = Fields(mapping, keys.FAIL, self.findings)
        code = inner.text("code", required=True, form=names.ERROR_CODE)
        return FailModel(code, inner.scalar_of("message", required=True))
