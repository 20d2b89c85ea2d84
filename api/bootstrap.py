"""Make what a first caller needs: application, namespace, environment, queue, and a credential in a file.

It may run again: what exists is kept, the credential in the file too if it is still valid, and its rights become those
that are asked for. A secret is only ever in that file; one whose file was lost is of no use to anybody, so nothing
cleans it up.
"""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from orbit.access import Credential, Scope, Token, secret_matches, token_from_header
from orbit.canonical import digest
from orbit.database import Database, Transaction
from orbit.errors import InvalidRequest, StateConflict, Unauthenticated
from orbit.idempotency import Command
from orbit.ids import new_id, to_hex
from orbit.store.journal import Actor, AuditRecord, audit_insert
from orbit.store.tenancy import (
    Namespace,
    NamespaceName,
    credential_change,
    credential_find,
    credential_insert,
    namespace_ensure,
)
from pulse.queues import QueueSettings, queue_create
from pulse.store.queue import queue_find_named

ACTOR_NAME = "orbit bootstrap"
FILE_MODE = 0o600


@dataclass(frozen=True, slots=True)
class Wanted:
    """What shall exist: a namespace, a queue in it (`settings` apply only if it is new), and rights.

    With `worker_access` the credential may also connect workers.
    """

    named: NamespaceName
    queue: str
    settings: QueueSettings
    worker_access: bool

    @property
    def scopes(self) -> frozenset[str]:
        """Name the credential's scopes; its range is all queues."""
        return frozenset(scope for scope in Scope if self.worker_access or scope is not Scope.WORKERS_CONNECT)


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """What exists now. `token` is the secret that the caller keeps."""

    namespace: Namespace
    queue: str
    token: Token

    def as_json(self, *, url: str | None) -> dict[str, str]:
        """Write what the SDK reads from a credentials file, and for people whose it is."""
        known = {} if url is None else {"url": url}
        return {
            **known,
            "token": self.token.text(),
            "application": self.namespace.named.application,
            "namespace": self.namespace.named.name,
            "environment": self.namespace.named.environment,
            "namespace_id": to_hex(self.namespace.id),
            "queue": self.queue,
        }


def bootstrap(database: Database, wanted: Wanted, *, kept: Token | None = None) -> Bootstrapped:
    """Make what is missing in one transaction; `kept` is a token of an earlier run, used on if it is still valid.

    Raises StateConflict if `kept` is a valid credential of another namespace.
    """
    return database.transaction(lambda tx: _bootstrap(tx, wanted, kept))


def bootstrap_to_file(database: Database, wanted: Wanted, path: Path, *, url: str | None = None) -> Bootstrapped:
    """Bootstrap, and keep the credential in a file that only its owner may read.

    Raises InvalidRequest if the file exists and is no credentials file, StateConflict if it is another namespace's.
    """
    made = bootstrap(database, wanted, kept=token_of_file(path))
    file_write(path, made.as_json(url=url))
    return made


def token_of_file(path: Path) -> Token | None:
    """Read the token of a credentials file, or None if there is no file; raises InvalidRequest for any other file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return token_from_header(f"Bearer {content['token']}")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, Unauthenticated):
        message = f"{path} exists and is no credentials file: it is not overwritten"
        raise InvalidRequest(message) from None


def file_write(path: Path, content: dict[str, str]) -> None:
    """Write a file of mode 0600 in one step: it never exists half-written or with wider rights."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # mkstemp makes the file with mode 0600 before a byte of the secret is in it.
    descriptor, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        Path(part).replace(path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def _bootstrap(tx: Transaction, wanted: Wanted, kept: Token | None) -> Bootstrapped:
    actor = Actor(ACTOR_NAME, new_id())
    namespace = namespace_ensure(tx, wanted.named)
    if queue_find_named(tx, namespace.id, wanted.queue) is None:
        meaning = digest({"name": wanted.queue})
        command = Command(namespace.id, "queue.create", "", f"bootstrap:{wanted.queue}", meaning)
        queue_create(tx, command, actor, name=wanted.queue, settings=wanted.settings)
    token = _kept(tx, namespace, wanted, actor, kept) or _made(tx, namespace, wanted, actor)
    return Bootstrapped(namespace, wanted.queue, token)


def _kept(tx: Transaction, namespace: Namespace, wanted: Wanted, actor: Actor, kept: Token | None) -> Token | None:
    """Use the earlier credential on, with the rights that are wanted now; None if it is not valid in this database."""
    stored = None if kept is None else credential_find(tx, kept.credential_id)
    if kept is None or stored is None or not secret_matches(kept.secret, stored.secret_hash):
        return None
    found = stored.credential
    if found.namespace_id != namespace.id:
        message = "the credential in the file belongs to another namespace: choose another file"
        raise StateConflict(message)
    if found.scopes != wanted.scopes or found.queues is not None:
        credential_change(tx, found.id, scopes=wanted.scopes, queues=None)
        _audit(tx, actor, Credential(found.id, namespace.id, wanted.scopes, None), before=found)
    return kept


def _made(tx: Transaction, namespace: Namespace, wanted: Wanted, actor: Actor) -> Token:
    token = credential_insert(tx, namespace.id, name="bootstrap", scopes=wanted.scopes, queues=None)
    _audit(tx, actor, Credential(token.credential_id, namespace.id, wanted.scopes, None), before=None)
    return token


def _audit(tx: Transaction, actor: Actor, after: Credential, *, before: Credential | None) -> None:
    record = AuditRecord(
        namespace_id=after.namespace_id,
        actor=actor,
        operation="credential.create" if before is None else "credential.change",
        subject_kind="credential",
        subject_id=after.id,
        reason=None,
        before=None if before is None else _rights(before),
        after=_rights(after),
    )
    audit_insert(tx, record, now=tx.now())


def _rights(credential: Credential) -> dict[str, list[str] | None]:
    return {
        "scopes": sorted(credential.scopes),
        "queues": None if credential.queues is None else sorted(credential.queues),
    }
