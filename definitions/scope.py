"""What expressions may read at each place of a definition: which steps have certainly finished, and their types.

The walk over the blocks (`definitions.weaver`) carries a `Scope` along: a sequence adds to it, the cases of a branch
each get their own and leave behind what all of them have, parallel branches leave behind what any of them has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from definitions import joins
from definitions.expression import Environment, StepFacts, Type
from definitions.expression.checker import NOTHING, Paths
from definitions.expression.types import DYN, INT, STRING
from definitions.expression.types import Kind as TypeKind
from definitions.graph import Handling, JoinPolicy, handler_case
from definitions.model import (
    BranchModel,
    ChildModel,
    ForeachModel,
    HandlerModel,
    Kind,
    ParallelModel,
    PollModel,
    SetModel,
    SignalModel,
    StepModel,
    TaskModel,
)

INSTANCE = Type(
    TypeKind.MAP,
    fields={"id": STRING, "business_key": DYN, "started_at": STRING},
    required=frozenset({"id", "business_key", "started_at"}),
    closed=True,
)
# The kinds of steps whose output others may read.
WITH_OUTPUT = (TaskModel, PollModel, SetModel, SignalModel, ForeachModel, ChildModel)
BLOCKS = (BranchModel, ParallelModel, ForeachModel)
# Blocks that leave an output only where an error handler gives them one.
WITHOUT_OWN_OUTPUT = (BranchModel, ParallelModel)
_ERROR = Type(
    TypeKind.MAP,
    fields={"code": STRING, "message": STRING, "class": STRING, "details": DYN, "step": STRING},
    required=frozenset({"code", "message", "class", "details", "step"}),
    closed=True,
)
_ROUND_ROOTS = {"round": INT}
_LATER_ROOTS = {
    "output": "in `done_when` and `fail_when` of a poll",
    "round": "inside a poll",
    "item": "in the steps and the `output` of a `foreach`",
    "index": "in the steps and the `output` of a `foreach`",
    "error": "in error handlers",
    "signal": "in `accept_when` of a wait for a signal; afterwards its payload is the step's output",
}

# What can stand around a step: a block, or an error handler that it is a step of.
Around = Kind | HandlerModel


class Scope(Struct):
    """What is certain at one point of the flow; `reachable` is False behind a step that always ends the instance."""

    available: set[str] = field(default_factory=set)  # steps that have certainly succeeded
    known: Paths = NOTHING  # paths that conditions have proven
    reachable: bool = True
    roots: Mapping[str, Type] = field(default_factory=dict)  # further roots here: `item` and `index` of a foreach
    error_of: str | None = None  # the step whose failure is handled here

    def copy(self, known: Paths = NOTHING) -> Scope:
        """Return the scope of a branch that begins here; `known` is what its condition proves."""
        return Scope(set(self.available), self.known | known, self.reachable, self.roots, self.error_of)

    def meet(self, others: Iterable[Scope]) -> None:
        """Keep of what is certain here only what is so in all the others too."""
        for other in others:
            self.available &= other.available
            self.known &= other.known

    def meet_or_become(self, others: list[Scope]) -> None:
        """Meet with others by which the flow comes here too; alone they are what is certain."""
        if others and not self.reachable:
            self.available, self.known, self.reachable = set(others[0].available), others[0].known, True
        self.meet(others)

    def of_items(self, item: Type) -> Scope:
        """Return the scope of the steps that run for each item of a list."""
        return Scope(set(self.available), self.known, self.reachable, {**self.roots, "item": item, "index": INT})

    def learn(self, other: Scope) -> None:
        """Add what is certain in another."""
        self.available |= other.available
        self.known |= other.known


class _Declared(Struct, frozen=True):
    """Where a step stands: the blocks around it with the lanes that it is in, and its place in the file's order."""

    step: StepModel
    blocks: tuple[tuple[str, Around, str], ...]  # (block id, block, label of the case or lane)
    order: int


class ResultOf(Struct, frozen=True):
    """The place where a foreach makes the result of an item."""

    foreach: str


# Where an expression stands: in a step, in the result of an item, or (None) in the definition's output.
At = str | ResultOf | None


