"""The handlers of the order workflow: a shop's stock, bank, parcels and books, played by this process.

    ORBIT_URL=... ORBIT_CREDENTIALS_FILE=... python examples/order/worker.py

Each thing that is done is known by its order, so doing or undoing it again changes nothing; only the parcel, once it is
on the van, must not be sent twice on a guess. The books refuse an order of more than 1 000: by then everything else is
done, and all of it is undone again.
"""

import sys
import threading
from typing import Any

from orbit import NonRetryable, TaskContext, Worker

STOCK = frozenset({"lamp", "chair"})
BOOKED_AMOUNT_MAX = 1_000

worker = Worker(queues=["orders"], capacity=8)

# What the world looks like: order → amount that was charged, and what was done and undone, in order.
charged: dict[str, float] = {}
done: list[tuple[str, str]] = []
_world = threading.Lock()


@worker.task("stock.reserve@1", recovery="REPLAY_SAFE")
def reserve(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Put the item aside; the stock knows a reservation by its order."""
    if params["item"] not in STOCK:
        raise NonRetryable(f"no {params['item']} is left", code="SOLD_OUT")
    _note(params["order"], "reserved")
    return {"reservation": f"R-{params['order']}"}


@worker.task("stock.release@1", recovery="REPLAY_SAFE")
def release(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Put the item back, found by the order where there is no number."""
    _note(params["order"], "released")
    return {}


@worker.task("card.charge@1", recovery="REPLAY_SAFE")
def charge(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Take the money; the bank takes it once for an order."""
    with _world:
        charged[params["order"]] = params["amount"]
    _note(params["order"], "charged")
    return {"receipt": f"C-{params['order']}"}


@worker.task("card.refund@1", recovery="REPLAY_SAFE")
def refund(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Give the money back, if it was taken."""
    with _world:
        charged.pop(params["order"], None)
    _note(params["order"], "refunded")
    return {}


@worker.task("parcel.send@1", recovery="MANUAL")
def send_parcel(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Hand the parcel over."""
    order = params["reservation"].removeprefix("R-")
    _note(order, "shipped")
    return {"tracking": f"P-{order}"}


@worker.task("parcel.recall@1", recovery="REPLAY_SAFE")
def recall(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Call the parcel back."""
    _note(str(params["tracking"]).removeprefix("P-"), "recalled")
    return {}


@worker.task("mail.send@1", recovery="REPLAY_SAFE")
def send_mail(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Tell the customer; a second mail would be a nuisance, not a loss."""
    return {"sent": True, "to": params["to"]}


@worker.task("books.close@1", recovery="REPLAY_SAFE")
def close(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Close the order, unless it is too large for these books."""
    order = params["order"]
    with _world:
        amount = charged.get(order, 0.0)
    if amount > BOOKED_AMOUNT_MAX:
        raise NonRetryable(f"{amount:g} is more than these books take", code="TOO_LARGE")
    _note(order, "booked")
    return {}


def _note(order: str, what: str) -> None:
    with _world:
        done.append((order, what))


if __name__ == "__main__":
    sys.exit(0 if worker.run() else 1)
