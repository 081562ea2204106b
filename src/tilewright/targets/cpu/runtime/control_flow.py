"""If, Loop and Scan whose bodies are compiled code: run on memory at given addresses.

A body is compiled for the shapes that it is given, as a model of its own. Of an If, the branch that is taken
runs. A loop hands its states on by address: two buffers for each, which change places after a step; what it
scans and stacks is read and written where it lies, a step further each time. Where a body is one call of
generated code, many steps are one call (`tw_loop`).
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import InputError, InternalError, ModelRejected
from tilewright.frontend.onnx.body_models import BodyModel, body_model
from tilewright.ir.control_flow import CONTROL_FLOW
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Shape, Value
from tilewright.ir.work import MAX_COMPILED_LOOP_STEPS, MAX_HOST_ELEMENTS
from tilewright.system.forks import ForkSafeLock
from tilewright.targets.base import Executable
from tilewright.targets.cpu.runtime.executable import CpuExecutable, TensorSpec
from tilewright.targets.cpu.runtime.executor import StepPlan
from tilewright.targets.cpu.runtime.main_code import FIRST_CALLER_BASE

Compile = Callable[[Graph], Executable]

_CALL_S, _FACTOR = 0.02, 4
"""The time of a call of generated code below which the next one takes so many times as many steps, and above
which fewer: between two calls an interrupt takes effect."""
_FIRST_ROWS = 64
"""Of what is stacked where nothing says how many steps there will be."""
FOR_EVER = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class BodyCode:
    """A body at given shapes: its code, and where its results come from.

    `sources` say of each result that no kernel writes what it is: a base of the main, or an array.
    """

    executable: CpuExecutable
    input_bases: Mapping[str, int]
    output_bases: tuple[int, ...]
    results: tuple[TensorSpec, ...]
    sources: Mapping[int, int | Array]

    @classmethod
    def of(cls, model: BodyModel, executable: Executable) -> BodyCode:
        """The code of a body that was compiled."""
        assert isinstance(executable, CpuExecutable)
        inputs = {spec.name: FIRST_CALLER_BASE + i for i, spec in enumerate(executable.inputs)}
        first = FIRST_CALLER_BASE + len(inputs)
        outputs = {spec.name: (first + i, spec) for i, spec in enumerate(executable.outputs)}
        found = [outputs[name] for name in model.results]
        sources: dict[int, int | Array] = {}
        for number, name in enumerate(model.results):
            source = executable.passthrough.get(name)
            if source is not None:
                sources[number] = inputs[source] if isinstance(source, str) else np.ascontiguousarray(source)
        return cls(executable, inputs, tuple(b for b, _ in found), tuple(s for _, s in found), sources)

    @property
    def num_bases(self) -> int:
        """Of the main, those that it is given."""
        return FIRST_CALLER_BASE + len(self.executable.inputs) + len(self.executable.outputs)


class _Allowance(threading.local):
    """Steps that the loops of a run may still take, those of loops inside included."""

    def __init__(self) -> None:
        self.depth = 0
        self.left = 0


_allowance = _Allowance()


class IfCode:
    """An If at given shapes. A branch is compiled when it is first taken."""

    def __init__(self, node: Node, shapes: Mapping[str, Shape], compile_body: Compile) -> None:
        self._node = node
        self._shapes = shapes
        self._compile = compile_body
        self._branches: dict[str, _Branch | None] = {}
        self._lock = ForkSafeLock()

    def branch(self, name: str) -> _Branch | None:
        """The branch of that attribute; None where data decide shapes in it.

        Raises:
            InputError: it does not fit the shapes, at which the other one would run.
            UnsupportedOp: it cannot be built.
        """
        try:
            return self._branches[name]
        except KeyError:
            pass
        with self._lock:
            if name not in self._branches:
                model = body_model(self._node, name)
                try:
                    graph = model.prepared.static_graph(_of_inputs(model, self._shapes))
                except ModelRejected as error:  # which other inputs would not have led to
                    raise InputError(*error.args) from error
                code = None if graph is None else BodyCode.of(model, self._compile(graph))
                self._branches[name] = None if code is None else _Branch(self._node, code)
            return self._branches[name]


class _Branch:
    """A branch, called by the addresses of what it captures."""

    def __init__(self, node: Node, code: BodyCode) -> None:
        self.code = code
        if len(code.results) != len(node.outputs):
            raise ModelRejected(
                f"{node!r} has {len(node.outputs)} results, its branch gives {len(code.results)}."
            )
        order = [value.name for value in node.captures]
        self._captures = [order.index(spec.name) for spec in code.executable.inputs]
        first = FIRST_CALLER_BASE + len(code.executable.inputs)
        self._places = sorted(range(len(code.results)), key=lambda number: code.output_bases[number])
        if [code.output_bases[number] - first for number in self._places] != list(range(len(code.results))):
            raise InternalError(f"{node!r}: its branch has outputs that are none of its results.")
        self._copies = [
            (
                number,
                None if isinstance(source, int) else source.ctypes.data,
                source - FIRST_CALLER_BASE if isinstance(source, int) else 0,
                code.results[number].size_bytes,
            )
            for number, source in code.sources.items()
        ]

    def run(self, captures: Sequence[int], places: Sequence[int]) -> None:
        """Write the results to these places."""
        executable = self.code.executable
        inputs = [captures[i] for i in self._captures]
        executable.run_at(inputs, [places[i] for i in self._places])
        for number, address, source, size_bytes in self._copies:
            ctypes.memmove(places[number], inputs[source] if address is None else address, size_bytes)


class Row(NamedTuple):
    """Where the first step reads or writes, and the distance in bytes to the next."""

    address: int
    distance: int


def row(address: int, distance: int, num_rows: int, backward: bool) -> Row:
    """The rows of something that lies at an address, from the first or from the last one."""
    return Row(address + (num_rows - 1) * distance, -distance) if backward else Row(address, distance)


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Memory for the results of a loop: addresses of states, and rows of what is stacked, so many."""

    states: Sequence[int]
    stacks: Sequence[Row]
    num_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class LoopResults:
    """Steps that were taken, and arrays of what was given no place."""

    num_steps: int
    states: list[Array]
    stacks: list[Array]


