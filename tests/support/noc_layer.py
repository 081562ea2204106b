"""A mapped operator on the network, step by step and cycle by cycle, in plain Python.

What the compiled simulator must equal, in the order in which it does things within a cycle: words from DRAM
arrive, elements start a step, terminals send, the network moves, DRAM takes the next bursts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product

from tests.support.noc_flits import Flit, FlitNetwork

from tilewright.cost.noc.result import NocResult
from tilewright.cost.noc.traffic import Stream, TrafficPlan, Window


@dataclass
class Incoming:
    """One tensor on its way from DRAM to the elements. Versions are counted from that of the present step."""

    version: int = 0  # that is being sent to the elements, and the packet and flit of it that are next
    packet: int = 0
    flit: int = 0
    fetched: int = 0  # the buffer's version that DRAM is asked for, and how much of it was asked for
    fetched_flits: int = 0
    arrived_flits: int = 0  # in the buffer since its present version began; else in the staging buffer
    reserved_flits: int = 0  # of the staging buffer


@dataclass
class Element:
    """A processing element: flits got of each tensor, of its neighbours' sums, and its own way out."""

    got: list[int]
    sums: int = 0
    packet: int = 0
    flit: int = 0


class FlitLayer:
    """The state of everything between two cycles."""

    def __init__(self, plan: TrafficPlan) -> None:
        self.plan = plan
        self.network = FlitNetwork(plan.mesh)
        num = len(plan.streams)
        self.incoming = [Incoming() for _ in range(num)]
        self.elements = [Element([0] * num) for _ in range(plan.mesh.num_elements)]
        memory = plan.mesh.memory
        self.load_trees = [
            [plan.mesh.tree(memory, stream.receivers(g)) for g in range(len(stream.groups))]
            for stream in plan.streams
        ]
        self.return_trees = {
            element: plan.mesh.tree(element, (following,))
            for group in plan.streams[plan.output].groups
            for element, following in pairwise([*group, memory])
        }
        self.now = 0
        self.compute_end: int | None = None
        self.sending: int | None = None  # the stream of which the memory is sending a packet
        self.turn = 0
        self.drained = 0  # the oldest version of the output that has not come out whole
        self.written = 0  # the oldest of the buffer's versions that is not in DRAM
        self.written_flits = 0
        self.read_free = 0  # when the channels are free: in `rate[0]` parts of a cycle
        self.write_free = 0
        self.dram_turn = 0
        self.memory_got = 0
        self.under_way: deque[tuple[int, int, int]] = deque()  # cycle, stream, flits
        self.windows: list[Window] = []
        self.wait_cycles = [0] * (num + 2)
        self.sent_flits = [0] * num
        self.returned_flits = self.dram_read = self.dram_written = 0

    def run(self) -> NocResult:
        """All steps, then until the last result is in DRAM."""
        plan = self.plan
        for digits in self._steps():
            self._enter(digits)
            while self.compute_end is None or self.now < self.compute_end:
                self._cycle(is_over=False)
            self.compute_end = None
        self._enter(plan.end())
        while self.drained < 0 or self.written < 0:
            self._cycle(is_over=True)
        names = [stream.name for stream in plan.streams]
        return NocResult(
            cycles=self.now,
            compute_cycles=plan.num_steps * plan.step_cycles,
            wait_cycles=dict(zip([*names, "Drain", "End"], self.wait_cycles, strict=True)),
            num_steps=plan.num_steps,
            num_elements_used=plan.num_used,
            sent_flits=dict(zip(names, self.sent_flits, strict=True)),
            returned_flits=self.returned_flits,
            link_flits=tuple(map(tuple, self.network.link_flits)),
            dram_read_flits=self.dram_read,
            dram_written_flits=self.dram_written,
            num_simulated_steps=plan.num_steps,
        )

    def _steps(self) -> Iterator[tuple[int, ...]]:
        return product(*(range(factor) for factor in self.plan.factors))

    def _enter(self, digits: tuple[int, ...] | list[int]) -> None:
        """The next step begins: versions are counted from its own."""
        plan, before = self.plan, self.windows
        self.windows = [plan.window(stream, digits) for stream in plan.streams]
        if not before:
            self._digits = digits
            return
        for number, stream in enumerate(plan.streams):
            versions, buffers = (
                plan.version(digits, depth) - plan.version(self._digits, depth)
                for depth in (stream.depth, stream.buffer_depth)
            )
            loader = self.incoming[number]
            loader.version -= versions
            loader.fetched -= buffers
            for element in self._receivers(stream) if versions else ():
                self.elements[element].got[number] -= self._with_headers(before[number].load[0])
            if buffers and stream.is_buffered:
                loader.arrived_flits -= before[number].fetch[0]
            if stream.is_output:
                self.drained -= versions
                self.written -= buffers
        self._digits = digits

    def _cycle(self, *, is_over: bool) -> None:
        plan = self.plan
        self._arrive()
        for number, loader in enumerate(self.incoming):
            window = self.windows[number]
            while loader.version < 2 and window.load[loader.version] == 0:
                loader.version += 1
            while loader.fetched < plan.streams[number].num_fetched and window.fetch[loader.fetched] == 0:
                loader.fetched += 1
        if is_over:
            self.wait_cycles[-1] += 1
        elif self.compute_end is None:
            missing = self._missing()
            if missing is None:
                self.compute_end = self.now + plan.step_cycles
            else:
                self.wait_cycles[missing] += 1
        sent = [*self._memory_sends(), *self._elements_send()]
        for terminal, flit in self.network.cycle(sent):
            self._receive(terminal, flit)
        if self.drained < 0 and self.memory_got == self._num_groups() * self._with_headers(self._draining()):
            self.drained += 1
            self.memory_got = 0
            for element in self.elements:
                element.sums = element.packet = 0
        self._read_dram()
        self._write_dram()
        self.now += 1

    def _missing(self) -> int | None:
        """What the step waits for: a stream, or their number for free capacity; None if it can start."""
        for number, stream in enumerate(self.plan.streams):
            needed = self._with_headers(self.windows[number].load[0])
            if any(self.elements[e].got[number] < needed for e in self._receivers(stream)):
                return number
        return len(self.plan.streams) if self.drained < -1 else None

    def _arrive(self) -> None:
        while self.under_way and self.under_way[0][0] <= self.now:
            _, number, flits = self.under_way.popleft()
            self.incoming[number].arrived_flits += flits
        is_written = self._may_write() and self.written_flits == self._writing()
        if is_written and self.write_free <= self.now * self.plan.write_rate[0]:
            self.written += 1
            self.written_flits = 0

    # What terminals send.

    def _memory_sends(self) -> Iterator[tuple[int, Flit]]:
        plan = self.plan
        if self.sending is None:
            for number in (self.turn + i for i in range(len(plan.streams))):
                number %= len(plan.streams)
                if self._may_send(number):
                    self.sending = number
                    self.turn = (number + 1) % len(plan.streams)
                    if not plan.streams[number].is_buffered:
                        self.incoming[number].arrived_flits -= self._payload(number)
                        self.incoming[number].reserved_flits -= self._payload(number)
                    break
        if self.sending is None or not self.network.has_free_capacity(plan.mesh.memory):
            return
        number = self.sending
        loader = self.incoming[number]
        num_groups = len(plan.streams[number].groups)
        length = self._payload(number) + plan.options.header_flits
        tree = self.load_trees[number][loader.packet % num_groups]
        is_last = loader.flit == length - 1
        yield plan.mesh.memory, Flit(number, tree, loader.flit == 0, is_last)
        self.sent_flits[number] += 1
        loader.flit += 1
        if is_last:
            loader.flit = 0
            loader.packet += 1
            self.sending = None
            if loader.packet == num_groups * self._num_packets(self.windows[number].load[loader.version]):
                loader.packet = 0
                loader.version += 1

    def _may_send(self, number: int) -> bool:
        """Whether the next packet of a stream can leave: its words are there, and free capacity for them."""
        loader, window = self.incoming[number], self.windows[number]
        if loader.version > 1:
            return False
        stream = self.plan.streams[number]
        if stream.is_output and self.drained < loader.version - 1:
            return False  # the version before the last lies where it goes, or holds the same sums
        if not stream.is_buffered:
            return loader.arrived_flits >= self._payload(number)
        return loader.arrived_flits >= sum(window.fetch[: window.buffer_of[2 + loader.version] + 1])

    def _elements_send(self) -> Iterator[tuple[int, Flit]]:
        """Partial sums: down the chain of those that add to the same words, the last sends to the memory."""
        window = self.windows[self.plan.output]
        if self.drained >= 0 or self.written < window.buffer_of[2 + self.drained] - 1:
            return
        options = self.plan.options
        partial, final = self.plan.streams[self.plan.output].partial_flits, self._draining()
        for group in self.plan.streams[self.plan.output].groups:
            for number in group:
                element = self.elements[number]
                flits = final if number == group[-1] else partial
                done = element.packet * options.payload_flits
                if done >= flits or not self.network.has_free_capacity(number):
                    continue
                payload = min(options.payload_flits, flits - done)
                # The neighbour's sums of the same words: the last of a group may send shorter results.
                needed = -(-(done + payload) * partial // flits)
                if number != group[0] and element.sums < self._with_headers(needed):
                    continue
                is_last = element.flit == payload + options.header_flits - 1
                yield number, Flit(-1, self.return_trees[number], element.flit == 0, is_last)
                self.returned_flits += 1
                element.flit = 0 if is_last else element.flit + 1
                element.packet += is_last

    def _receive(self, terminal: int, flit: Flit) -> None:
        if terminal == self.plan.mesh.memory:
            self.memory_got += 1
        elif flit.tag < 0:
            self.elements[terminal].sums += 1
        else:
            self.elements[terminal].got[flit.tag] += 1

    # DRAM.

    def _read_dram(self) -> None:
        per_cycle, per_flit = self.plan.read_rate
        while self.read_free < (self.now + 1) * per_cycle:
            number = next(filter(self._may_fetch, self._from_turn()), None)
            if number is None:
                return
            self.dram_turn = (number + 1) % len(self.plan.streams)
            loader = self.incoming[number]
            whole = self.windows[number].fetch[loader.fetched]
            flits = min(self.plan.burst_flits, whole - loader.fetched_flits)
            loader.fetched_flits += flits
            if loader.fetched_flits == whole:
                loader.fetched_flits = 0
                loader.fetched += 1
            if not self.plan.streams[number].is_buffered:
                loader.reserved_flits += flits
            self.dram_read += flits
            self.read_free = max(self.read_free, self.now * per_cycle) + flits * per_flit
            arrival = -(-self.read_free // per_cycle) + self.plan.options.dram_latency_cycles
            self.under_way.append((arrival, number, flits))

    def _from_turn(self) -> Iterator[int]:
        num = len(self.plan.streams)
        return ((self.dram_turn + i) % num for i in range(num))

    def _may_fetch(self, number: int) -> bool:
        """Whether DRAM may send on: into the capacity that the buffer's version before the last has left."""
        loader, window = self.incoming[number], self.windows[number]
        stream = self.plan.streams[number]
        if loader.fetched >= stream.num_fetched or window.fetch[loader.fetched] == 0:
            return False
        if stream.is_output and self.written < loader.fetched - 1:
            return False
        if not stream.is_buffered:
            left = window.fetch[loader.fetched] - loader.fetched_flits
            return loader.reserved_flits + min(left, self.plan.burst_flits) <= self.plan.staging_flits
        return loader.fetched <= window.buffer_of[2 + min(loader.version, 1)] + 1

    def _write_dram(self) -> None:
        per_cycle, per_flit = self.plan.write_rate
        while self.write_free < (self.now + 1) * per_cycle and self._may_write():
            flits = min(self.plan.burst_flits, self._writing() - self.written_flits)
            if not flits:
                return
            self.written_flits += flits
            self.dram_written += flits
            self.write_free = max(self.write_free, self.now * per_cycle) + flits * per_flit

    def _may_write(self) -> bool:
        """Whether a version of the buffer's output is complete and not yet in DRAM."""
        if self.written >= 0:
            return False
        return self.windows[self.plan.output].buffer_of[2 + self.drained] > self.written

    # Sizes.

    def _writing(self) -> int:
        return self.windows[self.plan.output].write[4 + self.written]

    def _draining(self) -> int:
        return self.windows[self.plan.output].drain[2 + self.drained]

    def _num_groups(self) -> int:
        return len(self.plan.streams[self.plan.output].groups)

    def _num_packets(self, flits: int) -> int:
        return -(-flits // self.plan.options.payload_flits)

    def _with_headers(self, flits: int) -> int:
        return flits + self._num_packets(flits) * self.plan.options.header_flits

    def _payload(self, number: int) -> int:
        """Flits of the next packet without its header; packets of the groups take turns."""
        loader = self.incoming[number]
        payload = self.plan.options.payload_flits
        place = loader.packet // len(self.plan.streams[number].groups)
        return min(payload, self.windows[number].load[loader.version] - place * payload)

    def _receivers(self, stream: Stream) -> Iterator[int]:
        for group in range(len(stream.groups)):
            yield from stream.receivers(group)
