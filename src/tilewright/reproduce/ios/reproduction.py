"""The reproduction: what runs, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from types import TracebackType
from typing import Any

from tilewright.benchmark.engines import PEERS
from tilewright.reproduce.base import Effort, Exhibit, Reproduction, Update
from tilewright.reproduce.in_turns import Plans, measured
from tilewright.reproduce.ios import exhibits
from tilewright.reproduce.ios.counts import network_counts
from tilewright.reproduce.ios.example import example
from tilewright.reproduce.ios.frameworks import by_node_ns
from tilewright.reproduce.ios.measured import Measurements
from tilewright.reproduce.ios.paper import (
    BATCHES,
    DEVICES,
    FIGURE_1,
    FIGURE_11_BATCHES,
    FRAMEWORK_DEVICES,
    MAIN_DEVICE,
    NETWORKS,
    PRINTED,
    PRUNINGS,
    PublishedNetwork,
)
from tilewright.reproduce.ios.runs import BOTH, SEQUENTIAL, IosJob, IosOutcome, Transfer, outcome, transferred
from tilewright.reproduce.ios.trends import convolutions
from tilewright.reproduce.ios.tuned import tuned
from tilewright.reproduce.on_device import planned_on
from tilewright.reproduce.processes import process_pool

_OTHER_DEVICE = "k80"
_PRUNED = ("ios_inception_v3", "ios_nasnet_a")
_SPECIALISED = "ios_inception_v3"
_THREADS = (1, 2)
PLANS: Plans = {
    "Sequential": {"schedule": "sequential"},
    "Greedy": {"schedule": "greedy"},
    "IOS-Merge": {"schedule": "ios{strategy=merge}"},
    "IOS-Parallel": {"schedule": "ios{strategy=parallel}"},
    "IOS-Both": {"schedule": "ios"},
    "IOS-M": {"schedule": "ios{moldable=true}"},
}
"""The schedules that are compared on this processor and on a GPU."""


class Ios(Reproduction):
    """The reproduction."""

    title = "IOS: Inter-Operator Scheduler for CNN Acceleration (MLSys 2021)"
    measures_devices = True
    printed = PRINTED

    def run(self, effort: Effort, update: Update) -> Sequence[Exhibit]:
        """Every exhibit, in the paper's order."""
        chosen = NETWORKS[: ceil(effort.share * len(NETWORKS))]
        specialised = next((n for n in chosen if n.zoo_name == _SPECIALISED), chosen[0])
        with _Work(effort.num_processes, update) as work:
            for network in chosen:
                work.add(("counts", network.name), network_counts, network.zoo_name, network.block)
                work.add(("tuned", network.name), tuned, _on(network, MAIN_DEVICE))
                for device in FRAMEWORK_DEVICES:
                    work.add(("by node", device, network.name), by_node_ns, _on(network, device))
            work.add("example", example)
            for _, _, zoo_name, _ in FIGURE_1:
                work.add(("trends", zoo_name), convolutions, zoo_name)
            for job in _jobs(chosen, specialised):
                work.add(job, outcome, job)
            found = work.results()
            for key, transfer in _transfers(specialised, found).items():
                work.add(key, transferred, transfer)
            found |= work.results()
        # Alone on the processor, so that nothing disturbs what is measured.
        for threads in _THREADS:
            for network in chosen:
                update(f"{network.name} on this processor", 0, 1)
                found["here", threads, network.name] = measured(network.zoo_name, threads, PLANS, PEERS)
        if effort.device is not None:
            for network in chosen:
                update(f"{network.name} on {effort.device}", 0, 1)
                found["device", network.name] = planned_on(network.zoo_name, {}, effort.device, PLANS)
        return exhibits.all_of(_measurements(chosen, specialised, found))


