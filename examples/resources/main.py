"""Queue limits by example: a full queue refuses, a repeated request is recognised, room comes back, work goes on.

    ORBIT_URL=http://127.0.0.1:8080 ORBIT_CREDENTIALS_FILE=credentials.json python examples/resources/main.py

The credential needs the rights of a worker and of managing all queues (`orbit bootstrap --worker-access`). Each run
makes a queue and tasks of its own and keeps them as history. Every command has one key for life: where its outcome is
unknown the example ends and names the key, and never makes a new one.
"""

import secrets
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from orbit import (
    APIError,
    Client,
    ConfigureQueueRequest,
    CreateQueueRequest,
    OrbitSDKError,
    Queue,
    SubmitTask,
    Task,
    TaskContext,
    Worker,
)

DEADLINE_SECONDS = 20
QUEUE_FULL = "QUEUE_FULL"


class Scenario:
    """One run: its client, its name, and the tasks that it submits."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.name = f"resources-{secrets.token_hex(6)}"
        # The deadline is the caller's own promise, so it comes from the caller's clock.
        deadline = datetime.now(UTC) + timedelta(seconds=DEADLINE_SECONDS)  # noqa: TID251
        self.requests = [
            SubmitTask(
                queue=self.name,
                type="echo",
                version=1,
                params={"number": number},
                deadline_at=deadline.isoformat(),
            )
            for number in (1, 2, 3)
        ]

    def key(self, command: str) -> str:
        """Name a command of this run; the same command has the same key, however often it is sent."""
        return f"{self.name}-{command}"

    def submit(self, number: int) -> Any:
        """Send a task under its own key."""
        return self.client.submit_task(self.key(f"task-{number}"), self.requests[number - 1])

    def make_queue(self) -> Queue:
        """Create a queue with room for two unfinished tasks, and pause it."""
        limits = CreateQueueRequest(name=self.name, max_concurrency=2, rate_per_second=1, max_unfinished_tasks=2)
        made = self.client.create_queue(self.key("create"), limits).queue
        return self.set_paused(made, paused=True)

    def set_paused(self, queue: Queue, *, paused: bool) -> Queue:
        """Pause or resume the queue at the revision that we know."""
        change = ConfigureQueueRequest(
            expected_revision=queue.revision,
            reason="resources example",
            paused=paused,
            max_concurrency=queue.max_concurrency,
            rate_per_second=queue.rate_per_second,
            max_unfinished_tasks=queue.max_unfinished_tasks,
        )
        return self.client.configure_queue(queue.id, self.key(f"paused-{paused}"), change).queue

    def run(self) -> None:
        """Run the scenario and print its five lines."""
        queue = self.make_queue()
        first = self.submit(1).task
        second = self.submit(2).task
        try:
            self.submit(3)
        except APIError as error:
            if error.code != QUEUE_FULL:
                raise
            print(f"backpressure={error.code} http={error.status}")
        else:
            sys.exit("the third task was accepted by a full queue")
        duplicate = self.submit(1)
        self.client.cancel_task(first.id, self.key("cancel-1"), reason="makes room")
        retried = self.submit(3)
        is_duplicate = duplicate.deduplicated and duplicate.task.id == first.id
        print(f"duplicate={_word(is_duplicate)} rejected_request_retried={_word(not retried.deduplicated)}")
        queue = self.set_paused(queue, paused=False)
        drained, tasks = self._work([second.id, retried.task.id])
        for task in tasks:
            print(f"task={task.id} state={task.state} attempts={task.attempts}")
        now = self.client.get_queue(queue.id)
        print(
            f"unfinished={now.unfinished_tasks} rate_per_second={now.rate_per_second} worker_drained={_word(drained)}"
        )

    def _work(self, task_ids: list[str]) -> tuple[bool, list[Task]]:
        """Run a worker until these tasks have ended; say whether it could end in order."""
        worker = Worker(queues=[self.name], capacity=2, drain_seconds=5)

        @worker.task("echo@1", recovery="REPLAY_SAFE")
        def echo(params: Any, _context: TaskContext) -> Any:
            return params

        worker.start(timeout=10)
        drained = False
        try:
            tasks = [self.client.result(task_id, timeout_seconds=DEADLINE_SECONDS + 5) for task_id in task_ids]
        finally:
            drained = worker.drain(timeout=10)
        return drained, tasks


def _word(value: bool) -> str:  # noqa: FBT001
    return "true" if value else "false"


def main() -> None:
    """Run the scenario; anything that goes wrong ends it with a line and a code that is not 0."""
    try:
        with Client(timeout_seconds=10) as client:
            Scenario(client).run()
    except (OrbitSDKError, TimeoutError) as error:
        sys.exit(f"resources: {error}")


if __name__ == "__main__":
    main()
