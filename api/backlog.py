"""The backlog as a metric, read from the database at each scrape: it is the same whichever node is asked."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from api.store import figures_read
from orbit.database import Database


class BacklogCollector(Collector):
    """Unfinished tasks and permits in use, over all queues."""

    def __init__(self, database: Database) -> None:
        self._figures = database.transaction(figures_read)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauges."""
        yield GaugeMetricFamily("orbit_tasks_unfinished", "Tasks that are not terminal", self._figures.unfinished)
        yield GaugeMetricFamily("orbit_permits_active", "Tasks LEASED or RUNNING", self._figures.active)
