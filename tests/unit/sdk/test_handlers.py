"""Registering handlers: what is refused, in words that help."""

from __future__ import annotations

import pytest

from orbit.sdk.errors import ConfigurationError
from orbit.sdk.handlers import Handlers
from orbit.sdk.outcomes import Defer
from orbit.sdk.run import load_worker
from orbit.sdk.worker import Worker


@pytest.mark.parametrize("reference", ["mail.send", "mail.send@", "mail.send@0", "@1", "mail send@1", "m@1.5", "m@-1"])
def test_a_reference_is_type_at_version(reference: str) -> None:
    with pytest.raises(ConfigurationError, match="type@version"):
        Handlers().add(reference, "MANUAL", print)


@pytest.mark.parametrize("recovery", [None, "SOMETIMES"])
def test_recovery_has_no_default_and_its_choices_are_named(recovery: str | None) -> None:
    with pytest.raises(ConfigurationError, match=r"REPLAY_SAFE.*VERIFY.*MANUAL"):
        Handlers().add("mail.send@1", recovery, print)


def test_a_task_type_version_has_one_handler() -> None:
    handlers = Handlers()
    handlers.add("mail.send@1", "MANUAL", print)
    with pytest.raises(ConfigurationError, match="two handlers"):
        handlers.add("mail.send@1", "MANUAL", print)


def test_versions_are_declared_together_by_safety() -> None:
    handlers = Handlers()
    for reference, recovery in [("b@2", "MANUAL"), ("b@1", "MANUAL"), ("b@3", "REPLAY_SAFE"), ("a@1", "VERIFY")]:
        handlers.add(reference, recovery, print)
    assert handlers.declared() == [
        {"type": "a", "versions": [1], "recovery": "VERIFY"},
        {"type": "b", "versions": [1, 2], "recovery": "MANUAL"},
        {"type": "b", "versions": [3], "recovery": "REPLAY_SAFE"},
    ]


def test_the_decorator_leaves_the_function_as_it_is() -> None:
    worker = Worker(queues=["q"])

    @worker.task("echo@1", recovery="REPLAY_SAFE")
    def echo(params: int, _context: object) -> int:
        return params

    assert echo(3, None) == 3


@pytest.mark.parametrize(("queues", "capacity"), [("q", 1), ([], 1), (["q"], 0), (["q"], 10_001)])
def test_a_worker_is_refused_wrong_numbers(queues: list[str], capacity: int) -> None:
    with pytest.raises(ConfigurationError):
        Worker(queues=queues, capacity=capacity)


def test_a_worker_without_handlers_does_not_start() -> None:
    with pytest.raises(ConfigurationError, match="no handler"):
        Worker(queues=["q"]).run()


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan")])
def test_defer_takes_a_time_that_is_one(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds"):
        Defer(seconds)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("no_colon", "module:worker"),
        ("no.such.module:worker", "no module"),
        ("json:dumps", "not an orbit.Worker"),
        ("json:missing", "not an orbit.Worker"),
    ],
)
def test_a_target_that_is_no_worker_is_named(target: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        load_worker(target)
