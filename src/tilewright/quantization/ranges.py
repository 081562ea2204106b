"""Ranges of a model's values, from the samples that it is calibrated on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from tilewright.arrays import Array
from tilewright.errors import InputError
from tilewright.quantization.points import activations_of

RANGE_RULES = ("minmax", "percentile")
"""All that was seen; or of each sample all but one value in ten thousand at either end, averaged."""

_SHARE_PERCENT = 0.01


class Ranges:
    """The least and the largest of each value, over samples that come one by one."""

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self._bounds: dict[str, tuple[float, float]] = {}
        self._num: dict[str, int] = {}

    def add(self, values: Mapping[str, Array]) -> None:
        """One more sample.

        Raises:
            InputError: a value that is no number.
        """
        for name, array in values.items():
            if not array.size:
                continue
            if not np.isfinite(array).all():
                raise InputError(f"{name!r} is NaN or infinite on a sample: nothing can be scaled by it.")
            num = self._num.get(name, 0)
            self._num[name] = num + 1
            if self._rule == "minmax":
                low, high = float(array.min()), float(array.max())
                known = self._bounds.get(name, (low, high))
                self._bounds[name] = min(low, known[0]), max(high, known[1])
            else:
                low, high = np.percentile(array, (_SHARE_PERCENT, 100 - _SHARE_PERCENT)).tolist()
                old = self._bounds.get(name, (0.0, 0.0))
                self._bounds[name] = ((old[0] * num + low) / (num + 1), (old[1] * num + high) / (num + 1))

    def bounds(self) -> Mapping[str, tuple[float, float]]:
        """By name; a value that no sample had is left out."""
        return self._bounds


def measured_values(model: ModelProto) -> tuple[str, ...]:
    """Names of the values whose ranges decide scales: what nodes make, and the model's own inputs."""
    floats = {i.name for i in model.graph.input if i.type.tensor_type.elem_type == TensorProto.FLOAT}
    made = {name for node in model.graph.node for name in node.output}
    constants = {tensor.name for tensor in model.graph.initializer}
    return tuple(n for n in activations_of(model) if n in made or (n in floats and n not in constants))


def widened(model: ModelProto, names: Iterable[str]) -> ModelProto:
    """The model with these values as its outputs, in this order."""
    wide = ModelProto()
    wide.CopyFrom(model)
    del wide.graph.output[:]
    known: Collection[ValueInfoProto] = (*model.graph.output, *model.graph.value_info, *model.graph.input)
    infos = {info.name: info for info in known}
    for name in names:
        info = infos.get(name) or helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        wide.graph.output.append(info)
    return wide
