"""Plans as documents: what is read is what was written, slices of slices included."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.artifact.plan import decode_plan, encode_plan
from tilewright.options import Options
from tilewright.partition import PartitionProblem
from tilewright.partition.form import Blocking, Form, KernelForm
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.partition.layerwise import Layerwise
from tilewright.partition.merge_chains import Chain, merge_chains
from tilewright.partition.split import WHOLE
from tilewright.planning import Budget
from tilewright.planning.choice import Choice
from tilewright.program import Program
from tilewright.schedule import ScheduleProblem
from tilewright.schedule.instance_orders import DepthFirst


def split_program() -> Program:
    """Two images, each in two parts."""
    b = GraphBuilder()
    x = b.input(2, 4, 8, 8)
    graph = b.finish(b.op("Conv", x, b.constant(4, 4, 3, 3), pads=(1,) * 4))
    planner = GraphTurbo(capacity_bytes=x.size_bytes * 3 // 4, element_bytes=4)
    partition = planner.solve(PartitionProblem(graph), Budget())
    schedule = DepthFirst().solve(ScheduleProblem(partition, allows_slices=True), Budget())
    return Program(graph, partition, schedule, Options())


def test_slices_are_read_as_they_were_written() -> None:
    program = split_program()
    document = json.loads(json.dumps(encode_plan(program)))
    read = decode_plan(document, program.graph, program.options)
    written = list(program.schedule.instances())
    assert sorted(i.index for i in written) == [0, 1, 2, 3]
    assert list(read.schedule.instances()) == written
    assert [len(split.cuts) for split in program.partition.splits] == [2]
    assert read.schedule.splits == read.partition.splits == program.partition.splits
    for ours, theirs in zip(program.partition.subgraphs, read.partition.subgraphs, strict=True):
        layers = [layer.nodes for layer in program.partition.layers_of(ours)]
        assert [layer.nodes for layer in read.partition.layers_of(theirs)] == layers
    assert read.partition.element_bytes == program.partition.element_bytes
    assert encode_plan(read) == document


def test_whole_subgraphs_of_a_split_partition_are_read_as_such() -> None:
    program = split_program()
    schedule = DepthFirst().solve(ScheduleProblem(program.partition), Budget())
    program = replace(program, schedule=schedule)
    document = json.loads(json.dumps(encode_plan(program)))
    read = decode_plan(document, program.graph, program.options)
    assert read.schedule.splits == (WHOLE,) != read.partition.splits


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (("schedule", "stages", 0, 0, "instances", 0), [0, 4], "with the index of an instance"),
        (("schedule", "stages", 0, 0, "instances", 0), [1], "with the index of an instance"),
        (("schedule", "stages", 0, 0, "instances", 0), [], "with the index of an instance"),
        (("schedule", "stages", 0, 0, "instances", 0), [0, 1, 2], "with the index of an instance"),
        (("partition", "splits", 0), [0, 0], "with axes and factors"),
        (("partition", "splits", 0), [1, 0, 2], "with axes and factors"),
        (("partition", "splits", 0), [0, 9, 2], "cannot be split"),
        (("partition", "splits", 0), [0, 0, 3], "cannot be split"),
        (("partition", "splits", 0), [0, 0, 2, 0, 2], "cannot be split"),
        (("partition", "layers"), [[[]]], "layers are not those"),
        (("partition", "layers"), [], "layers are not those"),
        (("partition", "element_bytes"), {"int8": 1}, "no size of"),
        (("partition", "element_bytes"), {"float32": 0}, "no size of"),
    ],
)
def test_splits_that_do_not_fit_are_refused(where: tuple[str | int, ...], value: object, said: str) -> None:
    program = split_program()
    document = json.loads(json.dumps(encode_plan(program)))
    field = document
    for step in where[:-1]:
        field = field[step]
    field[where[-1]] = value
    with pytest.raises(ValueError, match=said):
        decode_plan(document, program.graph, program.options)


def blockwise_program() -> Program:
    """A convolution in blocks of two lines."""
    b = GraphBuilder()
    x = b.input(1, 4, 8, 8)
    graph = b.finish(b.op("Conv", x, b.constant(4, 4, 3, 3), pads=(1,) * 4))
    problem = PartitionProblem(graph)
    chain = Chain((0,), Form.whole(1, Blocking((1, 4, 2, 8), 2), 0.25))
    partition = merge_chains(problem, Layerwise().solve(problem, Budget()), [chain])
    schedule = DepthFirst().solve(ScheduleProblem(partition), Budget())
    return Program(graph, partition, schedule, Options())


def test_forms_are_read_as_they_were_written() -> None:
    program = blockwise_program()
    document = json.loads(json.dumps(encode_plan(program)))
    read = decode_plan(document, program.graph, program.options)
    assert [s.form for s in read.partition.subgraphs] == [Form.whole(1, Blocking((1, 4, 2, 8), 2), 0.25)]
    assert "kernels" not in encode_plan(split_program())["partition"]


def test_every_kernel_of_a_form_is_written() -> None:
    b = GraphBuilder()
    x = b.input(1, 4, 8, 8)
    hidden = b.op("Conv", x, b.constant(4, 4, 3, 3), pads=(1,) * 4)
    graph = b.finish(b.op("Relu", b.op("Conv", hidden, b.constant(4, 4, 1, 1))))
    choice = ("8f00", Choice.of("contraction", rows=4))
    kernels = (KernelForm((0,), choices=(choice,)), KernelForm((1, 2), Blocking((1, 4, 2, 8)), 0.5))
    problem = PartitionProblem(graph)
    partition = merge_chains(problem, Layerwise().solve(problem, Budget()), [Chain((0, 1), Form(kernels))])
    schedule = DepthFirst().solve(ScheduleProblem(partition), Budget())
    document = json.loads(json.dumps(encode_plan(Program(graph, partition, schedule, Options()))))
    read = decode_plan(document, graph, Options())
    assert [s.form for s in read.partition.subgraphs] == [Form(kernels)]
    reasons = [str(decision.reason) for decision in read.partition.decisions]
    assert reasons == ["separate", "epilogue"]


def test_forms_of_older_artifacts_are_of_whole_subgraphs() -> None:
    program = blockwise_program()
    document = json.loads(json.dumps(encode_plan(program)))
    del document["partition"]["kernels"]
    document["partition"]["forms"] = [[0, [1, 4, 2, 8], 2, 0.25]]
    read = decode_plan(document, program.graph, program.options)
    assert [s.form for s in read.partition.subgraphs] == [s.form for s in program.partition.subgraphs]


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"subgraph": 1}, "subgraph 1 of 1"),
        ({"nodes": [1]}, "no positions of 1 nodes"),
        ({"nodes": []}, "no positions of 1 nodes"),
        ({"block": [1, 4, 2]}, "no blocking of results"),
        ({"block": [1, 4, 9, 8]}, "no blocking of results"),
        ({"block": [1, 4, 0, 8]}, "no blocking of results"),
        ({"strip": 0}, "no blocking of results"),
        ({"saved_share": "much"}, "kernels"),
        ({"choices": {"8f00": {"rows": 4}}}, "no choice of a template"),
    ],
)
def test_forms_that_do_not_fit_are_refused(form: dict[str, object], said: str) -> None:
    program = blockwise_program()
    document = json.loads(json.dumps(encode_plan(program)))
    (stored,) = document["partition"]["kernels"]
    stored["subgraph"] = form.pop("subgraph", 0)
    stored["kernels"][0] |= form
    with pytest.raises(ValueError, match=said):
        decode_plan(document, program.graph, program.options)
