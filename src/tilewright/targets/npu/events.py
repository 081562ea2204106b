"""Tasks that wait for each other on units that run one at a time: the core of the simulator."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from math import ceil
from typing import Any, overload

import numpy as np

from tilewright.progress import checkpoint
from tilewright.targets.simulated import UnitRun

Times = list[tuple[int, float, float]]
"""Of tasks, by their numbers: when each starts and ends."""
Array = np.ndarray[Any, Any]
Priority = tuple[int, int, int]
"""Step, tile, phase: what was issued first runs first."""

_TICKS_PER_S = 2.0**59
"""Times are whole numbers of these ticks, so that sums below 15 ms are exact: what ends at one moment does so
wherever in a run it begins, and a part of a network takes as long alone as behind others."""
_MOMENTS_PER_CHECK = 1024
"""Moments at which tasks end, after so many of which the time is looked at."""
NOWHERE = ""
"""The unit of tasks that only wait: any number of them at once."""


class TaskGraph:
    """Tasks under construction, then run. A task is known by its number.

    Cores may be held from one task to another, by as many kernels at a time as there are cores for. The units
    of these cores are a `lane` of their own: those of other lanes run at the same time.

    What is known of tasks stands in columns, by their numbers: a search makes millions of them, and the
    collection of garbage would look at an object for each. `waits_for` are the tasks that the first one waits
    for, then those of the second one and so on, `num_waits` how many these are of each.
    """

    def __init__(self, num_cores: int = 0) -> None:
        self.units: list[str] = []
        self.lanes: list[int] = []
        self.seconds: list[float] = []
        self.priorities: list[Priority] = []
        self.sizes_bytes: list[int] = []
        self.num_waits: list[int] = []
        self.waits_for: list[int] = []
        self.takes: dict[int, int] = {}  # cores, by the tasks that take some
        self._gives: dict[int, int] = {}
        self.whats: list[str] = []
        self.names: list[str] = []
        self.nums_cores: list[int] = []
        self.parts: list[int] = []
        self._num_cores = num_cores
        self.end_s = 0.0

    def add(
        self,
        unit: str,
        seconds: float,
        priority: Priority,
        what: str,
        after: Iterable[int],
        size_bytes: int = 0,
        name: str = "",
        lane: int = 0,
        num_cores: int = 0,
        part: int = 0,
    ) -> int:
        """A task that starts when all of `after` have ended and its unit has nothing earlier to do."""
        number, earlier = len(self.units), after if isinstance(after, set) else set(after)
        self.units.append(unit)
        self.lanes.append(lane)
        self.seconds.append(ceil(seconds * _TICKS_PER_S) / _TICKS_PER_S)
        self.priorities.append(priority)
        self.sizes_bytes.append(size_bytes)
        self.num_waits.append(len(earlier))
        self.waits_for += earlier
        self.whats.append(what)
        self.names.append(name)
        self.nums_cores.append(num_cores)
        self.parts.append(part)
        return number

    def hold(self, num_cores: int, seconds: float, priority: Priority, after: Iterable[int]) -> int:
        """A task that starts when so many cores are free, and keeps them from others until `free`.

        The task of the least priority gets cores first, whatever others could make of them meanwhile.
        """
        task = self.add(NOWHERE, seconds, priority, "", after)
        self.takes[task] = num_cores
        return task

    def free(self, num_cores: int, after: Iterable[int]) -> int:
        """A task that ends with the last of some, and gives cores back."""
        task = self.add(NOWHERE, 0.0, (0, 0, 0), "", after)
        self._gives[task] = num_cores
        return task

    @property
    def num_tasks(self) -> int:
        """How many tasks there are so far."""
        return len(self.units)

    def join(self, after: Iterable[int]) -> int:
        """A task that ends with the last of some; if there is one only, that one."""
        earlier = set(after)
        return earlier.pop() if len(earlier) == 1 else self.add(NOWHERE, 0.0, (0, 0, 0), "", earlier)

    def moved_bytes(self, unit: str) -> int:
        """What all tasks of a unit move together, in any time at all."""
        columns = zip(self.units, self.sizes_bytes, self.seconds, strict=True)
        return sum(size_bytes for of, size_bytes, seconds in columns if of == unit and seconds)

    def followers(self) -> tuple[Array, Array]:
        """Where each task's followers begin, and all followers, those of the first task first."""
        earlier = np.array(self.waits_for, np.int64)
        later = np.repeat(np.arange(self.num_tasks), self.num_waits)
        counts = np.bincount(earlier, minlength=self.num_tasks)
        return np.concatenate([[0], np.cumsum(counts)]), later[np.argsort(earlier, kind="stable")]

    def run(self) -> Runs:
        """What every unit does when; see `times`."""
        return Runs(self, self.times())

    def times(self) -> Times:
        """When each task starts and ends, in the order in which they end.

        Every unit runs, of its tasks that wait for nothing, the one with the least priority. Tasks that take
        no time, or no unit, are left out of the answer. O(tasks log tasks); the same tasks, the same times.
        """
        seconds, takes, gives = self.seconds, self.takes, self._gives
        # Queues by number, NOWHERE's last; tasks by rank, so that heaps compare whole numbers.
        numbers: dict[tuple[str, int], int] = {}
        queues = [
            -1 if unit == NOWHERE else numbers.setdefault((unit, lane), len(numbers))
            for unit, lane in zip(self.units, self.lanes, strict=True)
        ]
        by_rank = sorted(range(self.num_tasks), key=self.priorities.__getitem__)
        ranks = [0] * self.num_tasks
        for rank, number in enumerate(by_rank):
            ranks[number] = rank
        starts, followers = (column.tolist() for column in self.followers())
        waiting: list[list[int]] = [[] for _ in numbers]
        is_free = [True] * len(numbers)
        events: list[tuple[float, int]] = []
        times: Times = []
        num_left = list(self.num_waits)
        ready = [number for number, count in enumerate(num_left) if count == 0]
        touched: list[int] = []
        for_cores: list[int] = []
        num_free = self._num_cores
        started_s = [0.0] * self.num_tasks
        now, num_moments = 0.0, 0
        push, pop = heapq.heappush, heapq.heappop
        while True:
            for number in ready:
                queue = queues[number]
                if queue >= 0:
                    push(waiting[queue], ranks[number])
                    touched.append(queue)
                elif number in takes:
                    push(for_cores, ranks[number])
                else:
                    push(events, (now + seconds[number], number))
            while for_cores and takes[by_rank[for_cores[0]]] <= num_free:
                number = by_rank[pop(for_cores)]
                num_free -= takes[number]
                push(events, (now + seconds[number], number))
            for queue in touched:
                if is_free[queue] and waiting[queue]:
                    number = by_rank[pop(waiting[queue])]
                    is_free[queue] = False
                    started_s[number] = now
                    push(events, (now + seconds[number], number))
            if not events:
                self.end_s = now
                return times
            num_moments += 1
            if num_moments % _MOMENTS_PER_CHECK == 0:
                checkpoint()
            # Everything that ends now has ended before anything else is chosen.
            now = events[0][0]
            ready, touched = [], []
            while events and events[0][0] == now:
                _, number = pop(events)
                queue = queues[number]
                if queue >= 0:
                    if seconds[number]:
                        times.append((number, started_s[number], now))
                    is_free[queue] = True
                    touched.append(queue)
                elif number in gives:
                    num_free += gives[number]
                for follower in followers[starts[number] : starts[number + 1]]:
                    num_left[follower] -= 1
                    if num_left[follower] == 0:
                        ready.append(follower)


