"""Arrays that models are run on: from a file, or random ones."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.errors import InputError, UsageError
from tilewright.files import npz_bytes, read_npz, write_output

if TYPE_CHECKING:
    import numpy as np

    from tilewright.compiled_facts import TensorInfo

Array: TypeAlias = "np.ndarray[Any, Any]"
Feed: TypeAlias = "Mapping[str, Array] | str | Path | None"
"""Arrays by name, an .npz file of them, or None for random ones."""


def read_arrays(path: Path, specs: Sequence[TensorInfo] = ()) -> dict[str, Array]:
    """Named arrays of an .npz file, without pickles; `specs` say which are of a type the format lacks.

    Raises:
        UsageError: not such a file.
    """
    try:
        return read_npz(path, {spec.name: spec.dtype.numpy for spec in specs})
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file. Write one with numpy.savez(path, x=array).") from None
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.EISDIR:
            raise UsageError(
                f"{path}: is a folder; give an .npz file, as numpy.savez(path, x=array) writes it."
            ) from None
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise UsageError(
            f"{path}: not a readable .npz file ({reason}). Write it with numpy.savez(path, x=array)."
        ) from error


def feed_of(given: Feed, specs: Sequence[TensorInfo], seed: int) -> Mapping[str, Array]:
    """Arrays as they were given, those of an .npz file, or random ones where nothing was given."""
    if given is None:
        return random_feed(specs, seed)
    return given if isinstance(given, Mapping) else read_arrays(Path(given), specs)


@contextmanager
def running_on(given: Feed) -> Iterator[None]:
    """Around runs on `feed_of`: a model that cannot use random values needs others."""
    try:
        yield
    except InputError as error:
        if given is not None:
            raise
        raise InputError(f"on random inputs, {error} Give others with -i FILE.npz.") from error


def random_feed(inputs: Sequence[TensorInfo], seed: int) -> dict[str, Array]:
    """Random values for every input: normal for floats, zeros and ones for integers.

    Raises:
        UsageError: an input of text, one whose shape is open, or a negative seed.
    """
    import numpy as np

    from tilewright.compiled_facts import open_shape_text

    if seed < 0:
        raise UsageError(f"seed {seed}: give a number that is not negative.")
    rng = np.random.default_rng(seed)
    feed: dict[str, Array] = {}
    for spec in inputs:
        open_text = open_shape_text(spec)
        if open_text is not None:
            raise UsageError(open_text)
        kind = np.dtype(spec.dtype.numpy).kind
        if kind in "OSU":
            raise UsageError(f"input {spec.name!r} is {spec.dtype}: give its values with -i FILE.npz.")
        is_float = spec.dtype.is_float or kind == "c"
        values = rng.standard_normal(spec.shape) if is_float else rng.integers(0, 2, spec.shape)
        feed[spec.name] = np.asarray(values).astype(spec.dtype.numpy)
    return feed


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays as one .npz file, whole or not at all."""
    write_output(path, npz_bytes(arrays))
