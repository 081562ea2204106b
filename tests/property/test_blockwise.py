"""Subgraphs computed block by block, under any partition and schedule: the values are the interpreter's, and
the account that the program gives of itself is true."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.property.mixed_graphs import mixed_graphs
from tests.property.strategies import Draw

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.options import Options
from tilewright.partition import PARTITIONERS, PartitionProblem, check_partition
from tilewright.partition.base import Partition, Reason, make_subgraph
from tilewright.partition.form import Blocking, Form, KernelForm
from tilewright.partition.merge_chains import Chain, merge_chains
from tilewright.partition.random import RandomPartitioner
from tilewright.planning import Budget, Infeasible, Limits
from tilewright.program import Program
from tilewright.schedule import SCHEDULERS, ScheduleProblem, check_schedule
from tilewright.schedule.random import RandomScheduler
from tilewright.targets.cpu.image.code import CpuCode
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.lower.lowered import KernelLaunch, LoweredPartition
from tilewright.targets.cpu.target import CpuTarget

OPTIONS = Options(no_cache=True, threads=2)
COMMON = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck), print_blob=False
)


class Branches:
    """Convolutions and pools in rows that fork and meet again."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.graph = Graph("branches")
        self.rng = np.random.default_rng(draw(st.integers(0, 2**31)))

    def op(self, op_type: str, inputs: list[Value], shape: tuple[int, ...], **attributes: Attribute) -> Value:
        out = self.graph.value(f"v{len(self.graph.nodes)}", DType.FLOAT32, shape)
        name = f"{op_type}_{len(self.graph.nodes)}"
        return self.graph.append(Node(op_type, inputs, [out], attributes, name=name)).output

    def conv(self, x: Value, filters: int, kernel: int, *, depthwise: bool = False, stride: int = 1) -> Value:
        """A convolution with windows of any spread, padded unevenly by as much as they need."""
        n, c, h, w = x.shape
        dilation = self.draw(st.sampled_from((1, 1, 2)))
        padding = dilation * (kernel - 1)
        before = [self.draw(st.sampled_from(sorted({padding // 2, 0, padding}))) for _ in range(2)]
        filters, group = (c, c) if depthwise else (filters, 1)
        data = self.rng.standard_normal((filters, c // group, kernel, kernel)) / kernel / np.sqrt(c / group)
        weight = self.graph.constant(data.astype(np.float32), f"w{len(self.graph.nodes)}")
        sizes = {
            "kernel_shape": (kernel, kernel),
            "group": group,
            "pads": (*before, *(padding - b for b in before)),
            "dilations": (dilation, dilation),
            "strides": (stride, stride),
        }
        shape = (n, filters, (h - 1) // stride + 1, (w - 1) // stride + 1)
        return self.op("Conv", [x, weight], shape, **sizes)

    def row(self, x: Value, length: int, strides: Sequence[int] = (1,)) -> Value:
        for _ in range(length):
            match self.draw(st.sampled_from(("conv", "conv", "depthwise", "relu", "pool"))):
                case "conv":
                    filters = self.draw(st.sampled_from((8, 16, 24)))
                    kernel = self.draw(st.sampled_from((1, 2, 3)))
                    x = self.conv(x, filters, kernel, stride=self.draw(st.sampled_from(strides)))
                case "depthwise":
                    x = self.conv(x, 0, 3, depthwise=True, stride=self.draw(st.sampled_from(strides)))
                case "relu":
                    x = self.op("Relu", [x], x.shape)
                case "pool":
                    x = self.op("MaxPool", [x], x.shape, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
        return x

    def build(self) -> Graph:
        size = (self.draw(st.integers(6, 14)), self.draw(st.integers(5, 12)))
        x = self.graph.add_input(Value("x", DType.FLOAT32, (self.draw(st.sampled_from((1, 2))), 16, *size)))
        x = self.row(x, self.draw(st.integers(1, 2)), (1, 1, 2))
        ends = [self.row(x, self.draw(st.integers(1, 3))) for _ in range(self.draw(st.integers(1, 3)))]
        shape = (x.shape[0], sum(v.shape[1] for v in ends), *x.shape[2:])
        joined = ends[0] if len(ends) == 1 else self.op("Concat", ends, shape, axis=1)
        outputs = [self.row(joined, self.draw(st.integers(1, 3)), (1, 1, 2))]
        if self.draw(st.booleans()):
            outputs.append(self.draw(st.sampled_from(ends)))
        self.graph.outputs = list(dict.fromkeys(outputs))
        return self.graph


@st.composite
def branches(draw: Draw) -> Graph:
    return Branches(draw).build()


def draw_form(draw: Draw, graph: Graph, nodes: Sequence[Node]) -> Form:
    """A cut of nodes in topological order into kernels, each of them in any blocks, or in none."""
    num_cuts = draw(st.integers(0, min(2, len(nodes) - 1)))
    places = st.integers(1, max(1, len(nodes) - 1))
    cuts = sorted(draw(st.sets(places, min_size=num_cuts, max_size=num_cuts)))
    kernels: list[KernelForm] = []
    for start, stop in itertools.pairwise((0, *cuts, len(nodes))):
        results = make_subgraph(0, nodes[start:stop], graph).outputs
        kernel = KernelForm(tuple(range(start, stop)))
        if results and 0 not in results[-1].shape and draw(st.integers(0, 3)):
            kernel = replace(kernel, blocking=draw_blocking(draw, results[-1].shape), saved_share=0.5)
        kernels.append(kernel)
    return Form(tuple(kernels))


def draw_blocking(draw: Draw, shape: tuple[int, ...]) -> Blocking:
    block = tuple(draw(st.integers(max(1, e // 4), e)) for e in shape)
    if len(block) == 4 and draw(st.booleans()):
        block = (1, shape[1], block[2], shape[3])
    return Blocking(block, draw(st.integers(1, 3)))


def is_read_only_by(partition: Partition, first: int, second: int) -> bool:
    made = partition.subgraphs[first].outputs
    readers = {partition.subgraph_of(user).id for value in made for user in value.users}
    return readers == {second} and partition.graph.outputs.count(made[0]) == 0 and len(made) == 1


def draw_chains(draw: Draw, partition: Partition) -> list[Chain]:
    """Any chains of subgraphs of which each makes what only the next reads, in any blocks."""
    before: dict[int, list[int]] = {}
    for subgraph in partition.subgraphs:
        for reader in partition.successors(subgraph):
            if is_read_only_by(partition, subgraph.id, reader.id):
                before.setdefault(reader.id, []).append(subgraph.id)
    taken: set[int] = set()
    chains: list[Chain] = []
    for subgraph in reversed(partition.subgraphs):
        shapes = [v.shape for v in subgraph.outputs]
        if subgraph.id in taken or len(shapes) != 1 or 0 in shapes[0] or not draw(st.booleans()):
            continue
        ids = [subgraph.id]
        for _ in range(draw(st.integers(0, 4))):
            if ids[0] in before:
                ids.insert(0, draw(st.sampled_from(before[ids[0]])))
        taken.update(ids)
        nodes = [node for i in ids for node in partition.subgraphs[i].nodes]
        chains.append(Chain(tuple(ids), draw_form(draw, partition.graph, nodes)))
    return chains


@dataclass(frozen=True)
class Planned:
    """A program whose partition has chains, and how it came about."""

    program: Program
    chains: tuple[Chain, ...]

    def __repr__(self) -> str:
        stages = [[list(map(str, g.instances)) for g in s.groups] for s in self.program.schedule.stages]
        return f"{self.program.partition.subgraphs} {self.chains} {stages}"


@st.composite
def planned(draw: Draw, graphs: st.SearchStrategy[Graph]) -> Planned:
    graph = draw(graphs)
    problem = PartitionProblem(graph)
    name = draw(st.sampled_from(("none", "layerwise", "random")))
    seed = draw(st.integers(0, 1000))
    partitioner = RandomPartitioner(seed) if name == "random" else PARTITIONERS.get(name)
    plain = partitioner.solve(problem, Budget(1000))
    assert not isinstance(plain, Infeasible)
    chains = draw_chains(draw, plain)
    partition = merge_chains(problem, plain, chains)
    assert check_partition(problem, partition) == ()
    order = draw(st.sampled_from(("sequential", "greedy", "random", "random")))
    ordered = ScheduleProblem(partition, limits=Limits(draw(st.integers(1, 4))))
    scheduler = RandomScheduler(seed) if order == "random" else SCHEDULERS.get(order)
    schedule = scheduler.solve(ordered, Budget(1000))
    assert not isinstance(schedule, Infeasible)
    assert check_schedule(ordered, schedule) == ()
    return Planned(Program(graph, partition, schedule, OPTIONS), tuple(chains))


def check(one: Planned, seed: int) -> int:
    """Everything that is claimed; returns how many subgraphs were computed block by block.

    The schedule that was drawn and another one share the kernels.
    """
    program, problem = one.program, ScheduleProblem(one.program.partition, limits=Limits(4))
    lowering = lower_partition(program.partition, host_isa())
    check_account(program.partition, lowering)
    for schedule in (program.schedule, RandomScheduler(seed).solve(problem, Budget())):
        check_values(CpuTarget().generate(replace(program, schedule=schedule), lowering=lowering), seed)
    return sum(s.form is not None and s.form.is_blockwise for s in lowering.partition.subgraphs)


def check_account(before: Partition, lowering: LoweredPartition) -> None:
    """Forms are there where one kernel computes several nodes block by block, and reasons fit them."""
    account = lowering.partition
    assert check_partition(PartitionProblem(before.graph), account) == ()
    for subgraph, work in zip(account.subgraphs, lowering.work, strict=True):
        made = [x.nodes for x in work if isinstance(x, KernelLaunch) and x.kernel.template == "fused"]
        blockwise = [k for k in subgraph.kernels if k.blocking is not None]
        assert made == [tuple(subgraph.nodes[p] for p in kernel.nodes) for kernel in blockwise]
        asked = before.subgraphs[subgraph.id].kernels
        assert [k.nodes for k in subgraph.kernels] == [k.nodes for k in asked]
        assert all(k in asked for k in blockwise)
    for decision in account.decisions:
        kernel = account.kernel_of(decision.producer)
        is_within = kernel == account.kernel_of(decision.consumer) and kernel.blocking is not None
        assert decision.reason is not Reason.BLOCKWISE or is_within
        assert decision.reason is not Reason.SEPARATE or not is_within


def check_values(code: CpuCode, seed: int) -> None:
    """As close to exact arithmetic as the interpreter comes."""
    graph = code.program.graph
    rng = np.random.default_rng(seed)
    feed = {v.name: rng.standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.inputs}
    executable = code.load(2)
    try:
        got = executable.run(feed)
    finally:
        executable.close()
    plain = run_graph(graph, feed)
    for name, want in run_graph(graph, feed, dtype=DType.FLOAT64).items():
        scale = max(float(np.abs(want).max(initial=0.0)), 1e-3)
        error = float(np.abs(got[name] - want).max(initial=0.0))
        theirs = float(np.abs(plain[name] - want).max(initial=0.0))
        assert error <= 4 * theirs + 2e-5 * scale, f"{name}: {error} against {theirs} at scale {scale}"


def agrees(graphs: st.SearchStrategy[Graph], counts: list[int]) -> Callable[..., None]:
    @given(one=planned(graphs), seed=st.integers(0, 2**31))
    def every(one: Planned, seed: int) -> None:
        counts.append(check(one, seed))

    return every


@pytest.mark.sampled(0)
@pytest.mark.parametrize(("graphs", "examples"), [(branches(), 12), (mixed_graphs(), 10)])
def test_values_and_account_are_right_in_any_order(graphs: Any, examples: int) -> None:
    counts: list[int] = []
    settings(COMMON, max_examples=examples, phases=[Phase.generate])(agrees(graphs, counts))()
    assert sum(counts) > 0


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [branches(), mixed_graphs(max_nodes=16)])
def test_many(graphs: Any) -> None:
    settings(COMMON, max_examples=300, phases=[Phase.generate])(agrees(graphs, []))()
