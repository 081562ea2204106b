"""How export knows a file that it wrote, so that it never replaces another's.

People edit headers and examples: those start with the SHA-256 of their text, and one that was changed is
theirs. Objects carry a mark in the section for the compiler's name, weights are known by their header.
"""

from __future__ import annotations

import hashlib
import os

from tilewright.embed.weights import HEADER_BYTES, MAGIC

OBJECT_MARK = "tilewright export"

_TEXT_MARK = "/* tilewright export; SHA-256 of the lines below, which export replaces only unchanged:\n * "
_MARK_END = " */\n"
_MAX_TEXT_BYTES = 64 << 20
_ELF = b"\x7fELF"
_PIECE_BYTES = 1 << 20


def marked(text: str) -> bytes:
    """A C file with its mark."""
    return f"{_TEXT_MARK}{_digest(text.encode())}{_MARK_END}{text}".encode()


def is_our_text(descriptor: int) -> bool:
    """Whether an open C file has its mark, and is unchanged since."""
    if os.fstat(descriptor).st_size > _MAX_TEXT_BYTES:
        return False
    data = _read(descriptor, 0, _MAX_TEXT_BYTES)
    head = len(_TEXT_MARK) + 64 + len(_MARK_END)
    return data[:head] == f"{_TEXT_MARK}{_digest(data[head:])}{_MARK_END}".encode()


def is_our_object(descriptor: int) -> bool:
    """Whether an open file is an object of export's."""
    mark, at, tail = OBJECT_MARK.encode(), 0, b""
    if _read(descriptor, 0, len(_ELF)) != _ELF:
        return False
    while piece := _read(descriptor, at, _PIECE_BYTES):
        if mark in tail + piece:
            return True
        tail, at = piece[-len(mark) :], at + len(piece)
    return False


def are_our_weights(descriptor: int) -> bool:
    """Whether an open file is a file of weights."""
    return _read(descriptor, 0, HEADER_BYTES)[: len(MAGIC)] == MAGIC


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read(descriptor: int, offset: int, size_bytes: int) -> bytes:
    pieces: list[bytes] = []
    while size_bytes > 0 and (piece := os.pread(descriptor, min(size_bytes, _PIECE_BYTES), offset)):
        pieces.append(piece)
        offset, size_bytes = offset + len(piece), size_bytes - len(piece)
    return b"".join(pieces)
