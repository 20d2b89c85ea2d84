"""Moves of a whole instance: again from a step, as a new one; on with another version. The rules are the engine's."""

from __future__ import annotations

from api.calls import Call, Operation, Reply
from api.models.instance_control import ForkInstance, ForkResult, MigrateInstance, MigrationResult
from api.resources.instance_control import order_of
from engine.fork import Fork, Forks
from engine.migrate import Migration, Migrations
from orbit.access import Scope


class InstanceMoves:
    """`:fork` and `:migrate` of one instance."""

    def __init__(self, forks: Forks, migrations: Migrations) -> None:
        self._forks = forks
        self._migrations = migrations

    def operations(self) -> list[Operation]:
        """Declare the two."""
        return [
            Operation(
                "POST", "/v1/instances/{instance_id}:fork", "Run it again from a step, as a new instance", self.fork,
                Scope.INSTANCES_RECOVER, ForkResult, ForkInstance, keyed=True, creates=True,
            ),
            Operation(
                "POST", "/v1/instances/{instance_id}:migrate", "Let it go on with another version", self.migrate,
                Scope.INSTANCES_CONTROL, MigrationResult, MigrateInstance, keyed=True,
            ),
        ]  # fmt: skip

    def fork(self, call: Call) -> Reply:
        """Fork an instance; who may not start instances may not fork them."""
        call.caller.require(Scope.INSTANCES_START)
        body = call.model(ForkInstance)
        fork = Fork(
            order=order_of(call, "instance.fork", reason=body.reason, expected_revision=body.expected_revision),
            step=body.step,
            version=body.version,
            business_key=body.business_key,
            labels=body.labels,
            safety_statement=body.safety_statement,
            is_dry_run=bool(body.dry_run),
        )
        return call.receipt(self._forks.instance_fork(fork), creates=not fork.is_dry_run)

    def migrate(self, call: Call) -> Reply:
        """Migrate an instance."""
        body = call.model(MigrateInstance)
        order = order_of(call, "instance.migrate", reason=body.reason, expected_revision=body.expected_revision)
        wanted = Migration(order, body.version, bool(body.dry_run))
        return call.receipt(self._migrations.instance_migrate(wanted), creates=False)