@dataclass(slots=True)
class _Work:
    """Calls that several processes take; each is known by a key."""

    num_processes: int
    update: Update
    _calls: dict[Hashable, tuple[Callable[..., Any], tuple[Any, ...]]] = field(
        init=False, default_factory=dict
    )
    _pool: ProcessPoolExecutor | None = field(init=False, default=None)
    _ends: ExitStack = field(init=False, default_factory=ExitStack)

    def __enter__(self) -> _Work:
        if self.num_processes > 1:
            self._pool = self._ends.enter_context(process_pool(self.num_processes))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.__exit__(kind, error, trace)

    def add(self, key: Hashable, run: Callable[..., Any], *arguments: Any) -> None:
        self._calls[key] = run, arguments

    def results(self) -> dict[Hashable, Any]:
        calls, self._calls = self._calls, {}
        tasks: dict[Hashable, Callable[[], Any]] = {}
        for key, (run, arguments) in calls.items():
            if self._pool is None:
                tasks[key] = partial(run, *arguments)
            else:
                tasks[key] = self._pool.submit(run, *arguments).result
        found: dict[Hashable, Any] = {}
        for number, (key, result) in enumerate(tasks.items()):
            self.update(_words(key), number, len(tasks))
            found[key] = result()
        return found


def _words(key: Hashable) -> str:
    if isinstance(key, IosJob):
        return f"{key.network} on {key.machine} at batch {key.batch}"
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _jobs(chosen: Sequence[PublishedNetwork], specialised: PublishedNetwork) -> list[IosJob]:
    jobs = [_on(network, device) for device in DEVICES for network in chosen]
    jobs += [_pruned(n, pruning) for n in chosen if n.zoo_name in _PRUNED for pruning in PRUNINGS]
    jobs += [_at(specialised, batch) for batch in FIGURE_11_BATCHES]
    return list(dict.fromkeys(jobs))


def _on(network: PublishedNetwork, device: str) -> IosJob:
    return IosJob(network.zoo_name, device, 1)


def _pruned(network: PublishedNetwork, pruning: tuple[int, int]) -> IosJob:
    return IosJob(network.zoo_name, MAIN_DEVICE, 1, (SEQUENTIAL, BOTH), pruning)


def _at(network: PublishedNetwork, batch: int) -> IosJob:
    return IosJob(network.zoo_name, MAIN_DEVICE, batch, (SEQUENTIAL, BOTH))


def _transfers(network: PublishedNetwork, found: Mapping[Hashable, Any]) -> dict[Hashable, Transfer]:
    """Each schedule of table 3 on all that it is not made for, too."""
    by_batch = {str(batch): found[_at(network, batch)].schedules[BOTH] for batch in BATCHES}
    pair = (_OTHER_DEVICE, MAIN_DEVICE)
    by_device = {device: found[_on(network, device)].schedules[BOTH] for device in pair}
    transfers: dict[Hashable, Transfer] = {
        ("batch", batch): Transfer(network.zoo_name, MAIN_DEVICE, batch, by_batch) for batch in BATCHES
    }
    return transfers | {
        ("device", device): Transfer(network.zoo_name, device, 1, by_device) for device in pair
    }


def _measurements(
    chosen: Sequence[PublishedNetwork], specialised: PublishedNetwork, found: Mapping[Hashable, Any]
) -> Measurements:
    schedules: dict[tuple[str, str], IosOutcome] = {
        (device, network.name): found[_on(network, device)] for device in DEVICES for network in chosen
    }
    return Measurements(
        chosen,
        specialised,
        {network.name: found["counts", network.name] for network in chosen},
        schedules,
        {
            (network.name, pruning): found[_pruned(network, pruning)]
            for network in chosen
            if network.zoo_name in _PRUNED
            for pruning in PRUNINGS
        },
        {batch: found[_at(specialised, batch)] for batch in FIGURE_11_BATCHES},
        {
            (batch, int(made_for)): times
            for batch in BATCHES
            for made_for, times in found["batch", batch].items()
        },
        {
            (device, made_for): times
            for device in (_OTHER_DEVICE, MAIN_DEVICE)
            for made_for, times in found["device", device].items()
        },
        {(t, network.name): found["here", t, network.name] for t in _THREADS for network in chosen},
        {
            (d, network.name): found["by node", d, network.name]
            for d in FRAMEWORK_DEVICES
            for network in chosen
        },
        {network.name: found["tuned", network.name] for network in chosen},
        {zoo_name: found["trends", zoo_name] for _, _, zoo_name, _ in FIGURE_1},
        found["example"],
        {n.name: found["device", n.name] for n in chosen if ("device", n.name) in found},
    )
