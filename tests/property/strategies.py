"""Generators of small operator applications and of small graphs.

A `Case` is one node with concrete inputs. `tests/property/cases/<family>.py` holds one generator per
operator type, registered with `@generator("Conv")`; everything that is promised of all operators is
tested over `generators()`.
"""

# mypy: disable-error-code="return-value, str-bytes-safe"

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Graph, Node, Value
from tilewright.ir.interpret import node_model, run_node

Array = np.ndarray[Any, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True)
class Case:
    """One node and its input arrays.

    `exact`: every intermediate value is an integer that fits. `runtime`: ONNX Runtime follows the
    standard here; where it is False, the generator says why.
    """

    node: Node
    inputs: tuple[Array | None, ...]
    exact: bool
    rtol: float
    atol: float
    runtime: bool

    def __repr__(self) -> str:
        inputs = ", ".join("-" if v is None else f"{v.dtype}{list(v.shape)}" for v in self.node.inputs)
        attributes = ", ".join(f"{k}={v}" for k, v in self.node.attributes.items())
        return f"{self.node.op_type}-{self.node.opset}({inputs}; {attributes})"


_GENERATORS: dict[tuple[str, str], Callable[[Draw, str], Case]] = {}


def generator(*op_types: str, domain: str = "") -> Callable[[Callable[..., Case]], Callable[..., Case]]:
    """Register a function `(draw, op_type) -> Case` for one or more operator types."""

    def register(function: Callable[..., Case]) -> Callable[..., Case]:
        for op_type in op_types:
            assert (domain, op_type) not in _GENERATORS, f"{op_type} has two generators"
            _GENERATORS[domain, op_type] = function
        return function

    return register


@st.composite
def _cases(draw: Draw, make: Callable[[Draw, str], Case], op_type: str) -> Case:
    return make(draw, op_type)


@functools.cache
def generators() -> Mapping[tuple[str, str], st.SearchStrategy[Case]]:
    """A strategy of cases for every (domain, operator type) that has a generator."""
    for path in sorted((Path(__file__).parent / "cases").glob("[a-z]*.py")):
        importlib.import_module(f"tests.property.cases.{path.stem}")
    return {key: _cases(make, key[1]) for key, make in sorted(_GENERATORS.items())}


def case(
    op_type: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Attribute] | None = None,
    *,
    opset: int = 21,
    domain: str = "",
    constants: Sequence[int] = (),
    outputs: Sequence[bool] = (True,),
    exact: bool = False,
    rtol: float = 2e-5,
    atol: float = 2e-5,
    like: int | None = None,
    runtime: bool = True,
    by_data: bool = False,
) -> Case:
    """A case whose output types and shapes come from ONNX shape inference.

    `constants` are the positions of inputs that are initializers; `outputs` says which outputs exist.
    `like` is the input whose type and shape the output has, where ONNX has no inference for the operator.
    With `by_data` they are those that ONNX's own reference gives for these inputs.
    """
    values = [
        None
        if array is None
        else Value(f"x{i}", DType.from_numpy(array.dtype), array.shape, array if i in constants else None)
        for i, array in enumerate(inputs)
    ]
    results = [Value(f"y{i}", DType.FLOAT32, ()) if present else None for i, present in enumerate(outputs)]
    node = Node(op_type, values, results, attributes, opset=opset, domain=domain)
    if like is not None:
        model = values[like]
        assert model is not None
        specs = [(model.dtype, model.shape)]
    elif by_data:
        found = iter(_run_reference(node, inputs))
        arrays = [np.zeros((), np.float32) if value is None else np.asarray(next(found)) for value in results]
        specs = [(DType.from_numpy(array.dtype), array.shape) for array in arrays]
    else:
        specs = _infer(node, inputs, len(outputs))
    for value, (dtype, shape) in zip(results, specs, strict=True):
        if value is not None:
            value.dtype, value.shape = dtype, shape
    return Case(node, tuple(inputs), exact, rtol, atol, runtime)


def _infer(node: Node, arrays: Sequence[Array | None], count: int) -> list[tuple[DType, tuple[int, ...]]]:
    model = node_model(node, arrays)
    names = {v.name: i for i, v in enumerate(node.inputs) if v is not None and v.data is not None}
    for name, i in names.items():
        array = arrays[i]
        assert array is not None
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, f"input_{i}"))
        assert name == f"x{i}"
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    found = {v.name: v.type.tensor_type for v in (*inferred.graph.output, *inferred.graph.value_info)}
    specs = []
    for i in range(count):
        kind = found.get(f"output_{i}")
        if kind is None:
            specs.append((DType.FLOAT32, ()))
            continue
        assert kind.HasField("shape"), f"{node}: shape inference does not know output {i}"
        shape = tuple(d.dim_value for d in kind.shape.dim)
        assert all(d.HasField("dim_value") for d in kind.shape.dim), f"{node}: output {i} has {shape}"
        specs.append((DType(kind.elem_type), shape))
    return specs


