"""Attention in one kernel of the GPU, beside what the interpreter computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from benchmarks.cuda import ACCURACIES, attention
from tests.support.cuda import EMULATED, compiled, error, needs_fibers, templates

from tilewright.compiler import compile_graph
from tilewright.frontend.onnx import load_onnx
from tilewright.options import Options
from tilewright.target_ref import TargetRef
from tilewright.targets.cuda.code import CudaCode
from tilewright.targets.cuda.costs import GpuCosts
from tilewright.targets.cuda.products.tiles import MAX_SHARED_BYTES

pytestmark = pytest.mark.sampled(5)

CASES = {
    "heads that share keys": {
        "heads": 4,
        "groups": 2,
        "queries": 40,
        "keys": 56,
        "depth": 24,
        "channels": 20,
    },
    "a mask": {"heads": 2, "groups": 2, "queries": 33, "keys": 70, "depth": 64, "mask": (1, 2, 33, 70)},
    "nothing ahead": {"heads": 1, "groups": 1, "queries": 70, "keys": 70, "depth": 64, "is_causal": True},
    "long rows": {"heads": 2, "groups": 1, "queries": 16, "keys": 50, "depth": 128, "mask": (16, 50)},
}


def fed(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(3)
    found = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    if "mask" in found:
        found["mask"][..., ::3] = -np.inf
        found["mask"][..., :40] -= 50.0  # the largest score comes late: sums are scaled down
    return found


@pytest.mark.sampled(3)
@needs_fibers
@pytest.mark.parametrize(
    ("case", "accuracy"),
    [
        pytest.param(case, accuracy, marks=pytest.mark.slow if accuracy == "default" and number else ())
        for number, case in enumerate(CASES)
        for accuracy in ACCURACIES
    ],
)
def test_attention_is_one_kernel_with_right_values(case: str, accuracy: Any) -> None:
    model = attention(**CASES[case])  # type: ignore[arg-type]
    found = compiled(model, accuracy=accuracy)
    feed = fed({info.name: info.shape for info in found.get_inputs()})
    assert templates(found) == ["attention"]
    assert error(model, feed, found.run(None, feed)) <= ACCURACIES[accuracy]
    assert "RACES" not in str(found.explain())


FEW_QUERIES = {
    "one": {"heads": 2, "groups": 2, "queries": 1, "keys": 300, "depth": 64, "mask": (1, 2, 1, 300)},
    "heads that share keys": {"heads": 6, "groups": 2, "queries": 1, "keys": 130, "depth": 128},
    "odd": {
        "heads": 1,
        "groups": 1,
        "queries": 5,
        "keys": 77,
        "depth": 10,
        "channels": 33,
        "is_causal": True,
    },
    "one part": {"heads": 3, "groups": 1, "queries": 2, "keys": 9, "depth": 16, "channels": 200},
}


@pytest.mark.sampled(2)
@needs_fibers
@pytest.mark.parametrize("case", FEW_QUERIES)
def test_few_queries_share_their_keys_among_blocks(case: str) -> None:
    model = attention(**FEW_QUERIES[case])  # type: ignore[arg-type]
    found = compiled(model)
    feed = fed({info.name: info.shape for info in found.get_inputs()})
    assert templates(found) == ["attention"]
    (note,) = (kernel.notes[0] for step in found.steps for kernel in step.kernels)
    assert ("parts" in note) == (case != "one part")
    got = found.run(None, feed)
    assert error(model, feed, got) <= ACCURACIES["default"]
    assert found.run(None, feed)[0].tobytes() == got[0].tobytes()
    assert "RACES" not in str(found.explain())


@needs_fibers
def test_infinite_values_of_every_key_stay_infinite_in_the_sums_of_few_queries() -> None:
    """Each block, and each lane, computes with keys of others, of no weight."""
    model = attention(heads=1, groups=1, queries=1, keys=77, depth=64)
    found = compiled(model)
    feed = fed({info.name: info.shape for info in found.get_inputs()})
    feed["v"][0, 0, np.arange(77), np.arange(77) % 64] = np.inf
    (kernel,) = (kernel for step in found.steps for kernel in step.kernels)
    assert "parts" in kernel.notes[0]
    assert np.isposinf(found.run(None, feed)[0]).all()


def test_few_queries_of_many_channels_take_no_more_shared_memory_than_a_block_has() -> None:
    model = attention(heads=1, groups=1, queries=1, keys=64, depth=8, channels=3840)
    made = compile_graph(load_onnx(model), Options(target=TargetRef.parse(EMULATED)))
    assert isinstance(made.code, CudaCode)
    assert max(launch.kernel.shared_bytes for launch in made.code.placed.launches) <= MAX_SHARED_BYTES


@pytest.mark.sampled(1)
@needs_fibers
@pytest.mark.parametrize("queries", [3, 16])
def test_rows_without_a_key_are_what_the_program_says(queries: int) -> None:
    model = attention(heads=1, groups=1, queries=queries, keys=90, depth=16, mask=(queries, 90))
    found = compiled(model)
    feed = fed({info.name: info.shape for info in found.get_inputs()})
    feed["mask"][2] = -np.inf
    (got,), (right,) = found.run(None, feed), compiled(model, accuracy="strict").run(None, feed)
    assert np.array_equal(np.isnan(got), np.isnan(right))
    assert np.nanmax(np.abs(got - right)) < 1e-6


@pytest.mark.parametrize(
    ("case", "is_one"),
    [
        ({"heads": 2, "groups": 2, "queries": 4, "keys": 64, "depth": 32}, True),
        ({"heads": 2, "groups": 2, "queries": 64, "keys": 64, "depth": 512}, False),
        ({"heads": 2, "groups": 2, "queries": 64, "keys": 64, "depth": 64}, True),
    ],
)
def test_costs_know_what_is_one_kernel(case: dict[str, int], is_one: bool) -> None:
    made = compile_graph(load_onnx(attention(**case)), Options(target="cuda{device=emulated}"))  # type: ignore[arg-type]
    kernels = [kernel.template for step in made.code.steps for kernel in step.kernels]
    assert (kernels == ["attention"]) == is_one
    costs = made.planned.backend.costs
    assert isinstance(costs, GpuCosts)
    (subgraph,) = made.program.partition.subgraphs
    nests = costs._nests(subgraph) or ()
    assert any(nest.attention is not None for nest in nests) == is_one


def test_more_heads_than_a_grid_has_blocks_are_no_one_kernel() -> None:
    model = attention(heads=70_000, groups=70_000, queries=8, keys=16, depth=8)
    made = compile_graph(load_onnx(model), Options(target=TargetRef.parse(EMULATED)))
    kernels = [kernel.template for step in made.code.steps for kernel in step.kernels]
    assert "attention" not in kernels
    assert "product" not in kernels
