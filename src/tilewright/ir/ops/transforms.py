"""Fourier transforms, and the windows and weights that spectra are made with.

Targets get transforms of known length as products with constants (`passes/expand_transforms.py`); what is
left runs on the host. References compute in float64: their errors are those of one rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.graph import Node, Shape
from tilewright.ir.nest import Description, Opaque
from tilewright.ir.ops.build import (
    normalized_axis,
    require,
    require_rank,
    require_result,
    require_scalar,
    require_shape,
)
from tilewright.ir.ops.operands import optional, present
from tilewright.ir.ops.registry import operator
from tilewright.ir.work import ELEMENTS_PER_POINT, HostWork, number_of
from tilewright.records import dataclass

# Slicing and padding a frame of an STFT.
_STEPS_PER_FRAME = 16


# Windows ---------------------------------------------------------------------------------------------

# Factors of the cosines of 0, 1 and 2 turns.
_COSINES = {
    "HannWindow": (0.5, -0.5, 0.0),
    "HammingWindow": (25 / 46, -21 / 46, 0.0),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}


def _window_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    size = int(present(inputs).reshape(()))
    num_steps = size if node.int_attr("periodic", 1) else size - 1
    turns = 2 * np.pi * np.arange(max(size, 0)) / max(num_steps, 1)
    constant, once, twice = _COSINES[node.op_type]
    values = constant + once * np.cos(turns) + twice * np.cos(2 * turns)
    return (values,)


@operator(
    *_COSINES, reference=_window_reference, host_work=lambda _, data: HostWork(elements=number_of(data, 0, 0))
)
def window(node: Node) -> Description:
    """As many factors as the operand says."""
    require_scalar(node, 0)
    return Opaque(f"{node.op_type}: its size is data")


# Weights of bands ------------------------------------------------------------------------------------


def _mel_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    """Triangles over the bins of a spectrum, whose corners lie evenly on the mel scale."""
    num_bands, size, rate = (int(present(inputs, i).reshape(())) for i in range(3))
    ends = np.array([float(present(inputs, i).reshape(())) for i in (3, 4)])
    low, high = 2595 * np.log1p(ends / 700) / np.log(10)
    corners = np.arange(num_bands + 2) * ((high - low) / (num_bands + 2)) + low
    hertz = 700 * np.expm1(corners / 2595 * np.log(10))
    bins = ((size + 1) * hertz // rate).astype(np.int64)
    first, centre, last = bins[:-2], bins[1:-1], bins[2:]
    at = np.arange(size // 2 + 1)[:, None]
    rising = (at >= first) & (at <= centre) & (first < centre)
    falling = (at >= centre) & (at < last)
    up = (at - first) / np.maximum(centre - first, 1)
    down = (last - at) / np.maximum(last - centre, 1)
    weights = np.where(falling, down, np.where(rising, up, (at == centre) & (first == centre)))
    return (weights.astype(np.float64),)


def _mel_work(node: Node, data: Sequence[Array | None]) -> HostWork:
    return HostWork(elements=4 * (abs(number_of(data, 1, 0)) // 2 + 1) * max(number_of(data, 0, 0), 0))


@operator("MelWeightMatrix", reference=_mel_reference, host_work=_mel_work)
def mel_weight_matrix(node: Node) -> Description:
    """A row for each frequency, a column for each band."""
    for position in range(5):
        require_scalar(node, position)
    return Opaque("MelWeightMatrix: its size is data")


# Fourier transforms ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transform:
    """A DFT of `length` points along `axis`; `bins` of them are results."""

    axis: int
    length: int
    bins: int
    inverse: bool
    onesided: bool

    @classmethod
    def of(cls, node: Node, length: Array | None, axis: Array | None, shape: Sequence[int]) -> Transform:
        """The transform of a node, of the data of its operands."""
        onesided, inverse = bool(node.int_attr("onesided", 0)), bool(node.int_attr("inverse", 0))
        at = node.int_attr("axis", 1) if node.opset < 20 else -2
        at = normalized_axis(node, at if axis is None else int(axis.reshape(())), len(shape))
        require(node, at != len(shape) - 1, "its axis is that of real and imaginary parts")
        extent = shape[at]
        points = 2 * (extent - 1) if onesided and inverse else extent
        points = points if length is None else int(length.reshape(()))
        require(node, points > 0, f"its length is {points}, but at least 1 is taken")
        return cls(at, points, points // 2 + 1 if onesided and not inverse else points, inverse, onesided)


def _complex(x: Array) -> Array:
    wide = x.astype(np.float64)
    return wide[..., 0] if x.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1]


def _parts(z: Array, dtype: Any) -> Array:
    return np.stack([z.real, z.imag], axis=-1).astype(dtype)


def _dft_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = present(inputs)
    t = Transform.of(node, optional(inputs, 1), optional(inputs, 2), x.shape)
    z = _complex(x)
    if t.inverse and t.onesided:
        return (np.fft.irfft(z, t.length, t.axis)[..., None].astype(x.dtype),)
    z = (np.fft.ifft if t.inverse else np.fft.fft)(z, t.length, t.axis)
    return (_parts(z.take(range(t.bins), t.axis), x.dtype),)


def _transform_work(node: Node, data: Sequence[Array | None]) -> HostWork:
    """The signal, cut or padded to the length along its axis, and what it takes if that is a prime."""
    shape = node.require(0).shape
    axis = number_of(data, 2, -2) if node.opset >= 20 else node.int_attr("axis", 1)
    extent = shape[axis % len(shape)]
    length = max(number_of(data, 1, 2 * extent), 0)  # twice as many, one side of which is given
    return HostWork(elements=ELEMENTS_PER_POINT * (prod(shape) // max(extent, 1)) * max(length, extent))


@operator("DFT", reference=_dft_reference, host_work=_transform_work)
def dft(node: Node) -> Description:
    """Fourier transforms along an axis."""
    shape = require_rank(node, 0, 2)
    require(node, shape[-1] in (1, 2), f"its elements have {shape[-1]} parts, but 1 or 2 are taken")
    require_scalar(node, 1)
    require_scalar(node, 2)
    return Opaque("DFT: its length or axis is data, or has a large prime factor")


# Transforms of frames --------------------------------------------------------------------------------


def _stft_shapes(node: Node) -> tuple[Shape | None, ...]:
    """`[batch, frames, frequencies, 2]`; as many frequencies as half a frame has, where one side is asked."""
    signal, step, length = require_rank(node, 0, 2, 3), node.constant(1), node.constant(3)
    window = node.input(2)
    if step is None or (length is None and window is None):
        return (None,)
    size = int(length.reshape(())) if length is not None else window.shape[0] if window is not None else 0
    stride = int(step.reshape(()))
    require(node, stride > 0, f"the step between frames is {stride}, but at least 1 is taken")
    require(node, 0 < size <= signal[1], f"frames of {size} elements do not fit a signal of {signal[1]}")
    require_shape(node, 2, (size,), "a factor for each element of a frame")
    bins = size // 2 + 1 if node.int_attr("onesided", 1) else size
    return ((signal[0], (signal[1] - size) // stride + 1, bins, 2),)


def _stft_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, factors, given = present(inputs), optional(inputs, 2), optional(inputs, 3)
    step = int(present(inputs, 1).reshape(()))
    size = int(given.reshape(())) if given is not None else len(present(inputs, 2))
    z = _complex(x if x.ndim == 3 else x[..., None])
    frames = np.lib.stride_tricks.sliding_window_view(z, size, axis=1)[:, ::step]
    if factors is not None:
        frames = frames * factors.astype(np.float64)
    spectrum = np.fft.fft(frames, axis=-1)
    bins = size // 2 + 1 if node.int_attr("onesided", 1) else size
    return (_parts(spectrum[..., :bins], x.dtype),)


def _stft_work(node: Node, data: Sequence[Array | None]) -> HostWork:
    """All frames at once, as complex numbers."""
    signal, step, length, window = node.require(0).shape, data[1], number_of(data, 3, 0), node.input(2)
    if not length and window is not None:
        length = window.num_elements
    if step is None:
        return HostWork()
    num_frames = max((signal[1] - length) // max(abs(number_of(data, 1, 1)), 1) + 1, 0)
    return HostWork(
        elements=ELEMENTS_PER_POINT * signal[0] * num_frames * length, steps=num_frames * _STEPS_PER_FRAME
    )


@operator("STFT", reference=_stft_reference, shapes=_stft_shapes, host_work=_stft_work)
def stft(node: Node) -> Description:
    """Fourier transforms of frames."""
    (shape,) = _stft_shapes(node)
    if shape is not None:
        require_result(node, shape)
    signal = node.require(0).shape
    require(node, len(signal) == 2 or signal[2] in (1, 2), "its elements have more than two parts")
    return Opaque("STFT: its step or length is data, or has a large prime factor")
