"""Labels that stand for each other: LabelEncoder in all its versions, CategoryMapper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.frontend.onnx.microsoft.definition import Definition, Write
from tilewright.frontend.onnx.ml.parts import place_in
from tilewright.ir.dtype import DType

_LISTS = {"int64s": DType.INT64, "floats": DType.FLOAT32}


def _label_encoder(d: Definition) -> Sequence[str]:
    keys, values = _column(d, "keys"), _column(d, "values")
    d.require(keys is not None and values is not None, "it has no keys or no values")
    assert keys is not None
    assert values is not None
    d.require(len(keys) == len(values), f"it has {len(keys)} keys and {len(values)} values")
    dtype = d.value(0).dtype
    d.require(DType.from_numpy(keys.dtype) is dtype, f"its input is {dtype}, its keys are {keys.dtype}")
    return [_looked_up(d, "x0", dtype, keys, values, _default(d, values.dtype))]


def _looked_up(d: Definition, name: str, dtype: DType, keys: Array, values: Array, default: Any) -> str:
    table = np.concatenate([values, np.array([default], values.dtype)])
    return d("Gather", d.constant(table), place_in(d, name, dtype, keys), axis=0)


def _column(d: Definition, name: str) -> Array | None:
    """Keys or values, of whichever type they are."""
    found = [values for kind, dtype in _LISTS.items() if len(values := d.numbers(f"{name}_{kind}", dtype))]
    tensor = d.tensor(f"{name}_tensor")
    if tensor is not None:
        found.append(tensor.reshape(-1))
    d.require(len(found) <= 1, f"it has {name} of two types")
    return found[0] if found else None


def _default(d: Definition, dtype: np.dtype[Any]) -> Any:
    whole, real = d.whole("default_int64", -1), d.real("default_float", -0.0)
    tensor = d.tensor("default_tensor")
    if tensor is not None:
        d.require(tensor.size == 1, f"default_tensor has {tensor.size} elements")
        return tensor.reshape(-1)[0]
    return whole if dtype.kind in "iu" else real


def _category_mapper(d: Definition) -> Sequence[str]:
    """Texts are numbers by now: `texts` says which of the lists are the keys."""
    keys, values = (d.numbers(f"{name}_int64s", DType.INT64) for name in ("keys", "values"))
    d.require(len(keys) == len(values), f"it has {len(keys)} keys and {len(values)} values")
    return [_looked_up(d, "x0", DType.INT64, keys, values, d.whole("default_int64", -1))]


LABELS: Mapping[str, Write] = {"CategoryMapper": _category_mapper, "LabelEncoder": _label_encoder}
