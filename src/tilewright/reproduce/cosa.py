"""CoSA (ISCA 2021): figures 1, 3, 4, 6 to 11 and table VI, with our mappers and our cost models.

The machine is that of the published configuration, whose sizes are not those of table V (see its preset).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import permutations
from multiprocessing import get_context
from typing import Any, ClassVar, TypeVar

import numpy as np

from tilewright.cost.base import Objective
from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.noc import simulate
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.hardware.variants import Axis, variants
from tilewright.loops.mapping import LevelLoops, Loop
from tilewright.loops.mapping import Mapping as LoopMapping
from tilewright.loops.problem import Problem, convolution, layer, written
from tilewright.mapping import cosa
from tilewright.mapping.base import Mapper, MappingProblem, MappingSolution
from tilewright.mapping.exact import Exact
from tilewright.mapping.hybrid import Hybrid
from tilewright.mapping.random import Random
from tilewright.mapping.sampling import Tilings
from tilewright.planning import Budget
from tilewright.report.figure import Bars, bar_chart
from tilewright.reproduce.base import DRAWING, NOTATION, Basis, Effort, Exhibit, Figure, Printed, Update
from tilewright.worker_process import end_with_parent

T = TypeVar("T")
MACHINE = "simba-cosa-repo"
NETWORKS: Mapping[str, tuple[str, ...]] = {
    "ResNet-50": (
        "7_112_3_64_2", "1_56_64_64_1", "3_56_64_64_1", "1_56_64_256_1", "1_56_256_64_1", "1_56_256_128_1",
        "3_28_128_128_2", "1_28_128_512_1", "1_28_256_512_2", "1_28_512_128_1", "3_28_128_128_1",
        "1_28_512_256_1", "3_14_256_256_2", "1_14_256_1024_1", "1_14_512_1024_2", "1_14_1024_256_1",
        "3_14_256_256_1", "1_14_1024_512_1", "3_7_512_512_2", "1_7_512_2048_1", "1_7_1024_2048_2",
        "1_7_2048_512_1", "3_7_512_512_1", "1_1_2048_1000_1",
    ),
    "ResNeXt-50": (
        "7_112_3_64_2", "1_56_64_128_1", "3_56_4_128_1", "1_56_128_256_1", "1_56_64_256_1", "1_56_256_128_1",
        "1_56_256_256_1", "3_28_8_256_2", "1_28_256_512_1", "1_28_256_512_2", "1_28_512_256_1",
        "3_28_8_256_1", "1_28_512_512_1", "3_14_16_512_2", "1_14_512_1024_1", "1_14_512_1024_2",
        "1_14_1024_512_1", "3_14_16_512_1", "1_14_1024_1024_1", "3_7_32_1024_2", "1_7_1024_2048_1",
        "1_7_1024_2048_2", "1_7_2048_1024_1", "3_7_32_1024_1", "1_1_2048_1000_1",
    ),
    "DeepBench": (
        "R=3,S=3,P=480,Q=48,K=16", "R=3,S=3,P=240,Q=24,C=16,K=32", "R=3,S=3,P=120,Q=12,C=32,K=64",
        "R=3,S=3,P=60,Q=6,C=64,K=128", "3_108_3_64_2", "3_54_64_64_1", "3_27_128_128_1", "3_14_128_256_1",
        "3_7_256_512_1",
    ),
}  # fmt: skip
"""Layers as `R_P_C_K_stride`, as ucb-bar/cosa c4798a7 lists them (BSD-2-Clause, The Regents of the
University of California). Grouped layers of ResNeXt-50 are entered there as dense ones with the channels of
one group."""


PRINTED = (
    Printed("Figure 1", "latency of random valid mappings of one layer"),
    Printed("Table I", "schedulers of accelerators", "A survey of other schedulers, without results."),
    Printed("Figure 2", "the problem that CoSA formulates", DRAWING),
    Printed("Figure 3", "orders of the loops of the global buffer"),
    Printed("Figure 4", "which loops run side by side"),
    Printed("Table II", "notation", NOTATION),
    Printed("Table III", "the binary matrix of an example", NOTATION),
    Printed("Table IV", "the constant matrices A and B", NOTATION),
    Printed("Figure 5", "patterns of traffic", DRAWING),
    Printed("Table V", "the accelerator", "Not computed yet."),
    Printed("Table VI", "time to solution"),
    Printed("Figure 6", "speed-up over Random, analytical model"),
    Printed("Figure 7", "energy of Random / energy, analytical model"),
    Printed("Figure 8", "CoSA's objective taken apart"),
    Printed("Figure 9", "speed-up over Random on other machines"),
    Printed("Figure 10", "speed-up over Random, network on chip"),
    Printed("Figure 11", "speed-up over TVM on a K80", "Not computed yet."),
)
"""Every table and figure."""

MAPPERS: Mapping[str, Mapper] = {
    "Random": Random(),
    "Hybrid": Hybrid(num_threads=32, timeout=0),
    "CoSA": cosa.Cosa(),
    "exact": Exact(),
}


@dataclass(frozen=True, slots=True)
class Cosa:
    """The reproduction."""

    resumes: ClassVar[bool] = False
    exhibits: ClassVar[tuple[str, ...]] = ()
    printed: ClassVar[tuple[Printed, ...]] = PRINTED

    @property
    def title(self) -> str:
        """The paper, for people."""
        return "CoSA: Scheduling by Constrained Optimization for Spatial Accelerators (ISCA 2021)"

    def run(self, effort: Effort, update: Update) -> Sequence[Exhibit]:
        """Every exhibit, in the paper's order."""
        bench = _Bench(effort, update)
        with bench:
            return tuple(exhibit() for exhibit in bench.exhibits())


