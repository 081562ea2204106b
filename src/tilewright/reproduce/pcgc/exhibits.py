"""The rule table, the examples, Figure 13, and times on this processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.benchmark.statistics import Timing
from tilewright.ir.derive import OperatorClass
from tilewright.partition.pcgc.rules import RuleTable
from tilewright.report.figure import Bars, bar_chart
from tilewright.reproduce.base import Basis, Exhibit, Figure
from tilewright.reproduce.pcgc.examples import Example
from tilewright.reproduce.pcgc.runs import (
    BEST_SIDE_BY_SIDE,
    BEST_TIME,
    PCGC,
    RELAY,
    RELAY_SIDE_BY_SIDE,
    SIDE_BY_SIDE,
    Planned,
)


def rules() -> Exhibit:
    """Figure 4, which is missing from the text."""
    table, classes = RuleTable.default(), tuple(OperatorClass)
    rows = tuple((p.value, *(str(table.of(p, c)) for c in classes)) for p in classes)
    return Exhibit(
        "Figure 4",
        "the rule table, producer by reader",
        "The figure is an image that the text does not repeat. Stated or shown in its examples are: a "
        "complex operator and what is algebraic or broadcast (stable), two complex ones, a 1x1 convolution "
        "and one of 3x3 or 5x5, a pooling and a 1x1 convolution (evaluate), and Concat (prohibited). The "
        "others follow from the classes; a file may say otherwise.",
        heads=("producer", *(c.value for c in classes)),
        rows=rows,
        basis=Basis.COUNTED,
    )


def drawn(found: Sequence[Example]) -> Exhibit:
    """Examples 1 to 5."""
    rows = tuple((e.name, e.machine, ", ".join(e.subgraphs), e.said or "stable") for e in found)
    return Exhibit(
        "Figures 8 to 12",
        "examples 1 to 5 on the three described machines",
        "Graphs as the text draws them, static fusion cut again for time. Examples 2 and 5 say that machines "
        "decide differently. So do these: the buffers of the Jetson nano do not hold what passes between two "
        "large convolutions, those of the others do. Example 4 is in the simulator: main memory is one port "
        "that all units share, so several units take more than the longest; where memory never binds, they "
        "take the longest, inside of one fused operator, too.",
        heads=("example", "machine", "subgraphs", "what the cost model said, or the schedule's time"),
        rows=rows,
        basis=Basis.SIMULATED,
    )


def speedups(found: Mapping[str, Mapping[str, Planned]]) -> Exhibit:
    """Figure 13."""
    heads = (RELAY_SIDE_BY_SIDE, PCGC, SIDE_BY_SIDE, BEST_TIME, BEST_SIDE_BY_SIDE)
    ratios = {
        network: {name: plans[RELAY].time_ms / plans[name].time_ms for name in heads}
        for network, plans in found.items()
    }
    bars = [Bars(name, tuple(of_network[name] for of_network in ratios.values())) for name in heads]
    return Exhibit(
        "Figure 13",
        "speed-up on a V100 without tensor cores, float32",
        "The paper's bars are an image that the text does not repeat, and it names no network but BERT; "
        "Ansor's searched kernels are not here. Ours are over Relay's rule, whose operators Ansor tunes one "
        "by one, with the same simulated kernels for all, so what is compared is the graph alone: PCGC "
        "as in the paper (static fusion, Algorithm 2 for time), from every start, and each with what is "
        "independent side by side. A fused operator is one launch, also where its parts need all of the "
        "machine to have finished. For ResNet-50 and ResNet-34 the text says 10 to 15 % by running "
        "convolutions at the same time.",
        tuple(
            Figure(f"{network}: {name} over Relay's rule", ratio, None)
            for network, of_network in ratios.items()
            for name, ratio in of_network.items()
        ),
        bar_chart("Speed-up over Relay's rule", "times as fast", tuple(ratios), bars),
        ("network", f"{RELAY}, ms", *heads),
        tuple(
            (network, f"{found[network][RELAY].time_ms:.4g}", *(f"{of_network[n]:.3f}" for n in heads))
            for network, of_network in ratios.items()
        ),
        basis=Basis.SIMULATED,
    )


def here(found: Mapping[str, Mapping[str, Timing]]) -> Exhibit:
    """Time on this processor."""
    rows = tuple((network, *map(_milliseconds, by.values())) for network, by in found.items())
    ratios = {
        network: [m.median_ms / next(iter(by.values())).median_ms for m in by.values()]
        for network, by in found.items()
    }
    heads = next(iter(found.values())).keys() if found else ()
    return Exhibit(
        "This processor",
        "measured time by partition, whole models in turns",
        "Median and quartiles in ms. Energy is not measured: without counters there is none to report.",
        tuple(
            Figure(f"{network}: PCGC over Relay's rule", values[-1], None)
            for network, values in ratios.items()
        ),
        heads=("network", *heads),
        rows=rows,
        basis=Basis.MEASURED,
    )


def _milliseconds(timing: Timing) -> str:
    median, low, high = (timing.percentile_ms(percent) for percent in (50, 25, 75))
    return f"{median:.3f} ({low:.3f}, {high:.3f})"
