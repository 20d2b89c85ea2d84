"""A whole engine over Pulse on one database, driven by hand: no loop runs, time moves only when a test says so."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from definitions.compiler import compile_definition
from definitions.graph import Graph
from definitions.registry import VersionToStart, children_read, graph_load, version_publish, version_to_start
from engine.batch import Advancer
from engine.control import Controls, Order, Told
from engine.follow import Follower
from engine.fork import Fork, Forks
from engine.formats import StateFormats
from engine.listener import InstanceListener
from engine.migrate import Migration, Migrations
from engine.ports import Flows
from engine.pulse_tasks import PulseTasks
from engine.recover import Decision, Recoveries
from engine.runner import Runner
from engine.service import Instances
from engine.signalling import Message, Sending, Signals
from engine.start import Starter, StartRequest
from engine.states import Action
from engine.stimulus import Outcome as TaskOutcome
from engine.stimulus import TaskEnded
from engine.store.stimuli import stimuli_insert
from engine.watchers import Watchers
from orbit.canonical import digest
from orbit.database import Database, Transaction
from orbit.idempotency import Command
from orbit.ids import new_id
from orbit.jsontext import Json, dumps
from orbit.store.journal import Actor
from orbit.store.tenancy import NamespaceName, namespace_ensure
from pulse.arrivals import Arrivals
from pulse.catalog import Catalog
from pulse.claim import Assignment, Demand, claim
from pulse.listener import BacklogShort, FollowLater, TaskListener
from pulse.placement import Seat
from pulse.queues import QueueSettings, queue_create
from pulse.report import Outcome, Report, ReportedError, report
from pulse.sessions import Offer
from pulse.start import StartItem, start
from pulse.states import ErrorClass, RecoverySafety
from pulse.store.lanes import lanes_of

TYPES = ("do.a", "do.b", "do.c", "do.x", "do.y", "ask.p")


@dataclass(frozen=True)
class Done:
    """What a handler answers."""

    output: Json = None
    error: ErrorClass | ReportedError | None = None
    code: str = "BROKEN"


# What the handlers answer for a step, a round and the params; None keeps the task running.
Handlers = Callable[[str, int, Json], Done | None]


def _namespace(database: Database) -> bytes:
    named = NamespaceName("tests", "default", new_id().hex())
    return database.transaction(lambda tx: namespace_ensure(tx, named)).id


def _given(graph: Graph | Mapping[int, Graph], children: Mapping[str, Graph]) -> tuple[Any, Any]:
    """Give what loads graphs and finds versions where nothing is published."""
    versions = {1: graph} if isinstance(graph, Graph) else graph

    def load(_tx: Transaction, _namespace_id: bytes, workflow: str, version: int) -> Graph:
        return children[workflow] if workflow in children else versions[version]

    def find(_tx: Transaction, _namespace_id: bytes, _workflow: str, version: int | None) -> VersionToStart:
        return VersionToStart(version or 1)

    return load, find


class Weave:
    """One namespace with a queue `main`, and everything that a node has."""

    def __init__(
        self,
        database: Database,
        graph: Graph | Mapping[int, Graph] | None = None,
        *,
        beside: "Weave | None" = None,
        formats: StateFormats | None = None,
        children: Mapping[str, Graph] | None = None,
    ) -> None:
        """With a `graph` every workflow is that one, published or not; several are its versions by number.

        `children` are other workflows by their names, `beside` is another node of the same namespace, `formats` are the
        stored forms that this one knows.
        """
        self.database = database
        self.namespace_id: bytes = _namespace(database) if beside is None else beside.namespace_id
        self.types: Sequence[str] = TYPES
        self.actor = Actor("test", new_id())
        self.listeners: list[TaskListener] = []
        self.catalog = Catalog()
        self.offers: Callable[[Mapping[bytes, int]], Offer | None] = lambda _: None
        self.woken = 0
        self.changed: list[bytes] = []
        load, find = (graph_load, version_to_start) if graph is None else _given(graph, children or {})
        tasks = PulseTasks(self)
        self.advancer = Advancer(Flows(load), tasks, formats)
        self.runner = Runner(database, self.advancer, on_changed=self.changed.extend)
        self.listeners.append(InstanceListener(self._wake))
        self.starter = Starter(database, self.advancer, find, on_started=self.runner.due_in)
        self.watchers = Watchers(database)
        told = Told(self.changed.extend, self.changed.extend, self.runner.due_in, self._wake)
        self._told = told
        self.follower: Follower | None = None
        self.controls = Controls(database, self.advancer, told)
        self.recoveries = Recoveries(database, self.advancer, self.controls, tasks)
        self.forks = Forks(database, self.advancer, self.controls, find, on_started=self.runner.due_in)
        self.migrations = Migrations(database, self.advancer, self.controls, find)
        self.instances = Instances(database, self.advancer, self.starter, self.watchers)
        self.signals = Signals(database, self.advancer.flows, find, self._wake)

    def close(self) -> None:
        self.starter.stop()
        self.watchers.stop()
        self.runner.stop()

    def follow(self) -> None:
        """Let instances go on in the transactions that record results, as on a node."""
        self.follower = Follower(self.advancer, self._told)

    def _wake(self) -> None:
        self.woken += 1

    # What Pulse tells a node; here nobody listens.

    def offer(self, lanes: Mapping[bytes, int]) -> Offer | None:
        return self.offers(lanes)

    def on_ready(self, lanes: Mapping[bytes, Arrivals]) -> None:
        pass

    def on_changed(self, task_ids: frozenset[bytes]) -> None:
        pass

    def on_ended(self, attempt_ids: frozenset[bytes]) -> None:
        pass

    def on_trouble(self, *, retries: int, lost: int) -> None:
        pass

    def on_keys_free(self) -> None:
        pass

    def on_verification(self) -> None:
        pass

    def on_cancel_wanted(self, reasons: Mapping[bytes, str]) -> None:
        pass

    # What a test does.

    def queue(self, name: str = "main", *, unfinished: int = 1000) -> None:
        settings = QueueSettings(
            paused=False, max_concurrency=1000, rate_per_second=100_000, max_unfinished_tasks=unfinished
        )
        command = self.command("queue.create", name)
        self.database.transaction(lambda tx: queue_create(tx, command, self.actor, name=name, settings=settings))

    def publish(self, text: str) -> None:
        compiled = compile_definition(text)
        if compiled.wanted:
            children, _ = self.database.transaction(lambda tx: children_read(tx, self.namespace_id, compiled))
            compiled = compile_definition(text, children)
        assert not compiled.findings, compiled.render()
        self.database.transaction(lambda tx: version_publish(tx, self.namespace_id, compiled, self.actor))

    def command(self, operation: str, key: str, meaning: Json = None) -> Command:
        return Command(self.namespace_id, operation, "", key, digest(meaning))

    def order(self, operation: str, instance_id: bytes, **fields: Any) -> Order:
        key = fields.pop("key", None) or new_id().hex()
        command = Command(self.namespace_id, operation, instance_id.hex(), key, digest([operation]))
        return Order(command=command, actor=self.actor, instance_id=instance_id, reason="a test wants it", **fields)

    def cancel(self, instance_id: bytes, *, compensate: bool = False, **fields: Any) -> Json:
        order = self.order("instance.cancel", instance_id, **fields)
        return self.controls.instance_cancel(order, compensate=compensate).data["instance"]

    def pause(self, instance_id: bytes, **fields: Any) -> Json:
        return self.controls.instance_pause(self.order("instance.pause", instance_id, **fields)).data["instance"]

    def resume(self, instance_id: bytes, **fields: Any) -> Json:
        return self.controls.instance_resume(self.order("instance.resume", instance_id, **fields)).data["instance"]

    def signal(self, to: bytes | tuple[str, str], name: str, payload: Json = None, **fields: Any) -> dict[str, Json]:
        """Send a signal to an instance, or to a workflow's business key; `fields` are those of a Message or a key."""
        key = fields.pop("key", None) or new_id().hex()
        more: dict[str, Any] = {"queues": fields.pop("queues", None)}
        if isinstance(to, bytes):
            more["instance_id"] = to
        else:
            more["workflow"], more["business_key"] = to
        message = Message(name, payload, fields.pop("signal", None) or key, **fields)
        command = Command(self.namespace_id, "signal", str(to), key, digest([name, payload]))
        sent = self.signals.signal_send(Sending(command=command, actor=self.actor, message=message, **more))
        return {**sent.data["signal"], "deduplicated": sent.deduplicated}

    def signals_of(self, instance_id: bytes) -> list[tuple[str, str, str | None]]:
        """List an instance's signals: what they are called, their state, and who took them."""
        found = self.signals.signals_of_instance(self.namespace_id, instance_id)
        return [(each["signal_id"], each["state"], each["step"]) for each in found]

    def recover(self, instance_id: bytes, action: Action, step: str | None = None, **fields: Any) -> Json:
        """Decide, at the current revision unless another is given."""
        revision = fields.pop("expected_revision", None) or int(self.get(instance_id)["revision"])
        order = self.order("instance.recover", instance_id, expected_revision=revision, key=fields.pop("key", None))
        known = {"evidence": {"ticket": 7}, "safety_statement": "the test has looked", **fields}
        return self.recoveries.instance_recover(Decision(order=order, action=action, step=step, **known)).data

    def fork(self, instance_id: bytes, step: str, **fields: Any) -> Json:
        """Fork, with a safety statement unless None is given."""
        order = self.order("instance.fork", instance_id, **{n: fields.pop(n) for n in ("key", "queues") if n in fields})
        known = {"safety_statement": "the test has looked", **fields}
        return self.forks.instance_fork(Fork(order=order, step=step, **known)).data

    def migrate(self, instance_id: bytes, version: int, *, is_dry_run: bool = False, **fields: Any) -> Json:
        order = self.order("instance.migrate", instance_id, **fields)
        return self.migrations.instance_migrate(Migration(order, version, is_dry_run)).data

    def request(self, workflow: str, input_: Json = None, key: str | None = None, **fields: Any) -> StartRequest:
        value = {} if input_ is None else input_
        command = self.command("instance.start", key or new_id().hex(), [workflow, value])
        known = {"version": None, "started_by": "test", **fields}
        return StartRequest(command=command, workflow=workflow, input=value, **known)

    def start(self, workflow: str, input_: Json = None, **fields: Any) -> bytes:
        return self.instances.instance_start(self.request(workflow, input_, **fields)).subject_id

    def advance(self) -> int:
        """Run rounds until there is nothing left to do."""
        total = 0
        for _ in range(100):
            self.runner.due_in(0)
            looked_at = self.runner.run_once()
            if not looked_at:
                return total
            total += looked_at
        raise AssertionError("the runner does not come to rest")

    def claim(self) -> Sequence[Assignment]:
        """Lease everything that is ready and get it started."""

        def work(tx: Transaction) -> Sequence[Assignment]:
            lanes = lanes_of(tx, self.namespace_id, queues=("main", "other"), types=self.types)
            seat = Seat(bytes(16), 256, dict.fromkeys(lanes, RecoverySafety.MANUAL))
            claimed = claim(tx, Demand([seat], {})).assignments
            if not claimed:
                return claimed
            granted = start(tx, [StartItem(new_id(), item.attempt_id, item.token) for item in claimed], self)
            assert all(outcome.granted for outcome in granted)
            return claimed

        return self.database.transaction(work)

    def answer(self, assignment: Assignment, done: Done) -> None:
        """Record a handler's answer."""
        error = done.error
        if isinstance(error, ErrorClass):
            error = ReportedError(error, done.code, "as the test wants")
        said = Report(
            message_id=new_id(),
            attempt_id=assignment.attempt_id,
            token=assignment.token,
            outcome=Outcome.SUCCEEDED if error is None else Outcome.FAILED,
            output=None if error is not None else dumps(done.output),
            error=error,
        )
        follower = self.follower
        try:
            self.database.transaction(lambda tx: report(tx, [said], self, follower))
        except (FollowLater, BacklogShort):
            self.database.transaction(lambda tx: report(tx, [said], self))

    def work(self, handlers: Handlers) -> int:
        """Run what is ready; a handler that answers None keeps its task running."""
        claimed = self.claim()
        for assignment in claimed:
            step, number = assignment.task.source_step, assignment.task.source_round
            assert step is not None
            assert number is not None
            done = handlers(step, number, msgspec.json.decode(assignment.payload.params))
            if done is not None:
                self.answer(assignment, done)
        return len(claimed)

    def drive(self, handlers: Handlers) -> None:
        """Let runner and handlers go on until nothing moves without time."""
        for _ in range(1000):
            if not self.advance() + self.work(handlers):
                return
        raise AssertionError("the instances do not come to rest")

    def repeat_last_stimulus(self, instance_id: bytes, step: str) -> None:
        """Say once more that the first task of a step has succeeded."""
        stimulus = TaskEnded(step, 1, TaskOutcome.SUCCEEDED)
        self.database.transaction(lambda tx: stimuli_insert(tx, [(instance_id, stimulus)]))

    def get(self, instance_id: bytes) -> dict[str, Json]:
        return self.instances.instance_get(self.namespace_id, instance_id)

    def states(self, instance_id: bytes) -> dict[str, str]:
        steps = self.instances.instance_steps(self.namespace_id, instance_id)
        return {step["id"]: step["state"] for step in steps}

    def history(self, instance_id: bytes) -> list[tuple[str, str | None]]:
        entries = self.instances.instance_history(self.namespace_id, instance_id).entries
        return [(entry["type"], entry["step"]) for entry in entries]
