"""Which operators become one fused kernel, and in which blocks: by an estimate of what it saves and costs.

Saved are the bytes between operators that would not fit the cache. Paid are halos computed twice, the start
of every kernel in every block, weights read again. Rates are rough and on the safe side: a chain is fused
only where the estimate is well ahead. The plain kernels are always the alternative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.derive import is_contraction, nests_of, reuse_dims
from tilewright.ir.fuse import NestGroup, fuse_nodes
from tilewright.ir.nest import Nest, Opaque, operands_of
from tilewright.ir.region import Region, dim_intervals, full_region, volume
from tilewright.ir.restrict import windows_of
from tilewright.partition.base import Partition
from tilewright.schedule.base import Schedule
from tilewright.targets.cpu.fused.blocks import RESULT, Blocking
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import OperandKey

# Subgraphs of one chain, and nests in it: longer ones have small maps in the end.
_MAX_CHAIN = 6
_MAX_NESTS = 24
# Share of the L2 cache from which on a tensor between two kernels begins to leave it, and has left it.
_LEAVES_CACHE = (0.25, 0.75)
# Of the windows of a block: the kernels' own scratch needs the rest.
_WINDOWS_SHARE = 0.5
_SHARED_CACHE_BYTES_PER_CYCLE = 10.0
_MEMORY_BYTES_PER_CYCLE = 5.0
_PRIVATE_CACHE_BYTES_PER_CYCLE = 30.0
# Iterations per cycle: dense products with and without the matrix unit, other nests.
_MATRIX_RATE, _PRODUCT_RATE, _LOOP_RATE = 60.0, 28.0, 8.0
_START_CYCLES = 1500.0
_USUAL_THREADS = (1, 2, 4)
# On a busy machine somebody is late with a block: small ones make that cheap.
_LATE_SHARE = 0.2
# Parts into which an axis is cut.
_PARTS = (2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
_MIN_SAVED_OVER_PAID = 1.6
_MIN_SAVED_SHARE = 0.12
# At either end of a chain.
_MIN_SAVED_CYCLES = 20_000.0


@dataclass(frozen=True, slots=True)
class Chain:
    """Subgraphs that follow one another and are lowered together; `blocking` where that is as one kernel."""

    subgraph_ids: tuple[int, ...]
    blocking: Blocking | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """Cycles of one core that a blocking saves and pays, out of about `total` of the chain."""

    blocking: Blocking
    saved: float
    paid: float
    total: float

    @property
    def gain(self) -> float:
        """Cycles won, 0 if that is not certain enough."""
        net = self.saved - self.paid
        certain = self.saved >= _MIN_SAVED_OVER_PAID * self.paid and net >= _MIN_SAVED_SHARE * self.total
        return net if certain else 0.0


def find_chains(schedule: Schedule, isa: Isa) -> list[list[list[Chain]]]:
    """The schedule's stages, groups and instances, with the chains that fused kernels compute as one."""
    stages: list[list[list[Chain]]] = []
    run: list[int] = []

    def end_run() -> None:
        stages.extend([[chain]] for chain in _cut_run(schedule.partition, run, isa))
        run.clear()

    for stage in schedule.stages:
        ids = [[i.subgraph_id for i in group.instances] for group in stage.groups]
        if len(ids) == 1 and len(ids[0]) == 1:
            if run and not _feeds(schedule.partition, run[-1], ids[0][0]):
                end_run()
            run.append(ids[0][0])
        else:
            end_run()
            stages.append([[Chain((i,)) for i in group] for group in ids])
    end_run()
    return stages


def _feeds(partition: Partition, first: int, second: int) -> bool:
    """Whether all that the first subgraph makes is read by the second and by nobody else."""
    made = partition.subgraphs[first].outputs
    if len(made) != 1 or made[0] in partition.graph.outputs:
        return False
    return all(partition.subgraph_of(user).id == second for user in made[0].users)


