"""The one composition root: builds a node of its parts and runs it. It decides nothing.

A node is the HTTP listener, the worker socket, both layers and their loops over one database. Draining goes from the
outside in: no new work, then what is in flight, then the batches, then the database.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import gevent
from gevent.event import Event
from prometheus_client.registry import Collector

import orbit
from api.app import app_make
from api.authentication import Authenticator
from api.backlog import BacklogCollector
from api.dispatch_metrics import MeasuredDispatcher
from api.graph_reader import GraphReader
from api.in_flight import InFlight, InFlightCollector
from api.installation import installation_check
from api.listener import ListenerLimits, NodeServer
from api.native_thread import NativeThread
from api.openapi import document_make
from api.resources.applications import Applications
from api.resources.batches import Batches
from api.resources.concurrency_keys import ConcurrencyKeys
from api.resources.instance_control import InstanceControl
from api.resources.instance_graph import InstanceGraphs
from api.resources.instance_moves import InstanceMoves
from api.resources.instances import InstanceResource
from api.resources.journal import Journal
from api.resources.namespaces import Namespaces
from api.resources.node import NodeResource, NodeState
from api.resources.queues import Queues
from api.resources.recovery import TaskRecovery
from api.resources.schedules import ScheduleResource
from api.resources.signals import SignalResource
from api.resources.subscriptions import Subscriptions
from api.resources.task_types import TaskTypes
from api.resources.tasks import Tasks
from api.resources.versions import WorkflowVersions
from api.resources.workers import Workers
from api.resources.workflows import Workflows
from api.watchdog import Watchdog
from api.worker_gate import WorkerGate
from api.worker_session import SessionLimits
from definitions.registry import version_to_start
from engine.batch import Advancer
from engine.control import Controls, Told
from engine.follow import Follower
from engine.fork import Forks
from engine.instance_batches import instance_operations
from engine.listener import InstanceListener
from engine.migrate import Migrations
from engine.namespace_limits import NamespaceLimits
from engine.ports import Flows
from engine.pulse_tasks import PulseTasks
from engine.recover import Recoveries
from engine.runner import Runner
from engine.scheduled import ScheduledInstances
from engine.service import Instances
from engine.signalling import Signals
from engine.start import Starter
from engine.watchdog import InstanceWatchdog
from engine.watchers import Watchers
from migrations.upgrade import require_current
from orbit.batcher import Batcher
from orbit.database import ConnectionLimits, Database
from orbit.logs import get_logger, logs_configure
from orbit.metrics import Metrics
from orbit.settings import Settings
from pulse.node import PulseNode

DRAIN_SPREAD_MS = 3_000
_PARENT_LOOK_SECONDS = 1.0

_log = get_logger(__name__)


class Node:
    """One node: `start` it, serve `application`, `drain` it. The database is the caller's to close."""

    def __init__(self, database: Database, *, name: str) -> None:
        self.database = database
        self.metrics = Metrics()
        self.state = NodeState()
        self.in_flight = InFlight()
        self.authenticator = Authenticator(database)
        self.pulse = PulseNode(database, name=name)
        tasks = PulseTasks(self.pulse)
        self.graphs = GraphReader()
        self.compiler = NativeThread()
        advancer = Advancer(Flows(self.graphs.load), tasks)
        self.watchers = Watchers(database)
        self.runner = Runner(database, advancer, on_changed=self.watchers.instances_changed)
        self.starter = Starter(database, advancer, version_to_start, on_started=self.runner.due_in)
        self.pulse.firer.maker = ScheduledInstances(
            self.starter, advancer.flows, version_to_start, on_started=self.runner.due_in
        )
        self.pulse.listeners.append(InstanceListener(self.runner.wake))
        told = Told(
            self.watchers.instances_changed, self.watchers.instances_moved, self.runner.due_in, self.runner.wake
        )
        self.pulse.execution.follower = Follower(advancer, told)
        controls = Controls(database, advancer, told)
        instances = Instances(database, advancer, self.starter, self.watchers)
        forks = Forks(database, advancer, controls, version_to_start, on_started=self.runner.due_in)
        recoveries = Recoveries(database, advancer, controls, tasks)
        migrations = Migrations(database, advancer, controls, version_to_start)
        self.pulse.batches.operations |= instance_operations(controls, recoveries, migrations)
        self.gate = WorkerGate(
            authenticator=self.authenticator,
            dispatcher=MeasuredDispatcher(self.pulse.dispatcher, self.metrics.start_delay_seconds.observe),
            execution=self.pulse.execution,
            limits=SessionLimits(
                node=name,
            ),
        )
        node_resource = NodeResource(self.state, self.metrics, probe=self._probe, collectors=self._collectors)
        self.operations = [
            *node_resource.operations(),
            *Queues(database).operations(),
            *Applications(database).operations(),
            *ConcurrencyKeys(database, self.pulse).operations(),
            *Tasks(database, self.pulse, is_draining=lambda: self.state.draining).operations(),
            *TaskRecovery(database, self.pulse).operations(),
            *Batches(database, self.pulse, advancer.flows).operations(),
            *TaskTypes(database, self.pulse).operations(),
            *ScheduleResource(database, self.pulse).operations(),
            *Workflows(database, self.graphs, self.compiler).operations(),
            *WorkflowVersions(database, self.graphs, self.compiler).operations(),
            *InstanceResource(instances).operations(),
            *InstanceGraphs(instances, self.compiler).operations(),
            *InstanceMoves(forks, migrations).operations(),
            *InstanceControl(controls, recoveries).operations(),
            *Namespaces(NamespaceLimits(database)).operations(),
            *SignalResource(Signals(database, advancer.flows, version_to_start, self.runner.wake)).operations(),
            *Workers(database).operations(),
            *Journal(database).operations(),
            *Subscriptions(database).operations(),
        ]
        node_resource.publish(document_make(self.operations, version=orbit.__version__))
        self.application = self.in_flight.counted(
            app_make(self.operations, self.authenticator, self.metrics.request_answered)
        )
        self.instance_watchdog = InstanceWatchdog(database, on_stuck=self.metrics.stuck.set)
        self.watchdog = Watchdog(self.metrics, database, self._batchers, self._sample)

    def start(self) -> None:
        """Begin to work."""
        self.watchdog.start()
        self.pulse.start()
        self.runner.start()
        self.instance_watchdog.start()

    def drain(self, listener: NodeServer, *, seconds: float) -> None:
        """Take no more work, let workers go elsewhere, finish requests and batches; at most about `seconds`."""
        self.state.draining = True
        ends_at = time.monotonic() + seconds
        listener.stop_accepting()
        self.gate.refuse()
        self.pulse.drain(spread_ms=DRAIN_SPREAD_MS)
        self.watchers.stop()
        self.in_flight.wait_idle(max(0.0, ends_at - time.monotonic()))
        self.stop()

    def stop(self) -> None:
        """End all loops and finish every batch under way."""
        self.state.draining = True
        self.watchers.stop()
        self.instance_watchdog.stop()
        self.runner.stop()
        self.starter.stop()
        self.pulse.stop()
        self.graphs.stop()
        self.compiler.stop()
        self.watchdog.stop()

    def _probe(self) -> None:
        """Raise Unavailable unless the database answers and has this release's schema."""
        require_current(self.database.url.render_as_string(hide_password=False))

    def _batchers(self) -> Iterable[Batcher[Any, Any]]:
        execution = self.pulse.execution
        return (
            self.pulse.submissions, execution.starts, execution.renewals, execution.reports, execution.releases,
            execution.progresses,
        )  # fmt: skip

    def _collectors(self) -> Iterable[Collector]:
        return [BacklogCollector(self.database), InFlightCollector(self.in_flight)]

    def _sample(self) -> None:
        self.metrics.workers.set(self.gate.session_count)
        self.metrics.sync(self.metrics.retries, self.pulse.retries_count)
        self.metrics.sync(self.metrics.lost_attempts, self.pulse.lost_count)


