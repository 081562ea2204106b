"""Section 5.6: ResNet18-Tailor on a GPU, whose kernels are launched one by one.

Three schedules of its eight convolutions: each a kernel; pairs of them fused, as CUTLASS does it, a few
images at a time so that what is in between stays in the multiprocessors; and the first two pairs in two
instances each, of which the second pair's follows the first's at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.ir.graph import Graph
    from tilewright.partition.base import Partition
    from tilewright.partition.graphturbo.regroup import Regrouper
    from tilewright.schedule.base import Instance
    from tilewright.targets.npu.backend import NpuBackend

GPU = "a100"
TAILOR = "resnet18_tailor"
_NUM_SPLIT_PAIRS = 2


@dataclass(frozen=True, slots=True)
class GpuTimes:
    """Milliseconds kernel by kernel, with pairs fused, and with the first pairs in two instances each."""

    layers: float
    pairs: float
    instances: float


AS_THE_PAPER = "phases in sequence"
WAYS: Mapping[str, tuple[str, ...]] = {
    AS_THE_PAPER: ("overlap=none",),
    "overlapped": (),
    "one program, values in L2": ("launches=once",),
}
"""How the machine runs them: without overlap, as described, and as one program."""


def gpu_times(images: int) -> dict[str, GpuTimes]:
    """The three schedules for a number of images, by way."""
    from tilewright import zoo
    from tilewright.frontend.onnx import load_onnx
    from tilewright.passes import run_passes

    graph = load_onnx(zoo.build(TAILOR, batch=images))
    run_passes(graph)
    return {
        way: _times(graph, f"{GPU}{{{', '.join(('dtype=float16', *execution))}}}")
        for way, execution in WAYS.items()
    }


def _times(graph: Graph, machine: str) -> GpuTimes:
    from tilewright.options import Options
    from tilewright.partition.graphturbo import GraphTurbo
    from tilewright.partition.graphturbo.regroup import Regrouper
    from tilewright.target_ref import TargetRef
    from tilewright.targets import find_target
    from tilewright.targets.npu.backend import NpuBackend

    options = Options(target=TargetRef.parse(machine))
    backend = find_target(options.target).backend(graph, options)
    assert isinstance(backend, NpuBackend)
    regrouper = Regrouper(backend.partition_problem, GraphTurbo())
    count = len(regrouper.layers)
    alone = _partition(regrouper, [(i,) for i in range(count)])
    pairs = _partition(regrouper, [(i, i + 1) for i in range(0, count, 2)])
    return GpuTimes(
        _milliseconds(backend, alone, _in_turn),
        _milliseconds(backend, pairs, _in_turn),
        _milliseconds(backend, pairs, _by_halves),
    )


def _partition(regrouper: Regrouper, groups: Sequence[tuple[int, ...]]) -> Partition:
    """Groups of layers, each in as few slices as fit; a layer that is alone whole, as one kernel."""
    from tilewright.partition.footprint import joined, single
    from tilewright.partition.graphturbo.regroup import Group
    from tilewright.partition.graphturbo.split import best_of
    from tilewright.partition.split import WHOLE

    found: list[Group] = []
    for group in groups:
        parts = [single(regrouper.layers[i], i) for i in group]
        options = regrouper.splitter.options(joined(parts, regrouper.results_of(group)))
        best = None if len(group) == 1 else best_of(options)
        found.append(Group(group, WHOLE if best is None else best.split))
    partition = regrouper.partition(tuple(found))
    assert partition is not None
    return partition


def _milliseconds(
    backend: NpuBackend, partition: Partition, order: Callable[[Partition], Iterator[Instance]]
) -> float:
    """The time of instances in an order."""
    from tilewright.planning import Provenance
    from tilewright.schedule.base import Group, ScheduleProblem, Stage, build_schedule
    from tilewright.targets.npu.recipes import GRAPHTURBO

    problem = ScheduleProblem(partition, cost=backend.costs, allows_slices=True)
    stages = tuple(Stage((Group((instance,)),)) for instance in order(partition))
    schedule = build_schedule(problem, stages, Provenance("as in figure 18"), partition.splits)
    return backend.plan(schedule, GRAPHTURBO).simulation.time_s * 1e3


def _in_turn(partition: Partition) -> Iterator[Instance]:
    """Subgraph after subgraph."""
    yield from _slices(partition, range(len(partition.subgraphs)), 0, 1)


def _by_halves(partition: Partition) -> Iterator[Instance]:
    """The first subgraphs for half of the images, then for the other half; then the others."""
    first = range(_NUM_SPLIT_PAIRS)
    for half in range(2):
        yield from _slices(partition, first, half, 2)
    yield from _slices(partition, range(_NUM_SPLIT_PAIRS, len(partition.subgraphs)), 0, 1)


def _slices(partition: Partition, subgraphs: Sequence[int], part: int, num_parts: int) -> Iterator[Instance]:
    """One of `num_parts` parts of the slices of each of these subgraphs."""
    from tilewright.schedule.base import Instance

    for number in subgraphs:
        count = partition.splits[number].num_instances
        yield from (
            Instance(number, i) for i in range(count * part // num_parts, count * (part + 1) // num_parts)
        )
