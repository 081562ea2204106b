"""What is run: recipes on networks of the zoo, in several processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from tilewright.reproduce.graphturbo.paper import MACHINE
from tilewright.reproduce.processes import process_pool

if TYPE_CHECKING:
    from tilewright.hardware.machine import Machine
    from tilewright.targets.npu.plan import SimulatedPlan
    from tilewright.targets.npu.recipes import Baseline

T = TypeVar("T")
R = TypeVar("R")

MASKED = "masks as inputs"
DEPTH_FIRST, BREADTH_FIRST, LARGEST = "depth first", "breadth first", "largest spilled"
PLANNED_FOR_ALL = "planned for the whole buffers"
CALIBRATION: Mapping[str, str] = {
    "as chosen": "graphturbo",
    "results never in place of operands": "graphturbo{in_place=false}",
    "one core's 1 MiB": "graphturbo{capacity_bytes=1048576}",
    "8 x 64 KB, as Eq. 2 prints": "graphturbo{capacity_bytes=524288}",
    "8 x 1.25 MiB, weights' share included": "graphturbo{alpha=1.25}",
    "any axis, not the batch first": "graphturbo{dims=any}",
    "every divisor as a factor": "graphturbo{all_factors=true}",
    "residual additions join their producers": "graphturbo{fuse_joins=true}",
    "layers alone, split as they need": "graphturbo{group=false}",
}
"""Readings of the algorithms where the text leaves more than one, as partitioners."""

_NOT_IN_RELAY = ("recognise-attention", "recognise-layer-norm")
"""The paper's networks come through Relay, which has these as several operators."""


@dataclass(frozen=True, slots=True)
class GraphTurboJob:
    """Recipes on a network of the zoo. `dtype` is what it is lowered to; `allocated` the share of the cores'
    buffers that buffers may take."""

    network: str
    size: Mapping[str, int]
    batch: int
    recipes: tuple[str, ...]
    dtype: str = "float16"
    allocated: float = 1.0


@dataclass(frozen=True, slots=True)
class GraphTurboOutcome:
    """One recipe on one network with `batch` samples for a cluster.

    `buffers` are those in main memory, the shared buffer and the cores'; `disagreed` and `spilled` say of
    those in the shared buffer why they are there. `stages` are shares of a ResNet's stages in which units are
    busy, `bindings` the axes and cores of each subgraph's result.
    """

    batch: int
    time_s: float
    per_s: float
    buffers: tuple[int, int, int]
    disagreed: int
    spilled: int
    spilled_bytes: int
    utilization: Mapping[str, float]
    gap: float
    plan_s: float
    factors: tuple[int, ...]
    num_operators: int
    num_layers: int
    num_steps: int
    outside_bytes: int
    energy_mj_per_sample: float
    stages: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    bindings: tuple[str, ...] = ()

    @property
    def num_subgraphs(self) -> int:
        """Into how many the network was cut."""
        return len(self.factors)


def each(run: Callable[[T], R], jobs: Sequence[T], num_processes: int) -> Iterator[R]:
    """What comes of each job, in order."""
    if num_processes <= 1:
        yield from map(run, jobs)
        return
    with process_pool(num_processes) as pool:
        yield from pool.map(run, jobs)


def outcomes(job: GraphTurboJob) -> dict[str, GraphTurboOutcome]:
    """Build a network and run recipes on it."""
    from tilewright import zoo
    from tilewright.compiler import plan_optimised
    from tilewright.frontend.onnx import load_onnx
    from tilewright.options import Options
    from tilewright.passes import run_passes
    from tilewright.target_ref import TargetRef
    from tilewright.targets import find_target
    from tilewright.targets.npu.backend import NpuBackend
    from tilewright.targets.npu.target import NpuTarget

    graph = load_onnx(zoo.build(job.network, batch=job.batch, **job.size))
    run_passes(graph, disabled=_NOT_IN_RELAY)
    machine = TargetRef(MACHINE).with_options(dtype=job.dtype, mapper="paper")
    known = _recipes()
    found: dict[str, GraphTurboOutcome] = {}
    for recipe in job.recipes:
        started = time.process_time()
        options = Options(target=machine) if recipe == "best" else known[recipe].options(machine)
        target = find_target(options.target)
        assert isinstance(target, NpuTarget)
        target = replace(target, machine=_with_less(target.machine, job.allocated))
        chosen = plan_optimised(graph, options, target=target)
        assert isinstance(chosen.backend, NpuBackend)
        planned = chosen.backend.generate(chosen.program).planned  # refused where a checker finds a fault
        plan_s = time.process_time() - started
        found[recipe] = _outcome(planned, target.machine, job.batch, plan_s)
    return found


