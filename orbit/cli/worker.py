"""`orbit worker`: run a worker of the user's in this process, until it is told to stop."""

import gc
import sys

import click

# Python's own, which the command line raises for commands that soon end: what handlers leave is to go soon.
_COLLECTOR_THRESHOLDS = (700, 10, 10)


@click.command()
@click.argument("target", metavar="MODULE:WORKER")
@click.option(
    "--capacity", type=click.IntRange(1, 1_000), help="How many tasks at once; the module's own if not given."
)
@click.option("--queue", "queues", multiple=True, help="A queue to consume, repeatable; the module's own if not given.")
@click.option("--drain-seconds", type=click.FloatRange(0), help="How long running tasks may go on after SIGTERM.")
def worker(target: str, capacity: int | None, queues: tuple[str, ...], drain_seconds: float | None) -> None:
    """Run the worker that is MODULE's attribute WORKER.

    The server and the credential come from ORBIT_URL and ORBIT_CREDENTIALS_FILE (or ORBIT_TOKEN). SIGTERM drains: what
    was not started goes back, what runs may end.
    """
    from orbit.sdk.run import run_worker

    gc.set_threshold(*_COLLECTOR_THRESHOLDS)
    sys.exit(run_worker(target, capacity=capacity, queues=queues, drain_seconds=drain_seconds))
