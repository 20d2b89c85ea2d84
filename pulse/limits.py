"""Every bound of the task layer, with the relations between them asserted when this module is loaded."""

from __future__ import annotations

from orbit.clock import SECOND

# Limits of a queue (the queue API's ranges).
MAX_CONCURRENCY_MAX = 100_000
RATE_PER_SECOND_MAX = 1_000_000
UNFINISHED_TASKS_MAX = 1_000_000
UNFINISHED_TASKS_DEFAULT = 100_000
LANES_PER_QUEUE_MAX = 1_000

# One task.
PARAMS_BYTES_MAX = 64 * 1024
OUTPUT_BYTES_MAX = 64 * 1024
ERROR_BYTES_MAX = 4 * 1024
PROGRESS_BYTES_MAX = 4 * 1024
BATCH_ITEMS_MAX = 32
PRIORITY_MAX = 9
PRIORITY_DEFAULT = 4
PRIORITY_STEP_MICROS = 30 * SECOND
PAST_TOLERANCE_MICROS = 60 * SECOND  # how far in the past `available_at` of a new request may be
BUSINESS_KEY_CHARACTERS_MAX = 128
LABELS_MAX = 16
CONCURRENCY_KEYS_MAX = 4
KEY_CHARACTERS_MAX = 128

# Concurrency keys and fairness keys.
KEY_CONCURRENCY_DEFAULT = 1
KEY_LIMITS_MAX = 1_000  # a namespace's configured limits: all are read when a key is first used
KEY_WAKE_BATCH_MAX = 256
KEY_WAITERS_WOKEN_MAX = 64  # of one line, by one wake-up
KEY_SWEEP_SECONDS = 5.0  # how often keys with a line are looked at whether or not a wake-up came
KEY_IDLE_MICROS = 24 * 3600 * SECOND  # then a key that nothing holds, waits for or limits is forgotten
FAIR_QUANTUM_MICROS = 1_000  # for priority 9, ten of them for priority 0

# Policy: the defaults are never "none".
ATTEMPTS_DEFAULT = 3
ATTEMPTS_MAX = 100
BACKOFF_MICROS_DEFAULT = 2 * SECOND
BACKOFF_MICROS_MIN = SECOND // 10
BACKOFF_MICROS_CAP_DEFAULT = 300 * SECOND
BACKOFF_MICROS_CAP_MAX = 24 * 3600 * SECOND
ATTEMPT_TIMEOUT_MICROS_DEFAULT = 300 * SECOND
ATTEMPT_TIMEOUT_MICROS_MAX = 7 * 24 * 3600 * SECOND
DEADLINE_MICROS_DEFAULT = 24 * 3600 * SECOND
DEADLINE_MICROS_MAX = 400 * 24 * 3600 * SECOND
LOST_MAX = 3
DEFERRALS_MAX = 100
DEFER_MICROS_MAX = 24 * 3600 * SECOND

# Leases.
ASSIGN_MICROS = 5 * SECOND  # a LEASED attempt that is neither started nor released by then is undone
LEASE_MICROS = 30 * SECOND
LEASE_RENEW_MICROS = 10 * SECOND
LIMIT_SLACK_MICROS = SECOND  # so much before its limit a handler that stops was told to, by its worker's own clock
RATE_LIMITED_ASSIGN_MICROS_MAX = 30 * SECOND  # a limited Start prolongs an assignment, at most to this
RELEASE_BACKOFF_MICROS = SECOND // 10  # doubles with each release in a row
RELEASE_BACKOFF_MICROS_MAX = 30 * SECOND

RATE_WINDOW_MICROS = SECOND

# Dispatch.
CLAIM_BATCH_MAX = 256
SWEEP_BATCH_MAX = 256
RELEASE_BATCH_MAX = 500  # held tasks that one statement lets wait for their turn again
SWEEP_SECONDS = 0.25
# How long a node that has begun, or whose database came back, leaves leases alone: a worker waits at most 5 s before it
# connects again, and what it reports then counts although its lease has run out.
RECONCILE_SECONDS = 6.0
PROBE_SECONDS_MIN = 0.01
PROBE_SECONDS_MAX = 0.25
PROBE_SECONDS = 1.0  # how often a node looks for batches and schedules that others may have left
SESSION_SEEN_SECONDS = 10.0
SESSION_STALE_MICROS = 30 * SECOND

# Batches of an operator's decisions.
BATCH_SUBJECTS_MAX = 10_000
BATCH_RATE_DEFAULT = 10.0
BATCH_RATE_MAX = 1_000.0
BATCH_RATE_MIN = 0.01
BATCH_CHUNK_MAX = 50  # items that one node takes at a time
BATCH_CHUNK_MICROS = SECOND // 4  # as many as the rate gives in this time, but at least one
BATCH_LEASE_MICROS = 30 * SECOND  # a node that dies with a chunk holds the batch up for so long
BATCH_PAUSE_MICROS = SECOND  # after an item that a limit holds up

# Schedules.
SCHEDULES_MAX = 10_000  # of a namespace
REVISIONS_PENDING_MAX = 20  # of a schedule, that have not come into force
PREVIEW_MAX = 200  # instants of one preview
POINTS_PER_PASS_MAX = 250  # instants of a cron rule that one pass looks at: some 20 ms of computing
CATCH_UP_COUNT_MAX = 100
CATCH_UP_CHUNK_MAX = 50  # firings that one pass catches up with
CATCH_UP_RATE_MAX = 1_000.0
CATCH_UP_RATE_MIN = 0.001
FIRING_BACKLOG_MAX = 1_000
FIRING_BATCH_MAX = 64  # schedules that one transaction fires
FIRING_FULL_MICROS = SECOND  # how much later a firing that found no place is tried again
FIRING_WAIT_MICROS = SECOND  # how often a backlog of firings looks whether the one before has ended
FIRING_RETRY_MICROS = 30 * SECOND  # how much later a schedule is tried again that could not be fired at all
FIRING_SLACK_MICROS = 5 * SECOND  # nobody is late before that, whatever the grace: a busy node needs some time
MISFIRE_GRACE_MICROS_DEFAULT = 60 * SECOND

# How much later a node tries a verification again that it could not take on.
VERIFICATION_RETRY_MICROS = 30 * SECOND

assert LEASE_RENEW_MICROS * 2 < LEASE_MICROS, "one lost renewal must not lose a lease"
assert ASSIGN_MICROS < LEASE_MICROS, "an assignment is shorter than a lease, so that a silent worker is found soon"
assert ATTEMPT_TIMEOUT_MICROS_DEFAULT <= DEADLINE_MICROS_DEFAULT, "one attempt fits into the default deadline"
assert BACKOFF_MICROS_MIN > 0, "a retry is never immediate"
assert RELEASE_BACKOFF_MICROS_MAX <= BACKOFF_MICROS_CAP_DEFAULT, "an undone lease never waits longer than a failure"
assert POINTS_PER_PASS_MAX > CATCH_UP_COUNT_MAX, "a pass that can't see the end of what is due gets ahead all the same"
