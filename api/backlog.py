"""The backlogs as metrics, read from the database at each scrape: it is the same whichever node is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from api.store import figures_read
from orbit.database import Database
from orbit.store.subscription import subscriptions_measured
from orbit.subscription import SubscriptionState


class BacklogCollector(Collector):
    """Unfinished tasks and permits in use, over all queues; deliveries that wait, over all subscriptions."""

    def __init__(self, database: Database) -> None:
        self._figures, self._subscriptions = database.transaction(
            lambda tx: (figures_read(tx), subscriptions_measured(tx))
        )

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauges."""
        yield GaugeMetricFamily("orbit_tasks_unfinished", "Tasks that are not terminal", self._figures.unfinished)
        yield GaugeMetricFamily("orbit_permits_active", "Tasks LEASED or RUNNING", self._figures.active)
        backlog = sum(each.backlog for each in self._subscriptions)
        poisoned = sum(each.poisoned for each in self._subscriptions)
        yield GaugeMetricFamily("orbit_deliveries_waiting", "Deliveries of events not acknowledged", backlog)
        yield GaugeMetricFamily("orbit_deliveries_poisoned", "Deliveries parked as POISONED", poisoned)
        counts = Counter(each.state for each in self._subscriptions)
        states = GaugeMetricFamily("orbit_subscriptions", "Subscriptions by state", labels=["state"])
        for state in (SubscriptionState.ACTIVE, SubscriptionState.OVERFLOWED, SubscriptionState.RESUMING):
            states.add_metric([state], counts[state])
        yield states
