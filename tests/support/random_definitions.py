"""Random workflow definitions as YAML text that compiles: what publishing proves of them is held against runs."""

import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from definitions.codes import Code
from definitions.compiler import compile_definition
from definitions.graph import Graph

HEAD = """\
orbit: weave/1
workflow: random
version: 1
on_failure: fail
defaults: {queue: q, start_within: 20s, attempt_timeout: 5s, retry: {max_attempts: 2, backoff: 1s}}
input: {type: object, required: [flags], properties: {flags: {type: array, items: {type: boolean}}}}
"""


@dataclass(slots=True)
class Writer:
    """Writes random blocks of steps that read earlier ones: bare where that is certain, guarded where it may be not."""

    chance: random.Random
    daring: float  # how often a step is read bare although it may have been skipped, which the compiler must refuse
    maybe: list[str] = field(default_factory=list)
    in_items: bool = False
    loops: int = 0

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
            ["task", "task", "set", "wait", "signal", "poll", "end", *["branch", "parallel", "needs"] * depth, *loops]
        )
        is_conditional = kind == "end" or self.chance.random() < 0.25
        yield f"{indent}- id: {name}"
        if is_conditional:
            yield f"{indent}  when: {self.condition()}"
        inside, loops_before = list(certain), self.loops
        is_block = kind in {"branch", "parallel", "needs", "foreach"}
        is_handled = kind in {"task", "poll"} or (is_block and self.chance.random() < 0.4)
        match kind:
            case "task":
                yield f"{indent}  task: t.a@1"
                yield f"{indent}  input: {self.reference(certain)}"
            case "set":
                yield f"{indent}  set: {{v: {self.reference(certain)}}}"
            case "wait":
                yield f"{indent}  wait: {{for: {self.chance.randint(1, 90)}s}}"
            case "signal":
                ending = self.chance.choice(["fail", "continue"])
                is_conditional = is_conditional or ending == "continue"
                yield f"{indent}  wait: {{signal: go, timeout: {self.chance.randint(1, 90)}s, on_timeout: {ending}}}"
            case "poll":
                yield (
                    f"{indent}  poll: {{task: t.p@1, input: {self.reference(certain)}, done_when: output.done == true, "
                    f"every: {self.chance.randint(1, 9)}s, max_rounds: {self.chance.randint(1, 4)}, timeout: "
                    f"{self.chance.choice(['10s', '5m'])}, on_round_error: {self.chance.choice(['fail', 'continue'])}}}"
                )
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
                yield f"{indent}  return: {{}}"
        has_lane = is_handled and depth > 0 and self.chance.random() < (0.5 if is_block else 0.2)
        if is_handled:
            may_retry = self.loops == loops_before + (kind == "foreach")
            yield from self.handlers(indent, certain, has_lane=has_lane, may_retry=may_retry)
        if kind in {"foreach", "task", "set", "poll", "signal"}:
            (self.maybe if is_conditional or has_lane else inside).append(name)
        if not is_conditional:
            certain[:] = inside

    def branch(self, depth: int, indent: str, certain: list[str]) -> Iterator[str]:
        yield f"{indent}  branch:"
        for _ in range(self.chance.randint(1, 2)):
            yield f"{indent}    - when: {self.condition()}"
            yield f"{indent}      steps:"
            yield from self.block(depth - 1, f"{indent}        ", list(certain))
        yield f"{indent}    - else: []"

    def foreach(self, depth: int, indent: str, certain: list[str]) -> Iterator[str]:
        outside, self.maybe, self.in_items = self.maybe, list(self.maybe), True
        self.loops += 1
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


def definition(seed: int, depth: int = 2) -> tuple[str, Graph]:
    """Make a random definition that compiles; the compiler refuses about half of the first attempts, as it must.

    With a `depth` of 0 it is one step: what many steps leave over of their bounds would hide what one takes too much.
    """
    for attempt in range(100):
        writer = Writer(random.Random(seed * 100 + attempt), daring=0.3 if attempt < 2 else 0.0)
        text = (
            f"{HEAD}steps:\n" + "\n".join(writer.block(depth, "  ", []) if depth else writer.step(0, "  ", [])) + "\n"
        )
        compiled = compile_definition(text)
        if compiled.graph is not None:
            return text, compiled.graph
        codes = {finding.code for finding in compiled.findings}
        assert codes == {Code.UNCERTAIN_REFERENCE}, compiled.render()
    raise AssertionError("the writer makes nothing that compiles")
