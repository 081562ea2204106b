"""The spaces of forms of a program's subgraphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from functools import lru_cache, partial

from tilewright.hardware.host import host_machine
from tilewright.hardware.probe import resolve_threads
from tilewright.ir.contraction import contraction_of
from tilewright.ir.fuse import FusedNodes
from tilewright.ir.graph import Node
from tilewright.partition.base import Partition, Subgraph
from tilewright.partition.form import Form, KernelForm
from tilewright.partition.layerwise import layerwise_clusters
from tilewright.planning.choice import Choice
from tilewright.program import Program
from tilewright.records import dataclass
from tilewright.targets.cpu.costs.model import CpuCosts
from tilewright.targets.cpu.forms.knobs import Work
from tilewright.targets.cpu.forms.space import SubgraphForms
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Loops
from tilewright.targets.cpu.loopnest import LOOP_NEST, loop_choices
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.lower.lowered import KernelLaunch, LoweredPartition
from tilewright.targets.cpu.product.select import neighbours_of, product_neighbours
from tilewright.targets.cpu.products import loops_signature
from tilewright.targets.cpu.repeats import Repeats

# Plans of a product that are worth measuring whatever others take.
_NUM_LISTED = 16


@dataclass(slots=True)
class LoopWays:
    """In which ways loop nests may run on an instruction set, on several threads if work `divides`."""

    isa: Isa
    divides: bool
    _known: dict[str, tuple[tuple[Choice, ...], tuple[Choice, ...]]] = field(default_factory=dict)

    def of(self, signature: str, loops: Loops) -> tuple[tuple[Choice, ...], tuple[Choice, ...]]:
        """Those worth measuring in any case, and more; none for nests without a signature."""
        if not signature:
            return (), ()
        if signature not in self._known:
            self._known[signature] = loop_choices(loops, self.isa, divides=self.divides)
        return self._known[signature]


def form_spaces(
    program: Program, isa: Isa, fuse: FusedNodes | None = None, repeats: Repeats | None = None
) -> dict[int, SubgraphForms]:
    """The spaces of a program's subgraphs, by number, of those that can be computed in several ways.

    What products there are is seen in the subgraphs cut into their layers, each a kernel; `fuse` and
    `repeats` remember how these are made.
    """
    options, graph = program.options, program.graph
    layer_of = {node: i for i, layer in enumerate(layerwise_clusters(graph)) for node in layer}
    fuse = fuse or FusedNodes()
    costs = CpuCosts(graph, host_machine(), isa, resolve_threads(options.num_threads), options.accuracy, fuse)
    apart = _cut(program.partition, layer_of)
    lowered = lower_partition(apart, isa, accuracy=options.accuracy, fuse=fuse, repeats=repeats)
    spaces: dict[int, SubgraphForms] = {}
    loop_ways = LoopWays(isa, costs.num_threads > 1)
    for subgraph, work in zip(program.partition.subgraphs, lowered.work, strict=True):
        launches = [launch for launch in work if isinstance(launch, KernelLaunch)]
        if len(launches) != len(work) or not launches:
            continue
        numbers: dict[int, int] = {}
        space = SubgraphForms(
            graph,
            subgraph,
            Form(subgraph.kernels),
            tuple(numbers.setdefault(layer_of[node], len(numbers)) for node in subgraph.nodes),
            (
                *_products(subgraph, launches, lowered),
                *_loops(subgraph, launches, loop_ways),
            ),
            costs,
            tuple(_code(subgraph, launch) for launch in launches),
            repr((isa.fingerprint, options.accuracy)),
        )
        if space.starts():
            spaces[subgraph.id] = space
    return spaces


def _cut(partition: Partition, layer_of: dict[Node, int]) -> Partition:
    """The partition with each layer of a subgraph as a kernel."""

    def cut(subgraph: Subgraph) -> Subgraph:
        members: dict[int, list[int]] = {}
        for position, node in enumerate(subgraph.nodes):
            members.setdefault(layer_of[node], []).append(position)
        ordered = sorted(members.values(), key=lambda positions: positions[-1])
        return replace(subgraph, form=Form(tuple(KernelForm(tuple(p)) for p in ordered)))

    return replace(partition, subgraphs=tuple(map(cut, partition.subgraphs)))


def _code(subgraph: Subgraph, launch: KernelLaunch) -> tuple[frozenset[int], str]:
    """What a launch runs; a kernel's symbol is a digest of its code."""
    kernel = launch.kernel
    positions = frozenset(subgraph.nodes.index(node) for node in launch.nodes)
    return positions, repr((kernel.signature, kernel.symbol, kernel.num_chunks))


def _products(
    subgraph: Subgraph, launches: list[KernelLaunch], lowered: LoweredPartition
) -> tuple[Work, ...]:
    place = {node: position for position, node in enumerate(subgraph.nodes)}
    products: dict[tuple[frozenset[int], str], Work] = {}
    for launch in launches:
        signature = launch.kernel.signature
        if signature in lowered.products:
            positions = frozenset(place[node] for node in launch.nodes)
            product = lowered.products[signature]
            found = product_neighbours(product.nest, product.context)
            around = lru_cache(maxsize=256)(partial(neighbours_of, product.nest, product.context))
            work = Work(positions, signature, found, _NUM_LISTED, around=around)
            products[positions, signature] = work
    return tuple(products.values())


def _loops(subgraph: Subgraph, launches: list[KernelLaunch], ways: LoopWays) -> Iterator[Work]:
    """The loop nests of kernels that no other template makes."""
    place = {node: position for position, node in enumerate(subgraph.nodes)}
    for launch in launches:
        if launch.kernel.signature or not launch.nests:
            continue
        positions = frozenset(place[node] for node in launch.nodes)
        for loops in launch.kernel.loops:
            signature = loops_signature(loops.nests, loops.layouts)
            listed, more = ways.of(signature, loops)
            if listed:
                is_inner = len(loops.nests) == 1 and contraction_of(loops.nests[0]) is not None
                all_ways = (Choice(LOOP_NEST.name), *listed, *more)
                yield Work(positions, signature, all_ways, 1 + len(listed), is_loops=True, is_inner=is_inner)
