"""The handlers of the approval workflow: letters and a payment, played by this process.

    ORBIT_URL=... ORBIT_CREDENTIALS_FILE=... python examples/approval/worker.py

The approvers are elsewhere: whatever system knows who may approve sends the signal.
"""

import sys
from typing import Any

from orbit import TaskContext, Worker

worker = Worker(queues=["approvals"], capacity=4)


@worker.task("mail.send@1", recovery="REPLAY_SAFE")
def send(params: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """Write a letter; a second copy does no harm."""
    sys.stdout.write(f"to {params['to']}: {params['text']}\n")
    sys.stdout.flush()
    return {"letter": context.operation_id}


@worker.task("expense.pay@1", recovery="MANUAL")
def pay(params: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """Pay an expense: if nobody knows whether it happened, a person finds out."""
    return {"ref": f"{params['expense']}/{context.operation_id}"}


if __name__ == "__main__":
    worker.run()
