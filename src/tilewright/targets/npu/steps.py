"""The steps of a scope plan as an accelerator runs them: what each moves, fetches and computes, by tiles."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from tilewright.errors import InfeasibleMapping
from tilewright.ir.graph import Node, Value
from tilewright.ir.graph_regions import RegionMaps, value_regions
from tilewright.ir.region import Region, volume
from tilewright.known_facts import KnownFacts
from tilewright.mapping.chains.chain import chain_of
from tilewright.mapping.chains.plan import ChainPlan
from tilewright.memory.instances import InstanceStep, Read, bytes_made, is_result
from tilewright.memory.scopes import PlacedBuffer, ScopePlan
from tilewright.progress import checkpoint
from tilewright.schedule.binding import Binding, Bindings, Scope, extents, transfers
from tilewright.schedule.instances import Edge, Kind
from tilewright.schedule.launches import Launch
from tilewright.targets.npu.groups import StepGroup, bringing
from tilewright.targets.npu.joint_steps import JointStep
from tilewright.targets.npu.kernels import (
    Kernel,
    ProgramCores,
    StepCores,
    StepLane,
    kernel_of,
    lanes_of,
)
from tilewright.targets.npu.node_work import has_products, multiplied
from tilewright.targets.npu.places import reused_places
from tilewright.targets.npu.pools import PoolSizes, pool_sizes
from tilewright.targets.npu.residents import Residents
from tilewright.targets.npu.simulated_step import Load, SimulatedStep, Store, Weight
from tilewright.targets.npu.step_facts import StepFacts, StepRegions
from tilewright.targets.npu.tile_mapping import tiler_of
from tilewright.targets.npu.tile_requests import RequestPart, StepParts, TileRequests
from tilewright.targets.npu.tiles import NUM_TILES, Tiler, TileRequest, Tiling
from tilewright.targets.npu.work import UnitWork, Works


def lower(
    plan: ScopePlan,
    bindings: Bindings,
    works: Works,
    residents: Residents | None = None,
    tiler: Tiler | None = None,
    known: KnownFacts | None = None,
    groups: Sequence[StepGroup] = (),
) -> tuple[SimulatedStep, ...]:
    """The steps of a plan on the machine of `works`, which say what is known of the work of nodes there.

    `residents` are weights that stay on the chip, and what they leave free; None: there are none. `tiler`
    says how steps are tiled; None: `tiler_of` the machine. `known` are facts of steps of other plans of the
    graph on it, `groups` those of the bindings' groups of cores.
    O(operators of the layers of all instances).

    Raises:
        InfeasibleMapping: what the plan's buffers leave free is too small for any tile of a step.
    """
    residents = residents or Residents(pool_sizes(works.machine, plan))
    tiler, known = tiler or tiler_of(works.machine), known or KnownFacts()
    return _Lowering(plan, bindings, works, residents, tiler, known, groups).run()


class _Lowering:
    def __init__(
        self,
        plan: ScopePlan,
        bindings: Bindings,
        works: Works,
        residents: Residents,
        tiler: Tiler,
        known: KnownFacts,
        groups: Sequence[StepGroup],
    ) -> None:
        self.plan, self.graph, self.bindings, self.tiler = plan, plan.graph, bindings, tiler
        pools, self.residents = residents.pools, residents.scopes
        self.groups, self.group = groups, None if not groups else groups[0]
        # Weights that groups hold, once they have them; those that stay are there from the beginning.
        self.brought = {(g.number, key) for g in groups for key in g.held if residents.stay}
        self.requests = TileRequests(plan.graph.maps, pools.local_bytes, pools.shared_bytes)
        self.tilings: list[Tiling] = []
        self.num_cores = works.machine.num_cores_per_cluster  # that a step may take
        self.machine, self.works = works.machine, works
        self.kernel: Kernel | None = None
        self.inside: frozenset[int] | None = None  # the nodes of the kernel
        self.lane: StepLane | None = None
        self.launched = StepCores(plan, bindings, self.works, known) if bindings.launches else None
        self.cores = self.launched or ProgramCores(plan, bindings, self.works, known)
        self.moves = transfers(self.graph, bindings, plan.scopes)
        self.edges: dict[tuple[int, Value, int], Edge] = {
            (e.consumer, e.value, e.producer): e for e in self.graph.edges
        }
        self.redistributed: dict[Edge, int] = {}  # by which step
        network = plan.graph.partition.graph
        self.converted = frozenset(
            v.name
            for v in (*network.inputs, *network.outputs)
            if plan.graph.partition.converts(v) and works.types.is_converted(v.dtype)
        )
        self.known = known
        self.facts = StepFacts(plan, bindings, works, self.cores, known)
        self.known_requests: dict[tuple[object, ...], tuple[TileRequest, Tiling | None]] = {}
        self.requests_by_pools: dict[
            PoolSizes, dict[tuple[object, ...], tuple[TileRequest, Tiling | None]]
        ] = {}
        self.known_wholes: dict[tuple[object, ...], Tiling | None] = {}
        self.known_works: dict[tuple[object, ...], tuple[UnitWork, ...]] = {}
        self.reused: list[tuple[int, ...]] = []

    def run(self) -> tuple[SimulatedStep, ...]:
        self.reused = reused_places(self.plan)
        if self.launched is None:
            return tuple(self._of_program(number, step) for number, step in enumerate(self.plan.steps))
        return tuple(
            step
            for number, launch in enumerate(self.bindings.launches)
            for step in self._launched(
                number,
                launch,
                self.launched.most(launch, lambda step: self.facts.regions_of(step).regions),
            )
        )

    def _of_program(self, number: int, step: InstanceStep) -> SimulatedStep:
        """A step of the one program, on the cores of its group if there are groups."""
        if self.groups and self.bindings.cores is not None:
            self.group = self.groups[self.bindings.cores.of_nodes[step.node]]
            self.num_cores = self.group.num_cores
            self._pass(self.group.pools)
        return self._step(number, step)

    def _pass(self, pools: PoolSizes) -> None:
        """What follows is tiled for what is free so."""
        if (self.requests.local_bytes, self.requests.shared_bytes) != (pools.local_bytes, pools.shared_bytes):
            self.requests = TileRequests(self.plan.graph.maps, pools.local_bytes, pools.shared_bytes)
        self.known_requests = self.requests_by_pools.setdefault(pools, {})

    def _launched(self, number: int, launch: Launch, num_cores: int) -> list[SimulatedStep]:
        """The steps of a kernel; where the buffers of its cores are too small for any tile, on all cores."""
        steps = [s for node in launch.nodes for s in self.plan.steps_of(node)]
        first = len(self.tilings)
        self.inside = frozenset(launch.nodes)
        self.kernel = kernel_of(number, launch, self.plan, self.bindings, self.machine, num_cores)
        try:
            lanes = lanes_of(self.kernel, launch, self.plan, self.bindings, self.machine)
            return [self._on_lane(s, self.plan.steps[s], self.kernel, lanes) for s in steps]
        except InfeasibleMapping:
            if self.kernel.num_cores == self.num_cores:
                raise
        del self.tilings[first:]
        return self._launched(number, launch, self.num_cores)

    def _on_lane(
        self, number: int, step: InstanceStep, kernel: Kernel, lanes: Mapping[tuple[int, int], StepLane]
    ) -> SimulatedStep:
        """A step of a kernel, on all of its cores or on those of its lane."""
        place = self.bindings.lane_of(step.node, step.layer)
        self.lane = None if place is None else lanes[place.section, place.number]
        self._pass((self.lane or kernel).pools)
        return self._step(number, step)

    @property
    def _cores_of_step(self) -> int:
        cores = self.lane or self.kernel
        return self.num_cores if cores is None else cores.num_cores

    def _step(self, number: int, step: InstanceStep) -> SimulatedStep:
        checkpoint()
        node = self.graph.nodes[step.node]
        written = [self.plan.buffers[i] for i in step.writes]
        made = self.facts.made(step)
        stores = tuple(Store(p.value.name, p.size_bytes, p.scope, self._is_result(p)) for p in written)
        loads = [self._load(number, step, read) for read in step.reads]
        if not step.operators:
            # Buffers that are put together, or rows that are kept: what is read moves to where it is written.
            is_row_copy = node.kind is Kind.INSTANCE
            name = f"keep {written[0].value.name}" if is_row_copy else f"{node.kind} {node.value.name}"
            kind = Kind.CONCAT if is_row_copy else node.kind
            self.tilings.append(self._passed_on(loads, stores))
            works = tuple(self._conversions(step))
            return SimulatedStep(
                number, name, kind, works, tuple(loads), stores, (), self.tilings[-1], self.reused[number],
                self.kernel, group=self.group, lane=self.lane,
            )  # fmt: skip
        exact = self.facts.regions_of(step)
        main = exact.main
        parts = self.facts.weights_of(step)
        weights = tuple(weight for weight, _ in parts)
        tiled = self.graph.splits[node.subgraph_id].tiling_of(step.layer)
        if tiled is not None:
            return self._tiled_jointly(number, step, tiled, made, weights, loads, stores)
        self.tilings.append(self._tiling(step, exact, parts, loads, stores))
        waiting = self._waiting(step, main, made, loads)
        return SimulatedStep(
            number, step.operators[0].name, node.kind,
            (*self._works_of(step, exact), *self._conversions(step)), waiting, stores,
            weights, self.tilings[-1], self.reused[number], self.kernel,
            () if self.launched is None else self._binding_of(step, exact), self.group, self.lane,
            self.known.of(("multiplied", step.operators), lambda: multiplied(step.operators)),
        )  # fmt: skip

    def _waiting(
        self, step: InstanceStep, main: Value, made: Mapping[Value, Region], loads: Sequence[Load]
    ) -> tuple[Load, ...]:
        """What a step reads, with the tiles that it waits for."""
        return tuple(
            load if load.producer is None or load.moved_bytes or not needs else replace(load, tiles=needs)
            for load, read in zip(loads, step.reads, strict=True)
            for needs in [self._tile_needs(step, read, main, made, load)]
        )

    def _tiled_jointly(
        self,
        number: int,
        step: InstanceStep,
        plan: ChainPlan,
        made: Mapping[Value, Region],
        weights: Sequence[Weight],
        loads: Sequence[Load],
        stores: Sequence[Store],
    ) -> SimulatedStep:
        """A step whose operators run tile by tile together."""
        (main,) = made
        whole = {value for node in step.operators[-1:] for value in node.results()}
        chain = self.known.of(
            ("chain", step.operators, *whole), lambda: chain_of(step.operators, frozenset(whole))
        )
        pools = PoolSizes(self.requests.local_bytes, self.requests.shared_bytes)
        joint = JointStep(self.works, chain, plan, self.graph.bytes_of, self._cores_of_step, pools)
        readers = {part.value.name: part.readers[0].node for part in chain.parts[1:]}
        weights = tuple(
            replace(w, num_copies=joint.num_copies(readers[w.name])) if w.name in readers else w
            for w in weights
        )
        works = joint.unit_works()
        tiling = joint.tiling(weights, loads, stores, len({work.unit for work in works}))
        self.tilings.append(tiling)
        waiting = self._waiting(step, main, made, loads)
        moved = {
            load.value: p.moved_bytes / max(1, load.size_bytes)
            for load, p in zip(loads, tiling.loads, strict=True)
        }
        converted = tuple(self._conversions(step, moved))
        return SimulatedStep(
            number, step.operators[0].name, self.graph.nodes[step.node].kind, (*works, *converted),
            waiting, tuple(stores), weights, tiling, self.reused[number], self.kernel,
            group=self.group, lane=self.lane,
            multiplied=self.known.of(("multiplied", step.operators), lambda: multiplied(step.operators)),
        )  # fmt: skip

    def _binding_of(self, step: InstanceStep, exact: StepRegions) -> Binding:
        maker = next(n for n in step.operators if exact.main in n.outputs)
        return self.cores.of(step, maker, exact.regions).binding

    def _num_places(self, x: Load | Store) -> int:
        """What is converted lies in the cores as it comes or goes, and beside that as it is kept."""
        return 2 if x.scope is Scope.MAIN and x.value in self.converted else 1

    def _passed_on(self, loads: Sequence[Load], stores: Sequence[Store]) -> Tiling:
        """Of what is put together or copied."""
        moved = [
            tuple(
                (x.size_bytes, x.scope is Scope.LOCAL, x.scope is Scope.MAIN, self._num_places(x))
                for x in listed
            )
            for listed in (loads, stores)
        ]
        return self.tiler.tile(self.requests.passed_on(*moved))

    def _tiling(
        self,
        step: InstanceStep,
        exact: StepRegions,
        weights: Sequence[tuple[Weight, RequestPart]],
        loads: Sequence[Load],
        stores: Sequence[Store],
    ) -> Tiling:
        node, main, regions = self.graph.nodes[step.node], exact.main, exact.regions
        binding = self._binding_of(step, exact)
        held = frozenset[str]() if self.group is None else self.group.held
        residents = self.residents
        made: StepParts | None = None

        def parts() -> StepParts:
            nonlocal made
            if made is not None:
                return made
            needed = [
                replace(part, is_main=weight.key not in residents, is_local=weight.key in held)
                for weight, part in weights
            ]
            read = [self._part(r.value, load.region, load) for r, load in zip(step.reads, loads, strict=True)]
            buffers = [self.plan.buffers[i] for i in step.writes]
            written = [self._part(b.value, b.region, store) for b, store in zip(buffers, stores, strict=True)]
            made = StepParts(step.operators, regions, main, binding, needed, read, written)
            return made

        # Which elements of an operand a tile needs follows from the extents alone, borders aside.
        moved = (
            *[(w.size_bytes, w.key in held, w.key not in residents) for w, _ in weights],
            *[(x.size_bytes, x.scope is Scope.LOCAL, x.scope is Scope.MAIN) for x in loads],
            *[(x.size_bytes, x.scope is Scope.LOCAL, x.scope is Scope.MAIN) for x in stores],
        )
        axis = _axis_of_tiles(self.plan, self.tilings, step, regions[main], self.inside)
        key = (node.subgraph_id, step.layer, extents(regions[main]), binding, moved, axis)
        # Slices at a border are tiled as the first of equal extents is; of other plans, as the same slice is.
        if key not in self.known_requests:
            pools = self.requests.local_bytes, self.requests.shared_bytes
            read_there = tuple((read.value, read.region) for read in step.reads)
            every = ("request", exact, binding, moved, read_there, pools, axis)
            request = self.known.of(every, lambda: replace(self.requests.plain(parts()), axis=axis))
            self.known_requests[key] = request, self.tiler.once(request)
        request, once = self.known_requests[key]
        whole_key = (self.requests.local_bytes, self.requests.shared_bytes, self._cores_of_step, *key)
        if whole_key not in self.known_wholes:
            self.known_wholes[whole_key] = self._whole(step, request, parts)
        tiling = self.known_wholes[whole_key] or once
        if tiling is None:
            tiling = self.tiler.again(self.requests.detailed(request, parts()))
        return self._bringing(tiling, [weight for weight, _ in weights]) if held else tiling

    def _whole(
        self, step: InstanceStep, request: TileRequest, parts_of: Callable[[], StepParts]
    ) -> Tiling | None:
        """The tiling of a step that runs the whole mapping of its only products; None of others."""
        multiplying = [node for node in step.operators if has_products(node)]
        if len(multiplying) != 1 or self.group is not None or any(x.is_local for x in request.operands):
            return None
        (node,) = multiplying
        parts = parts_of()
        value = next((v for v in node.results() if v in parts.regions), None)
        if value is None:
            return None
        return self.tiler.mapped(
            self.requests.detailed(request, parts),
            self._cores_of_step,
            lambda: self.works.products(node, parts.regions[value], is_whole=True),
        )

    def _bringing(self, tiling: Tiling, weights: Sequence[Weight]) -> Tiling:
        """The tiling of the first step of a group that needs weights which it holds from then on."""
        assert self.group is not None
        passages = list(tiling.weights)
        for place, weight in enumerate(weights):
            if weight.key in self.group.held and (self.group.number, weight.key) not in self.brought:
                self.brought.add((self.group.number, weight.key))
                passages[place] = bringing(weight.size_bytes, self.group)
        return replace(tiling, weights=tuple(passages))

    def _part(self, value: Value, region: Region, x: Load | Store) -> RequestPart:
        is_local, is_main = x.scope is Scope.LOCAL, x.scope is Scope.MAIN
        return RequestPart(value, region, x.size_bytes, is_local, is_main, num_places=self._num_places(x))

    def _works_of(self, step: InstanceStep, exact: StepRegions) -> tuple[UnitWork, ...]:
        node, regions = self.graph.nodes[step.node], exact.regions
        own = self.bindings.bindings[step.node] if any(v in node.outputs for v in regions) else None
        num_cores, most = self._cores_of_step, self.bindings.cores_of(step.node, step.layer)
        is_whole = self.tilings[-1].is_mapped
        key = (node.subgraph_id, step.layer, exact.shapes, own, most, num_cores, is_whole)
        found = self.known_works.get(key)
        if found is None:

            def works() -> tuple[UnitWork, ...]:
                if self.works.only_moves(step.operators):
                    return (self._movement(step, exact.main, num_cores),)
                return tuple(work for n in step.operators for work in self._work(step, n, regions))

            found = self.known.of(("works", exact, self.facts.spread(step), num_cores, is_whole), works)
            self.known_works[key] = found
        return found

    def _conversions(
        self, step: InstanceStep, times: Mapping[str, float] = MappingProxyType({})
    ) -> Iterator[UnitWork]:
        """What a step reads and makes of the network's inputs and results is converted on its way; of what is
        read several `times` as often."""
        converts = self.graph.partition.converts
        num_cores = self._cores_of_step
        for read in step.reads:
            is_border = read.buffer is None or self._is_result(self.plan.buffers[read.buffer])
            if is_border and converts(read.value):
                for work in self.works.of_conversion(read.value.dtype, read.region, num_cores):
                    often = times.get(read.value.name, 1.0)
                    yield replace(
                        work,
                        seconds=work.seconds * often,
                        ops=work.ops * often,
                        energy_pj=work.energy_pj * often,
                    )
        for made in (self.plan.buffers[i] for i in step.writes):
            if self._is_result(made) and converts(made.value):
                yield from self.works.of_conversion(made.value.dtype, made.region, num_cores)

    def _is_result(self, buffer: PlacedBuffer) -> bool:
        return is_result(self.graph, self.graph.nodes[buffer.node], buffer.value)

    def _movement(self, step: InstanceStep, main: Value, num_cores: int) -> UnitWork:
        """A layer that only moves: what lies between its operators exists as tiles, its results move once."""
        written = [self.plan.buffers[i] for i in step.writes]
        elements = sum(volume(buffer.region) for buffer in written)
        size_bytes = sum(self.graph.bytes_of(buffer.value, buffer.region) for buffer in written)
        return self.works.of_movement(step.operators, main.dtype, elements, size_bytes, num_cores)

    def _work(self, step: InstanceStep, node: Node, regions: Mapping[Value, Region]) -> tuple[UnitWork, ...]:
        value = next((v for v in node.results() if v in regions), None)
        if value is None:
            return ()
        region = regions[value]
        is_whole = self.tilings[-1].is_mapped and has_products(node)
        distribution = self.cores.of(step, node, regions)
        return self.works.of(node, region, distribution.binding, distribution.blocks, is_whole=is_whole)

    def _load(self, number: int, step: InstanceStep, read: Read) -> Load:
        """What a step reads; which tiles wait for which is not known yet."""
        value, region, source = read.value, read.region, read.buffer
        if source is None:
            size = self.graph.main_bytes_of(value, region)
            return Load(value.name, region, size, Scope.MAIN, None, (), 0)
        buffer = self.plan.buffers[source]
        size = bytes_made(self.graph, self.graph.nodes[buffer.node], value, region)
        edge = self.edges.get((step.node, value, buffer.node))
        if edge is None or not self._is_redistributed(edge) or buffer.scope is not Scope.LOCAL:
            return Load(value.name, region, size, buffer.scope, buffer.first_step, (), 0)
        # What changes cores is distributed anew as a whole, once for all layers of the instance.
        first = self.redistributed.setdefault(edge, number)
        if first != number:
            return Load(value.name, region, size, buffer.scope, first, (), 0)
        moved = self.graph.bytes_of(value, edge.region)
        return Load(value.name, region, size, buffer.scope, buffer.first_step, (), moved)

    def _is_redistributed(self, edge: Edge) -> bool:
        return any(t.kind is Kind.REDISTRIBUTE for t in self.moves.get(edge, ()))

    def _tile_needs(
        self, step: InstanceStep, read: Read, main: Value, written: Mapping[Value, Region], load: Load
    ) -> tuple[int, ...]:
        """Up to which tile of an operand's buffer each tile of the result needs it; none: all of it."""
        if read.buffer is None:
            return ()
        buffer = self.plan.buffers[read.buffer]
        edge = self.edges.get((step.node, read.value, buffer.node))
        if edge is not None and self._is_redistributed(edge):
            # Each reader brings it anew, distributed as it wants it.
            return ()
        own, made = self.tilings[-1], self.tilings[buffer.first_step]
        source_main = max(self.facts.made(self.plan.steps[buffer.first_step]).values(), key=volume)
        if extents(source_main) != extents(buffer.region):
            return ()  # another result than the one that is made in tiles, such as a scale
        # Nothing less than the regions themselves: slices of equal extents may reach over different borders,
        # and an up-sampled row may begin anywhere between two rows.
        cut = (own.axis, own.num_tiles, made.axis, made.num_tiles)
        source, maps = buffer.region, self.graph.maps
        return self.known.of(
            ("tiles", step.operators, read.value, main, *written.items(), source, *cut),
            lambda: _tiles_needed(step.operators, read.value, main, written, source, own, made, maps),
        )


