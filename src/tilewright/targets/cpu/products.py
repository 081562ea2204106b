"""Products of a model as a tuner sees them: what is multiplied, under a name that outlives the model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.expr import format_expr
from tilewright.ir.nest import Affine, Index, Nest
from tilewright.targets.cpu.kernel import Layouts, OperandKey


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A nest that `lower_product` took: everything that `product_candidates` needs of it."""

    nest: Nest
    layouts: Layouts
    constants: frozenset[OperandKey]


Products = Mapping[str, Product]
"""Products by signature: equal signatures are equal work."""


def product_signature(nest: Nest, layouts: Layouts, constants: frozenset[OperandKey]) -> str:
    """Digest of a product with the layouts of its operands; empty for what is no sum over affine reads.

    It knows no names of the model, and of weights nothing but their shapes. Dims and operands count in order
    of appearance.
    """
    accesses = (*nest.reads, nest.write)
    if nest.combine != "sum" or not all(isinstance(i, Affine) for a in accesses for i in a.index):
        return ""
    dims = {d.name: i for i, d in enumerate(nest.dims)}
    operands: dict[OperandKey, int] = {}
    lines = [str([(d.extent, d.role) for d in nest.dims])]
    for access in accesses:
        operand = access.operand
        number = operands.setdefault(operand.key, len(operands))
        kind = "constant" if operand.key in constants else "computed"
        layout = layouts[operand.key]
        facts = (number, kind, str(operand.dtype), operand.shape, access.view, access.fill)
        index = [_index(i, dims) for i in access.index]
        lines.append(f"{facts} {layout.order} {layout.steps} {index}")
    for expr in (nest.body, nest.init, nest.finish):
        lines.append("-" if expr is None else f"{expr.result} {format_expr(expr)}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _index(index: Index, dims: Mapping[str, int]) -> object:
    assert isinstance(index, Affine)
    return sorted((dims[name], c) for name, c in index.terms), index.offset
