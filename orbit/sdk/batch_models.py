"""What the client sends and gets of batches: one decision about many tasks or instances, item by item."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct

from orbit.sdk.wire import Request


class TaskSelection(Request, frozen=True, kw_only=True):
    """Which tasks a batch is about: `ids`, or what a filter finds that could be meant; instants are RFC 3339 text."""

    ids: list[str] | None = None
    queue: str | None = None
    state: str | None = None
    type: str | None = None
    business_key: str | None = None
    source: str | None = None
    label: str | None = None
    created_after: str | None = None
    created_before: str | None = None


class InstanceSelection(Request, frozen=True, kw_only=True):
    """Which instances: `ids`, or a filter by `workflow`, `business_key` or `label` (`name=value`), and the rest."""

    ids: list[str] | None = None
    workflow: str | None = None
    version: int | None = None
    state: str | None = None
    control: str | None = None
    business_key: str | None = None
    label: str | None = None
    created_after: str | None = None
    created_before: str | None = None


class CreateBatch(Request, frozen=True, kw_only=True):
    """One decision about many tasks (`task.cancel`, `.review`, `.retry`) or instances.

    Those are `instance.pause`, `.resume`, `.cancel`, `.recover` and `.migrate`. A review needs `verdict` and
    `evidence`, a retry `evidence` and `safety_statement`, a recovery `action` and `evidence`, a migration `version`; a
    cancel may `compensate`.
    """

    operation: str
    reason: str
    tasks: TaskSelection | None = None
    instances: InstanceSelection | None = None
    action: str | None = None
    step: str | None = None
    version: int | None = None
    compensate: bool | None = None
    rate_per_second: float | None = None
    verdict: str | None = None
    evidence: Any = UNSET
    safety_statement: str | None = None
    output: Any = UNSET


class ItemCounts(Struct, frozen=True, kw_only=True):
    """How many items a batch has, and how many are in each state."""

    all: int = 0
    pending: int = 0
    done: int = 0
    refused: int = 0
    stopped: int = 0


class Batch(Struct, frozen=True, kw_only=True):
    """A batch as it was when it was read."""

    id: str = ""
    operation: str = ""
    state: str = ""
    selection: dict[str, Any] = {}
    rate_per_second: float = 0.0
    reason: str = ""
    actor: str = ""
    created_at: str = ""
    finished_at: str | None = None
    revision: int = 0
    items: ItemCounts = ItemCounts()

    @property
    def is_finished(self) -> bool:
        """Tell whether nothing of it will be decided any more."""
        return self.state in {"DONE", "STOPPED"}


class BatchReceipt(Struct, frozen=True, kw_only=True):
    """The receipt of a creation or a stop: the batch as it was at that moment."""

    deduplicated: bool = False
    batch: Batch = Batch()


class SelectedSubject(Struct, frozen=True, kw_only=True):
    """A task (with queue and type) or an instance (with workflow and control) that would be an item."""

    id: str = ""
    state: str = ""
    queue: str = ""
    type: str = ""
    workflow: str = ""
    control: str = ""
    version: int = 0
    revision: int = 0


class BatchPreview(Struct, frozen=True, kw_only=True):
    """What a batch would be about: how many tasks or instances, by state, and the first of them."""

    operation: str = ""
    count: int = 0
    by_state: dict[str, int] = {}
    first: list[SelectedSubject] = []


class BatchEntry(Struct, frozen=True, kw_only=True):
    """One item; `outcome` is what came of it, or code and message of the refusal."""

    position: int = 0
    subject_id: str = ""
    subject_revision: int = 0
    state: str = ""
    outcome: Any = None
    done_at: str | None = None
