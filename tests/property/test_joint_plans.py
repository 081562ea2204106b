"""Joint plans of drawn networks on drawn machines: checkers agree, values are right, no bound is above."""

from __future__ import annotations

import random
from typing import Literal

import pytest
from tests.support.graphs import GraphBuilder
from tests.support.integer_networks import integer_network

from tilewright.compiler import optimise, plan_optimised
from tilewright.hardware.machine import Level, Machine, Overheads, Unit
from tilewright.hardware.parts import Work
from tilewright.ir.graph import Graph, Value
from tilewright.options import Options
from tilewright.planning import Budget
from tilewright.report.comparison import Tolerance, first_difference
from tilewright.report.simulation import compare_values
from tilewright.targets.npu.backend import NpuBackend
from tilewright.targets.npu.check_plan import check_plan
from tilewright.targets.npu.target import NpuTarget


def machine_of(rng: random.Random) -> Machine:
    """Few cores, odd tiles, buffers of some hundred bytes or more; one kind of unit or two."""
    cores, rate = rng.choice((1, 2, 3, 7)), rng.choice((1e9, 5e10))
    local, shared = rng.choice((300, 1024, 10_000, 1 << 16)), rng.choice((0, 512, 100_000))
    rows, columns = rng.choice(((3, 5), (16, 16), (7, 1)))
    levels = [_level("L1", "core", local, rate, cores)]
    if shared:
        levels.append(_level("LLB", "machine", cores * shared, rng.choice((1e9, 1e11)), 1))
    levels.append(_level("DDR", "machine", None, rng.choice((2e8, 7e9, 9e10)), 1))
    has_matrix_unit = rng.random() < 0.7
    matrix = Unit(name="MME", kind="matrix", macs_per_cycle={"float32": rows * columns}, tile=(rows, columns))
    runs = tuple(map(Work, ("depthwise", "elementwise", "reduction", "special")))
    vector = Unit(
        name="VEC",
        kind="vector",
        runs=runs if has_matrix_unit else (*runs, Work("contraction")),
        macs_per_cycle={"float32": 4},
        ops_per_cycle={"float32": rng.choice((1, 8))},
    )
    return Machine(
        name="drawn",
        levels=tuple(levels),
        units=(matrix, vector) if has_matrix_unit else (vector,),
        num_clusters=1,
        num_cores_per_cluster=cores,
        clock_hz=1e9,
        launches=rng.choice(("each subgraph", "once")),
        overheads=Overheads(kernel_launch_ns=rng.choice((0, 300, 4_000)), barrier_ns=rng.choice((0, 500))),
    )


def _level(
    name: str, per: Literal["core", "machine"], capacity_bytes: int | None, rate: float, count: int
) -> Level:
    return Level(
        name=name,
        per=per,
        num_instances_per_parent=count,
        capacity_bytes=capacity_bytes,
        read_bytes_per_s=rate,
        write_bytes_per_s=rate,
    )


def heads(rng: random.Random) -> Graph:
    """Attention of a few heads, and what is added to it."""
    b = GraphBuilder()
    num_heads, each, length = rng.choice((1, 2, 3)), rng.choice((4, 5)), rng.choice((3, 7))
    width = num_heads * each
    x = b.input(1, length, width)

    def head(*order: int) -> Value:
        shape = (1, length, num_heads, each)
        y = b.op("MatMul", x, b.constant(width, width))
        y = b.op("Reshape", y, b.integers(*shape), shape=shape)
        return b.op("Transpose", y, shape=[shape[axis] for axis in order], perm=order)

    scores = b.op("MatMul", head(0, 2, 1, 3), head(0, 2, 3, 1), shape=(1, num_heads, length, length))
    mixed = b.op("Softmax", scores, axis=-1)
    y = b.op("MatMul", mixed, head(0, 2, 1, 3), shape=(1, num_heads, length, each))
    y = b.op("Transpose", y, shape=(1, length, num_heads, each), perm=(0, 2, 1, 3))
    y = b.op("Reshape", y, b.integers(1, length, width), shape=(1, length, width))
    return b.finish(b.op("Add", x, b.op("MatMul", y, b.constant(width, width))))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(40))
def test_joint_plans_of_drawn_networks_are_right_on_drawn_machines(seed: int) -> None:
    rng = random.Random(seed)
    machine = machine_of(rng)
    given = heads(rng) if seed % 3 == 0 else integer_network(seed, rng.randint(3, 6))
    options = Options(plan="joint", budget=Budget(25))
    graph, _ = optimise(given, options)
    planned = plan_optimised(graph, options, target=NpuTarget(machine), portfolio=Budget(25))
    assert isinstance(planned.backend, NpuBackend)
    code = planned.backend.generate(planned.program)
    assert check_plan(code.planned, machine) == ()
    assert first_difference(compare_values(code, Tolerance())) is None
    quality = planned.program.schedule.quality
    assert all(bound.value <= quality.cost * (1 + 1e-9) for bound in quality.bounds)
    assert quality.cost <= min(a.cost for a in planned.attempts if a.cost is not None) * (1 + 1e-9)
    assert code.cost.time_s * 1e9 == pytest.approx(quality.cost, rel=1e-9)
