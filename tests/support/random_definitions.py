"""Random workflow definitions as YAML text that compiles: what publishing proves of them is held against runs.

Some have children, which are random definitions too.
"""

import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from definitions.children import Child, ChildName, child_of
from definitions.codes import Code
from definitions.compiler import compile_definition
from definitions.graph import Graph

HEAD = """\
orbit: weave/1
workflow: {name}
version: 1
on_failure: {on_failure}
defaults: {{queue: q, start_within: {start_within}, attempt_timeout: 5s, retry: {{max_attempts: 2, backoff: 1s}}}}
input: {{type: object, required: [flags], properties: {{flags: {{type: array, items: {{type: boolean}}}}}}}}
"""


@dataclass(slots=True)
class Writer:
    """Writes random blocks of steps that read earlier ones: bare where that is certain, guarded where it may be not."""

    chance: random.Random
    daring: float  # how often a step is read bare although it may have been skipped, which the compiler must refuse
    maybe: list[str] = field(default_factory=list)
    children: tuple[str, ...] = ()
    in_items: bool = False
    in_undone: bool = False  # whether the block around is undone as a whole
    once: int = 0  # steps of which a block around them can't be done once more
    undone: int = 0

    def condition(self) -> str:
        if self.in_items and self.chance.random() < 0.5:
            return self.chance.choice(["item", "'!item'", "index == 1"])
        return f"input.flags[{self.chance.randrange(8)}]"

    def reference(self, certain: list[str]) -> str:
        if self.maybe and self.chance.random() < 0.2:
            name = self.chance.choice(self.maybe)
            bare = self.chance.random() < self.daring
            return f"'${{ steps.{name}.output }}'" if bare else f"'${{ default(steps.{name}.output, null) }}'"
        return f"'${{ steps.{self.chance.choice(certain)}.output }}'" if certain else "null"

    def block(self, depth: int, indent: str, certain: list[str]) -> Iterator[str]:
        for _ in range(self.chance.randint(1, 4)):
            yield from self.step(depth, indent, certain)

    def sure(self, indent: str, certain: list[str]) -> Iterator[str]:
        name = f"s{self.chance.randrange(10**9)}"
        yield f"{indent}- id: {name}"
        yield f"{indent}  task: t.a@1"
        yield f"{indent}  input: {self.reference(certain)}"
        certain.append(name)

    def graph(self, indent: str, certain: list[str]) -> Iterator[str]:
        """Write steps that need earlier ones of the same list; the first is sure to run, and a need may be read."""
        made: list[str] = []
        for number in range(self.chance.randint(2, 5)):
            name = f"s{self.chance.randrange(10**9)}"
            needs = self.chance.sample(made, self.chance.randint(0, len(made)))
            yield f"{indent}- id: {name}"
            yield f"{indent}  task: t.a@1"
            if number and self.chance.random() < 0.3:
                yield f"{indent}  when: {self.condition()}"
            if needs:
                yield f"{indent}  needs: [{', '.join(needs)}]"
                bare = len(needs) == 1 or self.chance.random() < self.daring
                read = f"steps.{needs[0]}.output"
                yield f"{indent}  input: '${{ {read if bare else f'default({read}, null)'} }}'"
            else:
                yield f"{indent}  input: {self.reference(certain)}"
            made.append(name)
        self.maybe += made

    def step(self, depth: int, indent: str, certain: list[str]) -> Iterator[str]:
        name = f"s{self.chance.randrange(10**9)}"
        loops = [] if self.in_items else ["foreach"] * depth
        kind = self.chance.choice(
            ["task", "task", "set", "wait", "until", "signal", "poll", "end", "fail", *["child"] * bool(self.children),
             *["branch", "parallel", "needs"] * depth, *loops]
        )  # fmt: skip
        is_conditional = kind in {"end", "fail"} or self.chance.random() < 0.25
        yield f"{indent}- id: {name}"
        if is_conditional:
            yield f"{indent}  when: {self.condition()}"
        on_timeout = self.chance.choice(["fail", "continue"])
        inside, once_before = list(certain), self.once
        is_block = kind in {"branch", "parallel", "needs", "foreach"}
        is_handled = kind in {"task", "poll", "child", "until"} or (is_block and self.chance.random() < 0.4)
        may_undo = is_block or kind in {"task", "poll", "child", "wait", "until", "signal"}
        is_undone = may_undo and not self.in_undone and self.chance.random() < 0.25
        outer, self.in_undone = self.in_undone, self.in_undone or is_undone
        match kind:
            case "branch":
                yield from self.branch(depth, indent, certain)
            case "parallel":
                join = self.chance.choice(["all", "any", "settled", "{at_least: 2}"])
                yield f"{indent}  parallel:"
                yield f"{indent}    join: {join}"
                gained = yield from self.branches(depth, indent, certain)
                (inside if join == "all" and not is_handled else self.maybe).extend(gained)
            case "needs":
                yield f"{indent}  parallel:"
                yield f"{indent}    join: {self.chance.choice(['all', 'any', 'settled', '{at_least: 1}'])}"
                yield f"{indent}    steps:"
                yield from self.graph(f"{indent}      ", certain)
            case "foreach":
                yield from self.foreach(depth, indent, list(certain))
            case _:
                yield from self.leaf(kind, indent, certain, on_timeout=on_timeout)
        has_lane = is_handled and depth > 0 and self.chance.random() < (0.5 if is_block else 0.2)
        if is_handled:
            is_safe = is_block and self.once == once_before + (kind == "foreach") and not is_undone
            may_retry = kind in {"task", "poll"} or is_safe
            yield from self.handlers(indent, certain, has_lane=has_lane, may_retry=may_retry)
        self.in_undone = outer
        if is_undone:
            self.once += 1
            self.undone += 1
            has_output = kind in {"task", "poll", "foreach", "signal"}
            known = f"'${{ has(steps.{name}.output) }}'" if has_output else "null"
            yield f"{indent}  compensate: {{task: t.u@1, input: {known}}}"
        is_conditional = is_conditional or (kind == "signal" and on_timeout == "continue")
        if kind in {"foreach", "task", "set", "poll", "signal"}:
            (self.maybe if is_conditional or has_lane else inside).append(name)
        if not is_conditional:
            certain[:] = inside

    def leaf(self, kind: str, indent: str, certain: list[str], *, on_timeout: str) -> Iterator[str]:
        """Write what a step does that is no block."""
        match kind:
            case "task":
                yield f"{indent}  task: t.a@1"
                yield f"{indent}  input: {self.reference(certain)}"
            case "set":
                yield f"{indent}  set: {{v: {self.reference(certain)}}}"
            case "wait":
                yield f"{indent}  wait: {{for: {self.chance.randint(1, 90)}s}}"
            case "until":
                at = f"'1970-01-01T00:{self.chance.randrange(60):02}:00Z'"
                timeout = f"timeout: {self.chance.randint(1, 900)}s, on_timeout: {on_timeout}"
                yield f'{indent}  wait: {{until: "{at}", {timeout}}}'
            case "child":
                self.once += 1
                yield f"{indent}  workflow: {self.chance.choice(self.children)}"
                yield f"{indent}  input: {{flags: '${{ input.flags }}'}}"
                if self.chance.random() < 0.3:
                    yield f"{indent}  timeout: {self.chance.randint(1, 900)}s"
            case "fail":
                yield f"{indent}  fail: {{code: BROKEN, message: no more}}"
            case "signal":
                timeout = f"timeout: {self.chance.randint(1, 90)}s, on_timeout: {on_timeout}"
                yield f"{indent}  wait: {{signal: go, {timeout}}}"
            case "poll":
                yield (
                    f"{indent}  poll: {{task: t.p@1, input: {self.reference(certain)}, done_when: output.done == true, "
                    f"every: {self.chance.randint(1, 9)}s, max_rounds: {self.chance.randint(1, 6)}, timeout: "
                    f"{self.chance.randint(5, 200)}s, on_round_error: {self.chance.choice(['fail', 'continue'])}}}"
                )
            case _:
                yield f"{indent}  return: {{}}"

    def branch(self, depth: int, indent: str, certain: list[str]) -> Iterator[str]:
        yield f"{indent}  branch:"
        for _ in range(self.chance.randint(1, 2)):
            yield f"{indent}    - when: {self.condition()}"
            yield f"{indent}      steps:"
            yield from self.block(depth - 1, f"{indent}        ", list(certain))
        yield f"{indent}    - else: []"

    def foreach(self, depth: int, indent: str, certain: list[str]) -> Iterator[str]:
        outside, self.maybe, self.in_items = self.maybe, list(self.maybe), True
        self.once += 1
        yield f"{indent}  foreach:"
        lists = ["input.flags", "input.flags", "'[]'", "'[true, false, true]'"]
        yield f"{indent}    items: {self.chance.choice(lists)}"
        yield f"{indent}    max_items: {self.chance.choice([3, 8, 8, 20])}"
        yield f"{indent}    concurrency: {self.chance.randint(1, 9)}"
        yield f"{indent}    steps:"
        yield from self.block(depth - 1, f"{indent}      ", certain)
        if self.chance.random() < 0.5:
            yield f"{indent}    output: {self.reference(certain)}"
        self.maybe, self.in_items = outside, False

    def branches(self, depth: int, indent: str, certain: list[str]) -> Generator[str, None, list[str]]:
        """Write the branches of a parallel block; return the steps that are certain in one of them."""
        yield f"{indent}    branches:"
        gained: list[str] = []
        for branch in range(self.chance.randint(2, 3)):
            beside = list(certain)
            yield f"{indent}      b{branch}:"
            # The first step of each is sure to run, so that every join can be satisfied.
            yield from self.sure(f"{indent}        ", beside)
            yield from self.block(depth - 1, f"{indent}        ", beside)
            gained += [each for each in beside if each not in certain]
        return gained

    def handlers(self, indent: str, certain: list[str], *, has_lane: bool, may_retry: bool) -> Iterator[str]:
        """Write error handlers, with steps or not, or now and then none."""
        if not has_lane and self.chance.random() < 0.6:
            return
        yield f"{indent}  on_error:"
        if may_retry and self.chance.random() < 0.5:
            yield f"{indent}    - {{match: X, then: retry, max: {self.chance.randint(1, 3)}, backoff: 3s}}"
        if has_lane:
            yield f"{indent}    - match: NON_RETRYABLE"
            yield f"{indent}      steps:"
            yield from self.block(0, f"{indent}        ", list(certain))
        yield f'{indent}    - {{match: "*", then: continue, value: "${{ error.code }}"}}'


