"""What was generated, as facts for reports and artifacts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.ir.control_flow import CONTROL_FLOW
from tilewright.ir.graph import Node
from tilewright.partition.base import Partition
from tilewright.steps import KERNEL_PREFIX, KernelInfo, StepInfo
from tilewright.targets.cpu.lower.lowered import HostOperator, KernelLaunch, LoweredModel

EstimateNs = Callable[[KernelLaunch | HostOperator], float]


def describe_steps(
    lowered: LoweredModel, partition: Partition, estimate_ns: EstimateNs
) -> tuple[StepInfo, ...]:
    """Every launch in order, numbered over all steps, with its estimate."""
    steps: list[StepInfo] = []
    count = 0
    for index, step in enumerate(lowered.steps):
        launches: tuple[KernelLaunch | HostOperator, ...] = (
            (step,) if isinstance(step, HostOperator) else step.launches
        )
        kernels = tuple(
            replace(
                _kernel(f"{KERNEL_PREFIX}{count + i}", x, partition), estimate_ns=round(estimate_ns(x), 1)
            )
            for i, x in enumerate(launches)
        )
        count += len(kernels)
        steps.append(StepInfo(index, kernels))
    return tuple(steps)


def _kernel(identifier: str, launch: KernelLaunch | HostOperator, partition: Partition) -> KernelInfo:
    if isinstance(launch, HostOperator):
        return KernelInfo(
            id=identifier,
            symbol=launch.node.op_type,
            template="bodies" if launch.node.op_type in CONTROL_FLOW else "host",
            nodes=(launch.node.name,),
            subgraph_id=_subgraph_id((launch.node,), partition),
            notes=(launch.reason,),
        )
    kernel = launch.kernel
    return KernelInfo(
        id=identifier,
        symbol=kernel.symbol,
        template=kernel.template if launch.nodes else "reorder",
        nodes=tuple(node.name for node in launch.nodes),
        subgraph_id=_subgraph_id(launch.nodes, partition),
        num_chunks=kernel.num_chunks,
        macs=kernel.macs,
        scratch_bytes=kernel.scratch_bytes,
        plan="" if kernel.plan is None else str(kernel.plan),
        notes=(
            *kernel.notes,
            *(() if kernel.choice is None else (f"measured to be the best: {kernel.choice}",)),
        ),
    )


def _subgraph_id(nodes: tuple[Node, ...], partition: Partition) -> int | None:
    return partition.subgraph_of(nodes[0]).id if nodes else None
