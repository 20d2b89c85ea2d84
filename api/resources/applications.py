"""Applications: read and set the quotas of the one that owns the caller's namespace. What they mean is Pulse's.

A caller sees its own application only; any other is not found.
"""

from __future__ import annotations

from api.calls import Call, Operation, Reply
from api.models.applications import Application, ApplicationResult, ConfigureApplication
from api.models.fields import revision_number
from orbit.access import Scope
from orbit.database import Database, Transaction
from pulse.quotas import QuotaChange, QuotaSettings, application_configure, application_get, application_of

_MISSING = "no such application"


class Applications:
    """The application resource."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def operations(self) -> list[Operation]:
        """Declare what can be done with applications."""
        return [
            Operation(
                "GET", "/v1/applications", "List the caller's application", self.list_own, Scope.QUEUES_READ,
                Application, is_page=True,
            ),
            Operation(
                "GET", "/v1/applications/{application_id}", "Read an application's quotas and what it uses", self.get,
                Scope.QUEUES_READ, Application,
            ),
            Operation(
                "POST", "/v1/applications/{application_id}:configure", "Replace an application's quotas",
                self.configure, Scope.QUOTAS_MANAGE, ApplicationResult, ConfigureApplication, keyed=True,
            ),
        ]  # fmt: skip

    def list_own(self, call: Call) -> Reply:
        """List the application of the caller's namespace, the only one that it can see."""
        call.caller.require_all_queues()

        def read(tx: Transaction) -> dict[str, object]:
            application_id, _ = application_of(tx, call.namespace_id)
            return application_get(tx, call.namespace_id, application_id)

        return call.page([self._database.transaction(read)], None)

    def get(self, call: Call) -> Reply:
        """Read the application; it tells of all queues, so the range must be all of them."""
        call.caller.require_all_queues()
        application_id = call.path_id("application_id", message=_MISSING)
        return call.data(self._database.transaction(lambda tx: application_get(tx, call.namespace_id, application_id)))

    def configure(self, call: Call) -> Reply:
        """Replace the quotas at the revision that the caller has read."""
        call.caller.require_all_queues()
        body = call.model(ConfigureApplication)
        change = QuotaChange(
            application_id=call.path_id("application_id", message=_MISSING),
            expected_revision=revision_number(body.expected_revision, pointer="/expected_revision"),
            reason=body.reason,
            settings=QuotaSettings(body.max_concurrency, body.rate_per_second, body.max_unfinished_tasks),
        )
        command = call.command("application.configure", resource=change.application_id.hex())
        answer = self._database.transaction(lambda tx: application_configure(tx, command, call.actor, change))
        return call.receipt(answer, creates=False)
