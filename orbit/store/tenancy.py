"""Applications, namespaces and credentials."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, select, update

from orbit.access import Credential, Token, secret_hash, token_new
from orbit.database.hot import Hot
from orbit.ids import new_id
from orbit.tables import application, credential, namespace

if TYPE_CHECKING:
    from orbit.clock import Micros
    from orbit.database import Transaction

_FIND = Hot(
    select(credential)
    .join(namespace, namespace.c.id == credential.c.namespace_id)
    .where(credential.c.id == bindparam("id"), credential.c.revoked_at.is_(None), namespace.c.disabled_at.is_(None))
)


@dataclass(frozen=True, slots=True)
class StoredCredential:
    """A valid credential as stored, with the hash that its secret must match."""

    credential: Credential
    secret_hash: bytes


@dataclass(frozen=True, slots=True)
class NamespaceName:
    """How a namespace is named from outside."""

    application: str
    name: str
    environment: str


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace and its owner."""

    id: bytes
    application_id: bytes
    named: NamespaceName


def credential_find(tx: Transaction, credential_id: bytes) -> StoredCredential | None:
    """Find a credential that is neither revoked nor of a disabled namespace."""
    row = tx.row(_FIND, {"id": credential_id})
    if row is None:
        return None
    queues = None if row.queues is None else frozenset(json.loads(row.queues))
    found = Credential(row.id, row.namespace_id, frozenset(json.loads(row.scopes)), queues)
    return StoredCredential(found, row.secret_hash)


def credential_insert(
    tx: Transaction, namespace_id: bytes, *, name: str, scopes: Collection[str], queues: Collection[str] | None
) -> Token:
    """Make a credential and return its token, which is the only place where its secret ever is."""
    token = token_new(new_id())
    tx.insert(
        credential,
        [
            {
                "id": token.credential_id,
                "namespace_id": namespace_id,
                "name": name,
                "secret_hash": secret_hash(token.secret),
                "scopes": json.dumps(sorted(scopes)),
                "queues": None if queues is None else json.dumps(sorted(queues)),
                "created_at": tx.now(),
            }
        ],
    )
    return token


def credential_change(
    tx: Transaction, credential_id: bytes, *, scopes: Collection[str], queues: Collection[str] | None
) -> None:
    """Replace the rights of a credential."""
    values = {"scopes": json.dumps(sorted(scopes)), "queues": None if queues is None else json.dumps(sorted(queues))}
    tx.expect(update(credential).where(credential.c.id == credential_id).values(values), count=1)


def credential_revoke(tx: Transaction, credential_id: bytes) -> None:
    """Refuse a credential from now on."""
    statement = update(credential).where(credential.c.id == credential_id, credential.c.revoked_at.is_(None))
    tx.execute(statement.values(revoked_at=tx.now()))


def namespace_ensure(tx: Transaction, named: NamespaceName) -> Namespace:
    """Return the namespace of this name, made with its application if they do not exist yet."""
    now: Micros = tx.now()
    owner = tx.row(select(application.c.id).where(application.c.name == named.application))
    application_id = owner.id if owner is not None else new_id()
    if owner is None:
        tx.insert(application, [{"id": application_id, "name": named.application, "created_at": now}])
    found = tx.row(
        select(namespace.c.id).where(
            namespace.c.application_id == application_id,
            namespace.c.name == named.name,
            namespace.c.environment == named.environment,
        )
    )
    if found is not None:
        return Namespace(found.id, application_id, named)
    made = Namespace(new_id(), application_id, named)
    row = {"id": made.id, "application_id": application_id, "name": named.name, "environment": named.environment}
    tx.insert(namespace, [row | {"created_at": now}])
    return made


def namespace_disable(tx: Transaction, namespace_id: bytes) -> None:
    """Stop serving a namespace: its credentials are refused from the next look-up on."""
    statement = update(namespace).where(namespace.c.id == namespace_id, namespace.c.disabled_at.is_(None))
    tx.execute(statement.values(disabled_at=tx.now()))
