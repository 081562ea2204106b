"""Parts of constants that blocks use: blocks that differ in nothing but their part share code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir.nest import Operand
from tilewright.ir.region import Region, full_region
from tilewright.memory.base import aligned
from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import Arrangement, Stacked
from tilewright.targets.cpu.fused.blocks import BlockedWork
from tilewright.targets.cpu.kernel import KernelArg, OperandKey, Packed

_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """A constant as kernels want it, once for each of the parts that they are called with."""

    packed: Packed
    starts: Mapping[Region, int]  # bytes to each part


def used_parts(work: BlockedWork, constants: Mapping[OperandKey, Sequence[int]]) -> list[Used]:
    """For each variant the parts of constants, given with their shapes, that its blocks use where that is not
    always all of them; in order of first use."""
    used: list[dict[OperandKey, dict[Region, None]]] = [{} for _ in work.variants]
    for variant, part in (block for strip in work.strips for block in strip):
        for key, shape in constants.items():
            window = part.windows.get(key)
            if window is not None and window != full_region(shape):
                used[variant].setdefault(key, {})[window] = None
    return [{key: tuple(windows) for key, windows in of_variant.items()} for of_variant in used]


Used = Mapping[OperandKey, tuple[Region, ...]]


def stack(arg: KernelArg, whole: Operand, windows: Sequence[Region]) -> Parts:
    """The arrangements that `arg` wants of these parts of a constant, one after another."""
    inner: Arrangement | None
    if isinstance(arg, Packed):
        inner, size_bytes = arg.arrangement, arg.size_bytes
    else:
        inner, size_bytes = None, arg.num_elements * arg.dtype.size_bytes
    stride = aligned(size_bytes, _ALIGNMENT_BYTES)
    packed = Packed(whole, Stacked(inner, tuple(windows), stride), len(windows) * stride)
    return Parts(packed, {window: number * stride for number, window in enumerate(windows)})
