"""The members of every family: which class a name stands for, without loading any of them.

This is the table of contents of planners, passes and targets. What reads a name (a flag's help, a completion,
a plan) needs nothing but this file; plugins join through the entry points of each family's group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.registry import Registry


def _family(kind: str, package: str, protocol: str, members: Mapping[str, str]) -> Registry[Any]:
    """The registry of a package; the paths of its members begin there."""
    home = f"tilewright.{package}"
    paths = {name: f"{home}.{path}" for name, path in members.items()}
    return Registry(kind, entry_point_group=home, protocol=f"{home}.base:{protocol}", members=paths)


PARTITIONERS = _family(
    "partitioner",
    "partition",
    "Partitioner",
    {
        "none": "none:NonePartitioner",
        "layerwise": "layerwise:Layerwise",
        "graphturbo": "graphturbo:GraphTurbo",
        "ago": "ago:Ago",
        "pcgc": "pcgc:Pcgc",
        "random": "random:RandomPartitioner",
    },
)

SCHEDULERS = _family(
    "scheduler",
    "schedule",
    "Scheduler",
    {
        "sequential": "sequential:Sequential",
        "greedy": "greedy:Greedy",
        "horizontal-fusion": "horizontal_fusion:HorizontalFusion",
        "breadth-first": "instance_orders:BreadthFirst",
        "depth-first": "instance_orders:DepthFirst",
        "depth-or-breadth-first": "instance_orders:DepthOrBreadthFirst",
        "min-delta": "instance_orders:MinDelta",
        "exact-order": "instance_orders:ExactOrder",
        "core-groups": "core_orders:CoreGroupsOrder",
        "core-pipeline": "core_orders:CorePipeline",
        "ios": "ios.planner:Ios",
        "virtual-units": "virtual_units:VirtualUnits",
        "random": "random:RandomScheduler",
    },
)

MEMORY_PLANNERS = _family(
    "memory planner",
    "memory",
    "MemoryPlanner",
    {
        "arena": "arena:ArenaPlanner",
        "first-fitting": "first_fitting:FirstFitting",
        "greedy-by-size": "greedy_by_size:GreedyBySize",
        "largest-size": "spilling:LargestSize",
        "longest-liveness": "spilling:LongestLiveness",
        "naive": "naive:NaivePlanner",
        "next-fit": "next_fit:NextFit",
        "random": "random:RandomPlanner",
    },
)

MAPPERS = _family(
    "mapper",
    "mapping",
    "Mapper",
    {
        "cosa": "cosa:Cosa",
        "cosa-paper": "cosa:CosaPaper",
        "exact": "exact:Exact",
        "hybrid": "hybrid:Hybrid",
        "paper": "paper:Paper",
        "random": "random:Random",
    },
)

PASSES = _family(
    "pass",
    "passes",
    "Pass",
    {
        "merge-quantization": "merge_quantization:MergeQuantization",
        "recognise-quantized": "recognise_quantized:RecogniseQuantized",
        "fold-constants": "fold_constants:FoldConstants",
        "canonicalise": "canonicalise:Canonicalise",
        "common-subexpressions": "common_subexpressions:CommonSubexpressions",
        "eliminate-identity": "eliminate_identity:EliminateIdentity",
        "loop-recurrent": "loop_recurrent:LoopRecurrent",
        "expand-recurrent": "expand_recurrent:ExpandRecurrent",
        "merge-reshapes": "merge_reshapes:MergeReshapes",
        "merge-transposes": "merge_transposes:MergeTransposes",
        "merge-slices": "merge_slices:MergeSlices",
        "expand-transforms": "expand_transforms:ExpandTransforms",
        "fold-pad": "fold_pad:FoldPad",
        "fold-batch-norm": "fold_batch_norm:FoldBatchNorm",
        "fold-scale-shift": "fold_scale_shift:FoldScaleShift",
        "fold-bias": "fold_bias:FoldBias",
        "recognise-gelu": "recognise_gelu:RecogniseGelu",
        "recognise-layer-norm": "recognise_layer_norm:RecogniseLayerNorm",
        "recognise-rms-norm": "recognise_rms_norm:RecogniseRmsNorm",
        "recognise-softmax": "recognise_softmax:RecogniseSoftmax",
        "recognise-silu": "recognise_silu:RecogniseSilu",
        "recognise-hard-swish": "recognise_hard_swish:RecogniseHardSwish",
        "recognise-mish": "recognise_mish:RecogniseMish",
        "recognise-attention": "recognise_attention:RecogniseAttention",
        "recognise-groups": "recognise_groups:RecogniseGroups",
        "recognise-cache": "recognise_cache:RecogniseCache",
        "dead-code": "dead_code:DeadCode",
    },
)

TARGETS = _family(
    "target",
    "targets",
    "Target",
    {
        "cpu": "cpu.target:CpuTarget",
        "cuda": "cuda.target:CudaTarget",
        "interpreter": "interpreter.target:InterpreterTarget",
        "null": "null.target:NullTarget",
    },
)

BODIES: Registry[Any] = Registry(
    "compiler of bodies", members={"compiled": "tilewright.specialise.control_flow:CompiledBodies"}
)
"""What compiles the bodies of control flow, for targets that call them: the flow above targets, once more."""

FAMILIES: Mapping[str, Registry[Any]] = {
    "partition": PARTITIONERS,
    "schedule": SCHEDULERS,
    "memory": MEMORY_PLANNERS,
    "mapping": MAPPERS,
    "passes": PASSES,
    "targets": TARGETS,
}
"""By the package in which the members are, which is the end of the group of entry points too."""
