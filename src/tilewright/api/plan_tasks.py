"""A network planned for a machine as a task: texts that processes answer, or those of a Ray cluster.

A task holds the network after the passes and the machine's description, so that a worker needs nothing else.
Large constants are left out: plans cost the same whatever weights are.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from math import prod
from typing import Any

import numpy as np

from tilewright.api.models import Model
from tilewright.api.simulation import Simulation
from tilewright.api.simulation_request import SimulationRequest
from tilewright.errors import InternalError, TilewrightError
from tilewright.fields import decoded, parsed_json
from tilewright.hardware.machine import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.text import attribute_constants, constants_of, parse_graph, print_graph
from tilewright.mapping.sweep.answered import answer_with
from tilewright.mapping.sweep.tasks import TaskMachine
from tilewright.records import dataclass
from tilewright.system.worker_process import serve_texts
from tilewright.version import __version__

MODULE = "tilewright.api.plan_tasks"
_MOST_BYTES = 1 << 16
"""Constants that are sent: shapes, indices and scales are below, large weights are not."""
_CONSTANT = re.compile(r"const \S+: (\w+)\[([\d, ]*)\] = sha256:([0-9a-f]+)")


@dataclass(frozen=True, slots=True)
class PlannedFigures:
    """What a network takes on a machine by the best plan that was found; `energy_j` is of all clusters."""

    time_s: float
    bound_s: float
    energy_j: float | None
    energy_source: str
    read_bytes: int
    written_bytes: int
    recipe: str
    status: str
    optimal_among: str | None
    bound_among: str
    planning_s: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no plan."""

    reason: str


@dataclass(frozen=True, slots=True)
class NetworkText:
    """A network after the passes, with the constants that plans may depend on."""

    name: str
    text: str
    constants: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, graph: Graph) -> NetworkText:
        """A network written down."""
        kept: dict[str, Any] = {}
        of_attributes = attribute_constants(graph)
        for digest, data in constants_of(graph).items():
            if isinstance(data, bytes):
                kept[digest] = {"bytes": base64.b64encode(data).decode()}
            elif digest in of_attributes or (data.dtype.kind in "biuf" and data.nbytes <= _MOST_BYTES):
                little = data.astype(data.dtype.newbyteorder("<"))
                kept[digest] = {
                    "dtype": data.dtype.name,
                    "shape": list(data.shape),
                    "bytes": base64.b64encode(little.tobytes()).decode(),
                }
        return cls(name, print_graph(graph), kept)

    def graph(self) -> Graph:
        """The network, with zeros in the place of what was not kept."""
        constants: dict[str, Any] = {}
        for dtype, shape, digest in _CONSTANT.findall(self.text):
            extents = tuple(int(extent) for extent in shape.split(",") if extent.strip())
            # One zero for all: nothing computes with them.
            constants[digest] = np.broadcast_to(np.zeros((), DType[dtype.upper()].numpy), extents)
        for digest, kept in self.constants.items():
            data = base64.b64decode(kept["bytes"])
            if "dtype" in kept:
                little = np.dtype(kept["dtype"]).newbyteorder("<")
                array = np.frombuffer(data, little, prod(kept["shape"])).reshape(kept["shape"])
                constants[digest] = array.astype(kept["dtype"])
            else:
                constants[digest] = data
        return parse_graph(self.text, constants=constants)


@dataclass(frozen=True, slots=True)
class PlanTask:
    """A network, the machine that it is planned for under its name, and how: fields of a request."""

    network: NetworkText
    target: str
    machine: TaskMachine
    settings: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Digest of everything that decides the answer."""
        return hashlib.sha256(self.to_text().encode()).hexdigest()

    def to_text(self) -> str:
        """What `solve_text` takes."""
        document = {
            "version": __version__,
            "network": asdict(self.network),
            "target": self.target,
            "machine": self.machine.text,
            "settings": dict(self.settings),
        }
        return json.dumps(document, sort_keys=True)


def answer_of(text: str) -> PlannedFigures | Refusal:
    """What a worker said.

    Raises:
        FieldError, ValueError: it is no answer.
    """
    document = parsed_json(text.encode())
    if isinstance(document, dict) and "refused" in document:
        return Refusal(decoded(str, document["refused"]))
    return decoded(PlannedFigures, document)


def solve_text(text: str) -> str:
    """A task's text answered: a network planned, or why there is no plan."""
    document: dict[str, Any] = json.loads(text)
    network = NetworkText(**document["network"])
    machine = Machine.model_validate_json(document["machine"])
    start_s = time.perf_counter()
    try:
        graph = network.graph()
        request = SimulationRequest(
            model=Model(graph, "", network.name), target=document["target"], **document["settings"]
        )
        found = Simulation(request, lambda *_: None, machine).plan(graph)
        cost = found.code.cost
    except InternalError:
        raise
    except TilewrightError as error:
        return json.dumps({"refused": str(error)})
    quality = found.planned.program.schedule.quality
    figures = PlannedFigures(
        time_s=cost.time_s,
        bound_s=cost.lower_bound_s,
        energy_j=cost.energy_j,
        energy_source=cost.energy_source,
        read_bytes=cost.bytes["main_read"],
        written_bytes=cost.bytes["main_written"],
        recipe=found.name,
        status=str(quality.status),
        optimal_among=quality.among,
        bound_among=str(quality.widest.space),
        planning_s=time.perf_counter() - start_s,
    )
    return json.dumps(asdict(figures))


def answer(task: str) -> str:
    """A task answered; an error as the line it is."""
    return answer_with(solve_text, task)


if __name__ == "__main__":
    serve_texts(lambda: lambda texts: [answer(texts[0].decode()).encode()])
