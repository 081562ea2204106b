"""What computing a group block by block saves and costs, in estimated cycles of one core.

Saved are the bytes between kernels that would not fit the private cache. Paid are halos computed twice, lines
moved along, the start of every kernel in every block, weights read again, threads that wait. The rates were
fitted to measured networks; they are rough, so a gain must be well ahead of them to count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from math import prod, sqrt
from types import MappingProxyType
from typing import Literal

from tilewright.ir.contraction import ContractionForm, contraction_of
from tilewright.ir.expr import Read
from tilewright.ir.fuse import NestGroup
from tilewright.ir.graph import Value
from tilewright.ir.nest import Affine, Nest, operands_of
from tilewright.ir.region import Interval, Region, dim_intervals, full_region, intersect, volume
from tilewright.ir.restrict import missing, windows_of
from tilewright.partition.form import MAX_BLOCKS, Blocking
from tilewright.records import dataclass
from tilewright.targets.cpu.attention import attention_runs
from tilewright.targets.cpu.cut import STRAGGLER_SHARE, waiting_cycles
from tilewright.targets.cpu.fused.blocks import blocked_result, passed_on, whole_constants
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import OperandKey

# Shares of the L2 cache from which on a tensor between two kernels begins to leave it, and has left it.
_LEAVES_CACHE = (0.2, 0.6)
# Most of the windows of a block, since the kernels' own scratch needs the rest; less than that is roomy.
_WINDOWS_SHARE = 0.5
_ROOMY_SHARE = 0.15
# Share of a core's rates at which tensors between kernels are written and read again; weights of each block.
_SHARED_CACHE_SHARE, _MEMORY_SHARE, _WEIGHTS_SHARE = 1 / 2, 5 / 6, 3 / 4
_MOVE_BYTES_PER_CYCLE = 16.0
_PRODUCT_SHOWN = 0.35
_LOOP_SHOWN = 0.8
_LOOP_BYTES_PER_CYCLE = 40.0
STEP_CYCLES = 4000.0
_PASSING_SHARE = 0.3
_PANELS = (16, 32, 48, 64, 96, 192)
_PANEL_PARTS = (2, 4)
# Iterations per cycle: dense products with and without the matrix unit, other nests.
_MATRIX_RATE, _PRODUCT_RATE, _LOOP_RATE = 60.0, 28.0, 8.0
# The depth that the matrix unit fills at least; finishing and storing an element of a product.
_MATRIX_DEPTH = 32
_FEW_CHANNELS = 8
_FINISH_CYCLES = 0.4
# Packing an element of the keys and values of an attention, for each block anew.
_PACK_CYCLES = 0.4
_START_CYCLES = 1000.0
# Parts into which an axis is cut, and numbers of strips: each strip starts with halos of its own.
_PARTS = (2, 3, 4, 6, 8, 11, 14, 16, 20, 28, 40, 56)
_STRIPS = (4, 8, 16)
_MIN_SAVED_OVER_PAID = 1.3
MIN_SAVED_SHARE = 0.06
# Cutting an axis in two must not leave more than this share of the work to each half.
_MOST_IN_A_HALF = 0.75
_MOST_IN_A_PART = 0.55
_NOTHING: Mapping[OperandKey, Region] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Estimate:
    """Cycles that a blocking saves and pays, out of about `total` of the whole group."""

    blocking: Blocking
    saved: float
    paid: float
    total: float

    @property
    def gain(self) -> float:
        """Cycles won, 0 if that is not certain enough."""
        net = self.saved - self.paid
        certain = self.saved >= _MIN_SAVED_OVER_PAID * self.paid and net >= MIN_SAVED_SHARE * self.total
        return net if certain else 0.0

    @property
    def saved_share(self) -> float:
        """The gain as a share of the time of separate kernels."""
        return self.gain / self.total


def saved_cycles(size_bytes: int, isa: Isa) -> float:
    """To write a tensor of this size between two kernels and to read it again, beyond the private cache."""
    low, high = _LEAVES_CACHE
    leaving = min(1.0, max(0.0, (size_bytes / isa.caches.l2_bytes - low) / (high - low)))
    in_cache = size_bytes <= isa.caches.l3_bytes
    shared = isa.rates.shared_bytes_per_cycle * _SHARED_CACHE_SHARE
    rate = shared if in_cache else isa.rates.memory_bytes_per_cycle * _MEMORY_SHARE
    return 2 * size_bytes * leaving / rate


class Work:
    """A group, and what blocks of its last result are measured by."""

    def __init__(self, group: NestGroup, isa: Isa, last: Set[Value] = frozenset()) -> None:
        self.nests = group.nests
        self._last = {("input", i) for i, value in enumerate(group.inputs) if value in last}
        self.shape = group.outputs[-1].shape
        self._result = blocked_result(group)
        self._others = {("output", i): v.num_elements for i, v in enumerate(group.outputs[:-1])}
        self._isa = isa
        self._constants = {("input", i): v for i, v in enumerate(group.inputs) if v.is_constant}
        self._undivided = whole_constants(group)
        forms = {nest: contraction_of(nest) for nest in group.nests}
        products = [form for form in forms.values() if form is not None]
        # Scores never leave the kernel of an attention: blocks would save nothing of them.
        runs = attention_runs(group.nests, isa)
        inside = {nest.write.operand.key for run in runs for nest in run[:-1]}
        self._between = passed_on(products) - inside
        self._packed = [
            key
            for run in runs
            for form in (contraction_of(run[0]), contraction_of(run[-1]))
            if form is not None
            for key in (access.operand.key for access in form.accesses)
            if key not in inside
        ]
        operands = {o.key: o for o in operands_of(group.nests)}
        self._element_bytes = {k: o.dtype.size_bytes for k, o in operands.items()}
        self.saved = max(0, len(products) - 1 - len(runs)) * STEP_CYCLES
        for key in (*sorted(self._between), *self._others):
            element_bytes = self._element_bytes[key]
            for nest in self._users_of(key):
                if key in self._others and nest.write.operand.key == key:
                    continue  # results are written all the same
                if nest.write.operand.key == key and self._overwrites(nest):
                    continue  # its lines come to the core and leave it either way
                form = forms[nest]
                num_elements = operands[key].num_elements
                if nest.write.operand.key == key:
                    num_elements = min(num_elements, prod(d.extent for d in nest.parallel_dims))
                self.saved += end_cycles(
                    num_elements * element_bytes, form is not None and form.is_dense, isa
                )
        self._cycles = [_cycles(n, forms[n], isa) / max(1, n.num_iterations) for n in group.nests]
        self._whole = sum(c * n.num_iterations for c, n in zip(self._cycles, group.nests, strict=True))
        # Products, and at most one kernel for the loops around each.
        self._num_kernels = min(len(group.nests), 2 * len(products))
        self._known_windows: dict[Region, dict[OperandKey, Region]] = {}

    def _users_of(self, key: OperandKey) -> list[Nest]:
        """What writes a temporary and what reads it, but for copies, which mostly are views."""
        return [
            nest
            for nest in self.nests
            if any(access.operand.key == key for access in (*nest.reads, nest.write))
            and not (nest.combine is None and isinstance(nest.body, Read))
        ]

    def _overwrites(self, nest: Nest) -> bool:
        """Whether a nest that is no sum takes the memory of an operand that nothing reads again."""
        write = nest.write.operand
        return nest.combine is None and any(
            access.operand.key in self._last
            and access.operand.dtype is write.dtype
            and access.operand.num_elements == write.num_elements
            for access in nest.reads
        )

    def estimates(self, *, only_promising: bool = True) -> Iterator[Estimate]:
        """Of every blocking that fits the cache; `only_promising` leaves out what soon is seen to lose."""
        if only_promising and not self._estimate(Blocking(self.shape), 0.0).gain:
            return
        most = 0.0
        for block in dict.fromkeys(self._blocks()):
            blocking = Blocking(block)
            num_blocks = blocking.num_blocks(self.shape)
            if num_blocks > MAX_BLOCKS:
                continue
            least_paid = num_blocks * self._num_kernels * _START_CYCLES
            least_paid += min(self._waiting(cut) for cut in self._strips(blocking))
            if only_promising and self._estimate(blocking, least_paid).gain <= most:
                continue
            for estimate in self._estimates_of(block):
                most = max(most, estimate.gain)
                yield estimate

    def _estimate(self, blocking: Blocking, paid: float) -> Estimate:
        return Estimate(blocking, self.saved, paid, self._whole + self.saved)

    def _blocks(self) -> Iterator[tuple[int, ...]]:
        """Blocks along the axes that can be cut without computing much twice.

        Rows share all weights; panels, as channels of a depthwise layer, have a part of them each, and along
        the next axis they may be parted once more. What lies before such an axis is cut to single elements.
        """
        block = list(self.shape)
        panels: list[tuple[int, ...]] = []
        for axis, extent in enumerate(self.shape):
            kind = self._kind(block, axis)
            if kind == "panels":
                sizes = (size for size in _PANELS if size < extent)
                panels += [(*block[:axis], size, *block[axis + 1 :]) for size in sizes]
            if kind != "rows":
                continue
            for size in dict.fromkeys(-(-extent // parts) for parts in _PARTS if parts <= extent):
                yield (*block[:axis], size, *block[axis + 1 :])
            for panel in panels:
                for rows in dict.fromkeys(-(-extent // parts) for parts in _PANEL_PARTS):
                    yield (*panel[:axis], rows, *panel[axis + 1 :])
            block[axis] = 1
            if panels:
                break
        yield from panels

    def _kind(self, block: Sequence[int], axis: int) -> Literal["rows", "panels"] | None:
        """What halves of a block along an axis are, if they compute little twice."""
        size = -(-block[axis] // 2)
        if size == block[axis]:
            return None
        region = self._region(block, 0)
        cuts = ((0, block[axis]), (size, min(2 * size, self.shape[axis])), (0, size))
        whole, second = (self._windows_along(region, axis, cut) for cut in cuts[:2])
        if all(second.get(key) == whole.get(key) for key in self._constants):
            return "rows" if self._made(second) <= _MOST_IN_A_HALF * self._made(whole) else None
        # Parts of unlike operators, as of a concatenation, are work of unlike sizes.
        made = max(self._made(second), self._made(self._windows_along(region, axis, cuts[2])))
        return "panels" if made <= _MOST_IN_A_PART * self._made(whole) else None

    def _windows_along(self, region: Region, axis: int, cut: Interval) -> Mapping[OperandKey, Region]:
        return self._windows((*region[:axis], cut, *region[axis + 1 :]))

    def _windows(self, region: Region) -> Mapping[OperandKey, Region]:
        """What a part of the result needs."""
        if region not in self._known_windows:
            self._known_windows[region] = windows_of(self.nests, {self._result: region}, self._undivided)
        return self._known_windows[region]

    def _region(self, block: Sequence[int], number: int) -> Region:
        """The block of this number along every axis that is cut, or the last there."""
        region = []
        for size, extent in zip(block, self.shape, strict=True):
            start = min(number, -(-extent // size) - 1) * size
            region.append((start, min(start + size, extent)))
        return tuple(region)

    def _estimates_of(self, block: tuple[int, ...]) -> Iterator[Estimate]:
        """Of blocks of this size on their own and in strips; none if they outgrow the cache themselves."""
        inner = self._region(block, 1)
        windows = self._windows(inner)
        filled = self._windows_bytes(windows) / self._isa.caches.l2_bytes
        if filled > _WINDOWS_SHARE or not self._makes_once(windows):
            return
        rate = self._isa.rates.private_bytes_per_cycle * _WEIGHTS_SHARE
        start = self._num_kernels * _START_CYCLES + self._weights(windows) / rate
        alone = Blocking(block)
        num_blocks, along = alone.num_blocks(self.shape), alone.num_along(self.shape)
        first = self._made(windows) * prod(block) / volume(inner)
        # The larger the windows, the more of them leaves the private cache all the same.
        crowded = self.saved * min(1.0, max(0.0, filled - _ROOMY_SHARE))
        whole = full_region(self.shape)
        steady = self._steady(alone, windows) if along > 1 else first
        for blocking in self._strips(alone):
            num_strips = blocking.num_strips(self.shape)
            compute = num_strips * first + (num_blocks - num_strips) * steady
            paid = max(0.0, compute - self._whole) + num_blocks * start + crowded
            paid += max(0.0, num_blocks * self._packing(windows) - self._packing(self._windows(whole)))
            paid += self._waiting(blocking)
            yield self._estimate(blocking, paid)

    def _strips(self, alone: Blocking) -> Iterator[Blocking]:
        """These blocks in strips of several lengths."""
        num_blocks, along = alone.num_blocks(self.shape), alone.num_along(self.shape)
        lengths = {1, *(-(-num_blocks // count) for count in _STRIPS)}
        return (Blocking(alone.block, length) for length in sorted(lengths) if length <= along)

    def _waiting(self, blocking: Blocking) -> float:
        """Cycles that threads wait for each other where strips are no multiple of them, or one is late."""
        num_strips = blocking.num_strips(self.shape)
        return waiting_cycles(self._whole, num_strips)

    def _steady(self, blocking: Blocking, before: Mapping[OperandKey, Region]) -> float:
        """Cycles of a block that finds what it shares with the one before, and moves that to its place."""
        axis = blocking.axis(self.shape)
        region = self._region(blocking.block, 1)
        after = self._region(blocking.block, 2)[axis]
        if after == region[axis]:
            return self._made(before)
        region = (*region[:axis], after, *region[axis + 1 :])
        present = {k: w for k, w in before.items() if k in self._between}
        windows = windows_of(self.nests, {self._result: region}, self._undivided, present)
        stays = 0
        for key, window in present.items():
            common = intersect(window, windows[key]) if key in windows else None
            stays += 0 if common is None else volume(common) * self._element_bytes[key]
        made = self._made(windows, present) + stays / _MOVE_BYTES_PER_CYCLE
        return made * prod(blocking.block) / volume(region)

    def _made(
        self, windows: Mapping[OperandKey, Region], present: Mapping[OperandKey, Region] = _NOTHING
    ) -> float:
        """Cycles to make what is missing in the windows."""
        total = 0.0
        for nest, cycles in zip(self.nests, self._cycles, strict=True):
            region = missing(windows, nest.write.operand.key, present)
            intervals = None if region is None else dim_intervals(nest, region)
            if intervals is not None:
                total += cycles * prod(high - low for low, high in intervals.values())
        return total

    def _makes_once(self, windows: Mapping[OperandKey, Region]) -> bool:
        """Whether a block makes as large a share of every other result as of the last."""
        made = volume(windows[self._result])
        return all(
            key in windows and volume(windows[key]) * prod(self.shape) == made * num_elements
            for key, num_elements in self._others.items()
        )

    def _windows_bytes(self, windows: Mapping[OperandKey, Region]) -> float:
        """Of everything that a block touches but the weights; what comes and goes takes little."""
        return sum(
            volume(window) * self._element_bytes[key] * (1.0 if key in self._between else _PASSING_SHARE)
            for key, window in windows.items()
            if key not in self._constants and (key[0] != "local" or key in self._between)
        )

    def _packing(self, windows: Mapping[OperandKey, Region]) -> float:
        """Cycles in which attentions bring their operands into the order in which products read them."""
        return sum(volume(windows[key]) * _PACK_CYCLES for key in self._packed if key in windows)

    def _weights(self, windows: Mapping[OperandKey, Region]) -> int:
        """Bytes of the weights of a block."""
        return sum(volume(w) * self._element_bytes[k] for k, w in windows.items() if k in self._constants)


def end_cycles(size_bytes: int, is_product: bool, isa: Isa) -> float:
    """To write or to read a tensor between two kernels, as far as a product does not hide it."""
    leaving = saved_cycles(size_bytes, isa) / 2
    if is_product:
        return leaving * _PRODUCT_SHOWN
    return leaving * _LOOP_SHOWN + size_bytes / _LOOP_BYTES_PER_CYCLE


def least_paid(cycles: float, num_products: int) -> float:
    """What blocks of so much work cost at least, in whatever number: starts of kernels, and late threads."""
    return 2 * sqrt(STRAGGLER_SHARE * cycles * num_products * _START_CYCLES)


def highest_rate(isa: Isa) -> float:
    """Iterations per cycle of the nests that compute fastest."""
    return _MATRIX_RATE if isa.has_matrix_unit else _PRODUCT_RATE


def _cycles(nest: Nest, form: ContractionForm | None, isa: Isa) -> float:
    """Rough time of a nest whose operands are at hand."""
    if form is None or not form.is_dense:
        return nest.num_iterations / _LOOP_RATE
    depth = max(1, prod(d.extent for d in nest.reduce_dims))
    finish = nest.num_iterations / depth * _FINISH_CYCLES
    if isa.has_matrix_unit and _num_channels(nest) > _FEW_CHANNELS:
        return nest.num_iterations / _MATRIX_RATE * max(1.0, _MATRIX_DEPTH / depth) + finish
    return nest.num_iterations / _PRODUCT_RATE + finish


def _num_channels(nest: Nest) -> int:
    """The longest reduction that walks an axis on its own: not the window of a convolution."""
    reduced = {d.name: d.extent for d in nest.reduce_dims}
    alone = [
        reduced.get(index.terms[0][0], 1)
        for access in nest.reads
        for index in access.index
        if isinstance(index, Affine) and len(index.terms) == 1
    ]
    return max(alone, default=1)
