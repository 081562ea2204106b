"""The operator registry: (domain, op_type) → `Operator`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.arrays import Array
from tilewright.errors import ModelRejected
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Shape
from tilewright.ir.nest import Description, Opaque, Walks
from tilewright.ir.work import HostWork, find_excess, find_host_excess
from tilewright.progress import checkpoint
from tilewright.system.forks import ForkSafeLock

Reference = Callable[[Node, Sequence[Array | None]], Sequence[Array]]
DescribeFunction = Callable[[Node], Description]
ShapesFunction = Callable[[Node], Sequence[Shape | None]]
HostWorkFunction = Callable[[Node, Sequence[Array | None]], HostWork]

# Importing a family registers its operators; the list is the table of contents of this folder.
FAMILIES = (
    "elementwise",
    "movement",
    "reshape",
    "convolution",
    "transposed_convolution",
    "matmul",
    "integer",
    "pooling",
    "reduction",
    "normalization",
    "attention",
    "resize",
    "sampling",
    "indexing",
    "suppression",
    "scatter",
    "top_k",
    "quantization",
    "cells",
    "steps",
    "recurrent",
    "trees",
    "coupling",
    "misc",
    "transforms",
    "host",
    "check_shape",
)


MAX_OPERANDS = 1024
"""Nodes with more inputs and outputs together run on the host: generated code takes each as an argument."""

# Operators that ONNX does not have: ours, and onnxruntime's.
INTERNAL_DOMAIN = "tilewright"
MICROSOFT_DOMAIN = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Sizing:
    """An operand that decides the shape of a node's results and, given that shape, nothing else.

    Nests are over static shapes, so they never look at it: what it says must be known while compiling, or be
    compared with the shape compiled for when it is (`CheckShape`).
    """

    operand: int
    name: str  # of the operand, in ONNX's definition of the operator
    shape: Callable[[Node, Shape, Array], Shape]
    """Shape of the first result, from the shape of the first input and the operand's data. Raises ValueError
    where the data are no valid operand."""
    data: Callable[[Node, Shape, Shape], Sequence[int]]
    """What the operand must hold for the first input to give the first result of these shapes, if it can."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator. `reference` None means that only onnx.reference can run it (opaque).

    `shapes` gives the shapes of its results from operands and attributes alone, None where they are data. It
    is there for operators of which ONNX's own inference is not exact.

    `host_work` bounds what its reference asks where there are no nests, from the data of its operands (None
    where they are not known yet). It is there for operators that ask more than a few times the elements of
    their operands and results.
    """

    op_type: str
    domain: str
    describe: DescribeFunction
    reference: Reference | None
    sizing: Sizing | None = None
    has_effect: bool = (
        False  # it raises where its input is wrong, so it runs even if its result is never read
    )
    shapes: ShapesFunction | None = None
    host_work: HostWorkFunction | None = None


_NO_WORK = HostWork()

_OPERATORS: dict[tuple[str, str], Operator] = {}
_loaded = False
_loading = ForkSafeLock()


def operator(
    *op_types: str,
    reference: Reference | None = None,
    domain: str = "",
    sizing: Sizing | None = None,
    has_effect: bool = False,
    shapes: ShapesFunction | None = None,
    host_work: HostWorkFunction | None = None,
) -> Callable[[DescribeFunction], DescribeFunction]:
    """Register the decorated nest builder, with its reference, under one or more operator names."""

    def register(function: DescribeFunction) -> DescribeFunction:
        for op_type in op_types:
            key = (domain, op_type)
            if key in _OPERATORS:
                raise AssertionError(f"operator {op_type} is registered twice")
            _OPERATORS[key] = Operator(
                op_type, domain, function, reference, sizing, has_effect, shapes, host_work
            )
        return function

    return register


def operators() -> tuple[Operator, ...]:
    """All registered operators, by domain and name."""
    _load()
    return tuple(_OPERATORS[key] for key in sorted(_OPERATORS))


def find_operator(node: Node) -> Operator | None:
    """The operator of a node, or None if this version does not know it."""
    _load()
    return _OPERATORS.get((node.domain, node.op_type))


def sizing_of(op_type: str) -> Sizing | None:
    """Which operand of an ONNX operator decides the shape of its results, if one does."""
    _load()
    operator = _OPERATORS.get(("", op_type))
    return None if operator is None else operator.sizing


def sizing_by_data(node: Node) -> Sizing | None:
    """The rule of a node the shape of whose results is decided by an operand that is no constant."""
    sizing = None if node.domain else sizing_of(node.op_type)
    if sizing is None or node.input(sizing.operand) is None:
        return None
    return sizing if node.constant(sizing.operand) is None else None


def has_effect(node: Node) -> bool:
    """Whether a node must run even if its results are never read."""
    operator = find_operator(node) if node.domain else None
    return operator is not None and operator.has_effect


def describe(node: Node) -> Description:
    """Loop nests of a node (never of its neighbours), or why there are none.

    The result is remembered with the node; attributes must not change after the first call.

    Raises:
        ModelRejected: the operator does not take these operands or attributes.
    """
    return node.described(_describe)


def _describe(node: Node) -> Description:
    checkpoint()
    operator = find_operator(node)
    is_text = any(v.dtype is DType.STRING for v in (*node.operands(), *node.results()))
    if is_text and (operator is None or operator.host_work is None):
        return Opaque("text tensors have no nests")
    if operator is None:
        return Opaque(f"{node.op_type} is not a known operator")
    unknown = sizing_by_data(node)
    if unknown is not None:
        return Opaque(f"the {unknown.name} of {node.op_type} is data")
    with _rejecting(node):
        _require_sized(node, operator)
        description = operator.describe(node)  # also of what runs on the host: it checks the operands
        if isinstance(description, Walks):
            excess = None
        elif isinstance(description, Opaque):
            excess = host_excess(node, [v if v is None else v.data for v in node.inputs])
        else:
            excess = find_excess(node, description)
        if excess is not None:
            raise ModelRejected(f"{node.op_type} {node.name!r}: {excess}.")
    num_operands = sum(1 for _ in node.operands()) + sum(1 for _ in node.results())
    if num_operands > MAX_OPERANDS:
        return Opaque(f"{num_operands:,} inputs and outputs, more than MAX_OPERANDS = {MAX_OPERANDS:,}")
    return description


def host_excess(node: Node, data: Sequence[Array | None]) -> str | None:
    """What is too much for the host about a node on operands of which some data may be known, or None."""
    work = host_work(node, data)
    return None if work is _NO_WORK else find_host_excess(work)


def host_work(node: Node, data: Sequence[Array | None]) -> HostWork:
    """What a node without nests asks of the host besides a look at its operands and results."""
    found = find_operator(node)
    return _NO_WORK if found is None or found.host_work is None else found.host_work(node, data)


def _require_sized(node: Node, operator: Operator) -> None:
    """Where an operand alone decides the shape of a result, the result has that shape.

    Raises:
        ModelRejected: it has another one.
        ValueError: the operand is no valid one.
    """
    data = None if operator.sizing is None else node.constant(operator.sizing.operand)
    if operator.sizing is None or data is None:
        return
    expected, result = operator.sizing.shape(node, node.require(0).shape, data), next(node.results())
    if result.shape != tuple(expected):
        raise ModelRejected(
            f"{node.op_type} {node.name!r}: its result {result.name!r} is declared {list(result.shape)}, "
            f"but its {operator.sizing.name} {data.tolist()} makes it {list(expected)}; "
            "export the model again."
        )


def result_shapes(node: Node) -> tuple[Shape | None, ...]:
    """The shapes of a node's results where its operator derives them from operands and attributes, else None.

    Raises:
        ModelRejected: the operator does not take these operands or attributes.
    """
    operator = find_operator(node)
    if operator is None or operator.shapes is None:
        return (None,) * len(node.outputs)
    with _rejecting(node):
        shapes = tuple(operator.shapes(node))
    return (*shapes, *(None,) * len(node.outputs))[: len(node.outputs)]


@contextmanager
def _rejecting(node: Node) -> Iterator[None]:
    """Whatever an operator stumbles over that it did not check itself is the model's fault too."""
    try:
        yield
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        shapes = ", ".join("none" if v is None else str(list(v.shape)) for v in node.inputs)
        raise ModelRejected(
            f"{node.op_type} {node.name!r} does not take operands of shapes {shapes} with its attributes and "
            f"results ({reason})."
        ) from error


def _load() -> None:
    global _loaded
    if _loaded:
        return
    with _loading:  # another thread must not find half of them
        for family in FAMILIES:
            importlib.import_module(f"tilewright.ir.ops.{family}")
        _loaded = True
