"""What follows a shape that data decide, run node by node: for little work, it takes longer to make a graph.

A part that is interpreted at some shapes says of which types its values are. With these, its nodes run on
whatever arrays arrive, by the same reference semantics, without a graph for the shapes of each run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.frontend.onnx.prepared import PreparedModel, Step
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Shape, Value
from tilewright.ir.ops.registry import find_operator
from tilewright.records import dataclass
from tilewright.specialise.parts import operator_results
from tilewright.targets.runs import HostRunner

MAX_GROWTH = 2
"""Inputs of so many times the elements are little work still; larger ones are looked at again."""


_HALF_BYTES = 2


class RepeatedStep:
    """A step that runs many times. Shapes are mostly those of the last run, and so is the node then."""

    def __init__(self, step: Step, dtypes: Mapping[str, DType], run_operator: HostRunner) -> None:
        self.operands = tuple(filter(None, step.inputs))
        self._step = step
        self._dtypes = dtypes
        self._run_operator = run_operator
        self._last: tuple[list[Shape], Node] | None = None

    def results(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """What the node gives, by name."""
        step = self._step
        captures = [values[name] for name in step.captures]
        arrays = [values[name] if name else None for name in step.inputs]
        shapes = [array.shape for array in (*arrays, *captures) if array is not None]
        last = self._last
        if last is None or last[0] != shapes:
            # Not locked: whichever of two threads is later, both have a node for their own shapes.
            last = self._last = (shapes, self._node(values))
        return operator_results(last[1], arrays, captures, self._run_operator)

    def reference(self, values: Mapping[str, Array]) -> Callable[[Mapping[str, Array]], Array] | None:
        """The reference alone of a step with one result, of operands as `values` but for their extents.

        None where there is none. A step must have run with the largest: what it may be given is not checked.
        """
        step = self._step
        node = self._node(values)
        operator = find_operator(node)
        names = (*step.inputs, *step.outputs)
        is_plain = len(step.outputs) == 1 and not step.captures and all(names)
        if operator is None or operator.reference is None or not is_plain:
            return None
        if any(self._dtypes[name].size_bytes == _HALF_BYTES for name in names):
            return None  # which references compute in a wider type
        compute, held_in = operator.reference, self._dtypes[step.outputs[0]].numpy

        def result(values: Mapping[str, Array]) -> Array:
            found = np.asarray(compute(node, [values[name] for name in step.inputs])[0])
            return found.astype(held_in, copy=False)

        return result

    def _node(self, values: Mapping[str, Array]) -> Node:
        step, dtypes = self._step, self._dtypes
        return Node(
            step.op_type,
            [Value(name, dtypes[name], values[name].shape) if name else None for name in step.inputs],
            [Value(name, dtypes[name], ()) if name else None for name in step.outputs],
            step.attributes,
            name=step.name,
            opset=step.opset,
            captures=[Value(name, dtypes[name], values[name].shape) for name in step.captures],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """The nodes of a model behind a shape that data decide, for inputs of at most so many elements;
    `constants` are all values that depend on no input."""

    steps: Sequence[RepeatedStep]
    constants: Mapping[str, Array]
    max_elements: int

    @classmethod
    def of(
        cls,
        model: PreparedModel,
        dtypes: Mapping[str, DType],
        feed: Mapping[str, Array],
        run_operator: HostRunner,
    ) -> Tail | None:
        """The nodes of a model that was little work on a feed; None where they cannot run one by one."""
        steps = model.steps(dtypes)
        if steps is None or not all(step.is_standard for step in steps):
            return None
        constants = model.arrays()
        asked = []
        for step in steps:
            repeated = RepeatedStep(step, dtypes, run_operator)
            if constants.keys() >= {*repeated.operands, *step.captures}:
                constants.update(repeated.results(constants))
            else:
                asked.append(repeated)
        return cls(asked, constants, MAX_GROWTH * _num_elements(feed))

    def takes(self, feed: Mapping[str, Array]) -> bool:
        """Whether it is little work on a feed, too."""
        return _num_elements(feed) <= self.max_elements

    def values(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Every value of a run, by name."""
        values = {**self.constants, **feed}
        for step in self.steps:
            values.update(step.results(values))
        return values


def _num_elements(feed: Mapping[str, Array]) -> int:
    return sum(array.size for array in feed.values())
