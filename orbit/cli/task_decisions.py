"""`orbit task cancel`, `review`, `retry` and `reschedule`: what an operator decides about one task, with its reason."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from orbit.cli.options import JsonText, as_json, key_of, print_json

if TYPE_CHECKING:
    from orbit.sdk.client import Client

CommandT = Callable[..., Any]


def _operator(command: CommandT) -> CommandT:
    """Add what every decision takes: the task, the reason, the revision, the key."""
    for decorate in (
        as_json,
        key_of("command"),
        click.option(
            "--revision", type=click.IntRange(1), help="Only if it is at this revision; default: as it is now."
        ),
        click.option("--reason", required=True, help="Why, for the audit."),
        click.argument("task_id", metavar="ID"),
    ):
        command = decorate(command)
    return command


@click.command()
@click.argument("task_id", metavar="ID")
@click.option("--reason", required=True, help="Why, for the audit.")
@key_of("command")
@as_json
def cancel(task_id: str, reason: str, key: str, as_json: bool) -> None:
    """Cancel a task. One that runs is asked to stop, one under review stays so until somebody settles it."""
    from orbit.sdk.client import Client

    with Client() as client:
        done = client.cancel_task(task_id, key, reason=reason)
    if as_json:
        print_json(done)
        return
    asked = ", asked to stop" if done.task.cancel_requested else ""
    click.echo(f"{done.task.state}{asked}")


@click.command()
@_operator
@click.argument("verdict", type=click.Choice(["succeeded", "failed", "retry"]))
@click.option("--evidence", type=JsonText(), required=True, help="What it rests on: JSON, @FILE, or - (stdin).")
@click.option("--output", type=JsonText(), help="For succeeded: the result you vouch for, JSON, @FILE, or -.")
@click.option(
    "--late", metavar="ATTEMPT/MESSAGE", help="The late result that settles it, as `orbit task show` prints it."
)
@click.option("--safety-statement", help="For retry: why another attempt can't repeat an outside effect.")
def review(task_id: str, key: str, verdict: str, late: str | None, as_json: bool, **said: Any) -> None:
    """Settle a task whose outcome is unknown: it SUCCEEDED, it FAILED, or it gets one more attempt (RETRY)."""
    from msgspec import UNSET

    from orbit.sdk.client import Client
    from orbit.sdk.decisions import LateResult, ReviewTask

    attempt_id, _, message_id = (late or "").partition("/")
    with Client() as client:
        request = ReviewTask(
            expected_revision=_revision(client, task_id, said["revision"]),
            reason=said["reason"],
            verdict=verdict.upper(),
            evidence=said["evidence"],
            safety_statement=said["safety_statement"],
            output=UNSET if said["output"] is None else said["output"],
            late_result=None if late is None else LateResult(attempt_id=attempt_id, message_id=message_id),
        )
        done = client.review_task(task_id, key, request)
    _say(done, as_json=as_json)


@click.command()
@_operator
@click.option("--evidence", type=JsonText(), required=True, help="What it rests on: JSON, @FILE, or - (stdin).")
@click.option("--safety-statement", required=True, help="Why another attempt can't repeat an outside effect.")
def retry(task_id: str, key: str, as_json: bool, **said: Any) -> None:
    """Make a new task in place of one that ended FAILED or CANCELLED, at most once, and print its id."""
    from orbit.sdk.client import Client
    from orbit.sdk.decisions import RetryTask

    with Client() as client:
        request = RetryTask(
            expected_revision=_revision(client, task_id, said["revision"]),
            reason=said["reason"],
            evidence=said["evidence"],
            safety_statement=said["safety_statement"],
        )
        done = client.retry_task(task_id, key, request)
    if as_json:
        print_json(done)
    else:
        click.echo(done.task.id)


@click.command()
@_operator
@click.option("--available-at", metavar="INSTANT", help="When it may start (RFC 3339).")
@click.option("--priority", type=click.IntRange(0, 9), help="9 is the most urgent.")
def reschedule(task_id: str, key: str, as_json: bool, **said: Any) -> None:
    """Move a waiting task to another time or priority, or both."""
    from orbit.sdk.client import Client
    from orbit.sdk.decisions import RescheduleTask

    with Client() as client:
        request = RescheduleTask(
            expected_revision=_revision(client, task_id, said["revision"]),
            reason=said["reason"],
            available_at=said["available_at"],
            priority=said["priority"],
        )
        done = client.reschedule_task(task_id, key, request)
    _say(done, as_json=as_json)


def _revision(client: "Client", task_id: str, given: int | None) -> int:
    return client.get_task(task_id).revision if given is None else given


def _say(done: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(done)
    else:
        click.echo(f"{done.task.state} at revision {done.task.revision}")
