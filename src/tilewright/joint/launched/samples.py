"""Plans of one sample of a network, run for each of its samples.

Kernels that hold one sample at a time keep in the cores' buffers what those of all samples would move through
main memory, and one sample is planned in a fraction of the time. Where samples are computed alone, a plan of
one is a plan of all: each kernel in slices of samples, each slice cut again as that one's kernel is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewright.errors import ModelRejected
from tilewright.ir.extract import twin_of
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.ops import describe
from tilewright.ir.ops.registry import sizing_of
from tilewright.joint.launched.content import Content, Kernel, Numbered
from tilewright.partition.analysis import Analysis
from tilewright.partition.axes import Axis, IndependentAxes
from tilewright.partition.split import split_of
from tilewright.records import dataclass
from tilewright.schedule.base import Group, Stage

_MOST_SAMPLES = 32
"""Of more samples, as rows of a table are, one fills no core, and so many slices take long to simulate."""


@dataclass(frozen=True, slots=True, eq=False)
class OneSample:
    """The graph of one of so many samples, with a node for each of the network's, in the same order; `axes`
    count the samples of the network's values."""

    graph: Graph
    num_samples: int
    axes: Mapping[Value, int]

    def repeated(self, contents: Sequence[Content], numbered: Numbered) -> Iterator[Content]:
        """Blocks of the network, whose nodes are `numbered`, that run those of one sample for each sample.
        What cannot run for some samples alone, as kernels that are merged, is kernels of all of them."""
        for content in contents:
            kernels = [self._repeated(kernel, numbered) for kernel in content.kernels]
            found = tuple(kernel for kernel in kernels if kernel is not None)
            merges = any(stage.strategy == "merge" for stage in content.stages)
            if merges or len(found) < len(kernels):
                yield from (Content.of_kernel(kernel.layers) for kernel in content.kernels)
            elif len(found) == 1 and not any(g.has_lanes for s in content.stages for g in s.groups):
                yield Content.of_kernel(found[0].layers, found[0].split)
            else:
                yield Content(found, self._stages(content))

    def _repeated(self, kernel: Kernel, numbered: Numbered) -> Kernel | None:
        """A kernel in slices of single samples, each cut as before; of layers that are tiled jointly the
        operators run one after another. None where its results count samples along different axes."""
        axes = {self.axes[value] for value in numbered.outputs(kernel.mask)}
        if len(axes) != 1:
            return None
        cuts = [(axes.pop(), self.num_samples), *kernel.split.cuts]
        if len(dict(cuts)) < len(cuts):  # slices of one axis are no slices of slices
            return None
        split = split_of(cuts, keeps_rows=kernel.split.chain_length > 1)
        return replace(kernel, split=replace(split, cores=kernel.split.cores))

    def _stages(self, content: Content) -> tuple[Stage, ...]:
        """The stages of a block sample by sample; where there is one, its groups run all samples."""
        sizes = [kernel.split.num_instances for kernel in content.kernels]
        samples = range(self.num_samples)

        def group(old: Group, chosen: Sequence[int]) -> Group:
            moved = (
                replace(i, index=i.index + sample * sizes[i.subgraph_id])
                for sample in chosen
                for i in old.instances
            )
            return replace(old, instances=tuple(moved), inside=old.inside * len(chosen))

        turns = [samples] if len(content.stages) == 1 else [[sample] for sample in samples]
        return tuple(
            replace(stage, groups=tuple(group(old, chosen) for old in stage.groups))
            for chosen in turns
            for stage in content.stages
        )


def one_sample(graph: Graph, analysis: Analysis) -> OneSample | None:
    """The graph of one sample, for prices alone: constants are those of all samples. None where the network
    has one sample, or not all of it is computed for each sample alone.

    Samples are what the first axis of all inputs counts.
    """
    count = graph.num_samples
    if not 1 < count <= _MOST_SAMPLES:
        return None
    first, axes = graph.inputs[0], analysis.axes
    if first.shape[:1] != (count,) or axes.units_of(first, 0) < count:
        return None
    values = [*graph.inputs, *(value for node in graph.nodes for value in node.results())]
    found = {value: _axis_of(value, axes, axes.class_of(first, 0)) for value in values}
    counted = {value: axis for value, axis in found.items() if axis is not None}
    if len(counted) < len(values):
        return None
    copies: dict[Value, Value] = {}

    def copied(value: Value) -> Value:
        if value not in copies:
            shape = list(value.shape)
            if value in counted:
                shape[counted[value]] //= count
            copies[value] = Value(value.name, value.dtype, shape, value.stored)
        return copies[value]

    small = Graph(graph.name)
    for value in graph.inputs:
        small.add_input(copied(value))
    try:
        for node in graph.nodes:
            twin = small.append(twin_of(node, copied))
            small.set_inputs(twin, _sized(twin, small))  # and describe it anew
            if not _takes_a_share(twin, node, count):
                return None
    except ModelRejected:  # a constant, or an attribute, counts samples
        return None
    small.outputs = [copied(value) for value in graph.outputs]
    return OneSample(small, count, counted)


def _axis_of(value: Value, axes: IndependentAxes, samples: Axis) -> int | None:
    """The axis of a value that counts samples, if one does."""
    shape = value.shape
    own = (axis for axis, extent in enumerate(shape) if extent > 1 and axes.class_of(value, axis) == samples)
    return next(own, None)


def _sized(node: Node, graph: Graph) -> list[Value | None]:
    """The operands of a node; a constant one that decides the shape of its result holds this one."""
    inputs = list(node.inputs)
    sizing = None if node.domain else sizing_of(node.op_type)
    if sizing is not None and node.constant(sizing.operand) is not None:
        held = sizing.data(node, node.require(0).shape, node.output.shape)
        inputs[sizing.operand] = graph.constant(np.array(held, np.int64), f"{node.name}.{sizing.name}")
    return inputs


def _takes_a_share(node: Node, whole: Node, count: int) -> bool:
    """Whether a node takes one of so many shares of all steps of another, nest by nest."""
    own, nests = describe(node), describe(whole)
    if not isinstance(own, tuple) or not isinstance(nests, tuple) or len(own) != len(nests):
        return False
    return all(a.num_iterations * count == b.num_iterations for a, b in zip(own, nests, strict=True))
