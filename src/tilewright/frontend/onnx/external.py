"""Weights kept in files beside the model, opened as if the model were an attack.

The rules: the location is relative and stays in the model's folder; no component is a symbolic link; the
file is regular and has one name only; offset, length and size agree with the file and the tensor. Each
component is opened relative to the one before with O_NOFOLLOW and judged by what was opened, so nothing
can be swapped between check and use.
"""

from __future__ import annotations

import os
import stat
from io import FileIO
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from tilewright.errors import ModelRejected
from tilewright.frontend.onnx.origin import Origin
from tilewright.frontend.onnx.protos import nested_tensors, quoted
from tilewright.frontend.onnx.tensors import tensor_dtype, tensor_shape, tensor_size_bytes
from tilewright.records import dataclass
from tilewright.system.mapped_file import MappedFile

_KEYS = frozenset({"location", "offset", "length", "checksum", "basepath"})
_MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ExternalRange:
    """Bytes `[offset_bytes, offset_bytes + length_bytes)` of one file in the model's folder."""

    location: str
    offset_bytes: int
    length_bytes: int


def is_external(tensor: TensorProto) -> bool:
    """Whether a tensor's data lie in another file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def external_files(model: ModelProto) -> tuple[str, ...]:
    """Locations of all files the model refers to, each once, sorted."""
    tensors = (*model.graph.initializer, *nested_tensors(model))
    return tuple(sorted({external_range(t).location for t in tensors if is_external(t)}))


def check_external_data(model: ModelProto, origin: Origin) -> int:
    """Apply every rule to every external tensor, reading no data. Returns the bytes of all of them.

    Raises:
        ModelRejected: one of them breaks a rule, or all together exceed this machine's memory.
    """
    total_bytes = 0
    for tensor in (*model.graph.initializer, *nested_tensors(model)):
        if is_external(tensor):
            entry = external_range(tensor)
            with open_external(origin, entry.location) as file:
                _check_range(tensor, entry, os.fstat(file.fileno()).st_size)
            total_bytes += entry.length_bytes
    available_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if total_bytes > available_bytes:
        raise ModelRejected(
            f"external data of {total_bytes} bytes exceed this machine's memory of {available_bytes} bytes; "
            "use a machine with more memory or a smaller model."
        )
    return total_bytes


def embed_external_attributes(model: ModelProto, origin: Origin) -> None:
    """Move external data of attributes and body initializers, which are small, into the messages."""
    for tensor in nested_tensors(model):
        if is_external(tensor):
            data = read_external(tensor, origin)
            tensor.raw_data = data.tobytes()
            tensor.ClearField("external_data")
            tensor.data_location = TensorProto.DEFAULT


def read_external(
    tensor: TensorProto, origin: Origin, maps: dict[str, MappedFile] | None = None
) -> np.ndarray[Any, Any]:
    """The data of an external tensor; with `maps`, files by location, they stay where they are."""
    entry = external_range(tensor)
    with open_external(origin, entry.location) as file:
        _check_range(tensor, entry, os.fstat(file.fileno()).st_size)
        mapped = None
        if maps is not None and entry.length_bytes:
            mapped = maps.get(entry.location) or MappedFile.of(file.fileno(), entry.location)
        if maps is not None and mapped is not None:
            maps[entry.location] = mapped
            mapped.require_unchanged()
            data = mapped.array(entry.offset_bytes, entry.length_bytes)
            return data.view(tensor_dtype(tensor).numpy.newbyteorder("<")).reshape(tensor_shape(tensor))
        data = np.empty(tensor_shape(tensor), tensor_dtype(tensor).numpy.newbyteorder("<"))
        if not _fill(data, file, entry.offset_bytes):
            raise ModelRejected(
                f"tensor {quoted(tensor.name)}: {quoted(entry.location)} changed during reading; try again."
            )
    return data


def _fill(data: np.ndarray[Any, Any], file: FileIO, offset_bytes: int) -> bool:
    """Read until the array is full; False if the file ends before."""
    view = memoryview(data.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # an ndarray is a buffer
    file.seek(offset_bytes)
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            return False
        done += count
    return True


def external_range(tensor: TensorProto) -> ExternalRange:
    """What the tensor's `external_data` entries say, checked on their own.

    Raises:
        ModelRejected: unknown or repeated keys, no location, numbers that are none.
    """
    where = f"tensor {quoted(tensor.name)}"
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key not in _KEYS:
            raise ModelRejected(f"{where}: unknown external data key {entry.key!r}; known: {sorted(_KEYS)}.")
        if entry.key in entries:
            raise ModelRejected(f"{where}: external data key {entry.key!r} is given twice; keep one.")
        entries[entry.key] = entry.value
    if entries.get("basepath"):
        raise ModelRejected(
            f"{where}: external data key 'basepath' is not accepted; put files beside the model."
        )
    if not entries.get("location"):
        raise ModelRejected(f"{where}: external data have no 'location'; save the model again.")
    size_bytes = tensor_size_bytes(tensor)
    offset = _number(where, "offset", entries.get("offset", "0"))
    length = _number(where, "length", entries.get("length", str(size_bytes)))
    if length != size_bytes:
        raise ModelRejected(
            f"{where}: external data key 'length' is {length}, but its shape {list(tensor.dims)} and type "
            f"need {size_bytes} bytes; save the model again."
        )
    return ExternalRange(entries["location"], offset, length)


def open_external(origin: Origin, location: str) -> FileIO:
    """Open a file inside the model's folder under the rules above.

    Raises:
        ModelRejected: the location breaks one of them.
    """
    if origin.folder is None:
        raise ModelRejected(
            f"the model refers to the file {quoted(location)}, but was not given as a file itself; "
            "load it by its path."
        )
    advice = "put a plain file into the model's folder"
    parts = location.split("/")
    if "\0" in location or "\\" in location or os.path.isabs(location) or ".." in parts:
        raise ModelRejected(f"external data {quoted(location)} would leave the model's folder; {advice}.")
    parts = [part for part in parts if part not in ("", ".")]
    if not parts:
        raise ModelRejected(f"external data {quoted(location)} name no file; {advice}.")
    try:
        descriptor = _open_below(origin.folder, parts)
    except OSError as error:
        reason = error.strerror or "unknown reason"
        raise ModelRejected(
            f"external data {quoted(location)} cannot be opened: {reason} (links are refused); {advice}."
        ) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ModelRejected(f"external data {quoted(location)} are not a regular file; {advice}.")
    if status.st_nlink > 1:
        os.close(descriptor)
        raise ModelRejected(f"external data {quoted(location)} have several names (hard link); {advice}.")
    return FileIO(descriptor, "rb")


def _open_below(folder: Any, parts: list[str]) -> int:
    base = os.O_RDONLY | os.O_CLOEXEC
    current = os.open(folder, base | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            inner = os.open(part, base | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
            os.close(current)
            current = inner
        # Non-blocking, so that a FIFO without a writer cannot hang the caller.
        return os.open(parts[-1], base | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=current)
    finally:
        os.close(current)


def _number(where: str, key: str, text: str) -> int:
    # Only ASCII digits: int() would take signs, blanks, underscores and other scripts' digits.
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= _MAX_OFFSET):
        raise ModelRejected(
            f"{where}: external data key {key!r} is {text[:40]!r}, expected a whole number from 0; "
            "save the model again."
        )
    return int(text)


def _check_range(tensor: TensorProto, entry: ExternalRange, file_bytes: int) -> None:
    end_bytes = entry.offset_bytes + entry.length_bytes
    if end_bytes > file_bytes:
        raise ModelRejected(
            f"tensor {quoted(tensor.name)}: bytes {entry.offset_bytes} to {end_bytes} of "
            f"{quoted(entry.location)} are wanted, but it has {file_bytes}; copy the file again."
        )
