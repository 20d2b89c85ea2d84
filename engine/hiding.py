"""What of a version's instances is never shown, ready for the places that show something.

What is masked was settled when the version was published; this knows how the engine names steps and writes failures.
The surprising rule: values are stored as they are, since expressions and workers need them, and masked where they are
read; a failure is masked as soon as it leaves its step, because from there on nobody knows whose it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from definitions.masks import NOTHING_OF_STEP, Masks, StepMasks, masks_of, texts_of
from engine.instance import Failure
from engine.items import own_name
from orbit.jsontext import Json, dumps
from orbit.redaction import MASK, Path, below, masked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from definitions.graph import Graph

UNDOING = ".undo"


class Hiding:
    """The masks of one version. A version that has none answers at once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._texts: dict[str, str | None] = {}

    @cached_property
    def masks(self) -> Masks:
        """All masks by the author's names."""
        return masks_of(self._graph)

    def of_step(self, identifier: str) -> StepMasks:
        """Give the masks of a step, of one of an item, or of a compensation."""
        if not self.masks.steps:
            return NOTHING_OF_STEP
        name = own_name(identifier)
        if name.endswith(UNDOING):
            return StepMasks(input=self.masks.of_step(name.removesuffix(UNDOING)).undoing)
        return self.masks.of_step(name)

    def of_task(self, identifier: str) -> str | None:
        """Give the paths that a step's task never shows, as JSON text; None for no path."""
        if not self.masks.steps:
            return None
        name = own_name(identifier)
        if name not in self._texts:
            step = self.of_step(name)
            found = texts_of(step.input, "params") + texts_of(step.output, "output")
            found += texts_of(step.error, "error") + texts_of(step.progress, "progress")
            self._texts[name] = dumps(found).decode() if found else None
        return self._texts[name]

    def failure(self, identifier: str | None, failure: Failure) -> Failure:
        """Give the failure of a step as it may be shown."""
        return failure.shown(() if identifier is None else self.of_step(identifier).error)


def values_shown(hiding: Hiding | None, values: Mapping[str, Json]) -> dict[str, Json]:
    """Give an instance's `input` and `output` as they may be shown: nothing of them, where the version is not known."""
    if hiding is None:
        return {name: masked(value, [()]) for name, value in values.items()}
    masks = hiding.masks
    paths = {"input": masks.input, "output": masks.output}
    return {name: masked(value, paths[name]) for name, value in values.items()}


def payload_shown(hiding: Hiding | None, signal: str, payload: Json) -> Json:
    """Give a signal's payload as it may be shown."""
    return MASK if hiding is None and payload is not None else masked(payload, _of_signal(hiding, signal))


def result_shown(hiding: Hiding, foreach: str, index: int, result: Json) -> Json:
    """Give the result of an item as it may be shown."""
    return masked(result, below(hiding.of_step(foreach).output, str(index)))


def evidence_shown(hiding: Hiding | None, step: str | None, evidence: Json) -> Json:
    """Give the evidence of a decision about a step as it may be shown."""
    if hiding is None:
        return MASK
    return evidence if step is None else masked(evidence, hiding.of_step(step).evidence)


def _of_signal(hiding: Hiding | None, signal: str) -> Sequence[Path]:
    return () if hiding is None else hiding.masks.signals.get(signal, ())
