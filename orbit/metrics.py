"""The metrics of a process, in Prometheus' form: named here once, moved by whoever knows.

They are instances of one object that is built at start, never module globals, so two nodes in one test don't mix. With
several processes behind one port the values are summed over files in `PROMETHEUS_MULTIPROC_DIR`, which the supervisor
sets before this module is loaded.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_HUB = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)


class Metrics:
    """All metrics that this process moves itself."""

    def __init__(self) -> None:
        own = CollectorRegistry()
        self._registry = own
        self.requests = Counter(
            "orbit_http_requests", "HTTP requests answered", ["method", "route", "status"], registry=own
        )
        self.request_seconds = Histogram(
            "orbit_http_request_seconds", "Time to answer a request", ["route"], buckets=_LATENCY, registry=own
        )
        self.start_delay_seconds = Histogram(
            "orbit_task_start_delay_seconds",
            "From when a task was due to its assignment to a worker",
            buckets=_LATENCY,
            registry=own,
        )
        self.retries = Counter("orbit_task_retries", "Attempts that will be repeated", registry=own)
        self.lost_attempts = Counter("orbit_attempts_lost", "Attempts whose lease ended while they ran", registry=own)
        self.transactions = Counter("orbit_database_transactions", "Transactions committed", registry=own)
        self.statements = Counter("orbit_database_statements", "Statements of committed transactions", registry=own)
        self.database_retries = Counter("orbit_database_retries", "Transactions run again", registry=own)
        self.deadlocks = Counter(
            "orbit_database_deadlocks", "Transactions that lost a deadlock or a lock wait", registry=own
        )
        self.database_errors = Counter("orbit_database_errors", "Transactions given up", registry=own)
        self.batches = Counter("orbit_batches", "Group commits", ["operation"], registry=own)
        self.batch_items = Counter("orbit_batch_items", "Operations in group commits", ["operation"], registry=own)
        self.workers = Gauge(
            "orbit_workers_connected", "Worker sockets open here", registry=own, multiprocess_mode="livesum"
        )
        self.stuck = Gauge(
            "orbit_instances_stuck",
            "Unfinished instances that wait for nothing, at the last look at all of them",
            registry=own,
            multiprocess_mode="livemax",
        )
        self.hub_delay_seconds = Histogram(
            "orbit_hub_delay_seconds", "How late the event loop came back", buckets=_HUB, registry=own
        )
        self._synced: dict[tuple[str, str], float] = {}
        self._answered: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def request_answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an HTTP request and the time that it took."""
        key = (method, route, status)
        moved = self._answered.get(key)
        if moved is None:
            # Finding a metric by its labels costs more than moving it.
            moved = (self.requests.labels(method, route, str(status)), self.request_seconds.labels(route))
            self._answered[key] = moved
        requests, request_seconds = moved
        requests.inc()
        request_seconds.observe(seconds)

    def sync(self, counter: Counter, total: float, *, label: str | None = None) -> None:
        """Raise a counter to a total that is counted elsewhere."""
        key = (str(counter), label or "")
        grown = total - self._synced.get(key, 0)
        if grown > 0:
            (counter if label is None else counter.labels(label)).inc(grown)
            self._synced[key] = total

    def sync_database(self, counts: Mapping[str, int]) -> None:
        """Take over the counts of `Database.counts`."""
        self.sync(self.transactions, counts["transactions"])
        self.sync(self.statements, counts["statements"])
        self.sync(self.database_retries, counts["retries"])
        self.sync(self.deadlocks, counts["deadlocks"])
        self.sync(self.database_errors, counts["failures"])

    def text(self, more: Iterable[Collector] = ()) -> bytes:
        """Write all metrics for a scrape; `more` are read from elsewhere at this moment."""
        registry = CollectorRegistry()
        if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        else:
            registry.register(_Registered(self._registry))
        registry.register(ProcessCollector())
        for collector in more:
            registry.register(collector)
        return generate_latest(registry)


class _Registered(Collector):
    """Shows one registry inside another."""

    def __init__(self, inner: CollectorRegistry) -> None:
        self._inner = inner

    def collect(self) -> Iterable[object]:  # type: ignore[override]
        """Return what the inner registry holds."""
        return self._inner.collect()


class ProcessCollector(Collector):
    """What the answering process uses: memory, CPU time, open files, age."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Read the process's figures from the system."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        started = float(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
        label = [str(self._pid)]
        for name, words, value in (
            ("orbit_process_resident_bytes", "Memory in use", pages * resource.getpagesize()),
            ("orbit_process_cpu_seconds", "CPU time used", used.ru_utime + used.ru_stime),
            ("orbit_process_open_files", "Open files and sockets", len(list(Path("/proc/self/fd").iterdir()))),
            ("orbit_process_start_seconds", "When it began, seconds since the epoch", time.time() - uptime
             + started / os.sysconf("SC_CLK_TCK")),
        ):  # fmt: skip
            family = GaugeMetricFamily(name, words, labels=["pid"])
            family.add_metric(label, value)
            yield family
