"""What is run: recipes on networks of the zoo, in several processes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

from tilewright.reproduce.graphturbo.paper import MACHINE


@dataclass(frozen=True, slots=True)
class Outcome:
    """One recipe on one network: samples per second of all clusters, buffers by level, busy shares."""

    per_s: float
    buffers: tuple[int, int, int]
    utilization: Mapping[str, float]
    gap: float
    plan_s: float
    num_subgraphs: int
    energy_mj_per_sample: float


_NOT_IN_RELAY = ("recognise-attention", "recognise-layer-norm")
"""The paper's networks come through Relay, which has these as several operators."""

Job = tuple[str, dict[str, int], int, tuple[str, ...]]
"""A network of the zoo, its size, samples for a cluster, recipes."""

MASKED = "masks as inputs"
RECIPES = ("astitch", "variant-1", "variant-2", "variant-3", "variant-4", "best", MASKED)


def each(jobs: Sequence[Job], num_processes: int) -> Iterator[dict[str, Outcome]]:
    """The outcomes of each job, in order, by recipe."""
    if num_processes <= 1:
        for job in jobs:
            yield simulated(job)
        return
    with ProcessPoolExecutor(num_processes, get_context("spawn")) as pool:
        yield from pool.map(simulated, jobs)


def simulated(job: Job) -> dict[str, Outcome]:
    """Build a network and run recipes on it."""
    from tilewright import zoo
    from tilewright.compiler import plan_optimised
    from tilewright.frontend.onnx import load_onnx
    from tilewright.hardware.presets import load_preset
    from tilewright.options import Options
    from tilewright.passes import run_passes
    from tilewright.schedule.binding import Scope
    from tilewright.targets.npu.backend import NpuBackend
    from tilewright.targets.npu.recipes import GRAPHTURBO, NAMED, Baseline

    name, size, batch, recipes = job
    graph = load_onnx(zoo.build(name, batch=batch, **size))
    run_passes(graph, disabled=_NOT_IN_RELAY)
    machine = load_preset(MACHINE)
    aside = Baseline(replace(GRAPHTURBO, partition="graphturbo{side_inputs=true}"))
    known = {**NAMED, MASKED: aside}
    found: dict[str, Outcome] = {}
    for recipe in recipes:
        started = time.perf_counter()
        options = Options(target=MACHINE) if recipe == "best" else known[recipe].options(MACHINE)
        chosen = plan_optimised(graph, options)
        assert isinstance(chosen.backend, NpuBackend)
        planned = chosen.backend.generate(chosen.program).planned
        plan_s = time.perf_counter() - started
        simulation, buffers = planned.simulation, planned.scopes.num_buffers
        found[recipe] = Outcome(
            machine.num_clusters * batch / simulation.time_s,
            (buffers[Scope.MAIN], buffers[Scope.SHARED], buffers[Scope.LOCAL]),
            simulation.utilization,
            simulation.gap,
            plan_s,
            len(planned.partition.subgraphs),
            simulation.energy_j * 1e3 / batch,
        )
    return found