def _cut_run(partition: Partition, run: Sequence[int], isa: Isa) -> list[Chain]:
    """The chains of a run of subgraphs that feed one another, with the largest gain in all."""
    best: list[tuple[float, list[Chain]]] = [(0.0, [])]
    for first in reversed(range(len(run))):
        gain, chains = best[-1]
        found = (gain, [Chain((run[first],)), *chains])
        for last in range(first, min(first + _MAX_CHAIN, len(run))):
            ids = tuple(run[first : last + 1])
            estimate = _estimate_chain(partition, ids, isa)
            rest_gain, rest = best[len(run) - 1 - last]
            if estimate is not None and estimate.gain + rest_gain > found[0]:
                found = (estimate.gain + rest_gain, [Chain(ids, estimate.blocking), *rest])
        best.append(found)
    return best[-1][1]


def _estimate_chain(partition: Partition, ids: Sequence[int], isa: Isa) -> Estimate | None:
    subgraphs = [partition.subgraphs[i] for i in ids]
    between = [s.outputs[0].size_bytes for s in subgraphs[:-1]]
    if between and min(_saved(between[0], isa), _saved(between[-1], isa)) < _MIN_SAVED_CYCLES:
        return None  # without its first or its last subgraph the chain saves as much
    if not between and sum(is_contraction(n) for node in subgraphs[0].nodes for n in nests_of(node)) < 2:
        return None
    group = fuse_nodes([n for s in subgraphs for n in s.nodes], subgraphs[-1].outputs)
    return None if isinstance(group, Opaque) else choose_blocking(group, isa)


def choose_blocking(group: NestGroup, isa: Isa) -> Estimate | None:
    """The blocks of a group's result with the largest gain; None where none can pay."""
    if len(group.outputs) != 1 or len(group.nests) > _MAX_NESTS:
        return None
    work = _Work.of(group, isa)
    if not work.saved:
        return None
    estimates = [work.estimate(block) for block in work.candidates()]
    return max((e for e in estimates if e is not None), key=lambda e: e.gain, default=None)


def _leaving(size_bytes: int, isa: Isa) -> float:
    """Share of a tensor that is no longer in the private cache when it is read."""
    low, high = _LEAVES_CACHE
    return min(1.0, max(0.0, (size_bytes / isa.caches.l2_bytes - low) / (high - low)))


