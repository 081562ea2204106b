"""Kernels of a GPU: blocks on multiprocessors in waves, and what of that kernels that run together share."""

# mypy: disable-error-code="assignment, attr-defined"

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.errors import MachineError
from tilewright.hardware.machine import Machine, Threads
from tilewright.hardware.machine_file import parse_machine
from tilewright.hardware.presets import load_preset, preset_text
from tilewright.ir.graph import Graph
from tilewright.options import Options
from tilewright.partition import PARTITIONERS, Partition
from tilewright.partition.base import Subgraph
from tilewright.planning import Budget
from tilewright.schedule import ScheduleProblem
from tilewright.schedule.ios.costs import ModelCosts
from tilewright.schedule.ios.graph import StageGraph
from tilewright.schedule.ios.stages import StageChoice
from tilewright.targets.npu.backend import NpuBackend
from tilewright.targets.npu.blocks import blocks_of_elements, blocks_of_products
from tilewright.targets.npu.costs import NpuCosts, _alone
from tilewright.targets.npu.target import NpuTarget
from tilewright.targets.npu.work import UnitWork

pytestmark = pytest.mark.sampled(5)

V100 = load_preset("v100")
JOIN_NS = V100.overheads.join_ns
WITHOUT_JOINS = V100.model_copy(update={"overheads": V100.overheads.model_copy(update={"join_ns": 0.0})})
THREADS = V100.threads or Threads(registers="", shared="", max_per_block=1, max_per_core=1)
FULL, QUARTER = (80 * 128, 32), (20 * 128, 32)
"""Rows and columns of products that fill all 80 multiprocessors with a block each, and 20 of them."""


def backend_of(graph: Graph, machine: Machine = WITHOUT_JOINS) -> NpuBackend:
    backend = NpuTarget(machine).backend(graph, Options())
    assert isinstance(backend, NpuBackend)
    return backend


def subgraphs_of(backend: NpuBackend) -> tuple[Subgraph, ...]:
    partition = PARTITIONERS.get("none").solve(backend.partition_problem, Budget())
    assert isinstance(partition, Partition)
    return partition.subgraphs


def products(*shapes: tuple[int, int], inner: int = 512, machine: Machine = WITHOUT_JOINS) -> NpuBackend:
    b = GraphBuilder()
    results = [b.op("MatMul", b.input(m, inner), b.constant(inner, n), shape=(m, n)) for m, n in shapes]
    return backend_of(b.finish(*results), machine)


def convolutions(batch: int, num_branches: int) -> NpuBackend:
    """Branches of a convolution as of Inception's last blocks."""
    b = GraphBuilder()
    x = b.input(batch, 448, 8, 8)
    shape = (batch, 384, 8, 8)
    results = [
        b.op("Conv", x, b.constant(384, 448, 3, 3), shape=shape, pads=(1, 1, 1, 1))
        for _ in range(num_branches)
    ]
    return backend_of(b.finish(*results), V100)


def gain(backend: NpuBackend) -> float:
    """How much faster all subgraphs are at the same time than one after another."""
    groups = [[s] for s in subgraphs_of(backend)]
    return sum(backend.costs.kernel(s).time_ns for (s,) in groups) / backend.costs.stage(groups).time_ns


def time_alone(num_blocks: int) -> float:
    """Of a product of so many blocks, the smallest that there are."""
    backend = products((128 * num_blocks, 32), inner=16)
    return sum(work.seconds for work in _works(backend))


def _works(backend: NpuBackend) -> Sequence[UnitWork]:
    (subgraph,) = subgraphs_of(backend)
    (step,) = backend.costs.simulate(_alone([[subgraph]]), True).steps
    return step.works


def test_products_take_the_tiles_that_take_least_time() -> None:
    assert THREADS.block_tiles == ((128, 128), (128, 64), (128, 32))
    full = blocks_of_products(THREADS, *FULL, 80)
    assert (full.num_cores, full.num_waves, full.cores_worth) == (80, 1, 80.0)
    few = blocks_of_products(THREADS, 64, 384, 80)  # 8 x 8 pixels, 384 channels: 128 x 32 lies along channels
    assert (few.num_cores, few.num_waves, few.cores_worth) == (6, 1, 6.0)
    uneven = blocks_of_products(THREADS, 81 * 128, 128, 80)
    assert (uneven.num_cores, uneven.num_waves) == (65, 5), "smaller tiles make a smaller last wave"
    assert uneven.cores_worth == 81 * 128 * 128 / (5 * 128 * 32)


def test_other_work_fills_multiprocessors_with_threads() -> None:
    assert blocks_of_elements(THREADS, 2048 * 3, 80).num_cores == 3
    assert blocks_of_elements(THREADS, 2048 * 81, 80).num_waves == 2
    assert blocks_of_elements(THREADS, 0, 80).num_cores == 1


def test_multiprocessors_without_a_block_are_idle() -> None:
    one, few, full, more = (time_alone(n) for n in (1, 20, 80, 81))
    assert one == few == full == pytest.approx(128 * 32 * 16 / 64 / 1.53e9)
    assert more == 2 * full, "the last wave takes as long with one block"


