"""How much of a model's bytes is structure, seen without parsing: parsed, that takes fifty times the room."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import count
from typing import TypeAlias

from tilewright.frontend.onnx.limits import MAX_FIELDS

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
