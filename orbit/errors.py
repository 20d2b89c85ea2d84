"""Everything that Orbit refuses, one class for each decision that a caller can take.

`code` is the word in the API, `status` its HTTP status; whether sending again can help is `retryable`, a property of
the type. A bug is an AssertionError, never one of these. The table in `docs/errors.md` is checked against this module.
"""

from __future__ import annotations

from typing import Any, ClassVar


class OrbitError(Exception):
    """The root: a refusal with a code, a message for people and details for programs."""

    code: ClassVar[str] = "INTERNAL"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class InvalidRequest(OrbitError):
    """A field has the wrong type, range or form; `pointer` (RFC 6901) names it."""

    code = "INVALID_REQUEST"
    status = 400

    def __init__(self, message: str, *, pointer: str | None = None) -> None:
        super().__init__(message, details=None if pointer is None else {"pointer": pointer})
        self.pointer = pointer


class UnknownField(InvalidRequest):
    """The request carries a field that the operation does not have."""

    code = "UNKNOWN_FIELD"


class Unauthenticated(OrbitError):
    """No credential, or none that is valid; one message for all causes, so that nothing can be probed."""

    code = "UNAUTHENTICATED"
    status = 401

    def __init__(self) -> None:
        super().__init__("a valid credential is required")


class Forbidden(OrbitError):
    """The credential is valid but lacks a scope (or the range "all" where an operation needs it)."""

    code = "FORBIDDEN"
    status = 403


class NotFound(OrbitError):
    """The resource does not exist or is outside the credential's range: the two can't be told apart."""

    code = "NOT_FOUND"
    status = 404


class MethodNotAllowed(OrbitError):
    """The path exists, the method does not."""

    code = "METHOD_NOT_ALLOWED"
    status = 405


class RequestTimeout(OrbitError):
    """The request's head or body did not arrive in time."""

    code = "REQUEST_TIMEOUT"
    status = 408


class IdempotencyConflict(OrbitError):
    """The idempotency key was used before with another meaning."""

    code = "IDEMPOTENCY_CONFLICT"
    status = 409

    def __init__(self) -> None:
        super().__init__("this idempotency key was used before for a different request")


class StateConflict(OrbitError):
    """The resource is not in the state, or at the revision, that the operation expects."""

    code = "STATE_CONFLICT"
    status = 409


class VersionConflict(OrbitError):
    """Another content is already published under this version number."""

    code = "VERSION_CONFLICT"
    status = 409


class OwnedByWorkflow(OrbitError):
    """The task belongs to a workflow instance and is controlled through it."""

    code = "OWNED_BY_WORKFLOW"
    status = 409


class PayloadTooLarge(OrbitError):
    """A body or field is over its size limit; `pointer` names the field."""

    code = "PAYLOAD_TOO_LARGE"
    status = 413

    def __init__(self, message: str, *, pointer: str | None = None) -> None:
        super().__init__(message, details=None if pointer is None else {"pointer": pointer})


class UnsupportedMediaType(OrbitError):
    """The body is not declared as JSON (or YAML where a definition is published)."""

    code = "UNSUPPORTED_MEDIA_TYPE"
    status = 415


class DefinitionInvalid(OrbitError):
    """A workflow definition has findings; `details["findings"]` lists them all."""

    code = "DEFINITION_INVALID"
    status = 422


class QueueFull(OrbitError):
    """The queue's limit of unfinished tasks is reached; nothing was stored."""

    code = "QUEUE_FULL"
    status = 429
    retryable = True
    retry_after_seconds: ClassVar[int] = 1

    def __init__(self) -> None:
        # The seed's sentence, to the letter: clients compare it.
        super().__init__("queue unfinished task limit reached; retry later using the original identity")


class ApplicationQuotaExceeded(OrbitError):
    """The application's limit of unfinished tasks, over all its queues, is reached; nothing was stored."""

    code = "APPLICATION_QUOTA_EXCEEDED"
    status = 429
    retryable = True
    retry_after_seconds: ClassVar[int] = 1

    def __init__(self) -> None:
        super().__init__("application unfinished task limit reached; retry later using the original identity")


class BusinessKeyInUse(OrbitError):
    """The workflow takes no second instance with this business key; `details.instance_id` is the first."""

    code = "BUSINESS_KEY_IN_USE"
    status = 409


class TooManyRunning(OrbitError):
    """So many instances of the workflow, or of the namespace, run already; nothing was stored."""

    code = "TOO_MANY_RUNNING"
    status = 429
    retryable = True
    retry_after_seconds: ClassVar[int] = 1


class TooManySignals(OrbitError):
    """So many signals wait for the instance, or for its business key, already; nothing was stored."""

    code = "TOO_MANY_SIGNALS"
    status = 429
    retryable = True
    retry_after_seconds: ClassVar[int] = 1


class Unavailable(OrbitError):
    """The database is away, too contended, or this node is shutting down."""

    code = "UNAVAILABLE"
    status = 503
    retryable = True
    retry_after_seconds: ClassVar[int] = 1