def integers(
    draw: Draw, shape: Sequence[int], low: int = -4, high: int = 4, dtype: Any = np.float32
) -> Array:
    """Small whole numbers, so that sums and products are exact in any order."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    return np.asarray(rng.integers(low, high + 1, tuple(shape))).astype(dtype)


def reals(draw: Draw, shape: Sequence[int], scale: float = 1.0, dtype: Any = np.float32) -> Array:
    """Normally distributed numbers."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    return np.asarray(rng.standard_normal(tuple(shape)) * scale).astype(dtype)


def shapes(draw: Draw, low: int = 1, high: int = 4, max_extent: int = 5) -> tuple[int, ...]:
    """A small shape without empty axes."""
    return tuple(draw(st.lists(st.integers(1, max_extent), min_size=low, max_size=high)))


def reference_outputs(one: Case) -> tuple[Array | None, ...]:
    """What our reference says."""
    return run_node(one.node, one.inputs)


def onnx_reference_outputs(one: Case) -> list[Array | None]:
    """What the reference implementation of ONNX says."""
    found = iter(_run_reference(one.node, one.inputs))
    return [None if v is None else next(found) for v in one.node.outputs]


def _run_reference(node: Node, inputs: Sequence[Array | None]) -> list[Array]:
    feed = {f"input_{i}": a for i, a in enumerate(inputs) if a is not None}
    results: list[Array] = ReferenceEvaluator(node_model(node, inputs)).run(None, feed)
    return results


def onnxruntime_outputs(one: Case) -> list[Array | None] | str:
    """What ONNX Runtime says, or why it does not run the case."""
    import onnxruntime as ort

    model = node_model(one.node, one.inputs)
    for i, value in enumerate(one.node.outputs):
        if value is not None:
            info = next(o for o in model.graph.output if o.name == f"output_{i}")
            info.CopyFrom(helper.make_tensor_value_info(info.name, value.dtype.value, value.shape))
    for i, value in enumerate(one.node.inputs):
        if value is not None and value.data is not None:
            model.graph.initializer.append(onnx.numpy_helper.from_array(value.data, f"input_{i}"))
    model.ir_version = min(model.ir_version, 10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    feed = {f"input_{i}": a for i, a in enumerate(one.inputs) if a is not None}
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        found = iter(session.run(None, feed))
    except Exception as error:  # every refusal of ONNX Runtime has a type of its own
        return str(error)
    return [None if v is None else next(found) for v in one.node.outputs]


_CHAIN = ("Relu", "Conv", "MaxPool", "Add", "Softmax", "Sigmoid", "Transpose")


@st.composite
def small_graphs(draw: Draw, max_nodes: int = 6) -> Graph:
    """A random acyclic graph of image-shaped values with one input and one or two outputs."""
    graph = Graph("random")
    size = draw(st.integers(4, 8))
    values = [graph.add_input(Value("image", DType.FLOAT32, (1, draw(st.integers(1, 4)), size, size)))]
    for number in range(draw(st.integers(1, max_nodes))):
        x = draw(st.sampled_from(values))
        kind = draw(st.sampled_from(_CHAIN))
        attributes: dict[str, Attribute] = {}
        inputs, shape = [x], x.shape
        if kind == "Conv":
            filters = draw(st.integers(1, 4))
            weight = reals(draw, (filters, x.shape[1], 3, 3), 0.3)
            inputs.append(graph.constant(weight, f"w{number}"))
            attributes["pads"] = (1, 1, 1, 1)
            shape = (x.shape[0], filters, *x.shape[2:])
        elif kind == "MaxPool":
            attributes = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
        elif kind == "Add":
            inputs.append(draw(st.sampled_from([v for v in values if v.shape == x.shape])))
        elif kind == "Softmax":
            attributes["axis"] = draw(st.integers(-4, 3))
        elif kind == "Transpose":
            attributes["perm"] = (0, 1, 3, 2)
            shape = (*x.shape[:2], x.shape[3], x.shape[2])
        y = graph.value(f"v{number}", DType.FLOAT32, shape)
        graph.append(Node(kind, inputs, [y], attributes, name=f"{kind}_{number}"))
        values.append(y)
    graph.outputs = [v for v in values[1:] if not v.users][:2]
    return graph
