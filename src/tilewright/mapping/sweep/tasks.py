"""One layer mapped onto one machine, as texts: what a worker is sent, and what it answers."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from tilewright.cost.base import Objective
from tilewright.cost.options import CostOptions
from tilewright.cost.sparsity import bounds_with_zeros, with_zeros
from tilewright.errors import InfeasibleMapping
from tilewright.fields import decoded, parsed_json
from tilewright.hardware.machine import Machine
from tilewright.loops.mapping import Mapping
from tilewright.loops.problem import Problem
from tilewright.mapping.base import MappingSolution
from tilewright.mapping.constraints import Constraints
from tilewright.mapping.solve import MapProblem, solve_layer
from tilewright.planning import Budget
from tilewright.version import __version__

MULTIPLIERS = "MAC"
"""What the energies of an answer call the compute units; other names are levels."""


@dataclass(frozen=True, slots=True)
class Search:
    """How layers are mapped; the same for a whole sweep."""

    mapper: str
    objective: Objective
    cost_options: CostOptions
    budget: Budget
    seed: int | None
    constraints: Constraints

    @classmethod
    def of(cls, problem: MapProblem) -> Search:
        """That of a request."""
        return cls(
            problem.mapper,
            problem.objective,
            problem.cost_options,
            problem.budget,
            problem.seed,
            problem.constraints,
        )


@dataclass(frozen=True, slots=True)
class LayerAnswer:
    """A layer's mapping and its figures. `component_pj` is by level, and of the compute units."""

    mapping: Mapping
    cycles: int
    energy_pj: float
    bound_cycles: int
    bound_energy_pj: float
    utilization: float
    padding: float
    component_pj: dict[str, float]
    status: str
    gap: float | None
    seconds: float
    optimal_among: str | None = None

    @classmethod
    def of(cls, layer: Problem, machine: Machine, solution: MappingSolution) -> LayerAnswer:
        """What is kept of a solution, with the zeros that the machine is given."""
        cost, quality = with_zeros(layer, machine, solution.cost), solution.quality
        bounds = bounds_with_zeros(machine, solution.bound_cycles, solution.bound_energy_pj)
        component_pj = {MULTIPLIERS: cost.mac_energy_pj}
        for level in cost.levels:
            component_pj[level.level] = sum(tensor.energy_pj for tensor in level.tensors.values())
        return cls(
            mapping=solution.mapping,
            cycles=cost.cycles,
            energy_pj=cost.energy_pj,
            bound_cycles=bounds[0],
            bound_energy_pj=bounds[1],
            utilization=cost.utilization,
            padding=solution.mapping.padding(layer),
            component_pj=component_pj,
            status=str(quality.status),
            optimal_among=quality.among,
            gap=quality.gap if quality.bound > 0 else None,
            seconds=solution.seconds,
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no mapping."""

    reason: str


@dataclass(frozen=True, slots=True)
class TaskMachine:
    """A machine, or the part of one that layers are mapped onto, as tasks name and send it."""

    name: str
    fingerprint: str
    text: str

    @classmethod
    def of(cls, machine: Machine) -> TaskMachine:
        """A machine written down."""
        return cls(machine.name, machine.fingerprint(), machine.model_dump_json(exclude_defaults=True))


@dataclass(frozen=True, slots=True)
class MapTask:
    """A layer, the machine that it is mapped onto, and how."""

    layer: Problem
    machine: TaskMachine
    search: Search

    @property
    def key(self) -> str:
        """Digest of everything that decides the answer: names and citations do not."""
        document = {
            "version": __version__,
            "layer": asdict(replace(self.layer, name="")),
            "machine": self.machine.fingerprint,
            "search": asdict(self.search),
        }
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    def to_text(self) -> str:
        """What `solve_text` takes."""
        return json.dumps(
            {
                "layer": asdict(self.layer),
                "machine": self.machine.text,
                "search": asdict(self.search),
            }
        )


def answer_of(text: str) -> LayerAnswer | Refusal:
    """What a worker said.

    Raises:
        FieldError, ValueError: it is no answer.
    """
    document = parsed_json(text.encode())
    if isinstance(document, dict) and "refused" in document:
        return Refusal(decoded(str, document["refused"]))
    return decoded(LayerAnswer, document)


def solve_text(text: str) -> str:
    """A task's text answered: a layer mapped, or why there is no mapping.

    Raises:
        UsageError: a mapper that is not installed here.
    """
    document: dict[str, Any] = json.loads(text)
    layer = decoded(Problem, document["layer"])
    search = decoded(Search, document["search"])
    machine = _machine_of(document["machine"])
    problem = MapProblem(
        machine=machine,
        workloads=(),
        mapper=search.mapper,
        objective=search.objective,
        cost_options=search.cost_options,
        budget=search.budget,
        seed=search.seed,
        constraints=search.constraints,
    )
    try:
        solution = solve_layer(layer, problem, machine)
    except InfeasibleMapping as error:
        return json.dumps({"refused": str(error)})
    return json.dumps(asdict(LayerAnswer.of(layer, machine, solution)))


@functools.lru_cache(maxsize=8)
def _machine_of(text: str) -> Machine:
    return Machine.model_validate_json(text)
