"""The `redact` of a definition: reads its paths, finds those that can't exist, and where masked values would be shown.

What is masked in the end is `definitions.masks`' to say. A value is shown wherever a name or a moment is made of it, so
such a use of a masked one is refused; so is a child that would show what its parent masks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from definitions import limits
from definitions.children import Child, Children
from definitions.codes import Code
from definitions.expression.types import DYN, Kind, Type
from definitions.fields import Fields, kind_of
from definitions.findings import Findings
from definitions.graph import ChildSpec, FailSpec, Node, PollSpec, SignalSpec, TaskSpec, UntilSpec
from definitions.hints import nearest
from definitions.masks import ROOTS, STEP_ROOTS, Trace, path_of_text
from definitions.model import DefinitionModel, RedactModel
from definitions.schema import type_of_schema
from definitions.scope import Catalogue
from definitions.template import Template
from definitions.yaml_tree import Broken, Scalar
from orbit.errors import InvalidRequest
from orbit.redaction import STEPS_MAX, Path, covers, path_text

_NAMES_SHOWN = 10
ERROR_PARTS = ("details", "message")


def read_redact(fields: Fields) -> tuple[RedactModel, ...]:
    """Read the paths of a definition; each that is none is a finding."""
    written = fields.sequence_of("redact")
    if written is None:
        return ()
    if len(written.items) > limits.REDACT_PATHS_MAX:
        message = f"a definition may mask {limits.REDACT_PATHS_MAX} paths, not {len(written.items)}"
        fields.findings.at(Code.OUT_OF_RANGE, fields.key_place("redact"), message, "mask what is around them")
    found: list[RedactModel] = []
    for item in written.items:
        if isinstance(item, Broken):
            continue
        if not isinstance(item, Scalar) or not isinstance(item.value, str):
            message = f"a masked path must be a text, not {kind_of(item)}"
            fields.findings.at(Code.WRONG_TYPE, item.place, message, "write it as `/input/card`")
            continue
        path = _read_path(item, item.value, fields.findings)
        if path is not None:
            found.append(RedactModel(item.value, path, item.place))
    return tuple(found)


def _read_path(item: Scalar, text: str, findings: Findings) -> Path | None:
    try:
        return path_of_text(text)
    except InvalidRequest:
        pass
    if text.count("/") > STEPS_MAX:
        message = f"a masked path may have {STEPS_MAX} steps"
        findings.at(Code.REDACT_PATH, item.place, message, "mask what is around it")
        return None
    names = [f"/{name}" for name in ROOTS]
    hint = _as_pointer(text)
    if text.startswith("/"):
        root, slash, rest = text[1:].partition("/")
        hint = _meant(root, ROOTS, "/", f"{slash}{rest[:80]}")
    message = f"a masked path begins with {', '.join(names)}, not {text[:80]!r}"
    findings.at(Code.REDACT_PATH, item.place, message, hint or "write it as `/input/card`")
    return None


def _meant(name: str, names: Iterable[str], before: str, after: str = "") -> str | None:
    """Hint at the path with the nearest name."""
    found = nearest(name, names)
    return None if found is None else f"did you mean `{before}{found}{after}`?"


def _as_pointer(text: str) -> str | None:
    """Say how what was written as an expression is written as a path."""
    path = tuple(text.replace("[", ".").replace("]", "").split("."))
    return f"write `{path_text(path)}`" if path[0] in ROOTS else None


def check_paths(model: DefinitionModel, catalogue: Catalogue, signals: Mapping[str, Type], findings: Findings) -> None:
    """Find the paths behind which there can be nothing, as the schemas say, and those that another one covers."""
    input_type = type_of_schema(model.input_schema)
    sound: list[RedactModel] = []
    for each in model.redact:
        why = _why_nothing(each.path, catalogue, signals, input_type)
        if why is None:
            sound.append(each)
        else:
            findings.at(why[0], each.place, *why[1:])
    for index, each in enumerate(sound):
        others = (other for place, other in enumerate(sound) if other.path != each.path or place < index)
        other = next((other for other in others if covers([other.path], each.path)), None)
        if other is not None:
            message = f"`{each.text[:80]}` is masked already, by `{other.text[:80]}`"
            findings.at(Code.CONTRADICTION, each.place, message, "leave it out")


Why = tuple[Code, str, str | None]


def _why_nothing(path: Path, catalogue: Catalogue, signals: Mapping[str, Type], input_type: Type) -> Why | None:
    match path:
        case ("input", *rest):
            return _outside(input_type, rest, "/input")
        case ("output", *_):
            return None
        case ("signals",):
            return Code.REDACT_PATH, "`/signals` needs the name of a signal", _each("/signals", signals)
        case ("signals", name, *rest):
            if name not in signals:
                hint = _meant(name, signals, "/signals/") or _each("/signals", signals)
                return Code.REDACT_PATH, f"no step waits for a signal `{name[:80]}`", hint
            return _outside(signals[name], rest, f"/signals/{name}")
        case ("steps", step, root, *rest):
            return _of_step(catalogue, step, root, rest)
        case _:
            hint = "write `/steps/<id>/output`, or " + ", ".join(f"`{root}`" for root in STEP_ROOTS if root != "output")
            return Code.REDACT_PATH, "`/steps` needs the id of a step and which of its values", hint


def _each(root: str, names: Iterable[str]) -> str:
    shown = ", ".join(f"`{root}/{name}`" for name in islice(names, _NAMES_SHOWN))
    return f"there is {shown}" if shown else "leave it out: no step waits for a signal"


def _of_step(catalogue: Catalogue, step: str, root: str, rest: list[str]) -> Why | None:
    known = catalogue.values_of(step)
    if known is None:
        near = _meant(step, catalogue.names(), "/steps/", f"/{root[:80]}") or _each("/steps", catalogue.names())
        return Code.UNKNOWN_STEP, f"there is no step `{step[:80]}`", near
    if root not in STEP_ROOTS:
        hint = _meant(root, STEP_ROOTS, f"/steps/{step}/")
        return Code.REDACT_PATH, f"a step has {', '.join(f'`{each}`' for each in STEP_ROOTS)}, not `{root[:80]}`", hint
    if root not in known:
        message = f"step `{step}` has no {root}: a step of its kind has {_listed(known)}"
        return Code.REDACT_PATH, message, "mask the value that it is made of"
    if root == "error" and rest and rest[0] not in ERROR_PARTS:
        hint = "its code and class are read by error handlers and always shown"
        return Code.REDACT_PATH, "of an error `message` and `details` can be masked", hint
    return _outside(catalogue.output_of(step), rest, f"/steps/{step}/output") if root == "output" else None


def _listed(roots: Iterable[str]) -> str:
    return ", ".join(f"`{root}`" for root in roots) or "nothing to mask"


def _outside(kind: Type, rest: Iterable[str], at: str) -> Why | None:
    """Say why there is certainly nothing behind the rest of a path, by the schema of what it begins in."""
    for step in rest:
        match kind.kind:
            case Kind.DYN:
                return None
            case Kind.MAP if step == "*":
                kind = DYN
            case Kind.MAP if step in kind.fields:
                kind = kind.fields[step]
            case Kind.MAP if kind.closed:
                known = ", ".join(f"`{name}`" for name in kind.fields) or "no field"
                hint = _meant(step, kind.fields, f"{at}/")
                return Code.UNKNOWN_FIELD, f"`{at}` has no field `{step[:80]}`; the schema has {known[:200]}", hint
            case Kind.MAP:
                near = _meant(step, kind.fields, f"{at}/")
                if near is not None:
                    message = f"the schema of `{at}` names no field `{step[:80]}`, but a similar one"
                    return Code.UNKNOWN_FIELD, message, f"{near} Else name this one in `properties`"
                return None
            case Kind.LIST if step == "*" or step.isdecimal():
                kind = kind.items or DYN
            case Kind.LIST:
                message = f"`{at}` is a list, and `{step[:80]}` is no place in one"
                return Code.REDACT_PATH, message, f"write `{at}/*/{step[:80]}` for every item"
            case _:
                return Code.REDACT_PATH, f"`{at}` is {kind}, with no parts", f"write `{at}`"
        at = f"{at}/{step}"
    return None


def check_shown(nodes: Iterable[Node], trace: Trace, children: Children, findings: Findings) -> None:
    """Find where masked values would be shown all the same: in names, moments and messages, and by children."""
    known = {(child.workflow, child.version): child for child in children.values()}
    for node in nodes:
        match node.spec:
            case FailSpec(message=message):
                _refuse(node, message, trace, findings, "the message of a failure")
            case UntilSpec(until=until) if trace.of_expression(node, until):
                what = "the instant of a wait is shown, and this one is made of a masked value"
                findings.at(Code.REDACT_SHOWN, until.positions.locate(0), what, _HINT)
            case ChildSpec() as spec:
                child = known.get((spec.workflow, spec.version))
                if child is not None:
                    _check_child(node, spec, child, trace, findings)
        task = node.spec.task if isinstance(node.spec, PollSpec) else node.spec
        for spec_ in (task, node.compensate):
            for key in spec_.concurrency_keys if isinstance(spec_, TaskSpec) else ():
                _refuse(node, key, trace, findings, "a concurrency key")


_HINT = "use a value that is not masked, such as an id"


def _refuse(node: Node, template: Template, trace: Trace, findings: Findings, what: str) -> None:
    if trace.of_template(node, template):
        place = next(iter(template.places.values())).locate(0)
        findings.at(Code.REDACT_SHOWN, place, f"{what} is shown, and this one is made of a masked value", _HINT)


def _check_child(node: Node, spec: ChildSpec, child: Child, trace: Trace, findings: Findings) -> None:
    own = [path_of_text(text)[1:] for text in child.redact if text.split("/")[1] == "input"]
    bare = [path for path in trace.input_of(node) if not covers(own, path)]
    if bare:
        name = f"{spec.workflow}@{spec.version}"
        paths = ", ".join(f"`{path_text(('input', *path))}`" for path in bare[:5])
        message = f"the child `{name}` would show what is masked here: its {paths}"
        hint = f"publish a version of `{spec.workflow}` with `redact: [{path_text(('input', *bare[0]))}]`"
        findings.at(Code.REDACT_SHOWN, (node.line, node.column), message, hint)


def signal_types(nodes: Iterable[Node], catalogue: Catalogue) -> dict[str, Type]:
    """Give the type of each signal's payload; where several waits take one it is not known."""
    found: dict[str, Type] = {}
    for node in nodes:
        if isinstance(node.spec, SignalSpec):
            name = node.spec.signal
            found[name] = DYN if name in found else catalogue.output_of(node.id)
    return found
