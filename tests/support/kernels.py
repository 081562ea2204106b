"""Kernels of a whole graph: its nests as one group, and what kernels of that make of given values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.fuse import NestGroup, fuse_nodes
from tilewright.ir.graph import Graph
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel, Layouts, OperandKey
from tilewright.testing.kernel_runner import KernelRunner


def group_of(graph: Graph) -> NestGroup:
    """All nodes of a graph, fused."""
    group = fuse_nodes(graph.nodes, graph.outputs)
    assert isinstance(group, NestGroup)
    return group


def operands_of(group: NestGroup, feed: Mapping[str, Any]) -> dict[OperandKey, Array]:
    """What kernels of a group take: inputs by name or their constants, and outputs that hold nothing yet."""
    operands: dict[OperandKey, Any] = {
        ("input", i): feed.get(v.name, v.data) for i, v in enumerate(group.inputs)
    }
    for i, v in enumerate(group.outputs):
        dtype = v.dtype.numpy
        operands["output", i] = np.full(v.shape, np.nan if np.issubdtype(dtype, np.floating) else 77, dtype)
    return operands


def results(
    kernels: Sequence[Kernel],
    group: NestGroup,
    feed: Mapping[str, Any],
    layouts: Layouts,
    isa: Isa,
    *,
    shift_bytes: int = 0,
) -> list[Array]:
    """What kernels of a group make of inputs by name, one after another."""
    runner = KernelRunner(kernels, operands_of(group, feed), layouts, isa, shift_bytes=shift_bytes)
    runner()
    return [runner.result(("output", i)) for i in range(len(group.outputs))]
