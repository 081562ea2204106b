"""The values of a layer whose operators are tiled jointly: step by step, from what earlier steps left.

Each step makes of every value between the operators only what it needs and does not find; what a value's
depth does not retain is gone with the step, or with the loop around it. A part of a sum adds to what the
parts before it left. What a step reads and nothing made is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from tilewright.errors import InternalError
from tilewright.ir.expr import Const
from tilewright.ir.graph import Node, Value
from tilewright.ir.graph_regions import RegionMaps
from tilewright.ir.nest import Nest
from tilewright.ir.nest_interpreter import run_nests
from tilewright.ir.region import Interval, Region, access_region, full_region, hull, volume
from tilewright.ir.restrict import restrict_iterations
from tilewright.mapping.chains.chain import Chain
from tilewright.mapping.chains.plan import STREAMED, ChainPlan

Array = np.ndarray[Any, Any]
Held = dict[Value, tuple[Region, Array]]
Run = Callable[[Node, Mapping[Value, Region], Held], Held]
"""Computes regions of a node's results from what is held."""


class _There:
    """What lies on chip of a value, element by element."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self.array = np.zeros(value.shape, value.dtype.numpy)
        self.is_there = np.zeros(value.shape, bool)

    def put(self, region: Region, array: Array) -> None:
        self.array[_box(region)] = array
        self.is_there[_box(region)] = True

    def missing(self, region: Region) -> Region | None:
        """The box around what is missing of a region."""
        absent = np.argwhere(~self.is_there[_box(region)])
        if not absent.size:
            return None
        low, high = absent.min(axis=0), absent.max(axis=0)
        starts = (start for start, _ in region)
        return tuple((s + int(a), s + int(b) + 1) for s, a, b in zip(starts, low, high, strict=True))

    def forget(self) -> None:
        self.is_there[...] = False


class TiledLayer:
    """One layer while its steps are run; `given` are what it reads, `run` computes parts of operators."""

    def __init__(self, chain: Chain, plan: ChainPlan, given: Held, run: Run) -> None:
        self.chain, self.plan, self.given, self.run = chain, plan, given, run
        self.maps = RegionMaps()
        self.there = {part.value: _There(part.value) for part in chain.parts[1:]}
        self.after = chain.nodes[chain.nodes.index(chain.anchor) + 1 :]
        result = next(chain.nodes[-1].results())
        self.sums = _There(chain.parts[0].value)
        self.result = _There(result)

    def values(self) -> tuple[Region, Array]:
        """All of the result, made in the plan's steps."""
        order = self.plan.tiling.order
        last: tuple[int, ...] | None = None
        for step in self._steps():
            for part, depth in zip(self.chain.parts[1:], self.plan.depths[1:], strict=True):
                is_retained = part.is_held and depth != STREAMED and depth < len(order)
                if last is None or not is_retained or last[:depth] != step[:depth]:
                    self.there[part.value].forget()
            self._run(step)
            last = step
        region = full_region(self.result.value.shape)
        if self.result.missing(region) is not None:
            raise InternalError(
                f"{self.result.missing(region)} of {self.result.value.name} is made by no tile"
            )
        return region, self.result.array

    def _steps(self) -> Iterator[tuple[int, ...]]:
        tiling = self.plan.tiling
        extents = (self.chain.loops[loop].extent for loop in tiling.order)
        yield from product(
            *(range(-(-extent // tile)) for extent, tile in zip(extents, tiling.tiles, strict=True))
        )

    def _run(self, step: tuple[int, ...]) -> None:
        nest, tiling = self.chain.nest, self.plan.tiling
        intervals: dict[str, Interval] = {dim.name: (0, dim.extent) for dim in nest.dims}
        for at, loop, tile in zip(step, tiling.order, tiling.tiles, strict=True):
            dim = self.chain.loops[loop]
            intervals[dim.name] = at * tile, min((at + 1) * tile, dim.extent)
        is_reduced = [dim for dim in nest.reduce_dims if dim.name in intervals]
        is_first = all(intervals[dim.name][0] == 0 for dim in is_reduced)
        is_last = all(intervals[dim.name][1] == dim.extent for dim in is_reduced)
        written = access_region(nest.write, intervals)
        assert written is not None, "results are written"
        made = self._needs(intervals, written if is_last else None)
        for part in reversed(self.chain.parts[1:]):
            region = made[part.value]
            if region is None:
                continue
            if part.kind == "intermediate":
                node = part.value.producer
                assert node is not None, "it is made inside"
                found = self.run(node, {part.value: region}, self._held(node, region))
                self.there[part.value].put(region, found[part.value][1])
            else:
                self.there[part.value].put(region, self._outside(part.value, region))
        self._add(intervals, written, is_first=is_first)
        if is_last:
            held: Held = {self.sums.value: (written, self.sums.array[_box(written)])}
            for node in self.after:
                held |= self._held(node, written)
                held |= self.run(node, dict.fromkeys(node.results(), written), held)
            self.result.put(written, held[self.result.value][1])

    def _needs(
        self, intervals: Mapping[str, Interval], finished: Region | None
    ) -> dict[Value, Region | None]:
        """What the step has to make or fetch: of what it needs of a part, the box around what is missing."""
        chain = self.chain
        fresh: dict[Value, Region | None] = {}
        for part in chain.parts[1:]:
            need: Region | None = None
            for reader in part.readers:
                if reader.node is chain.anchor:
                    reads = [a for a in chain.nest.reads if a.operand.key == ("input", reader.position)]
                    touched = [access_region(a, intervals) for a in reads]
                elif reader.node in self.after:
                    touched = [self._need_of(reader.node, reader.position, finished)]
                else:
                    made = fresh[chain.parts[reader.part].value]
                    touched = [self._need_of(reader.node, reader.position, made)]
                for region in touched:
                    if region is not None and volume(region):
                        need = region if need is None else hull(need, region)
            fresh[part.value] = None if need is None else self.there[part.value].missing(need)
        return fresh

    def _need_of(self, node: Node, position: int, made: Region | None) -> Region | None:
        return None if made is None else self.maps.inputs_of(node, 0, made)[position]

    def _outside(self, value: Value, region: Region) -> Array:
        if value.data is not None:
            return np.asarray(value.data[_box(region)])
        there, array = self.given[value]
        if any(low < start or high > stop for (low, high), (start, stop) in zip(region, there, strict=True)):
            raise InternalError(f"{region} of {value.name} is read, there is {there}")
        return np.asarray(
            array[tuple(slice(a - s, b - s) for (a, b), (s, _) in zip(region, there, strict=True))]
        )

    def _held(self, node: Node, made: Region) -> Held:
        """What a node reads of what lies on chip, to make a region of its result."""
        needed: dict[Value, Region] = {}
        for value, need in zip(node.inputs, self.maps.inputs_of(node, 0, made), strict=True):
            if value in self.there and not value.is_constant and need is not None and volume(need):
                needed[value] = hull(needed[value], need) if value in needed else need
        return {value: (region, self._lying(value, region)) for value, region in needed.items()}

    def _lying(self, value: Value, region: Region) -> Array:
        there = self.there[value]
        missing = there.missing(region)
        if missing is not None:
            raise InternalError(f"{missing} of {value.name} is read, no tile holds it")
        return np.asarray(there.array[_box(region)], order="C")

    def _add(self, intervals: Mapping[str, Interval], written: Region, *, is_first: bool) -> None:
        """The anchor's part of a step: products of what is there, added to the sums so far."""
        nest = self.chain.nest
        if not is_first:
            nest = _without_start(nest)
        part = restrict_iterations(nest, intervals)
        if part is None:
            raise InternalError(f"{self.chain.anchor.name!r}: a tile of it is no nest")
        inputs: list[Array | None] = []
        for position, operand in enumerate(self.chain.anchor.inputs):
            window = part.windows.get(("input", position))
            if operand is None or window is None:
                inputs.append(None)
                continue
            inputs.append(self._lying(operand, window))
        shape = tuple(stop - start for start, stop in written)
        specs = [(self.sums.value.dtype, shape)]
        (found,) = run_nests(part.nests, inputs, specs, name=f"a tile of {self.chain.anchor.name!r}")
        assert found is not None, "it was asked for"
        self.sums.put(written, found if is_first else self.sums.array[_box(written)] + found)


def _without_start(nest: Nest) -> Nest:
    """A sum that begins with nothing: the first part has what it begins with."""
    return nest if nest.init is None else replace(nest, init=Const(0, nest.init.result))


def _box(region: Region) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in region)
