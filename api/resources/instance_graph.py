"""The graph of an instance with the state of each step: as data, as a picture, as Mermaid text."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.json import encode

from api.calls import Call, Operation, Reply
from api.models.instances import InstanceGraph
from api.native_thread import NativeThread
from api.parameters import word_parameter
from definitions.graph import Graph
from definitions.graph_json import graph_to_json
from definitions.mermaid import graph_to_mermaid
from definitions.svg import graph_to_svg
from engine.control import MISSING
from engine.service import Instances
from orbit.access import Scope
from orbit.jsontext import Json

_DRAWINGS = {"svg": ("image/svg+xml", graph_to_svg), "mermaid": ("text/plain; charset=utf-8", graph_to_mermaid)}
_FORMATS = ("json", *_DRAWINGS)
_TYPES = tuple(media_type.partition(";")[0] for media_type, _ in _DRAWINGS.values())


class InstanceGraphs:
    """`/graph` of an instance."""

    def __init__(self, instances: Instances, compiler: NativeThread) -> None:
        self._instances = instances
        self._compiler = compiler

    def operations(self) -> list[Operation]:
        """Declare it."""
        form = word_parameter("format", "As data, or drawn as a picture or as Mermaid text", list(_FORMATS))
        return [
            Operation(
                "GET", "/v1/instances/{instance_id}/graph", "Read its steps' graph with their states, or draw it",
                self.graph, Scope.INSTANCES_READ, InstanceGraph, query=(form,), other_types=_TYPES,
            ),
        ]  # fmt: skip

    def graph(self, call: Call) -> Reply:
        """Read an instance's graph, or draw it; for a large one either is done beside the loop."""
        form = call.query.word("format", _FORMATS)
        instance_id = call.path_id("instance_id", message=MISSING)
        graph, states = self._instances.instance_graph(call.namespace_id, instance_id, queues=call.caller.queues)
        if form is None or form == "json":
            return call.data_written(self._compiler.run(_written, graph, states))
        media_type, draw = _DRAWINGS[form]
        drawn = self._compiler.run(draw, graph, states)
        # What a browser opens from here is a picture: it runs and loads nothing.
        headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
        return Reply(drawn.encode(), content_type=media_type, headers=headers)


def _written(graph: Graph, states: Mapping[str, Json]) -> bytes:
    document = graph_to_json(graph)
    return encode({**{name: document[name] for name in ("format", "nodes", "edges")}, "states": states})
