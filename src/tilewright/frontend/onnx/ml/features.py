"""Operators on features: scaled, normalised, filled in, picked, put side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilewright.frontend.onnx.microsoft.definition import Definition, Write
from tilewright.frontend.onnx.ml.parts import (
    as_type,
    columns,
    listed,
    place_in,
    rows,
    side_by_side,
    unsqueezed,
)
from tilewright.frontend.onnx.ml.texts import NUM_KEYS
from tilewright.ir.dtype import DType


def _for_features(d: Definition, name: str, values: Sequence[float], dtype: DType) -> str:
    """A list that has one number, or one for each feature."""
    shape = d.shape(0)
    features = shape[-1] if shape else 1
    d.require(len(values) in (1, features), f"{name} has {len(values)} values for {features} features")
    return listed(d, values, dtype)


def _scaler(d: Definition) -> Sequence[str]:
    result = as_type(d, "x0", d.value(0).dtype)
    offset, scale = d.reals("offset"), d.reals("scale")
    if offset:
        result = d("Sub", result, _for_features(d, "offset", offset, DType.FLOAT32))
    if scale:
        result = d("Mul", result, _for_features(d, "scale", scale, DType.FLOAT32))
    return [result if offset or scale else d("Identity", result)]


def _normalizer(d: Definition) -> Sequence[str]:
    d.shape(0, 1, 2)
    norm = d.text("norm") or "MAX"
    x = as_type(d, "x0", d.value(0).dtype)
    reductions = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}
    d.require(norm in reductions, f"norm is {norm!r}, not one of {', '.join(reductions)}")
    size = d(reductions[norm], x, d.whole_numbers([-1]))
    is_none = d("Equal", size, d.number(0.0, DType.FLOAT32))
    return [d("Div", x, d("Where", is_none, d.number(1.0, DType.FLOAT32), size))]


def _imputer(d: Definition) -> Sequence[str]:
    dtype = d.value(0).dtype
    reals, wholes = d.reals("imputed_value_floats"), d.wholes("imputed_value_int64s")
    real, whole = d.real("replaced_value_float", 0.0), d.whole("replaced_value_int64", 0)
    values: Sequence[float] = reals if dtype.is_float else wholes
    kind = "floats" if dtype.is_float else "int64s"
    d.require(bool(values), f"it has no imputed_value_{kind} for {dtype} features")
    filled = _for_features(d, f"imputed_value_{kind}", values, dtype)
    if dtype.is_float and np.isnan(real):
        return [d("Where", d("IsNaN", "x0"), filled, "x0")]
    replaced = d.number(real, dtype) if dtype.is_float else d.constant(np.array(whole, dtype.numpy))
    return [d("Where", d("Equal", "x0", replaced), filled, "x0")]


def _binarizer(d: Definition) -> Sequence[str]:
    dtype = d.value(0).dtype
    threshold = d.real("threshold", 0.0)
    x = "x0" if dtype.is_float else as_type(d, "x0", dtype)
    compared = dtype if dtype.is_float else DType.FLOAT32
    return [d("Cast", d("Greater", x, d.number(threshold, compared)), to=dtype.value)]


def _array_feature_extractor(d: Definition) -> Sequence[str]:
    shape, count = d.shape(0), prod(d.shape(1))
    d.require(bool(shape), "its first input has no axis")
    x = unsqueezed(d, "x0", 0) if len(shape) == 1 else "x0"
    return [d("Gather", x, d("Reshape", "x1", d.whole_numbers([count])), axis=-1)]


def _feature_vectorizer(d: Definition) -> Sequence[str]:
    sizes = d.wholes("inputdimensions")
    count = d.num_inputs
    d.require(len(sizes) in (0, count), f"inputdimensions has {len(sizes)} values for {count} inputs")
    parts = []
    for position in range(count):
        name, given = rows(d, position)
        name = as_type(d, name, d.value(position).dtype)
        size = sizes[position] if sizes else given
        d.require(size >= 0, f"inputdimensions has {size}")
        if size < given:
            name = columns(d, name, 0, size)
        elif size > given:
            name = d("Pad", name, d.whole_numbers([0, 0, 0, size - given]))
        parts.append(name)
    return [side_by_side(d, *parts)]


def _one_hot_encoder(d: Definition) -> Sequence[str]:
    dtype = d.value(0).dtype
    categories = d.numbers("cats_int64s", DType.INT64)
    d.require(len(categories) > 0, "it has no categories")
    takes_others = d.whole("zeros", 1) != 0
    x, known = as_type(d, "x0", dtype, DType.INT64), d.constant(categories)
    if dtype.is_float:
        # Kernels convert NaN to 0, which may be a category.
        x = d("Where", d("IsNaN", "x0"), d.constant(np.array(np.iinfo(np.int64).min)), x)
    if not takes_others:
        # A category that is none is an index outside the list.
        x = d("Gather", known, place_in(d, x, DType.INT64, categories), axis=0)
    return [d("Cast", d("Equal", unsqueezed(d, x, -1), known), to=DType.FLOAT32.value)]


def _zip_map(d: Definition) -> Sequence[str]:
    """The values of maps, whose keys are at the edge of the model."""
    count, shape = d.whole(NUM_KEYS, 0), d.shape(0, 1, 2)
    d.require(shape[-1] == count, f"it has {count} keys for {shape[-1]} values")
    return [d("Identity", "x0")]


FEATURES: Mapping[str, Write] = {
    "ArrayFeatureExtractor": _array_feature_extractor,
    "Binarizer": _binarizer,
    "FeatureVectorizer": _feature_vectorizer,
    "Imputer": _imputer,
    "Normalizer": _normalizer,
    "OneHotEncoder": _one_hot_encoder,
    "Scaler": _scaler,
    "ZipMap": _zip_map,
}
