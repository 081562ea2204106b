"""What of a model can be imported, and every node that is not: an import that goes on behind these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from onnx import ModelProto, NodeProto

from tilewright.errors import ModelRejected, UnsupportedOp
from tilewright.frontend.onnx import native
from tilewright.frontend.onnx.build import DataDependentShape, Importer
from tilewright.frontend.onnx.infer import find_schema
from tilewright.frontend.onnx.initializers import Initializers
from tilewright.frontend.onnx.inputs import BoundInputs, Declaration, resolve, resolve_dims
from tilewright.frontend.onnx.other_domains import require_known
from tilewright.frontend.onnx.prepare import opset_versions
from tilewright.frontend.onnx.prepared import PreparedModel
from tilewright.frontend.onnx.protos import quoted
from tilewright.frontend.onnx.scope import Scope
from tilewright.frontend.onnx.validate import refuse_random
from tilewright.ir.bodies import body_graphs, free_names
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Shape, Value
from tilewright.records import dataclass

_MAX_NAMED = 3
# Of open dims, tried one after another: lengths of short texts, pixels of images, frames of sound.
_USUAL_EXTENTS = (64, 224, 16, 480, 128, 8, 1, 16_000)

Kind = Literal["refused", "unknown", "host", "deferred"]
"""Of a node that no graph of static shapes holds: it is not supported; it reads what such a node gives, so
that its shapes are unknown; data decide the shape of its result, so that it runs by itself; or it is made
when such a shape has arrived."""


@dataclass(frozen=True, slots=True)
class OtherNode:
    """A node that is not in the graph of a survey, and why."""

    name: str
    op_type: str
    opset: int
    reason: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Survey:
    """The graph of all nodes that can be imported, results of others being its inputs, and those others.

    `shapes` are those that were tried for inputs whose shapes are open. If none of them fits the operators,
    `misfit` is the first complaint, and every node that some shapes might make possible is deferred.
    """

    graph: Graph
    others: tuple[OtherNode, ...]
    shapes: Mapping[str, Shape]
    misfit: str = ""


def survey_graph(prepared: PreparedModel, given: Mapping[str, Shape], *, tries: bool) -> Survey:
    """What of a model can be imported at given shapes of its inputs.

    `tries`: at likely ones where they are open, which is an error else.

    Raises:
        ModelRejected, UnsupportedOp, UsageError: as `import_model`, but for nodes that are not supported.
    """
    likely = _likely_shapes(prepared.inputs, given) if tries else [{}]
    if likely == [{}]:
        return _survey_at(prepared, given, {})
    misfit = "an input has no known rank"
    for number, shapes in enumerate(likely):
        try:
            return _survey_at(prepared, {**given, **shapes}, shapes)
        except ModelRejected as error:
            misfit = misfit if number else str(error)
    return Survey(Graph(), prepared.listed(_judged), {}, misfit)


def _survey_at(prepared: PreparedModel, shapes: Mapping[str, Shape], tried: Mapping[str, Shape]) -> Survey:
    graph, survey = prepared.imported(shapes, _Survey)
    return Survey(graph, tuple(survey.others), tried)


def _likely_shapes(inputs: Mapping[str, Declaration], given: Mapping[str, Shape]) -> list[dict[str, Shape]]:
    """Shapes to try for inputs that are not given and not fixed; none if the rank of one is not known."""
    symbols: dict[str, int] = {}
    for name, shape in given.items():
        for dim, size in zip(inputs[name].dims or () if name in inputs else (), shape, strict=False):
            if isinstance(dim, str):
                symbols[dim] = size
    rest = {name: d.dims for name, d in inputs.items() if name not in given}
    if any(dims is None for dims in rest.values()):
        return []
    first = {dims[0] for dims in rest.values() if dims}
    is_open = {n: dims for n, dims in rest.items() if dims and resolve_dims(dims, symbols) is None}

    def extent(axis: int, dim: int | str | None, usual: int) -> int:
        if isinstance(dim, int):
            return dim
        if dim is not None and dim in symbols:
            return symbols[dim]
        return 1 if axis == 0 or (dim is not None and dim in first) else usual

    found = [
        {n: tuple(extent(a, d, usual) for a, d in enumerate(dims)) for n, dims in is_open.items()}
        for usual in _USUAL_EXTENTS
    ]
    return [shapes for place, shapes in enumerate(found) if shapes not in found[:place]]


def _judged(proto: NodeProto, opset: int) -> OtherNode:
    """A node of which only its operator is known."""
    error = _reason_against(proto, opset)
    name, reason = node_name(proto), "made at the shapes of a run"
    if error is None:
        return OtherNode(name, proto.op_type, opset, reason, "deferred")
    return OtherNode(name, proto.op_type, opset, str(error), "refused")


def node_name(proto: NodeProto) -> str:
    """A node's name, or its first result where it has none."""
    return str(proto.name or next((name for name in proto.output if name), proto.op_type))


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
                _require_possible(proto, scope.opsets[""])
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
        label = node_name(proto)
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


def require_known_operators(model: ModelProto) -> None:
    """Refuse a model for operators that no shapes could make possible, all of them at once.

    Branches of an `If` count where they are taken: what is in them is looked at then.

    Raises:
        UnsupportedOp: there are operators that are not known, or random.
    """
    opset = opset_versions(model).get("", 0)
    seen: dict[tuple[str, str], UnsupportedOp | None] = {}
    missing: dict[str, list[str]] = {}
    first: UnsupportedOp | None = None
    for node in _nodes_that_run(model.graph.node):
        key = (node.domain, node.op_type)
        if key not in seen:
            seen[key] = _reason_against(node, opset)
        error = seen[key]
        if error is not None:
            first = first or error
            missing.setdefault(f"{node.domain} {node.op_type}".strip(), []).append(node_name(node))
    if first is None:
        return
    if sum(map(len, missing.values())) == 1:
        raise first
    listed = "; ".join(
        f"{kind} ({', '.join(quoted(name, 40) for name in names[:_MAX_NAMED])}"
        + (f" and {len(names) - _MAX_NAMED} more)" if len(names) > _MAX_NAMED else ")")
        for kind, names in missing.items()
    )
    raise UnsupportedOp(f"{str(first).rstrip('.')}. All that does not run: {listed}.")


def _nodes_that_run(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes and those of loops' bodies, but for branches, of which only a run takes one."""
    for node in nodes:
        yield node
        if node.op_type != "If":
            for body in body_graphs(node):
                yield from _nodes_that_run(body.node)


def _reason_against(node: NodeProto, opset: int) -> UnsupportedOp | None:
    try:
        _require_possible(node, opset)
    except UnsupportedOp as error:
        return error
    return None


def _require_possible(proto: NodeProto, opset: int) -> None:
    """Refuse what no shapes could make possible.

    Raises:
        UnsupportedOp: an operator that is not known, or random.
    """
    refuse_random(proto)
    if proto.domain in ("", "ai.onnx"):
        find_schema(proto, opset)
    else:
        require_known(proto)
