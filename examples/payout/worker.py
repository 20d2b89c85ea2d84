"""The handlers of the payout workflow: what a supplier's payment needs from the outside world, played by this process.

    ORBIT_URL=... ORBIT_CREDENTIALS_FILE=... python examples/payout/worker.py

The bank is slow: it says "PROCESSING" for the first three questions about a transfer. Handing the transfer in is the
one thing that must never happen twice on a guess, so it declares MANUAL: if its outcome is ever unknown, a person
decides.
"""

import sys
import threading
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from orbit import NonRetryable, TaskContext, Worker

QUESTIONS_WHILE_PROCESSING = 3
LARGE_AMOUNT = 10_000

worker = Worker(queues=["payments"], capacity=8)

_asked: Counter[str] = Counter()
_asked_lock = threading.Lock()


@worker.task("payout.validate@1", recovery="REPLAY_SAFE")
def validate(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Rate an order's risk by its amount."""
    if params["amount"] <= 0:
        raise NonRetryable("an order of nothing", code="BAD_AMOUNT")
    return {"risk": 0.9 if params["amount"] > LARGE_AMOUNT else 0.1}


@worker.task("ledger.reserve@1", recovery="REPLAY_SAFE")
def reserve(params: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """Reserve the money; the ledger knows a reservation by its operation, so doing it again changes nothing."""
    return {"reservation": f"{params['account']}/{context.operation_id[:8]}", "amount": params["amount"]}


@worker.task("mail.send@2", recovery="REPLAY_SAFE")
def send(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Tell the supplier; a second mail would be a nuisance, not a loss."""
    return {"sent_to": params["to"]}


@worker.task("bank.submit@2", recovery="MANUAL")
def submit(params: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """Hand the transfer to the bank."""
    return {"ref": f"TR-{params['order']}-{context.operation_id[-6:]}"}


@worker.task("bank.query@1", recovery="REPLAY_SAFE")
def query(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Ask the bank for a transfer's status."""
    with _asked_lock:
        _asked[params["ref"]] += 1
        count = _asked[params["ref"]]
    if count <= QUESTIONS_WHILE_PROCESSING:
        return {"status": "PROCESSING"}
    return {"status": "SETTLED", "at": datetime.now(UTC).isoformat(timespec="seconds")}  # noqa: TID251  (the bank's clock)


if __name__ == "__main__":
    sys.exit(0 if worker.run() else 1)
