"""Persistent worker threads, pools of so many threads in a process, shared by every executable.

Workers are Python threads parked inside generated code (`pool_ir`), which ctypes enters without the
interpreter lock. One run owns a pool at a time; a run that finds it busy executes on its own thread instead,
so no run ever waits for another. Runs that go on at the same time have different pools, as many as there are
cores for: four runs of two threads each on eight cores. A forked child starts without threads and makes its
own pools.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import logging
import mmap
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilewright.errors import BudgetExceeded, UsageError
from tilewright.hardware.probe import MAX_THREADS, processor_facts
from tilewright.records import dataclass
from tilewright.system.forks import ForkSafeLock
from tilewright.targets.cpu.runtime import pool_ir
from tilewright.targets.cpu.runtime.stage_ir import STAGE_EXPORT
from tilewright.targets.llvm.codegen import CodeTarget, CompileJob, JitLibrary, compile_objects

if TYPE_CHECKING:
    from tilewright.targets.llvm.cache import ObjectCache

logger = logging.getLogger(__name__)

IDLE_SPIN_NS = 1_000_000
"""How long an idle worker spins before it sleeps: covers the caller's own work between two inferences."""

CALLER_SPINS = 4000
"""Pauses of a caller that waits for the last chunks before it sleeps too."""

_STOP_TIMEOUT_S = 1.0
_HUGE_PAGE_BYTES = 2 << 20

# Python maps memory that forked children share: parent and child would write to the same outputs. Nor does
# Linux give such memory huge pages, unless it was told to.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


class AlignedBuffer:
    """Zeroed memory at a fixed address, aligned to a page, large ones to a huge page; freed when collected.

    A forked child has a copy of it.

    Raises:
        BudgetExceeded: the system does not give so much; says what for.
    """

    def __init__(self, size_bytes: int, purpose: str = "a buffer") -> None:
        self.size_bytes = size_bytes
        alignment = _HUGE_PAGE_BYTES if size_bytes >= _HUGE_PAGE_BYTES else mmap.PAGESIZE
        slack = alignment if alignment > mmap.PAGESIZE else 0
        try:
            self._map = mmap.mmap(-1, max(1, size_bytes) + slack, **_PRIVATE)
        except (OSError, OverflowError, MemoryError) as error:
            raise not_enough_memory(purpose, size_bytes, error) from error
        if slack and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # kernels without huge pages still give the memory
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self._view = (ctypes.c_char * len(self._map)).from_buffer(self._map)
        start = ctypes.addressof(self._view)
        self.address = start + (-start) % alignment


def not_enough_memory(purpose: str, size_bytes: int, error: Exception) -> BudgetExceeded:
    """What to tell a user when an allocation fails."""
    reason = getattr(error, "strerror", None) or "not enough memory"
    return BudgetExceeded(
        f"{purpose} takes {size_bytes / 2**20:,.0f} MiB, which the system does not give ({reason}): use a "
        "smaller batch or --shapes, fewer runs at a time, or a machine with more memory."
    )


@dataclass(frozen=True, slots=True, eq=False)
class RuntimeCode:
    """Entry points of the runtime in this process."""

    library: JitLibrary
    worker: Callable[[int, int], int]
    run: Callable[[int | None, int, int, int, int | None], int]
    fill_args: Callable[[int, int, int, int], None]
    loop: Callable[..., int]
    stop: Callable[[int], None]
    spin: Callable[[int], None]
    ticks: Callable[[], int]

    @property
    def imports(self) -> dict[str, int]:
        """What generated mains link against."""
        return {name: self.library[name] for name in ("tw_parallel_for", STAGE_EXPORT)}


def runtime_object(isa: CodeTarget, *, cache: ObjectCache | None = None) -> bytes:
    """The runtime's code for a machine, as stored code brings it along."""
    text = pool_ir.pool_ir(isa.triple, use_futex=pool_ir.has_futex(isa.triple))
    return compile_objects([CompileJob(text)], isa, cache=cache)[0]


