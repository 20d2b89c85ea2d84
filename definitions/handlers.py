"""Reads a step's `on_error`: the list of its error handlers, and which of them can never be reached.

The steps of a handler are read by the reader that is passed in, since they may have handlers of their own.
"""

from __future__ import annotations

from collections.abc import Callable

from definitions import keys, limits, names
from definitions.codes import Code
from definitions.fields import Fields, kind_of
from definitions.graph import Handling
from definitions.model import HandlerModel, StepModel
from definitions.yaml_tree import Broken, Mapping, YamlNode

StepsReader = Callable[[YamlNode | None, str], tuple[StepModel, ...]]

# What belongs to one way of handling only.
_OWN_KEYS = {"max": Handling.RETRY, "backoff": Handling.RETRY, "value": Handling.CONTINUE}
_RETRIED_KINDS = frozenset({"task", "poll", "branch", "parallel", "foreach"})


def read_handlers(fields: Fields, kind: str, read_steps: StepsReader) -> tuple[HandlerModel, ...]:
    """Read the handlers of a step of this kind; one with a mistake stays, so that its steps are known."""
    node = fields.sequence_of("on_error")
    if node is None:
        return ()
    if not node.items:
        fields.findings.at(Code.EMPTY_STEPS, node.place, "`on_error` must have a handler at least", "leave it out")
    if len(node.items) > limits.HANDLERS_MAX:
        message = f"a step may have {limits.HANDLERS_MAX} error handlers, not {len(node.items)}"
        fields.findings.at(Code.OUT_OF_RANGE, node.place, message, 'match a class, or `"*"`, not each code')
    read = []
    for item in node.items:
        if isinstance(item, Mapping):
            read.append(_read_handler(Fields(item, keys.HANDLER, fields.findings), kind, read_steps))
        elif not isinstance(item, Broken):
            message = f"a handler must be an object with `match` and `then`, not {kind_of(item)}"
            fields.findings.at(Code.WRONG_TYPE, item.place, message, "begin each handler with `- match: `")
    _find_unreachable(read, fields)
    return tuple(read)


def _read_handler(fields: Fields, kind: str, read_steps: StepsReader) -> HandlerModel:
    findings = fields.findings
    match = fields.text("match", required=True, form=names.ERROR_MATCH)
    if match == "NEEDS_HUMAN":
        message = "what needs a person waits for one and never reaches a handler"
        findings.at(Code.CONTRADICTION, fields.mapping.entries["match"][1].place, message, "leave the handler out")
    steps = read_steps(fields.node("steps"), "`steps`") if fields.has("steps") else ()
    then = _read_then(fields)
    if then is Handling.RETRY and kind not in _RETRIED_KINDS:
        message = f"a {kind} step is not retried: what it did would be done again, or nothing would change"
        hint = "write `then: continue` or `fail`, or `steps`"
        findings.at(Code.CONTRADICTION, fields.mapping.entries["then"][1].place, message, hint)
    for name, owner in _OWN_KEYS.items():
        if fields.has(name) and then is not None and then is not owner:
            message = f"`{name}` belongs to `then: {owner}`"
            findings.at(Code.CONTRADICTION, fields.key_place(name), message, "leave it out")
    retries = fields.integer(
        "max", limits.HANDLER_RETRIES_MIN, limits.HANDLER_RETRIES_MAX, required=then is Handling.RETRY
    )
    return HandlerModel(
        match=match,
        then=then,
        place=fields.mapping.place,
        retries_max=retries or 0,
        backoff=fields.duration("backoff", limits.BACKOFF_SECONDS_MIN, limits.BACKOFF_SECONDS_MAX) or 0.0,
        value=fields.node("value"),
        steps=steps,
    )


def _read_then(fields: Fields) -> Handling | None:
    if fields.has("steps"):
        if fields.has("then"):
            message = "a handler has `then` or `steps`, not both"
            fields.findings.at(Code.CONTRADICTION, fields.key_place("then"), message, "leave `then` out")
        return Handling.STEPS
    if not fields.has("then"):
        message = "an error handler needs `then: retry`, `continue` or `fail`, or `steps`"
        hint = "write `then: fail`, or `steps` with what is done in its place"
        fields.findings.at(Code.MISSING_KEY, fields.mapping.place, message, hint)
        return None
    word = fields.choice("then", (Handling.RETRY.value, Handling.CONTINUE.value, Handling.FAIL.value))
    return None if word is None else Handling(word)


def _find_unreachable(handlers: list[HandlerModel], fields: Fields) -> None:
    """Find the handlers behind one that takes the same errors for good; a used-up retry lets the next have them."""
    taken: set[str] = set()
    for handler in handlers:
        if handler.match is None or handler.then is None:
            continue
        for earlier in (handler.match, names.EVERY_ERROR):
            if earlier in taken:
                message = f"an earlier handler takes `{earlier}` already, so this one is never reached"
                hint = "put it before the other, or leave it out"
                fields.findings.at(Code.UNREACHABLE_HANDLER, handler.place, message, hint)
                break
        if handler.then is not Handling.RETRY:
            taken.add(handler.match)
