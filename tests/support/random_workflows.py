"""Random workflows of every kind of step, nested and skipped in every way: a hypothesis strategy."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from definitions.graph import Graph, Handling, NodeKind, PollSpec
from definitions.template import compile_template
from tests.support.graphs import (
    Block,
    branch,
    child,
    dependent,
    done,
    fail,
    foreach,
    graph,
    parallel,
    poll,
    put,
    task,
    wait,
    wait_signal,
    wait_until,
)

CONDITIONS = st.sampled_from(["input.n > 3", "input.n == 2", "input.go", "!input.go", "input.missing == 1"])
SIGNALS = ("go", "stop")
# When (0 is with the start), which, with what, for how many seconds; no two at once.
SENDINGS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.25, 3.1, 5.0, 7.3, 21.7, 310.9]),
        st.sampled_from(SIGNALS),
        st.integers(0, 5),
        st.sampled_from([4.0, 1e6]),
    ),
    max_size=4,
    unique_by=lambda sending: sending[0],
)
JOINS = st.sampled_from(["all", "any", "at_least", "settled"])
ITEM_CONDITIONS = st.sampled_from(["item > 3", "index == 1", "index < 2 && item != 0"])
LISTS = st.lists(st.integers(0, 6), max_size=7)
INPUTS = st.fixed_dictionaries({"n": st.integers(0, 6), "go": st.booleans(), "list": LISTS})


@dataclass
class Names:
    """Names steps; `in_items` while the steps within a foreach are drawn, `children` if steps may be children."""

    children: bool = True
    count: int = 0
    in_items: bool = False

    def __call__(self) -> str:
        self.count += 1
        return f"s{self.count}"

    def conditions(self) -> st.SearchStrategy[str]:
        return st.one_of(CONDITIONS, ITEM_CONDITIONS) if self.in_items else CONDITIONS


@st.composite
def blocks(draw: st.DrawFn, names: Names, depth: int) -> list[Block]:
    return [draw(steps(names, depth)) for _ in range(draw(st.integers(0 if depth < 3 else 1, 3)))]


@st.composite
def steps(draw: st.DrawFn, names: Names, depth: int) -> Block:
    kinds = ["task", "task", "poll", "wait", "until", "signal", "signal", "set", "fail", "return"] + (
        ["branch", "parallel", "needs"] * 2 if depth else []
    )
    if depth and not names.in_items:
        kinds += ["foreach"] * 3
    kind = draw(st.sampled_from([*kinds, "child", "child"] if names.children else kinds))
    name = names()
    match kind:
        case "task":
            block = task(name, timeout_seconds=draw(st.sampled_from([5.0, 60.0])), start_within_seconds=20.0)
        case "poll":
            rounds, timeout = draw(st.integers(1, 4)), draw(st.sampled_from([3.0, 25.0, 900.0]))
            block = poll(name, rounds_max=rounds, timeout_seconds=timeout, continue_on_round_error=draw(st.booleans()))
        case "child":
            given = draw(st.sampled_from([{"n": 1}, {"n": "${ input.n }"}, {"n": "${ input.missing }"}, {"n": "x"}]))
            block = child(name, given, draw(st.sampled_from([None, 5.37, 400.37])))
        case "wait":
            block = wait(name, draw(st.sampled_from([0.1, 7.0, 300.0])))
        case "until":
            moment = draw(st.sampled_from(["now", "instance.started_at", "'2027-01-15T08:02:00Z'", "input.missing"]))
            block = wait_until(
                name, moment, draw(st.sampled_from([5.0, 400.0])), continue_on_timeout=draw(st.booleans())
            )
        case "signal":
            accept_when = draw(st.sampled_from([None, None, "signal.payload > 2", "signal.payload.missing"]))
            block = wait_signal(
                name,
                draw(st.sampled_from(SIGNALS)),
                draw(st.sampled_from([5.0, 400.0])),
                goes_on=draw(st.booleans()),
                accept_when=accept_when,
            )
        case "set":
            values = [{"v": "${ input.n }"}, {"v": "${ input.missing }"}, {}]
            block = put(name, draw(st.sampled_from([{"v": "${ item + index }"}] if names.in_items else values)))
        case "fail" | "return":
            # An end in the middle of everything is rare, or nothing else would be seen.
            ends = fail(name) if kind == "fail" else done(name, {"n": "${ input.n }"})
            return ends.only_if(draw(st.sampled_from(["input.n == 2", "input.n == 5 && input.go"])))
        case "branch":
            conditions = draw(st.lists(names.conditions(), min_size=1, max_size=3, unique=True))
            cases = {condition: draw(blocks(names, depth - 1)) for condition in conditions}
            block = branch(
                name, cases if draw(st.integers(0, 5)) == 0 else {**cases, "else": draw(blocks(names, depth - 1))}
            )
        case "foreach":
            block = draw(loops(names, name, depth))
        case "parallel":
            count = draw(st.integers(1, 3))
            lanes = {f"b{index}": draw(blocks(names, depth - 1)) or [wait(names(), 1.0)] for index in range(count)}
            block = parallel(name, lanes, draw(JOINS), at_least=draw(st.integers(1, count)))
        case _:
            block = draw(dependency_graphs(name, names, depth))
    if kind in {"task", "poll", "set", "until"}:
        block = draw(handled(block, names, depth, may_retry=kind in {"task", "poll"}))
    elif kind in {"branch", "parallel", "needs", "foreach"}:
        block = draw(handled(block, names, depth, may_retry=may_restart(block)))
    is_block = kind in {"branch", "parallel", "needs", "foreach"}
    may_be_undone = kind in {"task", "poll", "until"} or (is_block and may_be_undone_whole(block))
    if may_be_undone and draw(st.integers(0, 5 if is_block else 2)) == 0:
        given = [None, {"n": "${ input.n }"}, {"x": "${ input.missing }"}]
        params = draw(st.sampled_from([*given, {"item": "${ item + index }"}] if names.in_items else given))
        block = block.undone(params, timeout_seconds=draw(st.sampled_from([5.0, 60.0])), start_within_seconds=20.0)
    return block.only_if(draw(names.conditions())) if draw(st.integers(0, 3)) == 0 else block


def may_restart(block: Block) -> bool:
    """Tell whether a block may be done once more: it holds no child, no compensation and, within it, no foreach."""
    inner = [*inside(block)]
    return not any(
        each.kind is NodeKind.WORKFLOW or each.compensate is not None or each.kind is NodeKind.FOREACH for each in inner
    )


def may_be_undone_whole(block: Block) -> bool:
    """Tell whether a block may have a compensation: nothing in it has one, and no handler does it once more."""
    is_retried = any(handler.then is Handling.RETRY for handler, _ in block.handlers)
    return not is_retried and not any(
        each.compensate is not None for part in block.parts.values() for own in part for each in (own, *inside(own))
    )


def inside(block: Block) -> Iterator[Block]:
    for part in [*block.parts.values(), *(lane for _, lane in block.handlers)]:
        for each in part:
            yield each
            yield from inside(each)


@st.composite
def loops(draw: st.DrawFn, names: Names, name: str, depth: int) -> Block:
    names.in_items = True
    body = draw(blocks(names, depth - 1)) or [wait(names(), 3.0)]
    names.in_items = False
    output = draw(st.sampled_from([None, None, {"n": "${ item }"}, "${ input.missing }"]))
    leaves = {} if output is None else {"output": compile_template(output), "last": None}
    return foreach(
        name,
        draw(st.sampled_from(["input.list", "input.list", "input.list", "[1, 5, 2]", "[]", "input.missing"])),
        body,
        items_max=draw(st.sampled_from([3, 10, 10])),
        concurrency=draw(st.integers(1, 4)),
        **leaves,
    )


@st.composite
def dependency_graphs(draw: st.DrawFn, name: str, names: Names, depth: int) -> Block:
    """Steps of which each may need any before it; joins that can never be satisfied are among them."""
    made: list[tuple[Block, list[str]]] = []
    for _ in range(draw(st.integers(1, 5))):
        earlier = [step.id for step, _ in made]
        needs = draw(st.lists(st.sampled_from(earlier), max_size=3, unique=True)) if earlier else []
        made.append((draw(steps(names, depth - 1)), needs))
    return dependent(name, made, draw(JOINS), at_least=draw(st.integers(1, len(made))))


@st.composite
def handled(draw: st.DrawFn, block: Block, names: Names, depth: int, *, may_retry: bool) -> Block:
    """Give a step error handlers now and then; their values and steps read the error."""
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
        match = draw(st.sampled_from(["*", "*", "NON_RETRYABLE", "STEP_TIMED_OUT", "TASK_FAILED", "POLL_EXHAUSTED"]))
        then = draw(st.sampled_from([*Handling, Handling.RETRY, Handling.CONTINUE]))
        if then is Handling.RETRY and may_retry:
            gap = draw(st.sampled_from([0.0, 5.0, 100.0]))
            block = block.on_error(match, then, retries_max=draw(st.integers(1, 2)), backoff_seconds=gap)
        elif then is Handling.STEPS and depth:
            told = put(names(), {"code": "${ error.code }", "details": "${ error.details }"})
            block = block.on_error(match, [told, *draw(blocks(names, 0))])
        elif then is Handling.FAIL:
            block = block.on_error(match, then)
        else:
            value = draw(
                st.sampled_from([{"status": "${ error.class }", "of": "${ error.step }"}, "${ error.no }", None])
            )
            block = block.on_error(match, Handling.CONTINUE, value)
    return block


@st.composite
def workflows(draw: st.DrawFn, *, children: bool = True) -> Graph:
    return draw(versions(children=children, count=1))[1]


@st.composite
def versions(draw: st.DrawFn, *, children: bool = True, count: int = 3) -> dict[int, Graph]:
    """A workflow and versions of it that are longer, shorter, or changed somewhere; by number from 1."""
    names = Names(children=children)
    made = draw(blocks(names, 3)) or [wait(names(), 1.0)]
    timeout = draw(st.sampled_from([10.0, 200.0, 1e6]))
    ends: dict[str, Any] = {
        "output": draw(st.sampled_from([None, {"n": "${ input.n }"}, "${ input.missing }"])),
        "on_failure": draw(st.sampled_from(["hold", "fail", "compensate"])),
    }
    found = {1: graph(*made, timeout=timeout, **ends)}
    for number in range(2, count + 1):
        longer = timeout * draw(st.sampled_from([0.5, 1.0, 1.0, 2.0]))
        found[number] = graph(*draw(changed(made, names)), timeout=longer, version=number, **ends)
    return found


@st.composite
def changed(draw: st.DrawFn, made: list[Block], names: Names) -> list[Block]:
    at = draw(st.integers(0, len(made) - 1))
    match draw(st.sampled_from(["longer", "longer", "shorter", "other", "bounds", "bounds"])):
        case "longer":
            return [*made, draw(steps(names, 1))]
        case "shorter" if len(made) > 1:
            return made[:-1]
        case "other":
            return [*made[:at], task(made[at].id, {"changed": True}), *made[at + 1 :]]
        case _:
            rounds, timeout = draw(st.sampled_from([(1, 900.0), (9, 25.0), (9, 2000.0)]))
            return [_bounded(block, rounds, timeout) for block in made]


def _bounded(block: Block, rounds: int, timeout: float) -> Block:
    if not isinstance(block.spec, PollSpec):
        return block
    return replace(block, spec=replace(block.spec, rounds_max=rounds, timeout_seconds=timeout))
