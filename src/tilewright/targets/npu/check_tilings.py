"""Independent check of layers whose operators are tiled jointly, against a walk through all of their steps.

What steps make, fetch and hold is counted box by box as the walk meets it; shares no code with the counts in
closed form by which such layers are planned and simulated.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.graph import Value
from tilewright.mapping.chains.chain import Chain, chain_of
from tilewright.mapping.chains.check import TooLong, Walk
from tilewright.planning import Violation
from tilewright.schedule.binding import Scope
from tilewright.targets.npu.simulated_step import SimulatedStep
from tilewright.targets.npu.trace import Trace

MOST_WORDS = 1 << 23
"""Words that the steps of a layer touch at most, so that they are walked unasked."""
_CLOSE = 1e-9


def check_tilings(trace: Trace, max_words: float = MOST_WORDS) -> Iterator[Violation]:
    """What is wrong with layers that are tiled jointly: fewer bytes that move than steps fetch, fewer
    products than they compute, less room on chip than they need."""
    planned = trace.planned
    for number, (step, lowered) in enumerate(
        zip(planned.scopes.steps, planned.simulation.steps, strict=True)
    ):
        subgraph_id = planned.instances.nodes[step.node].subgraph_id
        plan = planned.instances.splits[subgraph_id].tiling_of(step.layer)
        if plan is None or not step.operators:
            continue
        (made,) = (planned.scopes.buffers[i].value for i in step.writes)
        chain = chain_of(step.operators, frozenset({made}))
        try:
            walk = Walk(chain, plan, max_words)
        except TooLong:
            continue
        yield from _check_step(trace, number, lowered, chain, walk)


def _check_step(
    trace: Trace, number: int, step: SimulatedStep, chain: Chain, walk: Walk
) -> Iterator[Violation]:
    graph, tiling = trace.planned.instances, step.tiling

    def bytes_of(value: Value, words: int) -> float:
        whole = tuple((0, extent) for extent in value.shape)
        return graph.bytes_of(value, whole) * words / max(1, value.num_elements)

    places = {part.value.name: place for place, part in enumerate(chain.parts)}
    needed = {part.value.name: bytes_of(part.value, walk.words[i]) for i, part in enumerate(chain.parts)}
    held_bytes = tiling.inside_bytes
    live_bytes = 0.0
    engine = trace.core_engine
    passing = [
        (w.name or "", w.num_copies, p, trace.of(number, "weights", engine, w.key or ""))
        for w, p in zip(step.weights, tiling.weights, strict=True)
    ]
    passing += [
        (x.value, 1, p, trace.of(number, "load", engine, x.value, part))
        for part, (x, p) in enumerate(zip(step.loads, tiling.loads, strict=True))
        if x.scope is not Scope.LOCAL
    ]
    for name, copies, passage, runs in passing:
        moved = sum(run.size_bytes for run in runs)
        if moved < needed[name] * (1 - _CLOSE):
            yield Violation(
                "bytes", f"step {number}: {moved} bytes of {name} move, its tiles fetch {needed[name]:.0f}"
            )
        held_bytes += passage.held_bytes
        live_bytes += bytes_of(chain.parts[places[name]].value, walk.live[places[name]]) * copies
    for part, live in zip(chain.parts, walk.live, strict=True):
        if part.kind == "intermediate":
            live_bytes += bytes_of(part.value, live)
    (store,), (passage,) = step.stores, tiling.stores
    if store.scope is not Scope.LOCAL:
        held_bytes += passage.held_bytes
        live_bytes += bytes_of(chain.parts[0].value, walk.live[0])
    if held_bytes < live_bytes * (1 - _CLOSE):
        yield Violation(
            "capacity",
            f"step {number}: {held_bytes} bytes are held for its tiles, {live_bytes:.0f} lie there",
        )
    num_macs = sum(work.macs for work in step.works)
    if num_macs < walk.num_macs * (1 - _CLOSE):
        yield Violation("rate", f"step {number}: {num_macs:.0f} products of {walk.num_macs} are computed")
