"""The executor of a generated `main`: one ctypes call per inference, by any number of callers at a time."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tilewright.errors import InternalError, ModelClosed, UsageError
from tilewright.hardware.probe import affinity_cores, resolve_threads
from tilewright.targets.cpu.runtime.main_code import SLOT_BYTES, HostCall, MainCode
from tilewright.targets.cpu.runtime.pool import (
    AlignedBuffer,
    WorkerPool,
    runtime_code,
    shared_pool,
    ticks_per_ns,
)
from tilewright.targets.llvm.codegen import JitLibrary
from tilewright.targets.llvm.layout import REPORT_BYTES

_RETURN_POLL_S = 0.1

HostCallback = Callable[[Sequence[int]], None]
"""Called with the base addresses of the run, the arena's included."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Measured wall time of one step of one run, in nanoseconds; starts count from the first step's."""

    step_index: int
    start_ns: float
    duration_ns: float


@dataclass(frozen=True, slots=True)
class ChunkTime:
    """When and on which thread one chunk ran: of which of the main's launches; thread 0 is the caller's.

    Its times are in nanoseconds, from the start of the run's first step.
    """

    step_index: int
    launch_index: int
    chunk: int
    thread: int
    start_ns: float
    duration_ns: float


@dataclass(frozen=True, slots=True)
class RunTrace:
    """What each step of one run took, and of a main that is traced each chunk."""

    steps: tuple[StepTime, ...]
    chunks: tuple[ChunkTime, ...]


@dataclass(frozen=True, slots=True)
class CheckedIndex:
    """What a report is of: indices along an axis of what a node reads or writes; `where` names the node."""

    where: str
    axis: int
    extent: int


class RunContext:
    """What one run must have for itself: arena and reports, scratch, argument blocks, time stamps.

    `pool_number` is that of the pool that its runs use, if it is free.
    """

    def __init__(
        self, main: MainCode, arena_bytes: int, scratch_bytes: int, num_checks: int = 0, pool_number: int = 0
    ) -> None:
        self.pool_number = pool_number
        self.arena = AlignedBuffer(arena_bytes + REPORT_BYTES * num_checks, "the arena of a run")
        self.reports_address = self.arena.address + arena_bytes
        self.scratch = AlignedBuffer(max(64, scratch_bytes), "scratch of a run")
        self.args = AlignedBuffer(8 * max(1, len(main.arg_table)))
        self.stamps = AlignedBuffer(16 * main.num_steps) if main.profile else None
        self.slots = AlignedBuffer(SLOT_BYTES * main.num_slots) if main.num_slots else None
        self.bases = (ctypes.c_uint64 * (main.num_bases + (self.slots is not None)))(self.arena.address)
        if self.slots is not None:
            self.bases[main.num_bases] = self.slots.address
        self.bases_address = ctypes.addressof(self.bases)
        self.resolved_for: tuple[int, ...] | None = None

    @property
    def size_bytes(self) -> int:
        """Memory of this context."""
        return self.arena.size_bytes + self.scratch.size_bytes + self.args.size_bytes


class StepPlan:
    """What happens to the bases of a run after each step of a loop; the tables of `tw_loop`.

    Bases are numbered as a main's. `number_address` is where the number of a step is stored before it,
    `condition_address` where a byte says after it whether another follows, None if one always does.
    """

    def __init__(
        self,
        copies: Sequence[tuple[int, int, int, int]],
        moves: Sequence[tuple[int, int]],
        swaps: Sequence[tuple[int, int]],
        number_address: int,
        condition_address: int | None,
    ) -> None:
        """`copies` are of a base or, where that is -1, an address, to a base, and so many bytes; `moves` add
        to a base; `swaps` are of two bases."""
        self.copies, self.moves, self.swaps = tuple(copies), tuple(moves), tuple(swaps)
        self.number_address = number_address
        self.condition_address = condition_address
        self._tables = [
            (ctypes.c_int64 * max(1, sum(map(len, rows))))(*(n for row in rows for n in row))
            for rows in (self.copies, self.moves, self.swaps)
        ]
        counts = (len(self.copies), len(self.moves), len(self.swaps))
        plan = [
            n
            for table, count in zip(self._tables, counts, strict=True)
            for n in (ctypes.addressof(table), count)
        ]
        self._plan = (ctypes.c_int64 * len(plan))(*plan)
        self.address = ctypes.addressof(self._plan)


class Lifecycle(enum.Enum):
    """An executor runs while it is open; when it closes, runs in progress end, and then its code goes."""

    OPEN = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()


class _Returned:
    """Stands where the idle contexts were, once an executor closes: takes contexts back and gives none."""

    def __init__(self) -> None:
        self.contexts: list[RunContext] = []

    def append(self, context: RunContext) -> None:
        self.contexts.append(context)

    def pop(self) -> RunContext:
        raise IndexError

    def __len__(self) -> int:
        return 0


class Executor:
    """Runs a loaded main. Any number of threads may call `run` at once; results do not depend on how many.

    Runs that go on at a time use different pools of `num_threads`, as many as there are cores for; one that
    finds its pool busy uses its own thread alone. Contexts are
    reused, the last one first (its arena is in the cache); there are never more than `max_contexts`, so
    memory stays bounded and further callers wait for one. A run in progress is a context that is not idle:
    whoever closes the executor takes the idle ones away, so that no run begins, and waits for the others.
    """

    def __init__(
        self,
        main: MainCode,
        library: JitLibrary,
        *,
        num_threads: int | None = None,
        arena_bytes: int = 0,
        scratch_bytes: int = 0,
        callbacks: Sequence[HostCallback] = (),
        index_checks: Sequence[CheckedIndex] = (),
        max_contexts: int | None = None,
    ) -> None:
        """`index_checks` say what the reports are of that generated code writes behind the arena."""
        if len(callbacks) < main.num_callbacks:
            raise InternalError(
                f"Main calls {main.num_callbacks} host functions, {len(callbacks)} were given."
            )
        self._index_checks = tuple(index_checks)
        self._nothing_found = bytes(REPORT_BYTES * len(self._index_checks))
        self.main = main
        self.num_threads = resolve_threads(num_threads)
        self.arena_bytes = arena_bytes
        self.scratch_bytes = scratch_bytes
        self.max_contexts = max(2, affinity_cores()) if max_contexts is None else max(1, max_contexts)
        self._num_pools = max(1, affinity_cores() // self.num_threads)
        self._library = library
        self._runtime = runtime_code()
        self._segments: tuple[int | HostCallback, ...] = tuple(
            callbacks[part.callback_index] if isinstance(part, HostCall) else library[part]
            for part in main.segments
        )
        self.is_native = len(self._segments) == 1 and isinstance(self._segments[0], int)
        """Whether a run is one call of generated code, which `run_steps` can repeat."""
        table = [number for ref in main.arg_table for number in ref]
        self._table = (ctypes.c_int64 * max(1, len(table)))(*table)
        self._table_address = ctypes.addressof(self._table)
        self._lifecycle = Lifecycle.OPEN
        self._idle: list[RunContext] | _Returned
        self._last_idle: list[RunContext] | _Returned
        self._num_waiting = 0
        self._start_empty()
        self._pool(0)  # starts the workers, so that the first run does not
        _executors.add(self)

    def run(self, bases: Sequence[int]) -> None:
        """Run once on `bases`: the addresses of base 1, 2, ... in order.

        An index outside its axis, which the code notes as it runs, is an InputError at the end of the
        segment: the same one whatever the number of threads.

        The caller keeps the memory behind them alive, and aligned as its kernels expect. An interrupt takes
        effect when the running segment ends.

        Raises:
            ModelClosed: `close` was called.
            BudgetExceeded: no memory for another arena.
        """
        key = tuple(bases)
        if len(key) < self.main.num_bases - 1:
            raise InternalError(
                f"Main needs {self.main.num_bases - 1} base addresses, {len(key)} were given."
            )
        context = self._take()
        try:
            self._run_in(context, key)
        finally:
            self._give(context)

    def run_steps(self, bases: ctypes.Array[ctypes.c_uint64], plan: StepPlan, start: int, end: int) -> int:
        """Run for steps [start, end) of a loop; returns the step at which it ended.

        `bases` are all of the main's, that of the arena to be filled in, and others of the plan; they become
        those of the step after that.

        Raises:
            InputError, ModelClosed, BudgetExceeded: as `run`.
        """
        (segment,) = self._segments
        assert isinstance(segment, int)
        context = self._take()
        try:
            context.resolved_for = None
            bases[0] = context.arena.address
            pool = self._pool(context.pool_number)
            if pool is not None and pool.asleep_in_python:
                pool.wake()
            num_report_bytes = len(self._nothing_found)
            if num_report_bytes:
                ctypes.memset(context.reports_address, 0, num_report_bytes)
            done = self._runtime.loop(
                None if pool is None else pool.address,
                segment,
                context.scratch.address,
                self._table_address,
                len(self.main.arg_table),
                ctypes.addressof(bases),
                context.args.address,
                plan.address,
                start,
                end,
                plan.number_address,
                plan.condition_address,
            )
            if num_report_bytes:
                self._raise_reported(context)
            return done
        finally:
            self._give(context)

    def run_profiled(self, bases: Sequence[int]) -> tuple[StepTime, ...]:
        """Run once and return the time of every step; the main must be built with `profile`."""
        with self.context() as context:
            return self._step_times(self._stamped_run(context, bases))

    def run_traced(self, bases: Sequence[int]) -> RunTrace:
        """The same, with the time of every chunk, if the main was built with `trace`."""
        with self.context() as context:
            pairs = self._stamped_run(context, bases)
            return RunTrace(self._step_times(pairs), tuple(self._chunk_times(context, pairs)))

    def _stamped_run(self, context: RunContext, bases: Sequence[int]) -> list[tuple[int, int]]:
        """Run once; ticks before and after each step."""
        if context.stamps is None:
            raise UsageError("This executable has no time stamps: build it with profile=True.")
        host_times: list[tuple[int, int]] = []
        self._run_in(context, tuple(bases), host_times)
        stamps = (ctypes.c_int64 * (2 * self.main.num_steps)).from_address(context.stamps.address)
        calls = iter(host_times)
        pairs = zip(stamps[::2], stamps[1::2], strict=True)
        return [pair if pair[0] else next(calls) for pair in pairs]  # host calls store no stamp

    def _step_times(self, pairs: Sequence[tuple[int, int]]) -> tuple[StepTime, ...]:
        rate = ticks_per_ns(self._runtime)
        origin = pairs[0][0] if pairs else 0
        return tuple(
            StepTime(index, (start - origin) / rate, (end - start) / rate)
            for index, (start, end) in enumerate(pairs)
        )

    def _chunk_times(self, context: RunContext, pairs: Sequence[tuple[int, int]]) -> Iterator[ChunkTime]:
        """What the slots say."""
        if context.slots is None:
            return
        pool = self._pool(context.pool_number)
        threads = {} if pool is None else pool.threads_by_scratch()
        threads[context.scratch.address] = 0
        words = SLOT_BYTES // 8
        slots = (ctypes.c_int64 * (words * self.main.num_slots)).from_address(context.slots.address)
        noted = zip(slots[::words], slots[1::words], slots[2::words], strict=True)
        rate, origin = ticks_per_ns(self._runtime), pairs[0][0]
        for launch in self.main.traced:
            for chunk, (start, end, scratch) in zip(range(launch.num_chunks), noted, strict=False):
                yield ChunkTime(
                    launch.step_index,
                    launch.launch_index,
                    chunk,
                    threads[scratch],
                    (start - origin) / rate,
                    (end - start) / rate,
                )

    @contextlib.contextmanager
    def context(self) -> Iterator[RunContext]:
        """A context that no other run uses, returned at the end."""
        context = self._take()
        try:
            yield context
        finally:
            self._give(context)

    def close(self) -> None:
        """Let no run begin any more, wait until those in progress have ended, and unload the code.

        Idempotent; an interrupted wait can be taken up by another call.

        Raises:
            UsageError: called during a run of this thread (by a host function or a signal handler), which
                would wait for itself. Nothing has changed.
        """
        if self._lifecycle is Lifecycle.CLOSED:
            return
        if self._runs_in_this_thread():
            raise UsageError(
                "close() was called in the middle of a run by the same thread, as in a signal handler: it "
                "would wait for itself. Close the model when the run has returned."
            )
        with self._available:
            if self._lifecycle is Lifecycle.OPEN:
                self._lifecycle = Lifecycle.CLOSING
                self._last_idle, self._idle = self._idle, _Returned()
                self._available.notify_all()  # runs that wait for a context
            self._num_waiting += 1
            try:
                while self._lifecycle is Lifecycle.CLOSING and not self._all_returned():
                    # The timeout covers a context that an interrupt kept from being returned.
                    self._available.wait(_RETURN_POLL_S)
            finally:
                self._num_waiting -= 1
            if self._lifecycle is Lifecycle.CLOSING:
                self._unload()

    def _all_returned(self) -> bool:
        """While closing: whether no run has a context. One that began just before may still return its own to
        the list from which it took it."""
        while self._last_idle:
            with contextlib.suppress(IndexError):  # such a run was faster
                self._idle.append(self._last_idle.pop())
        assert isinstance(self._idle, _Returned)
        return len(self._idle.contexts) == len(self._contexts)

    def _unload(self) -> None:
        self._lifecycle = Lifecycle.CLOSED
        self._idle = _Returned()
        self._segments = ()  # host functions, and the bodies that they hold
        _executors.discard(self)
        self._library.close()

    def _runs_in_this_thread(self) -> bool:
        """Whether a caller of this function is a run. Runs keep no account of their threads, which would cost
        each of them: the stack knows."""
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            if frame.f_code in _RUNS and frame.f_locals.get("self") is self:
                return True
        return False

    def _run_in(
        self, context: RunContext, key: tuple[int, ...], host_times: list[tuple[int, int]] | None = None
    ) -> None:
        """Run all segments; `host_times` receives the ticks before and after each host call."""
        if context.resolved_for != key:
            self._resolve(context, key)
        pool = self._pool(context.pool_number)
        if pool is None:
            pool_address = None
        else:
            pool_address = pool.address
            if pool.asleep_in_python:
                pool.wake()
        run = self._runtime.run
        args, scratch = context.args.address, context.scratch.address
        stamps = None if context.stamps is None else context.stamps.address
        num_report_bytes = len(self._nothing_found)
        if num_report_bytes:
            ctypes.memset(context.reports_address, 0, num_report_bytes)
        for segment in self._segments:
            if isinstance(segment, int):
                run(pool_address, segment, args, scratch, stamps)
                if num_report_bytes:
                    self._raise_reported(context)
            elif host_times is None:
                segment((context.arena.address, *key))
            else:
                start = self._runtime.ticks()
                segment((context.arena.address, *key))
                host_times.append((start, self._runtime.ticks()))

    def _raise_reported(self, context: RunContext) -> None:
        """Raise for the first check that found an index outside its axis."""
        reports = ctypes.string_at(context.reports_address, len(self._nothing_found))
        if reports == self._nothing_found:
            return
        for check, (lowest, highest) in zip(
            self._index_checks, struct.iter_unpack("=qq", reports), strict=True
        ):
            if lowest or highest:
                from tilewright.ir.nest import outside_axis

                raise outside_axis(check.where, highest or lowest, check.axis, check.extent)

    def _resolve(self, context: RunContext, key: tuple[int, ...]) -> None:
        context.resolved_for = None  # an interrupt in between must not leave half-resolved blocks in use
        num_used = self.main.num_bases - 1
        context.bases[1 : 1 + num_used] = [*key[:num_used]]
        self._runtime.fill_args(
            self._table_address, len(self.main.arg_table), context.bases_address, context.args.address
        )
        context.resolved_for = key

    def _pool(self, number: int) -> WorkerPool | None:
        pool = shared_pool(self.num_threads, number)
        if pool is not None:
            pool.ensure_scratch(self.scratch_bytes)
        return pool

    def _take(self) -> RunContext:
        try:
            return self._idle.pop()
        except IndexError:
            return self._wait_for_context()

    def _wait_for_context(self) -> RunContext:
        with self._available:
            self._num_waiting += 1
            try:
                while True:
                    if self._lifecycle is not Lifecycle.OPEN:
                        raise ModelClosed
                    if self._idle:
                        with contextlib.suppress(IndexError):  # another thread was faster
                            return self._idle.pop()
                    if len(self._contexts) < self.max_contexts:
                        context = RunContext(
                            self.main,
                            self.arena_bytes,
                            self.scratch_bytes,
                            len(self._index_checks),
                            len(self._contexts) % self._num_pools,
                        )
                        self._contexts.add(context)
                        return context
                    # The timeout covers a context that an interrupt kept from being returned: it is collected
                    # and makes room for a new one, without a notification.
                    self._available.wait(_RETURN_POLL_S)
            finally:
                self._num_waiting -= 1

    def _give(self, context: RunContext) -> None:
        self._idle.append(context)
        if self._num_waiting:
            with self._available:
                self._available.notify()

    def _start_empty(self) -> None:
        self._idle = [] if self._lifecycle is Lifecycle.OPEN else _Returned()
        self._last_idle = []
        self._contexts: weakref.WeakSet[RunContext] = weakref.WeakSet()
        self._available = threading.Condition()
        self._num_waiting = 0


_executors: weakref.WeakSet[Executor] = weakref.WeakSet()
_RUNS = tuple(
    way.__code__ for way in (Executor.run, Executor.run_steps, Executor.run_profiled, Executor.run_traced)
)


def _reset_executors() -> None:
    """In a forked child: contexts in use belonged to threads that do not exist here."""
    for executor in list(_executors):
        executor._start_empty()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_executors)
