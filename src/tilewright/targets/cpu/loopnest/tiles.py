"""Emission of one nest: tiles of vectors, their reductions, and the loops around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt, prod

from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import BLOCK_STEPS, MAX_CHAIN_STEPS
from tilewright.targets.cpu.loopnest.plan import LoopNestPlan, lanes_for
from tilewright.targets.cpu.loopnest.transpose import emit_transposed
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.exprgen import (
    accumulate,
    combine_values,
    compute_type,
    neutral_value,
    to_storage,
)
from tilewright.targets.llvm.frame import Frame
from tilewright.targets.llvm.refs import Guard, LinearNest, fill_is_neutral
from tilewright.targets.llvm.values import I1, Int, Val, vec

Emit = Callable[[Frame], None]
# More tiles than this that are partly padding are emitted as loops with masks.
_MAX_EDGE_TILES = 6


@dataclass(frozen=True, slots=True)
class Piece:
    """`count` tiles of `width` iterations each, from `start`; a tile is `num` vectors of `lanes`."""

    start: int
    count: int
    num: int
    lanes: int
    active: int

    @property
    def width(self) -> int:
        """Iterations of one tile."""
        return (self.num - 1) * self.lanes + self.active


def whole_pieces(size: int, lanes: int, num: int) -> list[Piece]:
    """Cut `size` iterations: full tiles, the full vectors left, then one vector of which a part exists."""
    pieces = []
    tiles = size // (lanes * num)
    start = tiles * lanes * num
    if tiles:
        pieces.append(Piece(0, tiles, num, lanes, lanes))
    if rest := (size - start) // lanes:
        pieces.append(Piece(start, 1, rest, lanes, lanes))
        start += rest * lanes
    if start < size:
        pieces.append(Piece(start, 1, 1, lanes, size - start))
    return pieces


def vector_pieces(isa: Isa, size: int, lanes: int, num: int, element: str) -> list[Piece]:
    """Like `whole_pieces`, the last vector as narrow as it may be; several where masks are slow."""
    pieces = whole_pieces(size, lanes, num)
    if not pieces or pieces[-1].active == pieces[-1].lanes:
        return pieces
    last = pieces.pop()
    start, left = last.start, last.active
    while left:
        if masks_are_cheap(isa, element):
            narrow = min(lanes, lanes_for(isa, element, left))
        else:
            narrow = 1 << (left.bit_length() - 1)
        active = min(left, narrow)
        pieces.append(Piece(start, 1, 1, narrow, active))
        start, left = start + active, left - active
    return pieces


def masks_are_cheap(isa: Isa, element: str) -> bool:
    """Whether the instruction set loads and stores part of a vector of this element type."""
    if isa.vectors == "avx512":
        return True
    return isa.vectors == "avx2" and element in ("float", "double", "i32", "i64")


class NestEmitter:
    """Emits one planned nest into frames in which the caller has bound some of its loops."""

    def __init__(
        self, nest: LinearNest, plan: LoopNestPlan, isa: Isa, limits: Mapping[str, Int] | None = None
    ) -> None:
        """`limits` are the iterations to run of outer loops where they are known only at run time."""
        self.limits = limits or {}
        self.nest = nest
        self.plan = plan
        self.isa = isa
        self._element = _narrowest_stored(nest)
        self._extents = nest.extents
        self._neutral = {i: fill_is_neutral(nest, i) for i in range(len(nest.refs))}

    # The loops around the tile.

    def emit(self, frame: Frame) -> None:
        """All loops that are not bound yet."""
        dim = next((d for d in self.plan.outer if d not in frame.bound), None)
        if dim is None:
            self._branch(frame, self._tiles)
        else:
            high = self.limits.get(dim, self._extents[dim])
            frame.loop(dim, 0, high, 1, lambda inner, _: self.emit(inner))

    def _branch(self, frame: Frame, emit: Emit) -> None:
        """Decide once, outside the tile, whether reads whose bounds no longer change are padding."""
        tile = {self.plan.vector, self.plan.row, *(d.name for d in self.nest.reduce)}
        open_sets: dict[tuple[Guard, ...], list[int]] = {}
        for read, ref in enumerate(self.nest.refs):
            found = dict.fromkeys(
                g for g in ref.guards if not tile & set(g.form.dims()) and frame.holds(g) is None
            )
            if found and not frame.misses(read):
                open_sets.setdefault(tuple(found), []).append(read)
        if not open_sets or len(open_sets) > 2:
            emit(frame)
            return
        e, (guards, padded) = frame.emitter, next(iter(open_sets.items()))
        inside: Val | None = None
        for guard in guards:
            form = e.index(frame.form(guard.form))
            one = e.icmp("ult", form, guard.extent)
            inside = one if inside is None else e.and_(inside, one)
        assert inside is not None

        def then() -> None:
            self._branch(frame.inner().settle(guards), emit)

        def otherwise() -> None:
            # One of the guards fails, it is not known which: the reads that have them all are padding.
            self._branch(frame.inner().in_padding(padded), emit)

        e.if_(inside, then, otherwise)

    def _tiles(self, frame: Frame) -> None:
        plan = self.plan
        if plan.transposed:
            emit_transposed(frame, plan)
        elif plan.reduces_lanes:
            self._reduce_lanes(frame)
        elif plan.vector is None or plan.vector in frame.bound:
            self._rows(frame, 1)
        else:
            size = self._extents[plan.vector]
            for piece in vector_pieces(self.isa, size, plan.lanes, plan.num_vectors, self._element):
                self._vector_piece(frame, plan.vector, piece)

    def _vector_piece(self, frame: Frame, dim: str, piece: Piece) -> None:
        frame = frame.vectorised(dim, piece.lanes, piece.active)
        step = piece.num * piece.lanes
        starts = range(piece.start, piece.start + piece.count * step, step)

        def tile(inner: Frame, _: list[Val]) -> None:
            self._rows(inner, piece.num)

        for first, last in self._groups(frame, dim, starts, piece.width):
            inner = frame.inner()
            if last > first:
                inner.hoist(self.nest.body, self.nest.init, self.nest.finish)
            inner.loop(dim, first, last + 1, step, tile)

    def _rows(self, frame: Frame, num: int) -> None:
        """The loop over rows, for one tile of vectors."""
        plan = self.plan
        if plan.row is None or plan.row in frame.bound:
            self._tile(frame, 1, num)
            return
        extent = self._extents[plan.row]
        rows = min(plan.rows, extent)
        full = extent // rows
        sizes = [(range(0, full * rows, rows), rows)]
        if extent % rows:
            sizes.append((range(full * rows, extent, rows), extent % rows))
        for begins, size in sizes:
            for first, last in self._groups(frame, plan.row, begins, size):

                def tile(inner: Frame, _: list[Val], size: int = size) -> None:
                    self._tile(inner, size, num)

                frame.inner().loop(plan.row, first, last + 1, rows, tile)

    def _groups(self, frame: Frame, dim: str, starts: range, width: int) -> list[tuple[int, int]]:
        """Runs of tiles (first and last start) in which the same is known of all padding."""
        guards = [g for r in self.nest.refs for g in r.guards if dim in g.form.dims()]
        if not guards or len(starts) <= 1:
            return [(starts[0], starts[-1])] if starts else []
        # What is known of a guard changes where an end of its span passes an end of the axis. Spans move
        # evenly with the tiles, so that these places are found without a look at each tile.
        cuts = {0, len(starts)}
        for guard in guards:
            first, second = (self._span(frame, guard, dim, start, width) for start in starts[:2])
            for end in (0, 1):
                for bound in (0, guard.extent):
                    cut = _crossing(first[end], second[end] - first[end], bound)
                    if cut is not None and 0 < cut < len(starts):
                        cuts.add(cut)
        spans: list[tuple[int, int, tuple[bool | None, ...]]] = []
        for low, high in pairwise(sorted(cuts)):
            known = tuple(self._known(frame, g, dim, starts[low], width) for g in guards)
            if spans and spans[-1][2] == known:
                low = spans.pop()[0]
            spans.append((low, high, known))
        edges = sum(high - low for low, high, known in spans if None in known)
        runs: list[tuple[int, int]] = []
        for low, high, known in spans:
            # An edge tile stands alone, so that its padding is known lane by lane, unless there are many.
            if None in known and edges <= _MAX_EDGE_TILES:
                runs.extend((start, start) for start in starts[low:high])
            else:
                runs.append((starts[low], starts[high - 1]))
        return runs

    def _known(self, frame: Frame, guard: Guard, dim: str, start: int, width: int) -> bool | None:
        """What is known of a guard when `dim` lies in `[start, start + width)`; None means edge code."""
        low, high = self._span(frame, guard, dim, start, width)
        if low >= 0 and high < guard.extent:
            return True
        return False if high < 0 or low >= guard.extent else None

    def _span(self, frame: Frame, guard: Guard, dim: str, start: int, width: int) -> tuple[int, int]:
        """Least and largest place of a guarded index, both inclusive."""
        low = high = guard.form.offset
        for name, c in guard.form.terms:
            at = frame.bound.get(name)
            if name == dim:
                first, last = start, start + width - 1
            elif at is not None:
                first, last = at.low, at.high
            else:
                first, last = 0, self._extents[name] - 1
            low += min(c * first, c * last)
            high += max(c * first, c * last)
        return low, high

    # One register tile.

    def _tile(self, frame: Frame, rows: int, num: int) -> None:
        plan, nest = self.plan, self.nest
        if frame.vector is None and plan.vector is not None and plan.vector in frame.bound:
            frame = frame.vectorised(plan.vector, 1)
        places = [
            frame.shift(plan.row, t).shift(plan.vector, j * frame.lanes)
            for t in range(rows)
            for j in range(num)
        ]
        if nest.combine is None:
            if rows > 1 and frame.active == frame.lanes:
                for j in range(num):
                    self._interleaved(places[j::num])
                return
            for place in places:
                place.store(place.value(nest.body))
            return
        accs = [self._initial(place) for place in places]
        deltas = [(t, j * frame.lanes) for t in range(rows) for j in range(num)]
        accs = self._reduce(frame, [d.name for d in nest.reduce], deltas, accs)
        for place, acc in zip(places, accs, strict=True):
            place.store(acc if nest.finish is None else place.value(nest.finish, acc))

    def _interleaved(self, places: Sequence[Frame]) -> None:
        """Vectors of rows whose elements lie side by side, stored as one."""
        nest, e, count = self.nest, places[0].emitter, len(places)
        values = [to_storage(e, place.value(nest.body), nest.write.operand.dtype) for place in places]
        lanes = values[0].lanes
        values += values[-1:] * (count % 2)
        pairs = [e.concat(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
        whole = pairs[0] if len(pairs) == 1 else e.concat(*pairs)
        order = [row * lanes + lane for lane in range(lanes) for row in range(count)]
        e.store(e.shuffle(whole, None, order), places[0].pointer(len(nest.refs)))

    def _initial(self, place: Frame) -> Val:
        nest = self.nest
        if nest.init is not None:
            return place.value(nest.init)
        assert nest.combine is not None
        type = compute_type(nest.body.result, place.lanes)
        return place.emitter.constant(type, neutral_value(nest.combine, nest.body.result))

    def _reduce(
        self, frame: Frame, dims: Sequence[str], deltas: Sequence[tuple[int, int]], accs: Sequence[Val]
    ) -> list[Val]:
        """All reduce loops in `dims`, outermost first, around the bodies of a tile."""
        plan = self.plan
        if not dims:
            return self._bodies(frame, deltas, accs)
        dim, rest = dims[0], dims[1:]
        extent = self._extents[dim]
        if dim in plan.straight:
            made = list(accs)
            for k in range(extent):
                made = self._reduce(frame.bind(dim, k), rest, deltas, made)
            return made
        low, high, settled = self._inside(frame, dim)

        def body(inner: Frame, values: list[Val]) -> list[Val]:
            return self._reduce(inner.settle(settled), rest, deltas, values)

        inside = prod(self._extents[d] for d in rest)
        return self._accumulated(frame, dim, (low, high, 1), body, accs, extent, inside)

    def _accumulated(
        self,
        frame: Frame,
        dim: str,
        bounds: tuple[Int, Int, int],
        body: Callable[[Frame, list[Val]], list[Val]],
        accs: Sequence[Val],
        count: int,
        inside: int,
    ) -> list[Val]:
        """A reduce loop of at most `count` iterations, each of `inside` steps in every accumulator.

        Long sums of floats are cut into blocks that start from zero, whose totals are added up: the error of
        one chain of additions grows with its length.
        """
        (low, high, step), e = bounds, frame.emitter
        known = (0, self._extents[dim] - 1)
        if isinstance(low, int) and isinstance(high, int):
            known = low, low + (high - 1 - low) // step * step
        is_sum = self.nest.combine == "sum" and self.nest.body.result.is_float
        if not is_sum or count * inside <= MAX_CHAIN_STEPS:
            return frame.loop(dim, low, high, step, body, accs, known=known)
        size = step * max(1, max(BLOCK_STEPS, isqrt(count * inside)) // inside)

        def block(start: Int, totals: list[Val]) -> list[Val]:
            zeros = [e.zero(total.type) for total in totals]
            stop = e.min(e.add(start, size), high)
            sums = frame.loop(dim, start, stop, step, body, zeros, known=known)
            return [e.fadd(total, value) for total, value in zip(totals, sums, strict=True)]

        return e.loop(low, high, size, block, [(v.type, v) for v in accs])

    def _inside(self, frame: Frame, dim: str) -> tuple[Int, Int, list[Guard]]:
        """Bounds of a reduce loop that leave out padding which adds nothing, and the guards they ensure."""
        e = frame.emitter
        low: Int = 0
        high: Int = self._extents[dim]
        settled: list[Guard] = []
        for read, ref in enumerate(self.nest.refs):
            if not self._neutral[read]:
                continue
            for guard in ref.guards:
                c = guard.form.coefficient(dim)
                others = set(guard.form.dims()) - {dim}
                moving = {self.plan.row, self.plan.vector} & others
                if c <= 0 or moving or not others <= frame.bound.keys() or guard in settled:
                    continue
                if frame.holds(guard) is not None:
                    continue
                rest = frame.form(
                    type(guard.form)(tuple(t for t in guard.form.terms if t[0] != dim), guard.form.offset)
                )
                # c*k + rest >= 0 and c*k + rest <= extent - 1; sdiv truncates, so divide what is positive.
                need = e.max(e.sub(0, rest), 0)
                low = e.max(low, e.sdiv(e.add(need, c - 1), c))
                room = e.sub(guard.extent - 1, rest)
                above = e.select_index(e.compare("slt", room, 0), 0, e.add(e.sdiv(e.max(room, 0), c), 1))
                high = e.min(high, above)
                settled.append(guard)
        return low, high, settled

    def _skips(self, place: Frame) -> bool:
        """Whether an iteration only adds padding that changes nothing."""
        return any(self._neutral[i] and place.misses(i) for i in range(len(self.nest.refs)))

    def _bodies(self, frame: Frame, deltas: Sequence[tuple[int, int]], accs: Sequence[Val]) -> list[Val]:
        nest, plan = self.nest, self.plan
        assert nest.combine is not None
        made = []
        for (t, lane), acc in zip(deltas, accs, strict=True):
            place = frame.shift(plan.row, t).shift(plan.vector, lane)
            if self._skips(place):
                made.append(acc)
            else:
                made.append(
                    accumulate(place.emitter, nest.combine, nest.body.result, acc, nest.body, place.value)
                )
        return made

    # Reductions along the lanes.

    def _reduce_lanes(self, frame: Frame) -> None:
        """One output element: vectors along the contiguous reduce loop, folded in a fixed order."""
        nest, plan, e = self.nest, self.plan, frame.emitter
        assert plan.vector is not None
        assert nest.combine is not None
        dtype = nest.body.result
        type = compute_type(dtype, plan.lanes)
        neutral = neutral_value(nest.combine, dtype)
        outer = [d.name for d in nest.reduce if d.name != plan.vector]
        extent = self._extents[plan.vector]
        num = min(plan.num_vectors, max(1, extent // plan.lanes))
        wide = frame.vectorised(plan.vector, plan.lanes)
        accs = [e.constant(type, neutral) for _ in range(num)]
        if self._tracks_nan():
            nan = e.zero(I1.with_lanes(plan.lanes))
            *accs, nan = self._lane_loops(wide, outer, [*accs, nan])
        else:
            accs = self._lane_loops(wide, outer, accs)
        while len(accs) > 1:
            half = (len(accs) + 1) // 2
            pairs = [self._join(e, a, b) for a, b in zip(accs, accs[half:], strict=False)]
            accs = [*pairs, *accs[len(pairs) : half]]
        total = e.reduce(accs[0], lambda a, b: self._join(e, a, b))
        if self._tracks_nan():
            bits = vec(f"i{plan.lanes}")
            some = e.icmp("ne", e.op(f"bitcast {nan.typed} to {bits.text}", bits), 0)
            total = e.select(some, float("nan"), total)
        if nest.init is not None:
            total = combine_values(e, nest.combine, dtype, frame.value(nest.init), total)
        frame.store(total if nest.finish is None else frame.value(nest.finish, total))

    def _tracks_nan(self) -> bool:
        """Whether extrema ignore NaN and masks collect it: a third of the operations on the critical path."""
        masks = self.isa.vectors == "avx512" and self.plan.lanes in (8, 16)
        return masks and self.nest.combine in ("max", "min") and self.nest.body.result.is_float

    def _join(self, e: Emitter, a: Val, b: Val) -> Val:
        """One step of folding accumulators."""
        assert self.nest.combine is not None
        if not self._tracks_nan():
            return combine_values(e, self.nest.combine, self.nest.body.result, a, b)
        return e.select(e.fcmp("ogt" if self.nest.combine == "max" else "olt", a, b), a, b)

    def _lane_loops(self, frame: Frame, dims: Sequence[str], accs: Sequence[Val]) -> list[Val]:
        if dims:
            low, high, settled = self._inside(frame, dims[0])

            def step(inner: Frame, values: list[Val]) -> list[Val]:
                return self._lane_loops(inner.settle(settled), dims[1:], values)

            assert self.plan.vector is not None
            steps = -(-self._extents[self.plan.vector] // (self.plan.lanes * len(accs)))
            inside = steps * prod(self._extents[d] for d in dims[1:])
            return self._accumulated(
                frame, dims[0], (low, high, 1), step, accs, self._extents[dims[0]], inside
            )
        made = list(accs)
        plan = self.plan
        assert plan.vector is not None
        frame.hoist(self.nest.body)
        # Lanes beyond the end are left out below, so the last vector is as wide as all.
        num = len(made) - (1 if self._tracks_nan() else 0)
        for piece in whole_pieces(self._extents[plan.vector], plan.lanes, num):
            wide = frame.vectorised(plan.vector, plan.lanes, piece.active)
            step_size = piece.num * plan.lanes
            starts = range(piece.start, piece.start + piece.count * step_size, step_size)
            for first, last in self._groups(frame, plan.vector, starts, piece.width):

                def body(inner: Frame, values: list[Val], num: int = piece.num) -> list[Val]:
                    return self._lane_bodies(inner, num, values)

                count = (last - first) // step_size + 1
                bounds = (first, last + 1, step_size)
                made = self._accumulated(wide.inner(), plan.vector, bounds, body, made, count, 1)
        return made

    def _lane_bodies(self, frame: Frame, num: int, accs: Sequence[Val]) -> list[Val]:
        nest, e = self.nest, frame.emitter
        assert nest.combine is not None
        made = list(accs)
        seen: list[Val] = []
        for j in range(num):
            place = frame.shift(self.plan.vector, j * frame.lanes)
            if self._skips(place):
                continue
            if self._tracks_nan():
                value = place.value(nest.body)
                seen.append(value)
                new = self._join(e, value, made[j])
            else:
                new = accumulate(e, nest.combine, nest.body.result, made[j], nest.body, place.value)
            if frame.active < frame.lanes:
                new = e.select(e.lane_mask(frame.lanes, frame.active), new, made[j])
            made[j] = new
        # One comparison tells of two values whether either is NaN. Lanes that do not exist hold zero.
        for position in range(0, len(seen), 2):
            a, b = seen[position], seen[min(position + 1, len(seen) - 1)]
            nan = e.fcmp("uno", a, b)
            if frame.active < frame.lanes:
                nan = e.and_(nan, e.lane_mask(frame.lanes, frame.active))
            made[-1] = e.or_(made[-1], nan)
        return made


def _crossing(start: int, step: int, bound: int) -> int | None:
    """The first position where `start + position * step` lies on the other side of `bound` than before.

    At or above it is one side, below it the other.
    """
    if step > 0:
        return -((start - bound) // step)
    return None if step == 0 else (start - bound) // -step + 1


def _narrowest_stored(nest: LinearNest) -> str:
    """The memory element type for which partial vectors are hardest."""
    from tilewright.targets.llvm.exprgen import storage_type

    types = [storage_type(r.operand.dtype) for r in nest.all_refs()]
    return min(types, key=lambda t: t.element_bytes).element
