"""Arrangements are data: what a file says of one makes the same bytes, or is refused."""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import hashlib
import json
from itertools import product
from typing import Any

import numpy as np
import pytest

from tilewright.fields import FieldError, Signed
from tilewright.ir.dtype import DType
from tilewright.targets.cpu.arrangements import (
    MatrixTiles,
    Order,
    PanelOrder,
    Reversible,
    SliceTiles,
    Stacked,
    WinogradPanels,
    arrange_into,
    window,
)
from tilewright.targets.cpu.image.arrangement_document import decode_arrangement, encode_arrangement
from tilewright.targets.cpu.integer_arrangements import (
    ColumnSums,
    IntegerWords,
    SignedBytes,
    StepOnes,
    WidenedWords,
    WinogradWords,
)
from tilewright.targets.cpu.product.winograd.transform import integer_transform, winograd_transform
from tilewright.targets.cpu.runtime import pool_ir

RNG = np.random.default_rng(0)
FILTER = RNG.standard_normal((10, 5, 3, 3), dtype=np.float32)
TAPS = window((3, 3, 5, 10), (3, 1, 9, 45), 0)
BYTES = RNG.integers(0, 256, (7, 6), np.uint8)
SIGNED = SignedBytes(window((6, 7), (1, 6), 0), 1, 1, 6, True)
STEPS = tuple(map(Signed, (0, 1, 2, 3, 4, 5, -1, -1)))
PANELS = PanelOrder(TAPS, 1, 4, 8, DType.FLOAT32)
G = np.array(winograd_transform(4).weight, np.float64)
INTEGER_G = tuple(tuple(Signed(int(x)) for x in row) for row in integer_transform(4).weight)

ARRANGEMENTS: list[tuple[Any, np.ndarray[Any, Any]]] = [
    (Order((2, 3, 1, 0)), FILTER),
    (PANELS, FILTER),
    (PanelOrder(TAPS, 3, 4, 8, DType.FLOAT32, is_compact=True), FILTER),
    (WinogradPanels(TAPS, 4, 8, tuple(map(tuple, G.tolist()))), FILTER),
    (MatrixTiles(window((3, 3, 5, 10), (3, 1, 9, 45), 0), 3, 2), FILTER),
    (SliceTiles(TAPS, 2), FILTER),
    (IntegerWords(SIGNED, STEPS, 4, 4), BYTES),
    (WidenedWords(SignedBytes(window((6, 7), (1, 6), 0), 1, 6, 1, False), Signed(-3), 4, 4), BYTES),
    (WinogradWords(TAPS, Signed(-3), 4, 8, INTEGER_G), FILTER.astype(np.int8)),
    (ColumnSums(SIGNED, 4, Signed(-2), Signed(5)), BYTES),
    (StepOnes(2, STEPS), BYTES),
    (Stacked(Order((1, 0)), (((0, 3), (0, 6)), ((4, 7), (0, 6))), 64), BYTES),
    (Stacked(None, (((0, 3), (2, 4)),), 64), BYTES),
]


@pytest.mark.parametrize(("arrangement", "array"), ARRANGEMENTS, ids=lambda x: type(x).__name__)
def test_what_is_read_arranges_as_what_was_written(arrangement: Any, array: np.ndarray[Any, Any]) -> None:
    read = decode_arrangement(json.loads(json.dumps(encode_arrangement(arrangement))))
    assert read == arrangement
    assert hash(read) == hash(arrangement)
    assert read is not None
    assert read.arrange(array).tobytes() == arrangement.arrange(array).tobytes()


def test_panels_hold_consecutive_columns_for_each_step() -> None:
    packed = PANELS.arrange(FILTER)
    expected: list[float] = []
    for first in (0, 8):
        for row, column, channel in product(range(3), range(3), range(5)):
            wanted = FILTER[first : first + 8, channel, row, column].tolist()
            expected += wanted + [0.0] * (-len(wanted) % 4)
    assert packed.tolist() == expected


MATRIX = RNG.standard_normal((9, 14), dtype=np.float32)


