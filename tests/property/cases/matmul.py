"""Cases of matrix products."""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Case, Draw, case, generator, integers

_EQUATIONS = {
    "ij,jk->ik": [("i", "j"), ("j", "k")],
    "bij,bkj->bik": [("b", "i", "j"), ("b", "k", "j")],
    "bhid,bhjd->bhij": [("b", "h", "i", "d"), ("b", "h", "j", "d")],
    "ij,jk": [("i", "j"), ("j", "k")],
    "ii->i": [("i", "i")],
    "ii": [("i", "i")],
    "ij->ji": [("i", "j")],
    "ij->": [("i", "j")],
    "i,j->ij": [("i",), ("j",)],
    "ij,jk,kl->il": [("i", "j"), ("j", "k"), ("k", "l")],
    "...ij,...jk->...ik": [("b", "h", "i", "j"), ("b", "h", "j", "k")],
    "...ij,jk": [("b", "i", "j"), ("j", "k")],
    "b i, b i -> b": [("b", "i"), ("b", "i")],
}


@generator("MatMul")
def matmul(draw: Draw, op_type: str) -> Case:
    m, k, n = (draw(st.integers(1, 6)) for _ in range(3))
    batch = draw(st.sampled_from([((), ()), ((2,), ()), ((), (3,)), ((2, 1), (2, 3)), ((2, 3), (1, 3))]))
    a_shape = (k,) if draw(st.integers(0, 5)) == 0 else (*batch[0], m, k)
    b_shape = (k,) if draw(st.integers(0, 5)) == 0 else (*batch[1], k, n)
    dtype = draw(st.sampled_from([np.float32, np.float32, np.int32]))
    inputs = [integers(draw, a_shape, dtype=dtype), integers(draw, b_shape, dtype=dtype)]
    return case(op_type, inputs, opset=13, exact=True)


@generator("Gemm")
def gemm(draw: Draw, op_type: str) -> Case:
    m, k, n = (draw(st.integers(1, 6)) for _ in range(3))
    trans_a, trans_b = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    inputs = [
        integers(draw, (k, m) if trans_a else (m, k)),
        integers(draw, (n, k) if trans_b else (k, n)),
    ]
    if draw(st.booleans()):
        inputs.append(integers(draw, draw(st.sampled_from([(), (n,), (1, n), (m, 1), (m, n)]))))
    attributes = {
        "transA": trans_a,
        "transB": trans_b,
        "alpha": draw(st.sampled_from([1.0, 0.5, 2.0])),
        "beta": draw(st.sampled_from([1.0, 0.5, 0.0])),
    }
    return case(op_type, inputs, attributes, opset=13, exact=True)


@generator("Einsum")
def einsum(draw: Draw, op_type: str) -> Case:
    equation = draw(st.sampled_from(sorted(_EQUATIONS)))
    extents = {letter: draw(st.integers(1, 4)) for letter in "bhijkld"}
    inputs = [integers(draw, tuple(extents[c] for c in names)) for names in _EQUATIONS[equation]]
    return case(op_type, inputs, {"equation": equation}, opset=12, exact=True)
