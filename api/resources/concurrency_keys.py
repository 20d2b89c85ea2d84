"""Concurrency keys: read one, and set its limit. What they mean is Pulse's.

A key stands in the path as it is, percent-encoded; with `*` at its end it means all keys that begin so. Keys belong to
the namespace, so the caller's range must be all queues.
"""

from __future__ import annotations

from api.calls import Call, Operation, Reply
from api.models.concurrency_keys import ConcurrencyKey, ConfigureKey
from api.models.fields import revision_number
from orbit.access import Scope
from orbit.database import Database
from orbit.errors import InvalidRequest
from pulse import limits
from pulse.key_limits import KeyChange, key_configure, key_view
from pulse.settle import Surroundings

_PATH = "/v1/concurrency-keys/{key}"


class ConcurrencyKeys:
    """The concurrency key resource; a raised limit wakes whom `around` tells."""

    def __init__(self, database: Database, around: Surroundings) -> None:
        self._database = database
        self._around = around

    def operations(self) -> list[Operation]:
        """Declare what can be done with concurrency keys."""
        return [
            Operation(
                "GET", _PATH, "Read a concurrency key: its limit, who holds it, how many wait", self.get,
                Scope.QUEUES_READ, ConcurrencyKey,
            ),
            Operation(
                "PUT", _PATH, "Set the limit of a concurrency key, or with * at the end of all that begin so",
                self.configure, Scope.QUOTAS_MANAGE, ConcurrencyKey, ConfigureKey,
            ),
        ]  # fmt: skip

    def get(self, call: Call) -> Reply:
        """Read a key; one that was never used has the limit that it would have."""
        call.caller.require_all_queues()
        pattern = _pattern(call)
        return call.data(self._database.transaction(lambda tx: key_view(tx, call.namespace_id, pattern)).as_json())

    def configure(self, call: Call) -> Reply:
        """Set the limit at the revision that the caller has read."""
        call.caller.require_all_queues()
        body = call.model(ConfigureKey)
        change = KeyChange(
            pattern=_pattern(call),
            expected_revision=revision_number(body.expected_revision, pointer="/expected_revision"),
            reason=body.reason,
            max_concurrency=body.limit,
        )
        view = self._database.transaction(
            lambda tx: key_configure(tx, call.namespace_id, call.actor, change, self._around)
        )
        return call.data(view.as_json())


def _pattern(call: Call) -> str:
    pattern = call.path["key"]
    if not 1 <= len(pattern) <= limits.KEY_CHARACTERS_MAX:
        raise InvalidRequest(f"a concurrency key has 1 to {limits.KEY_CHARACTERS_MAX} characters")
    return pattern
