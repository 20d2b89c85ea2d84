"""The handlers of the conversion workflow: a folder, a renderer and a scanner, played by this process.

    ORBIT_URL=... ORBIT_CREDENTIALS_FILE=... python examples/conversion/worker.py

All of them are REPLAY_SAFE: what they write is named by what it is made of, so doing it again makes the same once more.
The scanner needs a moment: it says PENDING when it is asked about a document for the first time.
"""

import sys
import threading
from typing import Any

from orbit import NonRetryable, TaskContext, Worker

FOLDERS = {
    "invoices": ["march.doc", "april.pdf", "may.odt", "june.pdf"],
    "empty": [],
}

worker = Worker(queues=["documents"], capacity=8)

_scanned: set[str] = set()
_scanned_lock = threading.Lock()


@worker.task("folder.list@1", recovery="REPLAY_SAFE")
def list_folder(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """List a folder's documents in its order, each with its kind."""
    names = FOLDERS.get(params["folder"])
    if names is None:
        raise NonRetryable(f"there is no folder {params['folder']}", code="NO_SUCH_FOLDER")
    return {"documents": [{"name": name, "kind": name.rpartition(".")[2]} for name in names]}


@worker.task("document.fetch@1", recovery="REPLAY_SAFE")
def fetch(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Copy a document to where the renderer finds it."""
    return {"ref": f"{params['folder']}/{params['name']}"}


@worker.task("document.render@1", recovery="REPLAY_SAFE")
def render(params: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """Turn a document into a PDF."""
    context.progress(percent=50, note=f"part {params['page_label']} is rendered")
    return {"ref": f"{params['ref']}.pdf"}


@worker.task("scanner.ask@1", recovery="REPLAY_SAFE")
def scan(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Ask the scanner for its verdict on a document."""
    with _scanned_lock:
        is_known = params["ref"] in _scanned
        _scanned.add(params["ref"])
    return {"verdict": "CLEAN" if is_known else "PENDING"}


@worker.task("pdf.bind@1", recovery="REPLAY_SAFE")
def bind(params: dict[str, Any], _context: TaskContext) -> dict[str, Any]:
    """Bind the parts in their order."""
    parts = "+".join(part["name"] for part in params["parts"])
    return {"ref": f"{params['folder']}.pdf ({parts})"}


if __name__ == "__main__":
    sys.exit(0 if worker.run() else 1)
