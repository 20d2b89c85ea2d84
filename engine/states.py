"""The states of an instance and of a step, and the moves between them, as data.

The property tests, the documents' diagrams and the check inside `draft` all read these tables; a move that does not
stand here is a bug, never something to be tolerated.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class InstanceState(StrEnum):
    """Where an instance stands."""

    RUNNING = "RUNNING"  # the flow goes on; leaves by failure, by an end step, by its time-out or by completing
    NEEDS_RECOVERY = "NEEDS_RECOVERY"  # a failure waits for a person; other branches go on until they settle
    ENDING = "ENDING"  # the end is decided (`ending_as`), tasks are asked to stop; ends with the last of them
    COMPENSATING = "COMPENSATING"  # all tasks have ended, what was done is undone step by step; ends with the last
    SUCCEEDED = "SUCCEEDED"  # terminal
    FAILED = "FAILED"  # terminal
    CANCELLED = "CANCELLED"  # terminal


class Ending(StrEnum):
    """What an ENDING instance becomes; the words are those of the terminal states."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Compensation(StrEnum):
    """Whether what an instance has done is undone; beside its state, and absent while nobody wants that."""

    WANTED = "WANTED"  # the instance ends, and undoes when no task of it is unfinished
    BEGUN = "BEGUN"  # it is COMPENSATING, or a failed compensation waits for a person
    DONE = "DONE"  # nothing is left to undo
    ABANDONED = "ABANDONED"  # a person has ended it before it was done


class Control(StrEnum):
    """Whether an operator lets an instance go on; beside its state."""

    ACTIVE = "ACTIVE"  # it goes on; leaves by a pause
    PAUSING = "PAUSING"  # nothing new begins, what ran when it was paused still runs; leaves when none is left
    PAUSED = "PAUSED"  # nothing runs; leaves by a resume, or by an end


class StepState(StrEnum):
    """Where a step stands. A PENDING step has no row: it is entered when all its incoming edges are decided."""

    PENDING = "PENDING"  # not entered
    WAITING = "WAITING"  # for a time (a wait, a bound, a gap, a full queue) or for items; `reason` says which
    RUNNING = "RUNNING"  # its task is unfinished
    NEEDS_REVIEW = "NEEDS_REVIEW"  # the outcome of its task is unknown until a person settles it
    SUCCEEDED = "SUCCEEDED"  # terminal
    FAILED = "FAILED"  # decided; only an error handler or recovery reopens it
    SKIPPED = "SKIPPED"  # terminal: by its own `when`, or on a path that was not taken
    CANCELLED = "CANCELLED"  # terminal: the instance ended first, or the join went on without its branch


class StepReason(StrEnum):
    """Why a step is WAITING, SKIPPED, CANCELLED, or RUNNING with a cancel on its way."""

    ITEMS = "ITEMS"  # WAITING for the items of a foreach
    TIMER = "TIMER"  # WAITING until `due_at`
    SIGNAL = "SIGNAL"  # WAITING for a signal, until `due_at`
    WAIT_TIMED_OUT = "WAIT_TIMED_OUT"  # SUCCEEDED without an output: no signal came in time, and it goes on then
    BREAKPOINT = "BREAKPOINT"  # WAITING for the resume of the pause that comes before it
    POLL_GAP = "POLL_GAP"  # WAITING for the next round at `due_at`
    QUEUE_FULL = "QUEUE_FULL"  # WAITING to submit again at `due_at`
    STEP_TIMED_OUT = "STEP_TIMED_OUT"  # RUNNING, asked to stop because its bound has passed
    INSTANCE_ENDED = "INSTANCE_ENDED"  # asked to stop, or CANCELLED, because the instance ends
    # Asked to stop, or decided, after the join went on without its branch. A success is kept, but nobody reads it.
    BRANCH_LOST = "BRANCH_LOST"
    # Asked to stop, or decided, after a failure in its block that the block's handlers take. Of the block's own end:
    # WAITING for all that still runs in it. A success is kept, but nobody reads it.
    BLOCK_FAILED = "BLOCK_FAILED"
    # WAITING for its lanes: a failed join that a person's recovery in one of them has reopened, or the end of a block
    # that is done once more.
    JOIN = "JOIN"
    WHEN = "WHEN"  # SKIPPED by its own condition: the flow goes on past it
    DEAD_PATH = "DEAD_PATH"  # SKIPPED because no live edge leads here
    RETRY = "RETRY"  # WAITING to be tried again by an error handler at `due_at`
    HANDLED = "HANDLED"  # an error handler took the failure: SUCCEEDED with its value, or FAILED while its steps run
    RECOVERED = "RECOVERED"  # SUCCEEDED or SKIPPED by a person's decision: the flow goes on past it


