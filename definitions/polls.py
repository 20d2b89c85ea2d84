"""What a poll of a definition becomes: how often it asks, and what it can use at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from definitions import bounds, limits
from definitions.bounds import Bounds
from definitions.graph import PollSpec, TaskSpec
from definitions.model import PollModel
from definitions.tasks import Policy

if TYPE_CHECKING:
    from definitions.expression import Expression


def poll_bounds(poll: PollModel, policy: Policy) -> Bounds:
    """Return the bounds of a poll whose rounds are tasks by this policy; nothing if it does not say its own."""
    if not (poll.every and poll.max_rounds and poll.timeout):
        return bounds.NOTHING
    rounds = bounds.Rounds(poll.max_rounds, poll.every, poll.backoff, _every_max(poll))
    return bounds.poll(policy.bounds(), rounds, timeout_seconds=poll.timeout)


def poll_spec(poll: PollModel, task: TaskSpec, done: Expression, fails: Expression | None) -> PollSpec | None:
    """Make the specification of a poll; None where something of it is missing."""
    if not (poll.every and poll.max_rounds and poll.timeout):
        return None
    return PollSpec(
        task=task,
        done_when=done,
        fail_when=fails,
        every_seconds=poll.every,
        backoff=poll.backoff,
        every_seconds_max=_every_max(poll),
        rounds_max=poll.max_rounds,
        timeout_seconds=poll.timeout,
        continue_on_round_error=poll.continue_on_round_error,
    )


def _every_max(poll: PollModel) -> float:
    every = poll.every or 0.0
    return poll.max_every or (every if poll.backoff == 1.0 else max(limits.POLL_EVERY_SECONDS_MAX_DEFAULT, every))
