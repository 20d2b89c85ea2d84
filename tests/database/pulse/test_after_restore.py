"""After a restore: fencing numbers go on above all that were forgotten, and what ran is judged, not resumed."""

import pytest

from pulse.catalog import FENCING_EPOCH
from pulse.report import ReceiptKind
from pulse.restore import after_restore
from pulse.states import RecoverySafety, TaskState, WaitReason
from pulse.store.types import mark_set
from tests.support.pulse import Pulse


@pytest.mark.requirement("R180")
def test_r103_what_ran_in_a_backup_is_judged_and_new_numbers_are_higher(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    safe, manual, leased, waiting = (pulse.submit() for _ in range(4))
    first = pulse.run(safety=RecoverySafety.REPLAY_SAFE)
    second = pulse.run()
    (third,) = pulse.claim(1)
    done = after_restore(pulse.database, pulse)
    assert (done.fencing_epoch > 1, done.attempts_ended) == (True, 3)
    states = [pulse.task(each).state for each in (safe, manual, leased, waiting)]
    assert states == [TaskState.WAITING, TaskState.NEEDS_REVIEW, TaskState.WAITING, TaskState.WAITING]
    assert pulse.task(safe).wait_reason is WaitReason.BACKOFF
    assert pulse.usage(queue_id).active == 0
    assert pulse.succeed(first).receipt is ReceiptKind.LATE
    assert not pulse.start(third).granted
    pulse.catalog.forget()
    pulse.pass_time(60)
    again = {item.task.id: item for item in pulse.claim()}
    assert set(again) == {safe, leased, waiting}
    assert again[safe].fencing == (done.fencing_epoch << 32) + 2 > first.fencing
    assert again[waiting].fencing > second.fencing
    assert done.fencing_epoch < after_restore(pulse.database, pulse).fencing_epoch < 2**31


@pytest.mark.requirement("R180")
def test_r103_a_backup_restored_twice_never_hands_the_same_numbers_out_twice(pulse: Pulse) -> None:
    once = after_restore(pulse.database, pulse).fencing_epoch
    # The backup again, which knows nothing of the first restore.
    pulse.database.transaction(lambda tx: mark_set(tx, FENCING_EPOCH, 1))
    pulse.database.clock.advance(seconds_forward=1)
    assert after_restore(pulse.database, pulse).fencing_epoch > once
