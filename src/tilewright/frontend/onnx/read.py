"""From a path, bytes or a `ModelProto` to a parsed model, reading regular files only."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tilewright.errors import ModelRejected, UsageError, error_context
from tilewright.files import NotRegularFile, open_regular
from tilewright.frontend.onnx import native
from tilewright.frontend.onnx.external import external_files, open_external
from tilewright.frontend.onnx.limits import MAX_MODEL_BYTES, MAX_NODES, MAX_STRUCTURE_BYTES
from tilewright.frontend.onnx.origin import Origin
from tilewright.frontend.onnx.protos import bounded_messages, require_few_parts
from tilewright.frontend.onnx.wire import structure_bytes

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

Source: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto


@dataclass(slots=True, eq=False)
class Opened:
    """A model that was read and parsed from bytes; `locations` are other files that it names.

    The bytes are needed for nothing but their digest, and kept until somebody asks for it.
    """

    model: onnx.ModelProto
    origin: Origin
    size_bytes: int
    locations: tuple[str, ...]
    _data: bytes
    _digest: Hash | None = None

    def sha256(self) -> str:
        """Of everything the model consists of, in hex: its bytes and those of its external data.

        Reads external data whatever they are: call it when the model has been checked.
        """
        if self._digest is None:
            self._digest, self._data = hashlib.sha256(self._data), b""
        digest = self._digest.copy()
        for location in self.locations:
            with open_external(self.origin, location) as file:
                digest.update(location.encode())
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()


def open_model(source: Source) -> Opened:
    """Read and parse a model. A `ModelProto` is copied, so that the caller's object is never changed.

    Raises:
        UsageError: the file does not exist or cannot be read.
        ModelRejected: it is not an ONNX model.

    >>> len(open_model(onnx.ModelProto(ir_version=8)).sha256())
    64
    """
    native.warm_up()
    if isinstance(source, onnx.ModelProto):
        data, origin = source.SerializeToString(deterministic=True), Origin("the given model", None)
        require_few_parts(source, len(data), origin.label)
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        return Opened(copy, origin, len(data), (), data)
    if isinstance(source, bytes | bytearray | memoryview):
        data, origin = bytes(source), Origin("the given bytes", None)
        return Opened(_parse(data, origin.label), origin, len(data), (), data)
    if not isinstance(source, str | os.PathLike):
        raise UsageError(
            f"cannot load a model from {type(source).__name__}: give a path, bytes or an onnx.ModelProto."
        )
    path = Path(source)
    data = read_regular_file(path)
    model = _parse(data, str(path))
    with error_context(f"in {path}"), bounded_messages():
        locations = tuple(external_files(model))
    return Opened(model, Origin(str(path), path.parent), len(data), locations, data)


def read_regular_file(path: Path) -> bytes:
    """Bytes of a regular file; a link to one is followed, for the user named it."""
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; check the path.") from None
    except NotRegularFile:
        if path.is_dir():
            raise ModelRejected(f"{path} is a folder; give the .onnx file inside it.") from None
        raise ModelRejected(f"{path} is not a regular file; give the path of an .onnx file.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{path}: cannot be opened ({reason}); check the path.") from error
    with open(descriptor, "rb") as file:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes > MAX_MODEL_BYTES:
            raise ModelRejected(
                f"{path} has {size_bytes} bytes, more than the 2 GiB an ONNX file can have; "
                "save it again with external data (onnx.save_model(..., save_as_external_data=True))."
            )
        return file.read()


def _parse(data: bytes, label: str) -> onnx.ModelProto:
    if not data:
        raise ModelRejected(f"{label}: empty, not an ONNX model; export or download it again.")
    if len(data) > MAX_STRUCTURE_BYTES and (size := structure_bytes(data)) > MAX_STRUCTURE_BYTES:
        raise ModelRejected(
            f"{label}: {size} bytes of it are not weights, more than {MAX_STRUCTURE_BYTES}; keep large "
            "constants in tensors."
        )
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ModelRejected(
            f"{label}: not an ONNX model, or cut off, or nested too deeply ({len(data)} bytes that are no "
            "ModelProto); export or download it again."
        ) from error
    if not model.HasField("graph") or not model.ir_version:
        missing = "graph" if model.ir_version else "ir_version"
        raise ModelRejected(f"{label}: not an ONNX model (no {missing}); export or download it again.")
    if len(model.graph.node) > MAX_NODES:  # before a look at each of them
        raise ModelRejected(
            f"{label}: {len(model.graph.node)} nodes, more than {MAX_NODES}; split the model."
        )
    require_few_parts(model, len(data), label)
    return model
