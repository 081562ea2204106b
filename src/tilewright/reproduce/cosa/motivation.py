"""Figures 1, 3 and 4: how much depends on the choice of a mapping."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np

from tilewright.cost.nest_analysis import evaluate
from tilewright.loops.mapping import LevelLoops, Loop
from tilewright.loops.mapping import Mapping as LoopMapping
from tilewright.loops.problem import convolution, layer
from tilewright.mapping.base import MappingProblem
from tilewright.mapping.sampling import Tilings
from tilewright.report.figure import Bars, bar_chart
from tilewright.reproduce.base import Basis, Exhibit, Figure
from tilewright.reproduce.cosa.bench import Bench, noc_cycles


def figure_1(bench: Bench) -> Exhibit:
    """Latencies of random valid mappings of one layer."""
    task = MappingProblem(layer("3_14_256_256_1"), bench.machine)
    share = max(1, -(-bench.effort.num_samples // 8))
    parts = bench.each(_random_latencies, [task] * 8, [share] * 8, list(range(8)))
    cycles = np.concatenate([part[0] for part in parts])[: bench.effort.num_samples]
    drawn = sum(part[1] for part in parts)
    edges = np.geomspace(cycles.min(), cycles.max() * 1.0001, 25)
    counts, _ = np.histogram(cycles, edges)
    names = [f"{edge / 1e6:.2g}M" for edge in edges[:-1]]
    return Exhibit(
        "Figure 1",
        "latency of random valid mappings of 3_14_256_256_1",
        f"{len(cycles):,} valid mappings of {drawn:,} drawn. The spread is wider than the paper's and "
        "fewer samples are valid: how it samples is not described, and its table VI has one valid in "
        "4,000. Latencies lie in clusters, as in the paper: they are products of the primes that run "
        "in sequence.",
        (
            Figure("slowest / fastest", float(cycles.max() / cycles.min()), 7.2),
            Figure("share of samples that is valid", len(cycles) / drawn, 0.5),
        ),
        bar_chart(
            "Valid mappings by latency", "mappings", names, [Bars("mappings", tuple(map(float, counts)))]
        ),
        basis=Basis.SIMULATED,
    )


def figure_3(bench: Bench) -> Exhibit:
    """Orders of the global buffer's loops, on the network."""
    task = MappingProblem(
        convolution({"R": 3, "S": 3, "P": 8, "Q": 8, "C": 32, "K": 1024}, name="3_8_32_1024_1"), bench.machine
    )
    bounds = {"C": 4, "K": 16, "P": 4}
    orders = ["".join(order) for order in permutations("CKP")]
    mappings = [
        LoopMapping(
            (
                LevelLoops("DRAM", (Loop("K", 2),)),
                LevelLoops("GlobalBuffer", tuple(Loop(d, bounds[d]) for d in order), (Loop("K", 16),)),
                LevelLoops("InputBuffer", (), (Loop("K", 2), Loop("P", 2))),
                LevelLoops("WeightBuffer", (Loop("R", 3), Loop("S", 3))),
                LevelLoops("AccumulationBuffer", (Loop("Q", 8),), (Loop("C", 8),)),
            )
        )
        for order in orders
    ]
    cycles = bench.each(noc_cycles, [task] * len(mappings), mappings)
    best = min(range(len(orders)), key=lambda i: cycles[i])
    return Exhibit(
        "Figure 3",
        "orders of the loops of the global buffer, R = S = 3, P = Q = 8, C = 32, K = 1024",
        "The paper does not say which tiling it orders; ours has C in 4, K in 16 and P in 4 at the "
        f"global buffer, counted by the network's simulator. Best is {orders[best]}, the outermost loop "
        "first; the paper's best are PCK and PKC.",
        (Figure("slowest / fastest order", max(cycles) / min(cycles), 1.7),),
        bar_chart("Cycles by order", "cycles", orders, [Bars("cycles", tuple(map(float, cycles)))]),
        basis=Basis.SIMULATED,
    )


def figure_4(bench: Bench) -> Exhibit:
    """Which loops run side by side over the 16 elements."""
    problem = convolution({"P": 16, "Q": 16, "C": 256, "K": 1024}, name="1_16_256_1024_1")
    task = MappingProblem(problem, bench.machine)
    splits = [(p, c, k) for p in (1, 2, 4) for c in (1, 2, 4) for k in (1, 2, 4) if p * c * k == 16]
    names, mappings = [], []
    for split in splits:
        spatial = dict(zip("PCK", split, strict=True))
        temporal = {d: 4 // f for d, f in spatial.items()}
        names.append(
            "s:"
            + "".join(f"{d}{f}" for d, f in spatial.items() if f > 1)
            + " t:"
            + "".join(f"{d}{f}" for d, f in temporal.items() if f > 1)
        )
        mappings.append(
            LoopMapping(
                (
                    LevelLoops("DRAM", (Loop("K", 8), Loop("P", 2))),
                    LevelLoops(
                        "GlobalBuffer",
                        tuple(Loop(d, temporal[d]) for d in "PKC"),
                        tuple(Loop(d, f) for d, f in spatial.items()),
                    ),
                    LevelLoops("InputBuffer", (Loop("K", 4), Loop("C", 8)), (Loop("K", 8),)),
                    LevelLoops("AccumulationBuffer", (Loop("P", 2), Loop("Q", 16)), (Loop("C", 8),)),
                )
            )
        )
    cycles = bench.each(noc_cycles, [task] * len(mappings), mappings)
    best = min(range(len(names)), key=lambda i: cycles[i])
    return Exhibit(
        "Figure 4",
        "what runs side by side on 16 elements, R = S = 1, P = Q = 16, C = 256, K = 1024",
        "The factor 4 of each of P, C and K is split between space and the global buffer's loops, as "
        f"in the paper; the rest of its tiling is not given. Best is {names[best]}, counted by the "
        "network's simulator; the paper's is s:P2C4K2, t:P2K2.",
        (Figure("slowest / fastest", max(cycles) / min(cycles), 4.3),),
        bar_chart("Cycles by spatial mapping", "cycles", names, [Bars("cycles", tuple(map(float, cycles)))]),
        basis=Basis.SIMULATED,
    )


def _random_latencies(task: MappingProblem, count: int, seed: int) -> tuple[np.ndarray[Any, Any], int]:
    """Cycles of so many valid random mappings, and how many tilings were drawn."""
    tilings, random = Tilings(task), np.random.default_rng(seed)
    cycles: list[int] = []
    drawn = 0
    while len(cycles) < count:
        factors = tilings.draw(random, 4096)
        drawn += len(factors)
        for one in np.nonzero(tilings.legal(factors))[0][: count - len(cycles)]:
            orders: list[list[str]] = []
            for place, _ in tilings.temporal_slots():
                order = tilings.loops(factors[one], place)
                random.shuffle(order)
                orders.append(order)
            cycles.append(evaluate(task.problem, task.machine, tilings.mapping(factors[one], orders)).cycles)
    return np.array(cycles), drawn
