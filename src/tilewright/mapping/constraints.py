"""What every mapping must keep: a dataflow as data, and its texts.

Constraints are of levels of a machine and dims of operators. An operator that lacks a dim, or runs it once,
is not constrained by what is said of that dim.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from tilewright.errors import UsageError
from tilewright.hardware.machine import Machine, TensorKind
from tilewright.loops.problem import Problem
from tilewright.text.suggestions import closest

OTHERS = "*"
"""In an order of loops: the dims that it does not name."""
WHOLE = 0
"""As a factor, or the extent of a tile: all of the dim."""


@dataclass(frozen=True, slots=True)
class FixedSpatial:
    """How many iterations of a dim, if it has as many, are spread over what an instance of a level feeds."""

    level: str
    dim: str
    factor: int


@dataclass(frozen=True, slots=True)
class SpatialDims:
    """The dims that may be spread over what one instance of a level feeds; others are not."""

    level: str
    dims: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SpatialAxes:
    """Along which axes, of so many instances each, the array that an instance of a level feeds takes dims;
    others are not spread. A machine's file states it (`axes`)."""

    level: str
    axes: tuple[tuple[tuple[str, ...], int], ...]

    def axis_of(self, dim: str, problem: Problem) -> int | None:
        """The number of the axis that a dim, or the first part of a joined one, lies along."""
        names = (dim.split(" ")[0], *_roles(dim, problem))
        return next((i for name in names for i, (dims, _) in enumerate(self.axes) if name in dims), None)

    def most(self, dim: str, problem: Problem) -> int:
        """The most iterations of a dim that are spread."""
        axis = self.axis_of(dim, problem)
        return 1 if axis is None else self.axes[axis][1]


_LETTERS = frozenset("RSPQCKNG")


def _roles(dim: str, problem: Problem) -> tuple[str, ...]:
    """Letters of a convolution that a dim of another product stands for, by the operands that it moves."""
    if dim.split(" ")[0] in _LETTERS:
        return ()
    moved = {kind for kind in TensorKind for o in problem.operands if o.kind is kind and dim in o.dims()}
    if moved == set(TensorKind):
        return ("G",)
    if TensorKind.OUTPUT not in moved:
        return ("C",)
    return ("K",) if TensorKind.WEIGHT in moved else ("P", "Q", "N")


@dataclass(frozen=True, slots=True)
class FixedTile:
    """How much of a dim, if it has as much, the tile of an instance of a level has; or `WHOLE`."""

    level: str
    dim: str
    extent: int


@dataclass(frozen=True, slots=True)
class LoopOrder:
    """The temporal loops of a level, from the outermost to the innermost; dims that are not named have none.

    `OTHERS` stands for all dims that are not named, in any order.
    """

    level: str
    dims: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoLoop:
    """A dim of which a level has no temporal loop."""

    level: str
    dim: str


@dataclass(frozen=True, slots=True)
class Stationary:
    """A kind of tensor that stays inside while others change: loops of the level that it depends on are
    outside of those that it does not depend on."""

    level: str
    kind: TensorKind


