"""What the paper says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.reproduce.base import DRAWING, Printed

DEVICES = ("v100", "rtx2080ti", "k80")
"""The machines of its experiments: sections 6 and 7, appendix B, table 3."""
MAIN_DEVICE = "v100"
FRAMEWORK_DEVICES = (MAIN_DEVICE, "rtx2080ti")
"""Of figures 7 and 15."""
BATCHES = (1, 32, 128)
"""Of table 3."""
FIGURE_11_BATCHES = (1, 16, 32, 64, 128)
PRUNINGS = tuple((r, s) for r in (1, 2, 3) for s in (3, 8))
"""Of figure 9: most operators of a group, most groups of a stage."""


@dataclass(frozen=True, slots=True)
class PublishedNetwork:
    """A network of table 2, and its largest block of table 1 by label: operators, width, the bound of
    transitions, the search space.

    `pruned_gain` is the gain over the sequential schedule with r = 1 and s = 8 that section 7.1 states.
    """

    name: str
    zoo_name: str
    num_blocks: int
    num_operators: int
    unit: str
    block: str
    width: int
    bound: float
    num_transitions: float
    num_schedules: float
    pruned_gain: float | None = None


NETWORKS = (
    PublishedNetwork("SqueezeNet", "ios_squeezenet", 10, 50, "Conv-Relu", "fire2_proj", 3, 2.2e2, 51, 1.3e2),
    PublishedNetwork(
        "Inception V3", "ios_inception_v3", 11, 119, "Conv-Relu", "E1", 6, 2.6e4, 4.9e3, 3.8e6, 1.59
    ),
    PublishedNetwork(
        "RandWire", "ios_randwire", 3, 120, "Relu-SepConv", "ws32_c616", 8, 3.7e9, 1.2e6, 9.2e22
    ),
    PublishedNetwork(
        "NasNet", "ios_nasnet_a", 13, 374, "Relu-SepConv", "first1", 8, 5.2e6, 3.1e5, 7.2e12, 1.37
    ),
)
"""The quickest first, so that a share of them is a first look."""

TABLE_3_BATCHES: Mapping[tuple[int, int], float] = {
    (1, 1): 4.03, (1, 32): 4.50, (1, 128): 4.63,
    (32, 1): 29.21, (32, 32): 27.44, (32, 128): 27.93,
    (128, 1): 105.98, (128, 32): 103.74, (128, 128): 103.29,
}  # fmt: skip
"""Milliseconds of Inception V3 by the batch that it is executed with, then the one it is optimised for."""

TABLE_3_DEVICES: Mapping[tuple[str, str], float] = {
    ("k80", "k80"): 13.87, ("k80", "v100"): 14.65,
    ("v100", "k80"): 4.49, ("v100", "v100"): 4.03,
}  # fmt: skip
"""The same by devices."""

GAIN_RANGE = (1.1, 1.5)
"""IOS-Both over the sequential schedule, in section 6 and appendix B."""
BLOCK_GAINS = (2.3, 1.6)
"""Of figure 16's blocks the most, and of the whole network."""
LAST_BLOCK = (1.28, 1.08)
"""How much faster each schedule of figure 10 is on the batch that it is made for: 1, then 32."""

PRINTED = (
    Printed("Figure 1", "computation per convolution, number of convolutions, peak performance by year"),
    Printed("Figure 2", "three schedules of one block: time and utilisation of stages"),
    Printed("Figure 3", "a graph and a schedule of it", DRAWING),
    Printed("Figure 4", "endings of a graph", DRAWING),
    Printed("Figure 5", "the states and transitions of three operators"),
    Printed("Table 1", "how large the search is for the largest block of each network"),
    Printed("Table 2", "the networks"),
    Printed("Figure 6", "schedules compared at batch 1"),
    Printed("Figure 7", "frameworks compared at batch 1"),
    Printed("Figure 8", "active warps of the sequential schedule and of IOS's"),
    Printed("Figure 9", "optimised latency and cost of the search, by r and s"),
    Printed("Table 3", "schedules made for one batch or device on the others"),
    Printed("Figure 10", "the schedules of the last block for batch 1 and 32"),
    Printed("Figure 11", "throughput by batch"),
    Printed("Figure 12", "TVM-AutoTune and IOS compared"),
    Printed("Figure 13", "a graph whose search is as large as the bound"),
    Printed("Figure 14", "schedules compared on an RTX 2080 Ti"),
    Printed("Figure 15", "frameworks compared on an RTX 2080 Ti"),
    Printed("Figure 16", "gains block by block"),
)
"""Every table and figure."""

