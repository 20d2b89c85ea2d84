"""Blocks found again in a graph, and the pictures drawn of them."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path

from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings

from definitions.commands import graph as graph_command
from definitions.compiler import compile_definition
from definitions.graph import Graph
from definitions.structure import Block, Part, structure_of
from definitions.svg import graph_to_svg
from tests.support.random_workflows import workflows

SVG = "{http://www.w3.org/2000/svg}"
NESTED = """\
orbit: weave/1
workflow: nested
version: 1
title: <script>alert("1")</script>
input: {type: object, required: [a], properties: {a: {type: number}}}
defaults: {queue: q}
steps:
  - id: pick
    when: input.a > 1
    branch:
      - when: input.a > 100
        steps: [{id: give_up, fail: {code: TOO_MUCH, message: no}}]
      - when: input.a > 50
        steps:
          - id: both
            parallel:
              join: all
              branches:
                left:
                  - {id: first, task: a.b@1, retry: {max_attempts: 1}, timeout: 1h}
                  - id: inner
                    branch:
                      - when: input.a > 70
                        steps: [{id: pause, wait: {for: 10m}}]
                      - else: []
                right: [{id: put, set: {x: 1, y: 2}}]
      - else: []
  - id: ask
    when: input.a < 9
    poll: {task: x.y@2, done_when: output.ok, every: 1s, backoff: 2, max_rounds: 7, timeout: 1h}
  - id: last
    branch:
      - when: input.a > 3
        steps: [{id: done, return: {x: 1}}]
      - else: [{id: bad, fail: {code: BAD, message: x}}]
"""


def graph_of(text: str) -> Graph:
    compiled = compile_definition(text)
    assert compiled.graph is not None, compiled.render()
    return compiled.graph


def outline(parts: Sequence[Part]) -> list[object]:
    return [
        {part.opener.id: {lane.label: outline(lane.parts) for lane in part.lanes}}
        if isinstance(part, Block)
        else part.id
        for part in parts
    ]


def node_ids(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        if not isinstance(part, Block):
            yield part.id
            continue
        yield part.opener.id
        for lane in part.lanes:
            yield from node_ids(lane.parts)
        yield from (join.id for join in (part.join, part.handled) if join is not None)


def drawn(graph: Graph) -> ET.Element:
    return ET.fromstring(graph_to_svg(graph))  # noqa: S314  (our own drawing)


def test_blocks_are_found_again_as_they_were_written() -> None:
    parts = structure_of(graph_of(NESTED))
    inner = {"inner": {"1": ["pause"], "else": []}}
    assert outline(parts) == [
        {"pick": {"1": ["give_up"], "2": [{"both": {"left": ["first", inner], "right": ["put"]}}], "else": []}},
        "ask",
        {"last": {"1": ["done"], "else": ["bad"]}},
    ]
    pick, _, last = parts
    assert isinstance(pick, Block)
    assert isinstance(last, Block)
    assert [lane.goes_on for lane in pick.lanes] == [False, True, True]
    assert last.join is None


@given(workflows())
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_the_blocks_of_any_graph_hold_every_node_once(graph: Graph) -> None:
    assert sorted(node_ids(structure_of(graph))) == sorted(node.id for node in graph.nodes)


@given(workflows())
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_any_graph_is_drawn_inside_its_picture(graph: Graph) -> None:
    picture = drawn(graph)
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
    for box in picture.iter(f"{SVG}rect"):
        x, y = float(box.get("x", 0)), float(box.get("y", 0))
        assert x >= 0
        assert x + float(box.attrib["width"]) <= width
        assert y + float(box.attrib["height"]) <= height
    for text in picture.iter(f"{SVG}text"):
        assert float(text.attrib["y"]) < height


def test_lanes_stand_side_by_side_and_steps_below_each_other() -> None:
    picture = drawn(graph_of(NESTED))
    boxes = {
        group.attrib["id"]: {
            name: float(value) for name, value in group[1].attrib.items() if name in "x y width height"
        }
        for group in picture.iter(f"{SVG}g")
    }
    first, put, inner, both = (boxes[f"step-{name}"] for name in ("first", "put", "inner", "both"))
    assert first["x"] + first["width"] < put["x"]
    assert first["y"] == put["y"]
    assert first["y"] + first["height"] < inner["y"]
    for box in (first, put, inner):
        assert both["x"] < box["x"]
        assert box["x"] + box["width"] < both["x"] + both["width"]
        assert box["y"] + box["height"] < both["y"] + both["height"]


def test_steps_show_kind_condition_and_bounds() -> None:
    words = [text.text for text in drawn(graph_of(NESTED)).iter(f"{SVG}text")]
    for expected in (
        "parallel, join all",
        "a.b@1 on q",
        "at most 1 attempt of 5m, 1h in all",
        "for 10m",
        "TOO_MUCH",
        "x, y",
        "when input.a > 50",
        "when input.a < 9",
        "else",
        "done when output.ok",
        "every 1s times 2 up to 10m, at most 7 rounds,",  # and the rest in the next line
    ):
        assert expected in words


def test_texts_of_the_author_stay_texts() -> None:
    source = graph_to_svg(graph_of(NESTED))
    assert "<script" not in source
    assert "&lt;script&gt;alert" in source


def test_long_conditions_are_broken_into_lines_and_stand_whole_in_the_tooltip() -> None:
    condition = " && ".join(f"input.a != {number}" for number in range(20))
    text = NESTED.replace("when: input.a < 9", f"when: {condition}")
    picture = drawn(graph_of(text))
    words = [text.text or "" for text in picture.iter(f"{SVG}text")]
    assert sum(word.startswith("when input.a != 0") for word in words) == 1
    assert max(map(len, words)) <= 80
    tooltips = [title.text or "" for title in picture.iter(f"{SVG}title")]
    assert any(condition in tooltip for tooltip in tooltips)


def test_the_command_draws_and_refuses_like_check(tmp_path: Path) -> None:
    file, target = tmp_path / "nested.yaml", tmp_path / "nested.svg"
    file.write_text(NESTED)
    assert CliRunner().invoke(graph_command, [str(file)]).output == graph_to_svg(graph_of(NESTED))
    assert CliRunner().invoke(graph_command, [str(file), "--format", "mermaid"]).output.startswith("flowchart TD\n")
    assert CliRunner().invoke(graph_command, [str(file), "-o", str(target)]).output == ""
    assert target.read_text() == graph_to_svg(graph_of(NESTED))
    file.write_text(NESTED.replace("10m", "10"))
    refused = CliRunner().invoke(graph_command, [str(file), "-o", str(target)])
    assert refused.exit_code == 1
    assert "BAD_DURATION" in refused.output
