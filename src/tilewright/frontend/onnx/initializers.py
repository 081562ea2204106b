"""The arrays of a model's initializers, read once however often its graph is built."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import TensorProto

from tilewright.arrays import Array
from tilewright.frontend.onnx.external import is_external, read_external
from tilewright.frontend.onnx.origin import Origin
from tilewright.frontend.onnx.tensors import embedded_array
from tilewright.system.mapped_file import MappedFile, mapped_files


class Initializers:
    """Reads initializers where they are stored; those of the model itself are kept by name.

    `known` are there already; `apart` are raw data that their messages do not hold. With `releases` the
    message of an initializer lets go of its data once they are read: they would be in memory twice for as
    long as the model is; and files beside the model are mapped.
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
        self._maps: dict[str, MappedFile] = {}
        self._files = mapped_files((*self._arrays.values(), *self._apart.values()))

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

    def require_unchanged(self) -> None:
        """Raise unless the files that arrays lie in are as they were.

        Raises:
            UsageError: another program wrote to one.
        """
        for file in self._files:
            file.require_unchanged()

    def let_go(self) -> None:
        """Say that the arrays are not read now: those of mapped files need no memory."""
        for file in self._files:
            file.let_go(0, len(file))

    def _read(self, tensor: TensorProto, apart: Array | None) -> Array:
        if is_external(tensor):
            array = read_external(tensor, self._origin, self._maps if self._releases else None)
            self._files = tuple(dict.fromkeys((*self._files, *mapped_files([array]))))
            return array
        return embedded_array(tensor, apart)
