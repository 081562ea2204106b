"""What a mapping asks of the network: tiles that change from one outer iteration to the next.

The temporal loops of the shared levels (DRAM and the global buffer) are walked as one nest; an iteration of
it is a *step*, in which every element works on its tiles. A tensor's tile in the elements changes when a loop
moves it: each of the tiles in their order is a *version*. The versions of a tensor are the iterations of the
loops down to the innermost that moves it; those of its tile in the buffer, of the loops outside the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, isclose, prod

from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.noc.mesh import Mesh
from tilewright.errors import MachineError, UsageError
from tilewright.hardware.machine import Level, Machine, Network, TensorKind
from tilewright.loops.mapping import Loop, Mapping
from tilewright.loops.problem import Operand, Problem

NUM_FETCHED_AHEAD = 8
"""Versions, the present one included, that DRAM may send ahead for a stream that bypasses the buffer."""


_MOST_HOP_CYCLES = 1024  # each is a place on every link


@dataclass(frozen=True, slots=True)
class NocOptions:
    """The network and the DRAM. Flits of 64 bits and multicast are table V's; the other numbers are ours.

    `shape` is rows and columns; None for the mesh closest to a square. Without multicast every element gets
    its words in packets of its own.
    A packet has `header_flits` and at most `payload_flits`. A router's input buffer has `fifo_flits`; to the
    next router a flit takes `hop_cycles`, and each of its bytes `hop_pj_per_byte`.
    What DRAM sends to elements without the global buffer waits in `staging_flits` for its packet; they are
    taken as no fewer than a packet and a burst.
    """

    shape: tuple[int, int] | None = None
    has_multicast: bool = True
    flit_bits: int = 64
    header_flits: int = 1
    payload_flits: int = 8
    fifo_flits: int = 4
    hop_cycles: int = 1
    dram_latency_cycles: int = 100
    staging_flits: int = 256
    hop_pj_per_byte: float = 0.0

    def __post_init__(self) -> None:
        if min(self.flit_bits, self.payload_flits, self.fifo_flits, self.hop_cycles) < 1:
            raise UsageError(f"{self}: bits of a flit, payload, buffers and a hop are at least 1.")
        if min(self.header_flits, self.dram_latency_cycles, self.staging_flits, self.hop_pj_per_byte) < 0:
            raise UsageError(f"{self}: header, latency, staging and energy are at least 0.")

    @classmethod
    def of(cls, machine: Machine) -> NocOptions:
        """What the machine's description says of the network of its elements, and of the outermost memory.

        A link carries a flit each cycle; without a size of flits, they have the bytes that a link carries in
        one. Buffers have free capacity for what is on a link beside what they have for hops of one cycle.

        Raises:
            MachineError: the network is no mesh with wormhole switching, its links do not carry a flit each
                cycle, or a time is given without a clock.
        """
        described = cls()
        if machine.outermost.latency_ns is not None:
            what = f"latency_ns of {machine.outermost.name}"
            described = replace(
                described, dram_latency_cycles=machine.num_cycles(machine.outermost.latency_ns, what)
            )
        network = network_of(machine)
        if network is None:
            return described
        name = f"machine {machine.name!r}: its network {network.name!r}"
        if network.kind != "mesh":
            raise MachineError(f"{name} is a {network.kind}; the simulator knows meshes.")
        if network.switching not in (None, "wormhole"):
            raise MachineError(
                f"{name} switches by {network.switching}; the simulator knows wormhole switching."
            )
        hop_cycles = network.hop_latency_cycles
        if network.hop_latency_ns is not None:
            hop_cycles = machine.num_cycles(network.hop_latency_ns, f"hop_latency_ns of {network.name}")
        hop_cycles = max(1, ceil(hop_cycles or 0))
        if hop_cycles > _MOST_HOP_CYCLES:
            raise MachineError(
                f"{name} takes {hop_cycles} cycles for a hop; the simulator goes up to {_MOST_HOP_CYCLES}. "
                "Check the unit of hop_latency_ns."
            )
        bytes_per_cycle = machine.link_bytes_per_cycle(network)
        flit_bytes = network.flit_bytes or bytes_per_cycle
        if flit_bytes and bytes_per_cycle and not isclose(flit_bytes, bytes_per_cycle, rel_tol=1e-3):
            raise MachineError(
                f"{name} carries {bytes_per_cycle:g} bytes per cycle in flits of {flit_bytes:g}; the "
                "simulator moves one flit per cycle: make them equal, or leave one of them out."
            )
        return replace(
            described,
            shape=(network.shape[0], network.shape[1]) if network.shape else None,
            has_multicast=network.has_multicast,
            flit_bits=max(1, round(8 * flit_bytes)) if flit_bytes else described.flit_bits,
            fifo_flits=described.fifo_flits + hop_cycles - 1,
            hop_cycles=hop_cycles,
            hop_pj_per_byte=network.hop_pj_per_byte or 0.0,
        )


def network_of(machine: Machine) -> Network | None:
    """The network between the elements and what they share, or among the elements; None if none is given."""
    place = len(machine.levels) - 1 - _num_shared(machine)
    elements, outer = machine.levels[place].name, machine.levels[place + 1].name
    of_elements = {(n.inner, n.outer): n for n in reversed(machine.networks) if n.inner == elements}
    return of_elements.get((elements, outer)) or of_elements.get((elements, elements))


@dataclass(frozen=True, slots=True)
class Stream:
    """A tensor between DRAM, the global buffer and the elements.

    `depth` loops of the nest, from the outermost, move its tile in the elements, `buffer_depth` that in the
    buffer. Words and flits of a version depend on the loop that has just moved on: entry 0 is for the first
    version, entry 1 + i for the loop i. `groups` are elements that get the same words; of an output, the
    elements whose partial sums are added, in the order in which they pass them on.
    """

    name: str
    is_output: bool
    is_buffered: bool
    depth: int
    buffer_depth: int
    groups: tuple[tuple[int, ...], ...]
    element_flits: tuple[int, ...]
    buffer_flits: tuple[int, ...]
    partial_flits: int = 0  # of an output: the tile of one group as partial sums, and as results
    final_flits: int = 0
    buffer_partial_flits: int = 0
    buffer_final_flits: int = 0
    reductions: tuple[int, ...] = ()  # of an output: loops within `depth` that do not move it

    @property
    def num_fetched(self) -> int:
        """Versions, the present one included, that DRAM may be asked for."""
        return 3 if self.is_buffered else NUM_FETCHED_AHEAD

    def receivers(self, group: int) -> tuple[int, ...]:
        """Elements to which a group's words are sent; partial sums go to the first that adds to them."""
        return self.groups[group][:1] if self.is_output else self.groups[group]


