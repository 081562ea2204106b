"""Whole operators in few steps: what repeats itself exactly is simulated once.

The network, the DRAM and the elements are one machine with a finite state. If it begins the iterations of a
loop in the same state, with the same sizes of all tiles that it will meet, it does the same and takes the
same time. So the outcome of a loop's body is remembered by state and sizes, for every loop of the nest; and
when a loop's iterations come back to a state, the periods that are left are counted and not run. Sizes differ
only in a loop's first and last iterations, which are never skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.arrays import Array
from tilewright.cost.noc import compiled_layer as c
from tilewright.cost.noc.compiled import network_state, wiring
from tilewright.cost.noc.mesh import NUM_PORTS
from tilewright.cost.noc.result import NocResult
from tilewright.cost.noc.traffic import NUM_FETCHED_AHEAD, TrafficPlan
from tilewright.errors import InternalError

_FIRST, _LAST = 5, NUM_FETCHED_AHEAD + 1
"""Iterations at a loop's start and end that are always run: those that differ, or see ones that do."""


@dataclass(frozen=True)
class _State:
    """Everything between two steps. Times count from then; never changed once it is made."""

    network: tuple[Array, ...]
    incoming: Array
    got: Array
    elements: Array
    scalars: Array
    under_way: Array

    @cached_property
    def key(self) -> bytes:
        """Equal for equal states."""
        arrays = (*self.network, self.incoming, self.got, self.elements, self.scalars)
        waiting = self.under_way[: self.scalars[c.NUM_UNDER_WAY]]
        return b"".join(array.tobytes() for array in (*arrays, waiting))

    def copy(self) -> _State:
        return _State(
            tuple(array.copy() for array in self.network),
            self.incoming.copy(),
            self.got.copy(),
            self.elements.copy(),
            self.scalars.copy(),
            self.under_way.copy(),
        )


