"""Peers kept to AVX2 on a processor with AVX-512: the wider registers are hidden from them.

onnxruntime has no setting for less, and that of OpenVINO reaches its own kernels, not those of MLAS in it.
Both ask which registers the operating system saves (`xgetbv`; Intel's manual, volume 1, section 13.3) before
they use AVX-512 or AMX. In a copy of their libraries the answer is always x87, SSE and AVX. AVX-VNNI, which
has no registers of its own, is not hidden.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path

_XGETBV = b"\x0f\x01\xd0"
_AVX_ONLY = b"\x6a\x07\x58"
"""`push 7; pop rax`, as long as `xgetbv`: bits 0 to 2 of XCR0."""

_REACH_BYTES = 16
"""Before `xgetbv`, code sets the register's number, 0, within so many bytes; what looks alike does not."""

_ZEROED = (b"\x31\xc9", b"\x33\xc9", b"\xb9\x00\x00\x00\x00", b"\x44\x89\xc9")
"""`xor ecx, ecx` in both encodings, `mov ecx, 0`, `mov ecx, r9d`."""


def prepare(package: str, folder: Path) -> None:
    """Hide what is wider than AVX2 from a package in this process: import it from a copy, which stays there.

    Raises:
        RuntimeError: the package is loaded already, or asks in another way than was expected.
    """
    found = importlib.util.find_spec(package)
    if package in sys.modules or found is None or found.origin is None:
        raise RuntimeError(f"{package} is not installed, or loaded already")
    place = folder / f"narrow-{package}"
    if not copied(Path(found.origin).parent, place / package):
        raise RuntimeError(f"{package} asks for the processor's registers in another way than was expected")
    sys.path.insert(0, str(place))
    importlib.import_module(package)


def copied(package: Path, copy: Path) -> int:
    """Copy a package, its libraries narrowed; how many places of them were changed."""
    shutil.copytree(package, copy, copy_function=_link)
    count = 0
    for library in (path for path in copy.rglob("*.so*") if path.is_file()):
        narrow, num_places = narrowed(library.read_bytes())
        if num_places:
            library.unlink()
            library.write_bytes(narrow)
        count += num_places
    return count


def narrowed(code: bytes) -> tuple[bytes, int]:
    """A library that never finds more than AVX's registers saved, and how often it asks."""
    places = [
        found.start()
        for found in re.finditer(re.escape(_XGETBV), code)
        if any(zero in code[max(0, found.start() - _REACH_BYTES) : found.start()] for zero in _ZEROED)
    ]
    patched = bytearray(code)
    for place in places:
        patched[place : place + len(_XGETBV)] = _AVX_ONLY
    return bytes(patched), len(places)


def _link(source: str, place: str) -> None:
    Path(place).symlink_to(source)
