"""Stages of kernels that are launched separately, timed from the tasks of each kernel.

What a kernel's tasks are does not depend on what runs beside it: they are made once, and a stage is the run
of those of all its kernels, with the same answer as `TaskGraph.times`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.extras import is_importable
from tilewright.hardware.machine import Machine
from tilewright.machine_code import compiled
from tilewright.targets.npu.events import NOWHERE, TaskGraph
from tilewright.targets.npu.ports import DMA

Array = np.ndarray[Any, Any]

_WAITS, _MAIN = -1, 0
"""Queues of what takes no unit, and of main memory's port, which all kernels share; a kernel's own follow."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelTasks:
    """The tasks of one kernel, the first of which takes its cores, the last gives them back.

    `ranks` is the order among tasks that wait for the same unit. Followers of task i are
    `followers[starts[i]:starts[i + 1]]`.
    """

    num_cores: int
    num_queues: int
    seconds: Array
    queues: Array
    ranks: Array
    num_waiting: Array
    starts: Array
    followers: Array

    @property
    def main_seconds(self) -> float:
        """How long it keeps main memory busy."""
        return float(self.seconds[self.queues == _MAIN].sum())


def tasks_of_kernel(graph: TaskGraph) -> KernelTasks:
    """All tasks of the only kernel of a graph."""
    # Lanes of the kernel have units of their own.
    places: dict[tuple[str, int], int] = {}
    queues = [
        _WAITS
        if unit == NOWHERE
        else _MAIN
        if unit == DMA
        else places.setdefault((unit, lane), len(places) + _MAIN + 1)
        for unit, lane in zip(graph.units, graph.lanes, strict=True)
    ]
    ranks = np.empty(graph.num_tasks, np.int64)
    # Of equal priorities the task with the least number comes first.
    ranks[sorted(range(graph.num_tasks), key=graph.priorities.__getitem__)] = np.arange(graph.num_tasks)
    starts, followers = graph.followers()
    return KernelTasks(
        graph.takes[0],
        len(places),
        np.array(graph.seconds),
        np.array(queues, np.int64),
        ranks,
        np.array(graph.num_waits, np.int64),
        starts,
        followers,
    )


@dataclass(slots=True)
class _Timed:
    """How many tasks of single kernels were timed: with many of them, compiled code is worth its start."""

    num_tasks: int = 0


_TIMED, _MANY_TASKS = _Timed(), 100_000


def kernel_seconds(kernel: KernelTasks, graph: TaskGraph, machine: Machine) -> float:
    """How long a kernel takes alone, whose tasks are those of a graph."""
    _TIMED.num_tasks += graph.num_tasks
    if _TIMED.num_tasks > _MANY_TASKS and is_importable("numba"):
        return stage_seconds([[kernel]], machine)
    graph.times()
    return graph.end_s


def stage_seconds(groups: Sequence[Sequence[KernelTasks]], machine: Machine) -> float:
    """How long groups of kernels take that run at the same time, each of them kernel after kernel."""
    kernels = [kernel for group in groups for kernel in group]
    sizes = [len(kernel.seconds) for kernel in kernels]
    firsts = np.cumsum([0, *sizes])
    num_own = np.cumsum([0, *(kernel.num_queues for kernel in kernels)])
    after = np.full(len(kernels), -1, np.int64)  # the kernel after this one in its group
    is_first = np.ones(len(kernels), np.bool_)
    place = 0
    for group in groups:
        after[place : place + len(group) - 1] = np.arange(place + 1, place + len(group))
        is_first[place + 1 : place + len(group)] = False
        place += len(group)
    end_s = _run(
        machine.num_cores_per_cluster,
        firsts,
        after,
        is_first,
        np.array([kernel.num_cores for kernel in kernels], np.int64),
        np.concatenate([kernel.seconds for kernel in kernels]),
        np.concatenate(
            [
                np.where(kernel.queues > _MAIN, kernel.queues + offset, kernel.queues)
                for kernel, offset in zip(kernels, num_own, strict=False)
            ]
        ),
        np.concatenate([kernel.ranks + first for kernel, first in zip(kernels, firsts, strict=False)]),
        np.concatenate([kernel.num_waiting for kernel in kernels]),
        np.concatenate([kernel.starts[:-1] for kernel in kernels]),
        np.concatenate([kernel.starts[1:] for kernel in kernels]),
        np.concatenate([kernel.followers for kernel in kernels]),
        np.cumsum([0, *(len(kernel.followers) for kernel in kernels)]),
        int(num_own[-1]) + 1,
    )
    return float(end_s) + (machine.overheads.join_ns * 1e-9 if len(groups) > 1 else 0.0)


