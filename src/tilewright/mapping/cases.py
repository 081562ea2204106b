"""Mappings as JSON: files of cases to evaluate, and how a mapping and its cost are printed.

The form is that of Timeloop's results as CoSA's users keep them: loops of every level from the outermost to
the innermost, counts for one instance.
"""

from __future__ import annotations

import json
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tilewright.cost.count import Cost, TensorCount
from tilewright.errors import UsageError
from tilewright.files import read_at_most
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import Problem, convolution

_MAX_BYTES = 64 << 20
_Factor = Annotated[int, Field(ge=1, le=2**40)]
_LoopPair = tuple[str, _Factor]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _LevelPart(_Part):
    level: str
    temporal_outer_to_inner: tuple[_LoopPair, ...] = ()
    spatial_outer_to_inner: tuple[_LoopPair, ...] = ()


class _Pair(_Part):
    W: _Factor = 1  # of P and R
    H: _Factor = 1  # of Q and S


class _CasePart(_Part):
    id: str
    dims: dict[str, _Factor]
    stride: _Pair = _Pair()
    dilation: _Pair = _Pair()
    mapping: tuple[_LevelPart, ...]


class _File(_Part):
    cases: tuple[_CasePart, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A mapping to evaluate."""

    id: str
    problem: Problem
    mapping: Mapping


def load_cases(path: Path) -> list[Case]:
    """The cases of a JSON file `{"cases": [{"id", "dims", "stride", "mapping"}]}`.

    Raises:
        UsageError: not such a file; one line that names the file and the key.
    """
    try:
        data = read_at_most(path, _MAX_BYTES)
        if len(data) > _MAX_BYTES:
            raise UsageError(f"{path}: more than {_MAX_BYTES >> 20} MiB; give fewer cases at a time.")
        document = json.loads(data.decode("utf-8"))
        cases = _File.model_validate(document).cases
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise UsageError(f"{path}: {where}: {first['msg'].lower()}.") from None
    except (ValueError, RecursionError) as error:  # ValueError also of numbers with thousands of digits
        raise UsageError(f"{path}: not JSON ({str(error).splitlines()[0]}).") from None
    found: list[Case] = []
    for case in cases:
        try:
            problem = convolution(
                case.dims,
                stride=(case.stride.W, case.stride.H),
                dilation=(case.dilation.W, case.dilation.H),
                name=case.id,
            )
        except UsageError as error:
            raise UsageError(f"{path}: case {case.id!r}: {error}") from None
        levels = tuple(
            LevelLoops(
                part.level,
                tuple(Loop(*pair) for pair in part.temporal_outer_to_inner),
                tuple(Loop(*pair) for pair in part.spatial_outer_to_inner),
            )
            for part in case.mapping
        )
        found.append(Case(case.id, problem, Mapping(levels)))
    return found


def mapping_to_json(mapping: Mapping) -> list[dict[str, Any]]:
    """Levels with their loops, in the form that `load_cases` reads."""
    return [
        {
            "level": loops.level,
            "temporal_outer_to_inner": [[loop.dim, loop.factor] for loop in loops.temporal],
            "spatial_outer_to_inner": [[loop.dim, loop.factor] for loop in loops.spatial],
        }
        for loops in mapping.levels
    ]


def cost_to_json(problem: Problem, cost: Cost) -> dict[str, Any]:
    """`summary` and `levels`; counts are those of one instance, energies without a suffix in pJ."""
    macs = {
        "utilized_instances": cost.num_units_used,
        "computes": problem.num_macs,
        "cycles": cost.compute_cycles,
        "energy_pJ_total": cost.mac_energy_pj,
    }
    levels = {
        level.level: {
            "cycles": level.cycles,
            "throttling": level.throttling,
            "vector_access_energy_pJ": level.vector_access_pj,
            "tensors": {name: _count_to_json(count) for name, count in level.tensors.items()},
        }
        for level in reversed(cost.levels)
    }
    return {
        "summary": {
            "cycles": cost.cycles,
            "energy_uJ": cost.energy_pj / 1e6,
            "energy_pJ": cost.energy_pj,
            "utilization": cost.utilization,
        },
        "levels": {"MAC": macs, **levels},
    }


def _count_to_json(count: TensorCount) -> dict[str, Any]:
    return {
        "tile_words": count.tile_words,
        "partition_words": count.partition_words,
        "instances": count.num_instances,
        "reads_per_instance": count.reads,
        "updates_per_instance": count.updates,
        "fills_per_instance": count.fills,
        "temporal_reductions_per_instance": count.temporal_reductions,
        "energy_pJ_per_instance": count.energy_pj / count.num_instances,
        "energy_pJ_total": count.energy_pj,
    }


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """Dims with their extents, and the steps of sliding windows by the dim that moves them."""
    steps: MappingOf[str, int] = {
        dim: step
        for operand in problem.operands
        for axis in operand.axes
        if len(axis) > 1
        for dim, step in axis
    }
    return {
        "dims": problem.extents,
        "stride": {"W": steps.get("P", 1), "H": steps.get("Q", 1)},
        "steps": dict(steps),
        "macs": problem.num_macs,
    }
