"""What follows a shape that data decide, run node by node: for little work, it takes longer to make a graph.

A part that is interpreted at some shapes says of which types its values are. With these, its nodes run on
whatever arrays arrive, by the same reference semantics, without a graph for the shapes of each run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.frontend.onnx.prepared import PreparedModel, Step
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.specialise.parts import operator_results

Array = np.ndarray[Any, Any]

MAX_GROWTH = 2
"""Inputs of so many times the elements are little work still; larger ones are looked at again."""


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """The nodes of a model behind a shape that data decide, for inputs of at most so many elements;
    `constants` are all values that depend on no input."""

    steps: Sequence[Step]
    constants: Mapping[str, Array]
    dtypes: Mapping[str, DType]
    max_elements: int

    @classmethod
    def of(cls, model: PreparedModel, dtypes: Mapping[str, DType], feed: Mapping[str, Array]) -> Tail | None:
        """The nodes of a model that was little work on a feed; None where they cannot run one by one."""
        steps = model.steps(dtypes)
        if steps is None:
            return None
        constants = model.arrays()
        asked = []
        for step in steps:
            if constants.keys() >= set(filter(None, (*step.inputs, *step.captures))):
                constants.update(_results(step, constants, dtypes))
            else:
                asked.append(step)
        return cls(asked, constants, dtypes, MAX_GROWTH * _num_elements(feed))

    def takes(self, feed: Mapping[str, Array]) -> bool:
        """Whether it is little work on a feed, too."""
        return _num_elements(feed) <= self.max_elements

    def values(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Every value of a run, by name."""
        values = {**self.constants, **feed}
        for step in self.steps:
            values.update(_results(step, values, self.dtypes))
        return values


def _results(step: Step, values: Mapping[str, Array], dtypes: Mapping[str, DType]) -> dict[str, Array]:
    """What a node gives, by name."""

    def value(name: str) -> Value | None:
        return Value(name, dtypes[name], values[name].shape) if name else None

    node = Node(
        step.op_type,
        list(map(value, step.inputs)),
        [Value(name, dtypes[name], ()) if name else None for name in step.outputs],
        step.attributes,
        name=step.name,
        opset=step.opset,
        captures=[Value(name, dtypes[name], values[name].shape) for name in step.captures],
    )
    arrays = [values[name] if name else None for name in step.inputs]
    return operator_results(node, arrays, [values[name] for name in step.captures])


def _num_elements(feed: Mapping[str, Array]) -> int:
    return sum(array.size for array in feed.values())
