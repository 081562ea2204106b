"""From a path, bytes or a `ModelProto` to a parsed model, reading regular files only."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import numpy_helper

from tilewright.edges import NO_EDGES, Edges
from tilewright.errors import ModelRejected, UsageError, error_context
from tilewright.files import Bytes, NotRegularFile, open_regular
from tilewright.frontend.onnx import native
from tilewright.frontend.onnx.external import external_files, is_external, open_external, read_external
from tilewright.frontend.onnx.limits import MAX_FIELDS, MAX_MODEL_BYTES, MAX_NODES, MAX_STRUCTURE_BYTES
from tilewright.frontend.onnx.origin import Origin
from tilewright.frontend.onnx.protos import bounded_messages, require_few_parts
from tilewright.frontend.onnx.split import Split, split_model
from tilewright.records import dataclass
from tilewright.system.mapped_file import MappedFile, let_go

if TYPE_CHECKING:
    from hashlib import _Hash as Hash


Source: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto


_MIN_SPLIT_BYTES = 1 << 20
_ARCHIVE = b"PK\x03\x04"  # how a zip archive begins, and no model
"""Of models: smaller ones are parsed whole."""


@dataclass(slots=True, eq=False)
class Opened:
    """A model that was read and parsed from bytes; `locations` are other files that it names.

    Large initializers of its graph have their data in `data`, by their number, and not in the message.
    `edges` are those of a model that was imported: its message has numbers for texts from then on.
    The bytes are needed for nothing but their digest, and kept until that is asked for.
    """

    model: onnx.ModelProto
    origin: Origin
    size_bytes: int
    locations: tuple[str, ...]
    _pieces: tuple[Bytes, ...]
    data: dict[int, np.ndarray[Any, Any]] = field(default_factory=dict)
    _digest: Hash | None = None
    edges: Edges = NO_EDGES

    def embed(self) -> None:
        """Put all data into the message, for readers that take it as a whole."""
        for number, array in self.data.items():
            self.model.graph.initializer[number].raw_data = array.tobytes()
        self.data = {}

    def sha256(self) -> str:
        """Of everything the model consists of, in hex: its bytes and those of its external data.

        Reads external data whatever they are: call it when the model has been checked.
        """
        if self._digest is None:
            self._digest = hashlib.sha256()
            for piece in self._pieces:
                self._digest.update(piece)
                if isinstance(piece, memoryview):
                    let_go(np.asarray(piece))
            self._pieces = ()
        digest = self._digest.copy()
        for location in self.locations:
            with open_external(self.origin, location) as file:
                digest.update(location.encode())
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()


def files_beside(source: Source) -> tuple[Path, ...]:
    """The files that a model names, where it is a file itself.

    Raises:
        UsageError: the file does not exist or cannot be read.
        ModelRejected: it is not an ONNX model, or names files that it must not.
    """
    if not isinstance(source, str | os.PathLike):
        return ()
    return tuple(Path(source).parent / location for location in open_model(source).locations)


def embedded_model(source: Source) -> onnx.ModelProto:
    """A model as one message, the data of its main graph from other files included.

    Raises:
        UsageError: the file does not exist or cannot be read.
        ModelRejected: it is not an ONNX model, or names files that it must not.
    """
    opened = open_model(source)
    opened.embed()
    with error_context(f"in {opened.origin.label}"):
        for tensor in opened.model.graph.initializer:
            if is_external(tensor):
                data = read_external(tensor, opened.origin)
                tensor.CopyFrom(numpy_helper.from_array(data, tensor.name))
    return opened.model


def open_model(source: Source, *, maps: bool = False) -> Opened:
    """Read and parse a model. A `ModelProto` is copied, so that the caller's object is never changed.

    `maps`: large data stay in the file, which is mapped.

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
        split = _split(data)
        del data
        return Opened(_copied(source, split), origin, split.size_bytes, (), split.pieces, split.data)
    if isinstance(source, bytes | bytearray | memoryview):
        split, origin = _split(bytes(source)), Origin("the given bytes", None)
        return Opened(_parse(split, origin.label), origin, split.size_bytes, (), split.pieces, split.data)
    if not isinstance(source, str | os.PathLike):
        raise UsageError(
            f"cannot load a model from {type(source).__name__}: give a path, bytes or an onnx.ModelProto."
        )
    path = Path(source)
    with _regular_file(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes < _MIN_SPLIT_BYTES:
            split = _whole(file.read())
        else:
            mapped = MappedFile.of(file.fileno(), str(path)) if maps else None
            split = split_model(file, size_bytes, mapped)
    model = _parse(split, str(path))
    with error_context(f"in {path}"), bounded_messages():
        locations = tuple(external_files(model))
    origin = Origin(str(path), path.parent)
    return Opened(model, origin, split.size_bytes, locations, split.pieces, split.data)


def _copied(model: onnx.ModelProto, split: Split) -> onnx.ModelProto:
    """A copy of a model, without the data that its split has apart."""
    copy = onnx.ModelProto()
    try:
        if split.data:
            copy.ParseFromString(split.rest)
            return copy
    except DecodeError:  # the parser reads less deeply nested models than there are
        split.data.clear()
    copy.CopyFrom(model)
    return copy


def _split(data: bytes) -> Split:
    if len(data) < _MIN_SPLIT_BYTES:
        return _whole(data)
    return split_model(io.BytesIO(data), len(data))


def _whole(data: bytes) -> Split:
    return Split(data, {}, (data,), len(data))


@contextmanager
def _regular_file(path: Path) -> Iterator[io.BufferedReader]:
    """A regular file of a size that a model can have; a link to one is followed, for the user named it."""
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
        if file.peek(len(_ARCHIVE)).startswith(_ARCHIVE):
            raise UsageError(f"{path}: is an artifact or another archive; give the ONNX file.")
        yield file


def _parse(split: Split, label: str) -> onnx.ModelProto:
    data, num_bytes = split.rest, split.size_bytes
    if not num_bytes:
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
            f"{label}: not an ONNX model, or cut off, or nested too deeply ({num_bytes} bytes that are no "
            "ModelProto); export or download it again."
        ) from error
    if not model.HasField("graph") or not model.ir_version:
        missing = "graph" if model.ir_version else "ir_version"
        raise ModelRejected(f"{label}: not an ONNX model (no {missing}); export or download it again.")
    if len(model.graph.node) > MAX_NODES:  # before a look at each of them
        raise ModelRejected(
            f"{label}: {len(model.graph.node)} nodes, more than {MAX_NODES}; split the model."
        )
    require_few_parts(model, num_bytes, label)
    return model


