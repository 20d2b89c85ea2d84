"""Who is calling: the look-up of a token, cached for at most one second in each process.

The database is the authority: a revoked credential or a narrowed right is felt within that second everywhere. Only a
token that was right is ever cached, so every wrong one, its id known or not, costs the same look-up and comparison.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from hashlib import sha256

from orbit.access import Credential, Token, secret_matches, token_from_header
from orbit.database import Database
from orbit.errors import Unauthenticated
from orbit.store.tenancy import credential_find

CACHE_SECONDS = 1.0
_CACHE_ENTRIES_MAX = 4_096
# Looked up in place of a token that can't be read, so that its form tells nothing by time.
_UNREADABLE = Token(bytes(16), "-" * 43)


@dataclass(frozen=True, slots=True)
class _Known:
    credential: Credential
    until: float


class Authenticator:
    """Turns an Authorization header into a credential, or raises Unauthenticated."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[bytes, _Known] = {}

    def authenticate(self, authorization: str | None) -> Credential:
        """Return the credential of a bearer token; raise Unauthenticated, with one body for all causes."""
        if authorization is None:
            raise Unauthenticated
        fingerprint = sha256(authorization.encode()).digest()
        known = self._known.get(fingerprint)
        if known is not None and time.monotonic() < known.until:
            return known.credential
        try:
            token = token_from_header(authorization)
        except Unauthenticated:
            token = _UNREADABLE
        # Taken before the look-up: the second counts from what the database said, not from when we heard it.
        until = time.monotonic() + CACHE_SECONDS
        stored = self._database.transaction(lambda tx: credential_find(tx, token.credential_id))
        if not secret_matches(token.secret, None if stored is None else stored.secret_hash) or stored is None:
            self._known.pop(fingerprint, None)
            raise Unauthenticated
        if len(self._known) >= _CACHE_ENTRIES_MAX:
            self._known.clear()
        self._known[fingerprint] = _Known(stored.credential, until)
        return stored.credential

    def forget(self) -> None:
        """Ask the database again for everyone."""
        self._known.clear()
