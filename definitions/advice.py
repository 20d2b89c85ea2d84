"""What an author may have meant by what can't be read: words of other languages, shorthand, what is missing.

Only hints come from here; whether something is wrong is decided where it is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from definitions.hints import did_you_mean

# Words for keys that people bring along, and the keys of this language that they may stand for, the likeliest first.
_HABITS: dict[str, tuple[str, ...]] = {
    "after": ("needs",),
    "args": ("input",),
    "call": ("task",),
    "catch": ("on_error",),
    "condition": ("when",),
    "delay": ("for", "backoff", "every"),
    "depends_on": ("needs",),
    "do": ("steps",),
    "duration": ("for",),
    "if": ("when",),
    "in": ("items",),
    "interval": ("every",),
    "limit": ("max_items", "max_rounds", "max"),
    "map": ("foreach",),
    "max": ("max_items", "max_rounds", "max_attempts"),
    "max_concurrency": ("concurrency",),
    "name": ("id", "workflow", "title", "signal"),
    "params": ("input",),
    "result": ("output",),
    "run": ("task",),
    "sleep": ("wait",),
    "switch": ("branch",),
    "then": ("steps",),
    "type": ("task",),
    "until": ("done_when",),
    "uses": ("task",),
    "with": ("input",),
}
# Values that say the same here.
_HABITS_OF_VALUES = {
    "abort": "fail",
    "first": "any",
    "ignore": "continue",
    "race": "any",
    "rollback": "compensate",
    "skip": "continue",
    "stop": "fail",
    "wait": "hold",
}
# What a key that holds an object is often written as, and the key inside it that is meant.
_SHORTHAND = {
    "compensate": "task",
    "foreach": "items",
    "join": "at_least",
    "poll": "task",
    "retry": "max_attempts",
    "wait": "for",
}
# How a key that must be there looks where it is.
_EXAMPLES = {
    "code": "ORDER_REFUSED",
    "done_when": "output.status == 'DONE'",
    "every": "30s",
    "expect": "{state: SUCCEEDED}",
    "for": "10m",
    "id": "submit",
    "items": "input.list",
    "match": '"*"',
    "max": "3",
    "max_items": "100",
    "max_rounds": "100",
    "message": "the order was refused",
    "name": "it pays",
    "orbit": "weave/1",
    "signal": "approved",
    "steps": "[{id: first, task: bank.pay@1}]",
    "task": "bank.pay@1",
    "timeout": "1h",
    "version": "1",
    "workflow": "payout",
}
_DATE = re.compile(r"\d{4}-\d\d?(-|\b)")


def meant_key(name: str, allowed: Collection[str]) -> str:
    """Hint at the key that an unknown one stands for; where none comes to mind, at all that there are."""
    meant = next((key for key in _HABITS.get(name, ()) if key in allowed), None)
    if meant is not None:
        return f"did you mean `{meant}`?"
    return did_you_mean(name, allowed) or f"there is {', '.join(sorted(allowed))}"


def is_habit(name: str, allowed: Collection[str]) -> bool:
    """Tell whether a word is known to stand for one of some keys."""
    return any(key in allowed for key in _HABITS.get(name, ()))


def meant_value(value: str, options: Collection[str]) -> str | None:
    """Hint at the word that another one stands for."""
    meant = _HABITS_OF_VALUES.get(value.lower())
    return f"did you mean `{meant}`?" if meant in options else did_you_mean(value, options)


def written_out(name: str, text: str) -> str | None:
    """Hint how what was written for an object is written as one."""
    inner = _SHORTHAND.get(name)
    return None if inner is None or not text.strip() else f"write `{name}: {{{inner}: {text.strip()[:60]}}}`"


def example_of(name: str) -> str:
    """Hint at what a missing key looks like."""
    example = _EXAMPLES.get(name)
    return f"add `{name}`" if example is None else f"add `{name}: {example}`"


def well_formed(value: str, pattern: re.Pattern[str]) -> str | None:
    """Hint at a name like the given one that has the form it needs."""
    text = value.strip()
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")
    tries = (text, f"{text}@1", plain, plain.upper(), f"s_{plain}", re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-."))
    found = next((other for other in tries if other != value and pattern.fullmatch(other)), None)
    return None if found is None else f"write `{found}`"


def quoted_instant(text: str) -> str | None:
    """Hint how an instant that is written down stands in an expression."""
    return f"""write "'{text[:40]}'": a text in an expression has quotes of its own""" if _DATE.match(text) else None


def other_type(text: object, *, is_number_wanted: bool) -> str:
    """Hint how two values of different types can be compared; `text` is the one that was written down, if one was."""
    if isinstance(text, str) and is_number_wanted and re.fullmatch(r"-?\d+(\.\d+)?", text):
        return f"leave the quotes out: `{text}`"
    if isinstance(text, (int, float)) and not isinstance(text, bool) and not is_number_wanted:
        return f"put quotes around it: `'{text}'`"
    return "convert one with int(...), double(...) or string(...)"