@dataclass(frozen=True, slots=True)
class _Answer:
    """A mapper's answer for one layer."""

    cycles: int
    energy_pj: float
    seconds: float
    note: str
    mapping: LoopMapping


def _solve(task: MappingProblem, mapper: Mapper) -> _Answer:
    answer = mapper.solve(task, Budget())
    if not isinstance(answer, MappingSolution):
        raise InfeasibleMapping(f"{task.problem.name}: {answer}")
    return _Answer(
        answer.cost.cycles, answer.cost.energy_pj, answer.seconds, answer.provenance.note, answer.mapping
    )


def _noc_cycles(task: MappingProblem, mapping: LoopMapping) -> int:
    return simulate(task.problem, task.machine, mapping).cycles


class _Bench:
    """The work of all exhibits, layers in parallel; what two exhibits need is done once."""

    def __init__(self, effort: Effort, update: Update) -> None:
        self.effort, self.update = effort, update
        self.machine = load_preset(MACHINE)
        self.pool: ProcessPoolExecutor | None = None
        self.known: dict[tuple[str, Objective, str], dict[str, _Answer]] = {}
        self.done = 0

    def __enter__(self) -> _Bench:
        if self.effort.num_processes > 1:
            # Threads of this process must not be copied in the middle of what they do.
            context = get_context("spawn")
            self.pool = ProcessPoolExecutor(self.effort.num_processes, context, end_with_parent)
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def exhibits(self) -> Iterator[Callable[[], Exhibit]]:
        """In the paper's order."""
        makers = (
            self.figure_1, self.figure_3, self.figure_4, self.table_6, self.figure_6, self.figure_7,
            self.figure_8, self.figure_9, self.figure_10,
        )  # fmt: skip
        for number, make in enumerate(makers):
            self.update(make.__name__.replace("_", " "), number, len(makers))
            yield make

    def layers(self) -> dict[str, list[Problem]]:
        """By network; of a share of the work, the first layers of each network's evenly spread ones."""
        step = max(1, round(1 / self.effort.share))
        return {network: [written(text) for text in texts[::step]] for network, texts in NETWORKS.items()}

    def answers(
        self, mapper: str, objective: Objective = "latency", machine: Machine | None = None
    ) -> dict[str, _Answer]:
        """Of every layer by its name."""
        machine = machine or self.machine
        key = (mapper, objective, machine.name)
        if key not in self.known:
            problems = {p.name: p for problems in self.layers().values() for p in problems}
            tasks = [MappingProblem(problem, machine, objective) for problem in problems.values()]
            found = self.each(_solve, tasks, [MAPPERS[mapper]] * len(tasks))
            self.known[key] = dict(zip(problems, found, strict=True))
        return self.known[key]

    def each(self, function: Callable[..., T], *arguments: Sequence[object]) -> list[T]:
        """The function of each, in order, in several processes."""
        if self.pool is None:
            return [function(*one) for one in zip(*arguments, strict=True)]
        return list(self.pool.map(function, *arguments))

    def figure_1(self) -> Exhibit:
        """Latencies of random valid mappings of one layer."""
        task = MappingProblem(layer("3_14_256_256_1"), self.machine)
        share = max(1, -(-self.effort.num_samples // 8))
        parts = self.each(_random_latencies, [task] * 8, [share] * 8, list(range(8)))
        cycles = np.concatenate([part[0] for part in parts])[: self.effort.num_samples]
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

    def figure_3(self) -> Exhibit:
        """Orders of the global buffer's loops, on the network."""
        task = MappingProblem(
            convolution({"R": 3, "S": 3, "P": 8, "Q": 8, "C": 32, "K": 1024}, name="3_8_32_1024_1"),
            self.machine,
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
        cycles = self.each(_noc_cycles, [task] * len(mappings), mappings)
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

    def figure_4(self) -> Exhibit:
        """Which loops run side by side over the 16 elements."""
        problem = convolution({"P": 16, "Q": 16, "C": 256, "K": 1024}, name="1_16_256_1024_1")
        task = MappingProblem(problem, self.machine)
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
        cycles = self.each(_noc_cycles, [task] * len(mappings), mappings)
        best = min(range(len(names)), key=lambda i: cycles[i])
        return Exhibit(
            "Figure 4",
            "what runs side by side on 16 elements, R = S = 1, P = Q = 16, C = 256, K = 1024",
            "The factor 4 of each of P, C and K is split between space and the global buffer's loops, as "
            f"in the paper; the rest of its tiling is not given. Best is {names[best]}, counted by the "
            "network's simulator; the paper's is s:P2C4K2, t:P2K2.",
            (Figure("slowest / fastest", max(cycles) / min(cycles), 4.3),),
            bar_chart(
                "Cycles by spatial mapping", "cycles", names, [Bars("cycles", tuple(map(float, cycles)))]
            ),
            basis=Basis.SIMULATED,
        )

    def table_6(self) -> Exhibit:
        """Seconds for a layer."""
        paper = {"CoSA": (4.2, 1, 1), "Random": (4.6, 20_000, 5), "Hybrid": (379.9, 67_000_000, 16_000)}
        rows, figures = [], []
        for name in ("CoSA", "Random", "Hybrid", "exact"):
            answers = list(self.answers(name).values())
            seconds = statistics.fmean(a.seconds for a in answers)
            there = paper.get(name)
            figures.append(Figure(f"seconds for a layer, {name}", seconds, there and there[0]))
            rows.append((name, f"{seconds:.3f}", answers[0].note, f"{there[0]}" if there else "-"))
        return Exhibit(
            "Table VI",
            "time to solution",
            "Means over all layers, one core each. HiGHS solves CoSA's compact program without a licence, "
            "faster than Gurobi the literal one in the paper. Hybrid ends as in the paper, after 500 valid "
            "mappings without improvement in each of 32 threads.",
            tuple(figures),
            heads=("mapper", "seconds", "its first layer", "the paper's seconds"),
            rows=tuple(rows),
            basis=Basis.MEASURED,
        )

    def figure_6(self) -> Exhibit:
        """Cycles by the analytical model, against Random."""
        return self._speedups(
            "Figure 6",
            "speed-up over Random, analytical model",
            lambda mapper: {name: float(a.cycles) for name, a in self.answers(mapper).items()},
            {"CoSA": 5.2, "Hybrid": 5.2 / 1.5},
            "CoSA is what its published code does. It is ahead of Hybrid on fewer layers than in the "
            "paper: that code keeps window loops at DRAM, which makes some 3 x 3 layers wait for DRAM. "
            "`exact` has the least cycles by construction.",
        )

    def figure_7(self) -> Exhibit:
        """Energy by the analytical model, against Random; CoSA has one answer for all objectives."""

        def energies(mapper: str) -> dict[str, float]:
            objective: Objective = "latency" if mapper == "CoSA" else "energy"
            return {name: a.energy_pj for name, a in self.answers(mapper, objective).items()}

        exhibit = self._speedups(
            "Figure 7",
            "energy of Random / energy, analytical model",
            energies,
            {},
            "Random, Hybrid and `exact` search for the least energy, CoSA has its one answer. The "
            "published code keeps window loops at DRAM, so that 3 x 3 layers read tensors from there "
            "several times: the advantage over Hybrid is less than the paper's.",
        )
        ratio = _mean([energies("Hybrid")[n] / e for n, e in energies("CoSA").items()])
        return replace(
            exhibit,
            figures=(*exhibit.figures, Figure("energy of Hybrid / CoSA, geometric mean", ratio, 1.22)),
        )

    def figure_8(self) -> Exhibit:
        """The terms of CoSA's objective for three mappers' answers."""
        task = MappingProblem(layer("3_7_512_512_1"), self.machine)
        program = cosa.Program(task, cosa.Cosa("paper"))
        terms: dict[str, tuple[float, float, float]] = {}
        for name in ("Random", "Hybrid", "CoSA"):
            mapper = cosa.Cosa("paper") if name == "CoSA" else MAPPERS[name]
            terms[name] = program.objectives(_solve(task, mapper).mapping)
        totals = {name: 10 * c - 0.1 * u + t for name, (u, c, t) in terms.items()}
        bars = [
            Bars(what, tuple(abs(weight * terms[name][place]) for name in terms))
            for place, (what, weight) in enumerate((("utilisation", 0.1), ("compute", 10), ("traffic", 1)))
        ]
        return Exhibit(
            "Figure 8",
            "CoSA's objective taken apart, 3_7_512_512_1",
            "In log2 units, weighted; utilisation counts against the sum. As in the paper CoSA's own "
            "answer has the least sum, which is what it minimises. The paper's axis has no scale to "
            "compare with.",
            tuple(Figure(f"sum of {name}", total, None) for name, total in totals.items()),
            bar_chart("Terms of equation 12", "log2", list(terms), bars),
            basis=Basis.COUNTED,
        )

    def figure_9(self) -> Exhibit:
        """Geometric means on two other machines."""
        level = "levels.{}.{}".format
        more = [
            Axis(level("InputBuffer", "num_instances_per_parent"), ("64",)),
            Axis(level("DRAM", "read_bytes_per_cycle"), ("20",)),
            Axis(level("DRAM", "write_bytes_per_cycle"), ("20",)),
        ]
        factors = {"AccumulationBuffer": 2, "WeightBuffer": 2, "InputBuffer": 2, "GlobalBuffer": 8}
        capacities = {name: self.machine.level(name).capacity_bytes or 0 for name in factors}
        larger = [
            Axis(level(name, "capacity_bytes"), (str(factor * capacities[name]),))
            for name, factor in factors.items()
        ]
        papers = {"8 x 8 elements": (4.4, 4.4 / 1.1), "larger buffers": (5.7, 5.7 / 1.4)}
        figures: list[Figure] = []
        means: dict[str, list[float]] = {"Hybrid": [], "CoSA": [], "exact": []}
        for (name, paper), axes in zip(papers.items(), (more, larger), strict=True):
            (variant,) = variants(self.machine, axes)
            machine = variant.machine.model_copy(update={"name": f"{MACHINE}, {name}"})
            base = self.answers("Random", machine=machine)
            for mapper in means:
                own = self.answers(mapper, machine=machine)
                mean = _mean([base[n].cycles / a.cycles for n, a in own.items()])
                means[mapper].append(mean)
                there = {"CoSA": paper[0], "Hybrid": paper[1]}.get(mapper)
                figures.append(Figure(f"{name}: Random / {mapper}", mean, there))
        return Exhibit(
            "Figure 9",
            "speed-up over Random on other machines, geometric means, analytical model",
            "64 elements with twice the DRAM bandwidth; buffers of elements twice as large and a global "
            "buffer eight times as large. CoSA's weights are those of the baseline: the paper adjusts "
            "them, but does not give the new ones.",
            tuple(figures),
            bar_chart(
                "Random / mapper",
                "times",
                list(papers),
                [Bars(m, tuple(values)) for m, values in means.items()],
            ),
            basis=Basis.SIMULATED,
        )

    def figure_10(self) -> Exhibit:
        """Cycles by the network's simulator, against Random."""

        def cycles(mapper: str) -> dict[str, float]:
            answers = self.answers(mapper)
            problems = {p.name: p for problems in self.layers().values() for p in problems}
            tasks = [MappingProblem(problems[name], self.machine) for name in answers]
            found = self.each(_noc_cycles, tasks, [a.mapping for a in answers.values()])
            return dict(zip(answers, map(float, found), strict=True))

        return self._speedups(
            "Figure 10",
            "speed-up over Random, network on chip cycle by cycle",
            cycles,
            {"CoSA": 3.3, "Hybrid": 3.3 / 2.5},
            "Mappings are those of figure 6, found by the analytical model. The simulator's assumptions, "
            "where the paper leaves them open, are listed in `cost/noc`.",
        )

    def _speedups(
        self,
        name: str,
        title: str,
        values: Callable[[str], dict[str, float]],
        paper: Mapping[str, float],
        said: str,
    ) -> Exhibit:
        base = values("Random")
        ratios = {m: {n: base[n] / v for n, v in values(m).items()} for m in ("Hybrid", "CoSA", "exact")}
        by_network = {
            network: [p.name for p in problems] for network, problems in self.layers().items() if problems
        }
        groups = [*by_network, "all"]
        bars = [
            Bars(
                m,
                (
                    *(_mean([found[n] for n in names]) for names in by_network.values()),
                    _mean(list(found.values())),
                ),
            )
            for m, found in ratios.items()
        ]
        rows = tuple(
            (f"{network} {n}", *(f"{ratios[m][n]:.2f}" for m in ratios))
            for network, names in by_network.items()
            for n in names
        )
        figures = tuple(
            Figure(f"Random / {m}, geometric mean", _mean(list(found.values())), paper.get(m))
            for m, found in ratios.items()
        )
        return Exhibit(
            name,
            title,
            said,
            figures,
            bar_chart("Geometric means", "times", groups, bars),
            ("layer", *ratios),
            rows,
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


def _mean(values: Sequence[float]) -> float:
    """Geometric."""
    return math.exp(statistics.fmean(map(math.log, values)))
