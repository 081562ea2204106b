"""GraphTurbo (OSDI 2023): tables 1 to 4 and figures 14 to 17, with our planner and our simulator.

The paper measures on a card of its authors; here a described machine is simulated, none of whose numbers was
fitted to the paper's results. Figures 14 to 17 are images: what the text says of them is compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

from tilewright.report.figure import Bars, bar_chart
from tilewright.reproduce.base import Effort, Exhibit, Figure, Update

MACHINE = "stcp920"


@dataclass(frozen=True, slots=True)
class Network:
    """A row of the paper's table 2: samples for a cluster, TVM's samples per second; of tables 3 and 4 the
    buffers in DDR, LLB and L1, TVM's, and seconds of compiling. `size` are arguments of the zoo's."""

    label: str
    name: str
    zoo_name: str
    size: Mapping[str, int]
    tvm_batch: int
    batch: int
    tvm_per_s: float
    buffers: tuple[int, int, int]
    tvm_buffers: int
    compile_s: float


NETWORKS: tuple[Network, ...] = (
    Network("A", "ResNet-50", "resnet50", {}, 2, 16, 1064, (1, 11, 284), 58, 139),
    Network("B", "BERT-128", "bert_base", {"sequence": 128}, 4, 8, 512, (1, 0, 305), 242, 199),
    Network("C", "BERT-256", "bert_base", {"sequence": 256}, 2, 4, 412, (1, 110, 240), 242, 224),
    Network("D", "BERT-384 large", "bert_large", {"sequence": 384}, 1, 2, 36, (1, 75, 967), 515, 699),
    Network("E", "BERT-512", "bert_base", {"sequence": 512}, 1, 2, 324, (1, 76, 337), 242, 282),
    Network("F", "DLRM", "dlrm_s", {}, 64, 256, 131_000, (1, 0, 75), 76, 23),
    Network("G", "MobileNet-v2", "mobilenet_v2", {}, 2, 32, 1416, (1, 3, 608), 56, 248),
    Network("H", "Vision Transformer", "vit_b_16", {}, 4, 8, 40, (24, 60, 340), 214, 340),
    Network("I", "DenseNet", "densenet121", {}, 4, 8, 456, (0, 3, 389), 247, 189),
)
TABLE_1: tuple[str, Mapping[int, tuple[float | None, float | None]]] = (
    "bert_base",
    {2: (138.0, 138.0), 4: (512.0, 512.0), 8: (None, 4052.0), 16: (None, 2716.0)},
)
"""The network of table 1, and TVM's and GraphTurbo's sentences per second by samples for a cluster."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One recipe on one network: samples per second of all clusters, buffers by level, busy shares."""

    per_s: float
    buffers: tuple[int, int, int]
    utilization: Mapping[str, float]
    gap: float
    plan_s: float
    num_subgraphs: int
    energy_mj_per_sample: float


@dataclass(frozen=True, slots=True)
class GraphTurbo:
    """The reproduction."""

    @property
    def title(self) -> str:
        """The paper, for people."""
        return "Effectively Scheduling Computational Graphs of Deep Neural Networks (GraphTurbo, OSDI 2023)"

    def run(self, effort: Effort, update: Update) -> Sequence[Exhibit]:
        """Every exhibit, in the paper's order."""
        step = max(1, round(1 / effort.share))
        chosen = NETWORKS[::step]
        name, batches = TABLE_1
        jobs: list[Job] = [(net.zoo_name, dict(net.size), net.tvm_batch, ("tvm",)) for net in chosen]
        jobs += [(net.zoo_name, dict(net.size), net.batch, _RECIPES) for net in chosen]
        jobs += [(name, {"sequence": 128}, batch, ("tvm", "graphturbo")) for batch in batches]
        found: list[dict[str, Outcome]] = []
        for number, outcome in enumerate(_each(jobs, effort.num_processes)):
            update(f"{jobs[number][0]} with {jobs[number][2]} samples", number, len(jobs))
            found.append(outcome)
        count = len(chosen)
        rows = [
            _Row(net, tvm["tvm"], ours)
            for net, tvm, ours in zip(chosen, found[:count], found[count : 2 * count], strict=True)
        ]
        table_1 = dict(zip(batches, found[2 * count :], strict=True))
        return (
            _table_1(table_1), _table_2(rows), _figure_14(rows), _figure_15(rows), _table_3(rows),
            _figures_16_17(rows), _table_4(rows),
        )  # fmt: skip


_NOT_IN_RELAY = ("recognise-attention", "recognise-layer-norm")
"""The paper's networks come through Relay, which has these as several operators."""

Job = tuple[str, dict[str, int], int, tuple[str, ...]]
"""A network of the zoo, its size, samples for a cluster, recipes."""

