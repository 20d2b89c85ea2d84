"""After a restore: fencing numbers go on above all that were forgotten, and what ran is judged, not resumed."""

import pytest

from pulse.report import ReceiptKind
from pulse.restore import after_restore
from pulse.states import RecoverySafety, TaskState, WaitReason
from tests.support.pulse import Pulse


@pytest.mark.requirement("R180")
def test_r103_what_ran_in_a_backup_is_judged_and_new_numbers_are_higher(pulse: Pulse) -> None:
    queue_id = pulse.queue()
    safe, manual, leased, waiting = (pulse.submit() for _ in range(4))
    first = pulse.run(safety=RecoverySafety.REPLAY_SAFE)
    second = pulse.run()
    (third,) = pulse.claim(1)
    done = after_restore(pulse.database, pulse)
    assert (done.fencing_epoch, done.attempts_ended) == (2, 3)
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
    assert again[safe].fencing == (2 << 32) + 2 > first.fencing
    assert again[waiting].fencing > second.fencing
    assert after_restore(pulse.database, pulse).fencing_epoch == 3
