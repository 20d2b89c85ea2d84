"""Templates: JSON values in whose strings `${ expression }` holes are filled at run time.

A string that is one hole gives the hole's value with its type; in longer text each hole must give a string, a number or
a bool. `$${` stands for the characters `${`. Keys of objects are never templates. What a template gives may share parts
with the scope and with other renderings: treat it as immutable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct, field

from definitions.codes import Code
from definitions.expression import (
    Environment,
    EvaluationError,
    Expression,
    ExpressionInvalid,
    Problem,
    check_expression,
)
from definitions.expression.errors import Fault, FaultCode
from definitions.expression.functions import to_text, type_name
from definitions.expression.types import NUMERIC, STRING, Kind, Type, join, of_value
from definitions.limits import VALUE_BYTES_MAX, VALUE_DEPTH_MAX
from definitions.positions import Positions
from orbit.jsontext import Json

Renderer = Callable[[Mapping[str, Json]], Json]
Places = Mapping[str, Positions]

_OPEN, _ESCAPED = "${", "$${"
TEXT_KINDS = NUMERIC | {Kind.STRING, Kind.BOOL, Kind.DYN}
_HERE = Positions()


class Located(Struct, frozen=True):
    """A problem of one hole or one string, with the positions that its offset counts in."""

    problem: Problem
    positions: Positions


class Template(Struct, eq=False, gc=False):
    """A compiled template: immutable and safe to share. Equal if it is written equally at the same place."""

    source: Json
    step_references: frozenset[str]  # ids of the steps whose output it reads
    places: Places  # JSON pointer of a string with `${` → where it stands in the file
    _render: Renderer | None = None

    def _made(self) -> Renderer:
        """Make the renderer when it is first used: to check, publish or load a definition nothing is rendered."""
        self._render, _ = _Builder(None, self.places).build(self.source, "")
        return self._render

    def render(self, scope: Mapping[str, Json]) -> Json:
        """Fill the holes over `scope` and return the JSON value.

        Raises EvaluationError, also (RESULT_TOO_LARGE) for more than 64 KiB of JSON or more than 32 levels.
        """
        value = (self._render or self._made())(scope)
        misfit = _misfit(value) if self.places else None
        if misfit is not None:
            fault = Fault(FaultCode.RESULT_TOO_LARGE, misfit, 0)
            raise EvaluationError(fault, "${ ... }", next(iter(self.places.values())))
        return value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Template):
            return NotImplemented
        return self.source == other.source and dict(self.places) == dict(other.places)

    def __hash__(self) -> int:
        return hash(tuple(self.places))

    def __repr__(self) -> str:
        return f"Template({self.source!r})"


class CheckedTemplate(Struct, frozen=True):
    """What the compiler learns: the template if there are no problems, its type, and the problems."""

    template: Template | None
    type: Type
    problems: tuple[Located, ...]


def check_template(value: Json, environment: Environment | None, places: Places | None = None) -> CheckedTemplate:
    """Check and compile `value`; `places` maps the JSON pointer of each string with `${` to its positions."""
    builder = _Builder(environment, places or {})
    _, kind = builder.build(value, "")
    template = None
    if not builder.problems:
        references = frozenset[str]().union(*(item.step_references for item in builder.expressions))
        template = Template(value, references, builder.places_used)
    return CheckedTemplate(template, kind, tuple(builder.problems))


def compile_template(value: Json, places: Places | None = None) -> Template:
    """Compile without an environment: every root is allowed. Raises ExpressionInvalid."""
    checked = check_template(value, None, places)
    if checked.template is None:
        raise ExpressionInvalid(str(value), tuple(located.problem for located in checked.problems))
    return checked.template


def stored_template(value: Json, *, places: Places, step_references: frozenset[str]) -> Template:
    """Return a template that was compiled and stored before; it is compiled again when it is first used."""
    return Template(value, step_references, places)


def holes_of(template: Template) -> Iterator[tuple[tuple[str, ...], str, bool]]:
    """Give the text of each hole with the steps that lead to its place, and whether it is the whole value there."""
    for pointer in template.places:
        path = tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])
        value = template.source
        for step in path:
            value = value[int(step)] if isinstance(value, list) else value[step]
        segments = list(_segments(value))
        for _, text, is_hole in segments:
            if is_hole:
                yield path, text.strip(), len(segments) == 1


class _Builder(Struct):
    environment: Environment | None
    places: Places
    problems: list[Located] = field(default_factory=list)
    expressions: list[Expression] = field(default_factory=list)
    places_used: dict[str, Positions] = field(default_factory=dict)

    def build(self, value: Json, pointer: str) -> tuple[Renderer, Type]:
        if isinstance(value, str):
            if _OPEN in value:
                return self._string(value, pointer)
        elif isinstance(value, dict):
            return self._object(value, pointer)
        elif isinstance(value, list):
            return self._list(value, pointer)
        return (lambda _scope: value), of_value(value)

    def _object(self, value: dict[str, Json], pointer: str) -> tuple[Renderer, Type]:
        before = len(self.places_used)
        parts = {key: self.build(item, f"{pointer}/{escape(key)}") for key, item in value.items()}
        fields = {key: kind for key, (_, kind) in parts.items()}
        kind = Type(Kind.MAP, fields=fields, required=frozenset(fields), closed=True)
        if len(self.places_used) == before:
            return (lambda _scope: value), kind
        renderers = tuple((key, render) for key, (render, _) in parts.items())
        return (lambda scope: {key: render(scope) for key, render in renderers}), kind

    def _list(self, value: list[Json], pointer: str) -> tuple[Renderer, Type]:
        before = len(self.places_used)
        parts = [self.build(item, f"{pointer}/{index}") for index, item in enumerate(value)]
        kind = Type(Kind.LIST, items=join([kind for _, kind in parts]))
        if len(self.places_used) == before:
            return (lambda _scope: value), kind
        renderers = tuple(render for render, _ in parts)
        return (lambda scope: [render(scope) for render in renderers]), kind

    def _string(self, text: str, pointer: str) -> tuple[Renderer, Type]:
        positions = self.places_used[pointer] = self.places.get(pointer, _HERE)
        segments = []
        for start, segment, is_hole in _segments(text):
            if is_hole is None:
                message = "`${` is not closed: `}` is missing"
                problem = Problem(Code.TEMPLATE_SYNTAX, start, message, "write `$${` for the characters `${`")
                self.problems.append(Located(problem, positions))
                return (lambda _scope: text), STRING
            segments.append((start, segment, is_hole))
        if len(segments) == 1 and segments[0][2]:
            start, source, _ = segments[0]
            expression, kind = self._hole(source, positions.from_offset(start))
            return (expression.evaluate if expression else (lambda _scope: None)), kind
        parts: list[str | Expression] = []
        for start, segment, is_hole in segments:
            if not is_hole:
                parts.append(segment)
                continue
            place = positions.from_offset(start)
            expression, kind = self._hole(segment, place)
            if expression:
                parts.append(expression)
            if kind.kind not in TEXT_KINDS:
                message = f"{kind} can't stand inside a longer text"
                problem = Problem(Code.TEMPLATE_TYPE, 0, message, "make it the whole value, or take a field of it")
                self.problems.append(Located(problem, place))
        return _text_renderer(tuple(parts)), STRING

    def _hole(self, source: str, positions: Positions) -> tuple[Expression | None, Type]:
        place = positions.from_offset(len(source) - len(source.lstrip()))
        checked = check_expression(source.strip(), self.environment, place)
        self.problems.extend(Located(problem, place) for problem in checked.problems)
        if checked.expression:
            self.expressions.append(checked.expression)
        return checked.expression, checked.type


def _text_renderer(parts: tuple[str | Expression, ...]) -> Renderer:
    def render(scope: Mapping[str, Json]) -> str:
        pieces = []
        room = VALUE_BYTES_MAX
        for part in parts:
            if isinstance(part, str):
                pieces.append(part)
                continue
            value = part.evaluate(scope)
            piece = to_text(value)
            if piece is None:
                message = f"{type_name(value)} can't stand inside a longer text"
                raise EvaluationError(Fault(FaultCode.NOT_TEXT, message, 0), part.source, part.positions)
            room -= len(piece)
            if room < 0:
                fault = Fault(FaultCode.RESULT_TOO_LARGE, f"the text is longer than {VALUE_BYTES_MAX} characters", 0)
                raise EvaluationError(fault, part.source, part.positions)
            pieces.append(piece)
        return "".join(pieces)

    return render


def _segments(text: str) -> Iterator[tuple[int, str, bool | None]]:
    """Yield `(offset, text, is a hole)`; the third is None at the offset of a hole that is never closed."""
    at = 0
    literal = ""
    literal_start = 0
    while True:
        found = text.find("$", at)
        if found < 0:
            literal += text[at:]
            break
        literal += text[at:found]
        if text.startswith(_ESCAPED, found):
            literal += _OPEN
            at = found + len(_ESCAPED)
            continue
        if not text.startswith(_OPEN, found):
            literal += "$"
            at = found + 1
            continue
        end = _closing_brace(text, found + len(_OPEN))
        if end is None:
            yield found, text[found:], None
            return
        if literal:
            yield literal_start, literal, False
        literal = ""
        yield found + len(_OPEN), text[found + len(_OPEN) : end], True
        at = literal_start = end + 1
    if literal or at == 0:
        yield literal_start, literal, False


_BRACE_OR_TEXT = re.compile(r"""[{}]|[rR]"[^"]*"|[rR]'[^']*'|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""", re.DOTALL)


