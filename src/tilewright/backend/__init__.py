"""The ONNX backend interface: `prepare`, `run_model`, `run_node`, `supports_device`.

Devices are ONNX's names for tilewright's targets; `INTERPRETER` runs reference semantics. Targets of plugins
and machines that come with the package are devices by their names in capitals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from tilewright.arrays import Array
from tilewright.compiler import compile_graph
from tilewright.edges import NO_EDGES, Edges
from tilewright.errors import UnsupportedOp, UsageError
from tilewright.frontend.onnx import import_model, open_model
from tilewright.hardware.presets import preset_names
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.options import Options
from tilewright.target_ref import CPU, TargetRef
from tilewright.targets import TARGETS

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]

TARGET_OF_DEVICE: Mapping[str, TargetRef] = {"CPU": CPU, "INTERPRETER": TargetRef("interpreter")}


class PreparedModel(BackendRep):  # type: ignore[misc]  # onnx has no types
    """A compiled model; `run` takes arrays in the order of the graph's inputs."""

    def __init__(self, graph: Graph, run: Run, edges: Edges = NO_EDGES) -> None:
        super().__init__()
        self.graph = graph
        self._run = run
        self._edges = edges

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """Outputs in the graph's order, as a named tuple.

        Raises:
            UsageError: another number of inputs than the graph has.
        """
        arrays = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        names = [value.name for value in self.graph.inputs]
        if len(arrays) != len(names):
            raise UsageError(
                f"graph {self.graph.name!r} takes {len(names)} inputs, {len(arrays)} are given: "
                f"{', '.join(names) or 'none'}."
            )
        feed, others = self._edges.encoded({n: as_array(a) for n, a in zip(names, arrays, strict=True)})
        found = self._run(feed)
        outputs = [value.name for value in self.graph.outputs]
        given = (self._edges.decoded(name, found[name], others) for name in outputs)
        result: tuple[Array, ...] = namedtupledict("Outputs", outputs)(*given)
        return result


class TilewrightBackend(Backend):  # type: ignore[misc]  # onnx has no types
    """`onnx.backend.base.Backend` on tilewright's targets."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be prepared for the device."""
        try:
            cls.prepare(model, device, **kwargs)
        except UnsupportedOp:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """Compile a model.

        Raises:
            ModelRejected: the model is malformed.
            UnsupportedOp: the model or the device is not supported.
        """
        opened = open_model(model)
        graph = import_model(opened)
        return PreparedModel(graph, _compiled(graph, target_of(device)), opened.edges)

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Array, ...]:
        """Compile a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Array, ...]:
        """Run one node; `opset_version` chooses its definition, the newest by default.

        `outputs_info` gives types and shapes of results whose shape depends on data.
        """
        arrays = [as_array(a) for a in inputs]
        names = [name for name in node.input if name]
        results = [name for name in node.output if name]
        infos = [_info(name, a.dtype, a.shape) for name, a in zip(names, arrays, strict=True)]
        if outputs_info is None:
            outputs = [helper.make_empty_tensor_value_info(name) for name in results]
        else:
            outputs = [_info(name, *info) for name, info in zip(results, outputs_info, strict=True)]
        version = int(kwargs.get("opset_version", onnx.defs.onnx_opset_version()))
        model = helper.make_model(
            helper.make_graph([node], node.op_type, infos, outputs),
            opset_imports=[helper.make_opsetid(node.domain, version)],
        )
        return cls.run_model(model, arrays, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether `prepare` takes this device."""
        try:
            target_of(device)
        except UnsupportedOp:
            return False
        return True


def target_of(device: str) -> TargetRef:
    """The target that an ONNX device string such as `CPU` or `CPU:0` names.

    Raises:
        UnsupportedOp: none.

    >>> str(target_of("CPU:0"))
    'cpu'
    """
    name = device.partition(":")[0].upper()
    if name in TARGET_OF_DEVICE:
        return TARGET_OF_DEVICE[name]
    machines = {preset.upper(): preset for preset in preset_names()}
    devices = {**TARGET_OF_DEVICE, **{plugin.upper(): TargetRef(plugin) for plugin in TARGETS.plugin_names()}}
    if name not in devices and name not in machines:
        raise UnsupportedOp(
            f"device {device!r} is not supported; use one of {', '.join(devices)}, or the name of a machine."
        )
    return devices.get(name) or TargetRef(machines[name])


def as_array(data: Any) -> Array:
    """An input as a numpy array; tensors of ONNX messages are decoded.

    Raises:
        UnsupportedOp: sequences, maps and absent optionals.
    """
    if isinstance(data, onnx.TensorProto):
        array: Array = numpy_helper.to_array(data)
        return array
    if data is None or isinstance(data, list | dict | onnx.SequenceProto | onnx.OptionalProto):
        raise UnsupportedOp("inputs must be dense tensors, not sequences, maps or absent optionals.")
    return np.asarray(data)


def _info(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> onnx.ValueInfoProto:
    kind = np.dtype(dtype)
    number = onnx.TensorProto.STRING if kind.kind in "OUS" else helper.np_dtype_to_tensor_dtype(kind)
    return helper.make_tensor_value_info(name, number, list(shape))


def _compiled(graph: Graph, target: TargetRef) -> Run:
    """The one place that knows how a graph becomes something that runs."""
    if target == TARGET_OF_DEVICE["INTERPRETER"]:
        return lambda feed: run_graph(graph, feed)
    return compile_graph(graph, Options(target=target)).code.load(None).run


is_compatible = TilewrightBackend.is_compatible
prepare = TilewrightBackend.prepare
run_model = TilewrightBackend.run_model
run_node = TilewrightBackend.run_node
supports_device = TilewrightBackend.supports_device
