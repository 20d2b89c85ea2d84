"""What of a workflow's instances is never shown: what its definition masks, and all that is made of that.

A definition names paths; the templates and expressions of its graph say where the values behind them go: into the
params of a task, the input of a child, a computed value, the instance's output. What is copied is masked with the same
parts, what is computed is masked as a whole. All of it is known before anything runs, so running costs nothing more.

The surprising rule: a condition that looks at masked values masks nothing. Which way it went is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from definitions.expression import Expression
from definitions.expression.expression import parse_known
from definitions.expression.origins import Origin, origins_of
from definitions.graph import (
    ChildSpec,
    ForeachSpec,
    Graph,
    Handling,
    Node,
    NodeKind,
    PollSpec,
    ReturnSpec,
    SetSpec,
    SignalSpec,
    TaskSpec,
)
from definitions.template import Template, holes_of
from orbit.redaction import PATHS_MAX, STEPS_MAX, Path, below, path_read, path_text

ROOTS = ("input", "output", "signals", "steps")
STEP_ROOTS = ("input", "output", "error", "progress", "evidence")


class StepMasks(Struct, frozen=True):
    """What of a step is not shown, by the value that the paths begin in.

    `input` is what its task or child is given, `undoing` what the task is given that undoes it.
    """

    input: tuple[Path, ...] = ()
    output: tuple[Path, ...] = ()
    error: tuple[Path, ...] = ()
    progress: tuple[Path, ...] = ()
    evidence: tuple[Path, ...] = ()
    undoing: tuple[Path, ...] = ()


class Masks(Struct, frozen=True):
    """What of an instance is not shown; `signals` by name, `steps` by the author's id."""

    input: tuple[Path, ...] = ()
    output: tuple[Path, ...] = ()
    signals: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    steps: Mapping[str, StepMasks] = field(default_factory=dict)

    def of_step(self, step: str) -> StepMasks:
        """Give those of a step."""
        return self.steps.get(step, NOTHING_OF_STEP)


NOTHING_OF_STEP = StepMasks()
NOTHING = Masks()


def path_of_text(text: str) -> Path:
    """Read a path of a definition; raises InvalidRequest for what is none."""
    return path_read(text, roots=ROOTS, pointer="")


def masks_of(graph: Graph) -> Masks:
    """Say what is masked in the instances of a compiled version."""
    return trace(graph.nodes, graph.output, graph.redact).masks()


def trace(nodes: Iterable[Node], output: Template | None, redact: Iterable[str]) -> Trace:
    """Follow what is masked through the nodes of a graph, complete or not."""
    return Trace(tuple(nodes), output, tuple(path_of_text(text) for text in redact))


