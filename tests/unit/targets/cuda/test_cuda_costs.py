"""Estimates of a GPU: split sums fill it, branches share it, and schedules are chosen by both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright import zoo
from tilewright.compiler import optimise, plan
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.presets import find_machine
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Read
from tilewright.ir.fuse import FusedNodes
from tilewright.ir.nest import Access, Dim, Nest, Operand, affine
from tilewright.options import Options
from tilewright.partition.base import make_subgraph
from tilewright.planner import cost_of
from tilewright.program import Program
from tilewright.target_ref import TargetRef
from tilewright.targets import find_target
from tilewright.targets.cuda.costs import GpuCosts
from tilewright.targets.cuda.products.match import match_product
from tilewright.targets.cuda.products.tiles import plan_product
from tilewright.targets.cuda.rates import Kind, Rates, rates_of
from tilewright.targets.cuda.target import CudaTarget
from tilewright.targets.llvm.layout import Declined
from tilewright.zoo.builder import Builder


def fewer(rates: Rates, num_multiprocessors: int) -> Rates:
    return replace(rates, num_multiprocessors=num_multiprocessors)


def product_nest(rows: int, columns: int, depth: int) -> Nest:
    """A matrix product of float32."""
    kind = DType.FLOAT32
    dims = (Dim("m", rows), Dim("n", columns), Dim("k", depth, "reduce"))
    a = Access(Operand("input", 0, kind, (rows, depth)), (affine("m"), affine("k")))
    b = Access(Operand("input", 1, kind, (depth, columns)), (affine("k"), affine("n")))
    y = Access(Operand("output", 0, kind, (rows, columns)), (affine("m"), affine("n")))
    return Nest(dims, (a, b), y, Read(0, kind) * Read(1, kind), "sum")


@pytest.mark.parametrize("kind", ["fma", "tf32", "bf16"])
@pytest.mark.parametrize("shape", [(17 * 17, 160, 1120), (8 * 8, 384, 3456), (14 * 14, 256, 2304)])
def test_split_sums_fill_a_gpu_that_tiles_leave_idle(kind: Kind, shape: tuple[int, int, int]) -> None:
    product = match_product(product_nest(*shape))
    assert not isinstance(product, Declined)
    rates = rates_of(find_machine("h200"))
    choice = plan_product(product, kind, rates)
    assert choice.num_blocks >= 60 or choice.time_ns < 1.5 * rates.launch_ns
    assert choice.plan.shared_bytes <= 48 * 1024
    assert all(choice.time_ns <= plan_product(product, kind, fewer(rates, n)).time_ns for n in (16, 64))


def test_two_halves_of_the_machine_are_as_fast_as_it_is_in_turns_and_small_kernels_faster() -> None:
    graph, _ = optimise(load_onnx(zoo.build("ios_squeezenet", image=64)), Options())
    costs = GpuCosts(find_machine("h200"), rates_of(find_machine("h200")), "default", FusedNodes(), {})
    works = [make_subgraph(0, (node,), graph) for node in graph.nodes if node.op_type == "Conv"][:6]
    in_turns = sum(costs.kernel(work).time_ns for work in works)
    side_by_side = costs.stage([[work] for work in works]).time_ns
    longest = max(costs.kernel(work).time_ns for work in works)
    assert longest < side_by_side < in_turns
    assert all(costs.kernel(w, 16).time_ns >= costs.kernel(w).time_ns for w in works)


def test_branches_run_side_by_side_where_the_estimate_says_so() -> None:
    proto = load_onnx(zoo.build("ios_squeezenet", image=64))
    chosen = plan(proto, Options(target=TargetRef.parse("cuda{device=emulated}"))).program
    assert any(len(stage.groups) > 1 for stage in chosen.schedule.stages)


def test_branches_and_split_sums_chosen_together_beat_each_alone() -> None:
    """Four convolutions of an 8 x 8 image: one after another, each is split to fill the machine; side by side
    and so split they wait for each other; together they are split less."""
    b = Builder("branches", seed=0)
    x = b.input("x", (1, 448, 8, 8))
    for number in range(4):
        b.output(b.conv(x, 384, 3, padding=1, name=f"conv{number}"), f"y{number}")
    model = load_onnx(b.finish())

    def planned(schedule: str) -> Program:
        return plan(
            model, Options(target=TargetRef.parse("cuda{device=emulated}"), schedule=schedule)
        ).program

    split, side, both = (planned(s) for s in ("sequential", "ios{strategy=parallel}", "ios{moldable=true}"))
    split_ns, side_ns, both_ns = (cost_of(program) for program in (split, side, both))
    assert 1.3 * both_ns < side_ns < 0.8 * split_ns
    (stage,) = both.schedule.stages
    assert len(stage.groups) == 4
    assert all(group.num_cores and group.num_cores < 132 for group in stage.groups)
    blocks = [kernels_of(program) for program in (split, both)]
    assert max(blocks[1]) < min(blocks[0])


def kernels_of(program: Program) -> list[int]:
    """Blocks of the convolutions' kernels."""
    target = find_target(program.options.target)
    assert isinstance(target, CudaTarget)
    return [k.num_chunks for s in target.code_of(program).steps for k in s.kernels if k.macs]
