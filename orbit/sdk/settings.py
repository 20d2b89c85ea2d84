"""Where the server is and who we are: from arguments, the environment or a credentials file.

A credential is never sent in clear to another machine: that is refused here, before any connection.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from orbit.sdk.errors import ConfigurationError

PORT_DEFAULT = 8080


@dataclass(frozen=True, slots=True)
class Connection:
    """A server and a credential. `ca_file` is a PEM file of authorities to trust instead of the system's."""

    url: str
    token: str = field(repr=False)
    ca_file: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", normalise_url(self.url))
        if not self.token or any(not 33 <= ord(character) <= 126 for character in self.token):  # noqa: PLR2004  # printable ASCII
            raise ConfigurationError("the token has the form key_id.secret, without spaces")

    @property
    def worker_url(self) -> str:
        """Return the address of the worker socket: `ws://` or `wss://`."""
        return "ws" + self.url.removeprefix("http") + "/v1/workers/connect"


def normalise_url(text: str) -> str:
    """Return `scheme://host:port/path` without a trailing slash; http has port 8080 unless one is given.

    Raises ConfigurationError for what is no http(s) address, and for plain http to anything but loopback.
    """
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError:
        raise ConfigurationError(f"ORBIT_URL: {text!r} is not an address") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"ORBIT_URL: {text!r} does not start with http:// or https://")
    if parts.username or parts.query or parts.fragment:
        raise ConfigurationError("ORBIT_URL holds an address only: no user, query or fragment")
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise ConfigurationError(
            f"ORBIT_URL: a credential is sent in clear to loopback only, use https:// for {parts.hostname}"
        )
    return _joined(parts, port)


def from_environment(
    environ: Mapping[str, str] | None = None, *, url: str | None = None, token: str | None = None
) -> Connection:
    """Read `ORBIT_URL` and `ORBIT_TOKEN` or `ORBIT_CREDENTIALS_FILE`; arguments that are given win.

    The variables win over the file's fields. `ORBIT_CA_FILE` names the authorities to trust. Raises ConfigurationError,
    in one line that names the variable, for what is missing or unreadable.
    """
    env = os.environ if environ is None else environ
    path = env.get("ORBIT_CREDENTIALS_FILE", "")
    stored = _credentials(path) if path and not (url and token) else {}
    url = url or env.get("ORBIT_URL", "") or stored.get("url", "")
    token = token or env.get("ORBIT_TOKEN", "") or stored.get("token", "")
    if not url:
        raise ConfigurationError("ORBIT_URL is not set: the server's address, such as http://127.0.0.1:8080")
    if not token:
        raise ConfigurationError(
            "ORBIT_CREDENTIALS_FILE is not set (nor ORBIT_TOKEN): the file that `orbit bootstrap --output` wrote"
        )
    return Connection(url, token, env.get("ORBIT_CA_FILE") or None)


def _credentials(path: str) -> dict[str, str]:
    try:
        content: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"ORBIT_CREDENTIALS_FILE: {path}: {error.strerror}") from None
    except ValueError:
        raise ConfigurationError(f"ORBIT_CREDENTIALS_FILE: {path} is not JSON") from None
    if not isinstance(content, dict) or not isinstance(content.get("token"), str):
        raise ConfigurationError(f'ORBIT_CREDENTIALS_FILE: {path} has no "token"')
    return {name: value for name, value in content.items() if isinstance(value, str)}


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _joined(parts: SplitResult, port: int | None) -> str:
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    if port is None and parts.scheme == "http":
        port = PORT_DEFAULT
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{path}"
