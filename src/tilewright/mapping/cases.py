"""Files of mappings to evaluate, as JSON.

The form is that of Timeloop's results as CoSA's users keep them, and that of our results: loops of every
level from the outermost to the innermost.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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
    listed: list[Case] = []
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
        listed.append(Case(case.id, problem, Mapping(levels)))
    return listed
