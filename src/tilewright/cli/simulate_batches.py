"""What `tilewright simulate --batch` asks for: one batch, the best, or runs of several numbers of samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tilewright.cli.flags import parsed_shapes
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.hardware.machine import Machine
    from tilewright.ir.graph import Graph
    from tilewright.targets.npu.plan import Planned, Planner

Wanted = int | tuple[int, ...] | Literal["auto"] | None
"""One number, several, the best one, or the model's own."""
Solve = Callable[["Planner"], "Planned"]


def parsed_batch(text: str | None) -> Wanted:
    """What `--batch` says.

    Raises:
        UsageError: neither `auto` nor numbers above 0.
    """
    if text is None:
        return None
    if text == "auto":
        return "auto"
    words = text.split(",")
    if not all(word.strip().isdecimal() and 1 <= int(word) <= 1 << 20 for word in words):
        raise UsageError(
            f"--batch {text}: expected auto, a number of samples, at least 1, or several: 6,12,24."
        )
    numbers = tuple(int(word) for word in words)
    return numbers[0] if len(numbers) == 1 else numbers


class Batches:
    """Plans of one model for several batches. Seconds are remembered; networks are too large."""

    def __init__(self, path: Path, shapes: str | None, machine: Machine, solve: Solve, update: Any) -> None:
        self.path, self.shapes, self.machine = path, shapes, machine
        self.solve, self.update = solve, update
        self._seconds: dict[int, float] = {}

    def planner(self, samples: int) -> Planner:
        """A planner for so many samples."""
        from tilewright.targets.npu.plan import Planner

        self.update(f"{samples} samples for each cluster", 0, 1)
        return Planner(network(self.path, self.shapes, samples), self.machine)

    def seconds(self, samples: int) -> float:
        """How long a batch takes as the recipe plans it.

        Raises:
            InfeasibleMapping: it does not fit main memory.
        """
        if samples not in self._seconds:
            self._seconds[samples] = self.solve(self.planner(samples)).simulation.time_s
        return self._seconds[samples]

    def throughputs(self, max_latency_s: float | None) -> list[tuple[int, float]]:
        """Batches that are worth it, with the samples per second of all clusters.

        Raises:
            InfeasibleMapping: not even one sample fits.
            UsageError: one sample takes longer than `max_latency_s`.
        """
        from tilewright.errors import InfeasibleMapping
        from tilewright.targets.npu.batches import MOST_SAMPLES, candidates
        from tilewright.targets.npu.plan import GRAPHTURBO_RECIPE

        partition = self.planner(MOST_SAMPLES).partition(GRAPHTURBO_RECIPE.partitioner)
        found: list[tuple[int, float]] = []
        for samples in candidates(partition, MOST_SAMPLES):
            try:
                time_s = self.seconds(samples)
            except InfeasibleMapping:
                if not found:
                    raise
                break
            if max_latency_s is not None and time_s > max_latency_s:
                if not found:
                    raise UsageError(
                        f"--max-latency {max_latency_s * 1e3:g}: a batch of one takes {time_s * 1e3:.3g} ms."
                    )
                break
            found.append((samples, samples * self.machine.num_clusters / time_s))
        return found


def network(path: Path, shapes: str | None, batch: int | None) -> Graph:
    """The network after the usual passes, with its batch."""
    import tilewright as tw
    from tilewright.compiler import plan
    from tilewright.options import Options

    fixed = dict(parsed_shapes(shapes))
    if batch is not None:
        fixed |= {name: shape for name, shape in _batched(path, batch).items() if name not in fixed}
    return plan(tw.load(path, shapes=fixed).graph, Options()).program.graph


def _batched(path: Path, batch: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the model's inputs with another first axis; weights that are listed among them stay.

    Raises:
        UsageError: an input has none, or other axes that are not fixed.
    """
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    weights = {weight.name for weight in (*graph.initializer, *(s.values for s in graph.sparse_initializer))}
    found = {}
    for value in graph.input:
        if value.name in weights:
            continue
        dims = value.type.tensor_type.shape.dim
        rest = [d.dim_value for d in dims[1:]]
        if not dims or any(extent < 1 for extent in rest):
            raise UsageError(
                f"{path}: input {value.name!r} has axes that --batch does not fix; give --shapes."
            )
        if dims[0].dim_value not in (0, batch):
            raise UsageError(
                f"{path}: --batch {batch}: the model fixes input {value.name!r} to "
                f"{dims[0].dim_value} samples; export it with its first axis open."
            )
        found[value.name] = (batch, *rest)
    return found
