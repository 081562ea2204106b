"""Products of a model as a tuner sees them: what is multiplied, under a name that outlives the model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright.ir.expr import format_expr
from tilewright.ir.nest import Affine, Index, Nest
from tilewright.records import dataclass
from tilewright.targets.cpu.kernel import Layout, Layouts, OperandKey
from tilewright.targets.cpu.template import Context


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A nest that `lower_product` took, and what surrounds it where it is alone: no cache holds its
    constants, and it has all temporaries."""

    nest: Nest
    context: Context

    @classmethod
    def of(cls, nest: Nest, context: Context) -> Product:
        """A nest, and what surrounds it among others."""
        locals_ = (position for kind, position in context.layouts if kind == "local")
        alone = replace(context, cached=frozenset(), next_local=1 + max(locals_, default=-1))
        return cls(nest, alone)


Products = Mapping[str, Product]
"""Products by signature: equal signatures are equal work."""


def product_signature(nest: Nest, context: Context) -> str:
    """Digest of a product with the layouts of its operands; empty for what is no sum over affine reads.

    It knows no names of the model, and of weights nothing but their shapes, whether they are numbers of few
    bits, whether their sums are small, and whether other code reads them. Dims and operands count in order
    of appearance.
    """
    if nest.combine != "sum" or not _is_affine(nest):
        return ""
    kinds = dict.fromkeys(context.constants, "constant")
    kinds |= {key: f"{kinds[key]}, shared" for key in context.shared & context.constants}
    kinds |= {key: f"{kinds[key]} of small sums" for key in context.small_sums & context.constants}
    for key, axis, few in sorted(context.few_bits, key=str):
        kinds[key] = f"{kinds[key]} of {few} along {axis}"
    return _digest(_facts(nest, context.layouts, kinds, {}))


def loops_signature(nests: Sequence[Nest], layouts: Layouts) -> str:
    """The same of nests that share loops, or of one nest that is no product; empty if tables or data direct
    them."""
    if not all(map(_is_affine, nests)):
        return ""
    operands: dict[OperandKey, int] = {}
    lines = [f"{nest.combine}\n{line}" for nest in nests for line in _facts(nest, layouts, {}, operands)]
    return f"loops-{_digest(lines)}"


def _is_affine(nest: Nest) -> bool:
    return all(isinstance(i, Affine) for a in (*nest.reads, nest.write) for i in a.index)


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _facts(
    nest: Nest, layouts: Layouts, kinds: Mapping[OperandKey, str], operands: dict[OperandKey, int]
) -> Iterator[str]:
    """What decides the work of a nest, in lines; `kinds` are those of constants, `operands` numbers those
    that were met."""
    dims = {d.name: i for i, d in enumerate(nest.dims)}
    yield str([(d.extent, d.role) for d in nest.dims])
    for access in (*nest.reads, nest.write):
        operand = access.operand
        number = operands.setdefault(operand.key, len(operands))
        kind = kinds.get(operand.key, "computed")
        layout = layouts.get(operand.key) or Layout.row_major(len(operand.shape))
        facts = (number, kind, str(operand.dtype), operand.shape, access.view, access.fill)
        index = [_index(i, dims) for i in access.index]
        yield f"{facts} {layout.order} {layout.steps} {index}"
    for expr in (nest.body, nest.init, nest.finish):
        yield "-" if expr is None else f"{expr.result} {format_expr(expr)}"


def _index(index: Index, dims: Mapping[str, int]) -> object:
    assert isinstance(index, Affine)
    return sorted((dims[name], c) for name, c in index.terms), index.offset
