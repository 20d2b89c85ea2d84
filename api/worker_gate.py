"""The door of the worker socket: who may connect, and the session that then runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from api.websocket import WorkerSocket
from api.worker_frames import SUBPROTOCOL
from api.worker_session import Dispatching, Executing, SessionLimits, WorkerSession
from orbit.access import Credential, Scope
from orbit.errors import Unavailable


class Authenticating(Protocol):
    """Turns an Authorization header into a credential, or raises Unauthenticated."""

    def authenticate(self, authorization: str | None) -> Credential: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class WorkerAdmission:
    """A credential that may connect workers."""

    credential: Credential

    @property
    def credential_key(self) -> str:
        """Return what its connections are counted by."""
        return self.credential.id.hex()


class WorkerGate:
    """Admits workers to the socket and runs their sessions."""

    path = "/v1/workers/connect"
    subprotocol = SUBPROTOCOL

    def __init__(
        self,
        *,
        authenticator: Authenticating,
        dispatcher: Dispatching,
        execution: Executing,
        limits: SessionLimits,
    ) -> None:
        self._authenticator = authenticator
        self._dispatcher = dispatcher
        self._execution = execution
        self._limits = limits
        self._refusing = False
        self.session_count = 0

    def admit(self, environ: Mapping[str, Any]) -> WorkerAdmission:
        """Authenticate a request for an upgrade; raise Unauthenticated, Forbidden or Unavailable."""
        credential = self._authenticator.authenticate(environ.get("HTTP_AUTHORIZATION"))
        credential.require(Scope.WORKERS_CONNECT)
        if self._refusing:
            raise Unavailable("this node is shutting down")
        return WorkerAdmission(credential)

    def serve(self, socket: WorkerSocket, admission: WorkerAdmission) -> None:
        """Run a worker's session in this greenlet until its connection ends."""
        self.session_count += 1
        try:
            WorkerSession(
                socket,
                admission.credential,
                limits=self._limits,
                dispatcher=self._dispatcher,
                execution=self._execution,
            ).run()
        finally:
            self.session_count -= 1

    def refuse(self) -> None:
        """Admit no more workers: the node goes away. Those that are here are told by the dispatcher's drain."""
        self._refusing = True
