"""The one entry of the language: text to a step graph, or to all the findings that speak against it.

text → positioned tree → checked model → step graph with bounds. No database, no clock, no network; the same bytes give
the same outcome everywhere.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from definitions import limits
from definitions.bound_limits import DEFAULTS, BoundLimits, check_bounds
from definitions.bounds import Bounds, sequence
from definitions.child_steps import wanted_by
from definitions.children import ChildName, Children
from definitions.codes import Code
from definitions.collector import collector_paused
from definitions.document import read_document
from definitions.findings import Finding, Findings
from definitions.graph import Graph, Node
from definitions.masks import trace as trace_of
from definitions.model import DefinitionModel
from definitions.redaction import check_paths, check_shown, signal_types
from definitions.source import Source
from definitions.walk import Woven
from definitions.weaver import Weaver
from definitions.yaml_tree import read_yaml

# 2 adds error handlers and compensation, 3 masked paths; what does without them stays readable for older nodes.
GRAPH_FORMAT = 1
NO_CHILDREN: Children = {}


class Compiled(Struct, frozen=True):
    """The outcome: a graph and no findings, or findings and no graph. `data` is the source as it came, in bytes.

    `identity` is the workflow and the version that the text says it is, `wanted` are the children that it names; both
    are known with findings too, if the text could be read so far.
    """

    graph: Graph | None
    findings: tuple[Finding, ...]
    source: str
    data: bytes
    identity: tuple[str, int] | None = None
    wanted: frozenset[ChildName] = frozenset()

    @property
    def digest(self) -> bytes:
        """Hash the source: SHA-256, 32 bytes, by which a publication that is repeated is known."""
        from hashlib import sha256  # noqa: PLC0415  (it loads OpenSSL, and who only checks has no use for it)

        return sha256(self.data).digest()

    def render(self, file: str = "definition.yaml") -> str:
        """Write all findings for people."""
        return "\n".join(finding.render(file) for finding in self.findings)


def compile_definition(
    text: bytes | str, children: Children = NO_CHILDREN, *, is_strict: bool = False, allowed: BoundLimits = DEFAULTS
) -> Compiled:
    """Compile a definition. Never raises for bad text, and takes bounded time and memory for any.

    A child that it names and that is not among `children` is a finding. `is_strict`: so is a field that no schema
    declares; else it is looked for when an expression is evaluated. `allowed` is what one instance may use at most.
    """
    with collector_paused():
        return _compiled(text, children, is_strict=is_strict, allowed=allowed)


def _compiled(text: bytes | str, children: Children, *, is_strict: bool, allowed: BoundLimits) -> Compiled:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > limits.SOURCE_BYTES_MAX:
        return _refused(Code.SOURCE_TOO_LARGE, f"a definition may have {limits.SOURCE_BYTES_MAX} bytes", data)
    try:
        decoded = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        message = f"byte {error.start + 1} is not UTF-8"
        return _refused(Code.NOT_UTF8, message, data, (line, column))
    source = Source(decoded)
    findings = Findings(source)
    model = _read(source, findings)
    graph = None
    if model is not None:
        woven = Weaver(replace(model, is_strict=is_strict), source, findings, children).weave()
        graph = _graph(model, woven, children, allowed=allowed, findings=findings)
    compiled = Compiled(None if findings else graph, findings.sorted(), decoded, data)
    return compiled if model is None else replace(compiled, identity=_identity(model), wanted=wanted_by(model.steps))


def _refused(code: Code, message: str, data: bytes, place: tuple[int, int] = (1, 1)) -> Compiled:
    findings = Findings(Source(""))
    findings.at(code, place, message)
    return Compiled(None, findings.sorted(), "", data)


def _read(source: Source, findings: Findings) -> DefinitionModel | None:
    tree = read_yaml(source, findings)
    return None if tree is None else read_document(tree, findings)


def _identity(model: DefinitionModel) -> tuple[str, int] | None:
    return None if model.workflow is None or model.version is None else (model.workflow, model.version)


def _graph(
    model: DefinitionModel, woven: Woven, children: Children, *, allowed: BoundLimits, findings: Findings
) -> Graph | None:
    flow = woven.bounds
    if model.timeout is not None:
        flow = replace(flow, active_seconds=min(flow.active_seconds, model.timeout))
    # The time-out ends the flow; what undoes it comes after, one task at a time.
    proven = sequence([flow, woven.undoing])
    held = replace(proven, active_seconds=flow.active_seconds)
    check_bounds(model, held, woven.parts, allowed=allowed, findings=findings)
    redact = tuple(each.text for each in model.redact)
    if model.redact:
        check_paths(model, woven.catalogue, signal_types(woven.nodes, woven.catalogue), findings)
    trace = trace_of(woven.nodes, woven.output, redact)
    if not trace.is_empty:
        check_shown(woven.nodes, trace, children, findings)
    if findings or model.workflow is None or model.version is None:
        return None
    return Graph(
        format=_format_of(woven.nodes, is_masking=not trace.is_empty),
        workflow=model.workflow,
        version=model.version,
        title=model.title,
        nodes=woven.nodes,
        edges=woven.edges,
        input_schema=model.input_schema,
        output=woven.output,
        timeout_seconds=_timeout(model, flow),
        on_failure=model.on_failure,
        bounds=proven,
        starts=model.starts,
        output_schema=woven.output_schema,
        redact=redact,
    )


def _format_of(nodes: tuple[Node, ...], *, is_masking: bool) -> int:
    """Give the oldest form of a graph that says all of it: older nodes can read what needs nothing newer."""
    if is_masking:
        return 3
    return 2 if any(node.handlers or node.compensate for node in nodes) else GRAPH_FORMAT


def _timeout(model: DefinitionModel, flow: Bounds) -> float:
    """Return the instance's time-out: as written, or the sum of the steps' bounds with an allowance.

    The allowance keeps an instance whose steps used all their time, or whose node was restarted, from ending by its own
    time-out first.
    """
    if model.timeout is not None:
        return model.timeout
    return min(flow.active_seconds + limits.TIMEOUT_ALLOWANCE_SECONDS, limits.SPAN_SECONDS_MAX)
