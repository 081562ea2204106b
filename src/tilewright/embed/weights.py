"""The file of weights that goes with an object: a header, then the constants as its kernels want them.

Header, 128 bytes, little-endian: 8 bytes `TWWEIGHT`; uint64 version; uint64 size of the data in bytes;
uint64 checksum of the data; 32 bytes that name the object it belongs to; zeros. The data start at byte 128,
so that a file mapped or read to a multiple of 64 bytes has them aligned.
"""

from __future__ import annotations

import struct

import numpy as np

from tilewright.arrays import Array

MAGIC = b"TWWEIGHT"
VERSION = 1
HEADER_BYTES = 128
IDENTITY_BYTES = 32


def checksum(data: Array) -> int:
    """Of data whose size is a multiple of 8 bytes: each 64-bit word times its odd number, modulo 2^64.

    >>> checksum(np.array([1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0], np.uint8))  # 1 * 1 + 2 * 3
    7
    """
    words = data.view("<u8")
    odd = np.arange(1, 2 * len(words), 2, dtype=np.uint64)
    return int((words * odd).sum(dtype=np.uint64))


def weights_file(data: Array, identity: bytes) -> tuple[bytes, memoryview]:
    """The whole file in pieces; `identity` is that of the object."""
    head = struct.pack(f"<8sQQQ{IDENTITY_BYTES}s", MAGIC, VERSION, data.nbytes, checksum(data), identity)
    return head.ljust(HEADER_BYTES, b"\0"), data.data