def test_an_operator_that_fills_the_machine_gains_exactly_nothing() -> None:
    backend = products(FULL, FULL, QUARTER)
    full, other, small = subgraphs_of(backend)
    costs = backend.costs
    for second in (other, small):
        in_sequence = costs.stage([[full, second]]).time_ns
        assert costs.stage([[full], [second]]).time_ns == pytest.approx(in_sequence, rel=1e-12)
    with_joins = products(FULL, FULL, machine=V100)
    first, second = subgraphs_of(with_joins)
    both = with_joins.costs.stage([[first], [second]]).time_ns
    assert both == pytest.approx(with_joins.costs.stage([[first, second]]).time_ns + JOIN_NS)


def test_kernels_on_other_multiprocessors_run_at_the_same_time() -> None:
    backend = products(QUARTER, QUARTER, QUARTER, QUARTER, QUARTER)
    groups = [[s] for s in subgraphs_of(backend)]
    alone = backend.costs.kernel(groups[0][0]).time_ns
    four, five = (backend.costs.stage(groups[:n]).time_ns for n in (4, 5))
    assert alone < four < 1.8 * alone
    assert five > max(four, 1.9 * alone), "the fifth waits for multiprocessors"


@pytest.mark.sampled(0)
def test_the_gain_falls_with_the_batch() -> None:
    gains = [gain(convolutions(batch, 4)) for batch in (1, 4, 64)]
    assert gains[0] > 2 > gains[1] > 1.05
    assert gains[2] < 1.01


def test_a_group_may_be_kept_to_some_multiprocessors() -> None:
    backend = products(FULL)
    (full,) = subgraphs_of(backend)
    times = [backend.costs.kernel(full, n).time_ns for n in (10, 40, 80)]
    assert times[0] > 1.8 * times[1] > 1.8 * times[2]


def test_stages_are_timed_as_they_are_simulated() -> None:
    backend = products(FULL, QUARTER, (512, 96), (64, 384), (100, 7), (3000, 2000), inner=300, machine=V100)
    rng = random.Random(1)
    for _ in range(12):
        subgraphs = rng.sample(subgraphs_of(backend), rng.randint(1, 6))
        cuts = sorted(rng.sample(range(1, 6), rng.randint(0, 3)))
        groups = [subgraphs[a:b] for a, b in zip([0, *cuts], [*cuts, 6], strict=True)]
        groups = [group for group in groups if group]
        simulated = backend.costs.simulate(_alone(groups), True)
        found = backend.costs.stage(groups)
        assert found.time_ns == pytest.approx(simulated.time_s * 1e9, rel=1e-12)
        assert found.energy_pj == pytest.approx(sum(simulated.energy_pj.values()))
        assert found.bound_ns <= found.time_ns


@pytest.mark.parametrize("join_ns", [0.0, 60_000.0])
def test_no_way_to_run_a_stage_costs_less_than_its_bound(join_ns: float) -> None:
    overheads = V100.overheads.model_copy(update={"join_ns": join_ns})
    backend = products(QUARTER, (64, 32), (512, 96), machine=V100.model_copy(update={"overheads": overheads}))
    partition = PARTITIONERS.get("none").solve(backend.partition_problem, Budget())
    assert isinstance(partition, Partition)
    problem = ScheduleProblem(partition, machine=backend.machine, cost=backend.costs, limits=backend.limits)
    costs = ModelCosts(problem, StageGraph.of_partition(partition), is_moldable=True)
    for groups in (((0,), (1,)), ((0,), (1,), (2,))):
        at_once = StageChoice(groups, "parallel")
        for choice in (at_once, *costs.with_cores(at_once)):
            assert costs.bound_ns(choice) <= costs.cost_ns(choice) * (1 + 1e-9), choice


def test_each_kernel_is_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = products(QUARTER, QUARTER, (512, 96))
    asked: list[int] = []

    def counting(schedule: object, is_launched: bool) -> object:
        asked.append(1)
        return backend.costs.simulate(schedule, is_launched)  # type: ignore[arg-type]

    costs: NpuCosts = dataclasses.replace(backend.costs, simulate=counting)  # type: ignore[arg-type]
    subgraphs: Sequence[Subgraph] = subgraphs_of(backend)
    for groups in ([[s] for s in subgraphs], [subgraphs[:2], subgraphs[2:]], [subgraphs]):
        costs.stage(groups)
    assert len(asked) == 2, "two of the three products are alike"


def test_a_tile_has_two_extents() -> None:
    wrong = preset_text("v100").replace("[[128, 128], [128, 64], [128, 32]]", "[[128, 128, 8]]")
    with pytest.raises(MachineError, match="block_tiles"):
        parse_machine(wrong)


def test_products_of_groups_have_blocks_of_their_own() -> None:
    """Four groups of 48 columns: two blocks of 32 columns each for each of them, not six for 192 columns."""
    b = GraphBuilder()
    x = b.input(1, 64, 16, 8)
    graph = b.finish(b.op("Conv", x, b.constant(192, 16, 1, 1), shape=(1, 192, 16, 8), group=4))
    works, node = backend_of(graph).works, graph.nodes[0]
    shape = works.shape(node)
    assert shape is not None
    assert shape.product((1, 192, 16, 8)) == (128, 48)
    assert shape.product((1, 30, 16, 8)) == (128, 30)
    blocks = works.blocks(node, ((0, 1), (0, 192), (0, 16), (0, 8)), 80)
    assert blocks == blocks_of_products(THREADS, 128, 48, 80, 4)
    assert works.cores_worth(node) == blocks.cores_worth
