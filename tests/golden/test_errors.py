"""What the command line says of mistakes, word for word: `tests/golden/errors.txt`.

The file holds commands after `$`, each with the one line that it prints to standard error and its exit code.
`python -m tests.golden.rewrite` writes what follows the commands anew.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.support.cli import tilewright
from tests.support.models import F32, model, small_net

FILE = Path(__file__).parent / "errors.txt"
COMMAND = re.compile(r"^\$ tilewright (.*)$", re.MULTILINE)
MACHINE = """\
name: chip
clock_hz: 1e9
levels:
  - {name: DRAM, holds: [weight, input, output], word_bits: 16, read_acces_pj: 100}
"""
LAYER = "problem: {shape: {name: layer, dimensions: [C], data-spaces: []}, instance: {C: none}}\n"


def commands() -> list[str]:
    return COMMAND.findall(FILE.read_text())


def files(folder: Path) -> None:
    """What the commands name."""
    onnx.save(small_net(), folder / "small.onnx")
    for name, extent, operator in (
        ("open", "batch", "Relu"),
        ("tiny", 2, "Relu"),
        ("unknown", 2, "Frobnicate"),
    ):
        values = [helper.make_tensor_value_info(n, F32, [extent, 4]) for n in ("x", "y")]
        node = helper.make_node(operator, ["x"], ["y"], "first")
        onnx.save(model([node], values[:1], values[1:], []), folder / f"{name}.onnx")
    values = [helper.make_tensor_value_info(n, F32, [2, 4]) for n in ("x", "y")]
    weight = numpy_helper.from_array(np.zeros((5, 4), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    onnx.save(model([node], values[:1], values[1:], [weight]), folder / "shapes.onnx")
    (folder / "text.onnx").write_text("this is not a model\n")
    (folder / "text.tw").write_text("this is not an artifact\n")
    np.savez(folder / "wrong.npz", x=np.zeros((2, 5), np.float32))
    np.savez(folder / "other.npz", picture=np.zeros((2, 4), np.float32))
    (folder / "chip.yaml").write_text(MACHINE)
    (folder / "layer.yaml").write_text(LAYER)


def transcript(command: str) -> str:
    result = tilewright(*shlex.split(command))
    assert result.out == ""
    return f"$ tilewright {command}\n{result.err}[exit code {result.code}]\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("errors")
    files(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.mark.parametrize("command", commands())
def test_a_mistake_gets_these_words(command: str, folder: Path) -> None:
    assert f"{transcript(command)}\n" in FILE.read_text()


def test_each_gets_one_line() -> None:
    parts = FILE.read_text().split("\n\n")
    assert parts.pop() == ""
    assert len(parts) == len(commands()) >= 25
    assert all(len(part.splitlines()) == 3 and "\ntilewright: " in part for part in parts)
    assert "internal error" not in FILE.read_text()


def write() -> None:
    """Write what the commands print anew."""
    listed = commands()
    with tempfile.TemporaryDirectory() as name:
        files(Path(name))
        os.chdir(name)
        FILE.write_text("".join(f"{transcript(command)}\n" for command in listed))
