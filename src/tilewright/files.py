"""Files are written whole or not at all, or grow by whole lines; arrays in .npz files, without pickles."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from tilewright.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from tilewright.arrays import Array


Bytes = bytes | bytearray | memoryview


_ADVICE = {
    errno.ENOENT: "Check the path.",
    errno.ENOTDIR: "Check the path: a folder in it is a file.",
    errno.EISDIR: "Give a file, not a folder.",
    errno.EACCES: "Change its permissions, or give another path.",
    errno.EPERM: "Change its permissions, or give another path.",
    errno.EROFS: "Give a path on a file system that can be written.",
    errno.ENOSPC: "Free some space, or give a path on another disk.",
    errno.EDQUOT: "Free some space, or give a path on another disk.",
    errno.EFBIG: "Raise the limit on file sizes (ulimit -f), or give a path on another disk.",
    errno.ENAMETOOLONG: "Give a shorter name.",
}


def system_advice(error: OSError) -> str:
    """What a user can do about a file that the system refuses, in a sentence; empty where that is unknown."""
    return _ADVICE.get(error.errno or 0, "")


def require_other_file(output: Path, *sources: object) -> None:
    """Check that a file to be written is none of those that it is made from.

    `sources` that are no paths, such as bytes, are passed over.

    Raises:
        UsageError: it is one of them, be it by another name, and would replace it.
    """
    for source in sources:
        if isinstance(source, str | os.PathLike):
            with contextlib.suppress(OSError):
                if os.path.samefile(output, source):
                    raise UsageError(f"{output}: would replace what was given; give another file with -o.")


def is_artifact(path: Path) -> bool:
    """Whether a file is an artifact, by its name or by being a zip archive."""
    if path.suffix == ".tw":
        return True
    import zipfile

    return os.path.isfile(path) and zipfile.is_zipfile(path)


def write_atomically(path: Path | str, data: Bytes | Iterable[Bytes]) -> None:
    """Write `data`, or its pieces, through a temporary file beside `path`: no reader ever sees a part.

    An interruption at any moment leaves the old file, or none. A link is followed. What is no file, such as
    /dev/stdout or a pipe, is written to instead of being replaced.

    Raises:
        OSError: it cannot be written; names `path`.
    """
    pieces = (data,) if isinstance(data, bytes | bytearray | memoryview) else data
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            with target.open("wb") as file:
                file.writelines(pieces)
        else:
            _replace(target, pieces)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_output(path: Path | str, data: Bytes | Iterable[Bytes]) -> None:
    """`write_atomically` of a file that a user asked for.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        write_atomically(path, data)
    except OSError as error:
        raise not_writable(path, error) from error


def require_writable(path: Path | str) -> None:
    """Refuse what `write_output` could not write, before work that takes long.

    Raises:
        UsageError: as `write_output`: it is a folder, or one that is missing or that others own.
    """
    target = Path(os.path.realpath(path))
    code = 0
    if target.is_dir():
        code = errno.EISDIR
    elif target.is_file() or not target.exists():
        if not target.parent.is_dir():
            code = errno.ENOTDIR if target.parent.exists() else errno.ENOENT
        elif not os.access(target.parent, os.W_OK | os.X_OK):
            code = errno.EACCES
    if code:
        raise not_writable(path, OSError(code, os.strerror(code)))


def not_writable(path: Path | str, error: OSError) -> UsageError:
    """What is said of a file that a user named and the system does not write, with what to do."""
    text = f"{path}: cannot be written ({error.strerror or error}). {system_advice(error)}"
    return UsageError(text.rstrip())


def _replace(target: Path, pieces: Iterable[Bytes]) -> None:
    with replacing(target) as file:
        file.writelines(pieces)


