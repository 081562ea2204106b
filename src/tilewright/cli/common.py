"""What verbs do with models and arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.cli.output import Update
from tilewright.errors import InputError, UsageError
from tilewright.files import npz_bytes, read_npz, write_atomically

if TYPE_CHECKING:
    import numpy as np

    from tilewright.compiled import CompiledModel, TensorInfo
    from tilewright.options import Options

    Array = np.ndarray[Any, Any]


def is_artifact(path: Path) -> bool:
    """Whether a file is an artifact, by its name or by being a zip archive."""
    return path.suffix == ".tw" or (path.is_file() and zipfile.is_zipfile(path))


def open_or_compile(path: Path, options: Options, update: Update) -> CompiledModel:
    """The compiled model behind a file: an artifact is opened, a model compiled.

    Raises:
        UsageError: an artifact, and options that only make sense while compiling.
    """
    import tilewright as tw

    if not is_artifact(path):
        return tw.compile(path, options=options, progress=update)
    if options.shapes:
        raise UsageError(f"{path}: an artifact's shapes are fixed; compile the model with --shapes instead.")
    return tw.open(path, threads=options.num_threads)


def algorithms_text(compiled: CompiledModel) -> str:
    """How many kernels each template made."""
    return ", ".join(f"{count} {name}" for name, count in compiled.algorithms.items()) or "none"


def read_arrays(path: Path, specs: Sequence[TensorInfo] = ()) -> dict[str, Array]:
    """Named arrays of an .npz file, without pickles; `specs` say which are of a type the format lacks.

    Raises:
        UsageError: not such a file.
    """
    try:
        return read_npz(path, {spec.name: spec.dtype.numpy for spec in specs})
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file. Write one with numpy.savez(path, x=array).") from None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise UsageError(
            f"{path}: not a readable .npz file ({reason}). Write it with numpy.savez(path, x=array)."
        ) from error


def inputs_or_random(path: Path | None, specs: Sequence[TensorInfo], seed: int) -> dict[str, Array]:
    """The arrays of a file, or random ones."""
    return random_feed(specs, seed) if path is None else read_arrays(path, specs)


@contextmanager
def running_on(path: Path | None) -> Iterator[None]:
    """Around runs on `inputs_or_random`: a model that cannot use random values needs a file's."""
    try:
        yield
    except InputError as error:
        if path is not None:
            raise
        raise InputError(f"on random inputs, {error} Give others with -i FILE.npz.") from error


def random_feed(inputs: Sequence[TensorInfo], seed: int) -> dict[str, Array]:
    """Random values for every input: normal for floats, zeros and ones for integers.

    Raises:
        UsageError: an input of text, or a negative seed.
    """
    import numpy as np

    if seed < 0:
        raise UsageError(f"seed {seed}: give a number that is not negative.")
    rng = np.random.default_rng(seed)
    feed: dict[str, Array] = {}
    for spec in inputs:
        kind = np.dtype(spec.dtype.numpy).kind
        if kind in "OSU":
            raise UsageError(f"input {spec.name!r} is {spec.dtype}: give its values with -i FILE.npz.")
        is_float = spec.dtype.is_float or kind == "c"
        values = rng.standard_normal(spec.shape) if is_float else rng.integers(0, 2, spec.shape)
        feed[spec.name] = np.asarray(values).astype(spec.dtype.numpy)
    return feed


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays as one .npz file, whole or not at all."""
    write_atomically(path, npz_bytes(arrays))


def host_facts() -> dict[str, Any]:
    """The machine, as every report names it."""
    from tilewright.hardware.probe import probe_host

    facts = probe_host()
    return {
        "cpu": facts.cpu_name,
        "architecture": facts.architecture,
        "cores": facts.num_affinity_cores,
        "threads": facts.num_threads,
        "quota_cores": facts.quota_cores,
        "memory_limit_bytes": facts.memory_limit_bytes,
    }


def model_facts(model_sha256: str, target: str) -> dict[str, Any]:
    """What every report on a model says first: which model, for what, on which machine."""
    return {"model_sha256": model_sha256, "target": target, "host": host_facts()}
