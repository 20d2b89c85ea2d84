"""A foreach in the pure core: random lists, bounds and outcomes; what holds whatever happens to the items."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from definitions.graph import Graph
from definitions.template import compile_template
from engine import foreach as rules
from engine.command import SubmitTask
from engine.explain import explain
from engine.flow import Flow
from engine.instance import Failure, Instance
from engine.items import Item, item_step, own_name, parted
from engine.simulator import Answer, Outcomes, Refusal, Simulation
from engine.states import INSTANCE_TERMINAL, Action, InstanceState, StepReason, StepState
from engine.stimulus import Outcome, Recovered
from orbit.jsontext import Json
from tests.support.graphs import Block, foreach, graph, parallel, put, task

FULL = Refusal(Failure("QUEUE_FULL", "full"))
BROKEN = Failure("BROKEN", "as the test wants")
DOUBLE = compile_template({"item": "${ item }", "at": "${ index }"})


@dataclass
class Seen:
    """What a run has shown while it went on."""

    flow: Flow
    open_max: int = 0
    rows_max: int = 0
    submitted: list[str] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    running_max: int = 0

    def look(self, instance: Instance) -> None:
        items = {item for name in instance.steps if (item := self.flow.item_of(name))}
        self.open_max = max(self.open_max, len(items))
        self.rows_max = max(self.rows_max, len(instance.steps))
        progress = instance.steps["each"].items if "each" in instance.steps else None
        if progress is not None and instance.state is not InstanceState.ENDING:
            assert progress.open == len(items), "what is counted as under way is there, and nothing else"
            assert 0 <= progress.ended <= progress.next <= progress.count
            if items and instance.state not in INSTANCE_TERMINAL:
                assert explain(self.flow, instance)["waits_for"]


def run(
    made: Graph, script: Callable[[SubmitTask], Answer | Refusal], numbers: Json, *decisions: tuple[float, Recovered]
) -> tuple[Outcomes, Seen]:
    flow = Flow(made)
    seen = Seen(flow)

    def watched(command: SubmitTask) -> Answer | Refusal:
        answer = script(command)
        if isinstance(answer, Answer):
            seen.submitted.append(f"{command.step}:{command.round}")
        return answer

    simulation = Simulation(flow, watched, input_value={"list": numbers})
    simulation.observe = seen.look
    for at, decision in decisions:
        simulation.recover_at(at, decision)
    return simulation.run(), seen


def two_steps(concurrency: int, **changes: Json) -> Graph:
    body = [task("fetch", "${ item }"), task("store", "${ steps.fetch.output }")]
    loop = foreach("each", "input.list", body, items_max=40, concurrency=concurrency, output=DOUBLE, last=None)
    return graph(loop, output="${ steps.each.output }", **changes)


def answered(seconds: list[float]) -> Callable[[SubmitTask], Answer]:
    def script(command: SubmitTask) -> Answer:
        name, index = parted(command.step) or ("", 0)
        return Answer(output=name, after_seconds=seconds[(index + len(name)) % len(seconds)])

    return script


@settings(max_examples=80, deadline=None)
@given(
    numbers=st.lists(st.integers(0, 99), max_size=40),
    concurrency=st.integers(1, 12),
    seconds=st.lists(st.sampled_from([0.0, 0.5, 1.0, 7.0, 60.0]), min_size=1, max_size=9),
)
def test_results_are_in_order_and_no_more_items_are_under_way_than_allowed(
    numbers: list[int], concurrency: int, seconds: list[float]
) -> None:
    outcome, seen = run(two_steps(concurrency), answered(seconds), numbers)
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert outcome.output == [{"item": number, "at": index} for index, number in enumerate(numbers)]
    assert seen.open_max <= min(concurrency, len(numbers))
    assert seen.rows_max <= 1 + 2 * concurrency
    assert len(seen.submitted) == len(set(seen.submitted)) == 2 * len(numbers)
    fetches = [line.entry.step for line in outcome.trace if line.entry.kind == "step.submitted"]
    begun = [step for step in fetches if own_name(str(step)) == "fetch"]
    assert begun == [item_step("fetch", index) for index in range(len(numbers))], "items begin in order"
    if numbers:
        longest = max(seconds) * 2
        ended_at = max(line.at_seconds for line in outcome.trace)
        assert ended_at <= -(-len(numbers) // concurrency) * longest + 1e-3, "the proven time"


@settings(max_examples=80, deadline=None)
@given(
    count=st.integers(1, 25),
    concurrency=st.integers(1, 6),
    broken=st.sets(st.integers(0, 24), max_size=4),
    after=st.lists(st.sampled_from([0.0, 1.0, 3.0]), min_size=1, max_size=5),
)
def test_after_a_failure_none_begins_until_it_is_repaired(
    count: int, concurrency: int, broken: set[int], after: list[float]
) -> None:
    tries: Counter[str] = Counter()

    def script(command: SubmitTask) -> Answer:
        tries[command.step] += 1
        _, index = parted(command.step) or ("", 0)
        if own_name(command.step) == "fetch" and index in broken and tries[command.step] == 1:
            return Answer(Outcome.FAILED, error=BROKEN, after_seconds=after[index % len(after)])
        return Answer(after_seconds=after[index % len(after)])

    numbers = list(range(count))
    outcome, seen = run(two_steps(concurrency), script, numbers)
    hit = sorted(index for index in broken if index < count)
    if not hit:
        assert outcome.instance.state is InstanceState.SUCCEEDED
        return
    assert outcome.instance.state is InstanceState.NEEDS_RECOVERY
    first = min(line.at_seconds for line in outcome.trace if line.entry.kind == "step.failed")
    later = [
        line
        for line in outcome.trace
        if line.entry.kind == "step.submitted" and line.at_seconds > first and own_name(str(line.entry.step)) == "fetch"
    ]
    assert later == []
    # A person who repairs one after the other brings it to its end, with every other task done once.
    tries.clear()
    decisions = [
        (1000.0 * turn + index, Recovered(Action.RETRY, item_step("fetch", index), reason="r"))
        for turn in range(1, len(hit) + 1)
        for index in hit
    ]
    outcome, seen = run(two_steps(concurrency), script, numbers, *decisions)
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert outcome.output == [{"item": index, "at": index} for index in range(count)]
    assert len(seen.submitted) == len(set(seen.submitted)) == 2 * count + len(hit)


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 20), concurrency=st.integers(1, 8), room=st.integers(1, 4), seconds=st.integers(1, 20))
def test_a_full_queue_is_tried_in_the_order_of_the_items(count: int, concurrency: int, room: int, seconds: int) -> None:
    running: list[float] = []
    taken: list[str] = []

    made = two_steps(concurrency)
    flow = Flow(made)
    simulation: Simulation

    def script(command: SubmitTask) -> Answer | Refusal:
        # So many tasks may be unfinished at once; time is read off the deadline.
        now = command.deadline_at - int((command.spec.timeout_seconds or 0.0) * 1e6)
        running[:] = [end for end in running if end > now]
        if len(running) >= room:
            return FULL
        running.append(now + seconds * 1e6)
        taken.append(command.step)
        return Answer(after_seconds=seconds)

    simulation = Simulation(flow, script, input_value={"list": list(range(count))})
    due: list[int] = []

    def look(instance: Instance) -> None:
        each = instance.steps.get("each")
        waiting = [step for step in instance.steps.values() if step.reason is StepReason.QUEUE_FULL]
        if each is not None and each.state is StepState.WAITING and any(step.id != "each" for step in waiting):
            assert each.reason is StepReason.QUEUE_FULL, "the foreach waits as a whole"
            assert each.due_at is not None
            due.append(each.due_at)
            assert all(step.due_at == step.start_by_at for step in waiting if step.id != "each")

    simulation.observe = look
    outcome = simulation.run()
    if outcome.instance.state is InstanceState.SUCCEEDED:
        fetches = [step for step in taken if own_name(step) == "fetch"]
        assert fetches == [item_step("fetch", index) for index in range(count)]
        assert len(taken) == len(set(taken)) == 2 * count
    else:
        assert outcome.instance.error is not None
        assert outcome.instance.error.code == "START_DEADLINE_EXCEEDED"


def test_many_items_begin_over_several_advances() -> None:
    loop = foreach("each", "input.list", [put("double", {"n": "${ item * 2 }"})], items_max=1000, concurrency=100)
    outcome, seen = run(graph(loop, output="${ size(steps.each.output) }"), lambda _command: FULL, list(range(950)))
    assert outcome.output == 950
    assert outcome.instance.revision >= 950 // rules.BEGUN_MAX
    assert seen.open_max <= 100


def test_a_failed_item_is_the_failure_of_a_foreach_whose_failure_is_taken() -> None:
    loop = foreach("each", "input.list", [task("fetch", "${ item }")], concurrency=2)
    made = graph(parallel("race", {"loop": [loop], "other": [task("slow")]}, "any"), output="done")

    def script(command: SubmitTask) -> Answer:
        if command.step == "fetch[1]":
            return Answer(Outcome.FAILED, error=BROKEN)
        return Answer(after_seconds=50.0 if command.step == "slow" else 2.0)

    outcome, seen = run(made, script, [1, 2, 3, 4])
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert sorted(seen.submitted) == ["fetch[0]:1", "fetch[1]:1", "slow:1"]
    each = outcome.step("each")
    assert each is not None
    assert each.error is not None
    assert (each.state, each.error.code, each.error.details) == (
        StepState.FAILED,
        "BROKEN",
        {"step": "fetch[1]", "index": 1},
    )


def raced_block(join: str = "any") -> Block:
    loop = foreach("each", "input.list", [task("fetch", "${ item }")], concurrency=2)
    return parallel("race", {"loop": [loop], "other": [task("other")]}, join)


def raced(join: str = "any", *behind: Block) -> Graph:
    return graph(raced_block(join), *behind)


def failing_once(*steps: str, **seconds: float) -> Callable[[SubmitTask], Answer]:
    def script(command: SubmitTask) -> Answer:
        if command.step in steps and command.round == 1:
            return Answer(Outcome.FAILED, error=BROKEN)
        return Answer(after_seconds=seconds.get(command.step, 1.0))

    return script


def retry(at: float, step: str) -> tuple[float, Recovered]:
    return at, Recovered(Action.RETRY, step, reason="r")


def test_several_failed_items_hold_nothing_that_the_other_branch_can_win() -> None:
    outcome, _ = run(raced(), failing_once("fetch[0]", "fetch[1]", other=50.0), [1, 2, 3])
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert outcome.instance.steps["each"].state is StepState.FAILED
    assert "instance.needs_recovery" not in {line.entry.kind for line in outcome.trace}


def test_a_retried_item_recomputes_the_join_around_its_foreach() -> None:
    outcome, _ = run(raced(), failing_once("fetch[0]", "other"), [1], retry(50.0, "fetch[0]"))
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert outcome.instance.steps["race.end"].state is StepState.SUCCEEDED


def test_a_retried_item_does_not_let_its_foreach_wait_for_another_that_has_failed() -> None:
    script = failing_once("fetch[0]", "fetch[1]", "other")
    outcome, _ = run(raced(), script, [1, 2, 3], retry(50.0, "fetch[0]"))
    assert outcome.instance.state is InstanceState.NEEDS_RECOVERY, "a person can go on from here"
    each = outcome.instance.steps["each"]
    assert each.error is not None
    assert (each.state, each.error.details) == (StepState.FAILED, {"step": "fetch[1]", "index": 1})
    outcome, _ = run(raced(), script, [1, 2, 3], retry(50.0, "fetch[0]"), retry(100.0, "fetch[1]"))
    assert outcome.instance.state is InstanceState.SUCCEEDED


def test_a_retried_item_of_a_foreach_that_others_keep_open_leaves_it_no_reason_to_fail() -> None:
    made = graph(parallel("all", {"race": [raced_block()], "held": [task("held")]}))
    script = failing_once("fetch[0]", "held", **{"fetch[1]": 90.0, "other": 200.0})
    outcome, _ = run(made, script, [1, 2, 3], retry(50.0, "fetch[0]"), retry(60.0, "held"))
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert outcome.instance.steps["each"].state is StepState.SUCCEEDED


def test_an_item_behind_whose_foreach_the_join_has_gone_on_is_no_longer_recovered() -> None:
    made = raced("settled", task("next"))
    outcome, seen = run(made, failing_once("fetch[0]", "next"), [1, 2], retry(50.0, "fetch[0]"))
    assert outcome.instance.state is InstanceState.NEEDS_RECOVERY
    assert outcome.instance.steps["each"].state is StepState.FAILED
    assert "fetch[0]:2" not in seen.submitted


def test_a_foreach_that_loses_stops_its_items_and_begins_no_more() -> None:
    loop = foreach("each", "input.list", [task("fetch", "${ item }"), task("store")], concurrency=2)
    made = graph(parallel("race", {"loop": [loop], "other": [task("quick")]}, "any"), task("after"))

    def script(command: SubmitTask) -> Answer:
        return Answer(after_seconds=3.0 if command.step in {"quick", "after"} else 10.0, ignores_cancel=True)

    outcome, seen = run(made, script, [1, 2, 3])
    assert outcome.instance.state is InstanceState.SUCCEEDED
    assert sorted(seen.submitted) == ["after:1", "fetch[0]:1", "fetch[1]:1", "quick:1"]
    # The flow went on at once; the end waited for what was still running.
    assert max(line.at_seconds for line in outcome.trace) >= 10.0
    lost = outcome.settled["fetch[0]"]
    assert (lost.state, lost.reason) == (StepState.SUCCEEDED, StepReason.BRANCH_LOST)
    assert outcome.settled["store[1]"].state is StepState.CANCELLED


def test_the_lanes_of_each_item_have_outcomes_of_their_own() -> None:
    lanes: dict[str, list[Block]] = {"a": [task("left", "${ item }")], "b": [task("right", "${ item }")]}
    loop = foreach("each", "input.list", [parallel("both", lanes, "any"), put("end", {"n": "${ item }"})])

    def script(command: SubmitTask) -> Answer:
        name, index = parted(command.step) or ("", 0)
        if (name, index % 2) in {("left", 0), ("right", 1)}:
            return Answer(Outcome.FAILED, error=BROKEN)
        return Answer(after_seconds=2.0)

    outcome, _ = run(graph(loop, output="${ steps.each.output }"), script, [5, 6, 7])
    assert outcome.output == [{"n": 5}, {"n": 6}, {"n": 7}]
    assert outcome.settled["left[0]"].state is StepState.FAILED
    assert outcome.settled["both.end[2]"].state is StepState.SUCCEEDED


def test_names_of_steps_of_items() -> None:
    flow = Flow(two_steps(2))
    assert flow.item_of("store[7]") == Item("each", 7)
    assert flow.nodes["store[7]"].id == "store[7]"
    assert flow.outgoing["fetch[7]"] == ("store[7]",)
    assert [source.id for source, _ in flow.incoming["store[7]"]] == ["fetch[7]"]
    for name in ("each[1]", "fetch[01]", "fetch[-1]", "fetch[123456]", "fetch[", "fetch[1]x", "other[1]", "fetch"):
        assert flow.item_of(name) is None
        assert not flow.knows(name)
    assert sorted(["store[1]", "fetch[10]", "fetch[2]", "each", "fetch[1]"], key=lambda name: flow.order[name]) == [
        "each",
        "fetch[1]",
        "store[1]",
        "fetch[2]",
        "fetch[10]",
    ]
