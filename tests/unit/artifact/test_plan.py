"""Plans as documents: what is read is what was written, slices of slices included."""

from __future__ import annotations

import json

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.artifact.plan import decode_plan, encode_plan
from tilewright.options import Options
from tilewright.partition import PartitionProblem
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.planning import Budget
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
    schedule = DepthFirst(split=True).solve(ScheduleProblem(partition), Budget())
    return Program(graph, partition, schedule, Options())


def test_slices_are_read_as_they_were_written() -> None:
    program = split_program()
    document = json.loads(json.dumps(encode_plan(program)))
    read = decode_plan(document, program.graph, program.options)
    written = list(program.schedule.instances())
    assert [len(i.slice.cuts) for i in written if i.slice is not None] == [2] * 4
    assert list(read.schedule.instances()) == written


def test_half_a_slice_is_refused() -> None:
    program = split_program()
    document = json.loads(json.dumps(encode_plan(program)))
    document["schedule"]["stages"][0][0]["instances"][0].pop()
    with pytest.raises(ValueError, match="axes, starts and ends"):
        decode_plan(document, program.graph, program.options)