class Catalogue:
    """All steps of a definition, and the types of the outputs that the walk has met so far."""

    def __init__(self, steps: tuple[StepModel, ...], *, is_strict: bool = False) -> None:
        self._declared: dict[str, _Declared] = {}
        self._ends: dict[str, _Declared] = {}
        for order, (step, blocks) in enumerate(_walk(steps, ())):
            self._declared.setdefault(step.id, _Declared(step, blocks, order))
            for block, kind, _ in blocks:
                if isinstance(kind, ForeachModel):
                    # Where the results of its items are made: behind the last step within it.
                    self._ends[block] = _Declared(self._declared[block].step, blocks[: _depth(blocks, block)], order)
        self._types: dict[str, Type] = {}
        self._silent: set[str] = set()  # children that leave no output
        self._is_strict = is_strict  # expressions read only what schemas declare

    def learn(self, step: str, output: Type) -> None:
        """Keep the type of a step's output."""
        self._types[step] = output

    def learn_silent(self, step: str) -> None:
        """Keep that a step never has an output."""
        self._silent.add(step)

    def output_of(self, step: str) -> Type:
        """Return the type of a step's output, as far as it is known."""
        return self._types.get(step, DYN)

    def values_of(self, step: str) -> tuple[str, ...] | None:
        """Name the values of a step that may be masked; None if there is no such step."""
        declared = self._declared.get(step)
        if declared is None or not step:
            return None
        match declared.step.kind:
            case TaskModel() | PollModel() | None:  # of a step that could not be read everything is possible
                return ("input", "output", "error", "progress", "evidence")
            case ChildModel():
                return ("input", "output", "error", "evidence")
            case SetModel() | SignalModel() | ForeachModel():
                return ("output", "evidence")
            case _:
                return ("evidence",)

    def undoing(self, scope: Scope, *, input_type: Type, step: str) -> Environment:
        """Return what the compensation of a step may read: what was certain before it, the rest with a guard.

        It runs when everything is decided, so that no reading depends on chance. `scope` is that before the step.
        """
        loop = next((block for block, kind, _ in self._declared[step].blocks if isinstance(kind, ForeachModel)), None)

        def facts(name: str) -> StepFacts | None:
            declared = self._declared.get(name)
            is_beside = loop is not None and declared is not None and any(b == loop for b, _, _ in declared.blocks)
            known = self._facts(name, scope, ResultOf(loop) if loop is not None and is_beside else None)
            if known is None or known.uncertain is None or not known.guardable:
                return known
            reason = "its outcome may be unknown when it is undone" if name == step else None
            return StepFacts(known.output, reason or f"it may not have run when `{step}` is undone")

        roots = {"input": input_type, "instance": INSTANCE, "now": STRING, **scope.roots}
        return Environment(roots, _LATER_ROOTS, facts, self.names, scope.known, self._is_strict)

    def environment(self, scope: Scope, *, input_type: Type, at: At, extra: dict[str, Type]) -> Environment:
        """Return what an expression at a place may read."""

        def facts(name: str) -> StepFacts | None:
            if name == at and "output" in extra:
                reason = "it is this very step, and what the round answered is `output` here"
                return StepFacts(DYN, reason, guardable=False)
            return self._facts(name, scope, at)

        roots = {"input": input_type, "instance": INSTANCE, "now": STRING, **scope.roots, **extra}
        if scope.error_of is not None:
            roots["error"] = _ERROR
        return Environment(roots, _LATER_ROOTS, facts, self.names, scope.known, self._is_strict)

    def names(self) -> Iterable[str]:
        """Name all steps."""
        return (name for name in self._declared if name)

    def _facts(self, name: str, scope: Scope, at: At) -> StepFacts | None:
        declared = self._declared.get(name)
        if declared is None or not name:
            return None
        kind = declared.step.kind
        is_given = isinstance(kind, WITHOUT_OWN_OUTPUT) and _is_given_output(declared.step)
        if name in self._silent or (kind is not None and not is_given and not isinstance(kind, WITH_OUTPUT)):
            return StepFacts(None, None)
        output = self.output_of(name)
        if name in scope.available or not scope.reachable:
            return StepFacts(output, None)
        reason, guardable = self._why_not(declared, at)
        return StepFacts(output, reason, guardable)

    def _blocks_of(self, declared: _Declared, shared: int) -> list[_Declared]:
        """List the blocks around a step that are not around the place which reads it."""
        names = (block for block, kind, _ in declared.blocks[shared:] if isinstance(kind, BLOCKS))
        return [self._declared[block] for block in names]

    def _why_not(self, declared: _Declared, at: At) -> tuple[str, bool]:
        """Say why a step is not certain at a place, and whether a guard can help."""
        shared = 0  # how many blocks around both are the same, entered the same way
        here = self._ends.get(at.foreach) if isinstance(at, ResultOf) else self._declared.get(at or "")
        if here is declared:
            return "it is this very step", False
        around = () if here is None else tuple(kind for block, kind, _ in here.blocks if block == declared.step.id)
        if around:
            is_handled = isinstance(around[0], HandlerModel)
            return (
                "its failure is handled here" if is_handled else "it has not ended here: this step is a part of it",
                False,
            )
        if here is not None:
            for (block, kind, label), (other, way, own) in zip(declared.blocks, here.blocks, strict=False):
                if block != other:
                    break
                if isinstance(way, HandlerModel) and not isinstance(kind, HandlerModel):
                    return f"it is a part of `{block}`, whose failure is handled here", False
                if isinstance(kind, HandlerModel) and not isinstance(way, HandlerModel):
                    return f"it runs only if `{block}` fails", False
                if label != own and isinstance(kind, ParallelModel):
                    reason, guardable = _beside(block, kind, label, own)
                    return (guardable and _per_item(declared.blocks[shared:])) or (reason, guardable)
                if label != own:
                    what = "error handler" if isinstance(kind, HandlerModel) else "case"
                    return f"it is in another {what} of `{block}`", False
                shared += 1
            if declared.order > here.order:
                return "it comes later", False
        per_item = _per_item(declared.blocks[shared:])
        if per_item is not None:
            return per_item
        if declared.step.when is not None:
            return "it has a `when` and is skipped if that does not hold", True
        if isinstance(declared.step.kind, SignalModel) and declared.step.kind.continue_on_timeout:
            return "it has no output if no signal comes in time, since it goes on then", True
        for block, kind, label in declared.blocks[shared:]:
            if isinstance(kind, BranchModel):
                return f"it runs in one case of `{block}` only", True
            if isinstance(kind, HandlerModel):
                return f"it runs only if `{block}` fails", True
            if isinstance(kind, ParallelModel) and kind.join.policy is not JoinPolicy.ALL:
                return f"`{block}` has `join: {kind.join.policy}`, which does not need every branch to be done", True
            if isinstance(kind, ParallelModel) and any(lane.needs for lane in kind.lanes if lane.label == label):
                return "it is skipped if all that it needs is", True
        if isinstance(declared.step.kind, WITHOUT_OWN_OUTPUT):
            return "it has an output only where an error handler has given it one", True
        if any(kind.step.on_error for kind in self._blocks_of(declared, shared)):
            return "it may not have run, or not to its end, where the failure of a block around it is handled", True
        if declared.step.on_error:
            return "it has no output where an error handler took its failure", True
        return "a block around it has a `when`", True


