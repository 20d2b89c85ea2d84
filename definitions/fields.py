"""Reads the entries of one YAML mapping by name, and finds what is unknown, missing, of the wrong type or range.

Every reader returns None where it has added a finding (or where the key is absent), so that reading goes on and all
mistakes of a file come out at once.
"""

from __future__ import annotations

from collections.abc import Mapping as Lookup

from msgspec import Struct, field

from definitions import advice
from definitions.codes import Code
from definitions.duration import format_duration, parse_duration
from definitions.findings import Findings
from definitions.names import Form
from definitions.yaml_tree import Broken, Mapping, Scalar, Sequence, YamlNode


class Keys(Struct, frozen=True):
    """The keys that a mapping may have, and those that are said elsewhere."""

    what: str  # "a task step"
    allowed: frozenset[str]
    elsewhere: Lookup[str, str] = field(default_factory=dict)  # key → how to say it where it belongs


_NAMES = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text", "NoneType": "nothing"}


def kind_of(node: YamlNode) -> str:
    """Name what a node is, for messages."""
    match node:
        case Scalar(value=value):
            return _NAMES[type(value).__name__]
        case Sequence():
            return "a list"
        case _:
            return "an object"


class Fields:
    """The entries of one mapping."""

    def __init__(self, mapping: Mapping, keys: Keys, findings: Findings) -> None:
        self.mapping = mapping
        self.keys = keys
        self.findings = findings
        self._refuse_unknown()

    def _refuse_unknown(self) -> None:
        for name, (key, _) in self.mapping.entries.items():
            if name in self.keys.allowed:
                continue
            hint = self.keys.elsewhere.get(name) or advice.meant_key(name, self.keys.allowed)
            self.findings.at(Code.UNKNOWN_KEY, key.place, f"{self.keys.what} has no key `{name[:80]}`", hint)

    def has(self, name: str) -> bool:
        """Tell whether the key is there, broken or not."""
        return name in self.mapping.entries

    def node(self, name: str, *, required: bool = False) -> YamlNode | None:
        """Return the value of a key, or None if it is absent or already refused."""
        entry = self.mapping.entries.get(name)
        if entry is None:
            if required:
                message = f"{self.keys.what} needs `{name}`"
                self.findings.at(Code.MISSING_KEY, self.mapping.place, message, advice.example_of(name))
            return None
        return None if isinstance(entry[1], Broken) else entry[1]

    def key_place(self, name: str) -> tuple[int, int]:
        """Return where the key itself stands."""
        return self.mapping.entries[name][0].place

    def _wrong(self, name: str, node: YamlNode, wanted: str, hint: str | None = None) -> None:
        message = f"`{name}` must be {wanted}, not {kind_of(node)}"
        if hint is None and isinstance(node, Scalar):
            hint = advice.written_out(name, node.text) if wanted == "an object" else None
        self.findings.at(Code.WRONG_TYPE, node.place, message, hint)

    def mapping_of(self, name: str, *, required: bool = False) -> Mapping | None:
        """Return an object."""
        node = self.node(name, required=required)
        if node is None or isinstance(node, Mapping):
            return node
        self._wrong(name, node, "an object")
        return None

    def sequence_of(self, name: str, *, required: bool = False) -> Sequence | None:
        """Return a list."""
        node = self.node(name, required=required)
        if node is None or isinstance(node, Sequence):
            return node
        self._wrong(name, node, "a list", "begin each item with `- `")
        return None

    def scalar_of(self, name: str, *, required: bool = False) -> Scalar | None:
        """Return a scalar of any type but null, as an expression may be written."""
        node = self.node(name, required=required)
        if node is None:
            return None
        if isinstance(node, Scalar) and node.value is not None:
            return node
        self._wrong(name, node, "a text")
        return None

    def text(
        self, name: str, *, required: bool = False, form: Form | None = None, characters_max: int | None = None
    ) -> str | None:
        """Return a text, of a form if one is given."""
        node = self.node(name, required=required)
        if node is None:
            return None
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            hint = f'write "{node.text[:40]}" in quotes' if isinstance(node, Scalar) and node.text else None
            self._wrong(name, node, "a text", hint)
            return None
        if characters_max is not None and len(node.value) > characters_max:
            message = f"`{name}` may have {characters_max} characters, not {len(node.value)}"
            self.findings.at(Code.OUT_OF_RANGE, node.place, message)
            return None
        if form is not None and not form.pattern.fullmatch(node.value):
            message = f"`{name}` must be {form.words}, not {node.value[:80]!r}"
            self.findings.at(form.code, node.place, message, advice.well_formed(node.value[:80], form.pattern))
            return None
        return node.value

    def choice(self, name: str, options: tuple[str, ...]) -> str | None:
        """Return one of a few words."""
        value = self.text(name)
        if value is None or value in options:
            return value
        place = self.mapping.entries[name][1].place
        message = f"`{name}` must be {' or '.join(options)}, not {value[:80]!r}"
        self.findings.at(Code.BAD_VALUE, place, message, advice.meant_value(value, options))
        return None

    def integer(self, name: str, low: int, high: int, *, required: bool = False) -> int | None:
        """Return a whole number from `low` to `high`."""
        node = self.node(name, required=required)
        if node is None:
            return None
        if not isinstance(node, Scalar) or type(node.value) is not int:
            self._wrong(name, node, "a whole number", f"it is from {low} to {high}")
            return None
        if not low <= node.value <= high:
            message = f"`{name}` must be from {low} to {high}, not {node.value}"
            self.findings.at(Code.OUT_OF_RANGE, node.place, message, _nearest(name, low, high, is_low=node.value < low))
            return None
        return node.value

    def number(self, name: str, low: float, high: float) -> float | None:
        """Return a number from `low` to `high`."""
        node = self.node(name)
        if node is None:
            return None
        if not isinstance(node, Scalar) or type(node.value) not in (int, float):
            self._wrong(name, node, "a number")
            return None
        value = float(node.text)
        if not low <= value <= high:
            message = f"`{name}` must be from {low:g} to {high:g}, not {value:g}"
            self.findings.at(Code.OUT_OF_RANGE, node.place, message, _nearest(name, low, high, is_low=value < low))
            return None
        return value

    def duration(self, name: str, low: float, high: float, *, required: bool = False) -> float | None:
        """Return a span in seconds, from `low` to `high` seconds."""
        node = self.node(name, required=required)
        if node is None:
            return None
        if not isinstance(node, Scalar) or node.value is None or isinstance(node.value, bool):
            self._wrong(name, node, "a duration such as `30s`")
            return None
        seconds = parse_duration(node.text)
        if seconds is None:
            hint = f"write `{node.text}s`" if type(node.value) is int else "whole numbers with d, h, m, s, ms: `1h30m`"
            message = f"`{name}` must be a duration such as `30s`, not {node.text[:80]!r}"
            self.findings.at(Code.BAD_DURATION, node.place, message, hint)
            return None
        if not low <= seconds <= high:
            least, most = format_duration(low), format_duration(high)
            message = f"`{name}` must be from {least} to {most}, not {node.text[:40]}"
            self.findings.at(Code.OUT_OF_RANGE, node.place, message, _nearest(name, least, most, is_low=seconds < low))
            return None
        return seconds


def _nearest(name: str, least: float | str, most: float | str, *, is_low: bool) -> str:
    return f"the least is `{name}: {least}`" if is_low else f"the most is `{name}: {most}`"
