"""The paper's own numbers: tables 1 to 6, what its text says of them, and what follows from them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.reproduce.base import DRAWING, Printed


@dataclass(frozen=True, slots=True)
class Row:
    """One network of a table: the zoo's network for it, and what an image took by each planner; PCGC is the
    last. Images are `width` x `height` pixels."""

    name: str
    network: str
    times_ms: tuple[float, ...]
    powers_w: tuple[float, ...]
    width: int = 1024
    height: int = 1024
    batch: int = 1
    execution: str = ""

    @property
    def energies_mj(self) -> tuple[float, ...]:
        """Energy of an image by each planner."""
        return tuple(w * ms for w, ms in zip(self.powers_w, self.times_ms, strict=True))


@dataclass(frozen=True, slots=True)
class Board:
    """Two tables, of times and of powers: the board, its description here, the planners that PCGC is compared
    with. `nearest` is the one that fuses most like Relay's rule; `claimed` the average gain in power by the
    text."""

    name: str
    machine: str
    planners: tuple[str, ...]
    rows: tuple[Row, ...]
    nearest: str
    claimed: float

    def power_gains(self) -> list[float]:
        """By how much each other planner draws more power than PCGC, of all networks."""
        return [power / row.powers_w[-1] - 1 for row in self.rows for power in row.powers_w[:-1]]

    def energy_gains(self) -> list[float]:
        """The same of energy: power times time, since power alone says nothing of work."""
        return [mj / row.energies_mj[-1] - 1 for row in self.rows for mj in row.energies_mj[:-1]]

    def beside_nearest(self, values: Sequence[float]) -> float:
        """PCGC's figure over that of the planner that is most like one of ours."""
        return values[-1] / values[self.planners.index(self.nearest)]


NANO = Board(
    "Jetson nano",
    # By the published rates YOLOv5s cannot take so little at this size in float32.
    "jetson-nano{dtype=float16}",
    ("TASO", "TVM", "TensorRT", "XLA", "MetaFlow", "PCGC"),
    (
        Row(
            "YOLOv5s",
            "yolov5s",
            (158.1, 169.5, 152.3, 193.4, 171.8, 159.3),
            (1.87, 1.93, 1.96, 1.89, 1.91, 1.41),
        ),
        Row(
            "YOLOv4 (16FP)",
            "yolov4",
            (547.4, 562.3, 528.5, 694.9, 596.4, 551.7),
            (2.31, 2.32, 2.51, 2.19, 2.54, 1.83),
        ),
        Row(
            "YOLOv4 (32FP)",
            "yolov4",
            (742.3, 761.4, 699.7, 803.8, 783.1, 741.3),
            (2.64, 2.56, 2.73, 2.48, 2.83, 1.97),
            execution="dtype=float32",
        ),
        Row(
            "YOLOv4-tiny (batch 1)",
            "yolov4_tiny",
            (43.7, 45.2, 41.9, 53.3, 49.6, 44.9),
            (1.67, 1.72, 2.12, 1.93, 2.41, 1.04),
        ),
        Row(
            "YOLOv4-tiny (batch 4)",
            "yolov4_tiny",
            (38.8, 38.9, 35.6, 51.1, 45.2, 39.7),
            (1.69, 1.74, 2.16, 1.91, 2.43, 1.01),
            batch=4,
        ),
        Row(
            "Resnet-50",
            "resnet50",
            (12.1, 13.9, 12.2, 18.7, 15.3, 13.4),
            (1.66, 1.59, 1.89, 1.67, 1.74, 0.82),
        ),
        Row(
            "Resnet-34",
            "resnet34",
            (11.9, 10.1, 10.8, 16.2, 14.1, 11.3),
            (1.68, 1.61, 1.96, 1.72, 1.81, 0.91),
        ),
    ),
    "TVM",
    1.305,
)

A310 = Board(
    "Atlas 200DK (A310)",
    "a310",
    ("APOLLO", "AKG", "PCGC"),
    (
        Row("YOLO-X-nano", "yolox_nano", (28.3, 25.4, 28.4), (4.83, 4.55, 2.74)),
        Row("YOLO-X-tiny", "yolox_tiny", (30.4, 27.0, 30.4), (4.96, 4.91, 2.23)),
        Row("YOLO-X-s", "yolox_s", (26.5, 23.3, 26.4), (5.22, 4.98, 2.51)),
        Row("YOLO-X-x", "yolox_x", (100.5, 95.2, 100.4), (5.31, 4.76, 3.19)),
        Row("YOLO-v5-s", "yolov5s", (55.0, 52.4, 55.7), (5.15, 4.81, 3.04)),
        Row("YOLO-v5-x", "yolov5x", (103.1, 101.5, 103.8), (5.10, 4.79, 3.08)),
    ),
    "AKG",
    0.665,
)

FRAMES_PER_S = ((31, 32, 36), (79, 81, 87))
"""Of table 2, by row; its times follow from them."""
GOPS_PER_W = (97.9, 100.4, 128.1)
"""Of table 2, by planner: the same for both rows, as table 1 says of PCGC."""
ZCU102 = Board(
    "ZCU102",
    "zcu102{dtype=int8}",
    ("Xilinx DPU", "TVM (VTA)", "PCGC"),
    (
        Row("YOLOv5, 1024x1024", "yolov5s", tuple(1e3 / fps for fps in FRAMES_PER_S[0]), (4.49, 4.83, 3.15)),
        Row(
            "YOLOv5, 640x512",
            "yolov5s",
            tuple(1e3 / fps for fps in FRAMES_PER_S[1]),
            (4.52, 4.68, 2.82),
            width=640,
            height=512,
        ),
    ),
    "TVM (VTA)",
    0.661,
)

BOARDS = (ZCU102, NANO, A310)


def mean(values: Sequence[float]) -> float:
    """The average."""
    return statistics.mean(values)


PRINTED = (
    Printed("Figure 1", "compilers of deep learning", "A survey of other compilers, without results."),
    Printed("Figure 2", "overview of PCGC", DRAWING),
    Printed("Figure 3", "the semantic tree of a network", DRAWING),
    Printed("Figure 4", "rules of fusion"),
    Printed("Figure 5", "operators in parallel", DRAWING),
    Printed("Figure 6", "how the cost model is made", DRAWING),
    Printed("Figure 7", "how subgraphs are cut again", DRAWING),
    Printed("Figure 8", "example 1"),
    Printed("Figure 9", "example 2"),
    Printed("Figure 10", "example 3"),
    Printed("Figure 11", "example 4"),
    Printed("Figure 12", "example 5"),
    Printed("Figure 13", "speed-up over Ansor on a V100"),
    Printed("Table 1", "YOLOv5 on a ZCU102"),
    Printed("Table 2", "accelerators running YOLOv5 on a ZCU102"),
    Printed("Table 3", "times on a Jetson nano"),
    Printed("Table 4", "powers on a Jetson nano"),
    Printed("Table 5", "times on an Atlas 200DK"),
    Printed("Table 6", "powers on an Atlas 200DK"),
)
"""Every table and figure."""
