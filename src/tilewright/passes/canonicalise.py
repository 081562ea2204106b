"""One spelling for what ONNX can say in several ways, so that later passes and planners see one."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.passes.base import PassResult
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import clip_bounds, is_one_float, scalar
from tilewright.passes.rules import Kept, Rule, apply_rules
from tilewright.planning import option
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class Canonicalise:
    """Reshape for every change of shape alone; constants as the second operand; Add for Sub, Mul for Div.

    A gather of all elements in their order, as exporters write for masks, changes the shape alone.

    `x / c` becomes `x * (1/c)`, since a division takes ten times as long as a product. That is exact for
    powers of two; for other float32 and float64 constants the result is within 1.5 units in the last place
    of the quotient, which is why `exact_reciprocals` can demand powers of two, as it then does of the factors
    that Gemm's constants take in. Other types are always exact.
    """

    exact_reciprocals: bool = option(False, "Only replace a division where the reciprocal is exact.")
    name: ClassVar[str] = "canonicalise"

    def run(self, graph: Graph) -> PassResult:
        """Edit the graph in place."""
        return apply_rules(
            graph,
            [
                _SHAPES,
                Rule(("Add", "Mul"), _match_swapped, _build_swapped),
                Rule(("Sub",), _match_difference, _build_difference),
                Rule(("Div",), self._match_quotient, _build_quotient),
                Rule(("Gemm",), self._match_gemm, _build_gemm),
                Rule(("Clip",), _match_relu, _build_relu),
                Rule(("Sum",), _match_sum, _build_sum),
                Rule(("Pow",), _match_power, _build_power),
            ],
        )

    def _match_quotient(self, editor: Editor, node: Node) -> Array | Kept | None:
        """The reciprocals of a constant divisor."""
        divisor = editor.data(node.require(1))
        if divisor is None or divisor.size == 0 or not node.output.dtype.is_float:
            return None
        if node.output.dtype is DType.BFLOAT16:
            return Kept("its type is too narrow for a rounded reciprocal")
        with np.errstate(all="ignore"):
            inverse = np.asarray((1 / divisor.astype(np.float64)).astype(divisor.dtype))
            tiny = np.finfo(divisor.dtype).tiny
        if not np.all(np.isfinite(inverse)) or np.any(np.abs(inverse) < tiny):
            return Kept("a reciprocal of its divisor is no normal number")
        if not _are_powers_of_two(divisor) and (self.exact_reciprocals or divisor.dtype == np.float16):
            return Kept("a reciprocal of its divisor would be rounded")
        return inverse

    def _match_gemm(self, editor: Editor, node: Node) -> _PlainGemm | Kept | None:
        found = _match_gemm(editor, node)
        if not isinstance(found, _PlainGemm) or not self.exact_reciprocals:
            return found
        factors = np.array([found.alpha, *([] if found.bias is None else [found.beta])])
        return found if _are_powers_of_two(factors) else Kept("alpha or beta would round its constants")


def canonical_shapes(graph: Graph) -> None:
    """Write every change of shape alone as Reshape, and nothing else otherwise."""
    apply_rules(graph, [_SHAPES])


def _are_powers_of_two(numbers: Array) -> bool:
    return bool(np.all(np.frexp(numbers)[0] == np.copysign(0.5, numbers)))


def _match_shape(editor: Editor, node: Node) -> tuple[int, ...] | None:
    shape = node.output.shape
    if node.op_type in ("Gather", "GatherND"):
        return shape if _gathers_all_in_order(editor, node) else None
    if node.op_type != "Reshape":
        return shape
    given = editor.data(node.input(1))
    return None if given is not None and tuple(given.ravel().tolist()) == shape else shape


def _gathers_all_in_order(editor: Editor, node: Node) -> bool:
    x, indices = node.require(0), editor.data(node.input(1))
    if indices is None or not indices.size or x.num_elements != node.output.num_elements:
        return False
    if node.op_type == "Gather":
        extents: tuple[int, ...] = (x.shape[node.int_attr("axis", 0)],)
        rows = indices.reshape(-1, 1)
    elif node.int_attr("batch_dims", 0):
        return False
    else:
        extents = x.shape[: indices.shape[-1]]
        rows = indices.reshape(-1, indices.shape[-1])
    rows = np.where(rows < 0, rows + np.asarray(extents), rows)
    places = np.ravel_multi_index(tuple(rows.T), extents)  # imported graphs read nothing outside
    return bool(np.array_equal(places, np.arange(len(rows))))


def _build_shape(editor: Editor, node: Node, shape: tuple[int, ...]) -> str:
    old = node.op_type
    reshape_to(editor, node, node.require(0), shape)
    return f"{old} became Reshape to {list(shape)}"


_SHAPES = Rule(
    ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Gather", "GatherND"), _match_shape, _build_shape
)


def reshape_to(editor: Editor, node: Node, x: Value, shape: tuple[int, ...]) -> None:
    """Make a node a Reshape of x to a shape that says every extent."""
    target = editor.graph.constant(np.array(shape, np.int64), f"{node.output.name}_shape")
    editor.become(node, "Reshape", [x, target], {"allowzero": 1} if 0 in shape else {}, since=14)


def _match_swapped(editor: Editor, node: Node) -> tuple[Value, Value] | None:
    first, second = node.require(0), node.require(1)
    if editor.data(first) is None or editor.data(second) is not None:
        return None
    return second, first


def _build_swapped(editor: Editor, node: Node, operands: tuple[Value, Value]) -> str:
    editor.become(node, node.op_type, operands, since=14)
    return "its constant became the second operand"


def _match_difference(editor: Editor, node: Node) -> Array | None:
    subtrahend = editor.data(node.require(1))
    return -subtrahend if subtrahend is not None and node.output.dtype.is_float else None


def _build_difference(editor: Editor, node: Node, negated: Array) -> str:
    value = editor.constant(negated, node.output.dtype, f"{node.require(1).name}_negated")
    editor.become(node, "Add", [node.require(0), value], since=14)
    return "became the sum with the negated constant"


def _build_quotient(editor: Editor, node: Node, inverse: Array) -> str:
    value = editor.constant(inverse, node.output.dtype, f"{node.require(1).name}_inverse")
    editor.become(node, "Mul", [node.require(0), value], since=14)
    return "became the product with the reciprocal"


@dataclass(frozen=True, slots=True)
class _PlainGemm:
    weight: Value
    alpha: float
    bias: Value | None
    beta: float


def _match_gemm(editor: Editor, node: Node) -> _PlainGemm | Kept | None:
    alpha, beta = node.float_attr("alpha", 1.0), node.float_attr("beta", 1.0)
    weight = node.require(1)
    bias = node.input(2) if beta != 0.0 else None
    if alpha == 1.0 and (beta == 1.0 or node.input(2) is None):
        return None
    if (alpha != 1.0 and editor.data(weight) is None) or (
        beta != 1.0 and bias is not None and editor.data(bias) is None
    ):
        return Kept("alpha or beta scale what is not constant")
    return _PlainGemm(weight, alpha, bias, beta)


def _build_gemm(editor: Editor, node: Node, found: _PlainGemm) -> str:
    inputs = [node.require(0), _times(editor, found.weight, found.alpha)]
    if found.bias is not None:
        inputs.append(_times(editor, found.bias, found.beta))
    kept = {k: v for k, v in node.attributes.items() if k not in ("alpha", "beta")}
    editor.become(node, "Gemm", inputs, kept)
    return "alpha and beta went into its constants"


def _times(editor: Editor, value: Value, number: float) -> Value:
    data = editor.data(value)
    if number == 1.0 or data is None:
        return value
    return editor.constant(data.astype(np.float64) * number, value.dtype, f"{value.name}_scaled")


def _match_relu(editor: Editor, node: Node) -> Value | None:
    bounds = clip_bounds(editor, node)
    if bounds is None or not node.output.dtype.is_float:
        return None
    low, high = bounds
    return node.input(0) if low == 0.0 and (high is None or high == np.inf) else None


def _build_relu(editor: Editor, node: Node, x: Value) -> str:
    editor.become(node, "Relu", [x], since=14)
    return "became Relu"


def _match_sum(editor: Editor, node: Node) -> tuple[Value, Value] | None:
    return (node.require(0), node.require(1)) if len(node.inputs) == 2 else None


def _build_sum(editor: Editor, node: Node, operands: tuple[Value, Value]) -> str:
    editor.become(node, "Add", operands, since=14)
    return "became Add"


def _match_power(editor: Editor, node: Node) -> str | None:
    """The operator that a constant power is."""
    if not is_one_float(node) or node.require(0).shape != node.output.shape:
        return None
    return {2.0: "Mul", 0.5: "Sqrt", -1.0: "Reciprocal"}.get(scalar(editor, node.input(1)) or 0.0)


def _build_power(editor: Editor, node: Node, op_type: str) -> str:
    x = node.require(0)
    editor.become(node, op_type, [x, x] if op_type == "Mul" else [x], since=14)
    return f"became {op_type}"