def _is_given_output(step: StepModel) -> bool:
    return any(handler.then is Handling.CONTINUE for handler in step.on_error)


def _beside(block: str, parallel: ParallelModel, label: str, own: str) -> tuple[str, bool]:
    """Say why a step of lane `label` is not certain in lane `own` of the same block."""
    if not parallel.is_graph:
        return f"it runs beside this one, in another branch of `{block}`", False
    if label in joins.ancestors_of({lane.label: lane.needs for lane in parallel.lanes})[own]:
        return "it may have been skipped: it is enough that one of the steps that are needed is done", True
    return f"it runs beside this one in `{block}`; name it in `needs` to read it", False


def _per_item(blocks: Iterable[tuple[str, Around, str]]) -> tuple[str, bool] | None:
    """Say why a step with these blocks around it has no one output: one of them is a foreach; None if none is."""
    loop = next((block for block, kind, _ in blocks if isinstance(kind, ForeachModel)), None)
    if loop is None:
        return None
    return f"it runs once for each item of `{loop}`: read the list of results, `steps.{loop}.output`", False


def _depth(blocks: tuple[tuple[str, Around, str], ...], wanted: str) -> int:
    """Count the blocks around a step down to one of them, which is included."""
    return 1 + next(place for place, (block, _, _) in enumerate(blocks) if block == wanted)


def _walk(
    steps: tuple[StepModel, ...], blocks: tuple[tuple[str, Around, str], ...]
) -> Iterator[tuple[StepModel, tuple[tuple[str, Around, str], ...]]]:
    for step in steps:
        yield step, blocks
        for index, handler in enumerate(step.on_error):
            yield from _walk(handler.steps, (*blocks, (step.id, handler, handler_case(index))))
        match step.kind:
            case BranchModel(cases=cases):
                for case in cases:
                    yield from _walk(case.steps, (*blocks, (step.id, step.kind, case.label)))
            case ParallelModel(lanes=lanes):
                for lane in lanes:
                    yield from _walk(lane.steps, (*blocks, (step.id, step.kind, lane.label)))
            case ForeachModel(steps=inner):
                yield from _walk(inner, (*blocks, (step.id, step.kind, "")))


def steps_inside(step: StepModel) -> Iterator[StepModel]:
    """Give all steps in a block, not those of its own error handlers, which come behind it."""
    return (inner for inner, blocks in _walk((replace(step, on_error=()),), ()) if blocks)


def steps_within(steps: tuple[StepModel, ...]) -> Iterator[StepModel]:
    """Give all steps of a definition, those in blocks too."""
    return (step for step, _ in _walk(steps, ()))


def round_roots(output: Type | None = None) -> dict[str, Type]:
    """Return the further roots inside a poll: its input knows the round, its conditions the answer too."""
    return dict(_ROUND_ROOTS) if output is None else {**_ROUND_ROOTS, "output": output}


def signal_roots(payload: Type) -> dict[str, Type]:
    """Return the further root of a wait's `accept_when`: the signal that might end it."""
    fields = {"id": STRING, "payload": payload, "sent_at": STRING}
    return {"signal": Type(TypeKind.MAP, fields=fields, required=frozenset(fields), closed=True)}
