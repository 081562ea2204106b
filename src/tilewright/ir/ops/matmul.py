"""Matrix products: MatMul, Gemm, Einsum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.expr import Acc, Expr, cast
from tilewright.ir.graph import Node, Shape
from tilewright.ir.nest import Access, Description, Dim, Index, Nest, Operand, affine
from tilewright.ir.ops.build import (
    broadcast,
    broadcast_shape,
    input_operand,
    output_operand,
    read,
    require,
    require_broadcast,
    require_rank,
    require_result,
    require_shape,
)
from tilewright.ir.ops.registry import operator
from tilewright.records import dataclass


def _matmul_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    a, b = inputs[0], inputs[1]
    assert a is not None
    assert b is not None
    return (np.matmul(a, b),)


@dataclass(frozen=True, slots=True)
class MatMulLoops:
    """The loops of a matrix product under numpy's rules, and where they touch its operands."""

    dims: tuple[Dim, ...]
    a: Access
    b: Access
    write: Access

    @classmethod
    def of(cls, node: Node, a_position: int = 0, b_position: int = 1) -> MatMulLoops:
        """Loops `b0 b1 ... m n k`; `m` or `n` is missing where that operand is a vector.

        Raises:
            ModelRejected: the operands or the result do not fit each other.
        """
        extents = _require_product(node, a_position, b_position)
        a, b, out = input_operand(node, a_position), input_operand(node, b_position), output_operand(node)
        rows, columns = len(a.shape) > 1, len(b.shape) > 1
        batch = tuple(Dim(f"b{i}", extent) for i, extent in enumerate(extents))
        m = (Dim("m", a.shape[-2]),) if rows else ()
        n = (Dim("n", b.shape[-1]),) if columns else ()
        k = Dim("k", a.shape[-1], "reduce")

        def batch_index(shape: tuple[int, ...]) -> tuple[Index, ...]:
            aligned = batch[len(batch) - len(shape) :]
            return tuple(affine() if e == 1 else affine(d.name) for e, d in zip(shape, aligned, strict=True))

        a_lead, b_lead = batch_index(a.shape[:-2]), batch_index(b.shape[:-2])
        row = tuple(affine(d.name) for d in m)
        column = tuple(affine(d.name) for d in n)
        parallel = (*batch, *m, *n)
        return cls(
            (*parallel, k),
            Access(a, (*a_lead, *row, affine("k"))),
            Access(b, (*b_lead, affine("k"), *column)),
            Access(out, tuple(affine(d.name) for d in parallel)),
        )


def _require_product(node: Node, a_position: int, b_position: int) -> Shape:
    """The shape of the batch of a product whose operands and result fit each other."""
    a, b = require_rank(node, a_position, 1), require_rank(node, b_position, 1)
    depth = a[-1]
    expected = (depth,) if len(b) == 1 else (*b[:-2], depth, b[-1])
    require_shape(node, b_position, expected, f"the other operand is {list(a)}")
    batch = broadcast_shape(node, a[:-2], b[:-2])
    require_result(node, (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ())))
    return batch


@operator("MatMul", reference=_matmul_reference)
def matmul(node: Node) -> Description:
    """`out[..., m, n] = sum_k a[..., m, k] * b[..., k, n]` with numpy's rules for 1-D operands."""
    loops = MatMulLoops.of(node)
    compute = node.output.dtype.compute
    product = cast(read(0, loops.a), compute) * cast(read(1, loops.b), compute)
    return (Nest(loops.dims, (loops.a, loops.b), loops.write, product, "sum"),)


def _gemm_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    a, b = inputs[0], inputs[1]
    assert a is not None
    assert b is not None
    a = a.T if node.int_attr("transA", 0) else a
    b = b.T if node.int_attr("transB", 0) else b
    result = np.matmul(a, b)
    alpha, beta = node.float_attr("alpha", 1.0), node.float_attr("beta", 1.0)
    if alpha != 1.0:
        result = result * np.asarray(alpha).astype(result.dtype)
    c = inputs[2] if len(inputs) > 2 else None
    if c is not None and beta != 0.0:
        result = result + (c if beta == 1.0 else c * np.asarray(beta).astype(result.dtype))
    return (result,)