@contextlib.contextmanager
def replacing(path: Path | str) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when all of it is written, and nothing if that fails."""
    target = Path(path)
    temporary = target.with_name(f".tilewright-{os.urandom(8).hex()}.part")
    # The system applies the user's umask to this mode. Asking for the umask would mean to change it, for all
    # threads, for a moment in which others' files are open to everyone. O_EXCL follows no link.
    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


class NotRegularFile(OSError):
    """A folder, a pipe or a device in place of a file."""


def open_regular(path: Path | str) -> int:
    """A descriptor of a file to be read. Opening never waits, as it would for a pipe without a writer.

    Raises:
        NotRegularFile: it is no regular file; a link to one is followed.
        OSError: it cannot be opened.
        ValueError: no file has such a name.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    descriptor = os.open(path, flags)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise NotRegularFile(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise NotRegularFile(errno.EINVAL, "not a regular file", str(path))
    return descriptor


@contextlib.contextmanager
def regular_file(path: Path | str) -> Iterator[BinaryIO]:
    """A file opened to be read, as by `open_regular`.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    with open(open_regular(path), "rb") as file:
        yield file


def read_at_most(path: Path | str, max_bytes: int) -> bytes:
    """The bytes of a regular file, or `max_bytes + 1` of them if it has more.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    with regular_file(path) as file:
        return file.read(max_bytes + 1)


def append_line(path: Path | str, line: bytes) -> None:
    """Add a line at once, in place of one that a process was killed while it wrote.

    Raises:
        OSError: it cannot be written.
    """
    with open(path, "ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(line + b"\n")


def appended_lines(data: bytes, begin: bytes) -> list[bytes]:
    """Lines of a file that `append_line` makes, all of which begin alike, without one that was cut off.

    What is at the end and begins otherwise is no such line, but another writer's: it is among the lines.

    >>> appended_lines(b'{"a":1}\\n{"a":', b'{"a"'), appended_lines(b"nonsense", b'{"a"')
    ([b'{"a":1}'], [b'nonsense'])
    """
    *lines, last = data.split(b"\n")
    return lines if last.startswith(begin[: len(last)]) else [*lines, last]


def npz_bytes(arrays: Mapping[str, Array]) -> bytes:
    """An .npz file; unlike numpy.savez it takes any name, and equal arrays give equal bytes."""
    import zipfile

    import numpy as np

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(member, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()


MAX_INFLATED_BYTES = 2 << 30
"""Of all compressed arrays of one .npz file together: a few megabytes may stand for any number."""


def read_npz(path: Path | str, dtypes: Mapping[str, np.dtype[Any]] | None = None) -> dict[str, Array]:
    """Arrays of an .npz file by name. The file may be hostile: it asks for no more memory than it says, and
    nothing in it runs.

    The format knows no bfloat16 and gives two bytes instead: those become what `dtypes` says, if it fits.

    Raises:
        ValueError: not an .npz file, or one with pickles in it; names the member.
        OSError: it cannot be read, or is no regular file.
    """
    import zipfile
    import zlib

    member = ""
    with regular_file(path) as file:
        begin = file.read(6)
        if begin.startswith(b"\x93NUMPY"):
            raise ValueError("it holds a single array without a name")
        if not begin.startswith(b"PK"):
            raise ValueError("it holds no arrays of numpy")
        try:
            with zipfile.ZipFile(file) as archive:
                arrays: dict[str, Array] = {}
                left_bytes = MAX_INFLATED_BYTES
                for info in archive.infolist():
                    member = info.filename
                    if info.compress_type != zipfile.ZIP_STORED:
                        left_bytes -= info.file_size
                    if left_bytes < 0:
                        raise ValueError(
                            f"compressed arrays of more than MAX_INFLATED_BYTES = {MAX_INFLATED_BYTES}; "
                            "numpy.savez does not compress"
                        )
                    with archive.open(info) as inner:
                        arrays[member.removesuffix(".npy")] = _read_npy(inner, info.file_size)
        except (
            zipfile.BadZipFile,
            RuntimeError,
            NotImplementedError,
            zlib.error,
            EOFError,
            ValueError,
        ) as error:
            # RuntimeError: encrypted; NotImplementedError: a compression that zipfile does not know.
            raise ValueError(f"{f'member {member[:80]!r}: ' if member else ''}{error}") from error
    for name, dtype in (dtypes or {}).items():
        array = arrays.get(name)
        if array is not None and array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
            arrays[name] = array.view(dtype)
    return arrays


def _read_npy(file: IO[bytes], size_bytes: int) -> Array:
    """The array of one .npy member, whose data are all that follows its header.

    Raises:
        ValueError: it is none.
    """
    import numpy as np
    from numpy.lib import format as npy

    try:
        version = npy.read_magic(file)
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, is_fortran, dtype = read_header(file)
    except Exception as error:  # numpy's reader of headers lets through whatever its parsers raise
        raise ValueError("it is no array of numpy, or its header is damaged") from error
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are pickles")
    if any(type(extent) is not int or extent < 0 for extent in shape):
        raise ValueError(f"its shape {str(shape)[:80]} is none")
    data_bytes = math.prod(shape) * dtype.itemsize
    if data_bytes != size_bytes - file.tell():
        raise ValueError(f"its header asks for {data_bytes} bytes, and {size_bytes - file.tell()} follow")
    try:
        array: Array = np.empty(shape[::-1] if is_fortran else shape, dtype)
    except (MemoryError, ValueError) as error:
        raise ValueError(f"the system does not give {data_bytes} bytes") from error
    view = memoryview(array.reshape(-1).view(np.uint8).data if data_bytes else b"")
    done = 0
    while done < data_bytes:
        count = file.readinto(view[done : done + (1 << 20)])  # type: ignore[attr-defined]  # ZipExtFile has it
        if not count:
            raise ValueError("it is cut off")
        done += count
    return array.T if is_fortran else array
