"""A device that is emulated: memory of this process, kernels on fibers, graphs in orders that edges allow.

Everything that a GPU leaves open is drawn by a seed: the order of nodes, blocks, warps and lanes. What a
program may not rely on is a NaN: fresh memory, shared memory of a block, results of the run before.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import UsageError
from tilewright.hardware.host import host_instructions
from tilewright.records import dataclass
from tilewright.system.forks import ForkSafeLock
from tilewright.targets.cuda.device import (
    ALIGNMENT_BYTES,
    MOST_BLOCKS,
    Copy,
    DeviceError,
    DeviceFacts,
    GraphNode,
    KernelCode,
    Kernels,
    Launch,
    Span,
)
from tilewright.targets.cuda.dlpack import CPU
from tilewright.targets.cuda.emulated.counts import (
    AccessCounts,
    BlockUses,
    access_counts,
    block_races,
    global_uses,
    shared_races,
)
from tilewright.targets.cuda.emulated.records import (
    ABSENT,
    COPY_BYTES,
    DIVERGED,
    FIELD,
    FIELDS,
    MAX_COPIES,
    MIXED,
    NOT_ALIGNED,
    OUT_OF_RANGE,
    OVERFLOW,
    RECORD_BYTES,
    SHARED,
    SPACE_SHIFT,
    STACK_BYTES,
    TOO_MANY_COPIES,
    WRITES,
)
from tilewright.targets.cuda.emulated.rewrite import (
    GLOBAL,
    MAX_DECLARED_BYTES,
    MAX_DYNAMIC_BYTES,
    Site,
    rewritten,
)
from tilewright.targets.cuda.emulated.runtime import runtime_text
from tilewright.targets.llvm.cache import ObjectCache
from tilewright.targets.llvm.codegen import CompileJob, JitLibrary, compile_objects

MAX_THREADS = 1024
WARP = 32
UNWRITTEN = 0xFF
"""The byte of memory that was not written: float32, float16 and bfloat16 NaN, -1 of integers."""
_GUARD_BYTES = 256
MAX_TRACED = 1 << 18
"""Accesses of a block that are counted, the first ones."""
MAX_TRACED_BLOCKS = 32
"""Blocks of a kernel among which races are looked for: the first of the order that is run."""

_Call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class _Host:
    """This processor, as the code generator names one."""

    triple: str
    cpu: str
    features: str
    fingerprint: str


class EmulatedMemory:
    """An allocation, in memory of this process."""

    def __init__(self, size_bytes: int, name: str = "") -> None:
        self.name = name
        self.size_bytes = size_bytes
        self._whole = np.full(size_bytes + ALIGNMENT_BYTES + _GUARD_BYTES, UNWRITTEN, np.uint8)
        start = -self._whole.ctypes.data % ALIGNMENT_BYTES
        self.array: Array = self._whole[start : start + size_bytes]
        self.address = int(self._whole.ctypes.data) + start

    def close(self) -> None:
        """Give it back."""
        self._whole = self.array = np.zeros(0, np.uint8)


class EmulatedKernels:
    """Modules that were rewritten, compiled and linked."""

    def __init__(self, modules: Sequence[KernelCode], cache: ObjectCache | None) -> None:
        host = _host()
        self.modules = [rewritten(module.text) for module in modules]
        jobs = [CompileJob(module.text) for module in self.modules]
        objects = [*compile_objects(jobs, host, cache=cache), _runtime(host, cache)]
        exports = [symbol for module in self.modules for symbol in module.exports]
        self._library = JitLibrary(objects, [*exports, "emu_run"])
        self.run = _Call(self._library["emu_run"])
        self.module_of = {name: module for module in self.modules for name in module.kernels}

    def address(self, symbol: str) -> int:
        """Where a symbol lies."""
        return self._library[symbol]

    def close(self) -> None:
        """Unload them."""
        self._library.close()


class EmulatedDevice:
    """A GPU of the given `isa`, emulated.

    `seed` draws what a GPU leaves open, anew with every launch from the same seed; 0 keeps the order of
    numbers. `copies` says when asynchronous ones happen: as early as they may, or as late.
    """

    def __init__(
        self,
        *,
        isa: str = "sm_80",
        num_multiprocessors: int = 108,
        seed: int = 0,
        copies: Literal["early", "late"] = "late",
        cache: ObjectCache | None = None,
    ) -> None:
        self.facts = DeviceFacts(
            f"emulated {isa}", isa, num_multiprocessors, 80 << 30, MAX_DYNAMIC_BYTES, (CPU, 0)
        )
        self.seed = seed
        self.copies = copies
        self._cache = cache
        self._lock = ForkSafeLock()
        self._stacks: Array | None = None
        self._records = np.zeros(MAX_THREADS * RECORD_BYTES, np.uint8)
        self._copies = np.zeros(0, np.uint8)

    own_stream = 0
    """There are no streams: what is launched runs at once."""

    def allocate(self, size_bytes: int, name: str = "") -> EmulatedMemory:
        """Memory that holds NaN."""
        return EmulatedMemory(size_bytes, name)

    def pinned(self, size_bytes: int) -> EmulatedMemory:
        """Memory that holds NaN."""
        return EmulatedMemory(size_bytes)

    def write(self, address: int, data: Array) -> None:
        """Copy an array to the device."""
        ctypes.memmove(address, np.ascontiguousarray(data).ctypes.data, data.nbytes)

    def read(self, address: int, data: Array) -> None:
        """Copy from the device into an array."""
        ctypes.memmove(data.ctypes.data, address, data.nbytes)

    def load(self, modules: Sequence[KernelCode]) -> EmulatedKernels:
        """Compile for this processor.

        Raises:
            UsageError: fibers cannot be switched on this processor.
        """
        return EmulatedKernels(modules, self._cache)

    def graph(self, nodes: Sequence[GraphNode], kernels: Kernels) -> EmulatedGraph:
        """Make a graph ready."""
        assert isinstance(kernels, EmulatedKernels)
        return EmulatedGraph(self, nodes, kernels)

    def synchronise(self, stream: int = 0) -> None:
        """Everything has run when it was launched."""

    def close(self) -> None:
        """Give the threads' stacks back."""
        self._stacks = None

    def run_kernel(
        self, launch: Launch, kernels: EmulatedKernels, *, name: str = "", counted: bool = False
    ) -> AccessCounts | None:
        """Run all blocks of a launch; if `counted`, count accesses of the first, and look for races of some.

        Raises:
            DeviceError: a fault of the kernel; names it, the buffer, the block and the thread.
        """
        with self._lock:
            return _Run(self, launch, kernels, name).run(counted=counted)

    def orders(self, name: str) -> random.Random:
        """What draws an order of the thing named."""
        return random.Random(f"{self.seed}/{name}")

    def stacks(self, num_threads: int) -> int:
        """The address of as many stacks, aligned as the processor asks."""
        need = (max(num_threads, 128) + 1) * STACK_BYTES
        if self._stacks is None or self._stacks.size < need:
            self._stacks = np.empty(need, np.uint8)
        return -(-int(self._stacks.ctypes.data) // 4096) * 4096

    @property
    def records(self) -> int:
        """The address of the threads' records, aligned."""
        return int(self._records.ctypes.data)

    def queues(self, num_threads: int) -> int:
        """The address of the threads' queues of copies."""
        need = num_threads * MAX_COPIES * COPY_BYTES
        if self._copies.size < need:
            self._copies = np.empty(need, np.uint8)
        return int(self._copies.ctypes.data)


class _Run:
    """One launch of one kernel."""

    def __init__(self, device: EmulatedDevice, launch: Launch, kernels: EmulatedKernels, name: str) -> None:
        self.device = device
        self.launch = launch
        self.kernels = kernels
        self.name = name or launch.kernel
        module = kernels.module_of.get(launch.kernel)
        if module is None:
            raise DeviceError(f"kernel {launch.kernel!r}: no loaded module has it.")
        self.module = module
        self.spans = (*launch.reads, *launch.writes)
        if not 0 < launch.num_threads <= MAX_THREADS:
            raise DeviceError(
                f"kernel {self.name!r}: blocks of {launch.num_threads} threads, "
                f"at most {MAX_THREADS} are possible."
            )
        if any(not 0 < size <= most for size, most in zip(launch.grid, MOST_BLOCKS, strict=True)):
            raise DeviceError(
                f"kernel {self.name!r}: a grid of {launch.grid} blocks, at most {MOST_BLOCKS} are possible."
            )
        declared_bytes = sum(size_bytes for space, size_bytes, _ in module.arrays if space == SHARED)
        for size_bytes, most in (
            (launch.dynamic_bytes, MAX_DYNAMIC_BYTES),
            (declared_bytes, MAX_DECLARED_BYTES),
        ):
            if size_bytes > most:
                raise DeviceError(
                    f"kernel {self.name!r}: {size_bytes} bytes of shared memory, at most {most} are possible."
                )

    def run(self, *, counted: bool) -> AccessCounts | None:
        device, launch = self.device, self.launch
        fields = np.zeros(len(FIELDS), np.int64)
        arrays = self._arrays()
        shared = np.array([(at, size) for space, at, size, _ in arrays if space == 3], np.int64).reshape(
            -1, 2
        )
        ranges = self._ranges(arrays)
        block_order, warp_order, lane_order = self._orders(launch.num_blocks, -(-launch.num_threads // WARP))
        traced = np.zeros((MAX_TRACED if counted else 0, 4), np.int64)
        arguments = np.array(launch.arguments, np.uint64)
        slots = self.kernels.address(self.module.slots)
        ctypes.memset(slots, 0, 16 * max(1, len(self.module.sites)))
        for field, value in {
            "num_threads": launch.num_threads, "warp_order": warp_order.ctypes.data,
            "lane_order": lane_order.ctypes.data, "stacks": device.stacks(launch.num_threads),
            "records": device.records, "copies": device.queues(launch.num_threads),
            "is_late": device.copies == "late", "shared": shared.ctypes.data, "num_shared": len(shared),
            "ranges": ranges.ctypes.data, "num_ranges": len(ranges),
            "trace": traced.ctypes.data if counted else 0, "trace_capacity": len(traced),
            **{f"{what}_{axis}": size for what, sizes in (("grid", launch.grid), ("block", launch.block))
               for axis, size in zip("xyz", sizes, strict=True)},
        }.items():  # fmt: skip
            fields[FIELD[field]] = value

        def run(blocks: Array) -> Array:
            """Run blocks one after another; gives the trace, if there is one."""
            fields[FIELD["num_blocks"]], fields[FIELD["block_order"]] = len(blocks), blocks.ctypes.data
            fields[FIELD["trace_length"]] = 0
            kernel = self.kernels.address(f"{launch.kernel}.emulated")
            if self.kernels.run(kernel, arguments.ctypes.data, fields.ctypes.data):
                raise DeviceError(
                    self._fault({name: int(value) for name, value in zip(FIELDS, fields, strict=True)})
                )
            return traced[: int(fields[FIELD["trace_length"]])]

        if not counted:
            run(block_order)
            return None
        ends, sites = [(at, at + size) for at, size in shared.tolist()], self.module.sites
        uses: list[BlockUses] = []
        for number in range(min(MAX_TRACED_BLOCKS, len(block_order))):
            trace = run(block_order[number : number + 1])
            if not number:
                counts = access_counts(sites, trace, ends)
                counts = replace(counts, races=shared_races(sites, trace, ends))
            uses.append(global_uses(sites, trace, launch.writes))
        fields[FIELD["trace"]] = 0
        run(block_order[MAX_TRACED_BLOCKS:])
        return replace(counts, block_races=block_races(sites, uses, launch.writes))

    def _arrays(self) -> list[tuple[int, int, int, bool]]:
        """Space, address, bytes, and whether it may be written, of the arrays that the text declares."""
        count = len(self.module.arrays)
        table = (ctypes.c_uint64 * (2 * count)).from_address(self.kernels.address(self.module.table))
        return [
            (space, int(table[2 * i]), size or self.launch.dynamic_bytes, writes)
            for i, (space, size, writes) in enumerate(self.module.arrays)
        ]

    def _ranges(
        self, arrays: list[tuple[int, int, int, bool]]
    ) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        rows = [
            (at, at + size, (space << SPACE_SHIFT) | (WRITES if writes else 0))
            for space, at, size, writes in arrays
        ]
        rows += [(s.address, s.end, (GLOBAL << SPACE_SHIFT) | WRITES) for s in self.launch.writes]
        rows += [(s.address, s.end, GLOBAL << SPACE_SHIFT) for s in self.launch.reads]
        return np.array(rows, np.int64).reshape(-1, 3)

    def _orders(self, num_blocks: int, num_warps: int) -> tuple[Array, Array, Array]:
        orders = [np.arange(n, dtype=np.int32) for n in (num_blocks, num_warps, WARP)]
        if self.device.seed:
            draw = np.random.default_rng([self.device.seed, num_blocks])
            for order in orders:
                draw.shuffle(order)
        return orders[0], orders[1], orders[2]

    def _fault(self, fields: dict[str, int]) -> str:
        kind, thread, block = fields["fault"], fields["fault_thread"], fields["fault_block"]
        gx, gy, _ = self.launch.grid
        indices = (block % gx, block // gx % gy, block // gx // gy)
        where = f"kernel {self.name!r}, block {indices}, thread {thread}"
        address, size = fields["fault_address"], fields["fault_bytes"]
        if kind in (OUT_OF_RANGE, NOT_ALIGNED):
            site = self.module.sites[fields["fault_site"]]
            what = "store" if site.is_store else "load"
            if kind == NOT_ALIGNED:
                return f"{where}: {what} at {self._place(address, site)} is not aligned to {size} bytes."
            return f"{where}: {what} of {size} bytes at {self._place(address, site)}, where it may not."
        return (
            f"{where}: "
            + {
                DIVERGED: "threads of its warp wait for each other at different places.",
                MIXED: "threads of its block wait at different barriers.",
                TOO_MANY_COPIES: f"more than {MAX_COPIES} asynchronous copies are under way.",
                ABSENT: "shuffles a value from a lane that is not there.",
                OVERFLOW: f"its stack of {STACK_BYTES} bytes overflows.",
            }[kind]
        )

    def _place(self, address: int, site: Site) -> str:
        """An address as people find it: in the nearest buffer, or in shared memory."""
        shared = [(at, size) for space, at, size, _ in self._arrays() if space == 3]
        for at, size in shared:
            if at - _GUARD_BYTES <= address < at + size + _GUARD_BYTES:
                return f"byte {address - at} of shared memory ({size} bytes)"
        if not self.spans:
            return f"address {address:#x}"
        nearest = min(self.spans, key=lambda span: max(span.address - address, address - span.end + 1, 0))
        only_read = (
            " which it only reads" if nearest.address <= address < nearest.end and site.is_store else ""
        )
        return f"byte {address - nearest.address} of {nearest.name!r} ({nearest.size_bytes} bytes{only_read})"


class EmulatedGraph:
    """A graph, whose nodes run one after another in an order that its edges allow."""

    def __init__(self, device: EmulatedDevice, nodes: Sequence[GraphNode], kernels: EmulatedKernels) -> None:
        self._device = device
        self._nodes = list(nodes)
        self._kernels = kernels
        for number, node in enumerate(nodes):
            if any(not 0 <= before < number for before in node.after):
                raise UsageError(
                    f"graph node {node.name!r}: an edge comes from a node that is not before it."
                )

    def launch(self, stream: int = 0) -> None:
        """Run every node.

        Raises:
            DeviceError: a fault of a node.
        """
        self._run(None)

    def _run(self, counts: dict[str, AccessCounts] | None) -> None:
        for span in self._poisoned():
            ctypes.memset(span.address, UNWRITTEN, span.size_bytes)
        for number in self._order():
            node = self._nodes[number]
            if isinstance(node.work, Launch):
                if counts is not None:
                    counted = self._device.run_kernel(node.work, self._kernels, name=node.name, counted=True)
                    assert counted is not None
                    counts[node.name] = counted
                else:
                    self._device.run_kernel(node.work, self._kernels, name=node.name)
            elif isinstance(node.work, Copy):
                if node.work.source.size_bytes != node.work.target.size_bytes:
                    raise DeviceError(f"copy {node.name!r}: source and target differ in size.")
                ctypes.memmove(
                    node.work.target.address, node.work.source.address, node.work.source.size_bytes
                )

    def counts(self) -> dict[str, AccessCounts]:
        """Run it once, and count the accesses of each kernel's first block, by the names of nodes."""
        found: dict[str, AccessCounts] = {}
        self._run(found)
        return found

    def update(self, node: int, work: Launch | Copy) -> None:
        """Another work for a node, of the same kind."""
        old = self._nodes[node]
        if type(old.work) is not type(work) or (
            isinstance(old.work, Launch) and isinstance(work, Launch) and old.work.kernel != work.kernel
        ):
            raise UsageError(f"graph node {old.name!r}: its work cannot be replaced by one of another kind.")
        self._nodes[node] = GraphNode(old.name, work, old.after, old.priority)

    def close(self) -> None:
        """Nothing to give back."""

    def _poisoned(self) -> list[Span]:
        """What the graph writes before it reads: what it holds from a run before must not matter."""
        touched: list[Span] = []
        fresh: list[Span] = []
        for node in self._nodes:
            work = node.work
            read = (*touched, *work.reads)
            fresh += [span for span in work.writes if not any(span.meets(other) for other in read)]
            touched += [*work.reads, *work.writes]
        return fresh

    def _order(self) -> list[int]:
        """An order that the edges allow: a node, another with each seed, as late as possible, the rest drawn.

        Where an edge is missing from it, so many orders as there are nodes have the two the wrong way round.
        """
        if not self._device.seed:
            return list(range(len(self._nodes)))
        draw = self._device.orders("nodes")
        late = (self._device.seed - 1) % max(1, len(self._nodes))
        left = [len(set(node.after)) for node in self._nodes]
        behind: list[list[int]] = [[] for _ in self._nodes]
        for number, node in enumerate(self._nodes):
            for before in set(node.after):
                behind[before].append(number)
        ready = [number for number, count in enumerate(left) if not count]
        order = []
        while ready:
            others = [number for number in ready if number != late]
            number = draw.choice(others or ready)
            ready.remove(number)
            order.append(number)
            for later in behind[number]:
                left[later] -= 1
                if not left[later]:
                    ready.append(later)
        return order


_runtimes: dict[_Host, bytes] = {}


def _runtime(host: _Host, cache: ObjectCache | None) -> bytes:
    """The object that every library links."""
    if host not in _runtimes:
        (_runtimes[host],) = compile_objects([CompileJob(runtime_text())], host, cache=cache)
    return _runtimes[host]


def _host() -> _Host:
    """This processor, if fibers can be switched on it.

    Raises:
        UsageError: they cannot.
    """
    found = host_instructions()
    if not found.triple.startswith("x86_64") or "windows" in found.triple:
        raise UsageError(
            f"the emulated device needs x86-64 under Linux or macOS, and this is {found.triple}: "
            "give --target cpu, or run on a GPU."
        )
    features = ",".join(
        sorted([f"+{name}" for name in found.features] + [f"-{name}" for name in found.missing_features])
    )
    return _Host(found.triple, found.processor, features, f"{found.triple}/{found.processor}/{features}")
