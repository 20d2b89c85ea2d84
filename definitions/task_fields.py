"""Reads what steps and `defaults` say about their tasks, and the JSON Schemas beside them."""

from __future__ import annotations

from definitions import keys, limits, names
from definitions.codes import Code
from definitions.fields import Fields
from definitions.findings import Findings
from definitions.model import RetryModel, TaskModel, TaskOptions
from definitions.yaml_tree import Broken, Mapping, Scalar, Sequence, YamlNode, has_broken, to_json
from orbit.jsontext import Json
from orbit.schemas.soundness import Location, bad_defaults, endless_reference, foreign_references, violations


def read_options(fields: Fields) -> TaskOptions:
    """Read the options of a task from the mapping that holds them."""
    start_within = fields.duration("start_within", limits.SPAN_SECONDS_MIN, limits.SPAN_SECONDS_MAX)
    attempt_timeout = fields.duration(
        "attempt_timeout", limits.ATTEMPT_TIMEOUT_SECONDS_MIN, limits.ATTEMPT_TIMEOUT_SECONDS_MAX
    )
    timeout = fields.duration("timeout", limits.SPAN_SECONDS_MIN, limits.SPAN_SECONDS_MAX)
    if attempt_timeout and timeout and attempt_timeout > timeout:
        message = "`attempt_timeout` is longer than `timeout`, so no attempt could ever use it"
        fields.findings.at(Code.CONTRADICTION, fields.key_place("attempt_timeout"), message)
    return TaskOptions(
        queue=fields.text("queue", form=names.QUEUE),
        start_within=start_within,
        attempt_timeout=attempt_timeout,
        timeout=timeout,
        priority=fields.integer("priority", limits.PRIORITY_MIN, limits.PRIORITY_MAX),
        retry=_read_retry(fields),
        concurrency_keys=_read_concurrency_keys(fields),
    )


def _read_concurrency_keys(fields: Fields) -> tuple[Scalar, ...] | None:
    """Read the keys that a task holds; their holes are looked at where the step's scope is known."""
    written = fields.sequence_of("concurrency_keys")
    if written is None:
        return None
    if len(written.items) > limits.CONCURRENCY_KEYS_MAX:
        message = f"a task may have {limits.CONCURRENCY_KEYS_MAX} concurrency keys, not {len(written.items)}"
        fields.findings.at(Code.OUT_OF_RANGE, fields.key_place("concurrency_keys"), message)
    for item in written.items:
        if not isinstance(item, (Scalar, Broken)):
            fields.findings.at(Code.WRONG_TYPE, item.place, "a concurrency key must be a text")
    return tuple(item for item in written.items if isinstance(item, Scalar) and _is_key(item, fields.findings))


def _is_key(item: Scalar, findings: Findings) -> bool:
    text = item.value
    if not isinstance(text, str):
        findings.at(
            Code.WRONG_TYPE, item.place, "a concurrency key must be a text", f'write "{item.text[:40]}" in quotes'
        )
        return False
    if not 1 <= len(text) <= limits.CONCURRENCY_KEY_CHARACTERS_MAX and "${" not in text:
        message = f"a concurrency key has 1 to {limits.CONCURRENCY_KEY_CHARACTERS_MAX} characters, not {len(text)}"
        findings.at(Code.OUT_OF_RANGE, item.place, message)
        return False
    if text.endswith("*"):
        message = "a concurrency key can't end in `*`: where limits are set that stands for all keys that begin so"
        findings.at(Code.BAD_VALUE, item.place, message, "name the key itself, such as `supplier:${ input.supplier }`")
        return False
    return True


def _read_retry(fields: Fields) -> RetryModel:
    mapping = fields.mapping_of("retry")
    if mapping is None:
        return RetryModel()
    retry = Fields(mapping, keys.RETRY, fields.findings)
    backoff = retry.duration("backoff", limits.BACKOFF_SECONDS_MIN, limits.BACKOFF_SECONDS_MAX)
    max_backoff = retry.duration("max_backoff", limits.BACKOFF_SECONDS_MIN, limits.BACKOFF_SECONDS_MAX)
    if backoff and max_backoff and backoff > max_backoff:
        message = "`backoff` is longer than `max_backoff`"
        fields.findings.at(Code.CONTRADICTION, retry.key_place("backoff"), message)
    attempts = retry.integer("max_attempts", limits.ATTEMPTS_MIN, limits.ATTEMPTS_MAX)
    return RetryModel(attempts, backoff, max_backoff, mapping.place)


def read_task(fields: Fields) -> TaskModel:
    """Read a task from the mapping that holds `task`, `input`, `output` and the options."""
    options = read_options(fields)
    schema = read_schema(fields, "output")
    written = fields.text("task", required=True, form=names.TASK_TYPE)
    match = names.TASK_TYPE.pattern.fullmatch(written) if written else None
    place = fields.mapping.entries["task"][1].place if fields.has("task") else fields.mapping.place
    return TaskModel(
        type=match.group(1) if match else None,
        version=int(match.group(2)) if match else 1,
        input=fields.node("input"),
        options=options,
        output_schema=schema,
        place=place,
    )


def read_schema(fields: Fields, name: str) -> Json | None:
    """Read a JSON Schema and find what is wrong with it, each at its place; None if absent or wrong."""
    node = fields.node(name)
    if node is None:
        return None
    if not isinstance(node, Mapping) and not (isinstance(node, Scalar) and isinstance(node.value, bool)):
        message = f"`{name}` must be a JSON Schema (an object)"
        fields.findings.at(Code.WRONG_TYPE, node.place, message)
        return None
    if has_broken(node):
        return None
    schema = to_json(node)
    return schema if _is_sound(schema, node, fields.findings) else None


def _is_sound(schema: Json, node: YamlNode, findings: Findings) -> bool:
    wrong = violations(schema)
    for location, message in wrong:
        findings.at(Code.SCHEMA_INVALID, _place_of(node, location), message)
    if wrong:
        return False
    references = list(foreign_references(schema))
    for location, message in references:
        findings.at(Code.SCHEMA_REFERENCE, _place_of(node, location), message)
    endless = None if references else endless_reference(schema)
    if endless is not None:
        message = "the schema applies itself to the same value again, or too many schemas at once: it would not end"
        findings.at(Code.SCHEMA_REFERENCE, _place_of(node, endless), message)
    if references or endless is not None:
        return False
    defaults = list(bad_defaults(schema))
    for location, message in defaults:
        findings.at(Code.SCHEMA_DEFAULT, _place_of(node, location), f"the default does not fit: {message}")
    return not defaults


def _place_of(node: YamlNode, location: Location) -> tuple[int, int]:
    """Return where the part of `node` at `location` stands, or the nearest part around it."""
    for part in location:
        if isinstance(node, Mapping) and part in node.entries:
            node = node.entries[str(part)][1]
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
        else:
            break
    return node.place
