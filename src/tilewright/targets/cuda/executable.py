"""A compiled model on a device: its memory, its graphs, and the operators that the host runs between them."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from tilewright.arguments import NOWHERE
from tilewright.arrays import Array
from tilewright.errors import ModelClosed, UsageError
from tilewright.ir.graph import Value
from tilewright.ir.interpret import fed_values, require_shape
from tilewright.ir.nest import outside_axis
from tilewright.planning.checking import require_right
from tilewright.steps import KERNEL_PREFIX
from tilewright.targets.cuda.check_graph import check_graph
from tilewright.targets.cuda.device import (
    ALIGNMENT_BYTES,
    Copy,
    Device,
    GraphNode,
    Join,
    KernelCode,
    Kernels,
    Launch,
    LoadedGraph,
    Memory,
    PinnedMemory,
    Span,
)
from tilewright.targets.cuda.dlpack import DeviceArray, taken
from tilewright.targets.cuda.lower import (
    VIEW_BYTES,
    Constant,
    Counters,
    HostOperator,
    KernelLaunch,
    Local,
    Reports,
    Storage,
    Tensor,
)
from tilewright.targets.cuda.placed import PlacedModel
from tilewright.targets.llvm.layout import REPORT_BYTES
from tilewright.targets.runs import CodeAtAddresses, HostRunner

NO_SPANS: Mapping[Tensor, Span] = MappingProxyType({})
NO_IMAGES: Mapping[str, Mapping[str, bytes]] = MappingProxyType({})


class CudaExecutable:
    """Runs a model on a device. Runs of several threads come one after another."""

    def __init__(
        self,
        placed: PlacedModel,
        priorities: Sequence[int],
        device: Device,
        run_operator: HostRunner,
        images: Mapping[str, Mapping[str, bytes]] = NO_IMAGES,
    ) -> None:
        """`priorities` are those of the plan's nodes; `images` are as `CudaCode` has them."""
        self._placed, self._device, self._run_operator = placed, device, run_operator
        self._priorities, self._images = priorities, images
        self._lock = threading.Lock()
        self._held: list[Memory | Kernels | LoadedGraph] = []
        self._is_closed = False
        self._graphs: list[LoadedGraph] = []
        self._direct: LoadedGraph | None = None
        self._given: dict[Tensor, Span] = {}
        self._in_use: tuple[int, object] = (0, None)  # what a run on a caller's stream may still use
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    # Loading.

    def _load(self) -> None:
        placed, device = self._placed, self._device
        graph, self._spans = placed.graph, dict[Tensor | int, Span]()
        arena = self._allocate(placed.arena_bytes, "arena")
        for tensor, offset in placed.offsets.items():
            self._spans[tensor] = Span(tensor.name, arena + offset, tensor.size_bytes)
        self._place_constants()
        self._empty = Span("empty", self._allocate(1, "empty"), 1)
        self._checks = [check for reports in placed.reports for check in reports.checks]
        reports = self._allocate(REPORT_BYTES * len(self._checks), "reports")
        for number, report in enumerate(placed.reports):
            size_bytes = REPORT_BYTES * len(report.checks)
            self._spans[id(report)] = Span(f"reports {number}", reports, size_bytes)
            reports += size_bytes
        for counters in placed.counters:
            self._spans[id(counters)] = self._zeros(4 * counters.number, "counters")
        self._no_reports = np.zeros(2 * len(self._checks), np.int64)
        self._inputs = [(v, self._outside(v)) for v in graph.inputs]
        roots = {placed.lowered.root(v): v for v in graph.outputs}
        self._outputs = {
            root: self._outside(root)
            for root in roots
            if root not in graph.inputs and not (isinstance(root, Value) and root.is_constant)
        }
        texts = {launch.kernel.symbol: launch.kernel.text for launch in placed.launches}
        modules = {name: KernelCode(text, self._images.get(name, {})) for name, text in texts.items()}
        kernels = self._kernels = device.load(tuple(modules.values()))
        self._held.append(kernels)
        segments = placed.planned.segments()
        self._steps = [
            self._step(numbers, kernels, is_first=i == 0, is_last=i == len(segments) - 1)
            for i, numbers in enumerate(segments)
        ]

    def _allocate(self, size_bytes: int, name: str) -> int:
        memory = self._device.allocate(max(size_bytes, ALIGNMENT_BYTES), name)
        self._held.append(memory)
        return memory.address

    def _zeros(self, size_bytes: int, name: str) -> Span:
        span = Span(name, self._allocate(size_bytes, name), size_bytes)
        self._device.write(span.address, np.zeros(size_bytes, np.uint8))
        return span

    def _outside(self, tensor: Tensor) -> PinnedMemory:
        """Memory of an input or output, on the device and on the host."""
        size_bytes = max(tensor.size_bytes, 1)
        pinned = self._device.pinned(size_bytes)
        self._held.append(pinned)
        if tensor not in self._spans:
            self._spans[tensor] = Span(tensor.name, self._allocate(size_bytes, tensor.name), size_bytes)
        return pinned

    def _place_constants(self) -> None:
        """Constants that kernels read, one after another in one allocation, each array once."""
        arrays: dict[int, tuple[Array, list[Tensor | int]]] = {}
        for launch in self._placed.launches:
            for storage in launch.args:
                if isinstance(storage, Constant):
                    arrays.setdefault(id(storage.data), (storage.data, []))[1].append(id(storage))
                elif isinstance(storage, Value | Local):
                    root = self._placed.lowered.root(storage)
                    if isinstance(root, Value) and root.data is not None:
                        arrays.setdefault(id(root.data), (root.data, []))[1].append(root)
        for root in map(self._placed.lowered.root, self._placed.graph.outputs):
            if isinstance(root, Value) and root.data is not None:
                arrays.setdefault(id(root.data), (root.data, []))[1].append(root)
        offsets, end = [], 0
        for data, _ in arrays.values():
            offsets.append(end)
            end += -(-data.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        base = self._allocate(end, "constants")
        for (data, keys), offset in zip(arrays.values(), offsets, strict=True):
            if data.nbytes:
                self._device.write(base + offset, np.ascontiguousarray(data))
            for key in keys:
                self._spans[key] = Span("constant", base + offset, data.nbytes)

    def _span(self, storage: Storage, given: Mapping[Tensor, Span]) -> Span:
        match storage:
            case Constant() | Reports() | Counters():
                return self._spans[id(storage)]
            case _ if storage.size_bytes:
                return self._part(storage, given)
        return self._empty

    def _part(self, tensor: Tensor, given: Mapping[Tensor, Span] = NO_SPANS) -> Span:
        """Where a tensor lies, perhaps within another; those of `given` lie there."""
        root, offset = self._placed.lowered.place(tensor)
        whole = given.get(root) or self._spans[root]
        if tensor.size_bytes == whole.size_bytes:
            return whole
        return Span(f"{tensor.name} in {whole.name}", whole.address + offset, tensor.size_bytes)

    def _step(
        self, numbers: Sequence[int], kernels: Kernels, *, is_first: bool, is_last: bool
    ) -> Callable[[], None]:
        """A graph, with the copies of inputs or outputs, or an operator on the host."""
        first = self._placed.planned.nodes[numbers[0]].work
        if isinstance(first, HostOperator):
            return lambda: self._on_host(first)
        arriving: dict[Tensor, Span] = {}
        if is_first:
            arriving |= {v: self._host_span(v, pinned) for v, pinned in self._inputs}
        leaving: list[tuple[Tensor, Span]] = []
        if is_last:  # what is empty has no bytes to copy, though it has memory
            leaving = [(t, self._host_span(t, p)) for t, p in self._outputs.items() if t.size_bytes]
        graph = self._graph(numbers, kernels, arriving, leaving)
        self._graphs.append(graph)
        return graph.launch

    def _graph(
        self,
        numbers: Sequence[int],
        kernels: Kernels,
        arriving: Mapping[Tensor, Span],
        leaving: Sequence[tuple[Tensor, Span]],
        given: Mapping[Tensor, Span] = NO_SPANS,
    ) -> LoadedGraph:
        """A graph of planned nodes: before them copies from the spans in which tensors arrive, behind them,
        in order, copies to those in which they leave; tensors of `given` lie there."""
        planned = self._placed.planned
        nodes: list[GraphNode] = []
        arrived: dict[Tensor, int] = {}
        for tensor, span in arriving.items():
            arrived[tensor] = len(nodes)
            nodes.append(GraphNode(f"copy {tensor.name}", Copy(span, self._spans[tensor])))
        place = {number: len(nodes) + i for i, number in enumerate(numbers)}
        left: dict[Tensor, list[int]] = {}
        root = self._placed.lowered.root
        for number in numbers:
            node = planned.nodes[number]
            after = [place[other] for other in node.after if other in place]
            work: Launch | Join = Join()
            name = "join"
            if isinstance(node.work, KernelLaunch):
                work = self._launch(node.work, given)
                name = f"{node.work.nodes[0].name} {number}"
                after += [arrived[root(t)] for t in node.work.reads if root(t) in arrived]
                for tensor in node.work.writes:
                    left.setdefault(root(tensor), []).append(place[number])
            nodes.append(GraphNode(name, work, tuple(dict.fromkeys(after)), self._priorities[number]))
        for tensor, span in leaving:
            copy = Copy(self._part(tensor, given), span)
            nodes.append(GraphNode(f"copy {tensor.name}", copy, tuple(left.get(root(tensor), ()))))
        require_right(f"the graph of {self._placed.graph.name!r}", lambda: check_graph(nodes))
        loaded = self._device.graph(nodes, kernels)
        self._held.append(loaded)
        return loaded

    def _host_span(self, tensor: Tensor, pinned: PinnedMemory) -> Span:
        return Span(f"host {tensor.name}", pinned.address, self._spans[tensor].size_bytes)

    def _launch(self, launch: KernelLaunch, given: Mapping[Tensor, Span] = NO_SPANS) -> Launch:
        """A launch; tensors of `given` lie there."""
        kernel = launch.kernel
        spans = [self._span(storage, given) for storage in launch.args]
        written = set(launch.writes)
        writes = [
            span
            for storage, span in zip(launch.args, spans, strict=True)
            if isinstance(storage, Reports | Counters)
            or (isinstance(storage, Value | Local) and storage in written)
        ]
        return Launch(
            kernel.symbol,
            kernel.grid,
            kernel.block,
            tuple(span.address for span in spans),
            tuple(
                span
                for storage, span in zip(launch.args, spans, strict=True)
                if isinstance(storage, Reports | Counters) or span not in writes
            ),
            tuple(writes),
        )

    # Running.

    def run(self, feed: Mapping[str, Array], into: Mapping[str, Array] = NOWHERE) -> dict[str, Array]:
        """Outputs by name for inputs by name: in the arrays of `into` where it has one, else in new ones.

        Raises:
            UsageError: the feed does not fit the model's inputs.
            InputError: the inputs make an index outside its axis, or a shape other than declared.
            ModelClosed: `close` was called.
            DeviceError: the device reports a fault.
        """
        graph = self._placed.graph
        values = fed_values(graph, feed)
        with self._lock:
            if self._is_closed:
                raise ModelClosed
            self._device.synchronise(self._in_use[0])  # both kinds of runs use the same arena
            self._put(values)
            for step in self._steps:
                step()
            self._device.synchronise()
            self._raise_reported()
            results: dict[str, Array] = {}
            for value in graph.outputs:
                found = self._result(value, values)
                place = into.get(value.name)
                if place is None:
                    place = np.empty(value.shape, value.dtype.numpy)
                place[...] = found
                results[value.name] = place
        return results

    def run_on_device(self, feed: Mapping[str, Any], stream: int | None = None) -> dict[str, DeviceArray]:
        """Outputs in new memory of the device for inputs that lie there, none of which is copied.

        On a stream of the caller a run is behind what that holds, and may go on when this returns; without
        one it has ended. Equal addresses as in the run before leave the graph as it is.

        Raises:
            UsageError: arrays that lie elsewhere or do not fit; a model with operators on the host.
            ModelClosed, InputError, DeviceError: as `run`.
        """
        graph, device = self._placed.graph, self._device
        missing = [value.name for value in graph.inputs if value.name not in feed]
        if missing or len(feed) != len(graph.inputs):
            raise UsageError(f"the model takes {', '.join(v.name for v in graph.inputs)}, on the device.")
        if self._is_closed:
            raise ModelClosed
        if self._placed.host_operators:
            raise UsageError(
                "the model has operators that run on the host: use run, with arrays of the host."
            )
        ready_on = device.own_stream if stream is None else stream
        owners = [
            taken(value.name, feed[value.name], value.shape, value.dtype.numpy, device, ready_on)
            for value in graph.inputs
        ]
        results: dict[str, DeviceArray] = {}
        for value in graph.outputs:
            memory = device.allocate(max(value.size_bytes, ALIGNMENT_BYTES), value.name)
            results[value.name] = DeviceArray(device, memory, value.shape, value.dtype.numpy)
        addresses = [results[value.name].address for value in graph.outputs]
        self._run_at([own.address for own in owners], addresses, stream, (owners, results))
        return results

    def at_addresses(self) -> CodeAtAddresses | None:
        """Its code on memory of the caller, on the device; None where the host runs operators."""
        if self._placed.host_operators:
            return None
        return CodeAtAddresses(self._run_at, self._device.facts.place, VIEW_BYTES)

    def _run_at(
        self, inputs: Sequence[int], outputs: Sequence[int], stream: int | None = None, owners: object = None
    ) -> None:
        """Run on memory of the caller, behind what a stream holds; `owners` keep it while it may be used."""
        graph, device = self._placed.graph, self._device
        with self._lock:
            if self._is_closed:
                raise ModelClosed
            if self._checks:
                device.write(self._spans[id(self._placed.reports[0])].address, self._no_reports)
            self._launch_on(
                [Span(v.name, at, v.size_bytes) for v, at in zip(graph.inputs, inputs, strict=True)],
                [Span(v.name, at, v.size_bytes) for v, at in zip(graph.outputs, outputs, strict=True)],
                stream,
            )
            if stream is None or self._checks:
                device.synchronise(stream or 0)
                self._raise_reported()
            self._in_use = (stream or 0, owners)

    def _launch_on(self, inputs: Sequence[Span], outputs: Sequence[Span], stream: int | None) -> None:
        """Launch the graph of all nodes on memory of the caller.

        An output that owns its memory is made there; copies are made of one that is an input, a constant, or
        another output under a second name.
        """
        placed, root = self._placed, self._placed.lowered.root
        given: dict[Tensor, Span] = dict(zip(placed.graph.inputs, inputs, strict=True))
        leaving: list[tuple[Tensor, Span]] = []
        for value, span in zip(placed.graph.outputs, outputs, strict=True):
            whole = root(value)
            if whole in self._outputs and whole not in given:
                given[whole] = span
            elif span.size_bytes:
                leaving.append((value, span))
        numbers = range(len(placed.planned.nodes))
        if self._direct is None:
            self._direct = self._graph(numbers, self._kernels, {}, leaving, given)
        else:
            # Where one of the updates fails, the next run makes all of them again.
            before, self._given = self._given, {}
            moved = {tensor for tensor, span in given.items() if before.get(tensor) != span}
            for number in numbers:
                work = placed.planned.nodes[number].work
                if isinstance(work, KernelLaunch) and any(
                    root(t) in moved for t in (*work.reads, *work.writes)
                ):
                    self._direct.update(number, self._launch(work, given))
            for number, (tensor, span) in enumerate(leaving, len(numbers)):
                self._direct.update(number, Copy(self._part(tensor, given), span))
        self._given = given
        self._direct.launch(stream or 0)

    def _put(self, values: Mapping[Value, Array]) -> None:
        """Inputs where graphs, or operators on the host before any graph, find them."""
        nodes = self._placed.planned.nodes
        is_copied = bool(nodes) and not isinstance(nodes[0].work, HostOperator)
        for value, pinned in self._inputs:
            if value.size_bytes:
                data = np.ascontiguousarray(values[value])
                if is_copied:
                    pinned.array[: value.size_bytes] = data.reshape(-1).view(np.uint8)
                else:
                    self._device.write(self._spans[value].address, data)
        if self._checks:
            self._device.write(self._spans[id(self._placed.reports[0])].address, self._no_reports)

    def _result(self, value: Value, fed: Mapping[Value, Array]) -> Array:
        root, offset = self._placed.lowered.place(value)
        if isinstance(root, Value):
            known = fed.get(root) if root.data is None else root.data
            if known is not None:
                return known.reshape(value.shape)
        if not value.size_bytes:
            return np.empty(value.shape, value.dtype.numpy)
        if isinstance(self._placed.planned.nodes[-1].work, HostOperator):
            return self._read(value)
        data = self._outputs[root].array[offset : offset + value.size_bytes]
        return data.view(value.dtype.numpy).reshape(value.shape)

    def _read(self, value: Value) -> Array:
        root = self._placed.lowered.root(value)
        if isinstance(root, Value) and root.data is not None:
            return root.data.reshape(value.shape)
        array: Array = np.empty(value.shape, value.dtype.numpy)
        if value.size_bytes:
            self._device.read(self._part(value).address, array)
        return array

    def _on_host(self, operator: HostOperator) -> None:
        """Run an operator in Python, on copies of its operands."""
        node = operator.node
        self._device.synchronise()
        arrays = [None if value is None else self._read(value) for value in node.inputs]
        captures = [self._read(value) for value in node.captures]
        results = self._run_operator(node, arrays, captures=captures)
        for value, result in zip(node.outputs, results, strict=False):
            if value is None or result is None:
                continue
            require_shape(node, value, result)
            root = self._placed.lowered.root(value)
            if value.size_bytes and root in self._spans:
                data = np.ascontiguousarray(result, value.dtype.numpy)
                self._device.write(self._part(value).address, data)

    def _raise_reported(self) -> None:
        """Raise for the first check that found an index outside its axis."""
        if not self._checks:
            return
        found = np.empty_like(self._no_reports)
        self._device.read(self._spans[id(self._placed.reports[0])].address, found)
        for (where, axis, extent), (lowest, highest) in zip(
            self._checks, struct.iter_unpack("=qq", found.tobytes()), strict=True
        ):
            if lowest or highest:
                raise outside_axis(where, highest or lowest, axis, extent)

    def kernel_notes(self) -> dict[str, str]:
        """What the emulated device counts of a block of each kernel, by the kernel's id; nothing on a GPU.

        The graphs run once more, on the inputs of the run before.
        """
        found: dict[str, str] = {}
        with self._lock:
            for graph in () if self._is_closed else self._graphs:
                count = getattr(graph, "counts", dict)
                for name, counts in count().items():
                    found[f"{KERNEL_PREFIX}{name.rpartition(' ')[2]}"] = str(counts)
        return found

    def close(self) -> None:
        """Give back what it holds on the device; later runs are refused."""
        with self._lock:
            self._is_closed = True
            while self._held:
                self._held.pop().close()
