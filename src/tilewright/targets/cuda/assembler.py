"""NVIDIA's assembler, which makes cubins of PTX.

The tools come from the wheels nvidia-cuda-nvcc and nvidia-cuda-nvdisasm, the extra `cuda-check`.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path

from tilewright.errors import InternalError, UsageError

WHEELS = {"ptxas": "nvidia-cuda-nvcc", "nvdisasm": "nvidia-cuda-nvdisasm"}
_TIMEOUT_S = 120.0


def assembled(ptx: bytes, isa: str) -> tuple[bytes, str]:
    """The cubin of a module, and what the assembler tells of its kernels.

    Raises:
        UsageError: the assembler is not installed.
        InternalError: it refuses the text; says why.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "k.ptx", Path(folder) / "k.cubin"
        source.write_bytes(ptx)
        done = run_tool("ptxas", "-v", f"-arch={isa}", str(source), "-o", str(target))
        if done.returncode:
            raise InternalError(f"ptxas refuses generated code: {' '.join(done.stderr.split())}")
        return target.read_bytes(), done.stderr


def run_tool(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One of NVIDIA's tools, run to its end.

    Raises:
        UsageError: it is not installed.
    """
    path = tool_path(tool)
    if path is None:
        raise UsageError(f"{tool} is not installed: pip install --no-deps {WHEELS[tool]}.")
    return subprocess.run([path, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)


def tool_path(name: str) -> str | None:
    """The path of a tool, in the wheel that brings it; None where that is not installed."""
    try:
        files = metadata.files(WHEELS[name]) or []
    except metadata.PackageNotFoundError:
        return None
    found = [str(file.locate()) for file in files if file.name == name]
    return next((path for path in found if os.access(path, os.X_OK)), None)