def runtime_code(
    *, use_futex: bool | None = None, cache: ObjectCache | None = None, compiled: bytes | None = None
) -> RuntimeCode:
    """The runtime of this process, with a futex where the system has one.

    The first call loads what was `compiled` before, or else compiles it or reads it from `cache`; later calls
    give the same one.
    """
    futex = pool_ir.has_futex(processor_facts().triple) if use_futex is None else use_futex
    if futex not in _runtimes:
        with _pools_lock:
            if futex not in _runtimes:
                _runtimes[futex] = _load_runtime(futex, cache, compiled)
    return _runtimes[futex]


def _load_runtime(use_futex: bool, cache: ObjectCache | None, compiled: bytes | None) -> RuntimeCode:
    if compiled is None:
        from tilewright.targets.cpu.isa import host_isa

        isa = host_isa()
        job = CompileJob(pool_ir.pool_ir(isa.triple, use_futex=use_futex))
        (compiled,) = compile_objects([job], isa, cache=cache)
    imports = {} if use_futex else {"tw_yield": _yield_address()}
    library = JitLibrary([compiled], pool_ir.EXPORTS, imports=imports)
    pointer, i64, i32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    return RuntimeCode(
        library=library,
        worker=ctypes.CFUNCTYPE(i32, pointer, i64)(library["tw_worker"]),
        run=ctypes.CFUNCTYPE(i32, *[pointer] * 5)(library["tw_run"]),
        fill_args=ctypes.CFUNCTYPE(None, pointer, i64, pointer, pointer)(library["tw_fill_args"]),
        loop=ctypes.CFUNCTYPE(i64, *[pointer] * 4, i64, *[pointer] * 3, i64, i64, pointer, pointer)(
            library["tw_loop"]
        ),
        stop=ctypes.CFUNCTYPE(None, pointer)(library["tw_stop"]),
        spin=ctypes.CFUNCTYPE(None, i64)(library["tw_spin"]),
        ticks=ctypes.CFUNCTYPE(i64)(library["tw_ticks"]),
    )


