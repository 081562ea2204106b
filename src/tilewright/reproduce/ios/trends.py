"""Figure 1: how much a convolution computes, how many a network has, how fast machines are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.report.figure import Bars, bar_chart
from tilewright.reproduce.base import Basis, Exhibit, Figure
from tilewright.reproduce.ios.paper import FIGURE_1, MAIN_DEVICE, PEAKS_TFLOP_PER_S


@dataclass(frozen=True, slots=True)
class Convolutions:
    """Of a network: how many convolutions it has, and their multiplications and additions."""

    count: int
    num_flop: int

    @property
    def mflop_each(self) -> float:
        """Of a convolution, in the mean."""
        return self.num_flop / self.count / 1e6


def convolutions(network: str) -> Convolutions:
    """Those of a network of the zoo, at batch 1."""
    from tilewright import zoo
    from tilewright.frontend.onnx import load_onnx
    from tilewright.ir.derive import macs

    found = [node for node in load_onnx(zoo.build(network)).nodes if node.op_type == "Conv"]
    return Convolutions(len(found), 2 * sum(map(macs, found)))


def peak_flop_per_s(machine: Machine) -> float:
    """What the units for float32 compute at most: a multiplication and an addition each."""
    rates = [
        unit.macs_per_cycle.get("float32", 0) * machine.num_units(unit)
        for unit in machine.units
        if unit.kind == "mac"  # those of matrices round what they multiply
    ]
    return 2 * max(rates) * (machine.clock_hz or 0.0)


def figure_1(found: Mapping[str, Convolutions]) -> Exhibit:
    """Networks of three years, and peaks of machines that are described here."""
    titles = [f"{year}: {title}" for year, title, _, _ in FIGURE_1]
    counted = [found[network] for _, _, network, _ in FIGURE_1]
    peaks = {name: peak_flop_per_s(load_preset(name)) / 1e12 for name in PEAKS_TFLOP_PER_S}
    picture = bar_chart(
        "Networks by year",
        "Mflop of a convolution; convolutions",
        titles,
        [
            Bars("Mflop of a convolution", tuple(c.mflop_each for c in counted)),
            Bars("convolutions", tuple(float(c.count) for c in counted)),
        ],
        is_logarithmic=True,
    )
    return Exhibit(
        "Figure 1",
        "computation of a convolution and number of convolutions by year, peaks of machines",
        "Counted from the loop nests of the zoo's networks, a multiplication and an addition for each "
        "product; a separable convolution is two. Peaks follow from descriptions of machines, which the "
        f"GTX 980 Ti and GTX 1080 of the first two years have not: of the three only {MAIN_DEVICE} is here. "
        "The text of the paper prints the numbers beside ours; the others are in its image only.",
        (
            *(
                Figure(f"{title}, Mflop of a convolution", c.mflop_each, paper)
                for title, c, (_, _, _, paper) in zip(titles, counted, FIGURE_1, strict=True)
            ),
            *(
                Figure(f"{title}, convolutions", c.count, None)
                for title, c in zip(titles, counted, strict=True)
            ),
            *(
                Figure(f"{name}, peak in float32, Tflop/s", peak, PEAKS_TFLOP_PER_S[name])
                for name, peak in peaks.items()
            ),
        ),
        picture,
        basis=Basis.COUNTED,
    )