class Walk:
    """A walk over all steps of a plan; `totals` and `link_flits` grow with it."""

    def __init__(self, plan: TrafficPlan) -> None:
        self.plan = plan
        num, num_elements = len(plan.streams), plan.mesh.num_elements
        self.totals = np.zeros(c.FIRST_SENT + 2 * num + 2 + num_elements * NUM_PORTS, np.int64)
        self.num_simulated = 0
        self._memo: dict[tuple[object, ...], tuple[_State, Array]] = {}
        self._windows: dict[tuple[int, ...], Array] = {}
        self._set_constants()

    def _set_constants(self) -> None:
        plan, options = self.plan, self.plan.options
        mesh, num, num_elements = plan.mesh, len(plan.streams), plan.mesh.num_elements
        self._constants = np.zeros(c.NUM_CONSTANTS, np.int64)
        output = plan.streams[plan.output]
        for place, value in (
            (c.STEP_CYCLES, plan.step_cycles),
            (c.HEADER, options.header_flits),
            (c.PAYLOAD, options.payload_flits),
            (c.BURST, plan.burst_flits),
            (c.STAGING, plan.staging_flits),
            (c.LATENCY, options.dram_latency_cycles),
            (c.PARTIAL, output.partial_flits),
            (c.OUTPUT, plan.output),
            (c.READ_PARTS, plan.read_rate[0]),
            (c.READ_COST, plan.read_rate[1]),
            (c.WRITE_PARTS, plan.write_rate[0]),
            (c.WRITE_COST, plan.write_rate[1]),
        ):
            self._constants[place] = value
        self._facts = np.zeros((num, c.NUM_FACTS), np.int64)
        self._receives = np.zeros((num, num_elements), np.int64)
        self._element_facts = np.zeros((num_elements, c.NUM_ELEMENT_FACTS), np.int64)
        trees: list[tuple[int, dict[int, int]]] = []
        for number, stream in enumerate(plan.streams):
            counts = (stream.num_fetched, len(stream.groups), len(trees))
            self._facts[number] = (stream.is_output, stream.is_buffered, *counts)
            for group in range(len(stream.groups)):
                receivers = stream.receivers(group)
                self._receives[number, list(receivers)] = 1
                trees.append((number, mesh.tree(mesh.memory, receivers)))
        for elements in output.groups:
            for place, element in enumerate(elements):
                is_last = place == len(elements) - 1
                self._element_facts[element] = (1, place == 0, is_last, len(trees))
                trees.append((-1, mesh.tree(element, (mesh.memory if is_last else elements[place + 1],))))
        self._tag_stream = np.array([number for number, _ in trees], np.int64)
        self._trees = np.zeros((len(trees), num_elements), np.int64)
        for tag, (_, tree) in enumerate(trees):
            for router, ports in tree.items():
                self._trees[tag, router] = ports
        self._wiring = wiring(mesh)

    def run(self) -> NocResult:
        """All steps, then until the last result is in DRAM."""
        plan, num = self.plan, len(self.plan.streams)
        state = self._body([], self._first())
        state = self._simulate(plan.end(), state, is_over=True)
        names = [stream.name for stream in plan.streams]
        counts = [int(x) for x in self.totals]
        sent, waited = counts[c.FIRST_SENT :][:num], counts[c.FIRST_SENT + num :][: num + 2]
        links = counts[c.FIRST_SENT + 2 * num + 2 :]
        return NocResult(
            cycles=counts[c.CYCLES],
            compute_cycles=plan.num_steps * plan.step_cycles,
            wait_cycles=dict(zip([*names, "Drain", "End"], waited, strict=True)),
            num_steps=plan.num_steps,
            num_elements_used=plan.num_used,
            sent_flits=dict(zip(names, sent, strict=True)),
            returned_flits=counts[c.RETURNED],
            link_flits=tuple(
                tuple(links[place : place + NUM_PORTS]) for place in range(0, len(links), NUM_PORTS)
            ),
            dram_read_flits=counts[c.DRAM_READ],
            dram_written_flits=counts[c.DRAM_WRITTEN],
            num_simulated_steps=self.num_simulated,
        )

    def _first(self) -> _State:
        plan, num = self.plan, len(self.plan.streams)
        scalars = np.zeros(c.NUM_SCALARS, np.int64)
        scalars[c.SENDING] = -1
        # A burst of a flit each may be under way at a time, and those of the present cycle.
        flits_per_cycle = -(-plan.read_rate[0] // plan.read_rate[1])
        num_under_way = (plan.options.dram_latency_cycles + 3) * flits_per_cycle + 2
        return _State(
            network_state(plan.mesh),
            np.zeros((num, c.NUM_INCOMING), np.int64),
            np.zeros((num, plan.mesh.num_elements), np.int64),
            np.zeros((plan.mesh.num_elements, c.NUM_ELEMENT), np.int64),
            scalars,
            np.zeros((num_under_way, 3), np.int64),
        )

    def _body(self, digits: list[int], state: _State) -> _State:
        """All steps whose outermost counters are `digits`."""
        key = (len(digits), state.key, *self._surroundings(digits))
        known = self._memo.get(key)
        if known is not None:
            self.totals += known[1]
            return known[0]
        before = self.totals.copy()
        if len(digits) == len(self.plan.factors):
            state = self._simulate(digits, state, is_over=False)
        else:
            state = self._loop(digits, state)
        self._memo[key] = state, self.totals - before
        return state

    def _loop(self, digits: list[int], state: _State) -> _State:
        num = self.plan.factors[len(digits)]
        seen: dict[bytes, tuple[int, Array]] = {}
        i = 0
        while i < num:
            if _FIRST <= i < num - _LAST:
                if state.key in seen:
                    start, totals = seen[state.key]
                    repeats = (num - _LAST - i) // (i - start)
                    self.totals += repeats * (self.totals - totals)
                    i += repeats * (i - start)
                    seen = {}
                    if repeats:
                        continue
                else:
                    seen[state.key] = i, self.totals.copy()
            state = self._body([*digits, i], state)
            i += 1
        return state

    def _surroundings(self, digits: list[int]) -> tuple[object, ...]:
        """What else decides how the steps go: the sizes of all versions met, and what the end moves on."""
        factors, depth = self.plan.factors, len(digits)
        inside = factors[depth:]
        first = self._window([*digits, *(0 for _ in inside)])
        last = self._window([*digits, *(factor - 1 for factor in inside)])
        output = self.plan.streams[self.plan.output]
        sums = []
        for limit in (output.depth, output.buffer_depth):
            outside = [i for i in output.reductions if i < min(depth, limit)]
            sums.append(all(digits[i] == 0 for i in outside))
            sums.append(all(digits[i] == factors[i] - 1 for i in outside))
        return first.tobytes(), last.tobytes(), tuple(sums), self._next_loop(digits)

    def _next_loop(self, digits: Sequence[int]) -> int:
        """The loop that moves on when the steps of some outermost counters are over; -1 after the last."""
        factors = self.plan.factors
        return next((i for i in reversed(range(len(digits))) if digits[i] < factors[i] - 1), -1)

    def _window(self, digits: list[int]) -> Array:
        key = tuple(digits)
        if key not in self._windows:
            rows = []
            for stream in self.plan.streams:
                window = self.plan.window(stream, digits)
                rows.append((*window.load, *window.fetch, *window.buffer_of, *window.drain, *window.write))
            self._windows[key] = np.array(rows, np.int64)
        return self._windows[key]

    def _simulate(self, digits: list[int], before: _State, *, is_over: bool) -> _State:
        state = before.copy()
        window = self._window(digits)
        num_totals = self.totals.size - self.plan.mesh.num_elements * NUM_PORTS
        is_done = c.run_step(
            is_over,
            self._constants,
            self._facts,
            self._receives,
            self._element_facts,
            self._tag_stream,
            self._trees,
            *self._wiring,
            window,
            *state.network,
            state.incoming,
            state.got,
            state.elements,
            state.scalars,
            state.under_way,
            self.totals[:num_totals],
            self.totals[num_totals:].reshape(-1, NUM_PORTS),
        )
        if not is_done:
            raise InternalError(f"the network stands still at step {digits} of {self.plan.factors}.")
        self.num_simulated += not is_over
        if not is_over:
            following = self._next_loop(digits)
            moves = [(following < s.depth, following < s.buffer_depth) for s in self.plan.streams]
            c.advance(
                self._constants,
                self._facts,
                self._receives,
                window,
                np.array(moves, np.int64),
                state.incoming,
                state.got,
                state.scalars,
            )
        return state
