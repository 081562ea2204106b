"""Where every tensor of a lowered model lies: in the arena, among the weights, or with the caller."""

from __future__ import annotations

import copy
import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import or_

import numpy as np

from tilewright.arrays import Array
from tilewright.content_pool import content_key
from tilewright.ir.block_weights import BlockWeights
from tilewright.ir.graph import Graph, Value
from tilewright.memory.base import DEFAULT_ALIGNMENT_BYTES, Buffer, MemoryLevel, MemoryProblem, aligned
from tilewright.parallel import map_on_cores
from tilewright.records import dataclass
from tilewright.system.mapped_file import let_go, mapped_files
from tilewright.targets.cpu.arrangements import Arrangement, FewBitPanels, arrange_into
from tilewright.targets.cpu.kernel import REPORT_BYTES
from tilewright.targets.cpu.lower.arrange import numbered
from tilewright.targets.cpu.lower.layouts import Tensor
from tilewright.targets.cpu.lower.lowered import (
    HostOperator,
    KernelLaunch,
    LoweredModel,
    NumRows,
    PackedTensor,
    Reports,
    Storage,
    Table,
)
from tilewright.targets.cpu.runtime.executable import Piece
from tilewright.targets.cpu.runtime.main_code import ARENA_BASE, WEIGHTS_BASE, ArgRef


class Arrangements:
    """Rearranged constants, kept for the next code generated for the same graph, up to a limit."""

    def __init__(self, max_bytes: int) -> None:
        self._left_bytes = max_bytes
        self._kept: dict[tuple[Value, Arrangement], Array] = {}

    def of(self, tensor: PackedTensor) -> Array:
        """The tensor as its kernel wants it."""
        key = (tensor.value, tensor.packed.arrangement)
        array = self._kept.get(key)
        if array is None:
            array = np.ascontiguousarray(tensor.packed.arrangement.arrange(_source_of(tensor)))
            if array.nbytes <= self._left_bytes:
                self._left_bytes -= array.nbytes
                self._kept[key] = array
        return array


class Weights:
    """The arena of constants: what kernels read, each arrangement of a tensor once.

    Offsets are allotted in order of first use, so that equal models give equal bytes. `arrangements` saves
    the work of rearranging where code is generated several times.
    """

    def __init__(self, arrangements: Arrangements | None = None) -> None:
        self._arrangements = arrangements
        self._offsets: dict[tuple[object, object], int] = {}
        self._sources: list[tuple[int, Storage]] = []
        self.size_bytes = 0

    def sharing(self, arrangements: Arrangements) -> Weights:
        """The same arena with rearranged constants that others keep."""
        weights = copy.copy(self)
        weights._arrangements = arrangements
        return weights

    def offset(self, storage: Storage) -> int:
        """Byte offset of a constant, allotted on first use."""
        match storage:
            case PackedTensor(value, packed):
                key: tuple[object, object] = (value, packed.arrangement)
                size = packed.size_bytes
            case Table(operand):
                assert operand.data is not None
                key, size = (operand.data.tobytes(), str(operand.dtype)), operand.data.nbytes
            case Value():
                key, size = (storage, ""), storage.size_bytes
            case _:
                raise AssertionError(f"{storage} is not a constant")
        if key not in self._offsets:
            self._offsets[key] = self.size_bytes
            self._sources.append((self.size_bytes, storage))
            self.size_bytes = aligned(self.size_bytes + size, DEFAULT_ALIGNMENT_BYTES)
        return self._offsets[key]

    @property
    def sources(self) -> Sequence[tuple[int, Storage]]:
        """Byte offsets, and which constant lies there."""
        return self._sources

    def fill(self, target: Array) -> None:
        """Write all constants into `target` (zeros of uint8, at least `size_bytes`), on all cores: numpy lets
        go of the interpreter while it rearranges."""

        map_on_cores(lambda source: self.place(source, target), self._sources)

    def place(self, source: tuple[int, Storage], target: Array) -> None:
        """Write one of `sources` to its offset in `target`."""
        offset, storage = source
        packed = storage.packed if isinstance(storage, PackedTensor) else None
        size_bytes = _source_of(storage).nbytes if packed is None else packed.size_bytes
        self._write(storage, target[offset : offset + size_bytes])

    def _write(self, storage: Storage, part: Array) -> None:
        """Write a constant where zeros are."""
        source = _source_of(storage)
        if not isinstance(storage, PackedTensor):
            arrange_into(None, source, part)
        elif self._arrangements is None:
            arrange_into(storage.packed.arrangement, source, part)
        else:
            part[...] = self._arrangements.of(storage).reshape(-1).view(np.uint8)
        let_go(source.numbers if isinstance(source, BlockWeights) else source)

    def pieces(self) -> Sequence[Piece]:
        """Each constant by itself."""

        def piece(offset: int, storage: Storage) -> Piece:
            packed = storage.packed if isinstance(storage, PackedTensor) else None
            arrangement = None if packed is None else packed.arrangement
            source = _source_of(storage)
            return Piece(
                offset,
                source.nbytes if packed is None else packed.size_bytes,
                lambda: (_key_of(_source_of(storage)), arrangement),
                lambda part: self._write(storage, part),
            )

        return [piece(offset, storage) for offset, storage in self._sources]


