"""Which axes are proven to hold rows, and which are not."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

import tilewright as tw
from tilewright.ir.rows import rows_of
from tilewright.specialise.rows import row_axes

HEADER = '<ir_version: 8, opset_import: ["": 17]> '


def proven(text: str, shape: tuple[int, ...], **arrays: Any) -> dict[str, int | None] | None:
    """The proof for the first axis of x, from graphs at two extents."""
    proto = parse_model(HEADER + text)
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items())
    loaded = tw.load(proto)
    one, two, five = (loaded.at({"x": (extent, *shape)}).graph for extent in (1, 2, 5))
    proofs = [row_axes(a, b, {"x": 0}) for a, b in ((one, five), (two, five), (five, two), (five, one))]
    assert all(proof == proofs[0] for proof in proofs)
    return proofs[0]


def rows_in(text: str, shape: tuple[int, ...], **arrays: Any) -> dict[str, int] | None:
    """The axes that hold rows, by name of the value, as a graph for five rows says."""
    proto = parse_model(HEADER + text)
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items())
    graph = tw.load(proto).at({"x": (5, *shape)}).graph
    graph.row_axes = {"x": 0}
    axes = rows_of(graph)
    return None if axes is None else {value.name: axis for value, axis in axes.items()}


ONES = np.ones((4, 3), np.float32)
FILTER = np.ones((3, 2, 3, 3), np.float32)

HELD = {
    "product": ("g (float[N,4] x) => (float[N,3] y) { y = MatMul(x, w) }", (4,), {"w": ONES}, 0),
    "softmax of a row": ("g (float[N,4] x) => (float[N,4] y) { y = Softmax<axis=-1>(x) }", (4,), {}, 0),
    "convolution": (
        "g (float[N,2,8,8] x) => (float[N,3] y) { c = Conv(x, w) p = GlobalAveragePool(c) y = Flatten(p) }",
        (2, 8, 8),
        {"w": FILTER},
        0,
    ),
    "reshape by the shape, and transposed": (
        """g (float[N,6] x) => (float[3,N,2] y) {
            s = Shape(x) n = Slice(s, a, b) t = Concat<axis=0>(n, r) q = Reshape(x, t)
            y = Transpose<perm=[1,0,2]>(q)
        }""",
        (6,),
        {"a": np.array([0]), "b": np.array([1]), "r": np.array([3, 2])},
        1,
    ),
    "table looked up by data": (
        "g (int64[N,4] x) => (float[N,4,3] y) { y = Gather(w, x) }",
        (4,),
        {"w": ONES},
        0,
    ),
    "state of zeros for each row": (
        """g (float[N,4] x) => (float[N,4] y) {
            s = Shape(x) z = ConstantOfShape(s) y = Add(x, z)
        }""",
        (4,),
        {},
        0,
    ),
}

MIXED = {
    "softmax over rows": ("g (float[N,4] x) => (float[N,4] y) { y = Softmax<axis=0>(x) }", (4,), {}),
    "mean over rows": ("g (float[N,4] x) => (float[1,4] y) { y = ReduceMean<axes=[0]>(x) }", (4,), {}),
    "scaled by how many there are": (
        """g (float[N,4] x) => (float[N,4] y) {
            s = Shape(x) c = Cast<to=1>(s) n = Gather(c, z) y = Mul(x, n)
        }""",
        (4,),
        {"z": np.array(0)},
    ),
    "sum up to the row": (
        "g (float[N,4] x) => (float[N,4] y) { y = CumSum(x, z) }",
        (4,),
        {"z": np.array(0)},
    ),
    "one row": ("g (float[N,4] x) => (float[1,4] y) { y = Gather(x, z) }", (4,), {"z": np.array([0])}),
    "rows reversed": (
        "g (float[N,4] x) => (float[N,4] y) { y = Slice(x, a, b, c, d) }",
        (4,),
        {"a": np.array([-1]), "b": np.array([-1000]), "c": np.array([0]), "d": np.array([-1])},
    ),
    "products between rows": (
        "g (float[N,4] x) => (float[N,N] y) { t = Transpose(x) y = MatMul(x, t) }",
        (4,),
        {},
    ),
    "numbered rows": (
        """g (float[N,4] x) => (float[N,4] y) {
            s = Shape(x) n = Gather(s, z) i = Range(z, n, o) f = Cast<to=1>(i) u = Unsqueeze(f, l)
            y = Add(x, u)
        }""",
        (4,),
        {"z": np.array(0), "o": np.array(1), "l": np.array([1])},
    ),
}


@pytest.mark.parametrize("name", HELD)
def test_rows_are_seen(name: str) -> None:
    text, shape, arrays, axis = HELD[name]
    assert proven(text, shape, **arrays) == {"y": axis}


@pytest.mark.parametrize("name", HELD)
def test_one_graph_says_where_rows_are(name: str) -> None:
    text, shape, arrays, axis = HELD[name]
    found = rows_in(text, shape, **arrays)
    assert found is not None
    assert found["y"] == axis


MIXED_IN_ONE = [
    name for name in MIXED if name != "scaled by how many there are"
]  # which takes a second graph


@pytest.mark.parametrize("name", MIXED_IN_ONE)
def test_one_graph_says_where_rows_are_mixed(name: str) -> None:
    assert rows_in(MIXED[name][0], MIXED[name][1], **MIXED[name][2]) is None


@pytest.mark.parametrize("name", MIXED)
def test_what_depends_on_other_rows_or_on_how_many_there_are_is_not_proven(name: str) -> None:
    text, shape, arrays = MIXED[name]
    assert proven(text, shape, **arrays) is None
