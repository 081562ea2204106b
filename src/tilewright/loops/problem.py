"""What a mapper maps: loops, and which element of each operand an iteration touches.

A problem is a nest of `ir/` reduced to what placement on a memory hierarchy needs: every operand's axes are
sums of loop indices with positive steps. Convolutions (stride, dilation, groups), products, pooling and
depthwise layers all are.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass
from math import prod

from tilewright.errors import UsageError
from tilewright.hardware.machine import TensorKind

MAX_EXTENT = 1 << 40
"""Larger extents are mistakes, and take long to factorise."""

Term = tuple[str, int]  # a dim and the step with which it moves along an axis
Axis = tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor of a problem. Along each axis the index is the sum of `step * dim` over the axis's terms.

    The innermost level holds `copies` of each word: where it stands for the memories of several cores, those
    that need the same word have it each. A tensor without axes moves once, as one word.
    """

    name: str
    kind: TensorKind
    axes: tuple[Axis, ...]
    copies: int = 1

    def dims(self) -> tuple[str, ...]:
        """The dims it depends on, in order of appearance."""
        return tuple(dict.fromkeys(dim for axis in self.axes for dim, _ in axis))

    def independent_axes(self) -> tuple[tuple[Axis, ...], ...]:
        """Axes in groups, of which no two share a dim, as both axes of a diagonal do."""
        return _independent(self.axes)

    def box(self, tile: MappingOf[str, int]) -> tuple[int, ...]:
        """Extents of the smallest box around the elements that a tile of the dims touches.

        Elements that strides skip inside the box are counted, as Timeloop does.
        """
        return tuple(1 + sum(step * (tile.get(dim, 1) - 1) for dim, step in axis) for axis in self.axes)

    def num_words(self, tile: MappingOf[str, int]) -> int:
        """Elements of that box."""
        return prod(self.box(tile))


@functools.lru_cache(maxsize=1 << 10)
def _independent(axes: tuple[Axis, ...]) -> tuple[tuple[Axis, ...], ...]:
    groups: list[tuple[Axis, ...]] = []
    for axis in axes:
        dims = {dim for dim, _ in axis}
        joined = [group for group in groups if any(dim in dims for other in group for dim, _ in other)]
        groups = [group for group in groups if group not in joined]
        groups.append((*(other for group in joined for other in group), axis))
    return tuple(groups)


@dataclass(frozen=True, slots=True)
class Problem:
    """Loops and operands of one operator. `dims` are names with extents; one operand is the output."""

    name: str
    dims: tuple[tuple[str, int], ...]
    operands: tuple[Operand, ...]

    @property
    def extents(self) -> dict[str, int]:
        """Extent of every dim by its name."""
        return dict(self.dims)

    @property
    def num_macs(self) -> int:
        """Multiply-accumulates: iterations of all loops."""
        return prod(extent for _, extent in self.dims)

    @property
    def output(self) -> Operand:
        """The operand that is accumulated."""
        return next(o for o in self.operands if o.kind is TensorKind.OUTPUT)

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is summed alone: a window slides, nothing is summed over channels, and each
        input makes one result."""
        looping = {dim for dim, extent in self.dims if extent > 1}
        inputs = {dim for o in self.operands if o.kind is TensorKind.INPUT for dim in o.dims()}
        outputs = set(self.output.dims())
        slides = {
            dim
            for o in self.operands
            for axis in o.axes
            if len(axis) > 1
            for dim, _ in axis
            if dim in looping
        }
        return looping & outputs <= inputs and looping - outputs <= slides and bool(slides)

    def num_words(self, operand: Operand) -> int:
        """Elements of a whole operand."""
        return operand.num_words(self.extents)


def convolution(
    dims: MappingOf[str, int],
    *,
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    name: str = "conv",
) -> Problem:
    """A convolution: R, S (window), P, Q (output), C, K (channels), N (batch), G (groups).

    The letters are Timeloop's. `stride` and `dilation` are those of P and R, then of Q and S. G may be left
    out; C and K are per group.

    Raises:
        UsageError: an unknown letter, or an extent below 1 or beyond 2^40.
    """
    known = ("R", "S", "P", "Q", "C", "K", "N", "G")
    for letter, extent in dims.items():
        if letter not in known:
            raise UsageError(f"layer {name}: unknown dim {letter!r}; a convolution has {', '.join(known)}.")
        if extent < 1:
            raise UsageError(f"layer {name}: {letter} is {extent}; an extent is at least 1.")
        if extent > MAX_EXTENT:
            raise UsageError(f"layer {name}: {letter} is {extent}; an extent is at most {MAX_EXTENT} (2^40).")
    if min(*stride, *dilation) < 1:
        raise UsageError(f"layer {name}: stride {stride} and dilation {dilation} are at least 1.")
    extents = {letter: dims.get(letter, 1) for letter in known if letter != "G" or "G" in dims}
    group: tuple[tuple[Term, ...], ...] = ((("G", 1),),) if "G" in dims else ()
    rows = (("P", stride[0]), ("R", dilation[0]))
    columns = (("Q", stride[1]), ("S", dilation[1]))

    def one(letter: str) -> tuple[Term, ...]:
        return ((letter, 1),)

    return Problem(
        name,
        tuple(extents.items()),
        (
            Operand("Weights", TensorKind.WEIGHT, (*group, one("C"), one("K"), one("R"), one("S"))),
            Operand("Inputs", TensorKind.INPUT, (*group, one("N"), one("C"), rows, columns)),
            Operand("Outputs", TensorKind.OUTPUT, (*group, one("N"), one("K"), one("P"), one("Q"))),
        ),
    )


def written(text: str) -> Problem:
    """A layer written either way, as `layer` or as `dims` reads it.

    Raises:
        UsageError: the text is neither.
    """
    return dims(text) if "=" in text else layer(text)


def layer(text: str) -> Problem:
    """A layer written `R_P_C_K_stride`: a square window, a square output, one image.

    >>> layer("3_14_256_256_1").num_macs
    115605504

    Raises:
        UsageError: the text is anything else.
    """
    match = re.fullmatch(r"(\d+)_(\d+)_(\d+)_(\d+)_(\d+)", text)
    if match is None:
        raise UsageError(f"layer {text!r}: expected R_P_C_K_stride such as 3_14_256_256_1.")
    r, p, c, k, stride = (int(x) for x in match.groups())
    dims = {"R": r, "S": r, "P": p, "Q": p, "C": c, "K": k, "N": 1}
    return convolution(dims, stride=(stride, stride), name=text)


def dims(text: str) -> Problem:
    """A convolution by its dims; those left out are 1, `stride` and `dilation` are those of both axes.

    >>> dims("K=64,C=3,P=112,Q=112,R=7,S=7,stride=2").num_macs
    118013952

    Raises:
        UsageError: the text is anything else.
    """
    extents: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if not re.fullmatch(r"\d{1,13}", value) or name in extents:
            raise UsageError(
                f"layer {text!r}: {part!r}; expected dims such as K=64,C=3,P=112,stride=2, each once."
            )
        extents[name] = int(value)
    stride, dilation = extents.pop("stride", 1), extents.pop("dilation", 1)
    return convolution(extents, stride=(stride, stride), dilation=(dilation, dilation), name=text)
