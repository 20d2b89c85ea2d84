"""Find the commands, load the one that is asked for, and turn what it raises into words and an exit code.

A command is a `module:attribute` that is imported only when it is used or described. Modules of commands therefore
import nothing heavy at their top; a test holds `orbit --help` to that.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module, metadata
from typing import Any

import click
from click.exceptions import NoSuchCommand

ENTRY_POINT_GROUP = "orbit.commands"

# What a script can tell apart. 2 is click's own code for a wrong command line.
EXIT_REFUSED = 1
EXIT_UNREACHABLE = 3
EXIT_INTERRUPTED = 130

_OWN = {
    "publish": "orbit.cli.workflows:publish",
    "start": "orbit.cli.workflows:start",
    "show": "orbit.cli.instances:show",
    "watch": "orbit.cli.instances:watch",
    "instance.cancel": "orbit.cli.instance_control:cancel",
    "instance.pause": "orbit.cli.instance_control:pause",
    "instance.resume": "orbit.cli.instance_control:resume",
    "instance.recover": "orbit.cli.instance_control:recover",
    "instance.fork": "orbit.cli.instance_moves:fork",
    "instance.migrate": "orbit.cli.instance_moves:migrate",
    **{
        f"instance.batch.{name}": f"orbit.cli.batches:{name}"
        for name in ("preview", "start", "watch", "show", "items", "stop")
    },
    "instance.batch.list": "orbit.cli.batches:list_",
    "namespace.show": "orbit.cli.namespaces:show",
    "namespace.set-bounds": "orbit.cli.namespaces:set_bounds",
    "namespace.set-limit": "orbit.cli.namespaces:set_limit",
    "instance.list": "orbit.cli.instance_looks:list_",
    "instance.show": "orbit.cli.instances:show",
    "instance.watch": "orbit.cli.instances:watch",
    "instance.explain": "orbit.cli.instance_looks:explain",
    "instance.recoveries": "orbit.cli.instance_looks:recoveries",
    "instance.history": "orbit.cli.instance_looks:history",
    "instance.graph": "orbit.cli.instance_looks:graph",
    "workflow.list": "orbit.cli.versions:list_",
    "workflow.show": "orbit.cli.versions:show",
    "workflow.set-default": "orbit.cli.versions:set_default",
    "workflow.deprecate": "orbit.cli.versions:deprecate",
    "workflow.retire": "orbit.cli.versions:retire",
    "workflow.activate": "orbit.cli.versions:activate",
    "workflow.diff": "orbit.cli.versions:diff",
    "db.finalize": "orbit.cli.formats:finalize",
    "instance.signal": "orbit.cli.signals:signal",
    "instance.signals": "orbit.cli.signals:signals",
    "instance.items": "orbit.cli.instances:items",
    "task.submit": "orbit.cli.tasks:submit",
    "task.list": "orbit.cli.tasks:list_",
    "task.show": "orbit.cli.tasks:show",
    "task.explain": "orbit.cli.tasks:explain",
    **{f"task.{name}": f"orbit.cli.task_decisions:{name}" for name in ("cancel", "review", "retry", "reschedule")},
    **{f"task.batch.{name}": f"orbit.cli.task_batches:{name}" for name in ("preview", "start")},
    **{f"task.batch.{name}": f"orbit.cli.batches:{name}" for name in ("watch", "show", "items", "stop")},
    "task.batch.list": "orbit.cli.batches:list_",
    "task-type.list": "orbit.cli.task_types:list_",
    "task-type.show": "orbit.cli.task_types:show",
    "task-type.put": "orbit.cli.task_types:put",
    **{f"schedule.{name}": f"orbit.cli.schedules:{name}" for name in ("create", "configure", "preview")},
    **{f"schedule.{name}": f"orbit.cli.schedule_looks:{name}" for name in ("show", "firings", "pause", "resume")},
    "schedule.list": "orbit.cli.schedule_looks:list_",
    "application.show": "orbit.cli.limits:application",
    "application.set-quotas": "orbit.cli.limits:set_quotas",
    "key.show": "orbit.cli.limits:key_show",
    "key.set": "orbit.cli.limits:key_set",
    "configure-queue": "orbit.cli.limits:configure_queue",
    **{
        f"subscription.{name}": f"orbit.cli.subscriptions:{name}"
        for name in ("create", "show", "configure", "resume", "delete", "pull", "ack", "deliveries", "replay")
    },
    "subscription.list": "orbit.cli.subscriptions:list_",
    "events": "orbit.cli.subscriptions:events",
    "queue": "orbit.cli.queues:queue",
    "queues": "orbit.cli.queues:queues",
    "worker": "orbit.cli.worker:worker",
}
_GROUPS = {
    "application": "Look at the credential's application, and set its quotas.",
    "batch": "Decide about many at once: preview, start, watch, stop.",
    "db": "Keep the database's schema.",
    "instance": "Look at instances, and control them as their operator.",
    "key": "Look at concurrency keys, and set how many tasks may hold them.",
    "namespace": "Look at the credential's namespace, and set its limits.",
    "schedule": "Make schedules, look at them, change, pause and resume them.",
    "subscription": "Subscribe to events, look after subscriptions, pull deliveries and acknowledge them.",
    "task": "Submit tasks, look at them, and decide about them as their operator.",
    "task-type": "Look at registered task types, and register them.",
    "workflow": "Look at published workflows, and manage their versions.",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used; a dotted name (`db.check`) is one of a sub-group."""

    def __init__(self, *, sources: Mapping[str, str], **attributes: Any) -> None:
        super().__init__(**attributes)
        self._sources = sources

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        """Name all commands, sub-groups among them."""
        return sorted({name.partition(".")[0] for name in self._sources})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  (click's)
        """Import one command, or make a sub-group of those whose names start with this one."""
        source = self._sources.get(cmd_name)
        if source is not None:
            return _load(cmd_name, source)
        prefix = f"{cmd_name}."
        inner = {name.removeprefix(prefix): each for name, each in self._sources.items() if name.startswith(prefix)}
        if not inner:
            return None
        return LazyGroup(sources=inner, name=cmd_name, help=_GROUPS.get(cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; say which ones are meant, perhaps, if there is none (click looks among loaded ones)."""
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as error:
            raise NoSuchCommand(error.command_name, possibilities=self.list_commands(ctx), ctx=ctx) from None


def program() -> LazyGroup:
    """Make the whole command line from our own commands and those of the packages above."""
    found = {point.name: point.value for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}
    group = LazyGroup(
        sources={**found, **_OWN},
        name="orbit",
        help="Durable tasks and workflows over one MySQL database.",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    return click.version_option(package_name="orbit-workflows", message="%(version)s")(group)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 refused, 2 wrong usage, 3 not reached, 130 interrupted.

    Anything else that is raised is a bug and comes out as a traceback.
    """
    try:
        # What a command returns is the code of a `ctx.exit(code)` inside it, or nothing.
        left_with = program().main(args=arguments, prog_name="orbit", standalone_mode=False)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else EXIT_REFUSED if leaving.code else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has gone; without this Python would complain once more when it flushes at its end.
        sys.stderr.close()
        return EXIT_REFUSED
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        click.secho(f"orbit: {error}", fg="red", err=True)
        for line in _violations(error):
            click.echo(line, err=True)
        return code
    return left_with if isinstance(left_with, int) else 0


def _exit_code(error: Exception) -> int | None:
    """Say how to leave after a refusal of ours; None for what is not ours."""
    from orbit.errors import OrbitError, Unavailable
    from orbit.sdk.errors import APIError, ConnectionFailed, OrbitSDKError

    match error:
        case Unavailable() | ConnectionFailed() | APIError(code="UNAVAILABLE"):
            return EXIT_UNREACHABLE
        case OrbitError() | OrbitSDKError():
            return EXIT_REFUSED
        case _:
            return None


def _violations(error: Exception) -> Iterator[str]:
    """Name every place where a value does not fit its schema, so that they can be mended in one go."""
    details = getattr(error, "details", None)
    found = details.get("violations") if isinstance(details, Mapping) else None
    for each in found if isinstance(found, list) else ():
        yield f"  {each.get('pointer') or '/'}: {each.get('message')}"


def _load(name: str, source: str) -> click.Command:
    module, _, attribute = source.partition(":")
    try:
        command = getattr(import_module(module), attribute)
    except ImportError as error:
        return _broken(name, error)
    assert isinstance(command, click.Command), f"{source} is no command"
    return command


def _broken(name: str, error: ImportError) -> click.Command:
    """Stand in for a command that can't be imported: it fails when it is used, and the others go on working."""

    def fail() -> None:
        message = f"the command {name!r} can't be loaded: {error}"
        raise click.ClickException(message) from error

    return click.Command(name, callback=fail, help=f"(can't be loaded: {error})")