@dataclass(frozen=True, slots=True)
class Constraints:
    """All that a search keeps; empty ones are false."""

    spatial: tuple[FixedSpatial, ...] = ()
    spatial_dims: tuple[SpatialDims, ...] = ()
    axes: tuple[SpatialAxes, ...] = ()
    tiles: tuple[FixedTile, ...] = ()
    orders: tuple[LoopOrder, ...] = ()
    absent: tuple[NoLoop, ...] = ()
    stationary: tuple[Stationary, ...] = ()

    @classmethod
    def of(cls, given: Iterable[Constraint]) -> Constraints:
        """Those that are given, each once.

        Raises:
            UsageError: two contradict each other, or order the loops of one level twice; names both.
        """
        listed = tuple(dict.fromkeys(given))
        known: dict[tuple[object, ...], Constraint] = {}
        for constraint in listed:
            before = known.setdefault(subject(constraint), constraint)
            if before != constraint:
                raise _contradiction(constraint, before)
        spatial = tuple(c for c in listed if isinstance(c, FixedSpatial))
        spatial_dims = tuple(c for c in listed if isinstance(c, SpatialDims))
        for fixed in spatial:
            for allowed in spatial_dims:
                if fixed.level == allowed.level and fixed.factor != 1 and fixed.dim not in allowed.dims:
                    raise _contradiction(fixed, allowed)
        return cls(
            spatial,
            spatial_dims,
            tuple(c for c in listed if isinstance(c, SpatialAxes)),
            tuple(c for c in listed if isinstance(c, FixedTile)),
            tuple(c for c in listed if isinstance(c, LoopOrder)),
            tuple(c for c in listed if isinstance(c, NoLoop)),
            tuple(c for c in listed if isinstance(c, Stationary)),
        )

    def __bool__(self) -> bool:
        return any(getattr(self, f.name) for f in fields(self))

    def listed(self) -> tuple[Constraint, ...]:
        """Each of them."""
        return (
            *self.spatial,
            *self.spatial_dims,
            *self.axes,
            *self.tiles,
            *self.orders,
            *self.absent,
            *self.stationary,
        )

    def axes_at(self, level: str) -> SpatialAxes | None:
        """The axes of the array that an instance of a level feeds; None: any dims may be spread."""
        return next((axes for axes in self.axes if axes.level == level), None)

    @property
    def name_dims(self) -> bool:
        """Whether some speak of single dims, beside the axes of arrays."""
        return any(not isinstance(constraint, SpatialAxes) for constraint in self.listed())

    def __str__(self) -> str:
        return ", ".join(said(constraint) for constraint in self.listed())

    def spatial_at(self, level: str, problem: Problem) -> dict[str, int]:
        """The spatial factors that a level must have, by dim: 1 of dims that may not be spread."""
        dims = [dim for dim, extent in problem.dims if extent > 1]
        factors: dict[str, int] = {}
        for allowed in self.spatial_dims:
            if allowed.level == level:
                factors.update({dim: 1 for dim in dims if dim not in allowed.dims})
        extents = problem.extents
        for fixed in self.spatial:
            if fixed.level == level and fixed.dim in dims:
                factors[fixed.dim] = min(fixed.factor or extents[fixed.dim], extents[fixed.dim])
        return factors

    def tile_at(self, level: str, problem: Problem) -> dict[str, int]:
        """What a level's tile must have of dims."""
        extents = problem.extents
        return {
            t.dim: min(t.extent or extents[t.dim], extents[t.dim])
            for t in self.tiles
            if t.level == level and extents.get(t.dim, 1) > 1
        }

    def phases_at(self, level: str, problem: Problem) -> tuple[tuple[str, ...], ...]:
        """Dims of a level's temporal loops in groups, the outermost first: within a group in any order."""
        absent = {a.dim for a in self.absent if a.level == level}
        dims = tuple(dim for dim in problem.extents if dim not in absent)
        for order in self.orders:
            if order.level == level:
                others = tuple(dim for dim in dims if dim not in order.dims)
                return tuple(
                    others if dim == OTHERS else (dim,) for dim in order.dims if dim in (OTHERS, *dims)
                )
        for stationary in self.stationary:
            if stationary.level == level:
                moved = {d for o in problem.operands if o.kind is stationary.kind for d in o.dims()}
                return tuple(d for d in dims if d in moved), tuple(d for d in dims if d not in moved)
        return (dims,)


Constraint = FixedSpatial | SpatialDims | SpatialAxes | FixedTile | LoopOrder | NoLoop | Stationary


def dataflow(machine: Machine) -> tuple[SpatialAxes, ...]:
    """What a machine's file says of the arrays that its levels feed."""
    innermost = next((unit.axes for unit in machine.units if unit.kind in ("mac", "matrix")), ())
    given = (innermost, *(level.axes for level in machine.levels[1:]))
    return tuple(
        SpatialAxes(level.name, tuple((axis.dims, axis.size) for axis in axes))
        for level, axes in zip(machine.levels, given, strict=True)
        if axes
    )


def _contradiction(one: Constraint, other: Constraint) -> UsageError:
    return UsageError(f"constraints: {said(one)} contradicts {said(other)}; remove one of them.")


UNCONSTRAINED = Constraints()


def said(constraint: Constraint) -> str:
    """A constraint as its text.

    >>> said(LoopOrder("L1", ("K", "*"))), said(FixedTile("L1", "S", WHOLE))
    ('L1.order=K,*', 'L1.tile.S=whole')
    """
    match constraint:
        case FixedSpatial(level, dim, factor):
            return f"{level}.spatial.{dim}={factor or 'whole'}"
        case SpatialDims(level, dims):
            return f"{level}.spatial={','.join(dims)}"
        case SpatialAxes(level, axes):
            listed = ("*".join(dims) + f":{size}" for dims, size in axes)
            return f"{level}.axes={','.join(listed)}"
        case FixedTile(level, dim, extent):
            return f"{level}.tile.{dim}={extent or 'whole'}"
        case LoopOrder(level, dims):
            return f"{level}.order={','.join(dims)}"
        case NoLoop(level, dim):
            return f"{level}.without={dim}"
        case Stationary(level, kind):
            return f"{kind}-stationary@{level}"


