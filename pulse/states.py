"""The words of Pulse's state machines: one enum each, the same words in database, code, API and documents.

The transition tables are data; the diagram in the documents is generated from them, and every state write names the
state that it expects.
"""

from __future__ import annotations

from enum import StrEnum


class TaskState(StrEnum):
    """Where a task is. A terminal state is never left."""

    WAITING = "WAITING"  # accepted, not handed out; leaves by claim, cancel or a deadline
    LEASED = "LEASED"  # handed to a worker that was not yet allowed to start; the handler has certainly not run
    RUNNING = "RUNNING"  # start was granted; the handler may have run
    NEEDS_REVIEW = "NEEDS_REVIEW"  # the outcome is unknown; leaves by a verdict only
    SUCCEEDED = "SUCCEEDED"  # terminal: the handler did what was agreed
    FAILED = "FAILED"  # terminal: it did not, or a limit ended it
    CANCELLED = "CANCELLED"  # terminal: cancelled before it ran, or the handler stopped when asked


TERMINAL = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED})
UNFINISHED = frozenset(TaskState) - TERMINAL
HOLDING_PERMIT = frozenset({TaskState.LEASED, TaskState.RUNNING})

TASK_TRANSITIONS: dict[TaskState, frozenset[TaskState]] = {
    TaskState.WAITING: frozenset({TaskState.LEASED, TaskState.CANCELLED, TaskState.FAILED}),
    TaskState.LEASED: frozenset({TaskState.RUNNING, TaskState.WAITING, TaskState.CANCELLED, TaskState.FAILED}),
    TaskState.RUNNING: frozenset(
        {TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED, TaskState.WAITING, TaskState.NEEDS_REVIEW}
    ),
    TaskState.NEEDS_REVIEW: frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED, TaskState.WAITING}),
    TaskState.SUCCEEDED: frozenset(),
    TaskState.FAILED: frozenset(),
    TaskState.CANCELLED: frozenset(),
}


class WaitReason(StrEnum):
    """Why a WAITING task waits. The first five are stored, the others derived when it is read."""

    READY = "READY"  # runnable as soon as a worker and room are there
    DELAYED = "DELAYED"  # its time has not come
    BACKOFF = "BACKOFF"  # waits before the next attempt
    HELD = "HELD"  # its gate is closed; its deadlines stand still
    KEY_BLOCKED = "KEY_BLOCKED"  # one of its concurrency keys is held by as many tasks as may
    QUEUE_PAUSED = "QUEUE_PAUSED"
    CONCURRENCY_FULL = "CONCURRENCY_FULL"
    RATE_LIMITED = "RATE_LIMITED"
    APPLICATION_QUOTA = "APPLICATION_QUOTA"  # its application holds or starts as much as it may
    NO_COMPATIBLE_WORKER = "NO_COMPATIBLE_WORKER"


class AttemptState(StrEnum):
    """Where an attempt is. LEASED and RUNNING are live; an attempt has one end."""

    LEASED = "LEASED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"  # its time-out or the task's deadline passed while it ran
    LOST = "LOST"  # its lease ended while it ran
    RETURNED = "RETURNED"  # a draining worker gave it back
    DEFERRED = "DEFERRED"  # the handler asked to be called later
    ABANDONED = "ABANDONED"  # ended before start; counts against nothing


LIVE_ATTEMPT = frozenset({AttemptState.LEASED, AttemptState.RUNNING})


class RecoverySafety(StrEnum):
    """What may be done with an unknown outcome of a task type."""

    REPLAY_SAFE = "REPLAY_SAFE"  # may run again, also while an earlier attempt still runs
    VERIFY = "VERIFY"  # another task finds out first; a person decides what that can't tell
    MANUAL = "MANUAL"  # a person decides; every type that declares nothing


