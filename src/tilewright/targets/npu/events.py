"""Tasks that wait for each other on units that run one at a time: the core of the simulator."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Priority = tuple[int, int, int]
"""Step, tile, phase: what was issued first runs first."""

NOWHERE = ""
"""The unit of tasks that only wait: any number of them at once."""


@dataclass(frozen=True, slots=True)
class Run:
    """A task as it ran: on which unit, from when to when, of which step and tile, doing what.

    `what` is `fetch` (weights towards the shared buffer), `weights` (to the cores), `load`, `move` (between
    cores), `compute` or `store`. `tile` is -1 for what is brought before the first tile. `name` is the value
    or the weight that moves, `size_bytes` how much of it. `num_cores` is on how many cores it ran; 0: all of
    the unit. `part` is the number of what is loaded among the step's loads, of which several may be parts of
    one value.
    """

    unit: str
    start_s: float
    end_s: float
    step: int
    what: str
    tile: int = -1
    size_bytes: int = 0
    name: str = ""
    num_cores: int = 0
    part: int = 0


@dataclass(slots=True, eq=False)
class Task:
    """A task under construction: what it waits for, and who waits for it."""

    unit: str
    seconds: float
    priority: Priority
    what: str
    size_bytes: int
    name: str
    lane: int = 0
    num_cores: int = 0
    part: int = 0
    takes: int = 0
    gives: int = 0
    num_waiting: int = 0
    followers: list[int] = field(default_factory=list)


class TaskGraph:
    """Tasks under construction, then run. A task is known by its number.

    Cores may be held from one task to another, by as many kernels at a time as there are cores for. The units
    of these cores are a `lane` of their own: those of other lanes run at the same time.
    """

    def __init__(self, num_cores: int = 0) -> None:
        self._tasks: list[Task] = []
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
        return self._add(Task(unit, seconds, priority, what, size_bytes, name, lane, num_cores, part), after)

    def hold(self, num_cores: int, seconds: float, priority: Priority, after: Iterable[int]) -> int:
        """A task that starts when so many cores are free, and keeps them from others until `free`.

        Who waits with the least priority gets cores first, whatever others could make of them meanwhile.
        """
        return self._add(Task(NOWHERE, seconds, priority, "", 0, "", takes=num_cores), after)

    def free(self, num_cores: int, after: Iterable[int]) -> int:
        """A task that ends with the last of some, and gives cores back."""
        return self._add(Task(NOWHERE, 0.0, (0, 0, 0), "", 0, "", gives=num_cores), after)

    def _add(self, task: Task, after: Iterable[int]) -> int:
        tasks, waits_for = self._tasks, set(after)
        number = len(tasks)
        for earlier in waits_for:
            tasks[earlier].followers.append(number)
        task.num_waiting = len(waits_for)
        tasks.append(task)
        return number

    @property
    def tasks(self) -> Sequence[Task]:
        """The tasks so far, by their numbers."""
        return self._tasks

    @property
    def num_tasks(self) -> int:
        """How many tasks there are so far."""
        return len(self._tasks)

    def join(self, after: Iterable[int]) -> int:
        """A task that ends with the last of some; if there is one only, that one."""
        earlier = set(after)
        return earlier.pop() if len(earlier) == 1 else self.add(NOWHERE, 0.0, (0, 0, 0), "", earlier)

    def run(self) -> list[Run]:
        """Every unit runs, of its tasks that wait for nothing, the one with the least priority.

        Tasks that take no time, or no unit, are left out of the answer. O(tasks log tasks); the same tasks,
        the same runs.
        """
        tasks = self._tasks
        waiting: dict[tuple[str, int], list[tuple[Priority, int]]] = {(t.unit, t.lane): [] for t in tasks}
        is_free = dict.fromkeys(waiting, True)
        events: list[tuple[float, int]] = []
        runs: list[Run] = []
        num_left = [task.num_waiting for task in tasks]
        ready = [number for number, task in enumerate(tasks) if task.num_waiting == 0]
        touched: list[tuple[str, int]] = []
        for_cores: list[tuple[Priority, int]] = []
        num_free = self._num_cores
        started_s: dict[int, float] = {}
        now = 0.0
        while True:
            for number in ready:
                task = tasks[number]
                if task.takes:
                    heapq.heappush(for_cores, (task.priority, number))
                elif task.unit == NOWHERE:
                    heapq.heappush(events, (now + task.seconds, number))
                else:
                    heapq.heappush(waiting[task.unit, task.lane], (task.priority, number))
                    touched.append((task.unit, task.lane))
            while for_cores and tasks[for_cores[0][1]].takes <= num_free:
                _, number = heapq.heappop(for_cores)
                num_free -= tasks[number].takes
                heapq.heappush(events, (now + tasks[number].seconds, number))
            for unit in touched:
                if is_free[unit] and waiting[unit]:
                    _, number = heapq.heappop(waiting[unit])
                    is_free[unit] = False
                    started_s[number] = now
                    heapq.heappush(events, (now + tasks[number].seconds, number))
            if not events:
                self.end_s = now
                return runs
            # Everything that ends now has ended before anything else is chosen.
            now = events[0][0]
            ready, touched = [], []
            while events and events[0][0] == now:
                _, number = heapq.heappop(events)
                task = tasks[number]
                num_free += task.gives
                if task.unit != NOWHERE:
                    if task.seconds:
                        runs.append(_ran(task, started_s.pop(number), now))
                    is_free[task.unit, task.lane] = True
                    touched.append((task.unit, task.lane))
                for follower in task.followers:
                    num_left[follower] -= 1
                    if num_left[follower] == 0:
                        ready.append(follower)


def _ran(task: Task, start_s: float, end_s: float) -> Run:
    step, tile, _ = task.priority
    return Run(
        task.unit,
        start_s,
        end_s,
        step,
        task.what,
        max(tile, -1),
        task.size_bytes,
        task.name,
        task.num_cores,
        task.part,
    )
