"""The operator registry: (domain, op_type) → `Operator`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.nest import Description, Opaque

Array = np.ndarray[Any, Any]
Reference = Callable[[Node, Sequence[Array | None]], Sequence[Array]]
DescribeFunction = Callable[[Node], Description]

# Importing a family registers its operators; the list is the table of contents of this folder.
FAMILIES = (
    "elementwise",
    "movement",
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
    "scatter",
    "top_k",
    "quantization",
    "cells",
    "recurrent",
    "misc",
)


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator. `reference` None means that only onnx.reference can run it (opaque)."""

    op_type: str
    domain: str
    describe: DescribeFunction
    reference: Reference | None


_OPERATORS: dict[tuple[str, str], Operator] = {}
_loaded = False


def operator(
    *op_types: str, reference: Reference | None = None, domain: str = ""
) -> Callable[[DescribeFunction], DescribeFunction]:
    """Register the decorated nest builder, with its reference, under one or more operator names."""

    def register(function: DescribeFunction) -> DescribeFunction:
        for op_type in op_types:
            key = (domain, op_type)
            if key in _OPERATORS:
                raise AssertionError(f"operator {op_type} is registered twice")
            _OPERATORS[key] = Operator(op_type, domain, function, reference)
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


def describe(node: Node) -> Description:
    """Loop nests of a node (never of its neighbours), or why there are none.

    The result is remembered with the node; attributes must not change after the first call.
    """
    return node.described(_describe)


def _describe(node: Node) -> Description:
    if any(v.dtype is DType.STRING for v in (*node.operands(), *node.results())):
        return Opaque("text tensors have no nests")
    found = find_operator(node)
    return found.describe(node) if found else Opaque(f"{node.op_type} is not a known operator")


def _load() -> None:
    global _loaded
    if not _loaded:
        _loaded = True
        for family in FAMILIES:
            importlib.import_module(f"tilewright.ir.ops.{family}")
