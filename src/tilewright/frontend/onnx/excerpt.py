"""Some nodes of an ONNX model as a model of their own: what they read from the others becomes its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tilewright.errors import UsageError
from tilewright.frontend.onnx.read import Source, embedded_model
from tilewright.ir.bodies import body_graphs, free_names
from tilewright.ir.graph import Value


class Excerpts:
    """Parts of one model, each with the opsets, functions and initializers that it needs.

    `values` are those of the model as it was imported, by name: what a part reads that it does not compute
    becomes an initializer where it is a constant of the model, else an input of the shape that it has there.
    """

    def __init__(self, source: Source, values: Mapping[str, Value]) -> None:
        self._model = embedded_model(source)
        self._values = values
        self._constants = {tensor.name: tensor for tensor in self._model.graph.initializer}
        self.nodes: Sequence[NodeProto] = tuple(self._model.graph.node)
        """The nodes of the whole model."""

    def part(self, numbers: Sequence[int]) -> ModelProto:
        """The nodes of these numbers, which rise. Results that none of them reads are outputs, and outputs of
        the model stay such.

        Raises:
            UsageError: the shape of what they read is unknown.
        """
        nodes = [self.nodes[number] for number in numbers]
        made = {name for node in nodes for name in node.output if name}
        read = dict.fromkeys(name for node in nodes for name in _names_read(node))
        kept = {output.name for output in self._model.graph.output}
        initializers, inputs = [], []
        for name in read:
            if name not in made:
                constant = self._constant(name)
                if constant is None:
                    inputs.append(self._info(name))
                else:
                    initializers.append(constant)
        given = [name for name in sorted(made) if name not in read or name in kept]
        outputs = [self._info(n) if n in self._values else ValueInfoProto(name=n) for n in given]
        graph = helper.make_graph(nodes, self._model.graph.name or "part", inputs, outputs, initializers)
        return helper.make_model(
            graph,
            opset_imports=self._model.opset_import,
            ir_version=self._model.ir_version,
            functions=self._model.functions,
        )

    def _constant(self, name: str) -> TensorProto | None:
        """What a name stands for where that is a constant of the model."""
        value = self._values.get(name)
        if name in self._constants:
            return self._constants[name]
        return None if value is None or value.data is None else numpy_helper.from_array(value.data, name)

    def _info(self, name: str) -> ValueInfoProto:
        value = self._values.get(name)
        if value is None:
            raise UsageError(f"{name!r}: its shape is not known, so the model cannot be cut there.")
        elem_type = helper.np_dtype_to_tensor_dtype(value.dtype.numpy)
        return helper.make_tensor_value_info(name, elem_type, value.shape)


def _names_read(node: NodeProto) -> Iterator[str]:
    """Names that a node or its bodies read."""
    yield from filter(None, node.input)
    for body in body_graphs(node):
        yield from free_names(body)
