"""Copies of onnxruntime and OpenVINO that see a processor without AVX-512: AVX2 beside AVX2.

    python -m benchmarks peers_for_avx2 /tmp/narrow
    PYTHONPATH=/tmp/narrow python -m benchmarks zoo --isa avx2 --output results/zoo-avx2

Neither peer has an option for this. Each asks the processor which registers the operating system saves
(`xgetbv`; Intel's manual, volume 1, section 13.3) before it uses AVX-512 or AMX; in the copies the answer is
always x87, SSE and AVX. The versions of the copies end in `+avx2`, so that tables say what was measured.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from pathlib import Path

from benchmarks.command import Namespace, Parser

_XGETBV = b"\x0f\x01\xd0"
_AVX_ONLY = b"\x6a\x07\x58"
"""`push 7; pop rax`, as long as `xgetbv`: bits 0 to 2 of XCR0, of x87, SSE and AVX."""

_NEAREST_ZERO = 16
"""Bytes before `xgetbv` within which code sets its register's number, 0: what only looks alike does not."""

_ZEROED = (b"\x31\xc9", b"\x33\xc9", b"\xb9\x00\x00\x00\x00", b"\x44\x89\xc9")
"""`xor ecx, ecx` in both encodings, `mov ecx, 0`, `mov ecx, r9d`."""


def options(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, help="where the copies go; put it in front of PYTHONPATH")


def main(arguments: Namespace) -> None:
    for peer in ("onnxruntime", "openvino"):
        spec = importlib.util.find_spec(peer)
        if spec is None or spec.origin is None:
            raise SystemExit(f"{peer} is not installed: pip install '.[peers]'.")
        copy = arguments.folder / peer
        shutil.copytree(Path(spec.origin).parent, copy, copy_function=_link, dirs_exist_ok=False)
        _name_versions(copy)
        for library in sorted(copy.rglob("*.so*")):
            patched, num_places = without_avx512(library.read_bytes())
            if num_places:
                library.unlink()  # the installed library may be the same file
                library.write_bytes(patched)
                print(f"{library.relative_to(arguments.folder)}: {num_places} places")


def without_avx512(code: bytes) -> tuple[bytes, int]:
    """A library in which no question for the saved registers finds AVX-512, and how many there were."""
    places = [
        match.start()
        for match in re.finditer(re.escape(_XGETBV), code)
        if any(zero in code[match.start() - _NEAREST_ZERO : match.start()] for zero in _ZEROED)
    ]
    patched = bytearray(code)
    for place in places:
        patched[place : place + len(_XGETBV)] = _AVX_ONLY
    return bytes(patched), len(places)


def _name_versions(copy: Path) -> None:
    """Append what the copy is to the version that its package tells."""
    start = copy / "__init__.py"
    text = start.read_text()
    start.unlink()
    start.write_text(f'{text}\n__version__ += "+avx2"\n')


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
