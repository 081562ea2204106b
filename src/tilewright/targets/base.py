"""What a target is: it says which operators it runs, and turns a program into something that runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tilewright.ir.graph import Node
from tilewright.options import Options
from tilewright.partition.base import Partition, PartitionProblem
from tilewright.program import Program
from tilewright.progress import Progress
from tilewright.steps import MemoryInfo, StepInfo, TuningInfo

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a target runs an operator. `reason` says why not, or with which restriction it does.

    `is_on_host`: it runs in Python through the reference implementation instead of generated code.

    >>> str(Support.no("group=3 needs channels % 3 == 0"))
    'no: group=3 needs channels % 3 == 0'
    """

    is_supported: bool
    reason: str = ""
    is_on_host: bool = False

    @classmethod
    def yes(cls, reason: str = "") -> Support:
        """It runs; `reason` tells what is worth knowing."""
        return cls(True, reason)

    @classmethod
    def on_host(cls, reason: str) -> Support:
        """It runs in Python, because there is no code for it."""
        return cls(True, reason, is_on_host=True)

    @classmethod
    def no(cls, reason: str) -> Support:
        """It does not run."""
        return cls(False, reason)

    def __bool__(self) -> bool:
        return self.is_supported

    def __str__(self) -> str:
        verdict = "yes" if self.is_supported else "no"
        return f"{verdict}: {self.reason}" if self.reason else verdict


class Executable(Protocol):
    """A compiled program. Safe to run from several threads at a time."""

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name for inputs by name.

        Raises:
            UsageError: the feed does not fit the program's inputs.
        """
        ...


class Code(Protocol):
    """Code generated for a program, before it is loaded: what an artifact stores."""

    @property
    def program(self) -> Program:
        """The program as it was generated: with the forms that its subgraphs really have."""
        ...

    @property
    def steps(self) -> tuple[StepInfo, ...]:
        """What runs, in order."""
        ...

    @property
    def memory_info(self) -> MemoryInfo:
        """What memory it needs."""
        ...

    def load(self, num_threads: int | None) -> Executable:
        """Make it run in this process."""
        ...


@runtime_checkable
class Target(Protocol):
    """One way to run programs."""

    @property
    def name(self) -> str:
        """The name in the registry."""
        ...

    def supports(self, node: Node) -> Support:
        """Whether the target runs this node; never raises for a valid node."""
        ...

    def compile(self, program: Program) -> Executable:
        """Make the program run.

        Raises:
            UnsupportedOp: a node is not supported; names it and says why.
        """
        ...


@runtime_checkable
class RefiningTarget(Target, Protocol):
    """A target that decides which subgraphs of a partition one kernel computes block by block."""

    def refine(self, problem: PartitionProblem, partition: Partition, options: Options) -> Partition:
        """The partition with these decisions in it: chains of subgraphs merged, their forms and reasons."""
        ...


@runtime_checkable
class GeneratingTarget(Target, Protocol):
    """A target that generates code first and loads it later, here or in another process."""

    def generate(self, program: Program, *, progress: Progress | None = None) -> Code:
        """Generate everything.

        Raises:
            UnsupportedOp: a node is not supported; names it and says why.
            BudgetExceeded: the program needs more memory than its options allow.
        """
        ...


@runtime_checkable
class TuningTarget(GeneratingTarget, Protocol):
    """A target whose kernels can be made in several ways, of which measurements know the best."""

    def tune(
        self, code: Any, *, anew: bool = False, afresh: bool = False, progress: Progress | None = None
    ) -> TuningInfo | None:
        """How to make the kernels of a program for which `generate` made `code`; None without a budget.

        What an earlier search found counts, unless `anew` asks for another search, which goes on from the
        earlier one's measurements, or `afresh` for one that measures all again.
        """
        ...


def describe_unsupported(target: Target, program: Program) -> tuple[str, ...]:
    """One line for every node that the target declines."""
    return tuple(
        f"{node.op_type} {node.name!r}: {support.reason}"
        for node in program.graph.nodes
        if not (support := target.supports(node))
    )
