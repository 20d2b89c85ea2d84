"""An application with quotas, over the namespaces of `tests.support.pulse`."""

from dataclasses import replace

from orbit.store.tenancy import NamespaceName, namespace_ensure
from pulse.claim import Assignment
from pulse.quotas import QuotaChange, QuotaSettings, application_configure, application_get, application_of
from tests.support.pulse import Pulse


class Application:
    """Two namespaces of one application, each with a roomy queue `main`."""

    def __init__(self, pulse: Pulse) -> None:
        self.pulse, self.other = pulse, Pulse(pulse.database)
        named = NamespaceName("tests", "second", "test")
        self.other.namespace_id = pulse.database.transaction(lambda tx: namespace_ensure(tx, named)).id
        self.queues = [pulse.queue(max_concurrency=10), self.other.queue(max_concurrency=10)]
        self.id, _ = pulse.database.transaction(lambda tx: application_of(tx, pulse.namespace_id))

    @property
    def both(self) -> tuple[Pulse, Pulse]:
        """Return both namespaces."""
        return self.pulse, self.other

    def read(self) -> dict[str, object]:
        """Read it."""
        return self.pulse.database.transaction(lambda tx: application_get(tx, self.pulse.namespace_id, self.id))

    def configure(self, **settings: int) -> None:
        """Replace its quotas."""
        change = QuotaChange(self.id, int(str(self.read()["revision"])), "a test", replace(QuotaSettings(), **settings))
        command, actor = self.pulse.command("application.configure"), self.pulse.actor()
        self.pulse.database.transaction(lambda tx: application_configure(tx, command, actor, change))

    def claim(self) -> list[Assignment]:
        """Claim in both namespaces."""
        return [item for pulse in self.both for item in pulse.claim()]
