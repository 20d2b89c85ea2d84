"""Schedules on real nodes: one is managed from the command line; two over one database fire nothing twice."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import orbit
from orbit.cli.program import program
from tests.support.processes import credentials_make, node_process
from tests.support.waiting import wait_until

RULE = ["--task", "echo@1", "--queue", "main", "--misfire", "skip", "--overlap", "allow"]
CATCH_UP = orbit.MisfireRule(policy="CATCH_UP", max_count=100, max_age_seconds=3600, rate_per_second=100)


@pytest.fixture
def run(database_url: str, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """A node, and what runs one command against it and returns what it prints."""
    credentials = credentials_make(database_url, tmp_path)
    with node_process(database_url, credentials, tmp_path) as node:

        def command(*arguments: str) -> str:
            done = CliRunner().invoke(program(), ["schedule", *arguments], env=node.environment)
            assert done.exit_code == 0, (done.output, done.exception)
            return done.output.strip()

        yield command


@pytest.mark.databases("sqlite")
@pytest.mark.requirement("R146")
def test_r143_a_schedule_is_managed_from_the_command_line(run: Callable[..., str]) -> None:
    rule = ["--cron", "30 2 * * *", "--timezone", "America/New_York"]
    previewed = run("preview", *rule, "--after", "2026-03-08T00:00:00Z")
    assert "2026-03-08T07:00:00.000000Z  2026-03-08T03:00:00" in previewed
    made = run("create", "--name", "ticks", "--every", "1", *RULE, "--params", '{"n": 1}')
    wait_until(lambda: run("firings", made, "--state", "FIRED").count("FIRED") >= 3, what="three firings")
    assert "ticks" in run("list", "--state", "ACTIVE")
    assert run("pause", made, "--reason", "lunch").startswith("PAUSED, revision 2")
    shown = json.loads(run("show", made, "--json"))
    assert shown["configuration"]["task"]["params"] == {"n": 1}
    hourly = ["--cron", "0 * * * *", "--timezone", "UTC", "--misfire", "coalesce", "--label", "team=red"]
    assert "revision 3" in run("configure", made, *hourly, "--reason", "rarer")
    changed: dict[str, Any] = json.loads(run("show", made, "--json"))["configuration"]
    assert (changed["cron"], changed["every_seconds"]) == ("0 * * * *", None)
    assert changed["misfire"] == {"policy": "COALESCE"}
    assert (changed["task"]["labels"], changed["overlap"]) == ({"team": "red"}, {"policy": "ALLOW"})
    assert run("resume", made, "--reason", "back").startswith("ACTIVE, revision 4")
    copied = run("create", "--from", json.dumps(changed), "--name", "copy", "--paused")
    assert "PAUSED" in run("show", copied)
    assert len(json.loads(run("preview", "--schedule", made, "--count", "3", "--json"))) == 3


@pytest.mark.databases("mariadb", "mysql")
def test_r148_two_nodes_fire_each_instant_once_though_one_is_killed(database_url: str, tmp_path: Path) -> None:
    credentials = credentials_make(database_url, tmp_path)
    with (
        node_process(database_url, credentials, tmp_path) as doomed,
        node_process(database_url, credentials, tmp_path) as other,
        other.client as client,
    ):
        configuration = orbit.ScheduleConfiguration(
            name="ticks",
            every_seconds=1,
            misfire=CATCH_UP,
            overlap=orbit.OverlapRule(policy="ALLOW"),
            task=orbit.ScheduledTask(queue="main", type="echo", version=1),
        )
        request = orbit.CreateSchedule(configuration=configuration)
        ids = [client.create_schedule(f"s-{number}", request).schedule.id for number in range(4)]

        def fired(schedule_id: str) -> list[orbit.Firing]:
            return [each for each in client.schedule_firings(schedule_id) if each.state == "FIRED"]

        wait_until(lambda: all(len(fired(each)) >= 3 for each in ids), what="firings of two nodes")
        doomed.process.kill()
        before = {each: len(fired(each)) for each in ids}
        wait_until(lambda: all(len(fired(each)) >= before[each] + 3 for each in ids), what="firings of one node")
        for schedule_id in ids:
            client.pause_schedule(schedule_id, "pause", reason="enough")
            firings = fired(schedule_id)
            times = [datetime.fromisoformat(each.scheduled_at) for each in firings]
            assert {later - earlier for later, earlier in pairwise(times)} == {timedelta(seconds=1)}
            tasks = {task.id for task in client.list_tasks(source=f"schedule:{schedule_id}")}
            assert tasks == {each.task_id for each in firings}
            assert len(tasks) == len(firings)
