"""Sums of products of bytes: which factor is known beforehand, and what kernels can make of the other."""

from __future__ import annotations

from collections.abc import Container

from tilewright.ir.contraction import Centred, contraction_of
from tilewright.ir.dtype import DType
from tilewright.ir.expr import reads_of
from tilewright.ir.nest import Affine, Nest
from tilewright.targets.llvm.layout import Declined, OperandKey

BYTES = (DType.UINT8, DType.INT8)


def product_of(nest: Nest) -> tuple[Centred, Centred] | None:
    """Both factors of a contraction that multiplies centred bytes in int32."""
    form = contraction_of(nest)
    if form is None or form.dtype is not DType.INT32 or form.centred is None:
        return None
    used = [i for f in form.centred for i in (f.read, f.zero_read) if i is not None]
    return form.centred if all(nest.reads[i].operand.dtype in BYTES for i in used) else None


def constant_factor(
    nest: Nest, factors: tuple[Centred, Centred], constants: Container[OperandKey]
) -> Centred | None:
    """The one factor that is known beforehand."""
    known = [f for f in factors if nest.reads[f.read].operand.key in constants]
    return known[0] if len(known) == 1 else None


def refused_factors(nest: Nest, a: Centred, b: Centred) -> Declined | None:
    """Why `a` cannot be read as it lies by kernels that have `b` packed; None if it can."""
    if b.zero_read is not None:
        return Declined("the zero point of the constant factor differs by column")
    if a.zero_read is not None and any(i != Affine() for i in nest.reads[a.zero_read].index):
        return Declined("the zero point of the factor that is not constant differs by row")
    access = nest.reads[a.read]
    if access.view is not None or any(not isinstance(i, Affine) for i in access.index):
        return Declined("a factor read through a reshape or a table")
    if access.fill is not None and not a.guarded and (a.zero_read is not None or access.fill != a.zero):
        return Declined("padding with something else than the zero point")
    if any(i in reads_of(nest.init, nest.finish) for i in (a.read, b.read)):
        return Declined("a factor is also read by the epilogue")
    return None
