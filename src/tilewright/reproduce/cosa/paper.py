"""What the paper says: its layers, its tables and figures, its numbers."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.reproduce.base import DRAWING, NOTATION, Printed

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
    Printed("Table IV", "which dims a tensor depends on, and which levels hold it"),
    Printed("Figure 5", "patterns of traffic"),
    Printed("Table V", "the accelerator"),
    Printed("Table VI", "time to solution"),
    Printed("Figure 6", "speed-up over Random, analytical model"),
    Printed("Figure 7", "energy of Random / energy, analytical model"),
    Printed("Figure 8", "CoSA's objective taken apart"),
    Printed("Figure 9", "speed-up over Random on other machines"),
    Printed("Figure 10", "speed-up over Random, network on chip"),
    Printed("Figure 11", "speed-up over TVM on a K80"),
)
"""Every table and figure."""


TABLE_6: Mapping[str, tuple[float, float, float]] = {
    "CoSA": (4.2, 1, 1),
    "Random": (4.6, 20_000, 5),
    "Hybrid": (379.9, 67_000_000, 16_000),
}
"""Seconds, samples and evaluations for a layer, by mapper."""

TABLE_4_DIMS: Mapping[str, str] = {"W": "RSCK", "IA": "RSPQCN", "OA": "PQKN"}
"""Matrix A: the dims that a tensor depends on; of inputs R and S through windows, which it marks as `-`."""
TABLE_4_LEVELS: Mapping[str, tuple[str, ...]] = {
    "W": ("Registers", "WeightBuffer", "DRAM"),
    "IA": ("Registers", "InputBuffer", "GlobalBuffer", "DRAM"),
    "OA": ("Registers", "AccumulationBuffer", "GlobalBuffer", "DRAM"),
}
"""Matrix B: the levels that hold a tensor."""

TABLE_5: Mapping[str, float] = {
    "multipliers of an element": 64,
    "elements": 16,
    "bits of inputs and weights": 8,
    "bits of partial sums": 24,
    "registers of an element, B": 64,
    "accumulation buffer of an element, KiB": 3,
    "weight buffer of an element, KiB": 32,
    "input buffer of an element, KiB": 8,
    "global buffer, KiB": 128,
    "flit, bits": 64,
}
"""The baseline accelerator; routers are wormhole with X-Y routing and multicast."""

FIGURE_11_OVER_TVM = 1.10
"""Geometric mean over the layers of ResNet-50."""
FIGURE_11_SECONDS: tuple[float, float] = (0.02, 50.0)
"""For a layer: CoSA's, and TVM's for 50 trials."""
