"""Random clients, workers, operators, dying nodes and time against one task layer; what must hold is checked each step.

Short stories, which hypothesis shrinks to the shortest that shows a fault, and one long walk. `ORBIT_MODEL_STEPS` says
how many steps the walk and all stories together take (2 000 each are a full run), `ORBIT_MODEL_SEED` repeats a run: its
seed is printed. In the end every obstacle is taken away, and all that can run must come to its end.
"""

import os
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from orbit.database import Database
from tests.support.pulse_invariants import Watch
from tests.support.pulse_moves import LIVES, MOVES, NAMES
from tests.support.pulse_world import World

pytestmark = pytest.mark.soak
STEPS = int(os.environ.get("ORBIT_MODEL_STEPS", "120"))
STEPS_A_STORY = 40
SEED = int(os.environ.get("ORBIT_MODEL_SEED", str(random.randrange(2**32))))
SAID = f"ORBIT_MODEL_SEED={SEED} ORBIT_MODEL_STEPS={STEPS}"
TOLD_STEPS = 60  # of a long story that ends badly

Step = tuple[str, dict[str, Any], int | None]


def chosen_for(name: str) -> st.SearchStrategy[Step]:
    _, choices = MOVES[name]
    picked = {key: st.sampled_from(values) for key, values in choices.items()}
    return st.tuples(st.just(name), st.fixed_dictionaries(picked), st.sampled_from(LIVES))


stories = st.lists(st.sampled_from(NAMES).flatmap(chosen_for), min_size=STEPS_A_STORY, max_size=STEPS_A_STORY)


def told(database: Database, story: list[Step]) -> World:
    """Let a story happen, its end included, and watch it."""
    world = World(database)
    watch = Watch(world)
    for number, (name, chosen, lives) in enumerate(story, start=1):
        try:
            world.do(name, chosen, lives)
            watch.look()
        except BaseException as error:
            steps = [f"{name}(**{chosen}), lives={lives}" for name, chosen, lives in story[:number]]
            error.add_note("\n".join([SAID, f"step {number}, after:", *steps[-TOLD_STEPS:]]))
            raise
    world.drain()
    watch.look()
    return world


@pytest.mark.timeout(3600)
def test_whatever_clients_workers_and_time_do_the_books_balance(database: Database) -> None:
    """Tell short stories; a failure is shrunk to the shortest one that shows it."""
    print(SAID)  # noqa: T201  (how to repeat this run)

    @seed(SEED)
    @settings(
        max_examples=max(1, STEPS // STEPS_A_STORY),
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(stories)
    def run(story: list[Step]) -> None:
        told(database, story)

    run()


@pytest.mark.timeout(3600)
def test_the_books_still_balance_at_the_end_of_a_long_walk(database: Database) -> None:
    """Take one long walk in one world, in which keys, lines, reviews and old attempts pile up."""
    chance = random.Random(SEED)
    random.seed(SEED)
    story: list[Step] = []
    for _ in range(STEPS):
        name = chance.choice(NAMES)
        picked = {key: chance.choice(values) for key, values in MOVES[name][1].items()}
        story.append((name, picked, chance.choice(LIVES)))
    world = told(database, story)
    states = Counter(row.state for row in world.rows())
    print(f"{SAID}: {len(world.assignments)} attempts, {len(world.started)} started; {dict(states)}")  # noqa: T201
