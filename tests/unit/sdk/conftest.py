"""A scripted server, a client of it, and an environment in which the command line finds it."""

from collections.abc import Iterator

import pytest

from orbit.sdk.client import Client
from tests.unit.sdk.scripted_server import Script, scripted_server


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted_server() as script:
        yield script


@pytest.fixture
def client(script: Script) -> Iterator[Client]:
    with Client(script.url, "key.secret", timeout_seconds=5) as client:
        yield client


@pytest.fixture
def environment(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORBIT_URL", script.url)
    monkeypatch.setenv("ORBIT_TOKEN", "key.secret")