@pytest.mark.parametrize(
    ("arrangement", "array"),
    [
        (Order((2, 3, 1, 0)), FILTER),
        (PANELS, FILTER),
        (PanelOrder(TAPS, 3, 4, 8, DType.FLOAT32), FILTER),
        (PanelOrder(TAPS, 9, 16, 16, DType.FLOAT32), FILTER),
        (PanelOrder(window((9, 14), (14, 1), 0), 1, 4, 12, DType.FLOAT32), MATRIX),
        (PanelOrder(window((14, 1, 9), (1, 7, 14), 0), 1, 8, 8, DType.FLOAT32), MATRIX),
        (PanelOrder(window((14, 9), (-1, 14), 13), 1, 8, 8, DType.FLOAT32), MATRIX),
    ],
)
def test_constants_come_back_from_what_holds_them(arrangement: Any, array: np.ndarray[Any, Any]) -> None:
    assert isinstance(arrangement, Reversible)
    assert arrangement.holds(array)
    arranged = np.ascontiguousarray(arrangement.arrange(array)).reshape(-1).view(np.uint8)
    restored = np.full_like(array, np.nan)
    arrangement.restore(arranged, restored)
    np.testing.assert_array_equal(restored, array)


@pytest.mark.parametrize(
    ("given", "is_copied"),
    [
        (TAPS, False),
        (window((14, 9), (1, 14), 0), False),
        (window((14, 9), (-1, 14), 13), False),
        (window((3, 2, 14), (42, 14, 1), 14), False),
        (window((2, 5, 9), (7, 1, 14), 2), False),
        (window((126,), (1,), 0), True),
        (window((9, 1), (14, 5), 3), False),
    ],
)
def test_transposed_constants_are_copied_where_a_loop_leaves_its_line(given: Any, is_copied: bool) -> None:
    whole = FILTER if given is TAPS else MATRIX
    order = tuple(reversed(range(whole.ndim)))
    turned = np.ascontiguousarray(whole.transpose(order)).transpose(order)
    assert not turned.flags.c_contiguous
    view = given.of(turned)
    np.testing.assert_array_equal(view, given.of(whole))
    assert np.may_share_memory(view, turned) != is_copied


@pytest.mark.parametrize(
    "arrangement",
    [
        PanelOrder(TAPS, 1, 4, 8, DType.FLOAT32, is_compact=True),
        PanelOrder(window((3, 3, 5, 9), (3, 1, 9, 45), 0), 1, 4, 8, DType.FLOAT32),
        PanelOrder(window((3, 3, 5, 10), (3, 1, 9, 0), 0), 1, 4, 8, DType.FLOAT32),
        PanelOrder(window((3, 2, 5, 15), (3, 1, 9, 30), 0), 1, 4, 8, DType.FLOAT32),
        PanelOrder(TAPS, 1, 4, 8, DType.FLOAT64),
        WinogradPanels(TAPS, 4, 8, tuple(map(tuple, G.tolist()))),
    ],
)
def test_what_is_rounded_or_lacks_elements_holds_no_constant(arrangement: Any) -> None:
    assert not (isinstance(arrangement, Reversible) and arrangement.holds(FILTER))


def test_integer_panels_hold_all_steps_of_their_columns_and_the_last_is_narrower() -> None:
    array = np.arange(54, dtype=np.uint8).reshape(9, 6)
    source = SignedBytes(window((6, 9), (1, 6), 0), 1, 6, 1, False)
    made = WidenedWords(source, Signed(3), 4, 8).arrange(array).view(np.int32)
    columns = np.zeros((6, 12), np.int32)
    columns[:, :9] = array.T.astype(np.int32) - 3
    assert made.tolist() == [*columns[:, :8].reshape(-1), *columns[:, 8:].reshape(-1)]


def test_windows_may_run_backwards() -> None:
    backwards = window((4, 3), (-1, 4), 3)
    assert backwards.of(np.arange(12)).tolist() == [[3, 7, 11], [2, 6, 10], [1, 5, 9], [0, 4, 8]]


