"""The paper's own numbers: its networks and what its tables say of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.reproduce.base import DRAWING, Printed

MACHINE = "stcp920"


@dataclass(frozen=True, slots=True)
class PublishedNetwork:
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


NETWORKS: tuple[PublishedNetwork, ...] = (
    PublishedNetwork("A", "ResNet-50", "resnet50", {}, 2, 16, 1064, (1, 11, 284), 58, 139),
    PublishedNetwork("B", "BERT-128", "bert_base", {"sequence": 128}, 4, 8, 512, (1, 0, 305), 242, 199),
    PublishedNetwork("C", "BERT-256", "bert_base", {"sequence": 256}, 2, 4, 412, (1, 110, 240), 242, 224),
    PublishedNetwork(
        "D", "BERT-384 large", "bert_large", {"sequence": 384}, 1, 2, 36, (1, 75, 967), 515, 699
    ),
    PublishedNetwork("E", "BERT-512", "bert_base", {"sequence": 512}, 1, 2, 324, (1, 76, 337), 242, 282),
    PublishedNetwork("F", "DLRM", "dlrm_s", {}, 64, 256, 131_000, (1, 0, 75), 76, 23),
    PublishedNetwork("G", "MobileNet-v2", "mobilenet_v2", {}, 2, 32, 1416, (1, 3, 608), 56, 248),
    PublishedNetwork("H", "Vision Transformer", "vit_b_16", {}, 4, 8, 40, (24, 60, 340), 214, 340),
    PublishedNetwork("I", "DenseNet", "densenet121", {}, 4, 8, 456, (0, 3, 389), 247, 189),
    # How long its sentences are, the paper does not say: here 512 frames.
    PublishedNetwork("J", "Conformer", "conformer_s", {}, 1, 3, 184, (4, 813, 250), 1054, 296),
)
Pair = tuple[float | None, float | None]
TABLE_1: tuple[str, Mapping[str, int], Mapping[int, tuple[Pair, Pair]]] = (
    "bert_base",
    {"sequence": 128},
    {
        2: ((138.0, 138.0), (6.79, 6.79)),
        4: ((512.0, 512.0), (9.48, 9.48)),
        8: ((None, 4052.0), (None, 7.67)),
        16: ((None, 2716.0), (None, 23.58)),
    },
)
"""The network of table 1, and by samples for a cluster TVM's and GraphTurbo's sentences per second, then
their milliseconds."""

FIGURE_16: tuple[tuple[str, str, Mapping[str, int], str, tuple[int, ...]], ...] = (
    ("ResNet-50 (FP16)", "resnet50", {}, "float16", (1, 2, 4, 8, 16)),
    ("ResNet-50 (INT8)", "resnet50", {}, "int8", (1, 2, 4, 8, 16)),
    ("BERT-128", "bert_base", {"sequence": 128}, "float16", (4, 8, 16)),
)
"""Networks of figure 16: name, the zoo's with its size, what they are lowered to, samples on the x axis."""

TABLE_5: Mapping[int, tuple[float, float, float]] = {
    64: (0.99, 0.84, 0.83),
    128: (1.88, 1.62, 1.50),
    256: (3.51, 3.04, 2.83),
    512: (6.76, 5.83, 5.44),
}
"""Milliseconds of ResNet18-Tailor on an A100 by images: kernel by kernel, pairs fused, pairs in slices."""

PRINTED = (
    Printed("Figure 1", "the hardware abstraction", DRAWING),
    Printed("Figure 2", "ResNet-50 by network, block and layer", DRAWING),
    Printed("Figure 3", "use of the local buffer by two orders of images, in principle", DRAWING),
    Printed("Figure 4", "patterns of merging", DRAWING),
    Printed("Figure 5", "blocks of ResNet-50 merged", DRAWING),
    Printed("Figure 6", "instances of the four stages", DRAWING),
    Printed("Figure 7", "orders of the instances, their first steps", DRAWING),
    Printed("Figure 8", "results of instances concatenated", DRAWING),
    Printed("Figure 9", "operators that move data inserted", DRAWING),
    Printed("Figure 10", "an instance as one kernel", DRAWING),
    Printed("Figure 11", "loop fusion within a layer", DRAWING),
    Printed("Figure 12", "liveness of tensors", DRAWING),
    Printed("Table 1", "BERT-128 by samples for a cluster"),
    Printed("Table 2", "networks, and TVM's throughput"),
    Printed("Figure 13", "instruction scheduling across layers", DRAWING),
    Printed("Figure 14", "throughput over TVM's"),
    Printed("Figure 15", "what each optimisation adds"),
    Printed("Table 3", "buffers by level"),
    Printed("Figure 16", "how busy units are, by samples for a cluster"),
    Printed("Figure 17", "how busy units are in the stages of ResNet-50"),
    Printed("Table 4", "time of compiling"),
    Printed("Figure 18", "orders of ResNet18-Tailor", f"{DRAWING} Its three orders are those of table 5."),
    Printed("Table 5", "ResNet18-Tailor on an A100"),
)
"""Every table and figure."""
