"""The JSON Schema of the language, for editors: completion, documentation and the first mistakes while writing.

Made from the key tables and limits of the reader, so the two can't have different keys. It knows the form only: what
needs the whole definition (references, types, bounds) is the compiler's. Whatever the compiler accepts, it accepts.
"""

from __future__ import annotations

from typing import Any

from definitions import keys, limits, names
from definitions.document import LANGUAGE
from definitions.expression.parser import KEYWORDS
from definitions.fields import Keys
from definitions.graph import Handling, KeyPolicy
from orbit.schemas.soundness import DIALECT

Schema = dict[str, Any]

_SPAN = r"^(?=[0-9])([0-9]{1,9}d)?([0-9]{1,9}h)?([0-9]{1,9}m)?([0-9]{1,9}s)?([0-9]{1,9}ms)?$"


def language_schema() -> Schema:
    """Return the schema (Draft 2020-12) of a definition."""
    return {
        "$schema": DIALECT,
        "title": f"Orbit workflow definition ({LANGUAGE})",
        **_object(keys.TOP, _top_values(), required=("orbit", "workflow", "version", "steps")),
        "$defs": {
            "span": {
                "type": "string",
                "pattern": _SPAN,
                "description": "A span of time such as `500ms`, `30s`, `10m` or `1h30m`.",
            },
            "expression": {
                "type": ["string", "boolean", "number"],
                "description": "An expression of the language, without `${` and `}`.",
            },
            "value": {"description": "A JSON value; `${ expression }` in its texts is filled in when the step runs."},
            "schema": {"type": ["object", "boolean"], "description": "A JSON Schema (Draft 2020-12)."},
            "retry": _object(keys.RETRY, _retry_values()),
            "handler": _handler(),
            "compensation": _object(keys.COMPENSATION, _compensation_values(), required=("task",)),
            "steps": {"type": "array", "items": _reference("step")},
            "some_steps": {"type": "array", "items": _reference("step"), "minItems": 1},
            "step": {"oneOf": [_reference(f"{kind}_step") for kind in keys.KINDS]},
            **{f"{kind}_step": _step(kind) for kind in keys.KINDS},
        },
    }


def _object(known: Keys, values: dict[str, Schema], *, required: tuple[str, ...] = ()) -> Schema:
    assert known.allowed == values.keys(), f"{known.what}: {sorted(known.allowed ^ values.keys())}"
    made: Schema = {"type": "object", "properties": values, "additionalProperties": False}
    return {**made, "required": list(required)} if required else made


