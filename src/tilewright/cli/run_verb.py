"""`tilewright run`: one inference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from tilewright.api.inputs import feed_of, running_on, write_arrays
from tilewright.arrays import Array
from tilewright.cli.flags import INPUTS, MODEL, CompileFlags
from tilewright.cli.output import hint, progress, show
from tilewright.errors import UsageError
from tilewright.files import is_artifact, require_other_file
from tilewright.results import Result, Table
from tilewright.specialise.facts import Specialisations
from tilewright.text.formatting import format_shape


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a run; `range` is its least and largest finite value."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    range: tuple[float, ...] | None

    @classmethod
    def of(cls, name: str, array: Array) -> Output:
        """What is said of an array."""
        return cls(name, str(array.dtype), tuple(array.shape), _range(array))


@dataclass(frozen=True, slots=True)
class RunOutputs(Result):
    """One inference; of a model whose shapes are open, also what was compiled for it."""

    outputs: tuple[Output, ...]
    written: Path | None
    specialisations: Specialisations | None = None

    def tables(self) -> tuple[Table, ...]:
        """A row for each output."""
        rows = tuple(
            (
                o.name,
                o.dtype,
                format_shape(o.shape),
                "" if o.range is None else f"{o.range[0]:.6g} .. {o.range[1]:.6g}",
            )
            for o in self.outputs
        )
        return (Table(("output", "type", "shape", "range"), rows),)


def _range(array: Array) -> tuple[Any, Any] | None:
    """Least and largest finite value; None where there is none."""
    import numpy as np

    from tilewright.ir.dtype import DType

    dtype = DType.from_numpy(array.dtype)
    if not (dtype.is_float or dtype.is_integer):
        return None
    wide = array.astype(np.float64) if dtype.is_float else array
    finite = wide[np.isfinite(wide)]
    return (finite.min().item(), finite.max().item()) if finite.size else None


def run(
    flags: CompileFlags,
    model: Path = MODEL,
    inputs: Path | None = INPUTS,
    outputs: Path | None = typer.Option(None, "--output", "-o", help="Outputs: an .npz file to write."),
    random: bool = typer.Option(False, "--random", help="Random inputs instead of a file."),
) -> None:
    """Run a model or an artifact once, and show the shape and range of each output.

    Example: `tilewright run resnet50.tw -i x.npz -o y.npz`.
    """
    if (inputs is None) != random:
        raise UsageError("give the inputs with -i FILE.npz, or --random; one of the two.")
    from tilewright.api.artifacts import open_or_compile
    from tilewright.specialise.model import OpenCompiledModel

    options = flags.options()
    if outputs is not None:
        require_other_file(outputs, model, inputs)
    with progress(f"loading {model.name}") as update:
        compiled = open_or_compile(model, options, update, flags.asked)
        feed = feed_of(inputs, compiled.get_inputs(), options.seed)
        with running_on(inputs):
            results = compiled.run(None, feed)
    named = dict(zip([o.name for o in compiled.get_outputs()], results, strict=True))
    if outputs is not None:
        write_arrays(outputs, named)
    made = compiled.specialisations if isinstance(compiled, OpenCompiledModel) else None
    found = RunOutputs(tuple(Output.of(n, a) for n, a in named.items()), outputs, made)
    if not show("run", found, of=compiled):
        return
    for remark in () if is_artifact(model) else compiled.remarks:  # those of artifacts were warnings
        hint(remark)
    if made is not None:
        hint(str(made))
    if outputs is not None:
        hint(f"written to {outputs}")
