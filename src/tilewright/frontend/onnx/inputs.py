"""Which tensors the user feeds, and their static shapes: the model's own, completed by `shapes`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import field

from onnx import GraphProto, TypeProto, ValueInfoProto

from tilewright.errors import ModelRejected, UnsupportedOp, UsageError
from tilewright.extents import axes_text
from tilewright.frontend.onnx.tensors import checked_shape, supported_dtype
from tilewright.ir.dtype import DType
from tilewright.records import dataclass

Dimension = int | str | None


class OpenInput(UsageError):
    """A graph was asked for, and a dimension of an input is open."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """A declared tensor type; a dimension is a number, a symbol or unknown, `dims` None is unknown rank."""

    dtype: DType
    dims: tuple[Dimension, ...] | None


@dataclass(frozen=True, slots=True)
class BoundInputs:
    """Shapes of all fed inputs, and what each symbol of the model stands for."""

    types: Mapping[str, tuple[DType, tuple[int, ...]]]
    symbols: Mapping[str, int] = field(default_factory=dict)


def input_declaration(value: ValueInfoProto) -> Declaration:
    """The declared type of an input.

    Raises:
        ModelRejected: it has none.
        UnsupportedOp: as for `declaration`.
    """
    found = declaration(value, "input")
    if found is None:
        raise ModelRejected(f"input {value.name!r} has no element type; export the model again.")
    return found


def declaration(value: ValueInfoProto, what: str) -> Declaration | None:
    """The declared type of a value; None if the model does not say.

    Raises:
        UnsupportedOp: sequences, optionals, maps, sparse tensors.
    """
    kind = value.type.WhichOneof("value")
    if kind is None:
        return None
    if kind != "tensor_type":
        raise UnsupportedOp(
            f"{what} {value.name!r} is a {kind.removesuffix('_type').replace('_', ' ')}, but only dense "
            "tensors are supported; export the model with tensors."
        )
    return tensor_declaration(value.type.tensor_type, f"{what} {value.name!r}")


def tensor_declaration(tensor: TypeProto.Tensor, what: str) -> Declaration | None:
    """A tensor type as declared; None without an element type."""
    if not tensor.elem_type:
        return None
    dtype = supported_dtype(tensor.elem_type, what)
    if not tensor.HasField("shape"):
        return Declaration(dtype, None)
    dims: list[Dimension] = []
    for dim in tensor.shape.dim:
        kind = dim.WhichOneof("value")
        dims.append(dim.dim_value if kind == "dim_value" else dim.dim_param or None)
    checked_shape([d for d in dims if isinstance(d, int)], dtype, what)
    return Declaration(dtype, tuple(dims))


def bind_inputs(graph: GraphProto, shapes: Mapping[str, Sequence[int]]) -> BoundInputs:
    """Static shapes of the fed inputs.

    Raises:
        OpenInput: dimensions stay open; the message says which, and the flag.
        UsageError: `shapes` do not fit.
    """
    constants = {tensor.name for tensor in graph.initializer}
    fed = [v for v in graph.input if v.name not in constants or v.name in shapes]
    names = [value.name for value in fed]
    for name in shapes:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"inputs: {', '.join(names) or 'none'}."
            raise UsageError(f"--shapes names {name!r}, which is no input of the model; {hint}")
    declared = {value.name: input_declaration(value) for value in fed}
    symbols: dict[str, int] = {}
    for name, given in shapes.items():
        _bind(name, declared[name], tuple(int(d) for d in given), symbols)
    resolved: dict[str, tuple[DType, tuple[int, ...]]] = {}
    for name, declared_type in declared.items():
        dims = shapes.get(name)
        if dims is None:
            dims = _static(name, declared_type, symbols)
        resolved[name] = (declared_type.dtype, checked_shape(dims, declared_type.dtype, f"input {name!r}"))
    return BoundInputs(resolved, symbols)


def resolve(declared: Declaration, symbols: Mapping[str, int]) -> tuple[int, ...] | None:
    """The static shape of a declared type under bound symbols, or None if a dimension stays open."""
    return None if declared.dims is None else resolve_dims(declared.dims, symbols)


def resolve_dims(dims: Sequence[Dimension], symbols: Mapping[str, int]) -> tuple[int, ...] | None:
    """Extents of dims under bound symbols, or None if one stays open."""
    extents = [symbols.get(d) if isinstance(d, str) else d for d in dims]
    return tuple(d for d in extents if d is not None) if None not in extents else None


def completed(found: Declaration | None, declared: Declaration) -> Declaration | None:
    """What is found of a result's shape, open dimensions filled from the model's declaration.

    None where the two contradict each other.
    """
    if found is None or found.dims is None:
        return declared
    if declared.dims is None:
        return found
    dims = tuple(
        ours if isinstance(ours, int) else theirs
        for ours, theirs in zip(found.dims, declared.dims, strict=False)
    )
    if len(found.dims) != len(declared.dims) or any(
        isinstance(d, int) and d != given for d, given in zip(declared.dims, dims, strict=True)
    ):
        return None
    return Declaration(found.dtype, dims)


def dims_text(dims: Sequence[Dimension] | None) -> str:
    """A shape as messages write it.

    >>> dims_text((1, "N", None))
    '[1, N, ?]'
    """
    return f"[{', '.join('?' if d is None else str(d) for d in dims or ())}]"


def _bind(name: str, declared: Declaration, given: tuple[int, ...], symbols: dict[str, int]) -> None:
    if any(d < 0 for d in given):
        raise UsageError(f"--shapes {name}:{axes_text(given)} has a negative dimension; use numbers from 0.")
    if declared.dims is None:
        return
    if len(given) != len(declared.dims):
        raise UsageError(
            f"--shapes {name}:{axes_text(given)} has {len(given)} dimensions, but input {name!r} has "
            f"{len(declared.dims)}: {axes_text(declared.dims)}."
        )
    for axis, (want, have) in enumerate(zip(given, declared.dims, strict=True)):
        if isinstance(have, int) and have != want:
            raise UsageError(
                f"--shapes {name}:{axes_text(given)} sets dimension {axis} to {want}, but the model fixes it "
                f"to {have}; give {have}, or export the model with that dimension open."
            )
        if isinstance(have, str) and symbols.setdefault(have, want) != want:
            raise UsageError(
                f"--shapes sets dimension {have!r} to {symbols[have]} and, at {name!r}, to {want}; "
                "it must be the same."
            )


def _static(name: str, declared: Declaration, symbols: Mapping[str, int]) -> tuple[int, ...]:
    if declared.dims is None:
        raise OpenInput(f"input {name!r} has no known rank; give its shape: --shapes {name}:1x3x224x224")
    shape = resolve(declared, symbols)
    if shape is not None:
        return shape
    known = [symbols.get(d) if isinstance(d, str) else d for d in declared.dims]
    flag = "x".join("?" if d is None else str(d) for d in known)
    open_axes = ", ".join(
        f"{axis} ({declared.dims[axis]})" if declared.dims[axis] else str(axis)
        for axis, d in enumerate(known)
        if d is None
    )
    raise OpenInput(
        f"input {name!r} leaves dimension {open_axes} open; fix it with --shapes {name}:{flag}, "
        "a number in place of each ?"
    )
