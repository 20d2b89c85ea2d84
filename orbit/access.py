"""Who may do what: scopes, queue ranges, and the tokens that carry them.

A token is `<credential id in hex>.<secret>`. Only a hash of the secret is stored; it is compared in constant time, and
an unknown id costs the same comparison, so that neither time nor words tell what was wrong.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from orbit.errors import Forbidden, NotFound, Unauthenticated

_TOKEN = re.compile(r"([0-9a-f]{32})\.([A-Za-z0-9_-]{16,128})\Z")
_NO_HASH = bytes(32)


class Scope(StrEnum):
    """What a credential may do; each applies within its queue range."""

    QUEUES_READ = "queues:read"
    QUEUES_MANAGE = "queues:manage"
    TASKS_SUBMIT = "tasks:submit"
    TASKS_READ = "tasks:read"
    TASKS_CANCEL = "tasks:cancel"
    TASKS_RECOVER = "tasks:recover"
    TASK_TYPES_READ = "task-types:read"
    TASK_TYPES_MANAGE = "task-types:manage"
    SCHEDULES_READ = "schedules:read"
    SCHEDULES_MANAGE = "schedules:manage"
    WORKFLOWS_READ = "workflows:read"
    WORKFLOWS_PUBLISH = "workflows:publish"
    WORKFLOWS_MANAGE = "workflows:manage"
    INSTANCES_START = "instances:start"
    INSTANCES_READ = "instances:read"
    INSTANCES_CONTROL = "instances:control"
    INSTANCES_RECOVER = "instances:recover"
    INSTANCES_SIGNAL = "instances:signal"
    WORKERS_CONNECT = "workers:connect"
    EVENTS_READ = "events:read"
    EVENTS_MANAGE = "events:manage"
    AUDIT_READ = "audit:read"
    QUOTAS_MANAGE = "quotas:manage"


@dataclass(frozen=True, slots=True)
class Credential:
    """An authenticated caller. `queues` is the range, None for all queues of the namespace."""

    id: bytes
    namespace_id: bytes
    scopes: frozenset[str]
    queues: frozenset[str] | None

    def require(self, scope: Scope) -> None:
        """Raise Forbidden unless the credential has `scope`."""
        if scope not in self.scopes:
            message = f"the credential lacks the scope {scope}"
            raise Forbidden(message)

    def require_any(self, scopes: Sequence[Scope]) -> None:
        """Raise Forbidden, naming the first, unless the credential has one of these scopes."""
        if not any(scope in self.scopes for scope in scopes):
            self.require(scopes[0])

    def require_all_queues(self) -> None:
        """Raise Forbidden unless the credential's range is all queues."""
        if self.queues is not None:
            message = "the credential's range is not all queues"
            raise Forbidden(message)

    def covers(self, queue: str) -> bool:
        """Say whether a queue is in the credential's range."""
        return self.queues is None or queue in self.queues

    def require_queue(self, queue: str) -> None:
        """Raise NotFound if a queue is out of range: it can't be told from one that does not exist."""
        if not self.covers(queue):
            raise queue_not_found()


def queue_not_found() -> NotFound:
    """Make the one answer for a queue that is missing or out of range."""
    return NotFound("no such queue")


@dataclass(frozen=True, slots=True)
class Token:
    """A token's two halves; its repr shows no secret."""

    credential_id: bytes
    secret: str

    def __repr__(self) -> str:
        """Show the public half only."""
        return f"Token({self.credential_id.hex()})"

    def text(self) -> str:
        """Write the token as it is sent."""
        return f"{self.credential_id.hex()}.{self.secret}"


def token_new(credential_id: bytes) -> Token:
    """Mint a token with a secret of 256 random bits."""
    return Token(credential_id, secrets.token_urlsafe(32))


def token_from_header(authorization: str | None) -> Token:
    """Read `Bearer <token>`; raise Unauthenticated for anything else."""
    scheme, _, value = (authorization or "").partition(" ")
    match = _TOKEN.match(value.strip())
    if scheme.lower() != "bearer" or match is None:
        raise Unauthenticated
    return Token(bytes.fromhex(match[1]), match[2])


def secret_hash(secret: str) -> bytes:
    """Hash a secret for storage. It has 256 random bits, so one round of SHA-256 is enough."""
    return hashlib.sha256(secret.encode("ascii")).digest()


def secret_matches(secret: str, stored: bytes | None) -> bool:
    """Compare in constant time; an unknown credential (None) costs the same and never matches."""
    same = hmac.compare_digest(secret_hash(secret), stored if stored is not None else _NO_HASH)
    return same and stored is not None
