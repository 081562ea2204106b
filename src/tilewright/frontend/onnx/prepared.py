"""A model that was read, checked and converted once, whose graph is built at any shapes of its inputs.

Where data decide a shape, no graph of static shapes holds the whole model. Then its nodes are divided: what
is static is a graph; operators with results of unknown shape run on their operands' values; and the nodes
that read those are a model again, whose inputs get the shapes that arrive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from tilewright.arrays import Array
from tilewright.errors import UnsupportedOp, UsageError, error_context
from tilewright.frontend.onnx import native
from tilewright.frontend.onnx.attributes import import_attributes
from tilewright.frontend.onnx.build import DataDependentShape, Importer
from tilewright.frontend.onnx.initializers import Initializers
from tilewright.frontend.onnx.inputs import (
    Declaration,
    OpenInput,
    bind_inputs,
    declaration,
    input_declaration,
)
from tilewright.frontend.onnx.origin import Origin
from tilewright.frontend.onnx.prepare import opset_versions
from tilewright.frontend.onnx.protos import bounded_messages, node_label
from tilewright.frontend.onnx.scope import Scope
from tilewright.ir.bodies import body_graphs, free_names
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attributes, Graph, Node, Shape, Value
from tilewright.ir.verify import require_valid
from tilewright.records import dataclass

Shapes = Mapping[str, Shape]
Kind = TypeVar("Kind", bound=Importer)
Described = TypeVar("Described")


@dataclass(frozen=True, slots=True, eq=False)
class HostOperator:
    """An operator that runs on the values of its operands: of which names, None where one is omitted."""

    node: Node
    inputs: tuple[str | None, ...]
    captures: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A node of a model, of which nothing is known but what its file says."""

    name: str
    op_type: str
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    captures: tuple[str, ...]
    attributes: Attributes
    is_standard: bool = True
    """Whether it is of ONNX's own domain, whose nodes alone run as they are."""


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """A model at given shapes: what is static, what data decide then, and what follows from that.

    The graph may be without outputs, where nothing static is needed. `constants` are values that the shapes
    alone decide, as far as later operators or the model's outputs ask for them. Outputs of the model are
    results of the graph, inputs, constants, or outputs of `rest`. `dtypes` are of all names up to there.
    """

    graph: Graph
    dtypes: Mapping[str, DType]
    constants: Mapping[str, Array]
    operators: tuple[HostOperator, ...]
    rest: PreparedModel | None

    @property
    def is_static(self) -> bool:
        """Whether the graph is the whole model."""
        return not self.operators


