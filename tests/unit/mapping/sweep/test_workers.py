"""Workers that answer tasks: any of them may die at any time, and every task is answered once."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field

import pytest

from tilewright.errors import InternalError
from tilewright.mapping.sweep.workers import MAX_DEATHS, answers
from tilewright.system.worker_process import NoWorker, WorkerDied

TASKS = {f"key {n}": f"task {n}" for n in range(40)}
ANSWERS = {key: text.replace("task", "answer") for key, text in TASKS.items()}


@dataclass
class Mortal:
    """Answers, or dies with a task of its choice."""

    crew: Mortals
    is_ended: threading.Event = field(default_factory=threading.Event)

    def ask(self, task: str) -> str:
        with self.crew.lock:
            self.crew.asked.append(task)
            dies = self.crew.dies(task)
        time.sleep(0.001)
        if dies:
            raise WorkerDied("SIGKILL")
        return task.replace("task", "answer")

    def end(self) -> None:
        self.is_ended.set()

    def interrupt(self) -> None:
        pass


class Mortals:
    """Three workers; of those that die, each task ends `deaths` of them, and `num_left` may follow."""

    def __init__(self, deaths: dict[str, int], num_left: int = 1000) -> None:
        self.deaths, self.num_left = dict(deaths), num_left
        self.asked: list[str] = []
        self.started: list[Mortal] = []
        self.lock = threading.Lock()
        self.num_workers = 3

    def dies(self, task: str) -> bool:
        left = self.deaths.get(task, 0)
        self.deaths[task] = left - 1
        return left > 0

    def start(self) -> Mortal:
        with self.lock:
            if len(self.started) == self.num_left:
                raise NoWorker("the cluster is gone")
            self.started.append(Mortal(self))
            return self.started[-1]

    def close(self) -> None:
        pass


@pytest.mark.parametrize("seed", range(5))
def test_every_task_is_answered_once_whoever_dies(seed: int) -> None:
    rng = random.Random(seed)
    crew = Mortals({text: rng.randrange(MAX_DEATHS) for text in rng.sample(sorted(TASKS.values()), 15)})
    num_deaths = sum(crew.deaths.values())
    found = list(answers(TASKS, crew))
    assert sorted(found) == sorted(ANSWERS.items())
    assert len(crew.asked) == len(TASKS) + num_deaths
    assert all(worker.is_ended.is_set() for worker in crew.started)


def test_a_task_that_ends_every_worker_ends_the_sweep() -> None:
    with pytest.raises(InternalError, match="3 workers ended with the same task, the last: SIG"):
        list(answers(TASKS, Mortals({"task 7": 99})))


def test_without_workers_there_is_an_error_and_what_was_answered() -> None:
    crew = Mortals({f"task {n}": 2 for n in range(20, 40)}, num_left=5)
    found: list[tuple[str, str]] = []
    with pytest.raises(NoWorker, match="the cluster is gone"):
        found.extend(answers(TASKS, crew))
    assert set(found) <= set(ANSWERS.items())
    assert len(found) >= 15


def test_who_stops_asking_leaves_no_worker_behind() -> None:
    crew = Mortals({})
    results = answers(TASKS, crew)
    next(results)
    results.close()  # type: ignore[attr-defined]  # a generator
    assert all(worker.is_ended.is_set() for worker in crew.started)
    assert threading.active_count() < 10
