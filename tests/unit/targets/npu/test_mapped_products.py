"""Mappings of layers and of their slices, whatever was mapped before and wherever units read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from tests.support.graphs import GraphBuilder

import tilewright as tw
from tilewright import numba_cache
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.element_types import element_types
from tilewright.hardware.presets import load_preset, preset_text
from tilewright.ir.graph import Node
from tilewright.ir.region import full_region
from tilewright.mapping.base import MappingSolution
from tilewright.targets.npu import mapped_products
from tilewright.targets.npu.work import Works


def _convolution(rows: int) -> ModelProto:
    weights = numpy_helper.from_array(np.full((64, 32, 3, 3), 0.5, np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], "layer")],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 32, rows + 2, 58))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 64, rows, 56))],
        [weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _node(rows: int) -> Node:
    return load_onnx(_convolution(rows)).nodes[0]


def test_the_mapping_of_a_slice_does_not_depend_on_what_was_mapped_before() -> None:
    def energies_pj(layers_rows: Sequence[int]) -> dict[int, float]:
        machine = load_preset("stcp920").model_copy()  # of which no mapping is known
        found = {}
        for rows in layers_rows:
            works = Works(machine, element_types(machine))
            products = works.products(_node(rows), ((0, 1), (0, 64), (0, 14), (0, 56)), is_whole=False)
            assert products is not None
            found[rows] = sum(products.inner_energy_pj().values())
        return found

    # 14 rows of a layer of 19 and of one of 56, then all 14 of a layer.
    assert energies_pj((19, 56, 14)) == energies_pj((14, 56, 19))


def test_two_products_of_a_node_share_cores_as_it_is_bound_wherever_operands_lie() -> None:
    b = GraphBuilder()
    operands = [b.input(1, 2, 8, 4) for _ in range(3)]
    node = b.node(b.op("Attention", *operands, shape=(1, 2, 8, 4)))
    machine = load_preset("a310")
    works, region = Works(machine, element_types(machine)), full_region((1, 2, 8, 4))
    from_main, from_cores = (works.of(node, region, (1, 2, 1, 1), is_whole=w) for w in (True, False))
    assert [w.unit for w in from_main] == [w.unit for w in from_cores] == ["CUBE", "VECTOR"]
    assert all(w.seconds > 0 for w in from_main)


def test_mappings_by_the_rule_wait_for_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    machine, asked = load_preset("v100").model_copy(), list[str]()
    works, solved = Works(machine, element_types(machine), "rule"), mapped_products._solved

    def noted(name: str, *question: Any) -> MappingSolution | None:
        asked.append(name)
        return solved(name, *question)

    monkeypatch.setattr(mapped_products, "_solved", noted)
    monkeypatch.setattr(numba_cache, "require_compiling", lambda: pytest.fail("it was"))
    found = works.products(_node(23), ((0, 1), (0, 64), (0, 23), (0, 56)), is_whole=False)
    assert found is not None
    assert asked == ["paper"]


@pytest.mark.parametrize(("level", "num_whole"), [("L1", 1), ("LLB", 1), ("DDR", 0)])
def test_units_may_read_any_level(level: str, num_whole: int, tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    text = preset_text("stcp920")
    assert text.count("    kind: matrix\n    level: L1\n") == 1
    path.write_text(
        text.replace("    kind: matrix\n    level: L1\n", f"    kind: matrix\n    level: {level}\n")
    )
    found = tw.simulate(
        _convolution(14), path, dtype="float16", partition="layerwise", schedule="greedy", mappings=True
    )
    assert found.mappings is not None
    assert found.mappings.num_whole == num_whole
    energies_j = {x.level: x.simulated_j for x in found.mappings.levels}
    assert max(energies_j, key=lambda name: energies_j[name]) == level
