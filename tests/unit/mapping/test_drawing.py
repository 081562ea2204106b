"""A mapping drawn: its words are the cost model's, and no fewer than the least."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.hardware.presets import load_preset
from tilewright.mapping.results import MapResult

LAYERS = ["3_7_8_8_2", "1_14_16_32_1", "K=8,C=4,P=3,Q=5,R=2,S=1"]


@pytest.fixture(scope="module", params=["simba-cosa-repo", "eyeriss", "k80"])
def result(request: pytest.FixtureRequest) -> MapResult:
    return tw.map(LAYERS, request.param, mapper="random")


def test_words_are_those_that_are_counted_and_at_least_the_least(result: MapResult) -> None:
    for layer, drawing in zip(result.layers, result.drawn(), strict=True):
        counts = {count.level: count.tensors for count in layer.solution.cost.levels}
        assert drawing.name == layer.name
        assert [level.name for level in drawing.levels] == [level.level for level in layer.mapping]
        for level in drawing.levels:
            assert {tensor.name for tensor in level.tensors} == set(counts[level.name])
            for tensor in level.tensors:
                count = counts[level.name][tensor.name]
                total = (count.reads + count.updates + count.fills) * count.num_instances
                assert tensor.moved_words == total
                assert tensor.moved_words >= tensor.least_words > 0
            assert level.num_spread <= level.fan_out
            assert level.num_used <= level.num_instances
            assert level.share_held is None or 0 < level.share_held <= 1
        assert drawing.num_units_used <= drawing.num_units


def test_the_text_has_every_loop_and_what_levels_hold(result: MapResult) -> None:
    layer, drawing = result.layers[1], result.drawn()[1]
    text = "\n".join(drawing.lines())
    for level in layer.mapping:
        assert level.level in text
        for loop in level.temporal:
            assert loop.factor == 1 or f"for {loop.dim} in {loop.factor}" in text
        for loop in level.spatial:
            assert loop.factor == 1 or f"{loop.dim} in {loop.factor}" in text
    assert "% of its words" in text
    assert f"{100 * layer.utilization:.0f} % of their time" in text


def test_equal_layers_are_drawn_once() -> None:
    assert [d.name for d in tw.map(["1_1_4_4_1", "1_1_8_4_1", "1_1_4_4_1"], mapper="cosa").drawn()] == [
        "1_1_4_4_1",
        "1_1_8_4_1",
    ]


def test_an_ideal_mapping_moves_no_more_than_the_least() -> None:
    """A product that fits the buffers whole is read and written once outside."""
    (layer,) = tw.map("1_1_16_16_1", objective="energy").drawn()
    for tensor in layer.levels[0].tensors:
        assert tensor.moved_words == tensor.least_words
    assert layer.levels[0].capacity_words is None
    assert layer.levels[0].share_held is None


def test_results_are_compared_layer_by_layer() -> None:
    by_cosa = tw.map(LAYERS, mapper="cosa")
    found = by_cosa.compare(tw.map(LAYERS[:2], mapper="exact"))
    assert found.results == ("cosa on simba-cosa-repo", "exact on simba-cosa-repo")
    assert [layer.name for layer in found.layers] == LAYERS
    assert found.layers[2].cycles == (by_cosa.layers[2].cycles, None)
    assert found.total.cycles[0] == by_cosa.total.cycles
    text = str(found)
    first, second = found.layers[0].cycles
    assert first is not None
    assert second is not None
    assert f"{second:,} ({second / first:.2f} x)" in text
    assert load_preset("simba-cosa-repo").name in text
