"""Which shapes a run has, by what it is fed; which ones are prepared ahead."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.arguments import as_array, missing_input, shown
from tilewright.arrays import Array
from tilewright.errors import UsageError
from tilewright.extents import ANY, Axis, Extents, axes_text
from tilewright.frontend.onnx.inputs import Declaration, Dimension
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Shape

Key = tuple[tuple[str, Shape], ...]
"""Inputs that are fed, in the model's order, with their shapes."""

Open = tuple[str, int] | str
"""A dimension that is open: a symbol, or an axis of an input."""


class Binding:
    """The inputs of a model as it declares them, and what a user asked of the axes that are open.

    An axis of which one extent was asked is fixed; of several, those are prepared.
    """

    def __init__(
        self,
        inputs: Mapping[str, Declaration],
        defaulted: Mapping[str, Declaration],
        asked: Mapping[str, Sequence[Axis]],
    ) -> None:
        """`inputs` are given in every run, `defaulted` ones may be.

        Raises:
            UsageError: what was asked does not fit what is declared.
        """
        self.inputs = dict(inputs)
        self.defaulted = dict(defaulted)
        self.names = tuple(self.inputs)
        self._allowed: dict[Open, Extents] = {}
        for name, axes in asked.items():
            self._restrict(name, axes)

    def allowed(self, name: str) -> tuple[Extents, ...] | None:
        """What each axis of an input may be; None where its rank is not known."""
        declared = self._declared(name)
        if declared.dims is None:
            rank = sum(isinstance(o, tuple) and o[0] == name for o in self._allowed)
            return tuple(self._allowed[name, axis] for axis in range(rank)) if rank else None
        return tuple(self._extents(name, axis, dim) for axis, dim in enumerate(declared.dims))

    def shape_of(self, name: str) -> tuple[int | str | None, ...]:
        """An input's shape as onnxruntime gives it: numbers, symbols, and None for a nameless dimension."""
        dims = self._declared(name).dims
        allowed = self.allowed(name)
        if allowed is None:
            return ()
        names: Sequence[Dimension] = dims if dims is not None else [None] * len(allowed)
        return tuple(
            next(extents.values()) if extents.num_values == 1 else dim
            for extents, dim in zip(allowed, names, strict=True)
        )

    def dtype_of(self, name: str) -> DType:
        """The type of an input."""
        return self._declared(name).dtype

    def key(self, feed: Mapping[str, Any]) -> Key:
        """The shapes of a feed, checked against the model and what was asked.

        Raises:
            UsageError: an input is missing, unknown, or has another shape or type; `shapes` exclude it.
        """
        for name in self.inputs:
            if feed.get(name) is None:
                raise missing_input(name, self.names, feed)
        for name in feed:
            if name not in self.inputs and name not in self.defaulted:
                raise UsageError(f"unknown input {shown(name)}: this model takes {', '.join(self.names)}.")
        key = []
        symbols: dict[str, tuple[int, str]] = {}
        for name, declared in (*self.inputs.items(), *self.defaulted.items()):
            if name in feed:
                array = as_array(name, feed[name])
                self._check(name, declared, array, symbols)
                key.append((name, array.shape))
        return tuple(key)

    def key_of(self, shapes: Mapping[str, Shape]) -> Key:
        """The key of shapes of all inputs that are fed."""
        return tuple((name, shapes[name]) for name in (*self.inputs, *self.defaulted) if name in shapes)

    def prepared(self, limit: int) -> list[Key]:
        """All sets of shapes that were asked for; none where an axis may be anything.

        Raises:
            UsageError: there are more than `limit`.
        """
        variables = self._variables()
        if any(extents.is_any for extents in variables.values()):
            return []
        if any(declared.dims is None and self.allowed(n) is None for n, declared in self.inputs.items()):
            return []
        count = math.prod(extents.num_values for extents in variables.values())
        if count > limit:
            raise UsageError(
                f"shapes ask for {count} sets of shapes, more than the {limit} that are kept (max-shapes): "
                "name fewer extents, such as 128|256|512, or raise max-shapes."
            )
        keys = []
        for extents in itertools.product(*(e.values() for e in variables.values())):
            chosen = dict(zip(variables, extents, strict=True))
            keys.append(tuple((name, self._shape(name, chosen)) for name in self.inputs))
        return keys

    def is_inside(self, key: Key) -> bool:
        """Whether a set of shapes has an extent between the ends of a range that was asked for."""
        return any(
            extent not in {end for ends in extents.ranges for end in ends}
            for name, shape in key
            for extent, extents in zip(shape, self.allowed(name) or (), strict=False)
            if not extents.is_any
        )

    def listed_axes(self) -> dict[Open, dict[str, int]]:
        """Open dimensions of which several extents were asked, each with its axis of the inputs that have it.

        Those that are two axes of one input are left out.
        """
        axes: dict[Open, list[tuple[str, int]]] = {}
        for name, declared in self.inputs.items():
            allowed = self.allowed(name) or ()
            dims = declared.dims if declared.dims is not None else (None,) * len(allowed)
            for axis, (dim, extents) in enumerate(zip(dims, allowed, strict=True)):
                if not isinstance(dim, int) and extents.num_values > 1:
                    axes.setdefault(dim or (name, axis), []).append((name, axis))
        return {v: dict(found) for v, found in axes.items() if len(dict(found)) == len(found)}

    def describe(self) -> str:
        """What is asked of the inputs, as `--shapes` writes it."""
        described = ((name, self.allowed(name)) for name in self.inputs)
        return ",".join(
            f"{n}:{axes_text(tuple(map(str, e))) if e is not None else ANY}" for n, e in described
        )

    def _variables(self) -> dict[Open, Extents]:
        """Dimensions that are open, with what each may be."""
        variables: dict[Open, Extents] = {}
        for name, declared in self.inputs.items():
            allowed = self.allowed(name) or ()
            dims = declared.dims if declared.dims is not None else (None,) * len(allowed)
            for axis, (dim, extents) in enumerate(zip(dims, allowed, strict=True)):
                if not isinstance(dim, int):
                    variables[dim or (name, axis)] = extents
        return variables

    def _shape(self, name: str, chosen: Mapping[Open, int]) -> Shape:
        allowed = self.allowed(name) or ()
        dims = self._declared(name).dims or (None,) * len(allowed)
        return tuple(
            dim if isinstance(dim, int) else chosen[dim or (name, axis)] for axis, dim in enumerate(dims)
        )

    def _declared(self, name: str) -> Declaration:
        return self.inputs[name] if name in self.inputs else self.defaulted[name]

    def _extents(self, name: str, axis: int, dim: Dimension) -> Extents:
        if isinstance(dim, int):
            return Extents(((dim, dim),))
        return self._allowed.get(dim or (name, axis), Extents())

    def _restrict(self, name: str, axes: Sequence[Axis]) -> None:
        label = f"shapes {name}:{axes_text(axes)}"
        if name not in self.inputs and name not in self.defaulted:
            raise UsageError(
                f"{label} names no input of the model; inputs: {', '.join(self.names) or 'none'}."
            )
        dims = self._declared(name).dims
        if dims is not None and len(dims) != len(axes):
            raise UsageError(f"{label} has {len(axes)} dimensions, but input {name!r} has {len(dims)}.")
        for axis, asked in enumerate(axes):
            extents, dim = Extents.of(asked), None if dims is None else dims[axis]
            if isinstance(dim, int):
                if dim not in extents:
                    raise UsageError(
                        f"{label} sets dimension {axis} to {asked}, but the model fixes it to {dim}; give "
                        f"{dim}, or export the model with that dimension open."
                    )
                continue
            key: Open = dim or (name, axis)
            both = self._allowed.get(key, Extents()) & extents
            if both is None:
                raise UsageError(
                    f"{label} sets dimension {dim!r} to {asked}, and another input sets it to "
                    f"{self._allowed[key]}; it must be the same."
                )
            self._allowed[key] = both

    def _check(
        self, name: str, declared: Declaration, array: Array, symbols: dict[str, tuple[int, str]]
    ) -> None:
        label = f"input {name!r} is {array.dtype}{list(array.shape)}"
        allowed = self.allowed(name)
        takes = f"the model takes {declared.dtype}"
        if allowed is not None:
            takes += f"[{', '.join('?' if d is None else str(d) for d in self.shape_of(name))}]"
        if array.dtype != declared.dtype.numpy:
            raise UsageError(f"{label}, {takes}.")
        if allowed is None:
            return
        if len(allowed) != array.ndim:
            raise UsageError(f"{label}, {takes}.")
        for axis, (extent, extents) in enumerate(zip(array.shape, allowed, strict=True)):
            if extents.num_values == 1 and extent not in extents:
                raise UsageError(f"{label}, {takes}.")
            dim = None if declared.dims is None else declared.dims[axis]
            if isinstance(dim, str) and symbols.setdefault(dim, (extent, name))[0] != extent:
                first, other = symbols[dim]
                raise UsageError(
                    f"{label}, {takes}: dimension {dim!r} is {extent} there and {first} at {other!r}; it "
                    "must be the same."
                )