@dataclass(frozen=True, slots=True)
class Window:
    """Versions around a step's own (number 0) of one stream; sizes in flits, those of elements per group.

    `load` and `drain` are the elements' versions, what comes in and what goes out; `fetch` and `write` the
    buffer's. `buffer_of[i]` is the buffer's version that the elements' version i - 2 belongs to. What leaves
    the elements may be two versions behind, and wait for a version of the buffer two further behind.
    """

    load: tuple[int, int]  # of versions 0, 1
    fetch: tuple[int, ...]  # of versions 0 to `num_fetched` - 1, then zeros
    buffer_of: tuple[int, int, int, int]  # of versions -2, -1, 0, 1
    drain: tuple[int, int, int]  # of versions -2, -1, 0
    write: tuple[int, int, int, int, int]  # of versions -4 to 0


@dataclass(frozen=True)
class TrafficPlan:
    """Everything the simulator knows of a mapping. `factors` are the nest's, the outermost first.

    A DRAM channel moves `rate[0]` flits in `rate[1]` cycles.
    """

    mesh: Mesh
    options: NocOptions
    num_used: int
    factors: tuple[int, ...]
    step_cycles: int
    streams: tuple[Stream, ...]
    burst_flits: int
    read_rate: tuple[int, int]
    write_rate: tuple[int, int]

    @property
    def num_steps(self) -> int:
        """Iterations of the nest."""
        return prod(self.factors)

    @property
    def staging_flits(self) -> int:
        """Capacity for words on their way from DRAM past the buffer: with less all could stand still."""
        return max(self.options.staging_flits, self.options.payload_flits + self.burst_flits)

    @cached_property
    def output(self) -> int:
        """The output's number among the streams."""
        return next(i for i, stream in enumerate(self.streams) if stream.is_output)

    def num_versions(self, depth: int) -> int:
        """Iterations of the `depth` outermost loops."""
        return prod(self.factors[:depth])

    def version(self, digits: Sequence[int], depth: int) -> int:
        """The version in use at a step, given by the loops' counters; at the end of all, their number."""
        number = 0
        for factor, digit in zip(self.factors[:depth], digits[:depth], strict=True):
            number = number * factor + digit
        return number + self.num_versions(depth) if len(digits) > len(self.factors) else number

    def digits(self, version: int, depth: int) -> list[int]:
        """The loops' counters when a version begins."""
        digits = []
        for factor in reversed(self.factors[:depth]):
            version, digit = divmod(version, factor)
            digits.append(digit)
        return digits[::-1]

    def end(self) -> list[int]:
        """Counters of the time after the last step: one more than there are loops, all zero."""
        return [0] * (len(self.factors) + 1)

    def window(self, stream: Stream, digits: Sequence[int]) -> Window:
        """The versions around a step."""
        now = self.version(digits, stream.depth)
        buffer_now = self.version(digits, stream.buffer_depth)
        elements = [self._sizes(stream, now + i, stream.depth, False) for i in range(-2, 2)]
        depth = stream.buffer_depth
        buffers = [self._sizes(stream, buffer_now + i, depth, True) for i in range(-4, stream.num_fetched)]
        fetch = [come_in for come_in, _ in buffers[4:]]
        return Window(
            load=(elements[2][0], elements[3][0]),
            fetch=(*fetch, *[0] * (NUM_FETCHED_AHEAD - len(fetch))),
            buffer_of=tuple(  # type: ignore[arg-type]  # four of them
                self._buffer_version(stream, now + i) - buffer_now for i in range(-2, 2)
            ),
            drain=(elements[0][1], elements[1][1], elements[2][1]),
            write=tuple(out for _, out in buffers[:5]),  # type: ignore[arg-type]  # five of them
        )

    def _buffer_version(self, stream: Stream, version: int) -> int:
        if version < 0:
            return -1
        return version // (self.num_versions(stream.depth) // self.num_versions(stream.buffer_depth))

    def _sizes(self, stream: Stream, version: int, depth: int, in_buffer: bool) -> tuple[int, int]:
        """Flits that come in for a version, and that go out after it."""
        if not 0 <= version < self.num_versions(depth):
            return 0, 0
        digits = self.digits(version, depth)
        if not stream.is_output:
            moved = next((i for i in reversed(range(depth)) if digits[i]), -1)
            return (stream.buffer_flits if in_buffer else stream.element_flits)[1 + moved], 0
        inside = [i for i in stream.reductions if i < depth]
        is_first = all(digits[i] == 0 for i in inside)
        is_last = all(digits[i] == self.factors[i] - 1 for i in inside)
        if in_buffer:
            # The loops inside the buffer that add to the tile are over when it is written.
            partial, final = stream.buffer_partial_flits, stream.buffer_final_flits
        else:
            partial, final = stream.partial_flits, stream.final_flits
        return 0 if is_first else partial, final if is_last else partial


