"""Orders in which constants of loop nests are contiguous along the vector dim: a depthwise filter, say."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilewright.ir.nest import Affine, Nest, Operand
from tilewright.targets.cpu.arrangements import Order
from tilewright.targets.cpu.kernel import Layout, Layouts, OperandKey, Packed


def arrange_constants(
    nests: Sequence[Nest], layouts: Layouts, constants: Collection[OperandKey]
) -> dict[OperandKey, Layout]:
    """Other layouts for constants of nests, which are then rearranged at compile time."""
    arranged: dict[OperandKey, Layout] = {}
    for nest in nests:
        write = nest.write
        layout = layouts[write.operand.key] if write.view is None else Layout.row_major(len(write.view))
        strides = layout.strides(write.shape)
        extents = nest.extents
        contiguous = next(
            (
                d
                for index, stride in zip(write.index, strides, strict=True)
                if isinstance(index, Affine) and stride == 1
                for d in index.dims()
                if index.coefficient(d) == 1 and extents[d] > 1
            ),
            None,
        )
        for access in nest.reads:
            key, rank = access.operand.key, len(access.shape)
            if key not in constants or key in arranged or access.view is not None:
                continue
            axes = [
                axis
                for axis, index in enumerate(access.index)
                if isinstance(index, Affine) and contiguous is not None and index.coefficient(contiguous) == 1
            ]
            row_major = Layout.row_major(rank).strides(access.shape)
            if axes and row_major[axes[0]] != 1:
                order = (*(a for a in range(rank) if a != axes[0]), axes[0])
                arranged[key] = Layout(order)
    return arranged


def transposed(operand: Operand, layout: Layout) -> Packed:
    """A constant stored in another layout."""
    return Packed(operand, Order(tuple(layout.order)), operand.num_elements * operand.dtype.size_bytes)