class Trace:
    """Follows masked values; each step's output is looked at once, when something reads it."""

    def __init__(self, nodes: tuple[Node, ...], output: Template | None, declared: tuple[Path, ...]) -> None:
        self._nodes = {node.id: node for node in nodes}
        self._output = output
        self._declared = declared
        self._outputs: dict[str, tuple[Path, ...]] = {}
        has_source = bool(declared) or any(isinstance(node.spec, ChildSpec) and node.spec.redact for node in nodes)
        self.is_empty = not has_source

    def masks(self) -> Masks:
        """Give all masks; NOTHING where nothing is declared, so that most definitions pay for one look."""
        if self.is_empty:
            return NOTHING
        found = {name: self._of_step(node) for name, node in self._nodes.items()}
        signals: dict[str, tuple[Path, ...]] = {}
        for node in self._nodes.values():
            if isinstance(node.spec, SignalSpec):  # what ends a wait is its output: both are one value
                name = node.spec.signal
                signals[name] = _outermost([*signals.get(name, ()), *self.output_of(node.id)])
        return Masks(
            input=tuple(below(self._declared, "input")),
            output=self._of_instance(),
            signals={name: paths for name, paths in signals.items() if paths},
            steps={name: step for name, step in found.items() if step != NOTHING_OF_STEP},
        )

    def of_template(self, node: Node | None, template: Template | None) -> tuple[Path, ...]:
        """Say which parts of what a template gives at a node are masked."""
        if template is None or self.is_empty:
            return ()
        found: dict[Path, None] = {}
        for target, text, is_whole in holes_of(template):
            for origin in _origins(text):
                for path in self._reached(node, origin):
                    found[(*target, *path) if is_whole else target] = None
        return _outermost(found)

    def of_expression(self, node: Node, expression: Expression | None) -> tuple[Path, ...]:
        """Say which parts of an expression's value are masked."""
        if expression is None or self.is_empty:
            return ()
        return _outermost(path for origin in _origins(expression.source) for path in self._reached(node, origin))

    def _reached(self, node: Node | None, origin: Origin) -> Iterator[Path]:
        hidden = below(self._of_root(node, origin.source), *origin.source)
        if hidden and not origin.is_copy:
            yield origin.target
        else:
            yield from ((*origin.target, *path) for path in hidden)

    def _of_root(self, node: Node | None, source: Path) -> list[Path]:
        """Give the masks of what a path reads, as paths that begin with the same root."""
        match source:
            case ("input", *_):
                return [path for path in self._declared if path[0] == "input"]
            case ("steps", step, "output", *_) if step in self._nodes:
                return [("steps", step, "output", *path) for path in self.output_of(step)]
            case ("item", *_) if node is not None and node.within is not None:
                opener = self._nodes[node.within]
                items = opener.spec.items if isinstance(opener.spec, ForeachSpec) else None
                return [("item", *path) for path in below(self.of_expression(opener, items), "*")]
            case ("error", *_) if node is not None and node.error_of is not None:
                return [("error", *path) for path in self._own(node.error_of, "error")]
            case _:
                return []

    def input_of(self, node: Node) -> tuple[Path, ...]:
        """Say what is masked of what a node gives its task or child."""
        spec = node.spec.task if isinstance(node.spec, PollSpec) else node.spec
        given = self.of_template(node, spec.input) if isinstance(spec, TaskSpec | ChildSpec) else ()
        return _outermost([*self._own(node.id, "input"), *given])

    def output_of(self, step: str) -> tuple[Path, ...]:
        """Say what of a step's output is masked."""
        known = self._outputs.get(step)
        if known is not None:
            return known
        self._outputs[step] = ()  # what can't be: a step reads no output that is made of its own
        node = self._nodes[step]
        found = list(self._own(step, "output"))
        match node.spec:
            case SetSpec(values=values):
                found += self.of_template(node, values)
            case ChildSpec(redact=texts):
                found += below(map(path_of_text, texts), "output")
            case SignalSpec(signal=name):
                found += below(self._declared, "signals", name)
            case ForeachSpec(output=output, last=last):
                found += [("*", *path) for path in self._of_items(node, output, last)]
        for handler in node.handlers:
            if handler.then is Handling.CONTINUE:
                found += self.of_template(_handling(node), handler.value)
        self._outputs[step] = _outermost(found)
        return self._outputs[step]

    def _of_items(self, node: Node, output: Template | None, last: str | None) -> tuple[Path, ...]:
        if output is not None:
            inside = next((each for each in self._nodes.values() if each.within == node.id), node)
            return self.of_template(inside, output)
        return () if last is None else self.output_of(last)

    def _of_instance(self) -> tuple[Path, ...]:
        found = [*below(self._declared, "output"), *self.of_template(None, self._output)]
        for node in self._nodes.values():
            if node.kind is NodeKind.RETURN and isinstance(node.spec, ReturnSpec):
                found += self.of_template(node, node.spec.output)
        return _outermost(found)

    def _of_step(self, node: Node) -> StepMasks:
        undoing = () if node.compensate is None else self.of_template(node, node.compensate.input)
        return StepMasks(
            input=self.input_of(node),
            output=self.output_of(node.id),
            error=self._own(node.id, "error"),
            progress=self._own(node.id, "progress"),
            evidence=self._own(node.id, "evidence"),
            undoing=undoing,
        )

    def _own(self, step: str, root: str) -> tuple[Path, ...]:
        return tuple(below(self._declared, "steps", step, root))


def texts_of(paths: Iterable[Path], root: str) -> list[str]:
    """Write paths below a root as text; where they are very many, or very long, more is masked than need be."""
    short = _outermost(path[: STEPS_MAX - 1] for path in paths)
    for length in (1, 0):
        if len(short) > PATHS_MAX:
            short = _outermost(path[:length] for path in short)
    return [path_text((root, *path)) for path in short]


def _origins(text: str) -> tuple[Origin, ...]:
    return origins_of(parse_known(text))


def _handling(node: Node) -> Node:
    """Give a node as its own handlers' values see it: they read its error."""
    return replace(node, error_of=node.id)


def _outermost(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Leave out what lies inside something that is masked as a whole."""
    kept = dict.fromkeys(paths)
    return tuple(sorted(path for path in kept if not any(path[:end] in kept for end in range(len(path)))))
