"""What one instance may use at most: Orbit's defaults, or a namespace's own limits, under ceilings that none passes.

Proven bounds are held against them when a definition is compiled, and never again: a version that is published stays
what it is, whatever becomes of the limits. The surprising rule: active time is that of the flow, which the definition's
`timeout` ends; undoing comes after it and is limited by its tasks.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, ValidationError, convert
from msgspec.structs import asdict

from definitions import limits
from definitions.bounds import Bounds
from definitions.codes import Code
from definitions.duration import format_duration
from definitions.findings import Findings
from definitions.hints import did_you_mean
from definitions.model import DefinitionModel, StepModel
from definitions.scope import steps_inside, steps_within
from orbit.jsontext import Json


class BoundLimits(Struct, frozen=True, kw_only=True):
    """The limits that hold for a definition; `own` names those that its namespace has set."""

    max_tasks: int = limits.BOUND_TASKS_MAX
    max_attempts: int = limits.BOUND_ATTEMPTS_MAX
    max_rounds: int = limits.BOUND_ROUNDS_MAX
    max_concurrent_tasks: int = limits.BOUND_CONCURRENT_TASKS_MAX
    max_stored_bytes: int = limits.BOUND_STORED_BYTES_MAX
    max_active_seconds: int = limits.BOUND_ACTIVE_SECONDS_MAX
    own: frozenset[str] = frozenset()

    def values(self) -> dict[str, int]:
        """Give the limits by their names."""
        return {name: getattr(self, name) for name in NAMES}

    def own_values(self) -> dict[str, int]:
        """Give those that the namespace has set, by their names."""
        return {name: value for name, value in self.values().items() if name in self.own}


NAMES = tuple(name for name in BoundLimits.__struct_fields__ if name != "own")
DEFAULTS = BoundLimits()
CEILINGS = BoundLimits(
    max_tasks=limits.BOUND_TASKS_CEILING,
    max_attempts=limits.BOUND_ATTEMPTS_CEILING,
    max_rounds=limits.BOUND_ROUNDS_CEILING,
    max_concurrent_tasks=limits.BOUND_CONCURRENT_TASKS_CEILING,
    max_stored_bytes=limits.BOUND_STORED_BYTES_CEILING,
    max_active_seconds=limits.BOUND_ACTIVE_SECONDS_CEILING,
)
_WORDS = {
    "max_tasks": "tasks",
    "max_attempts": "attempts",
    "max_rounds": "rounds",
    "max_concurrent_tasks": "tasks at once",
    "max_stored_bytes": "stored bytes",
    "max_active_seconds": "active time",
}

assert all(default <= CEILINGS.values()[name] for name, default in DEFAULTS.values().items()), "a default is allowed"


def limits_of(own: Mapping[str, int]) -> BoundLimits:
    """Give the limits of a namespace that has set these; the others are the defaults."""
    return BoundLimits(**own, own=frozenset(own))


class _Shown(Struct):
    bounds: dict[str, int]
    bounds_set: list[str] | None = None


def limits_from_json(shown: Json) -> BoundLimits:
    """Read the limits in what `orbit namespace show --json` prints; without `bounds_set` they are the namespace's own.

    Raises ValueError, in words for people.
    """
    try:
        found = convert(shown, _Shown)
    except ValidationError as error:
        message = f"this is not what `orbit namespace show --json` prints: {error}"
        raise ValueError(message) from None
    ceilings = CEILINGS.values()
    for name, value in found.bounds.items():
        if name not in ceilings:
            hint = did_you_mean(name, NAMES)
            message = f"there is no limit `{name}`" + (f": {hint}" if hint else "")
            raise ValueError(message)
        if not 1 <= value <= ceilings[name]:
            message = f"`{name}` is a number from 1 to {ceilings[name]}"
            raise ValueError(message)
    own = found.bounds.keys() if found.bounds_set is None else found.bounds.keys() & set(found.bounds_set)
    return BoundLimits(**found.bounds, own=frozenset(own))


def check_bounds(
    model: DefinitionModel, proven: Bounds, parts: Mapping[str, Bounds], *, allowed: BoundLimits, findings: Findings
) -> None:
    """Refuse a definition whose proven bounds pass a limit, at the innermost step that does so alone, if one does.

    The active time of `proven` is that of the flow; `parts` are the bounds of its steps.
    """
    exceeded = _exceeded(proven, allowed)
    if not exceeded:
        return
    said = ", ".join(f"{_shown(name, value)} ({_whose(name, allowed)})" for name, value in exceeded.items())
    step = _culprit(model, parts, next(iter(exceeded)), allowed)
    alone = "" if step is None else f"the step `{step.id}` alone passes a limit: "
    if exceeded.keys() == {"max_active_seconds"}:
        hint = f"{alone}{'write `timeout: ...` for the whole' if model.timeout is None else 'lower `timeout`'}"
    else:
        hint = f"{alone}lower `max_rounds`, `max_attempts`, `max_items` or `concurrency`"
    place = model.place if step is None else step.place
    findings.at(Code.BOUND_EXCEEDED, place, f"one instance could use {said}", hint)


def _exceeded(proven: Bounds, allowed: BoundLimits) -> dict[str, float]:
    used = asdict(proven)
    return {name: value for name in NAMES if (value := used[name.removeprefix("max_")]) > getattr(allowed, name)}


def _culprit(model: DefinitionModel, parts: Mapping[str, Bounds], name: str, allowed: BoundLimits) -> StepModel | None:
    """Find the first step that passes a limit and that no step inside it passes, too."""
    every = list(steps_within(model.steps))
    passing = {step.id for step in every if step.id in parts and name in _exceeded(parts[step.id], allowed)}
    return next(
        (step for step in every if step.id in passing and not any(each.id in passing for each in steps_inside(step))),
        None,
    )


def _shown(name: str, value: float) -> str:
    return f"{format_duration(value)} of active time" if name == "max_active_seconds" else f"{value} {_WORDS[name]}"


def _whose(name: str, allowed: BoundLimits) -> str:
    value = getattr(allowed, name)
    limit = format_duration(value) if name == "max_active_seconds" else value
    if name in allowed.own:
        return f"`{name}` of the namespace is {limit}"
    if value == getattr(DEFAULTS, name):
        return f"the default `{name}` is {limit}"
    return f"no namespace may allow more than {limit}"
