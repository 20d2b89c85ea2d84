"""Where the server is and who we are (R080)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import orbit
from orbit.sdk.errors import ConfigurationError
from orbit.sdk.settings import Connection, from_environment, normalise_url


@pytest.mark.parametrize(
    ("url", "normalised"),
    [
        ("http://127.0.0.1", "http://127.0.0.1:8080"),
        ("http://localhost:9/", "http://localhost:9"),
        ("http://[::1]", "http://[::1]:8080"),
        ("https://orbit.example/base/", "https://orbit.example/base"),
        ("https://orbit.example:8443", "https://orbit.example:8443"),
    ],
)
def test_r080_the_default_port_is_8080(url: str, normalised: str) -> None:
    assert normalise_url(url) == normalised


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1:8080", "http://orbit.example", "http://localhost.evil.example", "http://127.0.0.1.nip.io"]
)
def test_a_credential_is_not_sent_in_clear_to_another_machine(url: str) -> None:
    with pytest.raises(ConfigurationError, match="in clear"):
        normalise_url(url)


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://x", "http://", "http://u:p@localhost", "http://localhost:x"])
def test_what_is_no_address_is_refused_by_the_variables_name(url: str) -> None:
    with pytest.raises(ConfigurationError, match="ORBIT_URL"):
        normalise_url(url)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({}, "ORBIT_URL is not set"),
        ({"ORBIT_URL": "http://localhost"}, "ORBIT_CREDENTIALS_FILE is not set"),
        ({"ORBIT_URL": "http://localhost", "ORBIT_CREDENTIALS_FILE": "/nowhere/x"}, "ORBIT_CREDENTIALS_FILE"),
        ({"ORBIT_URL": "http://localhost", "ORBIT_TOKEN": "two words"}, "token"),
    ],
)
def test_r080_a_missing_setting_is_named_in_one_line(environ: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        from_environment(environ)
    assert "\n" not in str(caught.value)


def test_r080_a_credentials_file_gives_token_and_address(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps({"url": "http://127.0.0.1:18080", "token": "id.file", "namespace_id": "n"}))
    assert from_environment({"ORBIT_CREDENTIALS_FILE": str(path)}) == Connection("http://127.0.0.1:18080", "id.file")
    both = {"ORBIT_CREDENTIALS_FILE": str(path), "ORBIT_TOKEN": "id.env", "ORBIT_URL": "http://localhost:1"}
    assert from_environment(both) == Connection("http://localhost:1", "id.env")
    path.write_text("[]")
    with pytest.raises(ConfigurationError, match='no "token"'):
        from_environment({"ORBIT_CREDENTIALS_FILE": str(path)})


def test_a_connection_shows_no_token_and_knows_its_socket() -> None:
    connection = Connection("https://orbit.example", "id.secret")
    assert "secret" not in repr(connection)
    assert connection.worker_url == "wss://orbit.example/v1/workers/connect"
    assert Connection("http://localhost", "id.secret").worker_url == "ws://localhost:8080/v1/workers/connect"


def test_importing_the_sdk_loads_neither_gevent_nor_a_database() -> None:
    program = (
        "import sys, orbit; assert 'httpx' not in sys.modules; "
        "orbit.Worker; assert 'httpx' not in sys.modules; orbit.Client; "
        "print(sorted({'gevent', 'sqlalchemy', 'pymysql', 'falcon', 'api'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_can_be_loaded() -> None:
    assert set(orbit.__all__) == {*orbit._PUBLIC, "__version__"}  # noqa: SLF001
    for name in orbit.__all__:
        assert getattr(orbit, name) is not None
