"""The four networks of IOS: the ONNX graphs say what the block data say."""

from __future__ import annotations

from collections import defaultdict
from importlib import resources

import onnx
import pytest
from tests.unit.zoo.zoo_measure import node_macs, shapes

from tilewright import zoo
from tilewright.errors import UsageError
from tilewright.zoo.ios_blocks import load_blocks

# The #Operators column of Table 2 in the IOS paper.
_UNITS = {"ios_inception_v3": 119, "ios_randwire": 120, "ios_nasnet_a": 374, "ios_squeezenet": 50}


@pytest.fixture(scope="module", params=sorted(_UNITS))
def named_model(request: pytest.FixtureRequest) -> tuple[str, onnx.ModelProto]:
    model = zoo.build(request.param, image=load_blocks(request.param).image)
    for initializer in model.graph.initializer:
        initializer.raw_data = b""
    return request.param, model


def _unit_of(node: onnx.NodeProto) -> str:
    block, unit, _ = node.name.split(".", 2)
    return f"{block}.{unit}"


def _work(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type != "Constant"]


@pytest.mark.sampled(1)
def test_units_are_as_many_as_the_paper_counts(named_model: tuple[str, onnx.ModelProto]) -> None:
    name, model = named_model
    network = load_blocks(name)
    assert network.num_units == _UNITS[name]
    assert sum(len(block.units) for block in network.blocks) == _UNITS[name]
    expected = {f"{block.label}.{unit.id}" for block in network.blocks for unit in block.units}
    assert {_unit_of(node) for node in _work(model)} == expected


@pytest.mark.sampled(2)
def test_units_do_the_work_and_have_the_shapes_of_the_data(named_model: tuple[str, onnx.ModelProto]) -> None:
    name, model = named_model
    network = load_blocks(name)
    known = shapes(model)
    macs: dict[str, int] = defaultdict(int)
    last: dict[str, tuple[int, ...]] = {}
    for node in _work(model):
        macs[_unit_of(node)] += node_macs(node, known)
        last[_unit_of(node)] = known[node.output[0]]
    for block in network.blocks:
        for unit in block.units:
            key = f"{block.label}.{unit.id}"
            assert macs[key] == unit.macs
            assert last[key] == (1, *unit.out_shape)
    assert sum(macs.values()) == network.macs


def test_dependencies_between_units_are_those_of_the_data(named_model: tuple[str, onnx.ModelProto]) -> None:
    name, model = named_model
    maker = {output: _unit_of(node) for node in _work(model) for output in node.output}
    found = {
        (maker[value], _unit_of(node))
        for node in _work(model)
        for value in node.input
        if value in maker and maker[value] != _unit_of(node)
    }
    inside = {(source, target) for source, target in found if source.split(".")[0] == target.split(".")[0]}
    expected = {
        (f"{block.label}.{source}", f"{block.label}.{target}")
        for block in load_blocks(name).blocks
        for source, target in block.edges
    }
    assert inside == expected


def test_other_networks_have_no_block_data() -> None:
    with pytest.raises(UsageError, match="No block data for 'resnet50'; there are ios_inception_v3, "):
        load_blocks("resnet50")


def test_the_notice_of_the_data_goes_with_them() -> None:
    notice = resources.files("tilewright.zoo").joinpath("data", "NOTICE.md").read_text("utf-8")
    assert "Copyright (c) 2020 MIT HAN Lab" in notice
    assert "Permission is hereby granted" in notice
