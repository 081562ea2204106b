"""Random models of one open axis, which some operators mix and others do not, run right at every extent:
whichever code serves one, of its own or for more places."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.specialise.model import OpenCompiledModel

Array = np.ndarray[Any, Any]
Dims = list[int | None]
"""Extents, None where it is open."""

ASKED = ("1..6", "2|6", "3|7", "1|5")
"""Of the axis. Some extents between are divided, padded or run by code for more; others are compiled."""
EXTENTS = range(1, 8)
KINDS = (
    "softmax",
    "sum",
    "reduce",
    "permute",
    "scale",
    "product",
    "scores",
    "map",
    "gather",
    "slice",
    "twice",
    "zeros",
    "count",
    "where",
)
LARGE = 10**6


@dataclass
class Sketch:
    """A model under construction: `names` and `dims` of the values that there are."""

    rng: np.random.Generator
    names: list[str] = field(default_factory=lambda: ["x"])
    dims: list[Dims] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)

    def constant(self, data: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(data), name))
        return name

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def random(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape).astype(np.float32))

    def model(self) -> ModelProto:
        x = helper.make_tensor_value_info(
            "x", TensorProto.FLOAT, ["n" if d is None else d for d in self.dims[0]]
        )
        y = helper.make_tensor_value_info(self.names[-1], TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "g", [x], [y], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sketched(rng: np.random.Generator) -> Sketch:
    """Up to six operators, the last on what is before it, mostly."""
    s = Sketch(rng)
    s.dims.append(s.pick([None, 4, 6], [3, None, 4]))
    for _ in range(int(rng.integers(2, 7))):
        at = -1 if rng.random() < 0.7 else int(rng.integers(len(s.names)))
        found = grown(s, s.names[at], s.dims[at])
        if found is not None:
            s.names.append(found[0])
            s.dims.append(found[1])
    if len(s.names) == 1:
        s.names.append(s.node("Relu", "x"))
    return s


def grown(s: Sketch, x: str, dims: Dims) -> tuple[str, Dims] | None:
    """One more value of three axes; None where an operator does not fit."""
    axis = int(s.rng.integers(3))
    extent = dims[axis]
    match s.pick(*KINDS):
        case "softmax":
            return s.node("Softmax", x, axis=axis), dims
        case "sum":
            return s.node("CumSum", x, s.constant(axis), reverse=s.pick(0, 1)), dims
        case "reduce":
            reduced = s.node(s.pick("ReduceMean", "ReduceMax", "ReduceL2"), x, axes=[axis], keepdims=1)
            if s.rng.random() < 0.3:
                return reduced, [1 if i == axis else d for i, d in enumerate(dims)]
            return s.node(s.pick("Sub", "Mul", "Add"), x, reduced), dims
        case "permute":
            order = [int(i) for i in s.rng.permutation(3)]
            return s.node("Transpose", x, perm=order), [dims[i] for i in order]
        case "scale":
            factor = s.random(*(d if d is not None and s.rng.random() < 0.7 else 1 for d in dims))
            return s.node(s.pick("Add", "Mul"), x, factor), dims
        case "product" if dims[2] is not None:
            return s.node("MatMul", x, s.random(dims[2], 5)), [*dims[:2], 5]
        case "scores":
            turned = s.node("Transpose", x, perm=[0, 2, 1])
            return s.node("MatMul", x, turned), [dims[0], dims[1], dims[1]]
        case "map":
            return s.node(s.pick("Relu", "Sigmoid", "Erf", "Neg"), x), dims
        case "gather" if extent is not None:
            places = s.constant(s.rng.integers(0, extent, 3))
            return s.node("Gather", x, places, axis=axis), [3 if i == axis else d for i, d in enumerate(dims)]
        case "slice":
            first, last, step = s.pick((-1, -LARGE, -1), (0, LARGE, 1))
            operands = (s.constant(np.array([number])) for number in (first, last, axis, step))
            return s.node("Slice", x, *operands), dims
        case "twice" if extent is not None:
            return s.node("Concat", x, x, axis=axis), [
                2 * extent if i == axis else d for i, d in enumerate(dims)
            ]
        case "zeros":
            value = numpy_helper.from_array(np.array([s.pick(0, 1.5)], np.float32))
            return s.node("Add", x, s.node("ConstantOfShape", s.node("Shape", x), value=value)), dims
        case "count":
            counts = s.node("Cast", s.node("Shape", x), to=TensorProto.FLOAT)
            return s.node("Mul", x, s.node("Gather", counts, s.constant(axis))), dims
        case "where":
            is_large = s.node("Greater", x, s.constant(np.float32(0.2)))
            return s.node("Where", is_large, x, s.constant(np.float32(0.5))), dims
    return None


def check(seed: int) -> int:
    """How many extents ran by code for others."""
    rng = np.random.default_rng(seed)
    sketch = sketched(rng)
    model, dims = sketch.model(), sketch.dims[0]
    asked = tuple(ASKED[seed % len(ASKED)] if d is None else d for d in dims)
    evaluator = ReferenceEvaluator(model)
    with tw.compile(model, shapes={"x": asked}, no_cache=True, threads=1) as compiled:
        assert isinstance(compiled, OpenCompiledModel)
        for extent in EXTENTS:
            x = rng.standard_normal([extent if d is None else d for d in dims]).astype(np.float32)
            (expected,) = evaluator.run(None, {"x": x})
            (found,) = compiled.run(None, {"x": x})
            scale = max(1.0, float(np.abs(expected).max(initial=0)))
            np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4 * scale, err_msg=str(extent))
        return sum(bool(s.by_code_for) for s in compiled.specialisations.kept)


def test_random_models_of_an_open_axis_run_right() -> None:
    assert sum(map(check, range(2, 8))) > 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 400))
def test_many_random_models_of_an_open_axis_run_right(seed: int) -> None:
    check(seed)
