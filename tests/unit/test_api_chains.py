"""`tw.map_chain`: what may be asked, and totals that add up."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.support.cli import tilewright
from tests.support.models import F32, model, small_net

import tilewright as tw
from tilewright.errors import UsageError
from tilewright.mapping.chains.results import ChainFigures

BUDGET = "200ms"


def two_products() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w1", (16, 32)), ("w2", (32, 8)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["y"], "up"),
        helper.make_node("Relu", ["y"], ["z"], "relu"),
        helper.make_node("MatMul", ["z", "w2"], ["out"], "down"),
    ]
    inputs = [helper.make_tensor_value_info("x", F32, [12, 16])]
    return model(nodes, inputs, [helper.make_tensor_value_info("out", F32, [12, 8])], weights)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("objective", ["traffic", "energy"])
def test_a_model_adds_up_from_its_chains_and_all_other_operators(
    objective: Literal["traffic", "energy"],
) -> None:
    result = tw.map_chain(small_net(6, 6), "eyeriss", objective=objective, budget=BUDGET)
    total = result.total
    assert total is not None
    assert not result.others  # a residual block goes on behind what it reads twice
    parts = [*result.others, *(part for chain in result.chains for part in chain.parts)]
    assert total.fused.moved_words == sum(part.moved_words for part in parts)
    assert total.others.moved_words == sum(part.moved_words for part in result.others)
    before = total.others.moved_words + sum(chain.separate.moved_words for chain in result.chains)
    assert total.separate.moved_words == before

    def value(figures: ChainFigures) -> float:
        return figures.moved_words if objective == "traffic" else figures.energy_pj or 0.0

    assert total.bound <= value(total.fused) <= value(total.separate)
    assert total.bound == total.bound_others + sum(chain.bound_searched for chain in result.chains)
    chains, others, whole = result.tables()[1].rows
    assert (chains[0], others[0], whole[0]) == ("1 chains", "0 other operators", "whole model")
    assert whole[1] == f"{total.fused.moved_words:,}"


def test_one_by_one_a_chain_takes_no_more_than_its_layers_mapped_alone() -> None:
    chained = tw.map_chain(two_products(), "eyeriss", objective="latency", budget=BUDGET)
    mapped = tw.map(two_products(), "eyeriss")
    assert chained.total is not None
    assert 0 < (chained.total.separate.cycles or 0) <= mapped.total.cycles
    # What passes between operators is a part of everything together.
    streamed = sum(node.moved_words for node in mapped.streamed)
    moved = sum(layer.solution.cost.moved_words for layer in mapped.layers)
    assert mapped.unfused.moved_words == moved + streamed
    assert streamed == 2 * 12 * 32
    assert mapped.unfused.cycles == mapped.total.cycles + mapped.total.streamed_cycles
    assert f"{mapped.unfused.moved_words:,} words past DRAM" in str(mapped)


def test_what_is_searched_whole_is_proven_and_says_how() -> None:
    (chain,) = tw.map_chain(two_products(), "tpu-v1", budget="30s").chains
    assert (chain.status, chain.gap, chain.is_whole_search) == ("optimal", 0.0, True)
    assert chain.bound <= chain.bound_searched == chain.figures.moved_words
    assert chain.num_tilings > 0
    (chain,) = tw.map_chain(two_products(), "eyeriss", objective="energy", budget="30s").chains
    assert chain.gap is not None
    assert chain.bound <= chain.bound_searched <= (chain.figures.energy_pj or 0.0)
    assert (chain.status == "optimal") == (chain.gap == 0.0)


def test_any_amount_may_be_computed_again() -> None:
    least = tw.map_chain(two_products(), "eyeriss", recomputed=float("inf"), budget=BUDGET).chains[0]
    none = tw.map_chain(two_products(), "eyeriss", recomputed=0, budget=BUDGET).chains[0]
    assert least.figures.moved_words <= none.figures.moved_words


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"nodes": []}, "there are none; name the operators"),
        ({"nodes": ["up", "up"]}, "'up': comes after 'up'"),
        ({"nodes": ["down", "up"]}, "'up': comes after 'down', but not in the model"),
        ({"nodes": ["up", "missing"]}, "'missing': there is none; the model has up"),
        ({"recomputed": -0.5}, "0 or more"),
        ({"recomputed": float("nan")}, "0 or more"),
        ({"budget": "5trials"}, "expected a time"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_line(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        tw.map_chain(two_products(), "eyeriss", **settings)  # type: ignore[arg-type]  # that is the test
    assert "\n" not in str(caught.value)


def test_machines_may_be_architectures_of_timeloop(tmp_path: Path) -> None:
    path = tmp_path / "arch.yaml"
    memories = [
        "{name: DRAM, class: DRAM, attributes: {word-bits: 8, block-size: 8}}",
        "{name: Buffer, class: SRAM, attributes: {depth: 512, block-size: 8, word-bits: 8}}",
        "{name: MAC, class: intmac, attributes: {datawidth: 8}}",
    ]
    listed = "".join(f"    - {memory}\n" for memory in memories)
    path.write_text(f"architecture:\n  version: 0.3\n  subtree:\n  - name: system\n    local:\n{listed}")
    result = tw.map_chain(two_products(), path, budget=BUDGET)
    assert result.level == "Buffer"
    (chain,) = result.chains
    assert chain.figures.moved_words == chain.bound_words  # 4,096 words hold everything


@pytest.mark.parametrize("work", ["3_14_8_8_1", "net.onnx:conv1"])
def test_the_command_line_takes_models_alone(work: str) -> None:
    assert tilewright("map", work, "--fuse").complaint.startswith(
        f"{work}: --fuse tiles the chains of a model"
    )