class LoopCode:
    """A Loop or Scan at given shapes, whose states keep theirs."""

    def __init__(self, node: Node, code: BodyCode, model: BodyModel, num_states: int) -> None:
        self.node, self.code, self.num_states = node, code, num_states
        results = code.results if node.op_type == "Scan" else code.results[1:]
        self.states, self.stacks = results[:num_states], results[num_states:]
        self._captures = [
            (number, code.input_bases[value.name])
            for number, value in enumerate(node.captures)
            if value.name in code.input_bases
        ]
        parameters = [None if name is None else code.input_bases[name] for name in model.parameters]
        self._number_base: int | None = None
        if node.op_type == "Loop":
            self._number_base, _, *parameters = parameters
        present = [base for base in parameters if base is not None]
        self.state_bases, self._scanned_bases = present[:num_states], present[num_states:]
        first = 0 if node.op_type == "Scan" else 1
        self._state_places = code.output_bases[first : first + num_states]
        self._stack_places = code.output_bases[first + num_states :]
        self._first = first
        self._idle: list[_LoopRun] = []
        self.steps_of_call = 1
        """Of generated code, as calls so far say: few where one takes long."""

    @cached_property
    def _kept(self) -> frozenset[int]:
        """States that a body hands on as they are."""
        sources, first = self.code.sources, self._first
        return frozenset(
            k
            for k, base in enumerate(self.state_bases)
            if isinstance(sources.get(first + k), int) and sources[first + k] == base
        )

    @cached_property
    def row_bytes(self) -> tuple[int, ...]:
        """Of a step, of each result that is stacked."""
        return tuple(spec.size_bytes for spec in self.stacks)

    @cached_property
    def goes_on(self) -> bool | None:
        """Whether a step is followed by another where the body alone says so; None where data do."""
        if self._first == 0:
            return True
        source = self.code.sources.get(0)
        return bool(source.reshape(-1)[0]) if isinstance(source, np.ndarray) else None

    def adapt(self, num_steps: int, took_s: float) -> None:
        """Choose how many steps the next call takes, after one of so many."""
        if took_s >= _CALL_S:
            self.steps_of_call = max(1, num_steps // _FACTOR)
        else:
            self.steps_of_call = max(self.steps_of_call, num_steps * _FACTOR)

    def run(
        self,
        limit: int | None,
        going_on: bool,
        states: Sequence[int],
        captures: Sequence[int],
        scanned: Sequence[Row] = (),
        places: Places | None = None,
    ) -> LoopResults:
        """Final states, and what was stacked: in places, or in new arrays.

        States and captures are given by address, `scanned` by where the first step's lies.

        Raises:
            InputError: it takes too many steps, or stacks too much.
        """
        try:
            run = self._idle.pop()
        except IndexError:
            run = _LoopRun(self)
        if _allowance.depth == 0:
            _allowance.left = MAX_COMPILED_LOOP_STEPS
        _allowance.depth += 1
        try:
            run.begin(states, captures, scanned, places)
            run.take_steps(limit if going_on else 0)
            return run.results()
        finally:
            _allowance.depth -= 1
            self._idle.append(run)


class _LoopRun:
    """Memory for one run of a loop at a time: second buffers of states, tables, bases of the next step."""

    def __init__(self, loop: LoopCode) -> None:
        code = loop.code
        self._loop = loop
        self._number, self._goes_on = ctypes.c_int64(0), ctypes.c_uint8(1)
        bases = [0] * code.num_bases
        bases[1] = code.executable.weights_address
        if loop._number_base is not None:
            bases[loop._number_base] = ctypes.addressof(self._number)
        if loop._first:
            bases[code.output_bases[0]] = ctypes.addressof(self._goes_on)
        self._swaps: list[tuple[int, int]] = []
        self._seconds: list[Array] = []
        states = zip(loop.states, loop.state_bases, loop._state_places, strict=True)
        for k, (spec, into, place) in enumerate(states):
            is_kept = k in loop._kept
            self._seconds.append(np.empty((0,) if is_kept else spec.shape, spec.dtype.numpy))
            if not is_kept:
                self._swaps.append((into, place))
        self._second_addresses = [array.ctypes.data for array in self._seconds]
        for (into, _), k in zip(self._swaps, self._changing(), strict=True):
            bases[into] = self._second_addresses[k]
        self._sizes = [spec.size_bytes for spec in loop.states]
        self._first_bases = [*bases, code.executable.max_rows]
        self._new_bases = ctypes.c_uint64 * len(self._first_bases)
        self._plans: dict[tuple[int, ...], StepPlan] = {}
        self._executor = code.executable.executor

    def _changing(self) -> list[int]:
        """States that a step changes."""
        return [k for k in range(self._loop.num_states) if k not in self._loop._kept]

    def begin(
        self, states: Sequence[int], captures: Sequence[int], scanned: Sequence[Row], places: Places | None
    ) -> None:
        """Before the first step."""
        loop = self._loop
        bases = self._bases = self._new_bases(*self._first_bases)
        for number, base in loop._captures:
            bases[base] = captures[number]
        distances = [distance for _, distance in scanned]
        for base, (address, _) in zip(loop._scanned_bases, scanned, strict=True):
            bases[base] = address
        self._written: list[Array] = []
        if places is None:
            self._written = [np.empty(spec.shape, spec.dtype.numpy) for spec in loop.states]
            self._places: Sequence[int] = [array.ctypes.data for array in self._written]
            self._stacked = [np.empty((0, *spec.shape), spec.dtype.numpy) for spec in loop.stacks]
            self._num_rows = 0
            distances += loop.row_bytes
        else:
            self._places, self._stacked, self._num_rows = places.states, [], places.num_rows
            for base, (address, distance) in zip(loop._stack_places, places.stacks, strict=True):
                bases[base] = address
                distances.append(distance)
        self._is_placed = places is not None
        pairs = zip(loop.state_bases, loop._state_places, strict=True)
        for k, (into, place) in enumerate(pairs):
            if k in loop._kept:
                bases[into] = states[k]
            else:
                ctypes.memmove(self._second_addresses[k], states[k], self._sizes[k])
                bases[place] = self._places[k]
        self._done = 0
        key = tuple(distances)
        plan = self._plans.get(key)
        self._plan = self._plans.setdefault(key, self._new_plan(key)) if plan is None else plan

    def _new_plan(self, distances: Sequence[int]) -> StepPlan:
        loop, copies = self._loop, []
        for number, source in loop.code.sources.items():
            k = number - loop._first
            if k in loop._kept or (k < 0 and loop.goes_on is not None):
                continue
            size_bytes, place = loop.code.results[number].size_bytes, loop.code.output_bases[number]
            if isinstance(source, int):
                copies.append((source, 0, place, size_bytes))
            else:
                copies.append((-1, source.ctypes.data, place, size_bytes))
        moving = [*loop._scanned_bases, *loop._stack_places]
        condition = ctypes.addressof(self._goes_on) if loop.goes_on is None else None
        moves = list(zip(moving, distances, strict=True))
        return StepPlan(copies, moves, self._swaps, ctypes.addressof(self._number), condition)

    def take_steps(self, limit: int | None) -> None:
        """As many as there are, at most so many."""
        loop, allowance = self._loop, _allowance
        end = FOR_EVER if limit is None else max(limit, 0)
        if loop.goes_on is False:
            end = min(end, 1)
        if loop.goes_on and limit is not None:
            self._require_allowed(end)
        while self._done < end:
            if self._done >= self._num_rows:
                self._grow(end if loop.goes_on is not None and limit is not None else None)
            until = min(end, self._done + loop.steps_of_call, self._num_rows)
            before, began = self._done, time.perf_counter()
            self._done = self._steps(before, until)
            loop.adapt(until - before, time.perf_counter() - began)
            allowance.left -= self._done - before
            self._require_allowed(0)
            if self._done < until or (loop.goes_on is None and not self._goes_on.value):
                return

    def _require_allowed(self, count: int) -> None:
        if count > _allowance.left or _allowance.left < 0:
            node = self._loop.node
            raise InputError(
                f"{node.op_type} {node.name!r} takes more than {MAX_COMPILED_LOOP_STEPS} steps "
                "(MAX_COMPILED_LOOP_STEPS), those of loops inside included; feed it fewer."
            )

    def _steps(self, start: int, end: int) -> int:
        """Steps [start, end); the one at which they ended."""
        executor, bases, plan = self._executor, self._bases, self._plan
        if executor is not None and executor.is_native:
            return executor.run_steps(bases, plan, start, end)
        for step in range(start, end):
            self._number.value = step
            if executor is not None:
                executor.run(bases[1:])
            for source, address, target, size_bytes in plan.copies:
                ctypes.memmove(bases[target], address if source < 0 else bases[source], size_bytes)
            for base, distance in plan.moves:
                bases[base] += distance
            for one, other in plan.swaps:
                bases[one], bases[other] = bases[other], bases[one]
            if plan.condition_address is not None and not self._goes_on.value:
                return step + 1
        return end

    def _grow(self, num_rows: int | None) -> None:
        """More room for what is stacked: for so many rows, or twice as much."""
        loop = self._loop
        if not loop.stacks:
            self._num_rows = FOR_EVER
            return
        if self._is_placed:
            raise InputError(
                f"{loop.node.op_type} {loop.node.name!r} takes more than the {self._num_rows} steps that its "
                "results are declared for; feed it fewer."
            )
        num_rows = max(_FIRST_ROWS, 2 * self._num_rows) if num_rows is None else num_rows
        largest = max(prod(spec.shape) for spec in loop.stacks)
        if num_rows * largest > MAX_HOST_ELEMENTS:
            num_rows = MAX_HOST_ELEMENTS // max(largest, 1)
        if num_rows <= self._done:
            raise InputError(
                f"{loop.node.op_type} {loop.node.name!r} stacks more than MAX_HOST_ELEMENTS = "
                f"{MAX_HOST_ELEMENTS} elements; feed it fewer steps."
            )
        for number, (spec, base) in enumerate(zip(loop.stacks, loop._stack_places, strict=True)):
            grown = np.empty((num_rows, *spec.shape), spec.dtype.numpy)
            grown[: self._done] = self._stacked[number][: self._done]
            self._stacked[number] = grown
            self._bases[base] = grown.ctypes.data + self._done * loop.row_bytes[number]
        self._num_rows = num_rows

    def results(self) -> LoopResults:
        """States, and rows. After an even number of steps a state lies in its second buffer."""
        loop, is_second = self._loop, self._done % 2 == 0
        for k, into in enumerate(loop.state_bases):
            if k in loop._kept:
                ctypes.memmove(self._places[k], self._bases[into], self._sizes[k])
            elif is_second:
                ctypes.memmove(self._places[k], self._second_addresses[k], self._sizes[k])
        return LoopResults(self._done, self._written, [stacked[: self._done] for stacked in self._stacked])


def _of_inputs(model: BodyModel, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    return {name: shapes[name] for name in model.prepared.inputs}


def control_flow_code(
    node: Node, inputs: Sequence[Shape | None], captures: Sequence[Shape], compile_body: Compile
) -> IfCode | LoopCode | None:
    """The code of a control-flow node for operands of these shapes; None where data decide shapes in the
    body of a loop, or a state does not keep its shape.

    Raises:
        UnsupportedOp, ModelRejected: a body that cannot be built.
    """
    if node.op_type not in CONTROL_FLOW:
        raise InternalError(f"{node!r} is no control flow.")
    shapes = dict(zip((value.name for value in node.captures), captures, strict=True))
    if node.op_type == "If":
        return IfCode(node, shapes, compile_body)
    model = body_model(node, "body")
    if node.op_type == "Scan":
        slices = scanned_shapes(node, [shape for shape in inputs if shape is not None])
        num_states = len(slices) - node.int_attr("num_scan_inputs", 1)
        states = slices[:num_states]
    else:
        states = [shape for shape in inputs[2:] if shape is not None]
        slices, num_states = [(), (), *states], len(states)
    shapes.update((name, shape) for name, shape in zip(model.parameters, slices, strict=True) if name)
    graph = model.prepared.static_graph(_of_inputs(model, shapes))
    if graph is None:
        return None
    found = {value.name: value for value in graph.outputs}
    results = [found[name] for name in model.results][0 if node.op_type == "Scan" else 1 :]
    if any(value.shape != shape for value, shape in zip(results, states, strict=False)):
        return None
    given = [value.dtype for value in node.inputs[0 if node.op_type == "Scan" else 2 :] if value is not None]
    _require_types(node, results, given[:num_states])
    if node.op_type == "Loop":
        going_on = found[model.results[0]]
        if going_on.dtype is not DType.BOOL or going_on.num_elements != 1:
            raise ModelRejected(f"{node!r}: its body gives the condition {going_on!r}, expected bool[].")
    return LoopCode(node, BodyCode.of(model, compile_body(graph)), model, num_states)


def _require_types(node: Node, results: Sequence[Value], states: Sequence[DType]) -> None:
    """That a body gives as many results as the node has, and states of the types that it is given."""
    if len(results) != len(node.outputs) or len(results) < len(states):
        raise ModelRejected(f"{node!r} has {len(node.outputs)} results, its body gives {len(results)}.")
    for value, dtype in zip(results, states, strict=False):
        if value.dtype is not dtype:
            raise ModelRejected(f"{node!r}: its body gives the state {value!r}, expected {dtype}.")


def scanned_shapes(node: Node, inputs: Sequence[Shape]) -> list[Shape]:
    """Shapes of what the body of a Scan is given."""
    num_scanned = node.int_attr("num_scan_inputs", 1)
    axes = node.ints_attr("scan_input_axes", [0] * num_scanned) or [0] * num_scanned
    num_states = len(inputs) - num_scanned
    slices = []
    for shape, axis in zip(inputs[num_states:], axes, strict=True):
        axis %= len(shape)
        slices.append((*shape[:axis], *shape[axis + 1 :]))
    return [*inputs[:num_states], *slices]
