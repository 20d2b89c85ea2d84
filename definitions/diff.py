"""What a new version of a workflow means for instances that run on the old one: a verdict with its reasons.

Pure, over two graphs. An instance can go on with the new graph if every step that it has begun (skipped ones too) is in
it, means the same there and is reached by the same edges; what lies ahead may differ. Titles and places in the text
never count. The surprising rule: a step inserted before another changes that other one, because it is reached by
another way.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from msgspec import Struct

from definitions.expression import Expression
from definitions.graph import Graph, JoinSpec, Node
from definitions.masks import path_of_text
from definitions.template import Template
from orbit.canonical import canonical
from orbit.jsontext import Json
from orbit.redaction import covers

_SHOWN_CHARACTERS = 200

Ways = frozenset[tuple[str, str | None]]  # how a node is reached: sources with their case


class Verdict(StrEnum):
    """Which running instances of the old version can go on with the new one."""

    SAME = "same"  # all: nothing but titles and places differs
    SAFE = "safe"  # all, wherever they are
    SAFE_AT = "safe-at"  # those that have begun none of the steps in `at`
    NEEDS_MAPPING = "needs-mapping"  # as safe-at; others if the steps in `mapping` are told to be the same
    INCOMPATIBLE = "incompatible"  # none


@dataclass(frozen=True, slots=True)
class Reason:
    """One difference; `step` is None for the definition as a whole."""

    step: str | None
    what: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        where = "" if self.step is None else f"step {self.step}: "
        return f"{where}{self.what}" if self.old is None else f"{where}{self.what}: {self.old} → {self.new}"

    def to_json(self) -> dict[str, Json]:
        """Write the reason for programs."""
        return {"step": self.step, "what": self.what, "old": self.old, "new": self.new}


@dataclass(frozen=True, slots=True)
class Diff:
    """The verdict; `at` are the first changed steps, `mapping` names old steps that seem to be renamed.

    `changed` are all old steps that an instance must not have begun; `is_forbidden` says that no instance at all can go
    on, because of the definition as a whole.
    """

    verdict: Verdict
    at: tuple[str, ...]
    mapping: dict[str, str]
    reasons: tuple[Reason, ...]
    changed: tuple[str, ...] = ()
    is_forbidden: bool = False

    def to_json(self) -> dict[str, Json]:
        """Write the diff for programs."""
        return {
            "verdict": self.verdict.value,
            "at": list(self.at),
            "mapping": dict(self.mapping),
            "reasons": [reason.to_json() for reason in self.reasons],
        }


def diff_graphs(old: Graph, new: Graph) -> Diff:
    """Compare two versions of a workflow."""
    before, after = _Side(old), _Side(new)
    whole, forbidding = _of_the_whole(old, new)
    changed, reasons = _of_the_steps(before, after)
    mapping = _renamed(before, after)
    at = tuple(step for step in changed if not before.ancestors[step] & changed.keys())
    everything = (*whole, *reasons)
    if forbidding or any(not before.ways[step] and step not in mapping for step in at):
        # Every instance begins the first steps at once, so none is before a change of them.
        verdict = Verdict.INCOMPATIBLE
    elif mapping:
        verdict = Verdict.NEEDS_MAPPING
    elif at:
        verdict = Verdict.SAFE_AT
    else:
        verdict = Verdict.SAFE if everything else Verdict.SAME
    return Diff(verdict, at, mapping, everything, tuple(changed), forbidding)


class _Side:
    """A graph by step id."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: dict[str, Node] = {node.id: node for node in graph.nodes}
        ways: dict[str, set[tuple[str, str | None]]] = {node.id: set() for node in graph.nodes}
        self.ancestors: dict[str, set[str]] = {node.id: set() for node in graph.nodes}
        for edge in graph.edges:
            source, target = graph.nodes[edge.source].id, graph.nodes[edge.target].id
            ways[target].add((source, edge.case))
        for node in graph.nodes:
            if node.within is not None and not ways[node.id]:
                ways[node.id].add((node.within, "each item"))
        for node in graph.nodes:  # in topological order
            for source, _ in ways[node.id]:
                self.ancestors[node.id] |= {source} | self.ancestors[source]
        # How a block ends is part of what it means from its beginning on.
        self.policies = {node.spec.opens: node.spec.words for node in graph.nodes if isinstance(node.spec, JoinSpec)}
        self.ways: dict[str, Ways] = {step: frozenset(found) for step, found in ways.items()}


def _of_the_whole(old: Graph, new: Graph) -> tuple[list[Reason], bool]:
    reasons = []
    forbidding = False
    if old.workflow != new.workflow:
        reasons.append(Reason(None, "another workflow", old.workflow, new.workflow))
        forbidding = True
    if canonical(old.input_schema) != canonical(new.input_schema):
        fits = _takes_all(old.input_schema, new.input_schema)
        what = "the input's schema takes more" if fits else "the input's schema may refuse inputs that were taken"
        reasons.append(Reason(None, what, _shown(old.input_schema), _shown(new.input_schema)))
        forbidding = forbidding or not fits
    for what in ("output", "timeout_seconds", "on_failure", "starts"):
        left, right = _meaning(getattr(old, what)), _meaning(getattr(new, what))
        if canonical(left) != canonical(right):
            reasons.append(Reason(None, what, _shown(left), _shown(right)))
    masked, bared = _of_masks(old, new)
    return [*reasons, *masked], forbidding or bared


