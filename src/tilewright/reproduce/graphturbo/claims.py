"""What the paper's text says of its results, sentence by sentence, beside what comes out here.

Each claim is checked by the figures of this reproduction alone: it holds, it does not, or nothing here can
tell. Where the answer depends on whether baselines overlap, both ways are said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilewright.reproduce.base import Basis, Exhibit, Figure
from tilewright.reproduce.graphturbo.exhibits import gpu_speedups
from tilewright.reproduce.graphturbo.gpu import AS_THE_PAPER
from tilewright.reproduce.graphturbo.measured import Measured, Row
from tilewright.reproduce.graphturbo.runs import BREADTH_FIRST, DEPTH_FIRST, LARGEST, GraphTurboOutcome

_VERDICTS = {True: "yes", False: "no", None: "not measured"}
_NEAR = 0.25
"""A factor counts as reproduced within a quarter of the paper's."""
_LITTLE = 1.15
"""What counts as an insignificant gain, or as similar."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence in short, whether it holds here, and what was measured."""

    section: str
    sentence: str
    holds: bool | None
    measured: str

    @property
    def verdict(self) -> str:
        """In a word or two."""
        return _VERDICTS[self.holds]


def claims_of_the_text(measured: Measured) -> Exhibit:
    """Every claim with its verdict."""
    claims = list(_claims(measured))
    count = {holds: sum(claim.holds is holds for claim in claims) for holds in _VERDICTS}
    return Exhibit(
        "Claims of the text",
        "what the paper's text says of its results, one by one",
        f"Of {len(claims)} claims {count[True]} hold here, {count[False]} do not, and {count[None]} cannot "
        f"be measured. A factor counts as reproduced within {100 * _NEAR:.0f} % of the paper's, as "
        f"insignificant or similar below {_LITTLE}. Baselines run the phases of a step in sequence unless "
        "it says overlapped.",
        tuple(Figure(f"claims: {_VERDICTS[holds]}", number, None) for holds, number in count.items()),
        heads=("section", "the paper says", "here", "measured"),
        rows=tuple((c.section, c.sentence, c.verdict, c.measured) for c in claims),
        basis=Basis.SIMULATED,
    )


def _claims(measured: Measured) -> Iterator[Claim]:
    first = measured.row("A")
    yield from _of_the_algorithms(measured, first)
    yield from _of_batches(measured)
    yield from _of_performance(measured)
    yield from _of_the_breakdown(measured)
    yield from _of_memory(measured)
    yield from _of_utilization(measured, first)
    yield from _of_compiling(measured)
    yield from _of_the_gpu(measured, first)


def _of_the_algorithms(measured: Measured, first: Row | None) -> Iterator[Claim]:
    """Sections 2 to 4, as far as they speak of results."""
    if first is not None:
        ours = first.ours["variant-4"]
        text = f"{' '.join(map(str, ours.factors))}, {sum(ours.buffers)} buffers; calibrated, see Choices"
        yield Claim(
            "2.1",
            "the stages of ResNet-50 are split into eight, four, two and one instance",
            ours.factors == (8, 4, 2, 1),
            text,
        )
        serial, double = first.ratio("variant-4", "tvm"), first.ratio("variant-4", "tvm-overlapped")
        yield Claim(
            "2.1",
            "this schedule of ResNet-50 is 7.97 times as fast as TVM",
            _is_near(serial, 7.97),
            f"{serial:.2f}; over overlapped TVM {double:.2f}",
        )
        yield Claim(
            "4.2",
            "TVM makes 65 kernels of ResNet-50 (table 3: 58)",
            first.outcome("tvm").num_steps == 58,
            f"{first.outcome('tvm').num_steps}",
        )
        yield Claim(
            "3.5",
            "sub-graphs are bound to cores as [2,4], [4,2] (figure 9)",
            {"2x4", "4x2"} <= set(ours.bindings),
            ", ".join(ours.bindings),
        )
    depth, breadth = measured.orders[DEPTH_FIRST], measured.orders[BREADTH_FIRST]
    yield Claim(
        "3.3",
        "of both orders, the depth-first one is the better for ResNet-50",
        depth.time_s < breadth.time_s,
        f"depth-first {_ms(depth)}, {_mib(depth)} spilled; breadth-first {_ms(breadth)}, {_mib(breadth)}",
    )
    largest = measured.orders[LARGEST]
    yield Claim(
        "4.3",
        "spilling what lives longest moves less data than spilling what is largest",
        depth.outside_bytes < largest.outside_bytes,
        f"ResNet-50: {_moved(depth)}, {_ms(depth)}; largest first {_moved(largest)}, {_ms(largest)}",
    )


