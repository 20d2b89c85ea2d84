"""Weaves one task of a definition: its policy, its input and keys as compiled expressions, and its bounds."""

from __future__ import annotations

from definitions import bounds
from definitions.bounds import Bounds
from definitions.codes import Code
from definitions.expression import Environment
from definitions.expressions import ExpressionCompiler
from definitions.findings import Findings
from definitions.graph import TaskSpec
from definitions.model import TaskModel, TaskOptions
from definitions.tasks import Policy, keys_of, policy_of, spec_of
from definitions.template import Template


class TaskWeaver:
    """Weaves the tasks of one definition, which takes what they do not say themselves from its defaults."""

    def __init__(self, defaults: TaskOptions, expressions: ExpressionCompiler, findings: Findings) -> None:
        self._defaults = defaults
        self._expressions = expressions
        self._findings = findings

    def woven(self, task: TaskModel, environment: Environment) -> tuple[TaskSpec | None, Bounds]:
        """Return how a task is submitted, None where something of it is wrong, and what it can use at most."""
        policy = self.policy(task)
        template = self._expressions.template(task.input, environment).template
        keys = self.keys(task, environment)
        spec = spec_of(task, policy, template, keys) if policy and template and task.type else None
        return spec, policy.bounds() if policy else bounds.NOTHING

    def policy(self, task: TaskModel, timeout_max: float | None = None) -> Policy | None:
        """Return the policy in force for a task; None, with a finding, where no queue is named."""
        policy = policy_of(task.options, self._defaults, timeout_max=timeout_max)
        if policy is None:
            message = "no queue is named for this task"
            hint = "write `queue: NAME` here or in `defaults`"
            self._findings.at(Code.QUEUE_MISSING, task.place, message, hint)
        return policy

    def keys(self, task: TaskModel, environment: Environment) -> tuple[Template, ...]:
        """Compile the concurrency keys of a task."""
        written = keys_of(task.options, self._defaults)
        made = [self._expressions.text(key, environment, what="a concurrency key") for key in written]
        return tuple(key for key in made if key is not None)