@pytest.mark.parametrize("tile", [2, 4])
def test_transformed_filters_are_their_products_with_the_matrices(tile: int) -> None:
    g = np.array(winograd_transform(tile).weight, np.float64)
    made = WinogradPanels(TAPS, 4, 8, tuple(map(tuple, g.tolist()))).arrange(FILTER)
    exact = np.einsum("ik,ockl,jl->ijco", g, FILTER.astype(np.float64), g)
    size = len(g)
    wide = made[: size * size * 5 * 8].reshape(size, size, 5, 8)
    np.testing.assert_allclose(wide, exact[..., :8], rtol=1e-6, atol=1e-7)
    tail = made[size * size * 5 * 8 :].reshape(size, size, 5, 4)
    np.testing.assert_allclose(tail[..., :2], exact[..., 8:], rtol=1e-6, atol=1e-7)
    assert not tail[..., 2:].any()


@pytest.mark.parametrize(
    ("arrangement", "said"),
    [
        (PanelOrder(window((3, 3, 5, 11), (3, 1, 9, 45), 0), 1, 4, 8, DType.FLOAT32), "elements 0 to 494"),
        (PanelOrder(window((3, 3, 5, 10), (3, 1, 9, 45), 9), 1, 4, 8, DType.FLOAT32), "of 450"),
        (PanelOrder(window((2, 2), (1, -1), 0), 1, 4, 8, DType.FLOAT32), "elements -1 to 1"),
        (PanelOrder(window((1 << 40, 2), (0, 1), 0), 1, 4, 8, DType.FLOAT32), "elements of 450"),
        (PanelOrder(window((2, 2, 2), (1, 1), 0), 1, 4, 8, DType.FLOAT32), "strides of 3 loops"),
        (PanelOrder(TAPS, 1, 0, 8, DType.FLOAT32), "vectors of 0"),
        (PanelOrder(TAPS, 1, 1 << 40, 1 << 40, DType.FLOAT32), "in vectors of"),
        (Order((0, 1, 2, 2)), "is no order of 4 axes"),
        (WinogradPanels(window((2, 3, 5, 10), (3, 1, 9, 45), 0), 4, 8, ((1.0, 0.0, 0.0),)), "is no filter"),
        (StepOnes(1 << 40, STEPS), "runs of 450"),
        (Stacked(None, (((0, 3), (0, 5), (0, 3), (0, 3)),), 64), "a part of 540 bytes"),
    ],
)
def test_arrangements_beyond_their_constant_are_refused(arrangement: Any, said: str) -> None:
    with pytest.raises(FieldError, match=said):
        arrangement.arrange(FILTER)


@pytest.mark.parametrize(
    ("arrangement", "said"),
    [
        (WinogradWords(TAPS, Signed(0), 4, 8, ((Signed(1 << 16), Signed(0), Signed(0)),)), "65536"),
        (WinogradWords(TAPS, Signed(1 << 16), 4, 8, ((Signed(1), Signed(0), Signed(0)),)), "65536"),
        (IntegerWords(SignedBytes(TAPS, 9, 1, 5, False), (Signed(7),), 4, 8), "index 7"),
    ],
)
def test_numbers_of_an_arrangement_that_make_no_sense_are_refused(arrangement: Any, said: str) -> None:
    with pytest.raises(FieldError, match=said):
        arrange_into(arrangement, FILTER.astype(np.int8), np.zeros(4, np.uint8))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "zigzag"}, "unknown arrangement 'zigzag'"),
        ({"lanes": -4}, "lanes: expected a whole number"),
        ({"window": {"shape": [1], "strides": [1.5]}}, r"window.strides\[0\]: expected a whole number"),
        ({"dtype": "float99"}, "dtype: expected an element type"),
    ],
)
def test_documents_that_say_no_arrangement_are_refused(change: dict[str, Any], said: str) -> None:
    document = json.loads(json.dumps(encode_arrangement(PANELS)))
    with pytest.raises(FieldError, match=said):
        decode_arrangement({**document, **change})


def test_stored_code_names_the_runtime_that_it_expects() -> None:
    text = pool_ir.pool_ir("x86_64-unknown-linux-gnu", use_futex=True)
    runtimes = {"3": "be8e0592b6003d7b"}
    found = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert runtimes.get(pool_ir.INTERFACE) == found, (
        "the runtime changed: raise INTERFACE, and add its digest"
    )
