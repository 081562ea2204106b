"""The common window of convolutions that differ in extent: each kernel with zeros around it.

Each tap still reads what it read before. A tap of zero times a value that is not finite is NaN: where such
values matter, kernels are not padded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.graph import Attribute, Node, SubgraphAttribute
from tilewright.ir.ops.convolution import conv_window
from tilewright.ir.ops.window import Window
from tilewright.records import dataclass

Attributes = Mapping[str, Attribute | SubgraphAttribute]


class NoCommonWindow(Exception):
    """Convolutions that no window has in common."""


@dataclass(frozen=True, slots=True, eq=False)
class Widened:
    """A convolution's kernel inside a larger one: where its first tap lies there, and the attributes."""

    kernel: tuple[int, ...]
    offsets: tuple[int, ...]
    attributes: Attributes

    def weight(self, data: Array) -> Array:
        """The kernel with zeros around it."""
        after = (k - o - s for k, o, s in zip(self.kernel, self.offsets, data.shape[2:], strict=True))
        return np.pad(data, ((0, 0), (0, 0), *zip(self.offsets, after, strict=True)))


def widened_kernels(column: Sequence[Node], *, pads_kernels: bool) -> tuple[Widened, ...]:
    """How the kernels of convolutions lie in their common window; empty for other operators.

    Raises:
        NoCommonWindow: there is none, or kernels would be padded.
    """
    if column[0].op_type != "Conv" or column[0].domain:
        return ()
    windows = [conv_window(node) for node in column]
    first = windows[0]
    if {n.int_attr("group", 1) for n in column} != {1}:
        raise NoCommonWindow
    if any(
        (w.strides, w.dilations, w.outputs) != (first.strides, first.dilations, first.outputs)
        for w in windows
    ):
        raise NoCommonWindow
    if any(min((*w.begin, *w.end)) < 0 or min(w.outputs) < 1 for w in windows):
        raise NoCommonWindow
    begin = tuple(map(max, zip(*(w.begin for w in windows), strict=True)))
    ahead = [tuple(b - first_tap for b, first_tap in zip(begin, w.begin, strict=True)) for w in windows]
    if any(a % d for taps in ahead for a, d in zip(taps, first.dilations, strict=True)):
        raise NoCommonWindow
    offsets = [tuple(a // d for a, d in zip(taps, first.dilations, strict=True)) for taps in ahead]
    ends = [
        tuple(o + k for o, k in zip(offset, w.kernel, strict=True))
        for offset, w in zip(offsets, windows, strict=True)
    ]
    kernel = tuple(map(max, zip(*ends, strict=True)))
    if not pads_kernels and any(w.kernel != kernel for w in windows):
        raise NoCommonWindow
    attributes = _window_attributes(first, kernel, begin, column[0].require(0).shape[2:])
    return tuple(Widened(kernel, o, attributes) for o in offsets)


def _window_attributes(
    window: Window, kernel: Sequence[int], begin: Sequence[int], spatial: Sequence[int]
) -> Attributes:
    """Attributes of a convolution with the outputs of `window` but another kernel and padding.

    No output is added: the sibling whose taps reach farthest reaches as far with this kernel.
    """
    zipped = zip(window.outputs, window.strides, window.dilations, kernel, begin, spatial, strict=True)
    end = tuple(max(0, (o - 1) * s + (k - 1) * d + 1 - b - e) for o, s, d, k, b, e in zipped)
    return {
        "kernel_shape": tuple(kernel),
        "strides": window.strides,
        "dilations": window.dilations,
        "pads": (*begin, *end),
        "group": 1,
    }