@operator("Gemm", reference=_gemm_reference)
def gemm(node: Node) -> Description:
    """`out[m, n] = alpha * sum_k a[m, k] * b[k, n] + beta * c`, operands optionally transposed.

    With a `beta` of 0 `c` is not read, so that what is not finite in it does not matter, as in BLAS.
    """
    trans_a, trans_b = node.int_attr("transA", 0), node.int_attr("transB", 0)
    rows, depth = require_rank(node, 0, 2, 2)[:: -1 if trans_a else 1]
    columns = require_rank(node, 1, 2, 2)[0 if trans_b else 1]
    require_shape(node, 1, (columns, depth) if trans_b else (depth, columns), f"{depth} elements in each sum")
    require_broadcast(node, 2, (rows, columns))
    require_result(node, (rows, columns))
    a, b, out = input_operand(node, 0), input_operand(node, 1), output_operand(node)
    m, n, k = Dim("m", rows), Dim("n", columns), Dim("k", depth, "reduce")
    a_index = ("k", "m") if trans_a else ("m", "k")
    b_index = ("n", "k") if trans_b else ("k", "n")
    reads = [Access(a, tuple(affine(d) for d in a_index)), Access(b, tuple(affine(d) for d in b_index))]
    product = read(0, reads[0]) * read(1, reads[1])
    alpha, beta = node.float_attr("alpha", 1.0), node.float_attr("beta", 1.0)
    init: Expr | None = None
    finish: Expr | None = None
    if node.input(2) is not None and beta != 0.0:
        reads.append(broadcast(input_operand(node, 2), (m, n)))
        bias = read(2, reads[2])
        bias = bias if beta == 1.0 else bias * beta
        if alpha == 1.0:
            init = bias
        else:
            finish = Acc(out.dtype.compute) * alpha + bias
    elif alpha != 1.0:
        finish = Acc(out.dtype.compute) * alpha
    write = Access(out, (affine("m"), affine("n")))
    return (Nest((m, n, k), tuple(reads), write, product, "sum", init, finish),)


_DOTS = "..."


@dataclass(frozen=True, slots=True)
class _Equation:
    """An einsum equation with every axis named: a letter, or `e0, e1, ...` for those of the ellipsis."""

    inputs: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, ranks: Sequence[int]) -> _Equation:
        """Name the axes of operands of the given ranks; an absent output is inferred as numpy does."""
        left, arrow, right = text.replace(" ", "").partition("->")
        sides = left.split(",")
        hidden = [
            rank - len(side.replace(_DOTS, "")) if _DOTS in side else 0
            for side, rank in zip(sides, ranks, strict=True)
        ]
        widest = max(hidden)
        dots = tuple(f"e{i}" for i in range(widest))

        def names(side: str, width: int) -> tuple[str, ...]:
            before, found, after = side.partition(_DOTS)
            return (*before, *dots[widest - width :], *after) if found else tuple(side)

        inputs = tuple(names(side, width) for side, width in zip(sides, hidden, strict=True))
        if arrow:
            return cls(inputs, names(right, widest))
        letters = left.replace(_DOTS, "").replace(",", "")
        return cls(inputs, (*dots, *sorted(c for c in set(letters) if letters.count(c) == 1)))


def _einsum_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    operands = [np.asarray(a) for a in inputs]
    result = np.einsum(node.str_attr("equation", ""), *operands, optimize=len(operands) > 1)
    return (np.asarray(result, dtype=operands[0].dtype),)


@operator("Einsum", reference=_einsum_reference)
def einsum(node: Node) -> Description:
    """The sum, over every axis that the output lacks, of the product of all operands.

    A letter that one operand repeats walks its diagonal: one dim in two index expressions.
    """
    operands = [input_operand(node, i) for i in range(len(node.inputs))]
    out = output_operand(node)
    equation = _Equation.parse(node.str_attr("equation", ""), [len(o.shape) for o in operands])
    extents: dict[str, int] = {}
    for names, operand in zip(equation.inputs, operands, strict=True):
        for name, extent in zip(names, operand.shape, strict=True):
            known = extents.setdefault(name, extent)
            problem = f"{name!r} stands for axes of {known} and of {extent} elements"
            require(node, extent == known or 1 in (extent, known), problem)
            extents[name] = extent if known == 1 else known

    def walked(operand: Operand, names: Sequence[str]) -> Access:
        axes = zip(names, operand.shape, strict=True)
        return Access(operand, tuple(affine(n) if e == extents[n] else affine() for n, e in axes))

    reads = tuple(walked(o, names) for o, names in zip(operands, equation.inputs, strict=True))
    compute = out.dtype.compute
    product = cast(read(0, reads[0]), compute)
    for position in range(1, len(reads)):
        product = product * cast(read(position, reads[position]), compute)
    parallel = tuple(Dim(name, extents[name]) for name in equation.output)
    reduced = tuple(Dim(n, e, "reduce") for n, e in extents.items() if n not in equation.output)
    require_result(node, tuple(d.extent for d in parallel))
    write = Access(out, tuple(affine(d.name) for d in parallel))
    return (Nest((*parallel, *reduced), reads, write, product, "sum" if reduced else None),)
