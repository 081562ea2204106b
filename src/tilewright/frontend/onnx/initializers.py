"""The arrays of a model's initializers, read once however often its graph is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from tilewright.frontend.onnx.external import is_external, read_external
from tilewright.frontend.onnx.origin import Origin
from tilewright.frontend.onnx.tensors import embedded_array

Array = np.ndarray[Any, Any]


class Initializers:
    """Reads initializers where they are stored; those of the model itself are kept by name.

    `known` are there already; `apart` are raw data that their messages do not hold. With `releases` the
    message of an initializer lets go of its data once they are read: they would be in memory twice for as
    long as the model is.
    """

    def __init__(
        self,
        origin: Origin,
        known: Mapping[str, Array] | None = None,
        apart: Mapping[str, Array] | None = None,
        *,
        releases: bool = False,
    ) -> None:
        self._origin = origin
        self._arrays = dict(known or {})
        self._apart = dict(apart or {})
        self._releases = releases

    def of_model(self, tensor: TensorProto) -> Array:
        """An initializer of the model, whose name is its own."""
        array = self._arrays.get(tensor.name)
        if array is None:
            array = self._arrays[tensor.name] = self._read(tensor, self._apart.pop(tensor.name, None))
            if self._releases:
                tensor.ClearField("raw_data")
        return array

    def of_body(self, tensor: TensorProto) -> Array:
        """An initializer of some body, whose name others may have, too."""
        return self._read(tensor, None)

    def _read(self, tensor: TensorProto, apart: Array | None) -> Array:
        if is_external(tensor):
            return read_external(tensor, self._origin)
        return embedded_array(tensor, apart)
