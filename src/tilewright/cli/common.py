"""Flags that mean the same in every verb, and what verbs do with models and arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tilewright.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from tilewright.compiled import CompiledModel, TensorInfo
    from tilewright.options import Options

MODEL = typer.Argument(help="An ONNX file (or an artifact written by `tilewright compile`).")
TARGET = typer.Option("cpu", "--target", "-t", help="cpu, interpreter or null.")
SHAPES = typer.Option(None, "--shapes", help="Sizes the model leaves open: x:1x3x224x224,mask:1x128.")
THREADS = typer.Option(None, "--threads", help="Worker threads; default: the cores this process may use.")
ISA = typer.Option(None, "--isa", help="Instruction set: host, avx512 or avx2.")
PARTITION = typer.Option("auto", "--partition", help="How to cut the graph: auto, layerwise, none, random.")
SCHEDULE = typer.Option("auto", "--schedule", help="How to order kernels: auto, sequential, greedy, random.")
DISABLE_PASS = typer.Option([], "--disable-pass", help="Leave out a graph pass; may be repeated.")
MAX_MEMORY = typer.Option(None, "--max-memory", help="Refuse a larger activation arena: 512MiB.")
TIMEOUT = typer.Option(None, "--timeout", help="Give up compiling after this many seconds.")
SEED = typer.Option(0, "--seed", help="Seed of searches and of random inputs.")
CACHE = typer.Option(None, "--cache", help="Folder of the kernel cache; default: yours.")
NO_CACHE = typer.Option(False, "--no-cache", help="Neither read nor write the kernel cache.")


def make_options(
    *,
    target: str = "cpu",
    shapes: str | None = None,
    threads: int | None = None,
    isa: str | None = None,
    partition: str = "auto",
    schedule: str = "auto",
    disable_pass: Sequence[str] = (),
    dump_after: Sequence[str] = (),
    max_memory: str | None = None,
    timeout: float | None = None,
    seed: int = 0,
    cache: Path | None = None,
    no_cache: bool = False,
) -> Options:
    """The options that the flags ask for."""
    from tilewright.options import Options, parse_bytes, parse_shapes
    from tilewright.passes import PASSES

    for name in (*disable_pass, *dump_after):
        PASSES.get(name)  # an unknown name is an error that lists close ones
    return Options(
        target=target,
        shapes=parse_shapes(shapes) if shapes else {},
        threads=threads,
        isa=isa,
        partition=partition,
        schedule=schedule,
        disabled_passes=tuple(disable_pass),
        dump_after=tuple(dump_after),
        max_memory_bytes=parse_bytes(max_memory) if max_memory else None,
        timeout_s=timeout,
        seed=seed,
        cache_dir=cache,
        no_cache=no_cache,
    )


def is_artifact(path: Path) -> bool:
    """Whether a file is an artifact, by its name or by being a zip archive."""
    return path.suffix == ".tw" or (path.is_file() and zipfile.is_zipfile(path))


def open_or_compile(path: Path, options: Options, update: Any) -> CompiledModel:
    """The compiled model behind a file: an artifact is opened, a model compiled."""
    import tilewright as tw

    if is_artifact(path):
        return tw.open(path, threads=options.threads)
    return tw.compile(path, options=options, progress=update)


def read_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Named arrays of an .npz file, without pickles.

    Raises:
        UsageError: not such a file.
    """
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as archive:
            if isinstance(archive, np.ndarray):
                raise UsageError(
                    f"{path}: expected an .npz file with one array per input, got a single array."
                )
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file.") from None
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"{path}: not a readable .npz file ({reason}). Write it with numpy.savez."
        ) from error


def random_feed(inputs: Sequence[TensorInfo], seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Random values for every input: normal for floats; small non-negative numbers for integers."""
    import numpy as np

    rng = np.random.default_rng(seed)
    feed: dict[str, np.ndarray[Any, Any]] = {}
    for spec in inputs:
        if spec.dtype.is_float:
            array = rng.standard_normal(spec.shape).astype(spec.dtype.numpy)
        else:
            array = rng.integers(0, 2, spec.shape).astype(spec.dtype.numpy)
        feed[spec.name] = array
    return feed


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write arrays as one .npz file, whole or not at all."""
    import io

    import numpy as np

    from tilewright.files import write_atomically

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
    write_atomically(path, buffer.getvalue())


def host_facts() -> dict[str, Any]:
    """The machine, as every report names it."""
    from tilewright.hardware.probe import probe_host

    facts = probe_host()
    return {
        "cpu": facts.cpu_name,
        "architecture": facts.architecture,
        "cores": facts.num_affinity_cores,
        "threads": facts.num_threads,
    }