def _recipes() -> dict[str, Baseline]:
    from tilewright.hardware.capacity import local_capacity_bytes
    from tilewright.hardware.presets import load_preset
    from tilewright.targets.npu.recipes import GRAPHTURBO, NAMED, Baseline

    whole_bytes = local_capacity_bytes(load_preset(MACHINE))
    return {
        **NAMED,
        MASKED: Baseline(replace(GRAPHTURBO, partition="graphturbo{side_inputs=true}")),
        DEPTH_FIRST: Baseline(replace(GRAPHTURBO, schedule="depth-first")),
        BREADTH_FIRST: Baseline(replace(GRAPHTURBO, schedule="breadth-first")),
        LARGEST: Baseline(replace(GRAPHTURBO, memory="largest-size")),
        PLANNED_FOR_ALL: Baseline(
            replace(GRAPHTURBO, partition=f"graphturbo{{capacity_bytes={whole_bytes}}}")
        ),
        **{name: Baseline(replace(GRAPHTURBO, partition=text)) for name, text in CALIBRATION.items()},
    }


def _with_less(machine: Machine, allocated: float) -> Machine:
    """The machine with this share of the cores' buffers for activations; weights keep theirs."""
    if allocated == 1.0 or machine.local is None:
        return machine
    whole = machine.local.capacity_bytes or 0
    kept = sum(share.capacity_bytes or 0 for share in machine.local.shares)
    smaller = machine.local.model_copy(update={"capacity_bytes": kept + int((whole - kept) * allocated)})
    levels = tuple(smaller if level.name == machine.local.name else level for level in machine.levels)
    return machine.model_copy(update={"levels": levels})


def _outcome(planned: SimulatedPlan, machine: Machine, batch: int, plan_s: float) -> GraphTurboOutcome:
    from tilewright.reproduce.graphturbo.utilization import busy_by_stage
    from tilewright.schedule.binding import Scope

    simulation, scopes, partition = planned.simulation, planned.scopes, planned.partition
    count = scopes.num_buffers
    shared = [buffer for buffer in scopes.buffers if buffer.scope is Scope.SHARED]
    traffic = simulation.traffic
    first = {node.subgraph_id: node.id for node in reversed(planned.instances.nodes) if node.inputs}
    return GraphTurboOutcome(
        batch,
        simulation.time_s,
        machine.num_clusters * batch / simulation.time_s,
        (count[Scope.MAIN], count[Scope.SHARED], count[Scope.LOCAL]),
        sum(not buffer.is_spilled for buffer in shared),
        sum(buffer.is_spilled for buffer in shared),
        scopes.spilled_bytes,
        simulation.utilization,
        simulation.gap,
        plan_s,
        tuple(split.num_instances for split in partition.splits),
        len(partition.graph.nodes),
        sum(len(partition.layers_of(subgraph)) for subgraph in partition.subgraphs),
        len(simulation.steps),
        traffic.main_read + traffic.main_written + traffic.shared_read + traffic.shared_written,
        simulation.energy_j * 1e3 / batch,
        busy_by_stage(simulation),
        tuple(
            "x".join(str(b) for b in planned.bindings.bindings[first[s.id]] if b > 1) or "1"
            for s in partition.subgraphs
            if s.id in first
        ),
    )
