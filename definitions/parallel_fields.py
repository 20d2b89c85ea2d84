"""Reads parallel blocks from the YAML tree: named branches, or steps with `needs`, and their join.

What is wrong in the needs is found here and left out of the model, so that the walk over it always ends.
"""

from __future__ import annotations

from typing import Protocol

from definitions import joins, keys, limits, names
from definitions.codes import Code
from definitions.fields import Fields
from definitions.findings import Findings
from definitions.graph import JoinPolicy
from definitions.hints import did_you_mean
from definitions.model import JoinModel, LaneModel, NeedModel, NeedsModel, ParallelModel, StepModel
from definitions.yaml_tree import Broken, Mapping, Scalar, YamlNode

_CYCLES_SHOWN = 10
_POLICIES = tuple(policy.value for policy in JoinPolicy if policy is not JoinPolicy.AT_LEAST)


class ListReader(Protocol):
    """What reads the lists of steps inside a block."""

    findings: Findings

    def read_list(self, node: YamlNode | None, what: str, *, may_be_empty: bool = False) -> tuple[StepModel, ...]:
        """Read a list of steps that run in order."""

    def read_graph(self, node: YamlNode | None, what: str, *, may_be_empty: bool = False) -> tuple[StepModel, ...]:
        """Read a list of steps that may say what they need."""


def read_parallel(reader: ListReader, fields: Fields) -> ParallelModel | None:
    """Read the value of `parallel`; None where it has no lanes that could be read."""
    mapping = fields.mapping_of("parallel")
    if mapping is None:
        return None
    inner = Fields(mapping, keys.PARALLEL, fields.findings)
    join = _read_join(inner)
    if inner.has("steps"):
        if inner.has("branches"):
            message = "`parallel` has `branches`, or `steps` with `needs`, not both"
            fields.findings.at(Code.CONTRADICTION, inner.key_place("branches"), message, "leave one of them out")
        return ParallelModel(_read_graph(reader, inner), join, is_graph=True)
    branches = inner.mapping_of("branches", required=True)
    return None if branches is None else ParallelModel(_read_branches(reader, branches), join)


def read_needs(fields: Fields) -> NeedsModel:
    """Read the `needs` of a step: ids, looked up only when the whole list is known."""
    place = fields.key_place("needs")
    listed = fields.sequence_of("needs")
    found = []
    for item in () if listed is None else listed.items:
        if isinstance(item, Scalar) and isinstance(item.value, str):
            found.append(NeedModel(item.value, item.place))
        elif not isinstance(item, Broken):
            fields.findings.at(Code.WRONG_TYPE, item.place, "`needs` must list ids of steps", "write `needs: [a, b]`")
    return NeedsModel(tuple(found), place)


def _read_join(fields: Fields) -> JoinModel:
    node = fields.node("join")
    if node is None:
        return JoinModel(JoinPolicy.ALL, 0, fields.mapping.place)
    if isinstance(node, Mapping):
        inner = Fields(node, keys.JOIN, fields.findings)
        count = inner.integer("at_least", 1, limits.BRANCHES_MAX, required=True)
        return JoinModel(JoinPolicy.AT_LEAST, count or 1, node.place)
    if isinstance(node, Scalar) and node.value == JoinPolicy.AT_LEAST:
        message = "`join: at_least` does not say how many branches"
        fields.findings.at(Code.BAD_VALUE, node.place, message, "write `join: {at_least: 2}`")
        return JoinModel(JoinPolicy.AT_LEAST, 1, node.place)
    return JoinModel(JoinPolicy(fields.choice("join", _POLICIES) or JoinPolicy.ALL), 0, node.place)


def _read_branches(reader: ListReader, branches: Mapping) -> tuple[LaneModel, ...]:
    if not branches.entries:
        reader.findings.at(Code.EMPTY_STEPS, branches.place, "`parallel` must have a branch at least")
    _check_count(reader.findings, branches, len(branches.entries), "branches")
    read = []
    for name, (key, steps) in branches.entries.items():
        if not names.IDENTIFIER.pattern.fullmatch(name):
            message = f"a branch's name must be {names.IDENTIFIER.words}, not {name[:80]!r}"
            reader.findings.at(Code.BAD_NAME, key.place, message)
        read.append(LaneModel(name, reader.read_list(steps, f"the branch `{name}`")))
    return tuple(read)


def _read_graph(reader: ListReader, fields: Fields) -> tuple[LaneModel, ...]:
    node = fields.node("steps")
    steps = reader.read_graph(node, "`steps`")
    if node is not None:
        _check_count(reader.findings, node, len(steps), "steps")
    ids = [step.id for step in steps if step.id]
    if len(steps) > limits.BRANCHES_MAX:
        return tuple(LaneModel(step.id or f"?{number}", (step,)) for number, step in enumerate(steps))
    needs = {step.id or f"?{number}": _known_needs(reader.findings, step, ids) for number, step in enumerate(steps)}
    _break_cycles(reader.findings, steps, needs)
    labels = zip(needs, steps, strict=True)
    return tuple(LaneModel(label, (step,), needs[label]) for label, step in labels)


def _check_count(findings: Findings, node: YamlNode, count: int, what: str) -> None:
    if count > limits.BRANCHES_MAX:
        message = f"`parallel` may have {limits.BRANCHES_MAX} {what}, not {count}"
        findings.at(Code.OUT_OF_RANGE, node.place, message, "make two blocks of it, or a `foreach`")


def _known_needs(findings: Findings, step: StepModel, ids: list[str]) -> tuple[str, ...]:
    known: dict[str, None] = {}
    for need in () if step.needs is None else step.needs.steps:
        if need.step in known:
            findings.at(Code.DUPLICATE_NEED, need.place, f"`{need.step}` is needed already", "name it once")
        elif need.step == step.id:
            message = f"`{step.id}` needs itself, so it could never start"
            findings.at(Code.NEEDS_CYCLE, need.place, message, "leave this need out")
        elif need.step not in ids:
            message = f"`{need.step[:80]}` is no step of this `parallel` block"
            hint = did_you_mean(need.step, ids) or "a step can need only steps that stand beside it in the same list"
            findings.at(Code.UNKNOWN_NEED, need.place, message, hint)
        else:
            known[need.step] = None
    return tuple(known)


def _break_cycles(findings: Findings, steps: tuple[StepModel, ...], needs: dict[str, tuple[str, ...]]) -> None:
    """Find cycles, a few at most, and leave needs out until there is none."""
    for _ in range(_CYCLES_SHOWN):
        cycle = joins.cycle_of(needs)
        if cycle is None:
            return
        first, second = cycle[0], cycle[1]
        written = next(step.needs for step in steps if step.id == first)
        assert written is not None, "a step on a cycle needs something"
        place = next(need.place for need in written.steps if need.step == second)
        way = " needs ".join(f"`{label}`" for label in cycle)
        findings.at(Code.NEEDS_CYCLE, place, f"these steps could never start: {way}", "leave one of these needs out")
        needs[first] = tuple(need for need in needs[first] if need != second)
    needs.update(dict.fromkeys(needs.keys() - set(joins.in_order(needs)), ()))