class WorkerPool:
    """`num_threads - 1` workers and the block of memory they share with the calling thread.

    Made by `shared_pool`; made directly only to be stopped again.
    """

    def __init__(
        self, num_threads: int, *, idle_spin_ns: int = IDLE_SPIN_NS, runtime: RuntimeCode | None = None
    ) -> None:
        if not 2 <= num_threads <= MAX_THREADS:
            raise UsageError(f"A pool has 2 to {MAX_THREADS} threads, not {num_threads}.")
        self.num_threads = num_threads
        self.runtime = runtime or runtime_code()
        self._block = AlignedBuffer(pool_ir.SCRATCH_TABLE + 8 * num_threads)
        # Daemon threads may outlive the interpreter's teardown by an instant: their memory must too.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._block))
        self.address = self._block.address
        spin_limit = max(1, int(idle_spin_ns / _pause_ns(self.runtime)))
        ctypes.c_int64.from_address(self.address + pool_ir.SPIN_LIMIT).value = spin_limit
        ctypes.c_int64.from_address(self.address + pool_ir.WAIT_LIMIT).value = CALLER_SPINS
        ctypes.c_int64.from_address(self.address + pool_ir.NUM_THREADS).value = num_threads
        self._lock = threading.Lock()
        self._scratch: list[AlignedBuffer] = []
        self._scratch_bytes = 0
        self._stopped = False
        self.asleep_in_python: list[threading.Lock] = []
        self.ensure_scratch(64)
        self._threads = self._start_workers()

    def ensure_scratch(self, size_bytes: int) -> None:
        """Give every worker at least `size_bytes` of private memory.

        Earlier areas stay alive, because another executable's run may be using them; sizes double, so they
        add up to no more than the current ones.
        """
        if size_bytes <= self._scratch_bytes:
            return
        with self._lock:
            if size_bytes <= self._scratch_bytes:
                return
            new_bytes = max(size_bytes, 2 * self._scratch_bytes)
            num_workers = self.num_threads - 1
            buffers = [AlignedBuffer(new_bytes, "scratch of a worker thread") for _ in range(num_workers)]
            self._scratch += buffers
            for index, buffer in enumerate(buffers, start=1):
                slot = self.address + pool_ir.SCRATCH_TABLE + 8 * index
                ctypes.c_uint64.from_address(slot).value = buffer.address
            self._scratch_bytes = new_bytes  # last: now every worker has it

    def threads_by_scratch(self) -> dict[int, int]:
        """The numbers of workers by the addresses of all areas that they have had."""
        with self._lock:
            return {
                buffer.address: 1 + place % (self.num_threads - 1)
                for place, buffer in enumerate(self._scratch)
            }

    def wake(self) -> None:
        """Release workers that block in Python: systems without a futex, before a run."""
        while self.asleep_in_python:
            with contextlib.suppress(IndexError):  # another caller released the last one
                self.asleep_in_python.pop().release()

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> bool:
        """End the workers; False if some are still inside a kernel after `timeout_s`. A run in progress
        completes on its calling thread."""
        self._stopped = True
        self.runtime.stop(self.address)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            while thread.is_alive() and time.monotonic() < deadline:
                self.wake()
                thread.join(0.01)
        return not any(thread.is_alive() for thread in self._threads)

    def _start_workers(self) -> list[threading.Thread]:
        """Workers, or as many as the system starts: regions complete with any number, none included."""
        started: list[threading.Thread] = []
        for index in range(1, self.num_threads):
            thread = threading.Thread(
                target=self._serve, args=(index,), name=f"tilewright-{index}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                logger.warning("running on %d of %d threads: %s", index, self.num_threads, error)
                break
            started.append(thread)
        return started

    def _serve(self, index: int) -> None:
        while self.runtime.worker(self.address, index):
            if self._stopped:
                return
            gate = threading.Lock()
            gate.acquire()
            self.asleep_in_python.append(gate)
            gate.acquire()


_runtimes: dict[bool, RuntimeCode] = {}
_pools: dict[tuple[int, int], WorkerPool] = {}
_has_ended = False
_pools_lock = ForkSafeLock()


def shared_pool(num_threads: int, number: int = 0) -> WorkerPool | None:
    """This process's pool of that many threads (caller included), of those with so many the one of a number.

    None for one thread, which needs none, and once the interpreter ends, when runs are left to their callers.
    """
    if num_threads <= 1 or _has_ended:
        return None
    key = (num_threads, number)
    pool = _pools.get(key)
    if pool is None:
        with _pools_lock:
            pool = _pools.get(key)
            if pool is None:
                pool = _pools[key] = WorkerPool(num_threads)
    return pool


@functools.cache
def ticks_per_ns(runtime: RuntimeCode | None = None) -> float:
    """Rate of the counter that time stamps are taken with."""
    ticks = (runtime or runtime_code()).ticks
    start_ns, start = time.perf_counter_ns(), ticks()
    while time.perf_counter_ns() - start_ns < 5_000_000:
        pass
    end_ns, end = time.perf_counter_ns(), ticks()
    return (end - start) / (end_ns - start_ns)


@functools.cache
def _pause_ns(runtime: RuntimeCode) -> float:
    """Cost of one pause: 5 to 50 ns, by processor generation. The least of a few tries."""
    num_pauses = 2000
    best_ns = min(_timed_ns(lambda: runtime.spin(num_pauses)) for _ in range(5))
    return max(0.3, best_ns / num_pauses)


def _timed_ns(action: Callable[[], None]) -> int:
    start = time.perf_counter_ns()
    action()
    return time.perf_counter_ns() - start


def _yield_address() -> int:
    """`int f(void)` that gives up the time slice."""
    if os.name == "nt":
        return _address_of(ctypes.WinDLL("kernel32").SwitchToThread)  # type: ignore[attr-defined,unused-ignore]
    return _address_of(ctypes.CDLL(None).sched_yield)


def _address_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _forget_pools() -> None:
    """In a forked child: the parent's threads do not exist here."""
    _pools.clear()


def _stop_pools() -> None:
    global _has_ended
    _has_ended = True
    for pool in list(_pools.values()):
        pool.stop()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)
atexit.register(_stop_pools)
