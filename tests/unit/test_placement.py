"""Pure decisions of order: even rounds between namespaces, and fair places within a lane."""

from hypothesis import given
from hypothesis import strategies as st

from orbit.clock import SECOND
from pulse.fairness import Arrival, arrange, quantum
from pulse.limits import FAIR_QUANTUM_MICROS
from pulse.placement import deal
from pulse.store.lanes import ReadyKey

LANE = b"lane"


def entries(owner: bytes, count: int, *, at: int = 0) -> list[ReadyKey]:
    return [ReadyKey(owner, at + n, owner + n.to_bytes(4)) for n in range(count)]


def test_r093_a_namespace_with_little_gets_its_share_of_every_round() -> None:
    many, few = entries(b"A", 256), entries(b"B", 10, at=10**9)
    owners = {b"A": b"a", b"B": b"b"}
    dealt = deal(many + few, owners, {b"a": 500, b"b": 500}, 256)
    assert len(dealt) == 256
    assert [key for key in dealt if key.lane_id == b"B"] == few


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), min_size=1, max_size=5), st.integers(1, 100))
def test_a_round_is_full_even_and_in_order(namespaces: list[tuple[int, int]], wanted: int) -> None:
    names = [bytes([65 + at]) for at in range(len(namespaces))]
    keys = [key for name, (count, _) in zip(names, namespaces, strict=True) for key in entries(name, count)]
    rooms = {name: room for name, (_, room) in zip(names, namespaces, strict=True)}
    dealt = deal(keys, {name: name for name in names}, rooms, wanted)
    got = {name: sum(key.lane_id == name for key in dealt) for name in names}
    if len(names) == 1:
        assert dealt == sorted(keys, key=lambda key: (key.dispatch_at, key.task_id))[:wanted]
        return
    could = {name: min(count, room) for name, (count, room) in zip(names, namespaces, strict=True)}
    assert len(dealt) == min(wanted, sum(could.values()))
    for name in names:
        assert got[name] <= could[name]
        # Who got less than it could has no fewer than anybody else, but for one that does not divide.
        assert got[name] == could[name] or got[name] >= max(got.values()) - 1
    assert dealt == sorted(dealt, key=lambda key: (key.dispatch_at, key.task_id))


def arrivals(key: bytes, count: int, *, priority: int = 4, place: int = 0) -> list[Arrival]:
    return [Arrival(LANE, key, place, priority)] * count


def test_r092_a_single_task_waits_for_at_most_one_of_each_other_key() -> None:
    places, shares = arrange([*arrivals(b"a", 1000), *arrivals(b"b", 1000)], {LANE: None}, {})
    later, _ = arrange(arrivals(b"c", 1, place=SECOND), {LANE: min(places)}, shares)
    assert sum(place < later[0] for place in places) == 0
    assert sum(place <= later[0] for place in places) == 2
    ten, _ = arrange(arrivals(b"c", 10), {LANE: min(places)}, shares)
    assert sum(place < ten[-1] for place in places) == 18


def test_what_was_done_while_nobody_waited_is_not_held_against_a_key() -> None:
    _, shares = arrange(arrivals(b"a", 1000), {LANE: None}, {})
    places, _ = arrange([*arrivals(b"a", 2), *arrivals(b"b", 2)], {LANE: None}, shares)
    assert places[0] == places[2]


def test_the_priority_is_a_weight_and_starves_nobody() -> None:
    places, _ = arrange([*arrivals(b"a", 100, priority=9), *arrivals(b"b", 10, priority=0)], {LANE: None}, {})
    assert (quantum(9), quantum(0)) == (FAIR_QUANTUM_MICROS, 10 * FAIR_QUANTUM_MICROS)
    assert sum(place < places[101] for place in places[:100]) == 10


@given(
    st.lists(
        st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 10**6), st.integers(0, 9)),
        min_size=1,
        max_size=60,
    ),
    st.none() | st.integers(0, 10**6),
)
def test_no_place_is_before_the_head_or_within_a_quantum_of_the_keys_last(
    given_: list[tuple[bytes, int, int]], head: int | None
) -> None:
    asked = [Arrival(LANE, key, place, priority) for key, place, priority in given_]
    places, moved = arrange(asked, {LANE: head}, {})
    floor = asked[0].place if head is None else head
    last: dict[bytes, int] = {}
    for arrival, place in zip(asked, places, strict=True):
        assert place >= floor
        assert place >= last.get(arrival.key, place)
        last[arrival.key] = place + quantum(arrival.priority)
    assert moved == {Arrival(LANE, key, 0, 0).share_id(): at for key, at in last.items()}
