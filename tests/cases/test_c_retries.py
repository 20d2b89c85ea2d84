"""Area c of the public failures: back-off and deadlines; put-offs and attempts are in the tests of Pulse."""

from api.server import Node
from orbit.database import Database
from pulse import limits
from pulse.policy import backoff, backoff_cap
from pulse.report import Outcome, ReportedError
from pulse.requests import RetryPolicy
from pulse.states import ErrorClass, RecoverySafety, TaskState
from tests.support.http import Api
from tests.support.pulse import Pulse

SECOND = 1_000_000


def test_c046_no_number_of_failures_overflows_a_back_off(database: Database) -> None:
    pulse = Pulse(database)
    pulse.queue()
    pulse.submit(retry=RetryPolicy(100, 2 * SECOND, 3600 * SECOND))
    (item,) = pulse.claim(1)
    budget = item.task.budget()
    caps = [backoff_cap(budget, failures) / SECOND for failures in (1, 5, 11, 12, 31, 64, 1100)]
    assert caps == [2, 32, 2048, 3600, 3600, 3600, 3600]
    for jitter in (0.0, 0.5, 0.999_999):
        assert limits.BACKOFF_MICROS_MIN <= backoff(budget, 1100, jitter=jitter) <= 3600 * SECOND


def test_c046_a_policy_without_bounds_is_refused(database: Database) -> None:
    node = Node(database, name="test")
    caller = Api(database, node.operations, node.authenticator).caller()
    caller.post("/v1/queues", {"name": "main", "max_concurrency": 8, "rate_per_second": 100})
    task = {"queue": "main", "type": "echo", "version": 1}
    assert caller.post("/v1/tasks", task | {"retry": {"factor": 10}}).code == "UNKNOWN_FIELD"
    assert caller.post("/v1/tasks", task | {"retry": {"max_attempts": 500}}).pointer == "/retry/max_attempts"
    assert caller.post("/v1/tasks", task | {"retry": {"backoff_seconds_max": 1e300}}).status == 400
    node.stop()


def test_a_handler_may_ask_for_a_longer_back_off_within_the_deadline(database: Database) -> None:
    pulse = Pulse(database)
    pulse.queue()
    task_id = pulse.submit(retry=RetryPolicy(3, SECOND, SECOND), deadline_micros=3600 * SECOND)
    item = pulse.run()
    error = ReportedError(ErrorClass.RETRYABLE, "BUSY", "ask again in ten minutes")
    pulse.report(pulse.result(item, Outcome.FAILED, error=error, retry_after_micros=600 * SECOND))
    pulse.pass_time(590)
    assert pulse.claim() == []
    pulse.pass_time(11)
    again = pulse.run()
    too_long = pulse.result(again, Outcome.FAILED, error=error, retry_after_micros=7200 * SECOND)
    assert pulse.report(too_long).task_state is TaskState.FAILED
    assert pulse.error_code(task_id) == "DEADLINE_EXCEEDED"


def test_r129_past_its_deadline_what_runs_is_judged_by_its_safety(database: Database) -> None:
    pulse = Pulse(database)
    pulse.queue()
    ends = {RecoverySafety.REPLAY_SAFE: TaskState.FAILED, RecoverySafety.MANUAL: TaskState.NEEDS_REVIEW}
    for safety, state in ends.items():
        task_id = pulse.submit(deadline_micros=10 * SECOND)
        pulse.run(safety=safety)
        pulse.pass_time(11)
        view = pulse.task(task_id)
        assert (view.state, pulse.error_code(task_id), view.row.starts_count) == (state, "DEADLINE_EXCEEDED", 1)
        assert pulse.claim() == []
