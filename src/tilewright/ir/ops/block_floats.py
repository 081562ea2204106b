"""BlockFloats: weights of four or eight bits in blocks as the matrix of floats that they stand for.

An operator of our own domain. Inputs: a float32 scale of each block, `[columns, blocks]`; numbers of uint8,
`[columns, blocks, bytes of a block]`, the lowest bits of a byte first; zero points of uint8, those of a
column packed alike, half of the range where left out. Result: `[steps, columns]`. Of constants it is a
constant that keeps its numbers (`ir.block_weights`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.block_weights import BlockWeights, unpacked
from tilewright.ir.graph import Node, Shape
from tilewright.ir.nest import Description, Opaque
from tilewright.ir.ops.build import require, require_rank, require_result
from tilewright.ir.ops.operands import optional, present
from tilewright.ir.ops.registry import INTERNAL_DOMAIN, operator
from tilewright.ir.work import HostWork

BLOCK_FLOATS: Final = "BlockFloats"
_NUMBERS_PER_STEP = 1 << 12


def block_weights(node: Node, inputs: Sequence[Array | None]) -> BlockWeights:
    """The result, as numbers."""
    scales, numbers, zeros = present(inputs), present(inputs, 1), optional(inputs, 2)
    bits = node.int_attr("bits", 4)
    if zeros is not None:
        zeros = np.ascontiguousarray(unpacked(zeros, bits)[:, : numbers.shape[1]])
    return BlockWeights(numbers, scales, zeros, bits)


def _reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    return [block_weights(node, inputs).floats()]


def _shapes(node: Node) -> Sequence[Shape]:
    columns, blocks, size = require_rank(node, 1, 3, 3)
    return [(blocks * size * 8 // node.int_attr("bits", 4), columns)]


def _work(node: Node, data: Sequence[Array | None]) -> HostWork:
    num_numbers = node.output.num_elements
    return HostWork(elements=4 * num_numbers, steps=num_numbers // _NUMBERS_PER_STEP)


@operator(BLOCK_FLOATS, reference=_reference, domain=INTERNAL_DOMAIN, shapes=_shapes, host_work=_work)
def block_floats(node: Node) -> Description:
    """What passes fold."""
    columns, blocks, _ = require_rank(node, 1, 3, 3)
    bits = node.int_attr("bits", 4)
    require(node, bits in (4, 8), f"it has numbers of {bits} bits")
    require(node, node.require(0).shape == (columns, blocks), "its scales are not those of its blocks")
    zeros = node.input(2)
    packed = (columns, -(-blocks * bits // 8))
    require(node, zeros is None or zeros.shape == packed, "its zero points are not those of its blocks")
    require_result(node, _shapes(node)[0])
    return Opaque("BlockFloats: its numbers share bytes")
