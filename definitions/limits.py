"""Every limit of the language in one place; their relations are asserted at import.

The task limits repeat what Pulse enforces at submission, because a definition must be refused at publish and not in
the middle of an instance; a test compares the two.
"""

from __future__ import annotations

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

# Text
SOURCE_BYTES_MAX = 256 * 1024
DEPTH_MAX = 32
YAML_NODES_MAX = 20_000
FINDINGS_MAX = 100
LINE_SHOWN_MAX = 120  # characters of a source line in a finding

# Expressions
EXPRESSION_CHARACTERS_MAX = 1_024
EXPRESSION_NODES_MAX = 256
EXPRESSION_DEPTH_MAX = 32
EXPRESSION_COST_MAX = 1_000
RESULT_CHARACTERS_MAX = 65_536  # of a text that an expression makes
RESULT_ITEMS_MAX = 10_000  # of a list that an expression makes

# Values
VALUE_BYTES_MAX = 64 * 1024  # an input, an output, what `set` and `return` compute
VALUE_DEPTH_MAX = 32  # as strict JSON is read anywhere in Orbit
STEPS_MAX = 1_000
CHILD_DEPTH_MAX = 8  # children of children
BRANCHES_MAX = 100
HANDLERS_MAX = 20
HANDLER_RETRIES_MIN, HANDLER_RETRIES_MAX = 1, 100
CASES_MAX = 100
ITEMS_MIN, ITEMS_MAX = 1, 10_000  # `max_items` of a foreach
ITEM_CONCURRENCY_MIN, ITEM_CONCURRENCY_MAX = 1, 100  # items of a foreach that are under way at once
ITEM_CONCURRENCY_DEFAULT = 10
IDENTIFIER_CHARACTERS_MAX = 64
REDACT_PATHS_MAX = 64
TITLE_CHARACTERS_MAX = 200
VERSION_MAX = 2**31 - 1

# Tasks, as Pulse has them
ATTEMPTS_MIN, ATTEMPTS_MAX = 1, 100
ATTEMPTS_DEFAULT = 3
ATTEMPTS_LOST_MAX = 3  # `max_lost`: attempts the platform may lose on top, less one
DEFERRALS_MAX = 100  # attempts that a handler may put off
ERROR_BYTES_MAX = 4 * 1024  # of an attempt's error, and of what a failure says in the history
PROGRESS_BYTES_MAX = 4 * 1024
BACKOFF_SECONDS_MIN, BACKOFF_SECONDS_MAX = 0.1, 86_400.0
BACKOFF_SECONDS_DEFAULT, BACKOFF_CAP_SECONDS_DEFAULT = 2.0, 300.0
ATTEMPT_TIMEOUT_SECONDS_MIN, ATTEMPT_TIMEOUT_SECONDS_MAX = 0.1, 7 * 86_400.0
ATTEMPT_TIMEOUT_SECONDS_DEFAULT = 300.0
START_WITHIN_SECONDS_DEFAULT = 3_600.0
PRIORITY_MIN, PRIORITY_MAX = 0, 9
PRIORITY_DEFAULT = 4
CONCURRENCY_KEYS_MAX = 4
CONCURRENCY_KEY_CHARACTERS_MAX = 128

# Time
SPAN_SECONDS_MIN, SPAN_SECONDS_MAX = 0.1, 366 * 86_400.0  # any time-out, wait or gap
POLL_ROUNDS_MIN, POLL_ROUNDS_MAX = 1, 10_000
POLL_BACKOFF_MIN, POLL_BACKOFF_MAX = 1.0, 10.0
POLL_EVERY_SECONDS_MAX_DEFAULT = 600.0  # of a poll with `backoff` that names no `max_every`
TIMEOUT_ALLOWANCE_SECONDS = 3_600.0  # for the platform itself, where an instance's time-out is derived

# How many instances of a workflow, or of a namespace, may be limited to run at once: each start counts so many rows.
RUNNING_MAX = 10_000

# What one instance may use at most; a definition whose proven bounds are higher is not published. A namespace may have
# limits of its own in the place of these, up to the ceilings: what a node's tables and numbers are made for.
BOUND_TASKS_MAX, BOUND_TASKS_CEILING = 100_000, 1_000_000
BOUND_ATTEMPTS_MAX, BOUND_ATTEMPTS_CEILING = 25_000_000, 250_000_000
BOUND_ROUNDS_MAX, BOUND_ROUNDS_CEILING = BOUND_TASKS_MAX, BOUND_TASKS_CEILING  # each round is a task
BOUND_CONCURRENT_TASKS_MAX, BOUND_CONCURRENT_TASKS_CEILING = 1_000, 10_000
BOUND_STORED_BYTES_MAX, BOUND_STORED_BYTES_CEILING = 256 * 1024**3, 2_560 * 1024**3
BOUND_ACTIVE_SECONDS_MAX = BOUND_ACTIVE_SECONDS_CEILING = 366 * 86_400  # the longest time-out

assert ATTEMPTS_MIN <= ATTEMPTS_DEFAULT <= ATTEMPTS_MAX
assert BACKOFF_SECONDS_MIN <= BACKOFF_SECONDS_DEFAULT <= BACKOFF_CAP_SECONDS_DEFAULT <= BACKOFF_SECONDS_MAX
assert ITEMS_MAX <= RESULT_ITEMS_MAX, "what a foreach goes over, and its results, are lists that expressions may make"
assert ITEMS_MAX <= BOUND_TASKS_MAX, "the largest legal foreach must be publishable on its own"
assert START_WITHIN_SECONDS_DEFAULT <= SPAN_SECONDS_MAX, "a default must be a value that an author may write"
assert POLL_ROUNDS_MAX <= BOUND_TASKS_MAX, "the largest legal poll must be publishable on its own"
assert BOUND_ACTIVE_SECONDS_MAX == SPAN_SECONDS_MAX, "the longest time-out that an author may write is allowed"
