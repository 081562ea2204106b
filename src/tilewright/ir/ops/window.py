"""Sliding windows: what convolution and pooling share about kernels, strides, dilations and padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.expr import Scalar
from tilewright.ir.graph import Node
from tilewright.ir.nest import Affine, affine
from tilewright.ir.ops.build import choice_attr, require
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """One sliding window per spatial axis: tap `k` of output `o` reads `stride*o + dilation*k - begin`.

    `begin` and `end` count padding elements; `end` is what the model declares, windows of a ceiling-mode
    pool may reach beyond it.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """Names of the output dim and the kernel dim of each spatial axis, e.g. `("oh", "kh")`."""
        rank = len(self.kernel)
        letters = ("d", "h", "w")[3 - rank :] if rank <= 3 else tuple(str(i) for i in range(rank))
        return tuple((f"o{letter}", f"k{letter}") for letter in letters)

    def index(self) -> tuple[Affine, ...]:
        """The input index of each spatial axis."""
        return tuple(
            affine((o, stride), (k, dilation), -begin)
            for (o, k), stride, dilation, begin in zip(
                self.names, self.strides, self.dilations, self.begin, strict=True
            )
        )

    def stays_inside(self, spatial: Sequence[int]) -> bool:
        """Whether no tap ever reads outside an input of these spatial extents."""
        return all(
            b == 0 and (o - 1) * s + (k - 1) * d < extent
            for b, o, s, k, d, extent in zip(
                self.begin, self.outputs, self.strides, self.kernel, self.dilations, spatial, strict=True
            )
        )

    def taps(self, x: Array, fill: Scalar) -> Array:
        """Read-only view `[*leading, *outputs, *kernel]` of an array whose last axes are spatial."""
        rank = len(self.kernel)
        lead = x.ndim - rank
        spatial = x.shape[lead:]
        if not self.stays_inside(spatial):
            # Ceiling mode may need more than the declared end, a large stride less.
            after = [
                max(0, (o - 1) * s + (k - 1) * d + 1 - b - extent)
                for o, s, k, d, b, extent in zip(
                    self.outputs, self.strides, self.kernel, self.dilations, self.begin, spatial, strict=True
                )
            ]
            widths = [(0, 0)] * lead + list(zip(self.begin, after, strict=True))
            x = np.pad(x, widths, constant_values=np.asarray(fill).astype(x.dtype))
        steps = x.strides[lead:]
        shape = (*x.shape[:lead], *self.outputs, *self.kernel)
        strides = (
            *x.strides[:lead],
            *(step * s for step, s in zip(steps, self.strides, strict=True)),
            *(step * d for step, d in zip(steps, self.dilations, strict=True)),
        )
        return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False)

    def counts(self, axis: int, extent: int, include_pad: bool) -> tuple[int, ...]:
        """Taps of each output along one axis that count for an average.

        Padding counts with `include_pad`, but what a ceiling-mode window reads beyond it never does.
        """
        low = -self.begin[axis] if include_pad else 0
        high = extent + self.end[axis] if include_pad else extent
        stride, dilation, begin = self.strides[axis], self.dilations[axis], self.begin[axis]
        first = np.arange(self.outputs[axis]) * stride - begin
        # Taps k with low <= first + k * dilation < high.
        least = np.maximum(0, -((first - low) // dilation))
        beyond = np.minimum(self.kernel[axis], -((first - high) // dilation))
        return tuple(np.maximum(0, beyond - least).tolist())


_AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True, slots=True)
class WindowAttributes:
    """What a node says of its windows: one number for each spatial axis, `pads` two."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    auto_pad: str

    @classmethod
    def of(cls, node: Node, kernel: Sequence[int]) -> WindowAttributes:
        """The attributes of a node whose windows have this kernel.

        Raises:
            ModelRejected: they are of another number of axes, or describe no window.
        """
        rank = len(kernel)
        auto_pad = choice_attr(node, "auto_pad", _AUTO_PADS, "NOTSET")
        strides = _numbers(node, "strides", rank, 1)
        dilations = _numbers(node, "dilations", rank, 1)
        pads = (0,) * 2 * rank if auto_pad == "VALID" else _numbers(node, "pads", 2 * rank, 0)
        require(node, rank > 0, "a window needs a spatial axis")
        require(node, min(kernel) >= 1, f"the kernel {list(kernel)} has no taps along an axis")
        require(node, min(*strides, *dilations) >= 1, "strides and dilations must be at least 1")
        return cls(strides, dilations, pads[:rank], pads[rank:], auto_pad)


def _numbers(node: Node, name: str, count: int, default: int) -> tuple[int, ...]:
    values = node.ints_attr(name) or (default,) * count
    require(node, len(values) == count, f"{name} is {list(values)}, but {count} numbers are taken")
    return values


def window_of(node: Node, spatial: Sequence[int], kernel: Sequence[int], *, pools: bool = False) -> Window:
    """The window of a Conv- or Pool-like node over an input of the given spatial extents.

    Where the window is wider than the padded input there is no output along that axis. One that `pools` has
    one even there, of the taps that exist, as long as less than a stride is missing: ONNX's formula divides
    towards zero, and so do its shape inference and onnxruntime.

    Raises:
        ModelRejected: the attributes describe no window over so many axes.
    """
    require(node, len(spatial) == len(kernel), f"a kernel {list(kernel)} does not fit axes {list(spatial)}")
    given = WindowAttributes.of(node, kernel)
    strides, dilations, begin, end = given.strides, given.dilations, given.begin, given.end
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if given.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        same = tuple(-(-extent // s) for extent, s in zip(spatial, strides, strict=True))
        total = [
            max(0, (o - 1) * s + r - extent)
            for o, s, r, extent in zip(same, strides, reach, spatial, strict=True)
        ]
        less = tuple(t // 2 for t in total)
        more = tuple(t - t // 2 for t in total)
        begin, end = (less, more) if given.auto_pad == "SAME_UPPER" else (more, less)
        return Window(tuple(kernel), strides, dilations, begin, end, same)
    ceil_mode = bool(node.int_attr("ceil_mode", 0))
    outputs = tuple(
        _extent(extent + b + e - r, s, ceil_mode, extent + b, pools)
        for extent, b, e, r, s in zip(spatial, begin, end, reach, strides, strict=True)
    )
    return Window(tuple(kernel), strides, dilations, begin, end, outputs)


def _extent(span: int, stride: int, ceil_mode: bool, limit: int, pools: bool) -> int:
    if span <= -stride:
        return 0
    if not ceil_mode:
        return 1 if pools and span < 0 else span // stride + 1
    count = -(-span // stride) + 1
    # A window that would begin in the end padding does not exist.
    return count - 1 if (count - 1) * stride >= limit else count