def plan(problem: Problem, machine: Machine, mapping: Mapping, options: NocOptions) -> TrafficPlan:
    """The traffic of a mapping.

    Raises:
        MachineError: a machine without several elements around one memory, or with a tensor that no level
            of the elements holds.
        InfeasibleMapping, UsageError: what `evaluate` raises of the mapping.
    """
    cost = evaluate(problem, machine, mapping)
    shared = _num_shared(machine)
    layout = _Layout(problem, machine, mapping, shared)
    inner = {level.name for level in machine.levels[: len(machine.levels) - shared]}
    throttling = min(level.throttling for level in cost.levels if level.level in inner)
    temporal = prod(loop.factor for loops in layout.inside for loop in loops.temporal)
    outermost = machine.outermost
    return TrafficPlan(
        mesh=_mesh(machine, machine.num_instances(machine.levels[-1 - shared]), options),
        options=options,
        num_used=prod(loop.factor for loop in layout.spatial),
        factors=tuple(loop.factor for loop, _ in layout.loops),
        step_cycles=ceil(temporal / throttling),
        streams=tuple(layout.stream(o, options) for o in problem.operands),
        burst_flits=max(1, outermost.words_per_access * outermost.word_bits // options.flit_bits),
        read_rate=_rate(machine.read_bytes_per_cycle(outermost), options),
        write_rate=_rate(machine.write_bytes_per_cycle(outermost), options),
    )


def _mesh(machine: Machine, num_elements: int, options: NocOptions) -> Mesh:
    if options.shape is None:
        return Mesh.of(num_elements, options.fifo_flits, options.hop_cycles)
    rows, columns = options.shape
    if rows * columns < num_elements:
        raise MachineError(
            f"machine {machine.name!r}: a mesh of {rows} x {columns} cannot hold {num_elements} elements."
        )
    return Mesh(rows, columns, options.fifo_flits, options.hop_cycles)


def _rate(bytes_per_cycle: float | None, options: NocOptions) -> tuple[int, int]:
    if bytes_per_cycle is None:
        return 64, 1  # more than the memory's port can take
    thousandths = max(1, round(bytes_per_cycle * 8 * 1000))
    return thousandths, options.flit_bits * 1000


def _num_shared(machine: Machine) -> int:
    """Levels with one instance for all elements."""
    shared = 0
    for level in reversed(machine.levels):
        if machine.num_instances(level) > 1:
            break
        shared += 1
    if shared == len(machine.levels):
        raise MachineError(
            f"machine {machine.name!r}: no level has several instances, so there is no network."
        )
    if not 1 <= shared <= 2:
        raise MachineError(
            f"machine {machine.name!r}: {shared} levels are shared by all elements; the network simulator "
            "knows one (DRAM) or two (DRAM and a global buffer)."
        )
    return shared


class _Layout:
    """A mapping cut in two: the shared levels' loops and what an element does in a step."""

    def __init__(self, problem: Problem, machine: Machine, mapping: Mapping, shared: int) -> None:
        self.problem = problem
        self.machine = machine
        self.shared: list[Level] = list(reversed(machine.levels[-shared:]))  # outermost first
        names = [level.name for level in self.shared]
        given = {loops.level: loops for loops in mapping.levels}
        self.inside = [loops for loops in mapping.levels if loops.level not in names]
        outer = [given[name] for name in names if name in given]
        self.spatial = [x for loops in outer for x in loops.spatial if x.factor > 1]
        self.tile = dict.fromkeys(problem.extents, 1)  # of an element
        for loops in self.inside:
            for loop in (*loops.temporal, *loops.spatial):
                self.tile[loop.dim] *= loop.factor
        self.loops: list[tuple[Loop, str]] = [
            (x, loops.level) for loops in outer for x in loops.temporal if x.factor > 1
        ]
        self.all_elements = dict(self.tile)
        for loop in self.spatial:
            self.all_elements[loop.dim] *= loop.factor

    def distances(self) -> list[int]:
        """By how many iterations of its dim each loop moves on."""
        reach = dict(self.all_elements)
        reaches = []
        for loop, _ in reversed(self.loops):
            reaches.append(reach[loop.dim])
            reach[loop.dim] *= loop.factor
        return reaches[::-1]

    def stream(self, operand: Operand, options: NocOptions) -> Stream:
        holders = [level for level in self.machine.levels if operand.kind in level.holds]
        inner = [level for level in holders if level not in self.shared]
        if not inner:
            raise MachineError(
                f"machine {self.machine.name!r}: no level of the elements holds {operand.name}, so each "
                "multiplication would cross the network."
            )
        home = next(level for level in reversed(self.shared) if level in holders)
        is_buffered = home is not self.shared[0]
        depth = self._depth(operand, len(self.loops))
        num_outside = sum(level == self.shared[0].name for _, level in self.loops)
        buffer_depth = self._depth(operand, num_outside) if is_buffered else depth
        groups = self._groups(operand)
        buffer_tile = dict(self.all_elements)
        for loop, level in self.loops:
            if level != self.shared[0].name:
                buffer_tile[loop.dim] *= loop.factor

        def flits(words: int, bits: int) -> int:
            return -(-words * bits // options.flit_bits)

        common = (operand.name, operand.kind is TensorKind.OUTPUT, is_buffered, depth, buffer_depth)
        if operand.kind is not TensorKind.OUTPUT:
            elements = self._changes(operand, self.tile, depth)
            sent = tuple(flits(words, home.word_bits) for words in elements)
            buffer = self._changes(operand, buffer_tile, buffer_depth)
            fetched = tuple(flits(words, self.shared[0].word_bits) for words in buffer)
            if not options.has_multicast:
                groups = tuple((element,) for group in groups for element in group)
            whole = tuple(x * len(groups) for x in sent)
            return Stream(*common, groups, sent, fetched if is_buffered else whole)
        words, buffer_words = operand.num_words(self.tile), operand.num_words(buffer_tile)
        partial_bits = inner[-1].word_bits
        partial, final = flits(words, partial_bits), flits(words, home.word_bits)
        moving = set(operand.dims())
        return Stream(
            *common,
            tuple(group[::-1] for group in groups),
            (),
            (),
            partial_flits=partial,
            final_flits=final,
            buffer_partial_flits=flits(buffer_words, partial_bits) if is_buffered else partial * len(groups),
            buffer_final_flits=(
                flits(buffer_words, self.shared[0].word_bits) if is_buffered else final * len(groups)
            ),
            reductions=tuple(i for i in range(depth) if self.loops[i][0].dim not in moving),
        )

    def _depth(self, operand: Operand, num_loops: int) -> int:
        moving = set(operand.dims())
        return max((i + 1 for i in range(num_loops) if self.loops[i][0].dim in moving), default=0)

    def _changes(self, operand: Operand, tile: dict[str, int], depth: int) -> list[int]:
        """New words of a version: of the first, then of those that come when a loop has just moved on.

        The words that the box shares with the one before stay; what the loops inside did is undone at once.
        """
        box = operand.box(tile)
        distances = self.distances()

        def move(loop: int, times: int) -> list[int]:
            dim = self.loops[loop][0].dim
            return [
                sum(step * distances[loop] * times for d, step in axis if d == dim) for axis in operand.axes
            ]

        new_words = [prod(box)]
        for loop in range(depth):
            total = move(loop, 1)
            for inside in range(loop + 1, depth):
                back = move(inside, self.loops[inside][0].factor - 1)
                total = [x - y for x, y in zip(total, back, strict=True)]
            kept = prod(max(0, extent - abs(x)) for extent, x in zip(box, total, strict=True))
            new_words.append(prod(box) - kept)
        return new_words

    def _groups(self, operand: Operand) -> tuple[tuple[int, ...], ...]:
        """Elements whose tiles of a tensor are the same, in order of the first of each."""
        reach = dict(self.tile)
        distances = []
        for loop in reversed(self.spatial):
            distances.append(reach[loop.dim])
            reach[loop.dim] *= loop.factor
        distances.reverse()
        by_place: dict[tuple[int, ...], list[int]] = {}
        for element in range(prod(loop.factor for loop in self.spatial)):
            place = dict.fromkeys(self.problem.extents, 0)
            rest = element
            for loop, distance in zip(reversed(self.spatial), reversed(distances), strict=True):
                rest, digit = divmod(rest, loop.factor)
                place[loop.dim] += digit * distance
            at = tuple(sum(step * place[dim] for dim, step in axis) for axis in operand.axes)
            by_place.setdefault(at, []).append(element)
        return tuple(tuple(group) for group in by_place.values())
