"""Keys and values of one head on their way into the scratch area, in the order in which products read them.

A panel of keys holds for each depth the keys of its vectors side by side: a head's keys are turned, mostly
in registers. A panel of values holds for each key the channels of its vectors. Lanes behind the last key are
never left as they were: they might be denormal numbers, which some processors multiply slowly.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.dtype import DType
from tilewright.targets.cpu.attention.plan import ELEMENT_BYTES, AttentionPlan
from tilewright.targets.cpu.loopnest.transpose import transpose
from tilewright.targets.cpu.product.lanes import load_lanes
from tilewright.targets.cpu.product.tiling import Panels
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import FLOAT, Int, Val, vec

# Fewer keys than this in the last vector are moved one by one: turning takes as long as for a whole vector.
_MIN_TURNED = 4


class Packer:
    """Emits the packing of a head; `keys` and `values` are where they go."""

    def __init__(self, e: Emitter, plan: AttentionPlan, scratch: Val) -> None:
        self._e = e
        self._plan = plan
        self._along, self._across = plan.scores.vector.b, plan.scores.summed[0].b
        self.keys = scratch
        self.values = e.gep(scratch, plan.values_offset)

    def pack_values(self, value: Val) -> None:
        """The values of the head whose first element `value` points to."""
        step = self._plan.sums.summed[0].b
        self._copy_rows(value, step, self._plan.num_keys, self._plan.channels, self.values)

    def pack_keys(self, key: Val) -> None:
        """The keys of the head whose first element `key` points to."""
        plan = self._plan
        if self._along == 1:
            self._copy_rows(key, self._across, plan.depth, plan.keys, self.keys)
            return
        lanes = plan.keys.lanes
        num_whole, rest = divmod(plan.keys.extent, lanes)
        is_turned = self._across == 1
        move = self._turn if is_turned else self._move

        def whole(block: Int, _: Sequence[Val]) -> None:
            move(key, block, lanes)

        self._e.loop(0, num_whole, 1, whole)
        if rest:
            last = self._turn if is_turned and rest >= _MIN_TURNED else self._move
            last(key, num_whole, rest)

    def _copy_rows(self, source: Val, step: int, num_rows: int, panels: Panels, target: Val) -> None:
        """Rows whose elements lie side by side, `step` elements apart, into panels."""
        e, lanes = self._e, panels.lanes
        type = vec("float", lanes)

        def panel(index: Int, num_vectors: int, active: int) -> None:
            to = e.gep(target, e.mul(index, panels.width * num_rows * ELEMENT_BYTES))
            since = e.gep(source, e.mul(index, panels.width * ELEMENT_BYTES))

            def row(number: Int, _: Sequence[Val]) -> None:
                at = e.gep(since, e.mul(number, step * ELEMENT_BYTES))
                here = e.gep(to, e.mul(number, num_vectors * type.size_bytes))
                for v in range(num_vectors):
                    exist = active if v == num_vectors - 1 else lanes
                    pointer = e.gep(at, v * type.size_bytes)
                    value = load_lanes(e, DType.FLOAT32, pointer, lanes, active=exist)
                    e.store(value, e.gep(here, v * type.size_bytes))

            e.loop(0, num_rows, 1, row)

        e.loop(0, panels.num_full, 1, lambda index, _: panel(index, panels.num_vectors, lanes))
        if panels.tail:
            panel(panels.num_full, panels.tail_vectors, (panels.tail - 1) % lanes + 1)

    def _place(self, block: Int) -> tuple[Val, Int]:
        """Where a vector of keys goes at depth 0, and the bytes from one depth to the next."""
        e, plan, panels = self._e, self._plan, self._plan.keys
        vector_bytes = panels.lanes * ELEMENT_BYTES
        index, vector = e.udiv(block, panels.num_vectors), e.urem(block, panels.num_vectors)
        pitch: Int = panels.num_vectors * vector_bytes
        if panels.tail:
            is_tail = e.compare("eq", index, panels.num_full)
            pitch = e.select_index(is_tail, panels.tail_vectors * vector_bytes, pitch)
        offset = e.mul(index, panels.num_vectors * vector_bytes * plan.depth)
        return e.gep(self.keys, e.add(offset, e.mul(vector, vector_bytes))), pitch

    def _turn(self, key: Val, block: Int, num_keys: int) -> None:
        """A vector of keys whose depths lie side by side, a square of lanes at a time."""
        e, lanes, depth = self._e, self._plan.keys.lanes, self._plan.depth
        step = self._along
        to, pitch = self._place(block)
        first = e.gep(key, e.mul(block, lanes * step * ELEMENT_BYTES))
        num_depths = min(lanes, depth)

        def square(index: Int, _: Sequence[Val]) -> None:
            # The last square is moved back to end with the depths: it repeats some of the one before.
            start = e.min(index, depth - num_depths) if depth % num_depths else index
            at = e.gep(first, e.mul(start, ELEMENT_BYTES))
            rows = [
                load_lanes(
                    e, DType.FLOAT32, e.gep(at, number * step * ELEMENT_BYTES), lanes, active=num_depths
                )
                for number in range(num_keys)
            ]
            rows += [rows[-1]] * (lanes - num_keys)
            here = e.gep(to, e.mul(start, pitch))
            for number, column in enumerate(transpose(e, rows)[:num_depths]):
                e.store(column, e.gep(here, e.mul(pitch, number)))

        e.loop(0, depth, num_depths, square)

    def _move(self, key: Val, block: Int, num_keys: int) -> None:
        """A vector of keys element by element, wherever they lie."""
        e, lanes, along, across = self._e, self._plan.keys.lanes, self._along, self._across
        to, pitch = self._place(block)
        first = e.gep(key, e.mul(block, lanes * along * ELEMENT_BYTES))

        def depth(number: Int, _: Sequence[Val]) -> None:
            at, here = e.gep(first, e.mul(number, across * ELEMENT_BYTES)), e.gep(to, e.mul(number, pitch))
            if num_keys < lanes:
                e.store(e.zero(vec("float", lanes)), here)
            for lane in range(num_keys):
                element = e.load(FLOAT, e.gep(at, lane * along * ELEMENT_BYTES))
                e.store(element, e.gep(here, lane * ELEMENT_BYTES))

        e.loop(0, self._plan.depth, 1, depth)
