"""The two controls of the database's clock that tests have."""

from orbit.clock import SECOND
from orbit.database.clock import DatabaseClock


def test_a_clock_that_stands_is_moved_by_hand_only() -> None:
    clock = DatabaseClock()
    assert clock.shown(5 * SECOND) == 5 * SECOND
    clock.stand_still()
    assert [clock.shown(read * SECOND) for read in (6, 7, 9)] == [6 * SECOND] * 3
    clock.advance(seconds_forward=2)
    assert clock.shown(10 * SECOND) == 8 * SECOND
    clock.go_on()
    assert clock.shown(11 * SECOND) == 13 * SECOND
    clock.stand_still()
    assert [clock.shown(read * SECOND) for read in (20, 21)] == [22 * SECOND] * 2