class PreparedModel:
    """See the module. Graphs that were built share the arrays of the initializers."""

    def __init__(
        self, model: ModelProto, origin: Origin, initializers: Initializers, size_bytes: int
    ) -> None:
        self._model = model
        self._origin = origin
        self._initializers = initializers
        self._size_bytes = size_bytes
        defaults = {tensor.name for tensor in model.graph.initializer}
        self.inputs = _declared(v for v in model.graph.input if v.name not in defaults)
        """Inputs that every run is given, as declared."""
        self.defaulted = _declared(v for v in model.graph.input if v.name in defaults)
        """Inputs that a run may be given in place of a constant."""
        self.outputs = {v.name: declaration(v, "output") for v in model.graph.output}

    @property
    def label(self) -> str:
        """What messages call it."""
        return self._origin.label

    def input_shapes(self, shapes: Shapes) -> dict[str, Shape]:
        """Shapes of all inputs of a run in which some have these.

        Raises:
            UsageError: dimensions stay open, or the shapes do not fit the model.
        """
        with _as_documented(), error_context(f"in {self.label}"), bounded_messages():
            return {name: shape for name, (_, shape) in bind_inputs(self._model.graph, shapes).types.items()}

    def graph(self, shapes: Shapes) -> Graph:
        """The graph at these shapes.

        Raises:
            UsageError: dimensions stay open, or the shapes do not fit the model.
            ModelRejected: the operators do not fit each other at these shapes.
            UnsupportedOp: something that this version does not run, such as a shape that data decide.
        """
        return self.imported(shapes, Importer)[0]

    def imported(self, shapes: Shapes, importer_type: type[Kind]) -> tuple[Graph, Kind]:
        """The graph that an importer makes, and the importer, with what else it knows then.

        Raises:
            UsageError, ModelRejected, UnsupportedOp: as for `graph`.
        """
        with _as_documented():
            return self._imported(shapes, importer_type)

    def _imported(self, shapes: Shapes, importer_type: type[Kind]) -> tuple[Graph, Kind]:
        with self._importing(shapes, importer_type) as importer:
            graph = importer.run(self._model)
        require_valid(graph, after="import")
        return graph, importer

    def static_graph(self, shapes: Shapes) -> Graph | None:
        """The same; None where dimensions stay open, or data decide a shape."""
        try:
            return self._imported(shapes, Importer)[0]
        except (OpenInput, DataDependentShape):
            return None

    def divided(self, shapes: Shapes) -> Division:
        """The model at these shapes, whichever shapes data decide.

        Raises:
            UsageError, ModelRejected, UnsupportedOp: as for `graph`.
        """
        proto = self._model.graph
        with _as_documented(), self._importing(shapes, Importer) as importer:
            scope = importer.begin(self._model)
            waiting: set[str] = set()  # names whose shapes are not known before the operators have run
            deciding: list[NodeProto] = []
            later: list[NodeProto] = []
            nodes = deque(proto.node)
            while nodes:
                node = nodes.popleft()
                if not waiting.isdisjoint(_reads(node)):
                    later.append(node)
                elif importer.try_node(node, scope):
                    continue
                elif (branch := importer.taken_branch(node, scope)) is not None:
                    nodes.extendleft(reversed(branch))
                    continue
                else:
                    deciding.append(node)
                waiting.update(filter(None, node.output))
            operators = tuple(_host_operator(importer, node, scope) for node in deciding)
            asked = dict.fromkeys(name for node in (*deciding, *later) for name in _reads(node))
            asked.update(dict.fromkeys(v.name for v in proto.output))
            known = {name: scope.find(name) for name in asked if name not in waiting}
            constants = {n: v.data for n, v in known.items() if v is not None and v.data is not None}
            fed = set(importer.input_names)
            results = [n for n, v in known.items() if v is not None and n not in constants and n not in fed]
            if not operators:
                results = [v.name for v in proto.output]
            dtypes = {name: value.dtype for name, value in scope.values.items() if value is not None}
            dtypes.update((v.name, v.dtype) for operator in operators for v in operator.node.results())
            graph = importer.finish(scope, results)
            rest = self._rest(later, waiting, known, operators) if operators else None
        require_valid(graph, after="import")
        return Division(graph, dtypes, constants, operators, rest)

    def graph_and_values(self, shapes: Shapes) -> tuple[Graph, dict[str, Value]] | None:
        """The graph at these shapes, and its values by their names in the model; None where data decide one.

        Raises:
            UsageError, ModelRejected, UnsupportedOp: as for `graph`.
        """
        with _as_documented(), self._importing(shapes, Importer) as importer:
            scope = importer.begin(self._model)
            if not all(importer.try_node(node, scope) for node in self._model.graph.node):
                return None
            graph = importer.finish(scope, [v.name for v in self._model.graph.output])
        require_valid(graph, after="import")
        return graph, {name: value for name, value in scope.values.items() if value is not None}

    def steps(self, dtypes: Mapping[str, DType]) -> tuple[Step, ...] | None:
        """Its nodes one by one, for whatever shapes; None where one reads or gives what has no known type."""
        opset = opset_versions(self._model)[""]
        steps = []
        for proto in self._model.graph.node:
            captures = tuple(dict.fromkeys(name for body in body_graphs(proto) for name in free_names(body)))
            names = (*proto.input, *proto.output, *captures)
            if any(name and name not in dtypes for name in names):
                return None
            sides = tuple(proto.input), tuple(proto.output), captures
            said, is_standard = import_attributes(proto), proto.domain in ("", "ai.onnx")
            steps.append(Step(proto.name, proto.op_type, opset, *sides, said, is_standard))
        return tuple(steps)

    def listed(self, described: Callable[[NodeProto, int], Described]) -> tuple[Described, ...]:
        """What is said of each of its nodes, which is told the version of the node's domain."""
        versions = opset_versions(self._model)
        return tuple(described(node, versions.get(node.domain, 0)) for node in self._model.graph.node)

    def require_unchanged(self) -> None:
        """Raise unless the files that its initializers lie in are as they were.

        Raises:
            UsageError: another program wrote to one.
        """
        self._initializers.require_unchanged()

    def let_go(self) -> None:
        """Say that its initializers are not read now."""
        self._initializers.let_go()

    def arrays(self) -> dict[str, Array]:
        """Its initializers."""
        return {t.name: self._initializers.of_model(t) for t in self._model.graph.initializer}

    @contextmanager
    def _importing(self, shapes: Shapes, importer_type: type[Kind]) -> Iterator[Kind]:
        num_nodes = len(self._model.graph.node)
        self.require_unchanged()
        with (
            error_context(f"in {self.label}"),
            bounded_messages(),
            native.session(num_nodes, self._size_bytes),
        ):
            yield importer_type(self._initializers, bind_inputs(self._model.graph, shapes))

    def _rest(
        self,
        nodes: Sequence[NodeProto],
        waiting: set[str],
        known: Mapping[str, Value | None],
        operators: Iterable[HostOperator],
    ) -> PreparedModel:
        """What follows: its inputs are results of the operators and of the graph, whose shapes arrive."""
        proto = self._model.graph
        results = {v.name: v.dtype for o in operators for v in o.node.results()}
        reads = dict.fromkeys(name for node in nodes for name in _reads(node))
        outputs = [v for v in proto.output if v.name in waiting]
        reads.update(dict.fromkeys(v.name for v in outputs if v.name in results))
        arrays: dict[str, Array] = {}
        inputs: list[ValueInfoProto] = []
        for name in reads:
            value = known.get(name)
            if value is not None and value.data is not None:
                arrays[name] = value.data
            elif value is not None or name in results:
                dtype = results[name] if value is None else value.dtype
                inputs.append(helper.make_tensor_value_info(name, dtype.value, None))
        model = ModelProto(ir_version=self._model.ir_version, opset_import=self._model.opset_import)
        model.graph.name = proto.name
        model.graph.node.extend(nodes)
        model.graph.input.extend(inputs)
        model.graph.output.extend(outputs)
        model.graph.value_info.extend(v for v in proto.value_info if v.name in waiting)
        model.graph.initializer.extend(
            TensorProto(name=n, dims=a.shape, data_type=DType.from_numpy(a.dtype).value)
            for n, a in arrays.items()
        )
        return PreparedModel(model, self._origin, Initializers(self._origin, arrays), self._size_bytes)


@contextmanager
def _as_documented() -> Iterator[None]:
    """Errors as callers know them: what is open is told apart in here only."""
    try:
        yield
    except OpenInput as error:
        raise UsageError(*error.args) from error.__cause__
    except DataDependentShape as error:
        raise UnsupportedOp(*error.args) from error.__cause__


def _declared(values: Iterable[ValueInfoProto]) -> dict[str, Declaration]:
    return {value.name: input_declaration(value) for value in values}


def _reads(node: NodeProto) -> Iterator[str]:
    """Names that a node reads, those that its bodies read from outside included."""
    yield from filter(None, node.input)
    for body in body_graphs(node):
        yield from free_names(body)


def _host_operator(importer: Importer, proto: NodeProto, scope: Scope) -> HostOperator:
    with error_context(f"node {node_label(proto)}"):
        node = importer.detached_node(proto, scope)
    names = [name or None for name in proto.input][: len(node.inputs)]
    free = dict.fromkeys(name for body in body_graphs(proto) for name in free_names(body))
    name_of = {scope.find(name): name for name in free}
    return HostOperator(node, tuple(names), tuple(name_of[value] for value in node.captures))