def _of_batches(measured: Measured) -> Iterator[Claim]:
    """Section 5.1: BERT-128 by samples for a cluster."""
    found = measured.by_batch
    if not {2, 4, 8, 16} <= set(found):
        return
    tvm = {n: o["tvm"] for n, o in found.items()}
    ours = {n: o["graphturbo"] for n, o in found.items()}
    in_shared = {n: o["variant-1"] for n, o in found.items()}
    yield Claim(
        "5.1",
        "LLB retains the values of four samples, and no more, for TVM",
        in_shared[4].buffers[0] <= ours[4].buffers[0] < in_shared[8].buffers[0],
        f"values in LLB first, of them in DDR: {in_shared[4].buffers[0]} with 4, {in_shared[8].buffers[0]} "
        "with 8",
    )
    yield Claim(
        "5.1",
        "from 2 to 4 samples TVM's throughput and latency grow",
        tvm[4].per_s > tvm[2].per_s and tvm[4].time_s > tvm[2].time_s,
        f"{tvm[2].per_s:,.0f} to {tvm[4].per_s:,.0f} per s, {_ms(tvm[2])} to {_ms(tvm[4])}",
    )
    yield Claim(
        "5.1",
        "beyond 4 samples TVM's throughput does not grow",
        max(tvm[8].per_s, tvm[16].per_s) < _LITTLE * tvm[4].per_s,
        f"{tvm[4].per_s:,.0f} with 4, {tvm[8].per_s:,.0f} with 8, {tvm[16].per_s:,.0f} with 16",
    )
    yield Claim(
        "5.1",
        "with 2 and 4 samples GraphTurbo performs as TVM does",
        all(ours[n].per_s < _LITTLE * tvm[n].per_s for n in (2, 4)),
        f"{ours[2].per_s / tvm[2].per_s:.2f} and {ours[4].per_s / tvm[4].per_s:.2f} times as fast",
    )
    yield Claim(
        "5.1",
        "with 2 and 4 samples nothing needs to be split",
        all(set(ours[n].factors) == {1} for n in (2, 4)),
        f"{max(ours[2].factors)} and {max(ours[4].factors)} instances at most",
    )
    yield Claim(
        "5.1",
        "with 8 samples GraphTurbo creates larger sub-graphs and splits them",
        max(ours[8].factors) > 1 and ours[8].num_subgraphs < ours[8].num_layers,
        f"{ours[8].num_subgraphs} sub-graphs of {ours[8].num_layers} layers, {max(ours[8].factors)} "
        "instances at most",
    )
    yield Claim(
        "5.1",
        "8 samples give more throughput than 4, at a lower latency than TVM's two rounds of 4",
        ours[8].per_s > ours[4].per_s and ours[8].time_s < 2 * tvm[4].time_s,
        f"{ours[8].per_s:,.0f} per s, {_ms(ours[8])}; TVM {2e3 * tvm[4].time_s:.2f} ms",
    )
    yield Claim(
        "5.1",
        "16 samples lower the throughput and raise the latency",
        ours[16].per_s < ours[8].per_s and ours[16].time_s > ours[8].time_s,
        f"{ours[8].per_s:,.0f} to {ours[16].per_s:,.0f} per s, {_ms(ours[8])} to {_ms(ours[16])} "
        "(the paper: 4,052 to 2,716)",
    )
    yield Claim(
        "5.1",
        "because more values are spilled to slower buffers",
        ours[16].spilled_bytes > 2 * ours[8].spilled_bytes,
        f"{_mib(ours[8])} with 8, {_mib(ours[16])} with 16",
    )
    yield Claim(
        "5.1",
        "two rounds of 8 have a lower latency than 16 at once",
        2 * ours[8].time_s < ours[16].time_s,
        f"{2e3 * ours[8].time_s:.2f} ms against {_ms(ours[16])}",
    )
    yield Claim(
        "5.1", "throughput is as the vendor's hand-written code's", None, "there is no such code here"
    )


