"""A serialised model in two, read once: the data of large initializers as arrays, and the rest to be parsed.

A parser would hold the data beside the bytes that it was given, and hand out a copy of them. Of a file that
is mapped the data are not even read.
"""

from __future__ import annotations

import os
from io import BufferedIOBase

import numpy as np

from tilewright.arrays import Array
from tilewright.files import Bytes
from tilewright.frontend.onnx.limits import MAX_FIELDS
from tilewright.records import dataclass
from tilewright.system.mapped_file import MappedFile

MIN_BYTES = 1 << 16
"""Of data that are worth an array of their own."""

_GRAPH_OF_MODEL, _INITIALIZER_OF_GRAPH, _RAW_DATA_OF_TENSOR = 7, 5, 9
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """`rest` is the model without the data of the initializers that `data` has by number; `pieces`, one
    behind the other, are all bytes that were read.
    """

    rest: bytes
    data: dict[int, Array]
    pieces: tuple[Bytes, ...]
    size_bytes: int


def split_model(file: BufferedIOBase, size_bytes: int, mapped: MappedFile | None = None) -> Split:
    """Read a model of so many bytes; large data stay where they are in the `mapped` file, if that is given.

    What no writer of models would write stays whole, and the parser says what it is: fields that come twice,
    or reach beyond the message that they are in, and more than `MAX_FIELDS`.
    """
    stream = _Stream(file, size_bytes, mapped)
    data: dict[int, Array] = {}
    rest = bytearray()
    try:
        rest = _model(stream, data)
    except _IrregularError:
        data = {}
    pieces = stream.finished()
    more = file.read()  # nothing, where all went well
    if data and not more:
        return Split(bytes(rest), data, pieces, size_bytes)
    whole = b"".join((*pieces, more)) if more or len(pieces) > 1 else bytes(pieces[0])
    return Split(whole, {}, (whole,), len(whole))


class _IrregularError(Exception):
    """Bytes that are no message, or one that no encoder writes."""


class _Stream:
    """Bytes in their order, each read once."""

    def __init__(self, file: BufferedIOBase, size_bytes: int, mapped: MappedFile | None) -> None:
        self.at = 0
        self.end = size_bytes
        self._file, self._mapped = file, mapped
        self._pieces: list[Bytes] = []
        self._small = bytearray()
        self._num_fields = 0

    def take(self, count: int) -> bytes:
        """The next bytes."""
        taken = self._file.read(count)
        self._small += taken
        self.at += len(taken)
        if len(taken) != count:
            raise _IrregularError
        return taken

    def take_array(self, count: int) -> Array:
        """The next bytes, in memory of their own or of the mapped file."""
        mapped = self._mapped
        array = np.empty(count, np.uint8) if mapped is None else mapped.array(self.at, count)
        self._pieces += (bytes(self._small), array.data)
        self._small.clear()
        if mapped is not None:
            self._file.seek(count, os.SEEK_CUR)
            self.at += count
            return array
        num_read = 0
        while num_read < count:
            added = self._file.readinto(array.data[num_read:])
            if not added:
                self._pieces[-1] = array.data[:num_read]
                raise _IrregularError
            num_read += added
        self.at += count
        array.flags.writeable = False
        return array

    def varint(self) -> tuple[bytes, int]:
        """The next number, and how it is written."""
        taken, value = b"", 0
        while len(taken) < 10:
            byte = self.take(1)
            taken += byte
            value |= (byte[0] & 127) << 7 * (len(taken) - 1)
            if byte[0] < 128:
                return taken, value
        raise _IrregularError

    def tag(self) -> tuple[bytes, int]:
        """The begin of the next field: its number and its kind."""
        self._num_fields += 1
        if self._num_fields > MAX_FIELDS:
            raise _IrregularError
        return self.varint()

    def length(self, end: int) -> tuple[bytes, int]:
        """That of a field, which ends within its message."""
        taken, count = self.varint()
        if count > end - self.at:
            raise _IrregularError
        return taken, count

    def finished(self) -> tuple[Bytes, ...]:
        """All that was read."""
        last = bytes(self._small)
        self._small.clear()
        return (*self._pieces, last)


def _model(stream: _Stream, data: dict[int, Array]) -> bytearray:
    rest, has_graph = bytearray(), False
    while stream.at < stream.end:
        tag, key = stream.tag()
        if key == _GRAPH_OF_MODEL << 3 | _BYTES:
            if has_graph:  # the parser would make one graph of both
                raise _IrregularError
            has_graph = True
            _, count = stream.length(stream.end)
            rest += tag + _sized(_graph(stream, stream.at + count, data))
        else:
            rest += tag + _field(stream, key, stream.end)
    return rest


def _graph(stream: _Stream, end: int, data: dict[int, Array]) -> bytearray:
    rest, num_initializers = bytearray(), 0
    while stream.at < end:
        tag, key = stream.tag()
        if key == _INITIALIZER_OF_GRAPH << 3 | _BYTES:
            size, count = stream.length(end)
            if count < MIN_BYTES:
                rest += tag + size + stream.take(count)
            else:
                tensor, array = _tensor(stream, stream.at + count)
                rest += tag + _sized(tensor)
                if array is not None:
                    data[num_initializers] = array
            num_initializers += 1
        else:
            rest += tag + _field(stream, key, end)
    _require_at(stream, end)
    return rest


def _tensor(stream: _Stream, end: int) -> tuple[bytearray, Array | None]:
    rest, array, has_data = bytearray(), None, False
    while stream.at < end:
        tag, key = stream.tag()
        if key != _RAW_DATA_OF_TENSOR << 3 | _BYTES:
            rest += tag + _field(stream, key, end)
            continue
        if has_data:
            raise _IrregularError
        has_data = True
        size, count = stream.length(end)
        if count < MIN_BYTES:
            rest += tag + size + stream.take(count)
        else:
            array = stream.take_array(count)
    _require_at(stream, end)
    return rest, array


def _field(stream: _Stream, key: int, end: int) -> bytes:
    """A field behind its tag, as it is."""
    kind = key & 7
    if kind == _VARINT:
        return stream.varint()[0]
    if kind == _BYTES:
        size, count = stream.length(end)
        return size + stream.take(count)
    if kind not in (_FIXED_64, _FIXED_32):
        raise _IrregularError
    return stream.take(8 if kind == _FIXED_64 else 4)


def _require_at(stream: _Stream, end: int) -> None:
    if stream.at != end:
        raise _IrregularError


def _sized(message: bytearray) -> bytes:
    """A message behind its length."""
    count, size = len(message), bytearray()
    while count > 127:
        size.append(count & 127 | 128)
        count >>= 7
    return bytes(size) + bytes((count,)) + message
