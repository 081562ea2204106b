"""Which kernel computes an ensemble of trees, and how long it takes."""

from __future__ import annotations

from math import prod

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.nest import Operand, Walks
from tilewright.ir.ops.registry import describe
from tilewright.ir.ops.trees import TREE_SUMS, ensemble_of
from tilewright.records import dataclass
from tilewright.targets.cpu.cut import choose_num_chunks
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Declined, Kernel
from tilewright.targets.cpu.template import START_CYCLES
from tilewright.targets.cpu.trees.generate import generate_trees
from tilewright.targets.cpu.trees.pack import tables_of

# One step of one of eight walks; a key of a row; what a leaf adds.
_STEP_CYCLES = 2.2
_KEY_CYCLES = 2.0
_LEAF_CYCLES = 2.0
# Offsets of records are numbers of 31 bits.
_MAX_RECORDS_BYTES = 2**31
_LARGEST_RECORD_BYTES = 24


def lower_trees(node: Node, isa: Isa, *, has_rows: bool = False) -> Kernel | Declined:
    """The kernel of a node, whose rows are its operand `("input", 0)`, or why there is none.

    With `has_rows`, a run may have fewer of them.
    """
    problem = _problem(node)
    if problem is not None:
        return Declined(problem)
    x, result = node.require(0), node.output
    combine = node.str_attr("aggregate", "SUM")
    tables = tables_of(ensemble_of(node), x.shape[1], result.shape[1], combine)
    kernel = generate_trees(
        Operand("input", 0, x.dtype, x.shape),
        Operand("output", 0, result.dtype, result.shape),
        tables,
        combine,
        _num_steps(node),
        isa,
        has_rows=has_rows,
    )
    return kernel.estimated(_cycles(node))


@dataclass(frozen=True, slots=True)
class TreesEstimate:
    """Cycles of one core for all rows, and how many threads may share them."""

    cycles: float
    num_chunks: int


def estimate_trees(node: Node) -> TreesEstimate | None:
    """Of a node that walks trees; None where there is no kernel for it."""
    if not isinstance(describe(node), Walks) or _problem(node) is not None:
        return None
    return TreesEstimate(_cycles(node), choose_num_chunks(node.require(0).shape[0], _num_steps(node)))


def _problem(node: Node) -> str | None:
    """Why there is no kernel for a node; None where there is one."""
    x, num_records = node.require(0), node.require(1).num_elements + node.require(7).num_elements + 1
    if node.op_type != TREE_SUMS or x.dtype not in (DType.FLOAT32, DType.FLOAT64):
        return f"no kernel walks {x.dtype} rows"
    if num_records * _LARGEST_RECORD_BYTES >= _MAX_RECORDS_BYTES:
        return f"trees of {num_records:,} nodes and weights are too large for a kernel"
    return None if prod(x.shape) and prod(node.output.shape) else "there are no elements"


def _num_steps(node: Node) -> int:
    description = describe(node)
    assert isinstance(description, Walks)
    return description.num_steps


def _cycles(node: Node) -> float:
    num_rows, num_features = node.require(0).shape
    leaves = num_rows * node.require(5).num_elements
    keys = num_rows * num_features
    return START_CYCLES + _STEP_CYCLES * _num_steps(node) + _KEY_CYCLES * keys + _LEAF_CYCLES * leaves
