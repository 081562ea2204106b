"""Layers of kernels that are tiled jointly: runs of layers for which this is cheaper than one after another.

A target proposes tilings for each short run of layers. What a run takes as a kernel of its own, tiled jointly
and layer by layer, says what is gained; the runs of a kernel that gain most together are tiled in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from math import inf

from tilewright.ir.derive import is_complex
from tilewright.joint.launched.content import Content, Kernel
from tilewright.joint.launched.pricer import LaunchedPricer
from tilewright.mapping.chains.chain import MAX_LAYERS
from tilewright.mapping.chains.plan import ChainPlan
from tilewright.partition.split import tiled_jointly
from tilewright.progress import checkpoint
from tilewright.records import dataclass

_LENGTHS = (3, 4, 2, 5, 6, 7, 8)
"""Layers of runs that are tiled jointly, in the order in which they are looked at."""
_FEW_LAYERS = 4
"""Layers of runs that are tiled in a kernel beside the choice from runs of all lengths."""


@dataclass(frozen=True, slots=True)
class Run:
    """Layers of a kernel, from `start` to before `stop`, as one under a joint tiling; what that gains."""

    start: int
    stop: int
    nodes: tuple[int, ...]
    plan: ChainPlan
    gain: float


@dataclass(slots=True, eq=False)
class JointTiler:
    """Tiles the layers of kernels jointly where that costs less."""

    pricer: LaunchedPricer
    is_due: Callable[[], bool]
    _known: dict[tuple[tuple[int, ...], ...], tuple[ChainPlan, float] | None] = field(
        init=False, default_factory=dict
    )

    def tiled(self, content: Content) -> Iterator[Content]:
        """A block of one kernel with the runs tiled jointly that gain most together, of any length and of few
        layers; of a kernel in slices, its whole layers."""
        if len(content.kernels) != 1:
            return
        (kernel,) = content.kernels
        if kernel.split.tilings:
            return
        runs = list(self._runs(kernel.layers))
        for most in (max(_LENGTHS), _FEW_LAYERS):
            chosen = best_runs([run for run in runs if run.stop - run.start <= most], len(kernel.layers))
            if chosen:
                yield with_runs(kernel, chosen)

    def _runs(self, layers: Sequence[tuple[int, ...]]) -> Iterator[Run]:
        """The runs of a kernel's layers that gain something."""
        for length in _LENGTHS:
            for start in range(len(layers) - length + 1):
                if self.is_due():
                    return
                members = tuple(layers[start : start + length])
                if members not in self._known:
                    self._known[members] = self._of(members)
                found = self._known[members]
                if found is not None:
                    nodes = tuple(sorted(i for layer in members for i in layer))
                    yield Run(start, start + length, nodes, *found)

    def _of(self, layers: tuple[tuple[int, ...], ...]) -> tuple[ChainPlan, float] | None:
        """The best joint tiling of layers, and what it gains; None where it gains nothing."""
        checkpoint()
        pricer, nodes = self.pricer, self.pricer.numbered.nodes
        members = sorted(i for layer in layers for i in layer)
        if not 1 <= sum(is_complex(nodes[i]) for i in members) <= MAX_LAYERS:
            return None
        results = pricer.numbered.outputs(sum(1 << i for i in members))
        if len(results) != 1:
            return None
        plans = pricer.machine.tilings([nodes[i] for i in members], results)
        priced = [
            (pricer.cost(Content.of_kernel([members], tiled_jointly({0: plan}))), plan) for plan in plans
        ]
        cost, best = min(priced, key=lambda pair: pair[0], default=(inf, None))
        if best is None or cost == inf:
            return None
        gain = pricer.cost(Content.of_kernel(layers)) - cost
        return (best, gain) if gain > 0 else None


def best_runs(runs: Sequence[Run], num_layers: int) -> list[Run]:
    """Runs without a layer in common that gain most together."""
    best: list[tuple[float, Run | None]] = [(0.0, None)]
    for stop in range(1, num_layers + 1):
        entry: tuple[float, Run | None] = (best[-1][0], None)
        for run in runs:
            if run.stop == stop and best[run.start][0] + run.gain > entry[0]:
                entry = best[run.start][0] + run.gain, run
        best.append(entry)
    chosen: list[Run] = []
    place = num_layers
    while place:
        last = best[place][1]
        if last is None:
            place -= 1
        else:
            chosen.append(last)
            place = last.start
    return chosen[::-1]


def with_runs(kernel: Kernel, runs: Sequence[Run]) -> Content:
    """A kernel whose layers of each run are one that is tiled jointly."""
    layers: list[tuple[int, ...]] = []
    tilings: dict[int, ChainPlan] = {}
    place = 0
    for run in runs:
        layers += kernel.layers[place : run.start]
        tilings[len(layers)] = run.plan
        layers.append(run.nodes)
        place = run.stop
    layers += kernel.layers[place:]
    return Content.of_kernel(layers, tiled_jointly(tilings))
