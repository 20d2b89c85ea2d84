"""The keys of every kind of mapping in a definition; the reader and the editors' schema are both made of them."""

from __future__ import annotations

from definitions.fields import Keys

KINDS = ("task", "branch", "parallel", "foreach", "wait", "poll", "workflow", "set", "fail", "return")
OPTION_KEYS = frozenset(
    {"queue", "start_within", "attempt_timeout", "timeout", "priority", "retry", "concurrency_keys"}
)
TASK_KEYS = OPTION_KEYS | {"task", "input", "output"}
CHILD_KEYS = frozenset({"workflow", "input", "timeout"})
COMMON_KEYS = frozenset({"id", "title", "when", "needs", "pause_at"})
# The kinds that can fail by themselves; `fail` and `return` end the instance.
HANDLED_KINDS = frozenset({"task", "poll", "wait", "set", "workflow", "branch", "parallel", "foreach"})
# The kinds that may have done something outside; what `set` computes needs no undoing.
COMPENSATED_KINDS = frozenset({"task", "poll", "wait", "workflow", "branch", "parallel", "foreach"})

TOP = Keys(
    "a definition",
    frozenset(
        {"orbit", "workflow", "version", "title", "input", "timeout", "on_failure", "defaults", "steps", "output"}
    )
    | {"business_key_policy", "max_running", "redact"},
    {"labels": "an instance gets its labels at its start"},
)
DEFAULTS = Keys("`defaults`", OPTION_KEYS)
RETRY = Keys("`retry`", frozenset({"max_attempts", "backoff", "max_backoff"}))

_OWN_KEYS = {"task": TASK_KEYS, "workflow": CHILD_KEYS}
# What is said of a step, and not in it.
_ELSEWHERE = {"redact": "write it at the top of the definition, as `redact: [/steps/<id>/output]`"}


def _step_keys(kind: str) -> Keys:
    allowed = COMMON_KEYS | {kind} | _OWN_KEYS.get(kind, frozenset())
    if kind in HANDLED_KINDS:
        allowed |= {"on_error"}
    if kind in COMPENSATED_KINDS:
        allowed |= {"compensate"}
    return Keys(f"a {kind} step", allowed, _ELSEWHERE)


STEP_KEYS = {kind: _step_keys(kind) for kind in KINDS}
_ANY_KEYS = COMMON_KEYS | TASK_KEYS | {"on_error", "compensate"} | frozenset(KINDS)
ANY_STEP = Keys("a step", _ANY_KEYS, _ELSEWHERE)
COMPENSATION = Keys("`compensate`", OPTION_KEYS | {"task", "input"})
HANDLER = Keys("an error handler", frozenset({"match", "then", "max", "backoff", "value", "steps"}))

CASE = Keys("a case of a branch", frozenset({"when", "steps", "else"}))
PARALLEL = Keys("`parallel`", frozenset({"join", "branches", "steps"}))
JOIN = Keys("`join`", frozenset({"at_least"}))
FOREACH = Keys("`foreach`", frozenset({"items", "max_items", "concurrency", "steps", "output"}))
WAIT = Keys("`wait`", frozenset({"for", "until", "signal", "timeout", "on_timeout", "payload", "accept_when"}))
POLL = Keys(
    "`poll`",
    OPTION_KEYS
    | {"task", "input", "output", "done_when", "fail_when", "every", "backoff", "max_every", "max_rounds"}
    | {"on_round_error"},
    {},
)
FAIL = Keys("`fail`", frozenset({"code", "message"}))
