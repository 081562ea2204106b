"""Examples 1 to 5 of section 3.7 as graphs, and what becomes of them on described machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.errors import InternalError
from tilewright.families import PARTITIONERS
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Graph, Node, Value
from tilewright.options import Options
from tilewright.partition.base import Partition, PartitionProblem, Reason, build_partition, make_subgraph
from tilewright.planning import Budget, Limits, Provenance
from tilewright.schedule.base import ScheduleProblem
from tilewright.schedule.virtual_units import VirtualUnits
from tilewright.target_ref import TargetRef
from tilewright.targets import find_target
from tilewright.targets.base import Backend

MACHINES: Mapping[str, str] = {"jetson-nano": "jetson-nano", "a310": "a310", "zcu102": "zcu102{dtype=int8}"}


@dataclass(frozen=True, slots=True)
class Example:
    """One example on one machine: the subgraphs, and what was decided by what costs."""

    name: str
    machine: str
    subgraphs: tuple[str, ...]
    said: str = ""


def examples() -> Iterator[Example]:
    """Every example on each machine."""
    for number, graph in (("1", _convolution()), ("2", _two_convolutions()), ("3 and 5", _inception())):
        for name, machine in MACHINES.items():
            partition = _partition(_backend(graph, machine))
            said = "; ".join(
                f"{d.producer.name} -> {d.consumer.name} {record.text(is_kept=d.reason.is_fused)}"
                for d in partition.decisions
                if (record := partition.fusion_of(d)) is not None and record.unit
            )
            yield Example(number, name, tuple(_names(partition)), said)
    graph = _branches()
    for name, machine in MACHINES.items():
        backend = _backend(graph, machine)
        partition = _partition(backend, "layerwise")
        alone = [backend.costs.kernel(subgraph).time_ns / 1e3 for subgraph in partition.subgraphs]
        for num_units in dict.fromkeys((1, backend.limits.num_cores)):
            limits = Limits(num_units, num_cores=num_units)
            problem = ScheduleProblem(partition, cost=backend.costs, limits=limits)
            schedule = VirtualUnits().solve(problem, Budget())
            yield Example(
                "4",
                f"{name}, {num_units} of its units",
                tuple(_names(partition)),
                f"{schedule.quality.cost / 1e3:.4g} us; the sum is {sum(alone):.4g} us, the longest "
                f"{max(alone):.4g} us",
            )
    yield from (_inside(num_units) for num_units in (1, 4))


def _inside(num_units: int) -> Example:
    """Example 4 within one operator, where only units bind: on one the sum, on four the longest.

    Each convolution fills the tile of one unit, as the example has it: larger ones would be faster on several
    units, one convolution after another.
    """
    graph, machine = _branches(channels=256, side=4, results=16), _with_units(num_units)
    backend = find_target(TargetRef("a310"), machine).backend(graph, Options())
    partition = build_partition(
        PartitionProblem(graph), [graph.nodes], lambda *_: Reason.CLUSTER, Provenance("drawn")
    )
    limits = Limits(num_units, num_cores=num_units)
    problem = ScheduleProblem(
        partition, machine, backend.costs, limits=limits, allows_lanes=backend.runs_lanes
    )
    schedule = VirtualUnits().solve(problem, Budget())
    alone = [backend.costs.kernel(make_subgraph(0, [node], graph)).time_ns / 1e3 for node in graph.nodes]
    layers = partition.layers_of(partition.subgraphs[0])
    lanes = "; ".join(
        " beside ".join("-".join(layers[i].nodes[0].name for i in lane.layers) for lane in section)
        for sections in schedule.stages[0].groups[0].inside
        for section in sections
    )
    return Example(
        "4, inside",
        f"units: {num_units}, memory that never binds",
        tuple(_names(partition)),
        f"{schedule.quality.cost / 1e3:.4g} us, {lanes or 'one after another'}; the sum is "
        f"{sum(alone):.4g} us, the longest {max(alone):.4g} us",
    )


def _with_units(num_units: int) -> Machine:
    """The A310 with so many cores, levels that pass data a thousand times as fast, and no overheads."""
    machine = load_preset("a310")
    levels = []
    for level in machine.levels:
        rates = ("read_bytes_per_cycle", "write_bytes_per_cycle", "read_bytes_per_s", "write_bytes_per_s")
        faster = {name: rate * 1000 for name in rates if (rate := getattr(level, name)) is not None}
        levels.append(level.model_copy(update=faster))
    of_core = max(place for place, level in enumerate(levels) if level.per == "core")
    levels[of_core] = levels[of_core].model_copy(update={"num_instances_per_parent": num_units})
    overheads = machine.overheads.model_copy(update={"kernel_launch_ns": 0.0, "barrier_ns": 0.0})
    changed = {"levels": tuple(levels), "num_cores_per_cluster": num_units, "overheads": overheads}
    return machine.model_copy(update=changed)


def _backend(graph: Graph, machine: str) -> Backend:
    options = Options(target=TargetRef.parse(machine))
    return find_target(options.target).backend(graph, options)


def _partition(backend: Backend, member: str = "pcgc{start=static-fusion}") -> Partition:
    answer = PARTITIONERS.get(member).solve(backend.partition_problem, Budget())
    if not isinstance(answer, Partition):
        raise InternalError(f"partitioner {member!r}: {answer}")
    return answer


def _names(partition: Partition) -> Iterator[str]:
    return ("-".join(node.name for node in subgraph.nodes) for subgraph in partition.subgraphs)


def _op(
    graph: Graph, kind: str, name: str, *operands: Value, channels: int | None = None, **attributes: Attribute
) -> Value:
    shape = operands[0].shape if channels is None else (1, channels, *operands[0].shape[2:])
    result = graph.value(f"{name}.out", DType.FLOAT32, shape)
    return graph.append(Node(kind, operands, [result], attributes, name=name)).output


def _conv(graph: Graph, name: str, x: Value, channels: int, kernel: int) -> Value:
    weight = graph.constant(np.full((channels, x.shape[1], kernel, kernel), 0.01, np.float32), f"{name}.w")
    return _op(graph, "Conv", name, x, weight, channels=channels, pads=(kernel // 2,) * 4)


def _input(graph: Graph, channels: int, side: int) -> Value:
    return graph.add_input(Value("x", DType.FLOAT32, (1, channels, side, side)))


def _convolution() -> Graph:
    graph = Graph("example_1")
    x = _conv(graph, "CONV3", _input(graph, 64, 56), 64, 3)
    scale, shift = (
        graph.constant(np.full((64, 1, 1), value, np.float32), name) for name, value in (("s", 2), ("b", 1))
    )
    normalised = _op(graph, "Add", "BN.shift", _op(graph, "Mul", "BN.scale", x, scale), shift)
    graph.outputs = [_op(graph, "Relu", "RELU", normalised)]
    return graph


def _two_convolutions() -> Graph:
    graph = Graph("example_2")
    x = _conv(graph, "CONV1", _input(graph, 64, 56), 64, 3)
    graph.outputs = [_conv(graph, "CONV2", x, 64, 3)]
    return graph


def _inception() -> Graph:
    """Figure 10: the part of GoogLeNet before its join."""
    graph = Graph("example_3")
    x = _input(graph, 192, 28)

    def conv(name: str, value: Value, channels: int, kernel: int) -> Value:
        return _op(graph, "Relu", f"RELU.{name}", _conv(graph, name, value, channels, kernel))

    pooled = _op(graph, "MaxPool", "MaxPool3", x, kernel_shape=(3, 3), pads=(1,) * 4, strides=(1, 1))
    branches = [
        conv("CONV1a", x, 64, 1),
        conv("CONV3", conv("CONV1b", x, 96, 1), 128, 3),
        conv("CONV5", conv("CONV1c", x, 16, 1), 32, 5),
        conv("CONV1d", pooled, 32, 1),
    ]
    graph.outputs = [_op(graph, "Concat", "Concat", *branches, channels=256, axis=1)]
    return graph


def _branches(channels: int = 192, side: int = 14, results: int | None = None) -> Graph:
    """The red box of figure 11: four convolutions of one value, all of so many `results` if it is given."""
    graph = Graph("example_4")
    x = _input(graph, channels, side)
    sizes = (("CONV1", 64, 1), ("CONV3", 64, 3), ("CONV5", 32, 5), ("CONV7", 16, 7))
    graph.outputs = [_conv(graph, name, x, results or made, kernel) for name, made, kernel in sizes]
    return graph
