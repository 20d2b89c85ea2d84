"""What is stored in numbered forms, and the newest form of each that this release knows.

A node reads every form up to its newest and leaves what is newer to others, so that two releases can run side by side
on one database. It writes a newer form only once an operator has said that no older node runs any more (`orbit db
finalize`); which form that is for a database is in `orbit.store.formats`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class StoredFormat(StrEnum):
    """What has a form with a number; each number names one form for ever."""

    GRAPH = "weave.graph"  # the step graph of a published version
    STATE = "weave.state"  # an instance with its steps


FIRST = 1
NEWEST: Mapping[StoredFormat, int] = {StoredFormat.GRAPH: 3, StoredFormat.STATE: 1}