# Why a step was stopped, or decided, because the flow goes on without it.
LOST = frozenset({StepReason.BRANCH_LOST, StepReason.BLOCK_FAILED})
# Why a step is WAITING for others that have a name of their own.
FOR_OTHERS = frozenset({StepReason.JOIN, StepReason.BLOCK_FAILED})

# Why a step may be SKIPPED without ending its path.
PASSED = frozenset({StepReason.WHEN, StepReason.RECOVERED})


class SignalState(StrEnum):
    """Where a stored signal stands; only TAKEN is written, the others follow from its times and its instance."""

    KEPT = "KEPT"  # no wait has taken it yet
    TAKEN = "TAKEN"  # terminal: a wait has ended with it
    EXPIRED = "EXPIRED"  # terminal: its time to live is over
    LEFT_OVER = "LEFT_OVER"  # terminal: its instance has ended without it


class Action(StrEnum):
    """What a person decides about a failed step, a step under review, or a held instance."""

    RETRY = "RETRY"  # start it anew, with a new task that continues the line of the last
    COMPLETE = "COMPLETE"  # take an output that the person vouches for
    FAIL = "FAIL"  # a failed step: end the instance FAILED; a review: judge that its task has failed
    SKIP = "SKIP"  # go on without it, where nothing needs its output


INSTANCE_TERMINAL = frozenset({InstanceState.SUCCEEDED, InstanceState.FAILED, InstanceState.CANCELLED})
INSTANCE_UNFINISHED = frozenset(InstanceState) - INSTANCE_TERMINAL

STEP_TERMINAL = frozenset({StepState.SUCCEEDED, StepState.FAILED, StepState.SKIPPED, StepState.CANCELLED})
STEP_UNFINISHED = frozenset({StepState.WAITING, StepState.RUNNING, StepState.NEEDS_REVIEW})
STEP_WITH_TASK = frozenset({StepState.RUNNING, StepState.NEEDS_REVIEW})

INSTANCE_MOVES: Mapping[InstanceState, frozenset[InstanceState]] = {
    InstanceState.RUNNING: frozenset({InstanceState.NEEDS_RECOVERY, InstanceState.ENDING, InstanceState.SUCCEEDED}),
    InstanceState.NEEDS_RECOVERY: frozenset({InstanceState.RUNNING, InstanceState.ENDING, InstanceState.COMPENSATING}),
    # An engine error may hold an instance that is ending; recovery takes it up again with the same `ending_as`.
    InstanceState.ENDING: INSTANCE_TERMINAL | {InstanceState.NEEDS_RECOVERY, InstanceState.COMPENSATING},
    # A compensation that failed, or an engine error, holds it; what is undone never ends SUCCEEDED.
    InstanceState.COMPENSATING: frozenset(
        {InstanceState.NEEDS_RECOVERY, InstanceState.FAILED, InstanceState.CANCELLED}
    ),
    InstanceState.SUCCEEDED: frozenset(),
    InstanceState.FAILED: frozenset(),
    InstanceState.CANCELLED: frozenset(),
}

CONTROL_MOVES: Mapping[Control, frozenset[Control]] = {
    Control.ACTIVE: frozenset({Control.PAUSING, Control.PAUSED}),
    Control.PAUSING: frozenset({Control.PAUSED, Control.ACTIVE}),
    Control.PAUSED: frozenset({Control.ACTIVE}),
}

STEP_MOVES: Mapping[StepState, frozenset[StepState]] = {
    StepState.PENDING: (STEP_UNFINISHED | STEP_TERMINAL) - {StepState.NEEDS_REVIEW},
    # SKIPPED is the end of a block that is done once more and was left out then.
    StepState.WAITING: frozenset(
        {StepState.RUNNING, StepState.SUCCEEDED, StepState.FAILED, StepState.SKIPPED, StepState.CANCELLED}
    ),
    StepState.RUNNING: frozenset(
        {
            StepState.WAITING,  # a poll's gap, or the queue was full
            StepState.NEEDS_REVIEW,
            StepState.SUCCEEDED,
            StepState.FAILED,
            StepState.CANCELLED,
        }
    ),
    StepState.NEEDS_REVIEW: frozenset(
        {
            StepState.WAITING,  # the review ended a poll's round, and the poll goes on
            StepState.RUNNING,  # the verdict was one more attempt, or a new task
            StepState.SUCCEEDED,
            StepState.FAILED,
            StepState.SKIPPED,
            StepState.CANCELLED,
        }
    ),
    StepState.SUCCEEDED: frozenset(),
    # Error handlers and recovery only: a failed step is entered anew, or decided by a value or a person.
    StepState.FAILED: frozenset(
        {StepState.WAITING, StepState.RUNNING, StepState.SUCCEEDED, StepState.FAILED, StepState.SKIPPED}
    ),
    StepState.SKIPPED: frozenset(),
    StepState.CANCELLED: frozenset(),
}
