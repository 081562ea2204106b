"""This processor's code on its way to a process that measures it, and in that process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import UsageError
from tilewright.files import Bytes
from tilewright.hardware.instruction_sets import INSTRUCTION_SETS
from tilewright.hardware.probe import processor_facts, resolve_threads
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.text import parse_graph, print_graph
from tilewright.program import Program
from tilewright.records import dataclass
from tilewright.targets.cpu.image.origin import CONSTANTS
from tilewright.targets.cpu.image.packed_code import packed_image
from tilewright.targets.cpu.image.stored import CpuStore
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.runtime.executable import CpuExecutable, TensorSpec
from tilewright.targets.cpu.runtime.pool_ir import INTERFACE
from tilewright.targets.cpu.tune.context import host_fingerprints
from tilewright.targets.cpu.tune.race import time_ns
from tilewright.targets.named_constants import named_constants, resolved_constants
from tilewright.tuning.machine_lock import MachineLock
from tilewright.tuning.measuring import RunTime, serve
from tilewright.tuning.ray_fleet import Measuring, RayFleet, ray_fleet
from tilewright.tuning.runners import Greeting, RunnerFleet, Wanted
from tilewright.tuning.workers import LocalMeasuringPool, PackedCode

if TYPE_CHECKING:
    from tilewright.targets.cpu.image.code import CpuCode


# Parts beside those of the code, whose names have a folder or none.
_GRAPH, _TENSOR = "program/graph.txt", "program/tensors/"


def measuring_pool() -> LocalMeasuringPool:
    """A process that measures what `packed` gives."""
    return LocalMeasuringPool(__name__)


def cluster_fleet(workers: str, isa: Isa, fingerprint: str) -> RayFleet:
    """The machines of a cluster that have a fingerprint (`PlanContext`), or where that is empty run code of
    an instruction set; they measure what `packed` gives.

    Raises:
        NoCluster: there are none.
    """
    wanted = Wanted(INTERFACE, isa.name, fingerprint)
    return ray_fleet(workers, Measuring(__name__, f"{greeting.__module__}:{greeting.__name__}", wanted))


def runner_fleet(commands: Sequence[str], isa: Isa, fingerprint: str) -> RunnerFleet:
    """The same of processes that commands start.

    Raises:
        NoRunner: there are none.
    """
    return RunnerFleet(commands, Wanted(INTERFACE, isa.name, fingerprint))


def greeting() -> list[bytes]:
    """What a process says of itself that measures here."""
    facts = processor_facts()
    names = [known.name for known in INSTRUCTION_SETS if known.is_in(facts)]
    return Greeting.of_host(INTERFACE, names, sorted(host_fingerprints()) if names else ()).texts()


def packed(code: CpuCode, *, until_next: bool = False) -> PackedCode:
    """Code as it travels; with the program where operators run in Python, or outputs are constants.

    Constants are a piece each, so that those that candidates share travel once. `until_next`: a step takes
    until the next one begins, so that what is between counts.
    """
    image, graph = code.image, code.program.graph
    stored = packed_image(image, graph, None)
    facts: dict[str, Any] = {
        "tables": dict(stored.facts),
        "made_for": dict(stored.made_for),
        "num_threads": resolve_threads(code.program.options.num_threads),
        "until_next": until_next,
    }
    parts = dict(stored.parts)
    if parts[CONSTANTS]:
        starts = [offset for offset, _ in code.weights.sources]
        arena = memoryview(parts[CONSTANTS][0])
        parts[CONSTANTS] = tuple(arena[a:b] for a, b in pairwise([*starts, arena.nbytes]))
    if image.host_steps or not all(isinstance(source, str) for source in image.passthrough.values()):
        tensors, facts["constants"] = named_constants(graph)
        arrays = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        facts["tensors"] = {name: [str(DType.from_numpy(a.dtype)), a.shape] for name, a in arrays.items()}
        parts |= {_TENSOR + name: (a.reshape(-1).view(np.uint8).data,) for name, a in arrays.items()}
        parts[_GRAPH] = (print_graph(graph).encode(),)
    return PackedCode(facts, parts)


@dataclass(frozen=True, slots=True)
class _Parts:
    """See `StoredParts`: what came through the pipe."""

    made_for: Mapping[str, str]
    facts: Any
    data: Mapping[str, bytes]
    stated: Mapping[str, Any]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self._specs("inputs")

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self._specs("outputs")

    def _specs(self, key: str) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(entry["name"], DType[entry["dtype"].upper()], tuple(entry["shape"]))
            for entry in self.facts[key]
        )

    def graph(self) -> Graph:
        return parse_graph(self.data[_GRAPH].decode(), constants=self.constants())

    def program(self) -> Program:
        raise AssertionError("code that is measured comes without its plan")

    def constants(self) -> Mapping[str, Array | bytes]:
        tensors = {
            name: np.frombuffer(self.data[_TENSOR + name], DType[dtype.upper()].numpy).reshape(shape)
            for name, (dtype, shape) in self.stated["tensors"].items()
        }
        return resolved_constants(tensors, self.stated["constants"])

    def size_bytes(self, name: str) -> int:
        return len(self.data[name])

    def read(self, name: str) -> bytes:
        return self.data[name]

    def read_into(self, name: str, target: Bytes) -> None:
        memoryview(target)[:] = self.data[name]


@dataclass(frozen=True, slots=True)
class _Loaded:
    """See `Contestant`."""

    executable: CpuExecutable
    has_stamps: bool
    until_next: bool

    def run(self, feed: Mapping[str, Array]) -> Mapping[str, Array]:
        return self.executable.run(feed)

    def time(self, feed: Mapping[str, Array]) -> RunTime:
        if not self.has_stamps:
            return RunTime(time_ns(self.executable, feed))
        steps = self.executable.run_profiled(feed)
        ends_ns = [step.start_ns + step.duration_ns for step in steps]
        whole_ns = ends_ns[-1] - steps[0].start_ns
        if self.until_next:
            ends_ns[:-1] = (step.start_ns for step in steps[1:])
        times_ns = (end - step.start_ns for step, end in zip(steps, ends_ns, strict=True))
        return RunTime(whole_ns, tuple(times_ns))

    def close(self) -> None:
        self.executable.close()


def load(facts: Mapping[str, Any], parts: Mapping[str, bytes]) -> _Loaded:
    """Make code run in this process.

    Raises:
        UsageError: it is not for this processor.
        ValueError: its tables do not fit each other.
    """
    store = CpuStore()
    refusal = store.refusal(facts["made_for"])
    if refusal is not None:
        raise UsageError(refusal)
    image = store.unpack(_Parts(facts["made_for"], facts["tables"], parts, facts))
    return _Loaded(image.load(facts["num_threads"]), image.main.profile, facts["until_next"])


def serve_runner() -> None:
    """Answer the process at the other end, on another machine perhaps: `tilewright worker`."""
    serve(load, greeting, MachineLock.of_user())


if __name__ == "__main__":
    serve(load)