def _saved(size_bytes: int, isa: Isa) -> float:
    """Cycles to write a tensor between two kernels and to read it again."""
    in_cache = size_bytes <= isa.caches.l3_bytes
    rate = _SHARED_CACHE_BYTES_PER_CYCLE if in_cache else _MEMORY_BYTES_PER_CYCLE
    return 2 * size_bytes * _leaving(size_bytes, isa) / rate


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """A group, and what its blocks are measured by."""

    group: NestGroup
    isa: Isa
    constants: frozenset[OperandKey]
    between: frozenset[OperandKey]  # temporaries that kernels would pass on in memory
    saved: float

    @classmethod
    def of(cls, group: NestGroup, isa: Isa) -> _Work:
        products = [n for n in group.nests if is_contraction(n)]
        between = {a.operand for n in products for a in (*n.reads, n.write) if a.operand.kind == "local"}
        saved = 0.0
        for operand in between:
            saved += _saved(operand.num_elements * operand.dtype.size_bytes, isa)
        constants = frozenset(("input", i) for i, v in enumerate(group.inputs) if v.is_constant)
        return cls(group, isa, constants, frozenset(o.key for o in between), saved)

    def candidates(self) -> list[tuple[int, ...]]:
        """Blocks along the axes that can be cut without computing much twice: whole lines first."""
        shape = self.group.outputs[0].shape
        whole = sum(map(self._cycles, self.group.nests))
        block = list(shape)
        found: list[tuple[int, ...]] = []
        for axis, extent in enumerate(shape):
            if extent == 1:
                continue
            block[axis] = -(-extent // 2)
            windows = windows_of(self.group.nests, {RESULT: self._inner(block)})
            if self._cuts_constants(windows) or self._block_cycles(windows) > 0.75 * whole:
                block[axis] = extent
                continue
            sizes = dict.fromkeys(-(-extent // parts) for parts in _PARTS if parts <= extent)
            found += [(*block[:axis], size, *block[axis + 1 :]) for size in sizes]
            block[axis] = 1
        return found

    def _cuts_constants(self, windows: dict[OperandKey, Region]) -> bool:
        """Whether blocks would have weights of their own, and so each its own code."""
        inputs = self.group.inputs
        return any(k in windows and windows[k] != full_region(inputs[k[1]].shape) for k in self.constants)

    def _inner(self, block: Sequence[int]) -> Region:
        """The second block along every axis, which usually is not at an edge."""
        return tuple(
            (size, min(2 * size, extent)) if size < extent else (0, extent)
            for size, extent in zip(block, self.group.outputs[0].shape, strict=True)
        )

    def estimate(self, block: tuple[int, ...]) -> Estimate | None:
        """What blocks of this size save and cost; None for blocks that outgrow the cache themselves."""
        blocking = Blocking(block)
        num_blocks = blocking.num_blocks(self.group.outputs[0].shape)
        region = self._inner(block)
        windows = windows_of(self.group.nests, {RESULT: region}, self.constants)
        if self._windows_bytes(windows) > _WINDOWS_SHARE * self.isa.caches.l2_bytes:
            return None
        share = volume(region) / prod(block)
        whole = sum(map(self._cycles, self.group.nests))
        again = num_blocks * self._block_cycles(windows) / share - whole
        waits = sum(-(-num_blocks // p) * p / num_blocks for p in _USUAL_THREADS) / len(_USUAL_THREADS)
        weights = sum(self._bytes(k) for k in self.constants) / _PRIVATE_CACHE_BYTES_PER_CYCLE
        paid = max(0.0, again) + num_blocks * (self._num_kernels() * _START_CYCLES + weights)
        paid += (waits - 1 + _LATE_SHARE / num_blocks) * whole
        return Estimate(blocking, self.saved, paid, whole + self.saved)

    def _num_kernels(self) -> int:
        """Products, and one kernel for the loops around each."""
        products = sum(map(is_contraction, self.group.nests))
        return min(len(self.group.nests), 2 * products)

    def _block_cycles(self, windows: dict[OperandKey, Region]) -> float:
        total = 0.0
        for nest in self.group.nests:
            region = windows.get(nest.write.operand.key)
            intervals = None if region is None else dim_intervals(nest, region)
            if intervals is not None:
                part = prod(high - low for low, high in intervals.values())
                total += self._cycles(nest) * part / max(1, nest.num_iterations)
        return total

    def _cycles(self, nest: Nest) -> float:
        """Rough time of a nest whose operands are at hand."""
        rate = _LOOP_RATE
        if _is_dense_product(nest):
            rate = _MATRIX_RATE if self.isa.has_matrix_unit else _PRODUCT_RATE
        return nest.num_iterations / rate

    def _windows_bytes(self, windows: dict[OperandKey, Region]) -> int:
        """Of everything that a block touches but the weights."""
        sizes = {o.key: o.dtype.size_bytes for o in operands_of(self.group.nests)}
        kept = (k for k in windows if k not in self.constants and (k[0] != "local" or k in self.between))
        return sum(volume(windows[k]) * sizes[k] for k in kept)

    def _bytes(self, key: OperandKey) -> int:
        return self.group.inputs[key[1]].size_bytes


def _is_dense_product(nest: Nest) -> bool:
    """Whether every factor is used again along a parallel dim: a depthwise convolution's input is not."""
    if not is_contraction(nest):
        return False
    parallel = {d.name for d in nest.parallel_dims}
    return all(reused & parallel for reused in reuse_dims(nest)[:2])
