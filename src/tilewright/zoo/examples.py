"""Example values for the inputs of a model."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, ValueInfoProto

from tilewright.errors import UsageError
from tilewright.zoo.network import Fill, InputSpec

Arrays = dict[str, npt.NDArray[np.generic]]


def array_for(spec: InputSpec, seed: int) -> npt.NDArray[np.generic]:
    """Values for one input, a function of its spec and `seed`."""
    digest = hashlib.blake2b(f"{spec.name}/{seed}".encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "little"))
    match spec.fill:
        case Fill.IMAGE:
            return _image(rng, spec.shape)
        case Fill.NORMAL:
            return rng.standard_normal(spec.shape, dtype=np.float32)
        case Fill.INDEX:
            return rng.integers(0, spec.limit, spec.shape, dtype=np.int64)
        case Fill.MASK:
            return _steps(rng, spec.shape, first=1)
        case Fill.SEGMENT:
            return _steps(rng, spec.shape, first=0)


def _image(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Patches of several sizes added up: like photographs, most of the energy is in large shapes."""
    *lead, height, width = shape
    image = 0.5 * rng.standard_normal((*lead, 1, 1))
    for cells, strength in ((4, 0.5), (16, 0.5), (max(height, width), 0.4)):
        rows, columns = (np.arange(side) * min(cells, side) // side for side in (height, width))
        patches = rng.standard_normal((*lead, min(cells, height), min(cells, width)))
        image = image + strength * patches[..., rows[:, None], columns]
    return image.astype(np.float32)


def _steps(rng: np.random.Generator, shape: tuple[int, ...], *, first: int) -> npt.NDArray[np.int64]:
    """Rows of `first` that change to the other bit somewhere in their second half."""
    length = shape[-1]
    change = rng.integers((length + 1) // 2, length + 1, shape[:-1])
    return np.where(np.arange(length) < change[..., None], first, 1 - first).astype(np.int64)


def spec_from_model(model: ModelProto) -> tuple[InputSpec, ...]:
    """Specs of the graph inputs that are not initializers, with the values that the zoo noted for them."""
    notes = {entry.key: entry.value for entry in model.metadata_props}
    fixed = {initializer.name for initializer in model.graph.initializer}
    return tuple(
        _spec(value, notes.get(f"zoo.input.{value.name}"))
        for value in model.graph.input
        if value.name not in fixed
    )


def _spec(value: ValueInfoProto, note: str | None) -> InputSpec:
    tensor = value.type.tensor_type
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else 0 for dim in tensor.shape.dim)
    if not tensor.HasField("shape") or 0 in shape:
        raise UsageError(f"Input {value.name!r} has no fixed shape and so no example; fix its sizes first.")
    if note is not None:
        fill, _, limit = note.partition(":")
        return InputSpec(value.name, shape, Fill(fill), int(limit))
    if tensor.elem_type == TensorProto.FLOAT:
        return InputSpec(value.name, shape, Fill.NORMAL)
    if tensor.elem_type == TensorProto.INT64:
        return InputSpec(value.name, shape, Fill.INDEX, 2)
    kind = TensorProto.DataType.Name(tensor.elem_type)
    raise UsageError(f"Input {value.name!r} is {kind}; examples are made for FLOAT and INT64 inputs only.")