def _axis_of_tiles(
    plan: ScopePlan,
    tilings: Sequence[Tiling],
    step: InstanceStep,
    region: Region,
    inside: Collection[int] | None,
) -> int | None:
    """The axis along which the largest operand of a step without products is made tile by tile, if the
    result has the extents for it; `tilings` are those of the steps before.

    `inside` are the nodes of its kernel where each is launched: what earlier ones made is there as a whole.
    """
    if any(map(has_products, step.operators)):
        return None
    reads = [
        (volume(read.region), read.buffer)
        for read in step.reads
        if read.buffer is not None and (inside is None or plan.buffers[read.buffer].node in inside)
    ]
    if not reads:
        return None
    _, buffer = max(reads)
    source = plan.buffers[buffer]
    made = tilings[source.first_step]
    if made.axis is None or made.num_tiles == 1 or len(source.region) != len(region):
        return None
    return made.axis if extents(region)[made.axis] >= NUM_TILES else None


def _tiles_needed(
    operators: Sequence[Node],
    value: Value,
    main: Value,
    written: Mapping[Value, Region],
    source: Region,
    own: Tiling,
    made: Tiling,
    maps: RegionMaps,
) -> tuple[int, ...]:
    """Up to which tile of a value's `source`, made in the tiles `made`, each tile of a step needs it; none:
    all of it. `main` is the largest result that the step has `written`."""
    axis, source_axis = own.axis, made.axis
    if axis is None or source_axis is None or 1 in (own.num_tiles, made.num_tiles):
        return ()
    # Results as large as the main one are made tile by tile beside it, others with the last tile.
    beside = {result: r for result, r in written.items() if extents(r) == extents(written[main])}
    low, high = source[source_axis]
    needs: list[int] = []
    for tile in range(own.num_tiles):
        if tile == own.num_tiles - 1 and len(beside) < len(written):
            needs.append(made.num_tiles - 1)
            continue
        parts = {result: _cut(r, axis, tile, own.num_tiles) for result, r in beside.items()}
        region = value_regions(operators, parts, maps).get(value)
        end = low if region is None else region[source_axis][1]
        needs.append(max(0, -(-(end - low) * made.num_tiles // (high - low)) - 1))
    return tuple(needs)


def _cut(region: Region, axis: int, tile: int, num_tiles: int) -> Region:
    """A tile of a region along an axis; the element that it is a part of where others cut it further."""
    start, stop = region[axis]
    first, end = (start + (stop - start) * t // num_tiles for t in (tile, tile + 1))
    return (*region[:axis], (first, max(end, min(first + 1, stop))), *region[axis + 1 :])