def _of_performance(measured: Measured) -> Iterator[Claim]:
    """Section 5.2: figure 14."""
    rows = measured.rows
    for other, paper in (("tvm", 11.15), ("astitch", 6.16)):
        serial, double = measured.mean("variant-4", other), measured.mean("variant-4", f"{other}-overlapped")
        name = {"tvm": "TVM", "astitch": "AStitch"}[other]
        for way, ratio in (("", serial), ("overlapped ", double)):
            yield Claim(
                "5.2",
                f"GraphTurbo is {paper} times as fast as {way}{name} on average",
                _is_near(ratio, paper),
                f"{ratio:.2f}",
            )
    less = [
        r for r in rows if _outside_per_sample(r.ours["variant-4"]) < _outside_per_sample(r.outcome("tvm"))
    ]
    yield Claim(
        "5.2",
        "it moves less data outside the cores than TVM",
        len(less) == len(rows),
        _listed("less for a sample on", less, rows),
    )
    behind = [r for r in rows if r.ratio("astitch", "tvm") < 1]
    both = [r for r in rows if r.network.label in "AG"]
    yield Claim(
        "5.2",
        "AStitch falls behind TVM on ResNet-50 and MobileNet-v2",
        {r.network.label for r in behind} == {"A", "G"},
        f"behind on {_labels(behind)}; "
        + ", ".join(f"{r.network.label} {r.ratio('astitch', 'tvm'):.2f} times as fast" for r in both),
    )
    yield Claim(
        "5.2",
        "GraphTurbo is 1.04 times as fast as the vendor's hand-written code, which wins on BERT-512 and "
        "MobileNet-v2 and loses on BERT-384",
        None,
        "there is no such code here; the vendor's published ResNet-50 runs 8,726 per s"
        + "".join(f", ours {r.ours['variant-4'].per_s:,.0f}" for r in rows if r.network.label == "A"),
    )


def _of_the_breakdown(measured: Measured) -> Iterator[Claim]:
    """Section 5.3: figure 15."""
    rows = measured.rows
    for end in ("", "-overlapped"):
        way = "overlapped: " if end else ""
        third = f"variant-3{end}"
        for sentence, ratio, paper in (
            ("variant 2 is 3.67 times as fast as TVM", measured.mean(f"variant-2{end}", f"tvm{end}"), 3.67),
            ("variant 3 is 2.20 times as fast as 2", measured.mean(third, f"variant-2{end}"), 2.20),
            ("overlap across layers gives 1.72 times", measured.mean("variant-4", third), 1.72),
        ):
            yield Claim("5.3", way + sentence, _is_near(ratio, paper), f"{ratio:.2f}")
    better = [r for r in rows if r.ratio("variant-2", "variant-1") > 1]
    yield Claim(
        "5.3", "variant 2 outperforms variant 1", len(better) == len(rows), _listed("faster on", better, rows)
    )
    slower = [r for r in rows if r.ratio("variant-1", "tvm") < 1]
    yield Claim(
        "5.3",
        "variant 1 is not always faster than TVM",
        bool(slower),
        f"slower on {_labels(slower)}; least "
        f"{min(r.ratio('variant-1', 'tvm') for r in rows):.2f} times as fast",
    )
    gains = {r.network.label: r.ratio("variant-3", "variant-2") for r in rows}
    many, few = set("ACEGI") & set(gains), set("BFH") & set(gains)
    if many and few:
        yield Claim(
            "5.3",
            "ResNet-50, BERT-256, BERT-512, MobileNet-v2 and DenseNet gain most from splitting and order",
            min(gains[x] for x in many) > max(gains[x] for x in set(gains) - many),
            ", ".join(f"{label} {gain:.2f}" for label, gain in sorted(gains.items())),
        )
        yield Claim(
            "5.3",
            "BERT-128, DLRM and Vision Transformer gain little from them",
            all(gains[x] < _LITTLE for x in few),
            ", ".join(f"{x} {gains[x]:.2f}" for x in sorted(few)),
        )


def _of_memory(measured: Measured) -> Iterator[Claim]:
    """Section 5.4: table 3."""
    rows = measured.rows
    yield Claim(
        "5.4",
        "TVM puts all results in DDR",
        all(r.outcome("tvm").buffers[1:] == (0, 0) for r in rows),
        "by construction of the baseline",
    )
    inside = [r for r in rows if _share_inside(r.ours["variant-4"].buffers) > 0.5]
    papers = [r for r in rows if _share_inside(r.network.buffers) > 0.5]
    yield Claim(
        "5.4",
        "GraphTurbo has most buffers in L1, Conformer's aside",
        {r.network.label for r in inside} >= {r.network.label for r in papers},
        f"more than half on {_labels(inside)}; in the paper on {_labels(papers)}",
    )


