"""The process that calls onnx's C++ for a frontend: a script of its own, run by path, never imported.

It loads the extension module of onnx and nothing else of Python, so that it starts in 40 ms. What it reads
and writes is the wire format of `native.py`: the number of texts, the length of each, the texts. The first
text asked is the name of a function here, the first one answered `ok` or the kind of the error, the second
the processor time in ns that it took.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import signal
import struct
import sys
import time

# Without `typing`, whose import takes as long as everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

onnx: Any = None


def check_model(model: bytes) -> list[bytes]:
    """Raise an error if the checker objects."""
    onnx.checker.check_model(model, False, False, False)
    return []


def inline_functions(model: bytes) -> list[bytes]:
    """The model without local functions."""
    return [onnx.inliner.inline_local_functions(model, False)]


def convert_version(model: bytes, version: bytes) -> list[bytes]:
    """The model in another version of ai.onnx."""
    return [onnx.version_converter.convert_version(model, int(version))]


def infer_outputs(operator: bytes, version: bytes, node: bytes, counts: bytes, *texts: bytes) -> list[bytes]:
    """`texts` are as many pairs of name and type, name and data, domain and version as `counts` says."""
    num_types, num_data, _ = (2 * int(count) for count in counts.split())
    types, data = _pairs(texts[:num_types]), _pairs(texts[num_types : num_types + num_data])
    imports = {k: int(v) for k, v in _pairs(texts[num_types + num_data :]).items()}
    schema = onnx.defs.get_schema(operator.decode(), int(version), "")
    found = schema._infer_node_outputs(node, types, data, {}, imports)
    return [text for name, kind in found.items() for text in (name.encode(), kind)]


def composed_body(operator: bytes, version: bytes, opset: bytes, node: bytes, *types: bytes) -> list[bytes]:
    """The definition of an operator that depends on its attributes and types, nothing if there is none."""
    schema = onnx.defs.get_schema(operator.decode(), int(version), "")
    found = schema.get_context_dependent_function_with_opset_version(int(opset), node, list(types))
    return [found] if found else []


FUNCTIONS = (check_model, inline_functions, convert_version, infer_outputs, composed_body)


def _pairs(texts: tuple[bytes, ...]) -> dict[str, bytes]:
    return {texts[i].decode(): texts[i + 1] for i in range(0, len(texts), 2)}


def _limit(memory_bytes: int, seconds: int) -> None:
    """Limits of one call; those of time are for a worker whose parent has died and cannot end it."""
    if resource is None:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    for kind, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + seconds + 1),
    ):
        _, hard = resource.getrlimit(kind)
        soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (soft, hard))


def answer(request: list[bytes]) -> list[bytes]:
    """What a function says to its arguments."""
    name, *arguments = request
    try:
        function = next(f for f in FUNCTIONS if f.__name__.encode() == name)
        return [b"ok", *function(*arguments)]
    except MemoryError:
        return [b"MemoryError", b""]
    except Exception as error:
        return [type(error).__name__.encode(), str(error).encode("utf-8", "replace")]


def _read(count: int) -> bytes | None:
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _read_texts() -> list[bytes] | None:
    head = _read(4)
    if head is None:
        return None
    (count,) = struct.unpack("<I", head)
    lengths = _read(8 * count)
    if lengths is None:
        return None
    sizes = struct.unpack(f"<{count}Q", lengths)
    whole = _read(sum(sizes))
    if whole is None:
        return None
    texts, start = [], 0
    for size in sizes:
        texts.append(whole[start : start + size])
        start += size
    return texts


def _write_texts(texts: list[bytes]) -> None:
    head = struct.pack(f"<I{len(texts)}Q", len(texts), *map(len, texts))
    rest = memoryview(b"".join([head, *texts]))
    while rest:
        rest = rest[os.write(1, rest) :]


def main() -> None:
    """Answer until the requests end."""
    global onnx
    # Ctrl-C goes to the whole group of processes: the one that asks decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What C++ says while it dies is told by the parent, in one line.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    loader = importlib.machinery.ExtensionFileLoader("onnx.onnx_cpp2py_export", sys.argv[1])
    spec = importlib.util.spec_from_file_location("onnx.onnx_cpp2py_export", sys.argv[1], loader=loader)
    assert spec is not None
    onnx = importlib.util.module_from_spec(spec)
    loader.exec_module(onnx)
    _write_texts([b"ready"])
    while (request := _read_texts()) is not None:
        name, memory_bytes, seconds, *arguments = request
        _limit(int(memory_bytes), int(seconds))
        begun_ns = time.process_time_ns()
        kind, *found = answer([name, *arguments])
        _write_texts([kind, b"%d" % (time.process_time_ns() - begun_ns), *found])


if __name__ == "__main__":
    main()
