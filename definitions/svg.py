"""A step graph as an SVG picture that stands alone: blocks as frames with their lanes side by side, for dark and light.

Widths come from the number of characters, because nothing here can measure a font; texts are set in a monospaced one
and told how wide to be. Texts that are too long are cut, and stand whole in the element's tooltip. All texts are
escaped, so no title can change the drawing. Positions are whole pixels: the same graph gives the same bytes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from math import ceil

from definitions.captions import facts_of, kind_word
from definitions.duration import format_duration
from definitions.graph import Graph, Node, NodeKind
from definitions.structure import Block, Lane, Part, structure_of

_CHARACTER = 7.25  # width of a character of the 12 px monospaced font
_LINE = 17
_PADDING = 10
_GAP = 30  # between a step and the next, room for an arrow
_LANE_GAP = 22
_RANK_GAP = 44  # between the rows of a dependency graph, room for the ways from need to step
_WIDTH_MIN = 150
_COLUMNS_MAX = 46
_ROWS_MAX = 3
_MARGIN = 24
_DOT = 7

_STYLE = """
.orbit{--back:#ffffff;--text:#1f2430;--soft:#5b6472;--line:#8a93a3;--card:#f6f7f9;--frame:#c3c9d3;--lane:#fbfbfd;
--task:#2f6fde;--poll:#7b4fd0;--wait:#b26a00;--set:#0b7d77;--branch:#a13d8f;--parallel:#2c7a3f;
--foreach:#00728f;--fail:#c22f2f;--return:#4b5563}
@media(prefers-color-scheme:dark){.orbit{--back:#14171d;--text:#e7eaf0;--soft:#a2abba;--line:#7d8797;--card:#1e232c;
--frame:#414a59;--lane:#181c23;--task:#6fa3ff;--poll:#b594ff;--wait:#f0ad4e;--set:#4fd1c5;--branch:#ec8fd9;
--parallel:#6fcf85;--foreach:#5cc8e0;--fail:#ff7b7b;--return:#aeb7c6}}
.orbit text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:var(--text)}
.orbit .back{fill:var(--back)}.orbit .card{fill:var(--card);stroke:var(--frame)}
.orbit .frame{fill:var(--lane);stroke:var(--frame);stroke-dasharray:5 4}
.orbit .flow{fill:none;stroke:var(--line);stroke-width:1.5}.orbit .head,.orbit .dot{fill:var(--line)}
.orbit .id{font-weight:700}.orbit .soft{fill:var(--soft)}.orbit .when{fill:var(--branch);font-style:italic}
.orbit .middle{text-anchor:middle}.orbit .title{font-size:15px;font-weight:700}
""" + "".join(
    f".orbit .{kind}{{fill:var(--{kind})}}\n"
    for kind in ("task", "poll", "wait", "set", "branch", "parallel", "foreach", "fail", "return")
)

_STATE_COLOURS = {
    "succeeded": "#2c7a3f",
    "running": "#2f6fde",
    "waiting": "#9a5b00",
    "needs_review": "#a13d8f",
    "failed": "#c22f2f",
    "skipped": "#6b7280",
    "cancelled": "#6b7280",
    "pending": "#9aa3b2",
}
_STATE_STYLE = ".orbit .state text{fill:#ffffff;font-size:11px}" + "".join(
    f".orbit .state.{state} rect{{fill:{colour}}}" for state, colour in _STATE_COLOURS.items()
)


@dataclass(frozen=True, slots=True)
class _Text:
    role: str  # the style class
    words: str


@dataclass(frozen=True, slots=True)
class _Lane:
    lane: Lane
    head: tuple[_Text, ...]
    boxes: tuple[_Box, ...]
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class _Box:
    """A part with its size; `lanes` is empty for a plain step."""

    part: Part
    lines: tuple[_Text, ...]
    lanes: tuple[_Lane, ...]
    width: int
    height: int


def graph_to_svg(graph: Graph, states: Mapping[str, str] | None = None) -> str:
    """Draw a graph, with the states of an instance's steps by id if they are given, as a whole SVG document."""
    boxes = tuple(_box(part) for part in structure_of(graph))
    head = _head(graph)
    width = max([_text_width(head, 1.3), *(box.width for box in boxes)]) + 2 * _MARGIN
    top = _MARGIN + len(head) * _LINE + _PADDING
    height = top + 2 * (_DOT * 2 + _GAP) + _column_height(boxes) + _MARGIN
    canvas = _Canvas(states or {})
    canvas.texts(_MARGIN, _MARGIN, head)
    middle = width // 2
    canvas.dot(middle, top + _DOT)
    below = canvas.column(boxes, middle, top + 2 * _DOT + _GAP, from_y=top + 2 * _DOT)
    if Lane("", None, tuple(box.part for box in boxes)).goes_on:
        canvas.arrow(middle, below, below + _GAP)
        canvas.dot(middle, below + _GAP + _DOT)
    name = escape(f"{graph.workflow} version {graph.version}")
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="orbit" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><title>{name}</title><style>{_STYLE}{_STATE_STYLE if states else ""}</style>'
        f'<rect class="back" width="{width}" height="{height}"/>'
    )
    return opening + "\n" + "\n".join(canvas.elements) + "\n</svg>\n"


def _head(graph: Graph) -> tuple[_Text, ...]:
    proven = graph.bounds
    bounds = (
        f"at most {proven.tasks} tasks, {proven.concurrent_tasks} at once, "
        f"{format_duration(proven.active_seconds)}; a failure: {graph.on_failure}"
    )
    title = [_Text("soft", row) for row in _rows(graph.title or "", 70)]
    return (_Text("title", f"{graph.workflow} version {graph.version}"), *title, _Text("soft", bounds))


def _box(part: Part) -> _Box:
    node = part.opener if isinstance(part, Block) else part
    lines = _lines(node, part.join if isinstance(part, Block) else None)
    if not isinstance(part, Block):
        width = max(_WIDTH_MIN, _text_width(lines) + 2 * _PADDING)
        return _Box(part, lines, (), width, len(lines) * _LINE + 2 * _PADDING)
    lanes = tuple(_lane(lane) for lane in part.lanes)
    rows = _ranked(lanes)
    width = max(*(_row_width(row) for row in rows), _text_width(lines)) + 2 * _PADDING + 8
    inner = sum(max(lane.height for lane in row) for row in rows) + _RANK_GAP * (len(rows) - 1)
    return _Box(part, lines, lanes, width, len(lines) * _LINE + inner + 2 * _PADDING + 2 * _GAP)


def _ranked(lanes: tuple[_Lane, ...]) -> list[list[_Lane]]:
    """Group lanes into rows, each below all that it needs; without needs there is one row."""
    ranks: dict[str, int] = {}
    rows: list[list[_Lane]] = [[]]
    for each in lanes:  # they stand in a topological order
        rank = 1 + max((ranks[need] for need in each.lane.needs), default=-1)
        ranks[each.lane.label] = rank
        if rank == len(rows):
            rows.append([])
        rows[rank].append(each)
    return rows


def _row_width(row: list[_Lane]) -> int:
    return sum(lane.width for lane in row) + _LANE_GAP * (len(row) - 1)


def _lane(lane: Lane) -> _Lane:
    if lane.needs:
        head: tuple[_Text, ...] = tuple(
            _Text("when", row) for row in _rows(f"needs {', '.join(lane.needs)}", _COLUMNS_MAX - 6)
        )
    elif lane.when is None:
        head = (_Text("when", lane.label),)
    else:
        head = tuple(_Text("when", row) for row in _rows(lane.when, _COLUMNS_MAX - 6))
    boxes = tuple(_box(part) for part in lane.parts)
    width = max([_WIDTH_MIN // 2, _text_width(head), *(box.width for box in boxes)])
    return _Lane(lane, head, boxes, width, len(head) * _LINE + _GAP // 2 + _column_height(boxes))


def _lines(node: Node, join: Node | None) -> tuple[_Text, ...]:
    kind = kind_word(node)
    has_policy = join is not None and node.kind is NodeKind.FORK
    lines = [_Text(kind, f"{kind}, join {facts_of(join)[0]}" if join is not None and has_policy else kind)]
    lines.append(_Text("id", node.id))
    lines += [_Text("soft", row) for row in _rows(node.title or "", _COLUMNS_MAX)]
    for fact in facts_of(node):
        lines += [_Text("plain", row) for row in _rows(fact, _COLUMNS_MAX)]
    if node.when is not None:
        lines += [_Text("when", row) for row in _rows(f"when {node.when.source}", _COLUMNS_MAX)]
    return tuple(lines)


def _rows(words: str, columns: int) -> list[str]:
    """Break a text into at most three lines; what is left over is cut."""
    return textwrap.wrap(words, columns, max_lines=_ROWS_MAX, placeholder=" …")


def _text_width(lines: tuple[_Text, ...], factor: float = 1.0) -> int:
    return ceil(max((len(line.words) for line in lines), default=0) * _CHARACTER * factor)


def _column_height(boxes: tuple[_Box, ...]) -> int:
    return sum(box.height for box in boxes) + _GAP * max(len(boxes) - 1, 0)


class _Canvas:
    """Collects the elements of the drawing from the outside in."""

    def __init__(self, states: Mapping[str, str]) -> None:
        self.elements: list[str] = []
        self._states = states

    def texts(self, x: int, y: int, lines: tuple[_Text, ...], *, middle: bool = False) -> None:
        """Write lines below each other; `y` is their upper edge."""
        for index, line in enumerate(lines):
            role = f"{line.role} middle" if middle else line.role
            self.elements.append(
                f'<text class="{role}" x="{x}" y="{y + index * _LINE + 12}">{escape(line.words, quote=False)}</text>'
            )

    def dot(self, x: int, y: int) -> None:
        """Mark where the flow begins or ends."""
        self.elements.append(f'<circle class="dot" cx="{x}" cy="{y}" r="{_DOT}"/>')

    def arrow(self, x: int, from_y: int, to_y: int) -> None:
        """Draw a straight way down with its head."""
        self.elements.append(f'<path class="flow" d="M{x} {from_y}V{to_y - 5}"/>')
        self.elements.append(f'<path class="head" d="M{x - 4} {to_y - 7}h8l-4 7z"/>')

    def column(self, boxes: tuple[_Box, ...], middle: int, y: int, *, from_y: int) -> int:
        """Draw parts below each other, each with the arrow that leads to it; return the lower edge of the last."""
        for box in boxes:
            self.arrow(middle, from_y, y)
            self._draw(box, middle, y)
            from_y = y + box.height
            y = from_y + _GAP
        return from_y

    def _draw(self, box: _Box, middle: int, y: int) -> None:
        x = middle - box.width // 2
        node = box.part.opener if isinstance(box.part, Block) else box.part
        kind = kind_word(node)
        whole = escape("\n".join([f"{node.id}, line {node.line}", *facts_of(node)]), quote=False)
        if node.when is not None:
            whole += escape(f"\nwhen {node.when.source}", quote=False)
        shape = "frame" if isinstance(box.part, Block) else "card"
        self.elements.append(f'<g id="step-{escape(node.id)}"><title>{whole}</title>')
        self.elements.append(
            f'<rect class="{shape}" x="{x}" y="{y}" width="{box.width}" height="{box.height}" rx="6"/>'
            f'<rect class="{kind}" x="{x}" y="{y}" width="4" height="{box.height}" rx="2"/>'
        )
        self.texts(x + _PADDING + 4, y + _PADDING, box.lines)
        if node.id in self._states:
            self._badge(self._states[node.id], x + box.width, y)
        self.elements.append("</g>")
        if isinstance(box.part, Block):
            self._lanes(box, middle, y + _PADDING + len(box.lines) * _LINE, y + box.height)

    def _badge(self, state: str, right: int, y: int) -> None:
        """Write a step's state on the upper edge of its box."""
        width = ceil(len(state) * _CHARACTER) + 12
        self.elements.append(
            f'<g class="state {escape(state.lower())}"><rect x="{right - width - 6}" y="{y - 9}" width="{width}" '
            f'height="18" rx="9"/><text x="{right - width}" y="{y + 4}">{escape(state)}</text></g>'
        )

    def _lanes(self, box: _Box, middle: int, top: int, bottom: int) -> None:
        """Draw the lanes of a block between the line that opens it and the line that closes it."""
        opens_y, closes_y = top + _GAP // 3, bottom - _GAP // 3
        places = _places(box.lanes, middle, opens_y + _GAP // 3)
        needed = {need for lane in box.lanes for need in lane.lane.needs}
        # The ways come first, so that where one passes a step of a row between, the step is drawn over it.
        for lane in box.lanes:
            place = places[lane.lane.label]
            for need in lane.lane.needs:
                self._way(places[need], place)
            if not lane.lane.needs:
                self.elements.append(f'<path class="flow" d="M{place.x} {opens_y}V{place.top}"/>')
        starts = [places[lane.lane.label].x for lane in box.lanes if not lane.lane.needs]
        ends = [places[lane.lane.label] for lane in box.lanes if lane.lane.goes_on and lane.lane.label not in needed]
        self.elements += [f'<path class="flow" d="M{end.x} {end.bottom}V{closes_y}"/>' for end in ends]
        for lane in box.lanes:
            place = places[lane.lane.label]
            self.texts(place.x, place.top, lane.head, middle=True)
            start = place.top + len(lane.head) * _LINE + 2
            self.column(lane.boxes, place.x, start + _GAP // 2, from_y=start)
        left, right = min([*starts, middle]), max([*starts, middle])
        self.elements.append(f'<path class="flow" d="M{left} {opens_y}H{right}"/>')
        if ends:
            left, right = min(middle, *(end.x for end in ends)), max(middle, *(end.x for end in ends))
            self.elements.append(f'<path class="flow" d="M{left} {closes_y}H{right}M{middle} {closes_y}V{bottom}"/>')

    def _way(self, need: _Place, step: _Place) -> None:
        """Draw the way from a step to one that needs it, with its head; it turns in the room below its row."""
        between = (need.row_bottom + step.top) // 2
        curve = f"C{need.x} {between} {step.x} {between} {step.x} {step.top - 5}"
        self.elements.append(f'<path class="flow" d="M{need.x} {need.bottom}V{need.row_bottom}{curve}"/>')
        self.elements.append(f'<path class="head" d="M{step.x - 4} {step.top - 7}h8l-4 7z"/>')


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a lane is drawn: its middle, its upper and its lower edge, and the lower edge of its row."""

    x: int
    top: int
    bottom: int
    row_bottom: int


def _places(lanes: tuple[_Lane, ...], middle: int, top: int) -> dict[str, _Place]:
    found: dict[str, _Place] = {}
    for row in _ranked(lanes):
        x = middle - _row_width(row) // 2
        row_bottom = top + max(lane.height for lane in row)
        for lane in row:
            end = top + len(lane.head) * _LINE + 2
            if lane.boxes:
                end += _GAP // 2 + _column_height(lane.boxes)
            found[lane.lane.label] = _Place(x + lane.width // 2, top, end, row_bottom)
            x += lane.width + _LANE_GAP
        top = row_bottom + _RANK_GAP
    return found