_MASKED = "masks as inputs"
_RECIPES = ("astitch", "variant-1", "variant-2", "variant-3", "variant-4", "best", _MASKED)


@dataclass(frozen=True, slots=True)
class _Row:
    """A network with TVM's outcome at TVM's batch, and all others at GraphTurbo's."""

    network: Network
    tvm: Outcome
    ours: Mapping[str, Outcome]

    def speedup(self, recipe: str) -> float:
        """Throughput over TVM's."""
        return self.ours[recipe].per_s / self.tvm.per_s


def _each(jobs: Sequence[Job], num_processes: int) -> Iterator[dict[str, Outcome]]:
    if num_processes <= 1:
        for job in jobs:
            yield _simulated(job)
        return
    with ProcessPoolExecutor(num_processes, get_context("spawn")) as pool:
        yield from pool.map(_simulated, jobs)


def _simulated(job: Job) -> dict[str, Outcome]:
    """Build a network and run recipes on it."""
    from tilewright import zoo
    from tilewright.compiler import plan_optimised
    from tilewright.frontend.onnx import load_onnx
    from tilewright.hardware.presets import load_preset
    from tilewright.options import Options
    from tilewright.passes import run_passes
    from tilewright.schedule.binding import Scope
    from tilewright.targets.npu.backend import NpuBackend
    from tilewright.targets.npu.recipes import GRAPHTURBO, NAMED, Baseline

    name, size, batch, recipes = job
    graph = load_onnx(zoo.build(name, batch=batch, **size))
    run_passes(graph, disabled=_NOT_IN_RELAY)
    machine = load_preset(MACHINE)
    aside = Baseline(replace(GRAPHTURBO, partition="graphturbo{side_inputs=true}"))
    known = {**NAMED, _MASKED: aside}
    found: dict[str, Outcome] = {}
    for recipe in recipes:
        started = time.perf_counter()
        options = Options(target=MACHINE) if recipe == "best" else known[recipe].options(MACHINE)
        chosen = plan_optimised(graph, options)
        assert isinstance(chosen.backend, NpuBackend)
        planned = chosen.backend.generate(chosen.program).planned
        plan_s = time.perf_counter() - started
        simulation, buffers = planned.simulation, planned.scopes.num_buffers
        found[recipe] = Outcome(
            machine.num_clusters * batch / simulation.time_s,
            (buffers[Scope.MAIN], buffers[Scope.SHARED], buffers[Scope.LOCAL]),
            simulation.utilization,
            simulation.gap,
            plan_s,
            len(planned.partition.subgraphs),
            simulation.energy_j * 1e3 / batch,
        )
    return found


def _table_1(found: Mapping[int, Mapping[str, Outcome]]) -> Exhibit:
    figures = []
    for batch, outcomes in found.items():
        for recipe, paper in zip(("tvm", "graphturbo"), TABLE_1[1][batch], strict=True):
            figures.append(Figure(f"{recipe}, {batch} a cluster, per s", outcomes[recipe].per_s, paper))
    return Exhibit(
        "Table 1",
        "BERT-128 by samples for a cluster",
        "That GraphTurbo equals TVM at 2 and 4 does not reproduce: nothing is split there, but results "
        "stay in the cores all the same. The paper's rows contradict each other: 16 sentences in 9.48 ms "
        "are 1,688 per second, not 512.",
        tuple(figures),
    )


def _table_2(rows: Sequence[_Row]) -> Exhibit:
    return Exhibit(
        "Table 2",
        "networks, and TVM's throughput",
        "With every kernel's operands and results in DDR, bandwidth decides. The paper's C and E are above "
        "what this bandwidth allows: its TVM must have kept some values on the chip; its H is far below.",
        tuple(Figure(f"{r.network.name}, TVM per s", r.tvm.per_s, r.network.tvm_per_s) for r in rows),
    )


