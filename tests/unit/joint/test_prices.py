"""Blocks priced by other processes: the same prices and plans, however many these are."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.launched_kernels import GRAPHS, RECIPES, planner_of, pricer_of, siblings

from tilewright import joint_prices
from tilewright.compiler import plan_optimised
from tilewright.hardware.presets import preset_text
from tilewright.joint.launched.content import Content, Numbered
from tilewright.joint.launched.search import LaunchedSearch
from tilewright.joint_prices import price_ahead
from tilewright.mapping.sweep import answered as answered_by
from tilewright.mapping.sweep import crews as sweep_crews
from tilewright.mapping.sweep.answered import TaskSettings
from tilewright.mapping.sweep.workers import Processes
from tilewright.options import Options
from tilewright.planning import Budget
from tilewright.target_ref import TargetRef

MACHINE = "v100"


def blocks(name: str) -> tuple[Numbered, list[Content]]:
    """Of all planners' plans."""
    graph = siblings() if name == "siblings" else GRAPHS[name]()
    planner, numbered = planner_of(graph, MACHINE), Numbered(graph)
    found: dict[Content, None] = {}
    for recipe in RECIPES:
        schedule = planner.schedule(planner.partition(recipe.partition), recipe)
        found.update(dict.fromkeys(numbered.contents(schedule)))
    return numbered, list(found)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*GRAPHS, "siblings"])
def test_a_task_gives_the_price_of_its_block(name: str) -> None:
    numbered, contents = blocks(name)
    pricer = pricer_of(planner_of(numbered.graph, MACHINE), numbered)
    asked = joint_prices._asked(Options(target=TargetRef.parse(MACHINE)))
    for content in pricer.unknown(contents):
        text = joint_prices._task(numbered, content, asked)
        assert joint_prices._cost_of(joint_prices.answer(text)) == pricer.cost(content)


def test_a_machine_whose_file_changes_is_asked_anew(tmp_path: Path) -> None:
    path, text = tmp_path / "v100.yaml", preset_text(MACHINE)
    numbered, contents = blocks("chain")
    options = Options(target=TargetRef.parse(str(path)))
    tasks = []
    for launch in ("5 us", "7 us"):
        path.write_text(text.replace("kernel_launch_ns: 5 us", f"kernel_launch_ns: {launch}"))
        tasks.append(joint_prices._task(numbered, contents[0], joint_prices._asked(options)))
    path.unlink()
    five, seven = (joint_prices._cost_of(joint_prices.answer(task)) for task in tasks)
    assert seven == pytest.approx(five + 2000)


def test_a_task_that_cannot_be_answered_says_why() -> None:
    assert "KeyError" in joint_prices.answer("{}")


class Thread:
    """A worker that answers here, after a while that differs."""

    def __init__(self, number: int) -> None:
        self.number = number

    def ask(self, task: str) -> str:
        time.sleep(0.001 * self.number)
        return joint_prices.answer(task)

    def end(self) -> None:
        pass

    def interrupt(self) -> None:
        pass


class Threads:
    """So many of them."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers, self.num_started = num_workers, 0

    def start(self) -> Thread:
        self.num_started += 1
        return Thread(self.num_started)

    def close(self) -> None:
        pass


@pytest.mark.sampled(1)
@pytest.mark.parametrize("num_trials", [1, 1000])
def test_the_answer_is_the_same_for_any_number_of_workers(
    num_trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answered_by, "crew_of", lambda workers, *_: Threads(int(workers)))
    graph = GRAPHS["fork"]()
    numbered = Numbered(graph)
    planner = planner_of(graph, MACHINE)
    plans = [
        tuple(numbered.contents(planner.schedule(planner.partition(r.partition), r))) for r in RECIPES[::6]
    ]

    def answer(workers: int) -> tuple[object, ...]:
        pricer, meter = pricer_of(planner, numbered), Budget(num_trials).start()
        if workers:
            every = (content for plan in plans for content in plan)
            price_ahead(pricer, every, planner.options, TaskSettings(str(workers)))
        search = LaunchedSearch.of(pricer, plans, meter)
        published: list[tuple[float, tuple[Content, ...]]] = []
        search.run(lambda contents: published.append((search.cost, tuple(contents))))
        return search.cost, search.best, published, pricer.num_simulated, meter.num_evaluations

    alone = answer(0)
    for workers in (1, 2, 3):
        assert answer(workers) == alone


@pytest.mark.slow
def test_whole_plans_are_the_same_for_any_number_of_workers() -> None:
    def figures(prices: TaskSettings | None) -> tuple[object, ...]:
        options = Options(target=TargetRef.parse(MACHINE), plan="joint")
        planned = plan_optimised(siblings(), options, portfolio=Budget(130), prices=prices)
        program = planned.program
        attempts = [(a.what, a.cost) for a in planned.attempts]
        kernels = [[node.name for node in s.nodes] for s in program.partition.subgraphs]
        return program.schedule.quality, program.schedule.stages, kernels, attempts, planned.num_untried

    alone = figures(None)
    for workers in ("1", "2", "3"):
        assert figures(TaskSettings(workers)) == alone


def test_a_killed_worker_loses_one_task_and_a_journal_keeps_the_rest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    crews: list[Processes] = []

    def crew(num_workers: int, limit_s: float, module: str) -> Processes:
        crews.append(Processes(num_workers, limit_s, module))
        return crews[-1]

    def kill_the_first() -> None:
        while not crews or not crews[0].started:
            time.sleep(0.01)
        os.kill(crews[0].started[0].pid, signal.SIGKILL)

    monkeypatch.setattr(sweep_crews, "Processes", crew)
    numbered, contents = blocks("fork")
    planner = planner_of(numbered.graph, MACHINE)
    pricer, journal = pricer_of(planner, numbered), tmp_path / "prices.jsonl"
    num_tasks = len(list(pricer.unknown(contents)))
    killer = threading.Thread(target=kill_the_first)
    killer.start()
    price_ahead(pricer, contents, planner.options, TaskSettings("1", journal))
    killer.join()
    assert len(crews[0].started) == 2, "another process took its place"
    assert len(journal.read_bytes().splitlines()) == num_tasks
    assert not list(pricer.unknown(contents))
    assert pricer.num_simulated == 0
    plain = pricer_of(planner, numbered)
    assert [pricer.cost(c) for c in contents] == [plain.cost(c) for c in contents]
    assert pricer.num_simulated == plain.num_simulated == num_tasks, "as many trials as without workers"
    again = pricer_of(planner, numbered)
    price_ahead(again, contents, planner.options, TaskSettings("1", journal))
    assert len(crews) == 1, "all prices were in the journal"
    assert [again.cost(c) for c in contents] == [plain.cost(c) for c in contents]


def test_a_block_that_a_worker_cannot_price_is_lost_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answered_by, "crew_of", lambda workers, *_: Threads(int(workers)))
    numbered, contents = blocks("fork")
    planner = planner_of(numbered.graph, MACHINE)
    pricer, asked = pricer_of(planner, numbered), []
    priced = joint_prices._priced

    def fail_first(document: dict[str, Any]) -> float:
        asked.append(document)
        if len(asked) == 1:
            raise MemoryError
        return priced(document)

    monkeypatch.setattr(joint_prices, "_priced", fail_first)
    price_ahead(pricer, contents, planner.options, TaskSettings("1"))
    assert len(asked) > 1
    assert len(list(pricer.unknown(contents))) == 1
    plain = pricer_of(planner, numbered)
    assert [pricer.cost(c) for c in contents] == [plain.cost(c) for c in contents]