# Which fields of a message are looked into, by number; None is data that take no more room when parsed.
Fields: TypeAlias = Mapping[int, "Fields | None"]

# float_data, int32_data, int64_data, raw_data, double_data, uint64_data
_TENSOR: dict[int, Fields | None] = dict.fromkeys((4, 5, 7, 9, 10, 11))
_ATTRIBUTE: dict[int, Fields | None] = {5: _TENSOR, 10: _TENSOR, 7: None, 8: None}  # t, tensors, floats, ints
_NODE: dict[int, Fields | None] = {5: _ATTRIBUTE}
_GRAPH: dict[int, Fields | None] = {1: _NODE, 5: _TENSOR}  # node, initializer
_ATTRIBUTE.update({6: _GRAPH, 11: _GRAPH})  # g, graphs
_MODEL: dict[int, Fields | None] = {7: _GRAPH, 25: {7: _NODE}}  # graph, functions

# Numbers of attributes as they are written, each in a field of its own: trees and label encoders have
# millions.
# Parsed, one of two bytes takes eight, and some more while it is looked at: they count for a part.
_PARTS_OF_A_NUMBER = 4
_NUMBERS = re.compile(rb"(?:\x3d.{4}){8,}|(?:\x40[\x80-\xff]{0,9}[\x00-\x7f]){8,}", re.DOTALL)
# Smaller messages count whole.
_SMALL_BYTES = 4096
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


def structure_bytes(data: bytes) -> int:
    """Bytes of a serialised model besides the data of its tensors.

    What is no message counts whole, and so does one of too many parts.

    >>> from onnx import helper
    >>> model = helper.make_model(helper.make_graph([], "g", [], []))
    >>> structure_bytes(model.SerializeToString()) == model.ByteSize()
    True
    """
    return _structure(memoryview(data), 0, len(data), _MODEL, count())


def _structure(data: memoryview, start: int, end: int, fields: Fields, seen: Iterator[int]) -> int:
    total, at = end - start, start
    while at < end and next(seen) < MAX_FIELDS:
        try:
            run = _NUMBERS.match(data, at, end) if fields is _ATTRIBUTE else None
            if run is not None:
                total -= (run.end() - at) * (_PARTS_OF_A_NUMBER - 1) // _PARTS_OF_A_NUMBER
                at = run.end()
                continue
            key, at = _varint(data, at)
            kind = key & 7
            if kind == _VARINT:
                _, at = _varint(data, at)
            elif kind == _BYTES:
                size, at = _varint(data, at)
                inner, number = fields.get(key >> 3), key >> 3
                if size > end - at:
                    return total
                if number in fields and size > _SMALL_BYTES:
                    total -= size if inner is None else size - _structure(data, at, at + size, inner, seen)
                at += size
            elif kind in (_FIXED_64, _FIXED_32):
                at += 8 if kind == _FIXED_64 else 4
            else:
                return total  # the parser will say what is wrong
        except (IndexError, RecursionError):
            return total
    return total


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError
