"""What of a model can be imported, and every node that is not: an import that goes on behind these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from onnx import NodeProto

from tilewright.errors import UnsupportedOp
from tilewright.frontend.onnx import native
from tilewright.frontend.onnx.build import DataDependentShape, Importer, refuse_random
from tilewright.frontend.onnx.infer import find_schema
from tilewright.frontend.onnx.initializers import Initializers
from tilewright.frontend.onnx.inputs import BoundInputs, resolve
from tilewright.frontend.onnx.other_domains import require_known
from tilewright.frontend.onnx.prepared import PreparedModel
from tilewright.frontend.onnx.scope import Scope
from tilewright.ir.bodies import body_graphs, free_names
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Shape, Value
from tilewright.records import dataclass

Kind = Literal["refused", "unknown", "host", "deferred"]
"""Of a node that no graph of static shapes holds: it is not supported; it reads what such a node gives, so
that nobody knows its shapes; data decide the shape of its result, so that it runs by itself; or it is made
when such a shape has arrived."""


@dataclass(frozen=True, slots=True)
class OtherNode:
    """A node that is not in the graph of a survey, and why."""

    name: str
    op_type: str
    opset: int
    reason: str
    kind: Kind


def survey_graph(prepared: PreparedModel, shapes: Mapping[str, Shape]) -> tuple[Graph, tuple[OtherNode, ...]]:
    """The graph of all nodes that can be imported, results of others being its inputs, and those others.

    Raises:
        ModelRejected, UnsupportedOp, UsageError: as `import_model`, but for nodes that are not supported.
    """
    graph, survey = prepared.imported(shapes, _Survey)
    return graph, tuple(survey.others)


class _Survey(Importer):
    def __init__(self, initializers: Initializers, bound: BoundInputs) -> None:
        super().__init__(initializers, bound)
        self.others: list[OtherNode] = []
        self._unknown: dict[str, Kind] = {}

    def _nodes(self, nodes: Iterable[NodeProto], scope: Scope) -> None:
        if scope.parent is not None or scope.depth:
            super()._nodes(nodes, scope)  # of a definition or a body: its node is refused as a whole
            return
        for proto in nodes:
            native.check_time()
            num_nodes = len(self._graph.nodes)
            behind = {self._unknown[name] for name in _read_by(proto) if name in self._unknown}
            try:
                if not behind:
                    super()._nodes([proto], scope)
                    continue
                _require_possible(proto, scope)
                if "unknown" in behind:
                    self._set_aside(proto, scope, "reads results of nodes that are refused", "unknown")
                else:
                    self._set_aside(proto, scope, "made at the shapes that data decide before it", "deferred")
            except DataDependentShape:
                self._undo(num_nodes)
                kind: Kind = "deferred" if any(True for _ in body_graphs(proto)) else "host"
                self._set_aside(proto, scope, "data decide the shape of its result", kind)
            except UnsupportedOp as error:
                self._undo(num_nodes)
                self._set_aside(proto, scope, str(error), "refused")

    def _set_aside(self, proto: NodeProto, scope: Scope, reason: str, kind: Kind) -> None:
        """Note a node; its results become inputs of the graph where the model declares what they are."""
        label = proto.name or next((name for name in proto.output if name), proto.op_type)
        opset = scope.opsets.get("" if proto.domain == "ai.onnx" else proto.domain, 0)
        self.others.append(OtherNode(label, proto.op_type, opset, reason, kind))
        behind: Kind = "deferred" if kind in ("host", "deferred") else "unknown"
        for name in filter(None, proto.output):
            declared = scope.declared.get(name)
            shape = None if declared is None else resolve(declared, self._bound.symbols)
            if declared is None or shape is None:
                self._unknown[name] = behind
            else:
                scope.values[name] = self._graph.add_input(Value(name, declared.dtype, shape))

    def _output(self, name: str, scope: Scope) -> Value:
        if name in self._unknown:
            return self._graph.add_input(Value(name, DType.FLOAT32, ()))
        return super()._output(name, scope)


def _read_by(proto: NodeProto) -> set[str]:
    """Names that a node or its bodies read."""
    return {*proto.input, *(name for body in body_graphs(proto) for name in free_names(body))}


def _require_possible(proto: NodeProto, scope: Scope) -> None:
    """Refuse what no shapes could make possible.

    Raises:
        UnsupportedOp: an operator that is not known, or random.
    """
    refuse_random(proto)
    if proto.domain in ("", "ai.onnx"):
        find_schema(proto, scope.opsets[""])
    else:
        require_known(proto)
