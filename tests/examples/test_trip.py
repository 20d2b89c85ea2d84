"""The trip example on a real node with its own worker: blocks handle their failures, and what was booked is let go."""

from pathlib import Path

import pytest

from orbit.sdk.models import CreateQueueRequest, StartInstance
from tests.support.declared import ROOT
from tests.support.processes import credentials_make, node_process, orbit_command, python_process

EXAMPLE = ROOT / "examples" / "trip"
TRIPS = {
    "T-1": ["ann"],
    "T-2-camp": ["ann"],
    "T-3": ["ann", "bob", "eve", "kim"],
    "T-4": ["ann", "bob"],
}


@pytest.mark.databases("sqlite", "mysql")
def test_a_group_flies_camps_or_stays_at_home(database_url: str, tmp_path: Path) -> None:
    credentials = credentials_make(database_url, tmp_path)
    arguments = orbit_command("worker", f"{EXAMPLE / 'worker.py'}:worker")[2:]
    log = tmp_path / "worker.log"
    with node_process(database_url, credentials, tmp_path) as node, node.client as client:
        client.create_queue("q", CreateQueueRequest(name="trips", max_concurrency=50, rate_per_second=1_000))
        client.publish_workflow((EXAMPLE / "trip.yaml").read_text(encoding="utf-8"))
        with python_process(arguments, node.environment, log):
            started = {
                trip: client.start_instance(
                    trip, StartInstance(workflow="trip", input={"trip": trip, "travellers": travellers})
                ).instance.id
                for trip, travellers in TRIPS.items()
            }
            ended = {trip: client.instance_result(each, timeout_seconds=150) for trip, each in started.items()}
            undone = {
                trip: {
                    entry.step
                    for entry in client.instance_history(each)
                    if entry.type == "step.succeeded" and ".undo" in (entry.step or "")
                }
                for trip, each in started.items()
            }
    stories = {trip: (each.state, (each.error or {}).get("code"), each.compensation) for trip, each in ended.items()}
    assert stories["T-1"][:2] == stories["T-2-camp"][:2] == ("SUCCEEDED", None)
    assert ended["T-1"].output["camping"] is False
    assert ended["T-2-camp"].output["camping"] is True
    assert stories["T-3"] == ("FAILED", "FLIGHT_FULL", "DONE")
    assert stories["T-4"] == ("FAILED", "CARD_REFUSED", "DONE")
    # Four are one too many for the plane: the three who had a seat, or were about to, give it back.
    assert len(undone["T-3"]) <= 3
    assert all(each is not None and each.startswith("seat.undo[") for each in undone["T-3"])
    assert undone["T-4"] == {"stay.undo", "seat.undo[0]", "seat.undo[1]"}
    assert "Trip T-3 is off" in log.read_text(encoding="utf-8")