def _key_of(source: Array | BlockWeights) -> Hashable:
    """What equal constants have in common."""
    if isinstance(source, BlockWeights):
        return source.bits, source.axis, tuple(map(content_key, source.arrays()))
    return content_key(source)


def _source_of(storage: Storage) -> Array | BlockWeights:
    """A constant as the graph, or the operator whose own it is, has it: numbers if its kernel wants them.

    Raises:
        UsageError: it lies in a file that was written to since.
    """
    data: Array | BlockWeights | None
    match storage:
        case PackedTensor(value, packed):
            data = value.stored if isinstance(packed.arrangement, FewBitPanels) else value.data
        case Table(operand):
            data = operand.data
        case Value():
            data = storage.data
        case _:
            data = None
    assert data is not None, f"{storage} is not a constant"
    for file in mapped_files(data.arrays() if isinstance(data, BlockWeights) else (data,)):
        file.require_unchanged()
    return data


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Resolves tensors to addresses relative to the bases of a run."""

    lowered: LoweredModel
    caller_bases: Mapping[Value, int]
    offsets: Mapping[str, int]
    names: Mapping[Tensor, str]
    homes: Mapping[Tensor, Value]
    weights: Weights
    reports: Mapping[Reports, int]  # offset in the arena
    rows_base: int  # which is no address but a number

    def reference(self, storage: Storage) -> ArgRef:
        """Base and byte offset of a kernel argument."""
        if isinstance(storage, Reports):
            return ArgRef(ARENA_BASE, self.reports[storage])
        if isinstance(storage, NumRows):
            return ArgRef(self.rows_base)
        if isinstance(storage, PackedTensor | Table) or (isinstance(storage, Value) and storage.is_constant):
            return ArgRef(WEIGHTS_BASE, self.weights.offset(storage))
        root = self.lowered.root(storage)
        start_bytes = self.lowered.root_offset(storage) * _element_bytes(self.lowered, root)
        home = self.homes.get(root)
        if home is not None:
            return ArgRef(self.caller_bases[home], start_bytes)
        return ArgRef(ARENA_BASE, self.offsets[self.names[root]] + start_bytes)


def arena_bytes(peak_bytes: int) -> int:
    """Bytes of the arena of a run whose buffers take `peak_bytes`."""
    return max(DEFAULT_ALIGNMENT_BYTES, aligned(peak_bytes, DEFAULT_ALIGNMENT_BYTES))


def place_reports(lowered: LoweredModel, arena_bytes: int) -> dict[Reports, int]:
    """Reports lie behind the arena of a run, in the order of the launches."""
    offsets: dict[Reports, int] = {}
    for reports in lowered.reports:
        offsets[reports] = arena_bytes
        arena_bytes += REPORT_BYTES * len(reports.checks)
    return offsets


def caller_homes(lowered: LoweredModel, graph: Graph) -> dict[Tensor, Value]:
    """For each tensor whose memory the caller gives, which model input or output that is."""
    homes: dict[Tensor, Value] = {}
    for value in (*graph.inputs, *graph.outputs):
        homes.setdefault(lowered.root(value), value)
    return homes


def memory_problem(
    lowered: LoweredModel, graph: Graph, capacity_bytes: int | None = None
) -> tuple[MemoryProblem, dict[Tensor, str]]:
    """Buffers of the arena over the positions of the model, and the buffer name of each tensor.

    Buffers that kernels of different groups of a step use never share memory; a group's own may, once all its
    kernels are done with one of them.
    """
    homes = caller_homes(lowered, graph)
    work = list(numbered(lowered))
    uses: dict[Tensor, list[int]] = {}
    for position, (_, _, launch) in enumerate(work):
        for tensor in _touched(launch):
            if isinstance(tensor, Value) and tensor.is_constant:
                continue
            root = lowered.root(tensor)
            if root in homes or (isinstance(root, Value) and root.is_constant):
                continue
            uses.setdefault(root, []).append(position)
    names = {root: f"{number}:{_name(root)}" for number, root in enumerate(uses)}
    reuse = _reuse(lowered, uses)
    beside = _beside(lowered)
    buffers = tuple(
        Buffer(
            names[root],
            _size_bytes(lowered, root),
            positions[0],
            positions[-1],
            may_reuse=tuple(names[r] for r in reuse.get(root, ())),
            used=_bits(positions) if beside else 0,
            beside=functools.reduce(or_, (beside.get(p, 0) for p in positions)),
        )
        for root, positions in uses.items()
    )
    return MemoryProblem(buffers, (MemoryLevel("arena", capacity_bytes),)), names


def _beside(lowered: LoweredModel) -> dict[int, int]:
    """For each position beside which others may run, which these are, as a bit set."""
    members: dict[tuple[int, int], list[int]] = {}
    for position, (step, group, _) in enumerate(numbered(lowered)):
        members.setdefault((step, group), []).append(position)
    of_step: dict[int, int] = {}
    for (step, _), positions in members.items():
        of_step[step] = of_step.get(step, 0) | _bits(positions)
    beside: dict[int, int] = {}
    for (step, _), positions in members.items():
        others = of_step[step] & ~_bits(positions)
        if others:
            beside.update(dict.fromkeys(positions, others))
    return beside


def _bits(positions: Iterable[int]) -> int:
    return functools.reduce(lambda bits, position: bits | 1 << position, positions, 0)


def _touched(launch: KernelLaunch | HostOperator) -> Iterable[Tensor]:
    if isinstance(launch, HostOperator):
        yield from launch.node.operands()
        yield from launch.node.results()
    else:
        yield from launch.reads
        yield from launch.writes


def _reuse(lowered: LoweredModel, uses: Mapping[Tensor, Sequence[int]]) -> dict[Tensor, list[Tensor]]:
    """Buffers in whose place a result may be made: read element by element where it is made, dead after."""
    result: dict[Tensor, list[Tensor]] = {}
    for position, (_, _, launch) in enumerate(numbered(lowered)):
        if isinstance(launch, HostOperator):
            continue
        for target in _roots(lowered, launch.writes):
            if target not in uses or uses[target][0] != position:
                continue
            for source in _roots(lowered, launch.may_overwrite):
                # Another operand that shares the memory might be read at other elements.
                shared = [t for t in launch.reads if lowered.root(t) == source]
                is_dead = source in uses and uses[source][-1] == position
                if is_dead and set(shared) <= set(launch.may_overwrite):
                    result.setdefault(target, []).append(source)
    return result


def _roots(lowered: LoweredModel, tensors: Sequence[Tensor]) -> list[Tensor]:
    return list(dict.fromkeys(lowered.root(t) for t in tensors))


def _size_bytes(lowered: LoweredModel, tensor: Tensor) -> int:
    if isinstance(tensor, Value):
        return tensor.size_bytes
    return lowered.locals[tensor].num_elements * _element_bytes(lowered, tensor)


def _element_bytes(lowered: LoweredModel, tensor: Tensor) -> int:
    return (tensor if isinstance(tensor, Value) else lowered.locals[tensor]).dtype.size_bytes


def _name(tensor: Tensor) -> str:
    return tensor.name if isinstance(tensor, Value) else f"local {tensor[0]}.{tensor[1]}"
