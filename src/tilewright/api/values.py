"""Values and bindings for `InferenceSession`, as onnxruntime's `OrtValue` and `IOBinding`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.arguments import as_array, shown
from tilewright.arrays import Array
from tilewright.compiled_facts import TensorInfo
from tilewright.errors import UsageError
from tilewright.ir.dtype import DType

if TYPE_CHECKING:
    from tilewright.compiled import CompiledModel


class OrtValue:
    """A tensor in this machine's memory, shared with the array that it was made of."""

    def __init__(self, array: Array) -> None:
        self._array = array

    @classmethod
    def ortvalue_from_numpy(cls, numpy_obj: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """A value that shares an array's memory; tensors of other libraries are taken by DLPack."""
        _require_cpu(device_type)
        return cls(as_array("value", numpy_obj))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """A value of new memory that is not set to anything."""
        _require_cpu(device_type)
        return cls(np.empty(tuple(shape), element_type))

    @classmethod
    def from_dlpack(cls, value: Any) -> OrtValue:
        """A value that shares the memory of another library's tensor."""
        return cls(as_array("value", value))

    def numpy(self) -> Array:
        """The array; not a copy, as onnxruntime's is."""
        return self._array

    def shape(self) -> list[int]:
        """Its extents."""
        return list(self._array.shape)

    def data_ptr(self) -> int:
        """Address of its first element."""
        return int(self._array.ctypes.data)

    def data_type(self) -> str:
        """Its type in ONNX's words.

        >>> OrtValue(np.zeros(2, np.float32)).data_type()
        'tensor(float)'
        """
        return TensorInfo("", DType.from_numpy(self._array.dtype), ()).type

    def device_name(self) -> str:
        """Where it lies."""
        return "cpu"

    def is_tensor(self) -> bool:
        """Sequences and maps are not taken."""
        return True

    def has_value(self) -> bool:
        """There is always memory behind it."""
        return True

    def update_inplace(self, np_arr: Any) -> None:
        """Set its elements.

        Raises:
            UsageError: an array of another shape or type.
        """
        array = as_array("value", np_arr)
        if array.shape != self._array.shape or array.dtype != self._array.dtype:
            raise UsageError(
                f"the value is {self._array.dtype}{self.shape()}, "
                f"the array {array.dtype}{list(array.shape)}: give one that fits."
            )
        self._array[...] = array

    def __dlpack__(self, **how: Any) -> Any:
        return self._array.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self._array, dtype=dtype, copy=copy)


class IOBinding:
    """Arrays that runs read and write, bound once: outputs lie where they were bound, in new memory else."""

    def __init__(self, compiled: CompiledModel) -> None:
        self._compiled = compiled
        self._feed: dict[str, Array] = {}
        self._into: dict[str, Array] = {}
        self._outputs: list[str] = []
        self._results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Read an input from an array, which is not copied where it is contiguous."""
        self._feed[self._known(name, self._compiled.facts.inputs).name] = as_array(name, arr_on_cpu)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Read an input from a value, of ours or of onnxruntime."""
        self.bind_cpu_input(name, _array_of(ortvalue))

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Read an input from memory that the caller keeps alive."""
        _require_cpu(device_type)
        self.bind_cpu_input(name, _array_at(buffer_ptr, element_type, shape))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output: in new memory, or at an address that the caller keeps alive.

        Raises:
            UsageError: no such output, another device, or an address without type and shape.
        """
        _require_cpu(device_type)
        spec = self._known(name, self._compiled.facts.outputs)
        if buffer_ptr is None:
            self._into.pop(name, None)
        else:
            given: Sequence[Any] = spec.shape if shape is None else shape
            if not all(isinstance(extent, int | np.integer) for extent in given):
                raise UsageError(f"output {name!r}: its shape is open in the model; give its shape here.")
            dtype = spec.dtype.numpy if element_type is None else element_type
            self._into[name] = _array_at(buffer_ptr, dtype, given)
        self._ask(name)

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Write an output to a value, of ours or of onnxruntime."""
        self._known(name, self._compiled.facts.outputs)
        self._into[name] = _array_of(ortvalue)
        self._ask(name)

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._feed.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._into.clear()
        self._outputs.clear()
        self._results.clear()

    def synchronize_inputs(self) -> None:
        """Nothing: there is one memory."""

    def synchronize_outputs(self) -> None:
        """Nothing: there is one memory."""

    def get_outputs(self) -> list[OrtValue]:
        """What the last run gave, in the order in which outputs were bound."""
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Copies of what the last run gave, in the order in which outputs were bound."""
        return [value.numpy().copy() for value in self._results]

    def run(self) -> None:
        """Run on what is bound.

        Raises:
            UsageError: no output is bound, or what is bound does not fit.
        """
        if not self._outputs:
            raise UsageError("no output is bound: call bind_output for each that is wanted.")
        names = [spec.name for spec in self._compiled.facts.outputs]
        results = dict(zip(names, self._compiled.run_into(self._feed, self._into), strict=True))
        self._results = [OrtValue(results[name]) for name in self._outputs]

    def _ask(self, name: str) -> None:
        if name not in self._outputs:
            self._outputs.append(name)

    def _known(self, name: str, specs: Sequence[TensorInfo]) -> TensorInfo:
        for spec in specs:
            if spec.name == name:
                return spec
        raise UsageError(f"cannot bind {shown(name)}: known are {', '.join(s.name for s in specs)}.")


def _array_of(ortvalue: Any) -> Array:
    """The array of a value; onnxruntime's gives its address, for its `numpy` copies."""
    if isinstance(ortvalue, OrtValue):
        return ortvalue.numpy()
    if not hasattr(ortvalue, "data_ptr") or not hasattr(ortvalue, "numpy"):
        raise UsageError(f"expected an OrtValue, found {shown(ortvalue)}: arrays go to bind_cpu_input.")
    copied = ortvalue.numpy()
    return _array_at(ortvalue.data_ptr(), copied.dtype, copied.shape, keep=ortvalue)


def _array_at(address: int, element_type: Any, shape: Sequence[int], keep: object = None) -> Array:
    """Memory as an array that keeps `keep` alive."""
    dtype = np.dtype(element_type)
    extents = tuple(int(extent) for extent in shape)
    size_bytes = math.prod(extents) * dtype.itemsize
    if not size_bytes:
        return np.empty(extents, dtype)
    memory = (ctypes.c_uint8 * size_bytes).from_address(address)
    memory.keep = keep
    return np.frombuffer(memory, dtype).reshape(extents)


def _require_cpu(device_type: str) -> None:
    if str(device_type).lower() != "cpu":
        raise UsageError(f"device {shown(device_type)}: values lie on the cpu.")
