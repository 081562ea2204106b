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

_PIPELINE = (
    "merge-quantization",
    "recognise-quantized",
    "fold-constants",
    "expand-transforms",
    "canonicalise",
    "common-subexpressions",
    "eliminate-identity",
    "loop-recurrent",
    "expand-recurrent",
    "merge-reshapes",
    "merge-transposes",
    "merge-slices",
    "fold-pad",
    "fold-batch-norm",
    "fold-scale-shift",
    "fold-bias",
    "recognise-gelu",
    "recognise-layer-norm",
    "recognise-rms-norm",
    "recognise-softmax",
    "recognise-silu",
    "recognise-hard-swish",
    "recognise-mish",
    "recognise-attention",
    "recognise-groups",
    "recognise-cache",
    "dead-code",
)
"""Passes in the order in which they run. Quantised layers come first: folding would turn their weights into
floats."""


def _path_of_pass(name: str) -> str:
    """The class of a pass, whose file and class are called as it is."""
    return f"{name.replace('-', '_')}:{''.join(word.capitalize() for word in name.split('-'))}"


PASSES = _family("pass", "passes", "Pass", {name: _path_of_pass(name) for name in _PIPELINE})

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
