"""Timeloop's problems as ours: a shape (dims and projections of data spaces) and an instance (extents)."""

from __future__ import annotations

from pathlib import Path

from tilewright.errors import MachineError
from tilewright.hardware.machine import TensorKind
from tilewright.loops.problem import Operand, Problem, Term, convolution
from tilewright.mapping.timeloop.document import Entry, read_document

_LAYER_DIMS = ("R", "S", "P", "Q", "C", "K", "N")
_MAX_EXTENT = 2**40
_MAX_PARTS = 64  # dims of a problem, its data spaces, and axes of each
_BESIDE = ("version", "shape", "name")
_IMPLIED = ("H", "W", "Hpad", "Wpad")  # sizes of the input, which follow from the output's
_STEPS = ("Wstride", "Hstride", "Wdilation", "Hdilation")


def load_problem(path: Path | str) -> Problem:
    """The problem of one of Timeloop's YAML files.

    Data spaces keep their names. The one that is written is the output, the one named after weights (or else
    the first one read) holds weights, all others are inputs.

    Raises:
        MachineError: the file cannot be read, or its `problem` is none that can be mapped; names the key.
    """
    document = read_document(path)
    if "problem" not in document:
        raise MachineError(f"{path}: there is no problem section.")
    return problem_of(Entry(document["problem"], str(path), "problem"), Path(path).stem)


def problem_of(part: Entry, name: str) -> Problem:
    """The problem of a `problem` section."""
    keys = part.entries()
    shape = keys.get("shape")
    if shape is None or isinstance(shape.value, str):
        return _layer(part, shape, name)
    if "name" in keys:
        name = keys["name"].text()
    if "instance" in keys:
        part.known_keys(("version", "shape", "instance", "name"), "a problem")
        return _shaped(shape, keys["instance"], name)
    extents = {key: value for key, value in part.entries_as_written().items() if key not in _BESIDE}
    return _shaped(shape, Entry({key: p.value for key, p in extents.items()}, part.where, part.path), name)


def _layer(part: Entry, shape: Entry | None, name: str) -> Problem:
    """A problem of the built-in shape, a convolution, whose extents stand beside the shape's name."""
    if shape is not None and shape.text().replace("_", "-") != "cnn-layer":
        raise shape.error(f"there is no built-in shape {shape.text()!r}; cnn-layer is one")
    keys = part.known_keys((*_LAYER_DIMS, *_STEPS, "shape", "version", "instance"), "a cnn-layer")
    if "instance" in keys:
        keys |= keys["instance"].known_keys((*_LAYER_DIMS, *_STEPS), "a cnn-layer")
    for dim in _LAYER_DIMS:
        if dim not in keys:
            raise part.error(f"{dim} is missing")
    wide, high, wide_gap, high_gap = (keys[step].count() if step in keys else 1 for step in _STEPS)
    return convolution(
        {dim: keys[dim].count(at_most=_MAX_EXTENT) for dim in _LAYER_DIMS},
        stride=(wide, high),
        dilation=(wide_gap, high_gap),
        name=name,
    )


def _shaped(shape: Entry, instance: Entry, name: str) -> Problem:
    keys = shape.known_keys(("name", "dimensions", "coefficients", "data_spaces", "version"), "a shape")
    for key in ("dimensions", "data_spaces"):
        if key not in keys:
            raise shape.error(f"{key} is missing")
    dims = keys["dimensions"].names()
    if len(dims) > _MAX_PARTS:
        raise keys["dimensions"].error(f"{len(dims)} dims; at most {_MAX_PARTS} are taken")
    twice = next((d for i, d in enumerate(dims) if d in dims[:i]), None)
    if twice is not None:
        raise keys["dimensions"].error(f"the dim {twice} is given twice")
    steps = _coefficients(keys["coefficients"]) if "coefficients" in keys else {}
    given = instance.known_keys((*dims, *steps, *_IMPLIED, "densities"), "this instance")
    if "densities" in given and given["densities"].value:
        raise given["densities"].error("sparse data is not modelled; leave it out for dense data")
    for step in steps:
        if step in given:
            steps[step] = given[step].count()
    for dim in dims:
        if dim not in given:
            raise instance.error(f"the extent of {dim} is missing")
    operands = _operands(keys["data_spaces"], dims, steps)
    extents = tuple((dim, given[dim].count(at_most=_MAX_EXTENT)) for dim in dims)
    return Problem(name, extents, operands)


