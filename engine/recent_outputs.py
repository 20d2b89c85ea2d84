"""Small outputs of tasks that this process has recorded, for the later steps of their instances to read again.

A task that has succeeded keeps its output for good, so nothing in here is ever wrong. Losing it costs a read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

_BYTES_MAX = 4 * 2**20
# What an entry takes besides its text.
_ENTRY_BYTES = 256


class RecentOutputs:
    """JSON texts by task, bounded; the oldest go first. It is a memory of `Transaction.memory`."""

    def __init__(self) -> None:
        self._texts: dict[bytes, bytes] = {}
        self._size = 0

    def keep(self, outputs: Mapping[bytes, bytes]) -> None:
        """Remember outputs, once the transaction that recorded them is committed."""
        for task_id, text in outputs.items():
            if task_id not in self._texts:
                self._texts[task_id] = text
                self._size += len(text) + _ENTRY_BYTES
        while self._size > _BYTES_MAX:
            self._size -= len(self._texts.pop(next(iter(self._texts)))) + _ENTRY_BYTES

    def found(self, task_ids: Collection[bytes]) -> dict[bytes, bytes]:
        """Return those that are remembered."""
        return {task_id: text for task_id in task_ids if (text := self._texts.get(task_id)) is not None}