def _of_utilization(measured: Measured, first: Row | None) -> Iterator[Claim]:
    """Section 5.4: figures 16 and 17."""
    for name, by_batch in measured.units.items():
        batches = sorted(n for n in by_batch if n < 16 or not name.startswith("BERT"))
        for unit in ("MME", "VME"):
            shares = [by_batch[n]["graphturbo"].utilization.get(unit, 0.0) for n in batches]
            yield Claim(
                "5.4",
                f"{name}: the use of {unit} grows with the batch",
                all(a <= b for a, b in pairwise(shares)),
                ", ".join(f"{n}: {_percent(s)}" for n, s in zip(batches, shares, strict=True)),
            )
        if name.startswith("BERT") and {8, 16} <= set(by_batch):
            busy = {n: by_batch[n]["graphturbo"].utilization.get("MME", 0.0) for n in (8, 16)}
            yield Claim(
                "5.4",
                f"{name}: the use degrades from 8 to 16",
                busy[16] < busy[8],
                f"MME {_percent(busy[8])} to {_percent(busy[16])}",
            )
    if first is None:
        return
    for unit in ("MME", "VME"):
        busy_of = {name: first.outcome(name).stages for name in ("tvm", "tvm-overlapped", "variant-4")}
        ours, tvm = busy_of["variant-4"], busy_of["tvm"]
        if not {f"stage {i}" for i in range(1, 5)} <= set(ours) & set(tvm):
            continue
        yield Claim(
            "5.4",
            f"in stage 1 the use of {unit} is similar to TVM's",
            max(ours["stage 1"][unit], tvm["stage 1"][unit])
            < _LITTLE * min(ours["stage 1"][unit], tvm["stage 1"][unit]),
            _stage_text(busy_of, ["stage 1"], unit),
        )
        later = [f"stage {i}" for i in range(2, 5)]
        yield Claim(
            "5.4",
            f"in stages 2 to 4 the use of {unit} is above TVM's",
            all(ours[stage][unit] > tvm[stage][unit] for stage in later),
            _stage_text(busy_of, later, unit),
        )


def _of_compiling(measured: Measured) -> Iterator[Claim]:
    """Section 5.5: table 4."""
    rows = measured.rows
    ratios = [r.ours["variant-4"].plan_s / r.outcome("tvm").plan_s for r in rows]
    papers = {"A": 139 / 102, "B": 199 / 159, "C": 224 / 170, "D": 699 / 312, "E": 282 / 171, "F": 23 / 25,
              "G": 248 / 74, "H": 340 / 189, "I": 189 / 173, "J": 296 / 382}  # fmt: skip
    most = max(papers.values())
    yield Claim(
        "5.5",
        f"compiling takes little longer than TVM's (at most {most:.2f} times)",
        max(ratios) <= most,
        f"planning takes {min(ratios):.2f} to {max(ratios):.2f} times as long, "
        f"{max(r.ours['variant-4'].plan_s for r in rows):.1f} s at most",
    )


def _of_the_gpu(measured: Measured, first: Row | None) -> Iterator[Claim]:
    """Section 5.6: table 5."""
    over_tvm, over_fusion = gpu_speedups(measured)
    yield Claim(
        "5.6", "on a GPU it is 1.23 times as fast as TVM", _is_near(over_tvm, 1.23), f"{over_tvm:.2f}"
    )
    yield Claim(
        "5.6",
        "and 1.06 times as fast as fused pairs alone",
        over_fusion > 1.03,
        f"{over_fusion:.2f}; by number of images "
        + ", ".join(
            f"{ways[AS_THE_PAPER].pairs / ways[AS_THE_PAPER].instances:.2f}" for ways in measured.gpu.values()
        ),
    )
    if first is not None:
        here = first.ratio("variant-4", "tvm")
        yield Claim(
            "5.6",
            "the gain is smaller than on STCP920, as memory is faster",
            over_tvm < here,
            f"{over_tvm:.2f} against {here:.2f} of ResNet-50",
        )


def _is_near(value: float, paper: float) -> bool:
    return abs(value / paper - 1) <= _NEAR


def _ms(outcome: GraphTurboOutcome) -> str:
    return f"{outcome.time_s * 1e3:.2f} ms"


def _mib(outcome: GraphTurboOutcome) -> str:
    return f"{outcome.spilled_bytes / 2**20:.1f} MiB"


def _moved(outcome: GraphTurboOutcome) -> str:
    return f"{outcome.outside_bytes / 2**20:.0f} MiB through LLB and DDR"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _outside_per_sample(outcome: GraphTurboOutcome) -> float:
    return outcome.outside_bytes / outcome.batch


def _share_inside(buffers: tuple[int, int, int]) -> float:
    return buffers[2] / sum(buffers)


def _labels(rows: Iterable[Row]) -> str:
    return " ".join(r.network.label for r in rows) or "none"


def _listed(what: str, some: Sequence[Row], every: Sequence[Row]) -> str:
    return f"{what} {len(some)} of {len(every)}" + (f": {_labels(some)}" if len(some) < len(every) else "")


def _stage_text(
    busy_of: Mapping[str, Mapping[str, Mapping[str, float]]], stages: Sequence[str], unit: str
) -> str:
    """The use of a unit in stages, by recipe."""
    names = {"tvm": "TVM", "tvm-overlapped": "overlapped TVM", "variant-4": "ours"}
    return ", ".join(
        f"{title} {' '.join(_percent(busy_of[recipe][stage][unit]) for stage in stages)}"
        for recipe, title in names.items()
    )