@compiled
def _push(heap: Array, size: int, keys: Array, item: int) -> None:
    """Adds an item to a heap of so many, the least key first."""
    place = size
    while place > 0:
        parent = (place - 1) // 2
        if keys[heap[parent]] <= keys[item]:
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = item


@compiled
def _pop(heap: Array, size: int, keys: Array) -> int:
    """Takes the item with the least key from a heap of so many."""
    least = heap[0]
    item = heap[size - 1]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size - 1:
            break
        if child + 1 < size - 1 and keys[heap[child + 1]] < keys[heap[child]]:
            child += 1
        if keys[item] <= keys[heap[child]]:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = item
    return int(least)


@compiled
def _run(
    num_free: int,
    firsts: Array,
    after: Array,
    is_first: Array,
    num_cores: Array,
    seconds: Array,
    queues: Array,
    ranks: Array,
    num_left: Array,
    starts: Array,
    stops: Array,
    followers: Array,
    first_followers: Array,
    num_queues: int,
) -> float:
    """When the last task ends. Every unit takes, of what waits for nothing, the least rank."""
    num_kernels, num_tasks = len(num_cores), len(seconds)
    kernel_of = np.empty(num_tasks, np.int64)
    for kernel in range(num_kernels):
        kernel_of[firsts[kernel] : firsts[kernel + 1]] = kernel
        num_left[firsts[kernel]] = 0 if is_first[kernel] else 1
    # Each queue has a part of one array, as long as it can get.
    offsets = np.zeros(num_queues + 1, np.int64)
    for task in range(num_tasks):
        if queues[task] >= 0:
            offsets[queues[task] + 1] += 1
    for queue in range(num_queues):
        offsets[queue + 1] += offsets[queue]
    waiting = np.empty(num_tasks, np.int64)
    sizes = np.zeros(num_queues, np.int64)
    is_busy = np.zeros(num_queues, np.bool_)
    for_cores = np.empty(num_kernels, np.int64)
    num_for_cores = 0
    events = np.empty(num_tasks, np.int64)
    num_events = 0
    ends = np.zeros(num_tasks)
    ready = np.empty(num_tasks, np.int64)
    num_ready = 0
    touched = np.empty(2 * num_tasks + 2, np.int64)
    num_touched = 0
    now = 0.0
    for task in range(num_tasks):
        if num_left[task] == 0:
            ready[num_ready] = task
            num_ready += 1
    while True:
        for i in range(num_ready):
            task = ready[i]
            if task == firsts[kernel_of[task]]:
                _push(for_cores, num_for_cores, ranks, task)
                num_for_cores += 1
            elif queues[task] < 0:
                ends[task] = now + seconds[task]
                _push(events, num_events, ends, task)
                num_events += 1
            else:
                queue = queues[task]
                _push(waiting[offsets[queue] : offsets[queue + 1]], sizes[queue], ranks, task)
                sizes[queue] += 1
                touched[num_touched] = queue
                num_touched += 1
        while num_for_cores > 0 and num_cores[kernel_of[for_cores[0]]] <= num_free:
            task = _pop(for_cores, num_for_cores, ranks)
            num_for_cores -= 1
            num_free -= num_cores[kernel_of[task]]
            ends[task] = now + seconds[task]
            _push(events, num_events, ends, task)
            num_events += 1
        for i in range(num_touched):
            queue = touched[i]
            if sizes[queue] > 0 and not is_busy[queue]:
                task = _pop(waiting[offsets[queue] : offsets[queue + 1]], sizes[queue], ranks)
                sizes[queue] -= 1
                is_busy[queue] = True
                ends[task] = now + seconds[task]
                _push(events, num_events, ends, task)
                num_events += 1
        if num_events == 0:
            return now
        now = ends[events[0]]
        num_ready = num_touched = 0
        while num_events > 0 and ends[events[0]] == now:
            task = _pop(events, num_events, ends)
            num_events -= 1
            kernel = kernel_of[task]
            if queues[task] >= 0:
                is_busy[queues[task]] = False
                touched[num_touched] = queues[task]
                num_touched += 1
            if task == firsts[kernel + 1] - 1:
                num_free += num_cores[kernel]
                if after[kernel] >= 0:
                    ready[num_ready] = firsts[after[kernel]]
                    num_ready += 1
            base = first_followers[kernel]
            for place in range(base + starts[task], base + stops[task]):
                follower = firsts[kernel] + followers[place]
                num_left[follower] -= 1
                if num_left[follower] == 0:
                    ready[num_ready] = follower
                    num_ready += 1