def named_dims(constraint: Constraint) -> tuple[str, ...]:
    """The dims that a constraint names."""
    match constraint:
        case FixedSpatial(_, dim, _) | FixedTile(_, dim, _) | NoLoop(_, dim):
            return (dim,)
        case LoopOrder(_, dims) | SpatialDims(_, dims):
            return tuple(dim for dim in dims if dim != OTHERS)
        case Stationary() | SpatialAxes():
            return ()


def subject(constraint: Constraint) -> tuple[object, ...]:
    """What two constraints that differ may not both be about."""
    match constraint:
        case FixedSpatial(level, dim, _) | FixedTile(level, dim, _) | NoLoop(level, dim):
            return type(constraint), level, dim
        case LoopOrder(level, _) | Stationary(level, _):
            return "order", level
        case SpatialDims(level, _) | SpatialAxes(level, _):
            return type(constraint), level


_DATAFLOW = re.compile(r"(weight|input|output|row)-stationary(?:@(.+))?")
_AT_LEVEL = re.compile(r"(.+)\.(order|spatial|tile|without)(?:\.([^.=]+))?=(.+)")
_EXPECTED = (
    "expected weight-, input- or output-stationary, the same with @LEVEL, row-stationary@LEVEL, "
    "LEVEL.spatial=P,Q, LEVEL.spatial.C=8, LEVEL.tile.P=14 (or whole), LEVEL.order=K,C,*, or "
    "LEVEL.without=R,S"
)


def parse_constraints(texts: Sequence[str], machine: Machine) -> list[Constraint]:
    """What texts such as `weight-stationary@GlobalBuffer` or `GlobalBuffer.tile.P=14` say.

    A dataflow without a level is about all levels but the innermost. `row-stationary@LEVEL` (Eyeriss) lets
    what the level feeds take a row of the window and of the outputs each, R and P, with channels beside.

    Raises:
        UsageError: any other text, or a level that the machine does not have.
    """
    return [constraint for text in texts for constraint in _parsed(text.strip(), machine)]


def _parsed(text: str, machine: Machine) -> Iterable[Constraint]:
    names = [level.name for level in machine.levels]
    dataflow = _DATAFLOW.fullmatch(text)
    if dataflow is not None:
        kind, at = dataflow.groups()
        if kind == "row":
            return _row_stationary(text, at, names)
        levels = names[1:] if at is None else [_known(at, names, text)]
        return [Stationary(level, TensorKind(kind)) for level in levels]
    match = _AT_LEVEL.fullmatch(text)
    if match is None:
        raise UsageError(f"constraint {text!r}: {_EXPECTED}.")
    at, what, dim, value = match.groups()
    level = _known(at, names, text)
    dims = tuple(part.strip() for part in value.split(",") if part.strip())
    if what == "order" and dim is None and len(set(dims)) == len(dims) > 0:
        return [LoopOrder(level, dims)]
    if what == "spatial" and dim is None and dims:
        return [SpatialDims(level, dims)]
    if what == "without" and dim is None and dims:
        return [NoLoop(level, name) for name in dims]
    if dim is not None and what in ("spatial", "tile"):
        number = WHOLE if value == "whole" else _number(value, text)
        return [FixedTile(level, dim, number) if what == "tile" else FixedSpatial(level, dim, number)]
    raise UsageError(f"constraint {text!r}: {_EXPECTED}.")


def _row_stationary(text: str, at: str | None, names: Sequence[str]) -> list[Constraint]:
    """A row of the window slides along a row of inputs inside what the level feeds."""
    if at is None or _known(at, names, text) == names[0]:
        raise UsageError(f"constraint {text!r}: name the level that feeds the elements, as {names[-1]}.")
    inside = names[names.index(at) - 1]
    return [
        SpatialDims(at, ("R", "P", "C", "K", "N", "G")),
        FixedTile(inside, "R", 1),
        FixedTile(inside, "P", 1),
        FixedTile(inside, "S", WHOLE),
    ]


def _known(level: str, names: Sequence[str], text: str) -> str:
    if level not in names:
        raise UsageError(f"constraint {text!r}: there is no level {level!r}; {closest(level, names)}.")
    return level


def _number(value: str, text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,11}", value):
        raise UsageError(f"constraint {text!r}: {value!r} is no positive number.")
    return int(value)
