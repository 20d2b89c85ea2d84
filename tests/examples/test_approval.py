"""examples/approval on a real node: its worker, and signals from the command line, before and after the instance."""

import json
import subprocess
from pathlib import Path

import pytest

from orbit.sdk.models import CreateQueueRequest, StartInstance
from tests.support.declared import ROOT
from tests.support.processes import (
    clean_environment,
    credentials_make,
    node_process,
    orbit_command,
    python_process,
)

EXAMPLE = ROOT / "examples" / "approval"


@pytest.mark.databases("sqlite", "mysql")
@pytest.mark.requirement("R200")
def test_an_expense_is_approved_by_signals(database_url: str, tmp_path: Path) -> None:
    credentials = credentials_make(database_url, tmp_path)
    with node_process(database_url, credentials, tmp_path) as node, node.client as client:
        client.create_queue("q", CreateQueueRequest(name="approvals", max_concurrency=8, rate_per_second=100))
        client.publish_workflow((EXAMPLE / "approval.yaml").read_text())

        def orbit(*words: str) -> str:
            done = subprocess.run(
                orbit_command(*words), env=clean_environment(node.environment), capture_output=True, text=True,
                check=True, timeout=120,
            )  # fmt: skip
            return done.stdout

        def decide(expense: str, name: str, payload: object) -> str:
            said = json.dumps(payload)
            return orbit("instance", "signal", expense, name, "--workflow", "approval", "--payload", said)

        # The first decision is made before anybody has asked for it.
        assert "kept until" in decide("EXP-1", "decided", {"approved": True, "by": "ann"})
        with python_process([str(EXAMPLE / "worker.py")], node.environment, tmp_path / "worker.log"):
            small, large = (
                client.start_instance(
                    expense,
                    StartInstance(
                        workflow="approval",
                        business_key=expense,
                        input={"expense": expense, "amount": amount, "approver": "ann"},
                    ),
                ).instance.id
                for expense, amount in (("EXP-1", 90), ("EXP-2", 20_000))
            )
            assert client.instance_result(small, timeout_seconds=100).output["approved_by"] == "ann"
            assert f"to {large}" in decide("EXP-2", "decided", {"approved": True, "by": "ann"})
            for who in ("ann", "bob"):
                decide("EXP-2", "confirmed", {"by": who})
            ended = client.instance_result(large, timeout_seconds=100)
        assert ended.state == "SUCCEEDED"
        taken = [(each.name, each.payload["by"], each.step) for each in client.instance_signals(large)]
        assert taken == [
            ("decided", "ann", "decision"), ("confirmed", "ann", None), ("confirmed", "bob", "second_pair"),
        ]  # fmt: skip
        assert "LEFT_OVER" in orbit("instance", "signals", large)
        letters = (tmp_path / "worker.log").read_text()
        assert letters.count("Please decide about EXP-") == 2