class ErrorClass(StrEnum):
    """How a worker classifies a failure."""

    RETRYABLE = "RETRYABLE"
    NON_RETRYABLE = "NON_RETRYABLE"
    UNKNOWN_OUTCOME = "UNKNOWN_OUTCOME"
    NEEDS_HUMAN = "NEEDS_HUMAN"
    UNCLASSIFIED = "UNCLASSIFIED"


class SourceKind(StrEnum):
    """Where a task comes from directly."""

    API = "API"
    WORKFLOW = "WORKFLOW"
    RETRY = "RETRY"
    VERIFICATION = "VERIFICATION"
    SCHEDULE = "SCHEDULE"


class BatchState(StrEnum):
    """Where a batch of an operator's decisions is."""

    RUNNING = "RUNNING"  # items are pending; leaves by the last of them, or by a stop
    DONE = "DONE"  # every item was decided
    STOPPED = "STOPPED"  # a person stopped it; what was done stays done


class ItemState(StrEnum):
    """What came of one item of a batch."""

    PENDING = "PENDING"  # its turn has not come
    DONE = "DONE"  # the operation was carried out
    REFUSED = "REFUSED"  # it was not: the outcome says why, as a request for this one would have been answered
    STOPPED = "STOPPED"  # the batch was stopped before its turn


class VerificationState(StrEnum):
    """Where the verification of an unknown outcome is."""

    WANTED = "WANTED"  # the review is open, its task is still to be made
    OPEN = "OPEN"  # its task waits or runs
    ANSWERED = "ANSWERED"  # its task has ended; the answer is still to be applied
    SETTLED = "SETTLED"  # over: see the outcome


class VerificationOutcome(StrEnum):
    """What came of a verification. All but the first two leave the review to a person."""

    EXECUTED = "EXECUTED"  # the effect happened: the task has succeeded
    NOT_EXECUTED = "NOT_EXECUTED"  # it did not: the task is tried again, or has ended for want of budget
    UNKNOWN = "UNKNOWN"  # the verifier could not tell
    FAILED = "FAILED"  # the verification itself failed, or its answer was none
    SUPERSEDED = "SUPERSEDED"  # the review was settled before: the answer is evidence only


class ScheduleState(StrEnum):
    """Whether a schedule fires."""

    ACTIVE = "ACTIVE"  # it fires when its time comes; leaves by a pause, by losing its rights, or at its end
    PAUSED = "PAUSED"  # an operator has paused it; leaves by a resume
    STOPPED = "STOPPED"  # whoever it acts for has lost the right; leaves by a resume
    ENDED = "ENDED"  # no instant is left; leaves by a change


class FiringState(StrEnum):
    """What became of a firing."""

    QUEUED = "QUEUED"  # it waits until what the firing before has made is over
    FIRED = "FIRED"  # terminal: its task or instance was made
    SKIPPED = "SKIPPED"  # terminal: one instant or a range, for the reason that stands with it
    REFUSED = "REFUSED"  # terminal: its task or instance was refused for good; the error tells why


SCHEDULE_MOVES: dict[ScheduleState, frozenset[ScheduleState]] = {
    ScheduleState.ACTIVE: frozenset({ScheduleState.PAUSED, ScheduleState.STOPPED, ScheduleState.ENDED}),
    ScheduleState.PAUSED: frozenset({ScheduleState.ACTIVE}),
    ScheduleState.STOPPED: frozenset({ScheduleState.ACTIVE, ScheduleState.PAUSED}),
    ScheduleState.ENDED: frozenset({ScheduleState.ACTIVE, ScheduleState.PAUSED, ScheduleState.STOPPED}),
}
FIRING_MOVES: dict[FiringState, frozenset[FiringState]] = {
    FiringState.QUEUED: frozenset({FiringState.FIRED, FiringState.REFUSED}),
    FiringState.FIRED: frozenset(),
    FiringState.SKIPPED: frozenset(),
    FiringState.REFUSED: frozenset(),
}


class SubjectKind(StrEnum):
    """What a schedule makes."""

    TASK = "TASK"
    INSTANCE = "INSTANCE"