@dataclass(slots=True, frozen=True)
class Family:
    """A definition that compiles, and its children."""

    text: str
    graph: Graph
    children: dict[ChildName, Child]
    graphs: dict[tuple[str, int], Graph]


def family(seed: int, depth: int = 2, *, name: str = "random", generations: int = 0) -> Family:
    """Make a random definition that compiles; the compiler refuses about half of the first attempts, as it must.

    With a `depth` of 0 it is one step: what many steps leave over of their bounds would hide what one takes too much.
    """
    below = [
        family(seed + number + 1, min(depth, 1), name=f"{name}_{number}", generations=generations - 1)
        for number in range(2 if generations else 0)
    ]
    children = {ChildName(each.graph.workflow): child_of(each.graph) for each in below}
    graphs = {key: graph for each in below for key, graph in each.graphs.items()}
    for attempt in range(100):
        chance = random.Random(seed * 100 + attempt)
        names = tuple(each.workflow for each in children)
        writer = Writer(chance, daring=0.3 if attempt < 2 else 0.0, children=names)
        lines = "\n".join(writer.block(depth, "  ", []) if depth else writer.step(0, "  ", []))
        if writer.undone and chance.random() < 0.5:
            lines += "\n  - {id: broken, fail: {code: BROKEN, message: all of it}}"
        undoes = (writer.undone or "workflow: " in lines) and chance.random() < 0.7
        # Where little time is lost before a start, little of it is left to hide what a bound takes too little.
        start_within = chance.choice(["500ms", "20s"])
        head = HEAD.format(name=name, on_failure="compensate" if undoes else "fail", start_within=start_within)
        text = f"{head}steps:\n{lines}\n"
        compiled = compile_definition(text, children)
        if compiled.graph is not None:
            known = {**graphs, (name, 1): compiled.graph}
            return Family(text, compiled.graph, children, known)
        codes = {finding.code for finding in compiled.findings}
        assert codes == {Code.UNCERTAIN_REFERENCE}, compiled.render()
    raise AssertionError("the writer makes nothing that compiles")


def definition(seed: int, depth: int = 2) -> tuple[str, Graph]:
    """Make a random definition without children that compiles."""
    made = family(seed, depth)
    return made.text, made.graph