FIGURE_1 = (
    (2013, "VGG", "vgg16", 2330.0),
    (2015, "Inception V3", "ios_inception_v3", None),
    (2018, "NasNet", "ios_nasnet_a", 82.0),
)
"""Years, networks, those of the zoo, and Mflop of a convolution where the text prints them."""
PEAKS_TFLOP_PER_S: Mapping[str, float | None] = {"v100": 15.7, "rtx2080ti": None, "k80": None}

FIGURE_2: Mapping[str, tuple[float, float]] = {
    "Sequential": (0.48, 48.0),
    "Greedy": (0.37, 62.0),
    "IOS-Both": (0.33, 70.0),
}
"""Milliseconds and percent of the peak, by schedule."""
FIGURE_8_GAIN = 1.58
"""Active warps of IOS's schedule over those of the sequential one."""

_SCHEDULES = ("Sequential", "Greedy", "IOS-Merge", "IOS-Parallel", "IOS-Both")
SCHEDULES_MS: Mapping[str, Mapping[str, float]] = {
    "Inception V3": dict(zip(_SCHEDULES, (6.51, 4.62, 5.39, 4.11, 4.03), strict=True)),
    "RandWire": dict(zip(_SCHEDULES, (8.49, 6.27, 8.54, 6.02, 6.02), strict=True)),
    "NasNet": dict(zip(_SCHEDULES, (22.95, 16.78, 22.94, 16.04, 16.04), strict=True)),
    "SqueezeNet": dict(zip(_SCHEDULES, (0.86, 0.98, 0.74, 0.82, 0.73), strict=True)),
}
"""What figure 6 shows, from the authors' README (mit-han-lab/inter-operator-scheduler 492167c)."""
_FRAMEWORKS = ("Tensorflow", "Tensorflow-XLA", "TASO", "TVM-cuDNN", "TensorRT", "IOS")
FRAMEWORKS_MS: Mapping[str, Mapping[str, float]] = {
    "Inception V3": dict(zip(_FRAMEWORKS, (7.95, 9.95, 5.70, 4.88, 5.21, 4.03), strict=True)),
    "RandWire": dict(zip(_FRAMEWORKS, (12.06, 16.61, 8.42, 6.86, 8.33, 6.02), strict=True)),
    "NasNet": dict(zip(_FRAMEWORKS, (24.73, 34.66, 21.29, 26.87, 24.66, 16.04), strict=True)),
    "SqueezeNet": dict(zip(_FRAMEWORKS, (2.63, 4.08, 0.82, 0.90, 0.80, 0.73), strict=True)),
}
"""What figure 7 shows, from there."""
BATCH_GAINS: Mapping[int, float] = {
    1: 6.20 / 3.94, 16: 17.95 / 15.17, 32: 30.54 / 27.00, 64: 55.67 / 51.11, 128: 108.55 / 102.74,
}  # fmt: skip
"""What figure 11 shows of IOS over Sequential, by batch, from there."""
PRUNED_MS: Mapping[tuple[str, tuple[int, int]], float] = {
    ("Inception V3", (1, 3)): 4.22, ("Inception V3", (1, 8)): 4.06, ("Inception V3", (2, 3)): 4.02,
    ("Inception V3", (2, 8)): 3.99, ("Inception V3", (3, 3)): 3.99, ("Inception V3", (3, 8)): 3.96,
    ("NasNet", (1, 3)): 17.54, ("NasNet", (1, 8)): 16.54, ("NasNet", (2, 3)): 16.85,
    ("NasNet", (2, 8)): 16.09, ("NasNet", (3, 3)): 16.73, ("NasNet", (3, 8)): 15.91,
}  # fmt: skip
"""What figure 9 shows, by network and (r, s), from there."""
AUTO_TUNED_MS: Mapping[str, float] = {
    "Inception V3": 4.95, "RandWire": 5.26, "NasNet": 14.67, "SqueezeNet": 0.75,
}  # fmt: skip
"""What figure 12 shows of TVM-AutoTune, from there."""
GPU_HOURS: tuple[float, float] = (208.0, 3.0)
"""Of figure 12: to optimise the four networks by TVM, and by IOS."""
