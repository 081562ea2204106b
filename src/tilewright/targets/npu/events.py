"""Tasks that wait for each other on units that run one at a time: the core of the simulator."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

Priority = tuple[int, int, int]
"""Step, tile, phase: what was issued first runs first."""


@dataclass(frozen=True, slots=True)
class Run:
    """A task as it ran: on which unit, from when to when, of which step, doing what."""

    unit: str
    start_s: float
    end_s: float
    step: int
    what: str


@dataclass(slots=True, eq=False)
class _Task:
    unit: str
    seconds: float
    priority: Priority
    what: str
    num_waiting: int = 0
    followers: list[int] = field(default_factory=list)


class TaskGraph:
    """Tasks under construction, then run. A task is known by its number."""

    def __init__(self) -> None:
        self._tasks: list[_Task] = []

    def add(self, unit: str, seconds: float, priority: Priority, what: str, after: Iterable[int]) -> int:
        """A task that starts when all of `after` have ended and its unit has nothing earlier to do."""
        number = len(self._tasks)
        task = _Task(unit, seconds, priority, what)
        for earlier in set(after):
            self._tasks[earlier].followers.append(number)
            task.num_waiting += 1
        self._tasks.append(task)
        return number

    def run(self) -> list[Run]:
        """Every unit runs, of its tasks that wait for nothing, the one with the least priority.

        Tasks that take no time are left out of the answer. O(tasks log tasks); the same tasks, the same runs.
        """
        tasks = self._tasks
        waiting: dict[str, list[tuple[Priority, int]]] = {task.unit: [] for task in tasks}
        is_free = dict.fromkeys(waiting, True)
        events: list[tuple[float, int]] = []
        runs: list[Run] = []
        num_left = [task.num_waiting for task in tasks]
        for number, task in enumerate(tasks):
            if task.num_waiting == 0:
                heapq.heappush(waiting[task.unit], (task.priority, number))
        touched = list(waiting)
        now = 0.0
        while True:
            for unit in touched:
                if is_free[unit] and waiting[unit]:
                    _, number = heapq.heappop(waiting[unit])
                    is_free[unit] = False
                    heapq.heappush(events, (now + tasks[number].seconds, number))
            if not events:
                return runs
            # Everything that ends now has ended before anything else is chosen.
            now = events[0][0]
            touched = []
            while events and events[0][0] == now:
                _, number = heapq.heappop(events)
                task = tasks[number]
                if task.seconds:
                    runs.append(Run(task.unit, now - task.seconds, now, task.priority[0], task.what))
                is_free[task.unit] = True
                touched.append(task.unit)
                for follower in task.followers:
                    num_left[follower] -= 1
                    if num_left[follower] == 0:
                        unit = tasks[follower].unit
                        heapq.heappush(waiting[unit], (tasks[follower].priority, follower))
                        touched.append(unit)
