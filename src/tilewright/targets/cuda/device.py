"""Devices that run kernels: memory, modules of kernels, graphs of nodes.

One protocol for a GPU (`driver.py`) and for its emulation on this processor (`emulated/`). A model is one
graph whose edges say everything about order: nodes without a path between them may run at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Protocol

from tilewright.arrays import Array
from tilewright.errors import TilewrightError
from tilewright.records import dataclass

ALIGNMENT_BYTES = 256
"""What allocations begin at a multiple of, on every device."""
MOST_BLOCKS = (2**31 - 1, 65535, 65535)
"""Blocks of a grid along each axis, on every device."""


class DeviceError(TilewrightError):
    """A device that is missing, too old, full, or that reports a fault; names it and says what to do."""

    exit_code = 5


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a buffer, in the memory of a device or pinned on the host."""

    name: str
    address: int
    size_bytes: int

    @property
    def end(self) -> int:
        """The address behind its last byte."""
        return self.address + self.size_bytes

    def meets(self, other: Span) -> bool:
        """Whether they share a byte."""
        return self.address < other.end and other.address < self.end


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of a kernel over a grid of blocks of threads.

    `arguments` are its parameters in order, 64 bits each: addresses. It loads from `reads` and `writes` only
    and stores to `writes` only. `dynamic_bytes` is the size of its shared array `external addrspace(3) global
    [0 x i8]`, where it has one; other shared arrays have their size in the text.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[int, ...]
    reads: tuple[Span, ...] = ()
    writes: tuple[Span, ...] = ()
    dynamic_bytes: int = 0

    @property
    def num_blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def num_threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of as many bytes as both spans have; each lies on the device or is pinned on the host."""

    source: Span
    target: Span

    @property
    def reads(self) -> tuple[Span, ...]:
        """The source."""
        return (self.source,)

    @property
    def writes(self) -> tuple[Span, ...]:
        """The target."""
        return (self.target,)


@dataclass(frozen=True, slots=True)
class Join:
    """Nothing: all that follows waits for all that it follows."""

    reads: tuple[Span, ...] = ()
    writes: tuple[Span, ...] = ()


Work = Launch | Copy | Join


@dataclass(frozen=True, slots=True)
class GraphNode:
    """What a graph runs once the nodes `after`, by their places in the graph, have run; all come before it.

    Of nodes that could start, those of higher priority start first.
    """

    name: str
    work: Work
    after: tuple[int, ...] = ()
    priority: int = 0


@dataclass(frozen=True, slots=True)
class KernelCode:
    """A module of kernels: LLVM IR text as `define ptx_kernel void @name(ptr addrspace(1) ...)`.

    `images` are what it was assembled to beforehand: by name, `sm_80.ptx` or `sm_90.cubin`.
    """

    text: str
    images: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What is known of a device. `isa` is its compute capability as LLVM and ptxas write it, `sm_90`; `place`
    the type and number of the device in DLPack.
    """

    name: str
    isa: str
    num_multiprocessors: int
    memory_bytes: int
    shared_bytes_per_block: int
    place: tuple[int, int]


class Memory(Protocol):
    """An allocation."""

    @property
    def address(self) -> int:
        """Where it begins, a multiple of `ALIGNMENT_BYTES`."""
        ...

    @property
    def size_bytes(self) -> int:
        """Its size."""
        ...

    def close(self) -> None:
        """Give it back. To close once more does nothing."""
        ...


class PinnedMemory(Memory, Protocol):
    """An allocation on the host, which copy nodes read and write without a stop."""

    @property
    def array(self) -> Array:
        """All of it, as bytes."""
        ...


class Kernels(Protocol):
    """Modules that were loaded, whose kernels have different names."""

    def close(self) -> None:
        """Unload them. No graph of theirs may run."""
        ...


class LoadedGraph(Protocol):
    """A graph that can be launched, again and again."""

    def launch(self, stream: int = 0) -> None:
        """Run it behind what the stream holds already; returns at once. 0 is the device's own stream.

        Runs of one graph come one after another.
        """
        ...

    def update(self, node: int, work: Launch | Copy) -> None:
        """Give later launches another work of the same kind: other addresses, the same kernel and grid."""
        ...

    def close(self) -> None:
        """Give it back, once it has run."""
        ...


class Device(Protocol):
    """One GPU, or what stands in for it. Errors are `DeviceError`s."""

    @property
    def facts(self) -> DeviceFacts:
        """What is known of it."""
        ...

    @property
    def own_stream(self) -> int:
        """The handle of its own stream."""
        ...

    def allocate(self, size_bytes: int, name: str = "") -> Memory:
        """Memory of the device; what it holds at first is anything."""
        ...

    def pinned(self, size_bytes: int) -> PinnedMemory:
        """Memory of the host that copy nodes may use."""
        ...

    def write(self, address: int, data: Array) -> None:
        """Copy a contiguous array to the device, at once."""
        ...

    def read(self, address: int, data: Array) -> None:
        """Copy from the device into a contiguous array, once all that was launched has run."""
        ...

    def load(self, modules: Sequence[KernelCode]) -> Kernels:
        """Make kernels ready to be launched."""
        ...

    def graph(self, nodes: Sequence[GraphNode], kernels: Kernels) -> LoadedGraph:
        """Make a graph ready to be launched."""
        ...

    def synchronise(self, stream: int = 0) -> None:
        """Wait until all that the stream holds has run; a fault of it is raised here."""
        ...

    def close(self) -> None:
        """Give back what the device itself holds."""
        ...