def _figure_14(rows: Sequence[_Row]) -> Exhibit:
    names = [r.network.label for r in rows]
    bars = [
        Bars(recipe, tuple(r.speedup(recipe) for r in rows)) for recipe in ("astitch", "variant-4", "best")
    ]
    ours = statistics.fmean(r.speedup("variant-4") for r in rows)
    over_astitch = statistics.fmean(r.speedup("variant-4") / r.speedup("astitch") for r in rows)
    best = statistics.fmean(r.speedup("best") for r in rows)
    return Exhibit(
        "Figure 14",
        "throughput over TVM's",
        "Arithmetic means; which one the paper takes is not said. In the paper AStitch is below TVM on A "
        "and G; here keeping what fits in the cores can only help. `best` is the fastest plan of the "
        "portfolio.",
        (
            Figure("GraphTurbo over TVM, mean", ours, 11.15),
            Figure("GraphTurbo over AStitch, mean", over_astitch, 6.16),
            Figure("the portfolio over TVM, mean", best, None),
        ),
        bar_chart("Throughput over TVM's", "times", names, bars),
        (
            "network", "TVM per s", "AStitch", "GraphTurbo", "portfolio", "subgraphs", "above its bound",
            "mJ a sample",
        ),
        tuple(
            (
                f"{r.network.label} {r.network.name}",
                f"{r.tvm.per_s:,.0f}",
                *(f"{r.speedup(x):.2f}" for x in ("astitch", "variant-4", "best")),
                str(r.ours["variant-4"].num_subgraphs),
                f"{100 * r.ours['variant-4'].gap:.0f} %",
                f"{r.ours['variant-4'].energy_mj_per_sample:.2f}",
            )
            for r in rows
        ),
    )  # fmt: skip


def _figure_15(rows: Sequence[_Row]) -> Exhibit:
    variants = ("variant-1", "variant-2", "variant-3", "variant-4")

    def mean(recipe: str, other: str | None) -> float:
        return statistics.fmean(r.speedup(recipe) / (r.speedup(other) if other else 1.0) for r in rows)

    return Exhibit(
        "Figure 15",
        "what each technique adds: the shared buffer, the cores' buffers, splitting and order, overlap",
        "Arithmetic means of ratios. The baselines run their phases one after another, as the paper says "
        "that they miss overlap; with tiles that overlap they would be faster.",
        (
            Figure("variant 2 over TVM, mean", mean("variant-2", None), 3.67),
            Figure("variant 3 over 2, mean", mean("variant-3", "variant-2"), 2.20),
            Figure("variant 4 over 3, mean", mean("variant-4", "variant-3"), 1.72),
        ),
        bar_chart(
            "Throughput over TVM's", "times", [r.network.label for r in rows],
            [Bars(name, tuple(r.speedup(name) for r in rows)) for name in variants],
        ),
    )  # fmt: skip


def _table_3(rows: Sequence[_Row]) -> Exhibit:
    figures = []
    table = []
    for r in rows:
        own = r.ours["variant-4"].buffers
        masked = r.ours[_MASKED].buffers
        figures.append(Figure(f"{r.network.name}, buffers", sum(own), sum(r.network.buffers)))
        table.append(
            (
                f"{r.network.label} {r.network.name}",
                str(sum(r.tvm.buffers)),
                str(r.network.tvm_buffers),
                "/".join(map(str, own)),
                "/".join(map(str, masked)),
                "/".join(map(str, r.network.buffers)),
            )
        )
    return Exhibit(
        "Table 3",
        "buffers by level",
        "Layer results and concatenations, in DDR, LLB and L1. Attention and layer norms are several "
        "operators, as Relay has them. MobileNet's count in the paper needs twice our instances, which a "
        "padding of channels would explain in part; how attention is split on BERT-256 and ViT is not known. "
        "By the letter of the diamond rule a transformer's mask, which all blocks read, keeps the blocks "
        "apart; where it counts as an input they join, with a total nearer to the paper's on BERT-384 large, "
        "and run more slowly.",
        tuple(figures),
        heads=("network", "TVM", "the paper's TVM", "GraphTurbo", _MASKED, "the paper's"),
        rows=tuple(table),
    )


def _figures_16_17(rows: Sequence[_Row]) -> Exhibit:
    units = ("MME", "VME")
    bars: list[Bars] = []
    for unit in units:
        bars.append(Bars(f"{unit}, TVM", tuple(r.tvm.utilization.get(unit, 0.0) for r in rows)))
        own = tuple(r.ours["variant-4"].utilization.get(unit, 0.0) for r in rows)
        bars.append(Bars(f"{unit}, GraphTurbo", own))
    return Exhibit(
        "Figures 16 and 17",
        "how busy the units are",
        "Shares of the time of a whole run. The paper's figures are images, by batch and by stage, of which "
        "the text gives no numbers.",
        tuple(
            Figure(f"{r.network.name}, MME busy", r.ours["variant-4"].utilization.get("MME", 0.0), None)
            for r in rows[:2]
        ),
        bar_chart("Share of the time that units run", "share", [r.network.label for r in rows], bars),
    )


def _table_4(rows: Sequence[_Row]) -> Exhibit:
    return Exhibit(
        "Table 4",
        "seconds to compile",
        "Ours: partition, order, memory and simulation on one core, no code generation; the paper's include "
        "TVM's.",
        tuple(
            Figure(f"{r.network.name}, seconds", r.ours["variant-4"].plan_s, r.network.compile_s)
            for r in rows
        ),
    )
