"""A `workflow` step at compile time: which children a definition names, which versions they are, what they take."""

from __future__ import annotations

from collections.abc import Iterable

from definitions import limits
from definitions.children import Child, ChildName, Children, misfits
from definitions.codes import Code
from definitions.findings import Findings
from definitions.graph import ChildSpec
from definitions.model import ChildModel, DefinitionModel, StepModel
from definitions.scope import steps_within
from definitions.template import CheckedTemplate, Template
from orbit.schemas.soundness import with_defaults
from orbit.schemas.validation import validator_of


def wanted_by(steps: Iterable[StepModel]) -> frozenset[ChildName]:
    """Name the children of all steps, those in blocks too."""
    kinds = (step.kind for step in steps_within(tuple(steps)))
    return frozenset(kind.name for kind in kinds if isinstance(kind, ChildModel) and kind.name is not None)


def resolve(model: ChildModel, parent: DefinitionModel, children: Children, findings: Findings) -> Child | None:
    """Find the version that a step means; None, with a finding, if there is none that it may be."""
    name = model.name
    if name is None:
        return None
    if name.workflow == parent.workflow and name.version in {0, parent.version}:
        message = f"`{name.workflow}` can't be its own child: it would never end"
        hint = f"name an earlier version, such as `{name.workflow}@1`" if name.version != 1 else None
        findings.at(Code.CHILD_CYCLE, model.place, message, hint)
        return None
    child = children.get(name)
    if child is None:
        hint = "publish it first, or check it with its file: `--with FILE`"
        findings.at(Code.CHILD_UNKNOWN, model.place, f"there is no workflow `{name}` here", hint)
        return None
    if child.is_circular:
        message = f"`{name}` leads back to a workflow that it is a child of: it would never end"
        findings.at(Code.CHILD_CYCLE, model.place, message, "name a version that does not lead back here")
        return None
    if child.is_retired:
        message = f"version {child.version} of `{child.workflow}` is retired"
        findings.at(Code.CHILD_RETIRED, model.place, message, "name a version that is in use")
        return None
    if child.depth > limits.CHILD_DEPTH_MAX:
        message = f"`{name}` has {child.depth - 1} children below each other, {limits.CHILD_DEPTH_MAX - 1} are allowed"
        findings.at(Code.CHILD_TOO_DEEP, model.place, message, "write the steps of one of them into its parent")
        return None
    return child


def check_input(model: ChildModel, child: Child, checked: CheckedTemplate, findings: Findings) -> None:
    """Find what of an input can't fit the child's schema: all of it where nothing is computed, else by its types."""
    template = checked.template
    if template is None:
        return
    if template.places:
        wrong = misfits(checked.type, child.input_schema)
    else:
        value = with_defaults(child.input_schema, template.source)
        wrong = [error.message[:200] for error in validator_of(child.input_schema).iter_errors(value)]
    for message in wrong:
        findings.at(Code.CHILD_INPUT, model.input_place, f"`{child.workflow}@{child.version}` refuses it: {message}")


def spec_of(model: ChildModel, child: Child, template: Template | None) -> ChildSpec | None:
    """Return the child as the engine starts it; None if its input has findings."""
    if template is None:
        return None
    return ChildSpec(
        workflow=child.workflow,
        version=child.version,
        input=template,
        timeout_seconds=model.timeout,
        bound_seconds=child.timeout_seconds,
        input_schema=child.input_schema,
        output_schema=child.output_schema or None,
        depth=child.depth,
        queues=tuple(sorted(child.queues)),
        redact=tuple(text for text in child.redact if text.split("/")[1] == "output"),
    )
