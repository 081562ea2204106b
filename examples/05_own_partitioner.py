"""A partitioner of your own: one class, registered under a name, checked like the built-in ones.

Prints:

    chains{length=2}: 36 subgraphs, ... ns by estimate
    layerwise: 39 subgraphs, ... ns by estimate
    equal to the layerwise partition: True
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import tilewright as tw
from tilewright.ir.graph import Node, Value
from tilewright.partition import PARTITIONERS, Reason
from tilewright.partition.base import Partition, PartitionProblem, build_partition
from tilewright.planning import Budget, Provenance, option


@dataclass(frozen=True, slots=True)
class Chains:
    """Operators in a row, each read by the next one alone, form a kernel of no more than so many."""

    length: int = option(3, "Operators of a kernel, at most.")
    name: ClassVar[str] = "chains"

    def solve(self, problem: PartitionProblem, budget: Budget) -> Partition:
        """One look at each operator; the budget is not needed."""
        needed = set(problem.graph.outputs)
        chains: list[list[Node]] = []
        for node in problem.graph.nodes:
            last = chains[-1] if chains else []
            feeds = bool(last) and last[-1].output not in needed and last[-1].output.users == (node,)
            if feeds and len(last) < self.length:
                last.append(node)
            else:
                chains.append([node])

        def reason(producer: Node, consumer: Node, value: Value, fused: bool) -> Reason:
            return Reason.CHAIN if fused else Reason.LIMIT

        return build_partition(problem, chains, reason, Provenance(self.name, num_evaluations=1))


# A package of yours would name it as an entry point in the group "tilewright.partition" instead.
PARTITIONERS.add("chains", Chains)

model = tw.zoo.build("squeezenet1_1", image=64)
for row in tw.plan(model, "cpu", partition="chains{length=2},layerwise", schedule="sequential").combinations:
    print(f"{row.partition}: {row.num_subgraphs} subgraphs, {row.cost:,.0f} ns by estimate")

# The compiler checked the partition with code that knows no partitioner.
feed = tw.zoo.example_inputs(model)
(ours,) = tw.compile(model, partition="chains").run(None, feed)
(theirs,) = tw.compile(model, partition="layerwise").run(None, feed)
print("equal to the layerwise partition:", np.allclose(ours, theirs, rtol=1e-4, atol=1e-6))
