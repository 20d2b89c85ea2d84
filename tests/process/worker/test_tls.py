"""Workers over TLS (R160)."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from orbit.sdk.errors import ConnectionFailed
from orbit.sdk.settings import Connection
from orbit.sdk.worker import Worker
from tests.hostile.socket_server import RawClient
from tests.process.worker.memory_layer import TOKEN, MemoryLayer, running_node
from tests.support.waiting import wait_until


def certificate(folder: Path, name: str, address: str) -> tuple[str, str]:
    """Make a self-signed certificate for one address; return its file and its key's."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    start = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=36_500))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return str(paths[0]), str(paths[1])


def test_r160_a_worker_connects_by_wss_and_checks_the_certificate(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "right", "127.0.0.1")
    other, _ = certificate(tmp_path, "other", "127.0.0.1")
    layer = MemoryLayer()
    with running_node(layer, certfile=cert, keyfile=key) as node:
        url = f"https://127.0.0.1:{node.port}"
        worker = Worker(queues=["q"], name="w", connection=Connection(url, TOKEN, cert))
        worker.task("echo@1", recovery="REPLAY_SAFE")(lambda params, _context: params)
        worker.start()
        node.call(lambda: layer.submit(40, params="x" * 30_000))
        wait_until(lambda: layer.states()["SUCCEEDED"] == 40)
        assert worker.drain()
        for wrong in (other, None):
            stranger = Worker(queues=["q"], name="s", drain_seconds=0, connection=Connection(url, TOKEN, wrong))
            stranger.task("echo@1", recovery="REPLAY_SAFE")(lambda params, _context: params)
            with pytest.raises(ConnectionFailed):
                stranger.start(timeout=0.7)
            stranger.drain()
        assert len(layer.sessions) == 1


def test_a_plain_or_silent_client_of_a_tls_port_harms_nobody(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "right", "127.0.0.1")
    with (
        running_node(MemoryLayer(), certfile=cert, keyfile=key) as node,
        RawClient(node.port) as plain,
        RawClient(node.port),
    ):
        plain.sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        plain.rest()
        context = ssl.create_default_context(cafile=cert)
        context.check_hostname = False
        with RawClient(node.port, context=context) as good:
            assert good.upgrade(Authorization=f"Bearer {TOKEN}").startswith(b"HTTP/1.1 101 ")
