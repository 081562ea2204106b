"""This processor's code on its way to a process that measures it, and in that process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.files import Bytes
from tilewright.hardware.probe import resolve_threads
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.text import parse_graph, print_graph
from tilewright.program import Program
from tilewright.records import dataclass
from tilewright.targets.cpu.image.packed_code import packed_image
from tilewright.targets.cpu.image.stored import CpuStore
from tilewright.targets.cpu.runtime.executable import CpuExecutable, TensorSpec
from tilewright.targets.cpu.tune.context import host_fingerprints
from tilewright.targets.cpu.tune.race import time_ns
from tilewright.targets.named_constants import named_constants, resolved_constants
from tilewright.tuning.cluster import ClusterMeasuringPool
from tilewright.tuning.measuring import RunTime, serve
from tilewright.tuning.ray_fleet import Measuring, ray_pool
from tilewright.tuning.workers import LocalMeasuringPool, PackedCode

if TYPE_CHECKING:
    from tilewright.targets.cpu.image.code import CpuCode

Array = np.ndarray[Any, Any]

# Parts beside those of the code, whose names have a folder or none.
_GRAPH, _TENSOR = "program/graph.txt", "program/tensors/"


def measuring_pool() -> LocalMeasuringPool:
    """A process that measures what `packed` gives."""
    return LocalMeasuringPool(__name__)


def cluster_pool(workers: str, fingerprint: str) -> ClusterMeasuringPool:
    """The machines of a cluster that have a fingerprint (`PlanContext`), which measure what `packed` gives.

    Raises:
        NoCluster: there are none.
    """
    tells = f"{host_fingerprints.__module__}:{host_fingerprints.__name__}"
    return ray_pool(workers, Measuring(__name__, tells, fingerprint))


def packed(code: CpuCode) -> PackedCode:
    """Code as it travels; with the program where operators run in Python, or outputs are constants."""
    image, graph = code.image, code.program.graph
    stored = packed_image(image, graph, None)
    facts: dict[str, Any] = {
        "tables": dict(stored.facts),
        "made_for": dict(stored.made_for),
        "num_threads": resolve_threads(code.program.options.num_threads),
    }
    parts = dict(stored.parts)
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

    def run(self, feed: Mapping[str, Array]) -> Mapping[str, Array]:
        return self.executable.run(feed)

    def time(self, feed: Mapping[str, Array]) -> RunTime:
        if not self.has_stamps:
            return RunTime(time_ns(self.executable, feed))
        steps = self.executable.run_profiled(feed)
        first, last = steps[0], steps[-1]
        whole_ns = last.start_ns + last.duration_ns - first.start_ns
        return RunTime(whole_ns, tuple(step.duration_ns for step in steps))

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
    return _Loaded(image.load(facts["num_threads"]), image.main.profile)


if __name__ == "__main__":
    serve(load)