def _of_masks(old: Graph, new: Graph) -> tuple[list[Reason], bool]:
    """Compare what is masked: an instance takes more masks anywhere, but never goes where it would show more."""
    before, after = map(path_of_text, old.redact), tuple(map(path_of_text, new.redact))
    bared = [text for text, path in zip(old.redact, before, strict=True) if not covers(after, path)]
    if bared:
        what = f"no longer masks {', '.join(bared)}, which instances were promised"
        return [Reason(None, what, _shown(list(old.redact)), _shown(list(new.redact)))], True
    if set(old.redact) != set(new.redact):
        return [Reason(None, "masks more", _shown(list(old.redact)), _shown(list(new.redact)))], False
    return [], False


def _takes_all(old: Json, new: Json) -> bool:
    """Tell whether `new` certainly accepts all that `old` does.

    It does if it asks for no further name, and its further properties are optional ones that `old` refused.
    """
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new is True
    inner = {"required", "properties"}
    if canonical({key: old[key] for key in old.keys() - inner}) != canonical({k: new[k] for k in new.keys() - inner}):
        return False
    if not set(new.get("required", [])) <= set(old.get("required", [])):
        return False
    had, has = old.get("properties", {}), new.get("properties", {})
    kept = all(name in has and canonical(has[name]) == canonical(had[name]) for name in had)
    added = has.keys() - had.keys()
    if any(isinstance(has[name], dict) and "default" in has[name] for name in added):
        return False  # a new instance certainly has it, one that has started has not
    return kept and (not added or (old.get("additionalProperties") is False and "patternProperties" not in old))


def _of_the_steps(before: _Side, after: _Side) -> tuple[dict[str, None], list[Reason]]:
    """List the old steps that an instance must not have begun, and all differences of steps."""
    changed: dict[str, None] = {}
    reasons: list[Reason] = []
    for step, node in before.nodes.items():
        other = after.nodes.get(step)
        if other is None:
            changed[step] = None
            if not isinstance(node.spec, JoinSpec):  # it goes with its block
                reasons.append(Reason(step, "is gone", None, None))
            continue
        differences = _differences(node, other)
        policies = before.policies.get(step), after.policies.get(step)
        if policies[0] is not None and policies[1] is not None and policies[0] != policies[1]:
            differences.append(("join", policies[0], policies[1]))
        if before.ways[step] != after.ways[step]:
            ways = sorted(map(_way, before.ways[step])), sorted(map(_way, after.ways[step]))
            differences.append(("comes after", ", ".join(ways[0]) or "the start", ", ".join(ways[1]) or "the start"))
        if differences:
            changed[step] = None
            reasons += [Reason(step, *difference) for difference in differences]
    reasons += [
        Reason(step, "is new", None, None)
        for step, node in after.nodes.items()
        if step not in before.nodes and not isinstance(node.spec, JoinSpec)
    ]
    return changed, reasons


def _way(way: tuple[str, str | None]) -> str:
    source, case = way
    return source if case is None else f"{source} ({case})"


def _differences(old: Node, new: Node) -> list[tuple[str, str, str]]:
    left, right = _meaning_of_node(old), _meaning_of_node(new)
    return [
        (name, _shown(left.get(name)), _shown(right.get(name)))
        for name in sorted(left.keys() | right.keys())
        if canonical(left.get(name)) != canonical(right.get(name))
    ]


def _meaning_of_node(node: Node) -> dict[str, Json]:
    spec = {} if isinstance(node.spec, JoinSpec) else _meaning(node.spec)  # its policy is its opener's
    flat = {
        "kind": node.kind.value,
        "when": _meaning(node.when),
        "pause_at": node.pause_at,
        **(spec if isinstance(spec, dict) else {}),
    }
    flat |= {"on_error": _meaning(node.handlers), "error_of": node.error_of, "compensate": _meaning(node.compensate)}
    task = flat.pop("task", None)
    # A poll's task has a bound, and so has the poll.
    return {**flat, **({f"task.{name}": value for name, value in task.items()} if isinstance(task, dict) else {})}


def _meaning(value: Any) -> Json:
    """Write a part of a graph without the places of its texts."""
    if isinstance(value, (Expression, Template)):
        return value.source
    if isinstance(value, Struct):
        return {name: _meaning(getattr(value, name)) for name in value.__struct_fields__}
    return [_meaning(item) for item in value] if isinstance(value, tuple) else value


def _renamed(before: _Side, after: _Side) -> dict[str, str]:
    """Pair steps that are gone with new ones that mean the same and are reached in the same way."""
    gone = [step for step in before.nodes if step not in after.nodes]
    made = [step for step in after.nodes if step not in before.nodes]
    pairs: dict[str, str] = {}
    for step in gone:
        if isinstance(before.nodes[step].spec, JoinSpec):
            continue
        ways = frozenset((pairs.get(source, source), case) for source, case in before.ways[step])
        for other in made:
            alike = not _differences(before.nodes[step], after.nodes[other])
            if alike and other not in pairs.values() and ways == after.ways[other]:
                pairs[step] = other
                break
    return pairs


def _shown(value: Json) -> str:
    text = value if isinstance(value, str) else canonical(value).decode()
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
