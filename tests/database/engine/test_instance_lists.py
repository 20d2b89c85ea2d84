"""Lists of instances: every filter gives what it says, along one index, in the order of the starts."""

from typing import Any

import pytest
from sqlalchemy import create_engine, event

from engine.states import Control, InstanceState
from engine.store.instance_lists import page_of
from engine.store.instances import Filter, Place
from tests.support.weave import Weave

TWO = """
orbit: weave/1
workflow: {name}
version: 1
steps:
  - {{id: w, wait: {{for: 1h}}}}
"""
FILTERS: list[tuple[dict[str, Any], str]] = [
    ({}, "weave_instance_for_list"),
    ({"control": Control.PAUSED, "started_after": 1}, "weave_instance_for_list"),
    ({"workflow": "one"}, "weave_instance_for_list_by_workflow"),
    ({"workflow": "one", "version": 1, "state": InstanceState.RUNNING}, "weave_instance_for_list_by_workflow"),
    ({"state": InstanceState.RUNNING, "control": Control.ACTIVE}, "weave_instance_for_list_by_state"),
    ({"business_key": "k1", "label": ("team", "red")}, "weave_instance_for_list_by_business_key"),
    ({"business_key": "k1", "workflow": "one"}, "weave_instance_for_list_by_business_key"),
    ({"label": ("team", "red")}, "PRIMARY"),
    ({"label": ("team", "red"), "workflow": "one", "control": Control.ACTIVE}, "PRIMARY"),
]


def ids(weave: Weave, **wanted: Any) -> list[str]:
    return [each["id"] for each in weave.instances.instances_list(weave.namespace_id, Filter(**wanted)).instances]


def test_every_filter_finds_what_it_names(weave: Weave) -> None:
    for name in ("one", "two"):
        weave.publish(TWO.format(name=name))
    red = weave.start("one", business_key="k1", labels={"team": "red", "tier": "1"})
    blue = weave.start("two", business_key="k1", labels={"team": "blue", "tier": "1"})
    plain = weave.start("one", business_key="k2")
    weave.pause(blue)
    everything = {each.hex() for each in (red, blue, plain)}
    assert set(ids(weave)) == everything
    assert ids(weave, control=Control.PAUSED) == [blue.hex()]
    assert set(ids(weave, control=Control.ACTIVE, state=InstanceState.RUNNING)) == {red.hex(), plain.hex()}
    assert ids(weave, label=("team", "red")) == [red.hex()]
    assert ids(weave, label=("tier", "1")) == [blue.hex(), red.hex()]
    assert ids(weave, label=("tier", "1"), workflow="one") == [red.hex()]
    assert ids(weave, label=("tier", "1"), control=Control.PAUSED) == [blue.hex()]
    assert ids(weave, label=("tier", "2")) == ids(weave, label=("1", "tier")) == []
    assert ids(weave, business_key="k1", label=("team", "blue")) == [blue.hex()]
    assert weave.get(red)["labels"] == {"team": "red", "tier": "1"}


def test_pages_by_label_have_a_stable_cursor(weave: Weave) -> None:
    weave.publish(TWO.format(name="one"))
    started = [weave.start("one", labels={"n": "1"}).hex() for _ in range(5)]
    seen: list[str] = []
    place: Place | None = None
    for _ in range(3):
        page = weave.instances.instances_list(weave.namespace_id, Filter(label=("n", "1")), after=place, limit=2)
        seen += [each["id"] for each in page.instances]
        place = page.next_place
        weave.start("one", labels={"n": "1"})
    assert seen == started[::-1]


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.parametrize(("wanted", "index"), FILTERS)
def test_no_list_reads_or_sorts_a_whole_table(
    weave: Weave, database_url: str, wanted: dict[str, Any], index: str
) -> None:
    weave.publish(TWO.format(name="one"))
    for number in range(30):
        labels = {"team": "red"} if number % 2 else {}
        weave.start("one", business_key=f"k{number % 3}", labels=labels)
    seen: list[tuple[str, Any]] = []
    engine = create_engine(database_url)
    event.listen(engine, "before_cursor_execute", lambda *said: seen.append((said[2], said[3])))
    with engine.connect() as connection:
        for after in (None, Place(2**60, bytes(16))):
            connection.execute(page_of(weave.namespace_id, Filter(**wanted), after=after).limit(10)).all()
            plan = connection.exec_driver_sql("EXPLAIN FORMAT=TRADITIONAL " + seen[-1][0], seen[-1][1]).mappings().all()
            assert plan[0]["key"] == index
            assert plan[0]["type"] in {"ref", "range"}, "a part of the index"
            assert all(step["type"] != "ALL" for step in plan)
            assert not any("filesort" in (step["Extra"] or "") for step in plan)
    engine.dispose()
