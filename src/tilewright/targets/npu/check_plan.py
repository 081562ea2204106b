"""Every independent check of a plan of an accelerator: its splits, instances, order, places and run."""

from __future__ import annotations

from tilewright.hardware.machine import Machine
from tilewright.memory.check_scopes import check_scopes
from tilewright.partition.check_splits import check_splits
from tilewright.planning import Violation
from tilewright.schedule.check_instances import Chains, check_bindings, check_instances, check_order
from tilewright.targets.npu.check_run import check_run
from tilewright.targets.npu.plan import SimulatedPlan


def check_plan(planned: SimulatedPlan, machine: Machine) -> tuple[Violation, ...]:
    """Everything wrong with a simulated plan: nothing, if it is valid.

    Each step is checked where those before it are right, as it is made of them.
    """
    instances, bindings = planned.instances, planned.bindings
    chains = Chains(instances)
    return (
        check_splits(planned.partition, instances.maps)
        or check_instances(instances, chains)
        or check_order(instances, planned.order)
        or check_bindings(instances, bindings)
        or check_scopes(planned.scopes, bindings, chains)
        or check_run(planned, machine)
    )
