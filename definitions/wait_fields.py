"""Reads `wait`: for a span, until an instant, or for a signal, each with the keys that belong to it."""

from __future__ import annotations

from definitions import keys, limits, names
from definitions.codes import Code
from definitions.fields import Fields
from definitions.model import SignalModel, UntilModel, WaitModel
from definitions.task_fields import read_schema

_WAYS = ("for", "until", "signal")
# Keys that only some ways to wait have.
_OWN_KEYS = {
    "for": (),
    "until": ("timeout", "on_timeout"),
    "signal": ("timeout", "on_timeout", "payload", "accept_when"),
}


def read_wait(fields: Fields) -> WaitModel | UntilModel | SignalModel | None:
    """Read the wait of a step; None if it is no object."""
    mapping = fields.mapping_of("wait")
    if mapping is None:
        return None
    inner = Fields(mapping, keys.WAIT, fields.findings)
    ways = [name for name in _WAYS if inner.has(name)]
    if len(ways) > 1:
        message = f"a wait has one of `for`, `until` and `signal`, not {' and '.join(f'`{name}`' for name in ways)}"
        inner.findings.at(Code.CONTRADICTION, inner.key_place(ways[1]), message, "make two steps of it")
    way = ways[-1] if ways else "for"
    for name in ("timeout", "on_timeout", "payload", "accept_when"):
        if ways and inner.has(name) and name not in _OWN_KEYS[way]:
            message = f"`{name}` has no meaning in a wait with `{way}`{_hint(way)}"
            inner.findings.at(Code.CONTRADICTION, inner.key_place(name), message, "leave it out")
    match way:
        case "signal":
            return _signal(inner)
        case "until":
            bound = _bound(inner)
            return UntilModel(inner.scalar_of("until"), bound, _goes_on(inner))
        case _:
            return WaitModel(inner.duration("for", limits.SPAN_SECONDS_MIN, limits.SPAN_SECONDS_MAX, required=True))


def _hint(way: str) -> str:
    return ", which is its own bound" if way == "for" else ""


def _bound(inner: Fields) -> float | None:
    return inner.duration("timeout", limits.SPAN_SECONDS_MIN, limits.SPAN_SECONDS_MAX, required=True)


def _goes_on(inner: Fields) -> bool:
    return inner.choice("on_timeout", ("fail", "continue")) == "continue"


def _signal(inner: Fields) -> SignalModel:
    return SignalModel(
        name=inner.text("signal", form=names.IDENTIFIER),
        timeout=_bound(inner),
        continue_on_timeout=_goes_on(inner),
        payload_schema=read_schema(inner, "payload"),
        accept_when=inner.scalar_of("accept_when"),
    )
