"""Operators that run whole on the host: in machine code where there is some, else by their reference."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arrays import Array
from tilewright.ir.graph import Node
from tilewright.ir.interpret import run_node


def run_on_host(
    node: Node, arrays: Sequence[Array | None], *, captures: Sequence[Array] = ()
) -> tuple[Array | None, ...]:
    """Outputs of one node, the same as `run_node` gives.

    Raises:
        InputError, UnsupportedOp: as `run_node`.
    """
    if node.op_type == "NonMaxSuppression" and not node.domain:
        from tilewright.targets.cpu.runtime.suppression import suppressed

        found = suppressed(node, arrays)
        if found is not None:
            return (found,)
    return run_node(node, arrays, captures=captures)