def _closing_brace(text: str, start: int) -> int | None:
    """Return where the hole that begins at `start` ends, past texts in quotes and inner braces."""
    depth = 0
    for match in _BRACE_OR_TEXT.finditer(text, start):
        found = match.group()
        if found == "{":
            depth += 1
        elif found == "}":
            if depth == 0:
                return match.start()
            depth -= 1
    return None


def escape(key: str) -> str:
    """Write a key as one reference token of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _misfit(value: Json) -> str | None:
    """Say why `value` can't be stored: its JSON is certainly too long, or nested too deep.

    A value may hold the same large part many times, so its JSON can be far larger than the memory it takes: the walk
    goes level by level and stops where the room is used up.
    """
    room = VALUE_BYTES_MAX
    level = [value]
    for depth in range(VALUE_DEPTH_MAX + 1):
        inner: list[Json] = []
        for item in level:
            if isinstance(item, str):
                room -= len(item) + 2
            elif isinstance(item, (dict, list)):
                if depth == VALUE_DEPTH_MAX:
                    return f"the value is nested deeper than {VALUE_DEPTH_MAX} levels"
                room -= len(item) + 2
                if isinstance(item, dict):
                    room -= sum(map(len, item)) + 3 * len(item)
                    inner.extend(item.values())
                else:
                    inner.extend(item)
            else:
                room -= 1
            if room < 0:
                return f"the value is larger than {VALUE_BYTES_MAX} bytes"
        level = inner
    return None
