"""Matrix products: MatMul, Gemm, Einsum of one product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.expr import Acc, Expr, cast
from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Description, Dim, Index, Nest, affine
from tilewright.ir.ops.build import broadcast, input_operand, output_operand, read
from tilewright.ir.ops.registry import operator

Array = np.ndarray[Any, Any]


def _matmul_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    a, b = inputs[0], inputs[1]
    assert a is not None
    assert b is not None
    return (np.matmul(a, b),)


@operator("MatMul", reference=_matmul_reference)
def matmul(node: Node) -> Description:
    """`out[..., m, n] = sum_k a[..., m, k] * b[..., k, n]` with numpy's rules for 1-D operands."""
    a, b, out = input_operand(node, 0), input_operand(node, 1), output_operand(node)
    rows = len(a.shape) > 1
    columns = len(b.shape) > 1
    batch = tuple(
        Dim(f"b{i}", extent)
        for i, extent in enumerate(out.shape[: len(out.shape) - int(rows) - int(columns)])
    )
    m = (Dim("m", a.shape[-2]),) if rows else ()
    n = (Dim("n", b.shape[-1]),) if columns else ()
    k = Dim("k", a.shape[-1], "reduce")

    def batch_index(shape: tuple[int, ...]) -> tuple[Index, ...]:
        aligned = batch[len(batch) - len(shape) :]
        return tuple(affine() if e == 1 else affine(d.name) for e, d in zip(shape, aligned, strict=True))

    a_index = (*batch_index(a.shape[:-2]), *(affine(d.name) for d in m), affine("k"))
    b_index = (*batch_index(b.shape[:-2]), affine("k"), *(affine(d.name) for d in n))
    reads = (Access(a, a_index), Access(b, b_index))
    dims = (*batch, *m, *n)
    write = Access(out, tuple(affine(d.name) for d in dims))
    compute = out.dtype.compute
    product = cast(read(0, reads[0]), compute) * cast(read(1, reads[1]), compute)
    return (Nest((*dims, k), reads, write, product, "sum"),)


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
    if c is not None:
        result = result + (c if beta == 1.0 else c * np.asarray(beta).astype(result.dtype))
    return (result,)


@operator("Gemm", reference=_gemm_reference)
def gemm(node: Node) -> Description:
    """`out[m, n] = alpha * sum_k a[m, k] * b[k, n] + beta * c`, operands optionally transposed."""
    a, b, out = input_operand(node, 0), input_operand(node, 1), output_operand(node)
    trans_a, trans_b = node.int_attr("transA", 0), node.int_attr("transB", 0)
    m, n = Dim("m", out.shape[0]), Dim("n", out.shape[1])
    k = Dim("k", a.shape[0] if trans_a else a.shape[1], "reduce")
    a_index = ("k", "m") if trans_a else ("m", "k")
    b_index = ("n", "k") if trans_b else ("k", "n")
    reads = [
        Access(a, tuple(affine(d) for d in a_index)),
        Access(b, tuple(affine(d) for d in b_index)),
    ]
    product = read(0, reads[0]) * read(1, reads[1])
    alpha, beta = node.float_attr("alpha", 1.0), node.float_attr("beta", 1.0)
    init: Expr | None = None
    finish: Expr | None = None
    if node.input(2) is not None:
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
