"""A compiled model on this CPU: code, constants and arena, called with numpy arrays."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tilewright.arguments import NOWHERE, as_array, missing_input, shown
from tilewright.arrays import Array
from tilewright.errors import UsageError
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.records import dataclass
from tilewright.targets.cpu.runtime.executor import CheckedIndex, Executor, HostCallback, RunTrace, StepTime
from tilewright.targets.cpu.runtime.main_code import ArgRef, MainCode
from tilewright.targets.cpu.runtime.output_memory import OutputMemory
from tilewright.targets.cpu.runtime.pool import not_enough_memory
from tilewright.targets.llvm.codegen import JitLibrary
from tilewright.targets.runs import PROCESSOR, CodeAtAddresses

if TYPE_CHECKING:
    from tilewright.targets.runs import HostRunner


NO_ROWS: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, type and shape of a model input or output."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the dense tensor."""
        return math.prod(self.shape) * self.dtype.size_bytes

    @classmethod
    def of(cls, value: Value) -> TensorSpec:
        """The spec of a graph value."""
        return cls(value.name, value.dtype, value.shape)


@dataclass(frozen=True, slots=True, eq=False)
class ConstantPlaces:
    """Where constants lie: their base is `address`, and `held` is what must not be collected."""

    address: int
    held: tuple[object, ...]


@dataclass(frozen=True, slots=True, eq=False)
class HostStep:
    """An operator that runs in Python: where its inputs, followed by its captures, and outputs lie."""

    node: Node
    inputs: tuple[ArgRef | None, ...]
    outputs: tuple[ArgRef | None, ...]

    def callback_of(self, run_operator: HostRunner) -> HostCallback:
        """The function that calls `run_operator` on arrays."""
        from tilewright.ir.interpret import require_shape

        def run(bases: Sequence[int]) -> None:
            arrays = [
                None if v is None or ref is None else _view(bases, ref, v)
                for v, ref in zip((*self.node.inputs, *self.node.captures), self.inputs, strict=True)
            ]
            num_inputs = len(self.node.inputs)
            captures = [a for a in arrays[num_inputs:] if a is not None]
            results = run_operator(self.node, arrays[:num_inputs], captures=captures)
            for value, ref, result in zip(self.node.outputs, self.outputs, results, strict=False):
                if value is None or ref is None or result is None:
                    continue
                require_shape(self.node, value, result)
                _view(bases, ref, value)[...] = result

        return run