def _reference(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _described(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description}


def _form(form: names.Form) -> Schema:
    return {"type": "string", "pattern": f"^(?:{form.pattern.pattern})$", "description": f"It is {form.words}."}


def _integer(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def _title() -> Schema:
    return {"type": "string", "maxLength": limits.TITLE_CHARACTERS_MAX, "description": "For people."}


def _top_values() -> dict[str, Schema]:
    return {
        "orbit": _described({"const": LANGUAGE}, "The version of the language."),
        "workflow": _form(names.WORKFLOW),
        "version": _described(_integer(1, limits.VERSION_MAX), "Yours; what is published under it never changes."),
        "title": _title(),
        "input": _described(_reference("schema"), "The JSON Schema of an instance's input."),
        "timeout": _described(_reference("span"), "The instance's bound of active time; the steps' sum if not given."),
        "on_failure": {
            "enum": ["hold", "fail", "compensate"],
            "description": "A failed step holds the instance for a person, fails it, or undoes what was done first.",
        },
        "defaults": _object(keys.DEFAULTS, _option_values()),
        "steps": _described(_reference("some_steps"), "They run in order."),
        "output": _described(_reference("value"), "The output of an instance that completes."),
        "business_key_policy": {
            "enum": [policy.value for policy in KeyPolicy],
            "description": "What a start does about other instances with the same business key.",
        },
        "redact": {
            "type": "array",
            "items": {"type": "string", "pattern": "^/(input|output|signals|steps)(/|$)"},
            "maxItems": limits.REDACT_PATHS_MAX,
            "description": "JSON pointers to what is never shown, such as `/input/card` or `/steps/pay/output/token`; "
            "`*` is any member. What is made of it is not shown either.",
        },
        "max_running": _described(
            _integer(1, limits.RUNNING_MAX), "So many instances of the workflow may run at once."
        ),
    }


def _option_values() -> dict[str, Schema]:
    return {
        "queue": _form(names.QUEUE),
        "start_within": _described(_reference("span"), "How long the task may wait for its first attempt."),
        "attempt_timeout": _described(_reference("span"), "The bound of one attempt."),
        "timeout": _described(_reference("span"), "The bound of the step, counted from its submission."),
        "priority": _described(_integer(limits.PRIORITY_MIN, limits.PRIORITY_MAX), "Higher goes first."),
        "retry": _reference("retry"),
        "concurrency_keys": {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "maxItems": limits.CONCURRENCY_KEYS_MAX,
            "description": "Keys that few tasks may hold at once; the task holds all of them while it runs, or waits.",
        },
    }


def _retry_values() -> dict[str, Schema]:
    return {
        "max_attempts": _integer(limits.ATTEMPTS_MIN, limits.ATTEMPTS_MAX),
        "backoff": _described(_reference("span"), "The gap before the second attempt; it doubles."),
        "max_backoff": _described(_reference("span"), "The longest gap."),
    }


def _compensation_values() -> dict[str, Schema]:
    return {name: value for name, value in _task_values().items() if name != "output"}


def _on_error() -> dict[str, Schema]:
    handlers = {"type": "array", "items": _reference("handler"), "minItems": 1, "maxItems": limits.HANDLERS_MAX}
    return {"on_error": _described(handlers, "What happens if the step fails: the first handler that matches.")}


def _handler() -> Schema:
    values = {
        "match": _described(_form(names.ERROR_MATCH), 'An error code, a failure class, or "*" for every error.'),
        "then": {
            "enum": [each.value for each in Handling if each is not Handling.STEPS],
            "description": "Try again, go on as if the step had succeeded, or fail the instance.",
        },
        "max": _described(
            _integer(limits.HANDLER_RETRIES_MIN, limits.HANDLER_RETRIES_MAX), "How often it is tried again."
        ),
        "backoff": _described(_reference("span"), "The gap before the first retry; it doubles."),
        "value": _described(_reference("value"), "The step's output, where the flow goes on."),
        "steps": _described(_reference("some_steps"), "They run, then the flow goes on past the step."),
    }
    others = {"max", "backoff", "value", "steps"}

    def only(then: str, *own: str) -> Schema:
        return {"properties": {"then": {"const": then}, **dict.fromkeys(sorted(others - set(own)), False)}}

    ways: list[Schema] = [
        {**only("retry", "max", "backoff"), "required": ["then", "max"]},
        {**only("continue", "value"), "required": ["then"]},
        {**only("fail"), "required": ["then"]},
        {"properties": dict.fromkeys(["then", *sorted(others - {"steps"})], False), "required": ["steps"]},
    ]
    return {**_object(keys.HANDLER, values, required=("match",)), "oneOf": ways}


def _task_values() -> dict[str, Schema]:
    return {
        **_option_values(),
        "task": _form(names.TASK_TYPE),
        "input": _reference("value"),
        "output": _described(_reference("schema"), "The JSON Schema that the task's output must have."),
    }


def _step(kind: str) -> Schema:
    identifier = {**_form(names.IDENTIFIER), "not": {"enum": sorted(KEYWORDS)}}
    values = {
        "id": identifier,
        "title": _title(),
        "when": _described(_reference("expression"), "The step is skipped unless this holds."),
        "needs": {
            "type": "array",
            "items": {"type": "string"},
            "uniqueItems": True,
            "description": "In `parallel: {steps: ...}` only: the steps beside it that end before it begins.",
        },
        "pause_at": _described({"const": "step"}, "The instance is paused before the step runs."),
        **_own_values(kind),
        **(_on_error() if kind in keys.HANDLED_KINDS else {}),
        **({"compensate": _reference("compensation")} if kind in keys.COMPENSATED_KINDS else {}),
    }
    return _object(keys.STEP_KEYS[kind], values, required=("id", kind))


def _own_values(kind: str) -> dict[str, Schema]:
    match kind:
        case "task":
            return _task_values()
        case "workflow":
            return {
                "workflow": _described(_form(names.CHILD), "A published workflow; without a version its default one."),
                "input": _described(_reference("value"), "The child's input; an empty object if not given."),
                "timeout": _described(_reference("span"), "The bound of the step; the child's own one if not given."),
            }
        case _:
            return {kind: _kind(kind)}


def _kind(kind: str) -> Schema:
    match kind:
        case "branch":
            return _branch()
        case "parallel":
            whole = _object(keys.PARALLEL, _parallel_values())
            return {**whole, "oneOf": [{"required": [name]} for name in ("branches", "steps")]}
        case "foreach":
            return _object(keys.FOREACH, _foreach_values(), required=("items", "max_items", "steps"))
        case "wait":
            return _wait()
        case "poll":
            return _object(keys.POLL, _poll_values(), required=("task", "done_when", "every", "max_rounds", "timeout"))
        case "set":
            return {"type": "object", "description": "Values that become the step's output."}
        case "fail":
            scalar = {"type": ["string", "boolean", "number"]}
            values = {"code": _form(names.ERROR_CODE), "message": scalar}
            return _object(keys.FAIL, values, required=("code", "message"))
        case _:
            return _described(_reference("value"), "The output with which the instance ends here.")


def _wait() -> Schema:
    values = {
        "for": _reference("span"),
        "until": _described(_reference("expression"), "The instant, as RFC 3339 text."),
        "signal": _described(_form(names.IDENTIFIER), "The signal's name; its payload is the step's output."),
        "timeout": _described(_reference("span"), "The bound of a wait with `until` or `signal`."),
        "on_timeout": {"enum": ["fail", "continue"]},
        "payload": _described(_reference("schema"), "The JSON Schema of a signal that ends the wait."),
        "accept_when": _described(
            _reference("expression"), "A signal for which this does not hold is left for others."
        ),
    }
    whole = _object(keys.WAIT, values)
    ways = {"for": ("for",), "until": ("until", "timeout", "on_timeout"), "signal": values.keys() - {"for", "until"}}
    return {
        **whole,
        "oneOf": [
            {
                "properties": dict.fromkeys(sorted(values.keys() - set(allowed)), False),
                "required": [way] if way == "for" else [way, "timeout"],
            }
            for way, allowed in ways.items()
        ],
    }


def _branch() -> Schema:
    values = {"when": _reference("expression"), "steps": _reference("steps"), "else": _reference("steps")}
    assert keys.CASE.allowed == values.keys(), "a case has other keys"
    when = {name: values[name] for name in ("when", "steps")}
    case = {"type": "object", "properties": when, "required": list(when), "additionalProperties": False}
    other = {
        "type": "object",
        "properties": {"else": values["else"]},
        "required": ["else"],
        "additionalProperties": False,
    }
    return {
        "type": "array",
        "maxItems": limits.CASES_MAX,
        "items": {"oneOf": [case, other]},
        "contains": {"required": ["else"]},
        "maxContains": 1,
        "description": "The first case that holds is taken; `else` is the last and must be there.",
    }


def _parallel_values() -> dict[str, Schema]:
    return {
        "join": {
            "oneOf": [
                {"enum": ["all", "any", "settled"]},
                _object(keys.JOIN, {"at_least": _integer(1, limits.BRANCHES_MAX)}, required=("at_least",)),
            ],
            "description": "When the flow goes on: `all` (no branch failed), `any` or `{at_least: n}` (so many are "
            "done, the others are asked to stop), `settled` (all have ended, however).",
        },
        "branches": {
            "type": "object",
            "propertyNames": _form(names.IDENTIFIER),
            "additionalProperties": _reference("some_steps"),
            "minProperties": 1,
            "maxProperties": limits.BRANCHES_MAX,
        },
        "steps": {
            "type": "array",
            "items": _reference("step"),
            "minItems": 1,
            "maxItems": limits.BRANCHES_MAX,
            "description": "Steps that begin when those that they name in `needs` have ended.",
        },
    }


def _foreach_values() -> dict[str, Schema]:
    at_once = _integer(limits.ITEM_CONCURRENCY_MIN, limits.ITEM_CONCURRENCY_MAX)
    return {
        "items": _described(_reference("expression"), "The list; `item` and `index` are known in the steps."),
        "max_items": _described(_integer(limits.ITEMS_MIN, limits.ITEMS_MAX), "More items fail the step."),
        "concurrency": _described(at_once, f"Items under way at once; {limits.ITEM_CONCURRENCY_DEFAULT} if not given."),
        "steps": _described(_reference("some_steps"), "They run in order for each item."),
        "output": _described(_reference("value"), "The result of an item; its last step's output if not given."),
    }


def _poll_values() -> dict[str, Schema]:
    return {
        **_task_values(),
        "done_when": _described(_reference("expression"), "The poll has succeeded; `output` is the round's answer."),
        "fail_when": _described(_reference("expression"), "The poll has failed; it is looked at first."),
        "every": _described(_reference("span"), "From a round's end to the start of the next."),
        "backoff": {"type": "number", "minimum": limits.POLL_BACKOFF_MIN, "maximum": limits.POLL_BACKOFF_MAX},
        "max_every": _described(_reference("span"), "The longest gap where there is a `backoff`."),
        "max_rounds": _integer(limits.POLL_ROUNDS_MIN, limits.POLL_ROUNDS_MAX),
        "timeout": _described(_reference("span"), "The bound of all rounds together."),
        "on_round_error": {"enum": ["fail", "continue"]},
    }
