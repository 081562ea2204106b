"""What kernels of two programs of one graph take, which run in turns in a process of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.errors import UsageError
from tilewright.ir.graph import Node
from tilewright.program import Program
from tilewright.targets.cpu.lower.lowered import HostOperator
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.cpu.tune.bench import MAX_WEIGHT_BYTES, ModelBench, random_feed
from tilewright.targets.cpu.tune.measuring import measuring_pool, packed
from tilewright.tuning.workers import Effort, Failed, MeasuringPool, PackedCode

_EFFORT = Effort(min_rounds=5, max_rounds=200, seconds=1.5)
_LIMIT_S = 60.0

KernelTimes = Mapping[tuple[Node, ...], Sequence[float]]
"""By the nodes of a subgraph what its kernels take in ns, a value for each round."""


@dataclass(frozen=True, slots=True, eq=False)
class _Built:
    """Code with stamps, and for each step the nodes of the subgraph that it is of."""

    code: PackedCode
    owners: tuple[tuple[Node, ...] | None, ...]

    def times(self, rounds_ns: Sequence[Sequence[float]]) -> KernelTimes:
        times: dict[tuple[Node, ...], list[float]] = {}
        for index, owner in enumerate(self.owners):
            if owner is not None:
                known = times.setdefault(owner, [0.0] * len(rounds_ns))
                times[owner] = [a + steps[index] for a, steps in zip(known, rounds_ns, strict=True)]
        return times


@dataclass(slots=True, eq=False)
class KernelBench:
    """Runs programs beside each other; a process that crashes or hangs costs its two programs only."""

    target: CpuTarget
    effort: Effort = _EFFORT
    open_pool: Callable[[], MeasuringPool] = measuring_pool
    _pool: MeasuringPool | None = field(init=False, default=None)

    def __enter__(self) -> KernelBench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def paired(self, first: Program, second: Program) -> tuple[KernelTimes, KernelTimes]:
        """What the kernels of both take in the same rounds; subgraphs that run in Python are left out.

        Raises:
            UsageError: they cannot be measured; says why.
        """
        built = [self._built(program) for program in (first, second)]
        self._pool = self._pool or self.open_pool()
        bench = ModelBench(self._pool, random_feed(first), {}, 0.0, _LIMIT_S)
        (found,) = bench.measure([built[0].code], built[1].code, self.effort)
        if isinstance(found, Failed):
            raise UsageError(f"{first.graph.name}: its kernels cannot be measured: {found.detail}")
        assert found.baseline is not None
        return built[0].times(found.candidate.steps_ns), built[1].times(found.baseline.steps_ns)

    def _built(self, program: Program) -> _Built:
        code = self.target.generate(program, profile=True)
        if code.weight_bytes > MAX_WEIGHT_BYTES:
            raise UsageError(
                f"{program.graph.name}: its constants take {code.weight_bytes} bytes, more than "
                f"{MAX_WEIGHT_BYTES}, of which the process that measures has several copies."
            )
        home = {node: s.nodes for s in code.program.partition.subgraphs for node in s.nodes}
        owners: list[tuple[Node, ...] | None] = []
        in_python = {home[step.node] for step in code.lowered.steps if isinstance(step, HostOperator)}
        for step in code.lowered.steps:
            nodes = () if isinstance(step, HostOperator) else step.launches[0].nodes
            owner = {home[node] for node in nodes if node in home}
            owners.append(owner.pop() if len(owner) == 1 and not owner & in_python else None)
        return _Built(packed(code, until_next=True), tuple(owners))
