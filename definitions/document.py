"""Reads a whole definition from the YAML tree: the keys of the top level; steps are read by `definitions.steps`."""

from __future__ import annotations

from definitions import keys, limits, names
from definitions.codes import Code
from definitions.fields import Fields, kind_of
from definitions.findings import Findings
from definitions.graph import KeyPolicy, StartRules
from definitions.model import DefinitionModel, TaskOptions
from definitions.redaction import read_redact
from definitions.steps import StepReader
from definitions.task_fields import read_options, read_schema
from definitions.yaml_tree import Mapping, YamlNode

LANGUAGE = "weave/1"

# What an instance accepts where the definition declares nothing: any object.
ANY_OBJECT = {"type": "object"}


def read_document(tree: YamlNode, findings: Findings) -> DefinitionModel | None:
    """Return the model of a definition, or None if the tree is no object at all."""
    if not isinstance(tree, Mapping):
        message = f"a definition must be an object with `orbit: {LANGUAGE}`, not {kind_of(tree)}"
        findings.at(Code.WRONG_TYPE, tree.place, message)
        return None
    fields = Fields(tree, keys.TOP, findings)
    fields.text("orbit", required=True, form=names.LANGUAGE)
    reader = StepReader(findings)
    schema = read_schema(fields, "input")
    return DefinitionModel(
        workflow=fields.text("workflow", required=True, form=names.WORKFLOW),
        version=fields.integer("version", 1, limits.VERSION_MAX, required=True),
        title=fields.text("title", characters_max=limits.TITLE_CHARACTERS_MAX),
        # A schema with mistakes says nothing about types; one that is absent says that the input is an object.
        input_schema=schema if schema is not None else ({} if fields.has("input") else ANY_OBJECT),
        timeout=fields.duration("timeout", limits.SPAN_SECONDS_MIN, limits.SPAN_SECONDS_MAX),
        on_failure=fields.choice("on_failure", ("hold", "fail", "compensate")) or "hold",
        on_failure_place=fields.key_place("on_failure") if fields.has("on_failure") else tree.place,
        defaults=_read_defaults(fields),
        steps=reader.read_list(fields.node("steps", required=True), "`steps`"),
        output=fields.node("output"),
        place=tree.place,
        starts=_read_starts(fields),
        redact=read_redact(fields),
    )


def _read_starts(fields: Fields) -> StartRules:
    policy = fields.choice("business_key_policy", tuple(KeyPolicy)) or KeyPolicy.ALLOW
    return StartRules(KeyPolicy(policy), fields.integer("max_running", 1, limits.RUNNING_MAX))


def _read_defaults(fields: Fields) -> TaskOptions:
    mapping = fields.mapping_of("defaults")
    if mapping is None:
        return TaskOptions()
    return read_options(Fields(mapping, keys.DEFAULTS, fields.findings))
