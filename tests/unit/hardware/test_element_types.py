"""As what a machine keeps elements, and in which type its units compute them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tilewright.errors import MachineError
from tilewright.hardware.element_types import (
    LOWERED,
    ElementTypes,
    computing_dtype,
    element_types,
    holds,
    product_rate_in_words,
    rate_in_lanes,
)
from tilewright.hardware.presets import load_preset
from tilewright.ir.dtype import DType

F64, F32, F16, BF16 = DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16
I8, I16, I32, I64 = DType.INT8, DType.INT16, DType.INT32, DType.INT64


@pytest.mark.parametrize(
    ("machine", "kept"),
    [
        ("ipu-mk2", {F64: F32, F32: F32, F16: F16, BF16: BF16}),  # float32 holds bfloat16
        ("h200", {F64: F32, F32: F32, F16: F16, BF16: BF16}),
        ("stcp920", {F64: F16, F32: F16, F16: F16, BF16: F16}),
        ("ascend910", {F32: F16, F16: F16}),  # its vectors know float32, its products do not
        ("tpu-v4i", {F32: BF16, F16: BF16, BF16: BF16}),
        ("k80", {F32: F32, F16: F16}),
        ("goya", {F64: F32, F32: F32, F16: F16}),  # multiplies no such numbers, computes with them
        ("nvdla-large", {F32: F32, F16: F16}),
    ],
)
def test_floats_are_kept_as_the_widest_that_a_machine_multiplies(
    machine: str, kept: dict[DType, DType]
) -> None:
    types = element_types(load_preset(machine))
    for dtype, stored in kept.items():
        assert types.stored(dtype) is stored
        assert types.is_converted(dtype) == (stored is not dtype)
        assert not types.inside.is_converted(dtype)
    assert types.stored(I64) is I64
    assert types.sizes(kept) == {str(d): s.size_bytes for d, s in kept.items()}


def test_what_is_asked_for_is_what_everything_is_kept_as() -> None:
    types = element_types(load_preset("h200"), I8)
    assert {types.stored(d) for d in (F64, F32, F16, BF16, I8)} == {I8}
    assert types.stored(I64) is I64
    assert not types.is_converted(F32)
    assert types.border_sizes([F32]) is None


@pytest.mark.parametrize(
    ("machine", "dtype", "known"),
    [("goya", F16, "int8"), ("ascend910", F32, "float16, int8"), ("tpu-v4i", I8, "bfloat16")],
)
def test_a_type_that_is_not_multiplied_is_refused_with_those_that_are(
    machine: str, dtype: DType, known: str
) -> None:
    with pytest.raises(MachineError, match=f"'{machine}': dtype {dtype}: .* has {known}.$") as caught:
        element_types(load_preset(machine), dtype)
    assert len(str(caught.value).splitlines()) == 1


def test_a_type_holds_another_if_every_value_survives() -> None:
    for wide, narrow in product((F32, F16, I8, I16, I32), (F32, F16, I8, I16)):
        if narrow.is_integer:
            info = np.iinfo(narrow.numpy)
            values = np.array([info.min, info.max, info.max - 1], narrow.numpy)
        else:
            most, step = (float(getattr(np.finfo(narrow.numpy), name)) for name in ("max", "eps"))
            values = np.array([0.5, most, 1 + step], narrow.numpy)
        with np.errstate(over="ignore", invalid="ignore"):
            survives = (values.astype(wide.numpy).astype(narrow.numpy) == values).all()
            is_exact = (values.astype(wide.numpy).astype(np.float64) == values.astype(np.float64)).all()
        assert holds(wide, narrow) == bool(survives and is_exact), (wide, narrow)
    assert holds(BF16, I8)
    assert not holds(BF16, F16)
    assert not holds(F16, BF16)
    assert holds(I8, DType.UINT8)
    assert holds(F16, DType.BOOL)
    assert not holds(F16, DType.COMPLEX64)


def test_a_unit_computes_in_the_fastest_type_that_holds_what_it_takes() -> None:
    rates = {"float16": 64.0, "float32": 16.0, "int8": 32.0}
    assert computing_dtype(rates, F32) is F32
    assert computing_dtype(rates, F16) is F16
    assert computing_dtype(rates, I8) is F16, "faster, and exact"
    assert computing_dtype(rates, F16, I8) is F16
    assert computing_dtype(rates, BF16) is F32
    assert computing_dtype(rates, I32) is None
    assert computing_dtype({"float16": 2.0, "float32": 2.0}, F16) is F16
    assert computing_dtype({"float32": 4.0, "float16": 1.0}, F16) is F32
    assert rate_in_lanes(rates, I64) == 128 / 8
    assert product_rate_in_words({"int8": 32.0}, [I16, I32]) == 32 / 4**2
    assert product_rate_in_words({"int8": 32.0}, [I32, F32]) is None


def test_a_narrower_type_is_never_computed_more_slowly() -> None:
    tables = [
        unit.ops_per_cycle for name in ("h200", "ipu-mk2", "a310", "goya") for unit in load_preset(name).units
    ]
    for table in filter(None, tables):
        for wide, narrow in ((F32, F16), (F32, BF16), (F32, I8), (F16, I8), (BF16, I8)):
            before, after = computing_dtype(table, wide), computing_dtype(table, narrow)
            if before is not None:
                assert after is not None
                assert table[str(after)] >= table[str(before)]


def test_types_as_in_the_file_change_nothing() -> None:
    types = ElementTypes()
    assert types.stored(F64) is F64
    assert types.border_sizes([F64]) is None
    assert {DType[name.upper()] for name in LOWERED} == {F32, F16, BF16, I16, I8}
