"""What of a level of memory is free for weights and tiles on their way, handed out in program order.

Placed buffers lie at the beginning of a level. The rest of it is a pool, through which everything passes
that does not live there. The bytes of the pool are handed out in the order of the program, whatever the
times are: a task that takes some waits until tasks that had them before have ended. So what comes later never
delays what comes earlier, and at no time is more in the pool than it holds: of the takers that have started,
the last one has waited for every release that made room for it or for any one before it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tilewright.errors import InternalError
from tilewright.hardware.machine import Level, Machine
from tilewright.memory.scopes import ScopePlan
from tilewright.schedule.binding import Scope
from tilewright.targets.npu.events import TaskGraph


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Bytes of one cluster that placed buffers leave free: in all cores together, and in the shared buffer.

    0 of a shared buffer that the machine does not have.
    """

    local_bytes: int
    shared_bytes: int


def pool_sizes(machine: Machine, scopes: ScopePlan) -> PoolSizes:
    """What the buffers of a plan leave free on a machine."""
    whole = level_bytes(machine)
    return PoolSizes(
        whole.local_bytes - scopes.levels[Scope.LOCAL].peak_bytes,
        max(0, whole.shared_bytes - scopes.levels[Scope.SHARED].peak_bytes),
    )


def level_bytes(machine: Machine) -> PoolSizes:
    """What the levels of one cluster hold."""
    local, shared = machine.local, machine.shared
    local_bytes = 0 if local is None else _capacity_bytes(local) * machine.num_cores_per_cluster
    shared_bytes = 0
    if shared is not None:
        shared_bytes = int(_capacity_bytes(shared) * machine.num_instances_per_cluster(shared))
    return PoolSizes(local_bytes, shared_bytes)


def _capacity_bytes(level: Level) -> int:
    return _UNLIMITED_BYTES if level.capacity_bytes is None else level.capacity_bytes


_UNLIMITED_BYTES = 1 << 50


@dataclass(slots=True)
class _Kept:
    """A weight that stays for later steps: from which task on, and the task that read it last."""

    size_bytes: int
    ready: int
    last_read: int


class Pool:
    """The free bytes of one level while tasks are added."""

    def __init__(self, tasks: TaskGraph, name: str, capacity_bytes: int, after: Sequence[int] = ()) -> None:
        """The whole level is free, once all of `after` have ended."""
        self.name, self.capacity_bytes, self.free_bytes = name, capacity_bytes, capacity_bytes
        self._tasks = tasks
        self._released: deque[tuple[int, int]] = deque()  # bytes, and the task after which they are free
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # the one read longest ago first
        # Ends when everything that was taken over has been released.
        self._gate: int | None = tasks.join(after) if after else None

    def take(self, size_bytes: int, pinned: Collection[str] = ()) -> list[int]:
        """Hand out bytes; the tasks that their taker has to wait for.

        Weights that are kept leave for it, the one read longest ago first, those of `pinned` last of all.

        Raises:
            InternalError: more is taken at once than there is.
        """
        gates = [] if self._gate is None else [self._gate]
        while self.free_bytes < size_bytes:
            if self._released:
                freed_bytes, task = self._released.popleft()
            else:
                freed_bytes, task = self._evicted(size_bytes, pinned)
            self.free_bytes += freed_bytes
            gates.append(task)
        self.free_bytes -= size_bytes
        if gates:
            self._gate = self._tasks.join(gates)
        return [] if self._gate is None else [self._gate]

    def release(self, size_bytes: int, after: Iterable[int]) -> None:
        """Bytes that were taken are free again when tasks have ended."""
        if size_bytes:
            self._released.append((size_bytes, self._tasks.join(after)))

    def keep(self, key: str, size_bytes: int, ready: int) -> None:
        """What was taken stays under a name until others need its place; `ready` is what brought it."""
        self._kept[key] = _Kept(size_bytes, ready, ready)

    def forget(self, key: str) -> None:
        """What is kept leaves as soon as it has been read."""
        kept = self._kept.pop(key)
        self.release(kept.size_bytes, [kept.last_read])

    def find(self, key: str | None) -> int | None:
        """The task after which something that is kept is there; None if it is not."""
        kept = None if key is None else self._kept.get(key)
        if kept is None or key is None:
            return None
        self._kept.move_to_end(key)
        return kept.ready

    def read(self, key: str | None, task: int) -> None:
        """A task reads something that is kept."""
        if key is not None and key in self._kept:
            self._kept[key].last_read = task

    def _evicted(self, size_bytes: int, pinned: Collection[str]) -> tuple[int, int]:
        key = next((key for key in self._kept if key not in pinned), None)
        if key is None:
            raise InternalError(
                f"{self.name}: {size_bytes} bytes are wanted, {self.free_bytes} of "
                f"{self.capacity_bytes} are free."
            )
        kept = self._kept.pop(key)
        return kept.size_bytes, kept.last_read