def _view(bases: Sequence[int], ref: ArgRef, value: Value) -> Array:
    address = bases[ref.base_index] + ref.byte_offset
    if value.size_bytes == 0:
        return np.empty(value.shape, value.dtype.numpy)
    return bytes_at(address, value.size_bytes).view(value.dtype.numpy).reshape(value.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A constant of an arena: where it lies there, what equal ones have in common, and what writes it where
    zeros are."""

    offset: int
    size_bytes: int
    key: Callable[[], Hashable]
    write: Callable[[Array], None]


class Constants(Protocol):
    """The arena of constants, in memory or on disk."""

    @property
    def size_bytes(self) -> int:
        """Its size."""
        ...

    def fill(self, target: Array) -> None:
        """Write all of it into `target` (uint8, at least `size_bytes`)."""
        ...

    def pieces(self) -> Sequence[Piece]:
        """Each constant by itself; several threads may ask for keys and write."""
        ...


def bytes_at(address: int, size_bytes: int) -> Array:
    """Memory that another object keeps alive, as an array of bytes."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))


def _address(array: Array) -> int:
    """Where the data of a contiguous array lie: `array.ctypes` takes three times as long to say so."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]  # it has one
    except (BufferError, TypeError, ValueError):  # read-only, empty, or of a type that buffers lack
        return int(array.ctypes.data)


class CpuExecutable:
    """Runs a model. Any number of threads may call `run` at a time; equal inputs give equal bits."""

    def __init__(
        self,
        *,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        passthrough: Mapping[str, Array | str],
        main: MainCode,
        library: JitLibrary,
        weights: ConstantPlaces,
        arena_bytes: int,
        scratch_bytes: int,
        callbacks: Sequence[HostCallback],
        num_threads: int | None,
        index_checks: Sequence[CheckedIndex] = (),
        row_axes: Mapping[str, int] = NO_ROWS,
        rows_share: float = 0.0,
    ) -> None:
        """`passthrough` gives outputs that no kernel computes: a constant, or the name of an input.

        A run may have fewer rows, along `row_axes` of inputs, where there are any; so much of its work,
        `rows_share`, is less then.
        """
        self.row_axes = dict(row_axes)
        self.max_rows = max((s.shape[row_axes[s.name]] for s in inputs if s.name in row_axes), default=0)
        self.rows_share = rows_share
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._passthrough = dict(passthrough)
        self._read = [(spec, spec.name, np.dtype(spec.dtype.numpy), spec.shape) for spec in self.inputs]
        self._written = [
            (o.name, o.shape, np.dtype(o.dtype.numpy))
            for o in self.outputs
            if o.name not in self._passthrough
        ]
        self._output_memory = OutputMemory(math.prod(shape) * t.itemsize for _, shape, t in self._written)
        self._weights = weights
        self._executor = Executor(
            main,
            library,
            num_threads=num_threads,
            arena_bytes=arena_bytes,
            scratch_bytes=scratch_bytes,
            callbacks=callbacks,
            index_checks=index_checks,
        )
        self._has_steps = bool(main.segments)
        self._base_names = [None if o.name in self._passthrough else o.name for o in self.outputs]

    @property
    def num_threads(self) -> int:
        """Threads that share the work of a run."""
        return self._executor.num_threads

    def run(self, feed: Mapping[str, Array], into: Mapping[str, Array] = NOWHERE) -> dict[str, Array]:
        """Outputs by name for inputs by name: in the arrays of `into` where it has one, else in new ones.

        Raises:
            UsageError: an input is missing, unknown, or has another shape or type.
            InputError: the inputs make an index outside its axis, or a shape other than declared.
            ModelClosed: `close` was called.
            BudgetExceeded: the system does not give the memory for arena and outputs.
        """
        arrays = self._checked(feed)
        results = self._new_results(into)
        if self._has_steps:
            self._executor.run(self._bases(arrays, results, self.max_rows))
        return self._collected(arrays, results, into)

    def run_rows(self, feed: Mapping[str, Array], num_rows: int) -> dict[str, Array]:
        """Outputs of which the first rows are those of a run with so many: `run` says what else there is.

        Inputs have all rows; those behind the first `num_rows` are valid, but need not be computed.
        """
        if not 0 < num_rows <= self.max_rows:
            raise UsageError(
                f"a run of {num_rows} rows, where the model was compiled for 1 to {self.max_rows}."
            )
        arrays = self._checked(feed)
        results = self._new_results(NOWHERE)
        if self._has_steps:
            self._executor.run(self._bases(arrays, results, num_rows))
        return self._collected(arrays, results, NOWHERE)

    def run_past(
        self, feed: Mapping[str, Array], outputs: Mapping[str, Sequence[int]], num_past: int
    ) -> dict[str, Array]:
        """Outputs of a run whose caches have so many places; those of `outputs` have these shapes.

        Inputs are contiguous and of the run's own shapes, which is not checked here.
        """
        arrays = [feed[spec.name] for spec in self.inputs]
        try:
            results = {
                name: self._output_memory.empty(tuple(outputs.get(name, shape)), dtype)
                for name, shape, dtype in self._written
            }
        except MemoryError as error:
            raise not_enough_memory("outputs of a run", 0, error) from error
        if self._has_steps:
            self._executor.run(self._bases(arrays, results, num_past))
        return self._collected(arrays, results, NOWHERE)

    def at_addresses(self) -> CodeAtAddresses | None:
        """Its code on memory of the caller, raising what `run` does; None where an output is no kernel's."""
        if self._passthrough or not self._has_steps:
            return None
        weights, run, num_rows = self._weights, self._executor.run, self.max_rows

        def run_at(inputs: Sequence[int], outputs: Sequence[int], stream: int | None = None) -> None:
            run((weights.address, *inputs, *outputs, num_rows))

        return CodeAtAddresses(run_at, PROCESSOR, 1)

    @property
    def passthrough(self) -> Mapping[str, Array | str]:
        """Outputs that no kernel computes: a constant, or the name of an input."""
        return self._passthrough

    @property
    def executor(self) -> Executor | None:
        """What runs its code; None where there is none to run."""
        return self._executor if self._has_steps else None

    @property
    def weights_address(self) -> int:
        """Where its constants lie."""
        return self._weights.address

    def run_at(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Run on memory that the caller vouches for, as `at_addresses`; what no kernel computes is left."""
        if self._has_steps:
            self._executor.run((self._weights.address, *inputs, *outputs, self.max_rows))

    def run_profiled(self, feed: Mapping[str, Array]) -> tuple[StepTime, ...]:
        """Time of each generated step of one run; needs an executable compiled for profiling."""
        arrays = self._checked(feed)
        results = self._new_results(NOWHERE)
        return self._executor.run_profiled(self._bases(arrays, results, self.max_rows))

    def run_traced(self, feed: Mapping[str, Array]) -> tuple[dict[str, Array], RunTrace]:
        """Outputs, and the time of each step and chunk; needs an executable compiled with `trace`."""
        arrays = self._checked(feed)
        results = self._new_results(NOWHERE)
        trace = self._executor.run_traced(self._bases(arrays, results, self.max_rows))
        return self._collected(arrays, results, NOWHERE), trace

    def close(self) -> None:
        """Unload the code when the runs in progress have ended; later ones are refused with ModelClosed.

        Raises:
            UsageError: called in the middle of a run of the same thread.
        """
        self._executor.close()
        self._output_memory.clear()

    def _new_results(self, into: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays for the outputs that kernels write."""
        try:
            return {
                name: into[name] if name in into else self._output_memory.empty(shape, dtype)
                for name, shape, dtype in self._written
            }
        except MemoryError as error:
            size_bytes = sum(math.prod(shape) * dtype.itemsize for _, shape, dtype in self._written)
            raise not_enough_memory("outputs of a run", size_bytes, error) from error

    def _bases(self, arrays: Sequence[Array], results: Mapping[str, Array], num_rows: int) -> list[int]:
        """Addresses, and behind them the number of rows."""
        bases = [self._weights.address, *map(_address, arrays)]
        bases += [0 if name is None else _address(results[name]) for name in self._base_names]
        bases.append(num_rows)
        return bases

    def _collected(
        self, arrays: Sequence[Array], results: dict[str, Array], into: Mapping[str, Array]
    ) -> dict[str, Array]:
        if not self._passthrough:
            return results
        by_name = {spec.name: array for spec, array in zip(self.inputs, arrays, strict=True)}
        collected: dict[str, Array] = {}
        for spec in self.outputs:
            source = self._passthrough.get(spec.name)
            if source is None:
                collected[spec.name] = results[spec.name]
                continue
            value = by_name[source] if isinstance(source, str) else source
            place = collected[spec.name] = into[spec.name] if spec.name in into else np.empty_like(value)
            place[...] = value
        return collected

    def _checked(self, feed: Mapping[str, Array]) -> list[Array]:
        arrays: list[Array] = []
        for spec, name, dtype, shape in self._read:
            array = feed.get(name)
            if array is None:
                raise missing_input(name, [s.name for s in self.inputs], feed)
            if type(array) is not np.ndarray:
                array = as_array(name, array)
            if array.dtype != dtype or array.shape != shape:
                raise UsageError(
                    f"input {spec.name!r} is {array.dtype}{list(array.shape)}, "
                    f"the model was compiled for {spec.dtype}{list(spec.shape)}."
                )
            flags = array.flags
            if not flags.c_contiguous or not flags.aligned:
                array = np.require(array, requirements=["C", "A"])
            arrays.append(array)
        if len(feed) > len(arrays):
            unknown = next(name for name in feed if all(s.name != name for s in self.inputs))
            names = ", ".join(s.name for s in self.inputs)
            raise UsageError(f"unknown input {shown(unknown)}: this model takes {names}.")
        return arrays