# A batch makes some thousand objects that die by reference counting; a collection every 700 finds nothing.
_GC_THRESHOLDS = (20_000, 20, 50)
# How long a native thread may go on before the event loop has its turn, each time the loop comes back from waiting.
# With Python's own 5 ms an answer that takes a few turns is late by as many times that while something is compiled.
_TURN_SECONDS = 0.000_5


def serve(settings: Settings, *, shared_port: bool = False, on_listening: Callable[[str], None] | None = None) -> int:
    """Run a node until SIGTERM or SIGINT; return the exit code.

    Raises MixedInstallation, and Unavailable if the database is away or its schema is not this release's. With
    `shared_port` several processes listen on one port, and this one ends with its parent.
    """
    installation_check()
    logs_configure(level=settings.log_level)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    require_current(settings.database_url)
    limits = ConnectionLimits(pool_size=settings.database_pool_size)
    database = Database.open(settings.database_url, limits)
    name = settings.node_name or f"{socket.gethostname()}-{os.getpid()}"
    node = Node(database, name=name)
    listening = _listen(settings, shared_port=shared_port)
    secure = {"certfile": settings.tls_cert, "keyfile": settings.tls_key} if settings.tls_cert else {}
    listener = NodeServer(listening, node.application, limits=ListenerLimits(), gate=node.gate, **secure)
    stopping = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        gevent.signal_handler(number, stopping.set)
    if shared_port:
        gevent.spawn(_watch_parent, os.getppid(), stopping)
    node.start()
    listener.start()
    # What is loaded by now lives as long as the process: the collector need not look at it again for every batch.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_TURN_SECONDS)
    host, port = listening.getsockname()[:2]
    url = f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    _log.info("node.listening", extra={"url": url, "node": name})
    if on_listening is not None:
        on_listening(url)
    stopping.wait()
    _log.info("node.draining", extra={"node": name})
    node.drain(listener, seconds=settings.drain_seconds)
    database.close()
    _log.info("node.stopped", extra={"node": name})
    return 0


def _listen(settings: Settings, *, shared_port: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared_port:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.bind((settings.host, settings.port))
    listening.listen(1024)
    listening.setblocking(False)  # noqa: FBT003  (the library's own signature)
    return listening


def _watch_parent(parent: int, stopping: Event) -> None:
    """Drain when the supervisor has gone: nobody would stop this process any more."""
    while not stopping.wait(_PARENT_LOOK_SECONDS):
        if os.getppid() != parent:
            stopping.set()
