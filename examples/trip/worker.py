"""The handlers of the trip workflow: airline, hotel, car hire and bank, played by this process.

    ORBIT_URL=... ORBIT_CREDENTIALS_FILE=... python examples/trip/worker.py

Each thing is known by its trip, a seat by its traveller too, so booking or giving it back again changes nothing. The
plane has three seats, there is no room in a trip whose name ends in `-camp`, and the bank charges nobody for two seats.
"""

import sys
import threading
from typing import Any

from orbit import NonRetryable, TaskContext, Worker

SEATS = 3
REFUSED_SEATS = 2

worker = Worker(queues=["trips"], capacity=8)

# What the world looks like: trip → what is booked for it, and the order in which things were given back.
booked: dict[str, set[str]] = {}
_world = threading.Lock()


@worker.task("flight.book@1", recovery="REPLAY_SAFE")
def book_seat(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Book a seat for a traveller, as long as there are some."""
    trip, seat = params["trip"], f"seat of {params['traveller']}"
    with _world:
        mine = booked.setdefault(trip, set())
        if seat not in mine and sum(each.startswith("seat of ") for each in mine) >= SEATS:
            raise NonRetryable("the last seat is sold", code="SOLD_OUT")
        mine.add(seat)
    return {"seat": seat}


@worker.task("flight.give_back@1", recovery="REPLAY_SAFE")
def give_back(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Give a traveller's seat back, if there is one."""
    return _let_go(params["trip"], f"seat of {params['traveller']}")


@worker.task("hotel.book@1", recovery="REPLAY_SAFE")
def book_hotel(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Book rooms for the group."""
    if params["trip"].endswith("-camp"):
        raise NonRetryable("every room is taken", code="NO_ROOM")
    return _book(params["trip"], "hotel")


@worker.task("car.hire@1", recovery="REPLAY_SAFE")
def hire_car(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Hire a car."""
    return _book(params["trip"], "car")


@worker.task("stay.cancel@1", recovery="REPLAY_SAFE")
def cancel_stay(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Cancel hotel and car, whichever there is."""
    return _let_go(params["trip"], "hotel", "car")


@worker.task("camp.book@1", recovery="REPLAY_SAFE")
def book_camp(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Find a place for the tents."""
    return _book(params["trip"], "camp")


@worker.task("camp.cancel@1", recovery="REPLAY_SAFE")
def cancel_camp(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Give the place for the tents away."""
    return _let_go(params["trip"], "camp")


@worker.task("card.charge@1", recovery="REPLAY_SAFE")
def charge(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Take the money; the bank takes it once for a trip."""
    if params["seats"] == REFUSED_SEATS:
        raise NonRetryable("this card does not pay for two", code="CARD_REFUSED")
    return _book(params["trip"], "paid")


@worker.task("mail.send@1", recovery="REPLAY_SAFE")
def send_mail(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Tell the group; a second mail would be a nuisance, not a loss."""
    print(params["text"], flush=True)
    return {"sent": True}


def _book(trip: str, what: str) -> dict[str, Any]:
    with _world:
        booked.setdefault(trip, set()).add(what)
    return {"booked": what}


def _let_go(trip: str, *things: str) -> dict[str, Any]:
    with _world:
        mine = booked.setdefault(trip, set())
        found = [each for each in things if each in mine]
        mine.difference_update(found)
    return {"let_go": list[Any](found)}


if __name__ == "__main__":
    sys.exit(0 if worker.run() else 1)