def _coefficients(part: Entry) -> dict[str, int]:
    coefficients: dict[str, int] = {}
    for item in part.items():
        keys = item.known_keys(("name", "default"), "a coefficient")
        if "name" not in keys:
            raise item.error("a coefficient needs a name")
        coefficients[keys["name"].text()] = keys["default"].count() if "default" in keys else 1
    return coefficients


def _operands(part: Entry, dims: tuple[str, ...], steps: dict[str, int]) -> tuple[Operand, ...]:
    spaces: list[tuple[str, bool, tuple[tuple[Term, ...], ...]]] = []
    for item in part.items():
        keys = item.known_keys(("name", "projection", "read_write"), "a data space")
        for key in ("name", "projection"):
            if key not in keys:
                raise item.error(f"{key} is missing")
        is_written = keys["read_write"].flag() if "read_write" in keys else False
        axes = tuple(_axis(axis, dims, steps) for axis in keys["projection"].items())
        spaces.append((keys["name"].text(), is_written, axes))
    for what, number in (
        ("data spaces", len(spaces)),
        ("axes", max((len(a) for *_, a in spaces), default=0)),
    ):
        if number > _MAX_PARTS:
            raise part.error(f"{number} {what}; at most {_MAX_PARTS} are taken")
    names = [name for name, _, _ in spaces]
    if len(set(names)) != len(names):
        raise part.error("two data spaces have the same name")
    if sum(is_written for _, is_written, _ in spaces) != 1:
        raise part.error("exactly one data space is written (read-write: true)")
    read = [name for name, is_written, _ in spaces if not is_written]
    weights = [name for name in read if kind_of(name) is TensorKind.WEIGHT] or [
        name for name in read[:1] if kind_of(name) is None
    ]
    return tuple(
        Operand(
            name,
            TensorKind.OUTPUT if is_written else TensorKind.WEIGHT if name in weights else TensorKind.INPUT,
            axes,
        )
        for name, is_written, axes in spaces
    )


def kind_of(name: str) -> TensorKind | None:
    """What a data space's name says that it holds; None if nothing."""
    lower = name.lower()
    for kind, words in (
        (TensorKind.WEIGHT, ("weight", "filter", "kernel")),
        (TensorKind.INPUT, ("input", "ifmap", "activation")),
        (TensorKind.OUTPUT, ("output", "ofmap", "psum", "result")),
    ):
        if any(word in lower for word in words):
            return kind
    return None


def _axis(part: Entry, dims: tuple[str, ...], steps: dict[str, int]) -> tuple[Term, ...]:
    """One axis: a sum of products of a dim and steps; `[C]` and `C` are short for `[[C]]`."""
    if isinstance(part.value, str):
        return (_term(part, (part.text(),), dims, steps),)
    terms = list(part.items())
    if terms and all(isinstance(term.value, str) for term in terms):
        return (_term(part, part.names(), dims, steps),)
    products = tuple(_term(term, term.names(), dims, steps) for term in terms)
    if not products:
        raise part.error("an axis without any dim")
    summed_dims = [dim for dim, _ in products]
    if len(set(summed_dims)) != len(summed_dims):
        raise part.error("a dim occurs twice in one axis; give the sum of its steps as one coefficient")
    return products


def _term(part: Entry, names: tuple[str, ...], dims: tuple[str, ...], steps: dict[str, int]) -> Term:
    factors = [name for name in names if name in dims]
    for name in names:
        if name not in dims and name not in steps:
            raise part.error(f"{name!r} is neither a dimension nor a coefficient")
    if len(factors) != 1:
        raise part.error(f"a product has exactly one dimension, not {len(factors)}")
    step = 1
    for name in names:
        step *= steps.get(name, 1)
    return factors[0], step