class Runs(Sequence[UnitRun]):
    """What every unit does when, in the order in which it ends, of tasks at these `times`; made when it is
    first looked at, as of most plans that are compared only the time is wanted."""

    def __init__(self, tasks: TaskGraph, times: Times) -> None:
        self._tasks, self._times = tasks, times

    @cached_property
    def _made(self) -> tuple[UnitRun, ...]:
        tasks = self._tasks
        priorities, whats, names = tasks.priorities, tasks.whats, tasks.names
        units, sizes_bytes, nums_cores, parts = tasks.units, tasks.sizes_bytes, tasks.nums_cores, tasks.parts
        return tuple(
            UnitRun(
                units[n], start_s, end_s, priorities[n][0], whats[n], max(priorities[n][1], -1),
                sizes_bytes[n], names[n], nums_cores[n], parts[n],
            )
            for n, start_s, end_s in self._times
        )  # fmt: skip

    def busy_s(self, num_cores: int) -> dict[str, float]:
        """Seconds for which each unit runs, of one on some of so many cores in proportion."""
        units, nums_cores = self._tasks.units, self._tasks.nums_cores
        busy: dict[str, float] = {}
        for n, start_s, end_s in self._times:
            share = nums_cores[n] / num_cores if nums_cores[n] else 1.0
            busy[units[n]] = busy.get(units[n], 0.0) + (end_s - start_s) * share
        return busy

    def __len__(self) -> int:
        return len(self._times)

    @overload
    def __getitem__(self, place: int) -> UnitRun: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[UnitRun]: ...
    def __getitem__(self, place: int | slice) -> UnitRun | Sequence[UnitRun]:
        return self._made[place]

    def __iter__(self) -> Iterator[UnitRun]:
        return iter(self._made)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Runs) and self._made == other._made)

    __hash__ = None  # type: ignore[assignment]  # as of every list
