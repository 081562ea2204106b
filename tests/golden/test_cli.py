"""What people read at the command line, word for word.

Each file holds one command after `$` and what it prints: standard output, then standard error, in a pipe or
in a terminal as wide as COLUMNS says. Write them anew with `python -m tests.golden.rewrite` and read the
difference.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import onnx
import pytest
from onnx import helper
from tests.support.cli import tilewright
from tests.support.models import F32, host_net, model, small_net

FOLDER = Path(__file__).parent / "cli"
# Commands whose words depend on neither the machine nor the time.
COMMANDS = {
    "inspect": "inspect small.onnx",
    "check": "check host.onnx",
    "check_open_shape": "check open.onnx",
    "check_refused": "check odd.onnx",
    "explain": "explain small.onnx -t interpreter",
    "explain_node": "explain small.onnx relu1 -t interpreter",
    "explain_unknown": "explain small.onnx relu2 -t interpreter",
    "compare": "compare small.onnx@interpreter interpreter",
    "diff": "diff small.onnx small.onnx -t interpreter",
    "reduce": "reduce odd.onnx -o reduced.onnx",
    "bisect_without_kernels": "bisect small.onnx -t interpreter",
    "run": "run tiny.onnx --random -t interpreter",
    "run_without_inputs": "run tiny.onnx",
    "dump": "compile tiny.onnx -t null -o tiny.tw --dump-after canonicalise -q",
    "zoo": "zoo list",
    "schema": "schema",
    "machine": "targets eyeriss",
    "machine_table": "targets eyeriss --table",
    "machine_unknown": "targets eyeris",
    **{
        f"{name}_{width}": f"COLUMNS={width} {command}"
        for width in (80, 120)
        for name, command in {
            "check": "check host.onnx",
            "compare": "compare small.onnx@interpreter interpreter",
            "compare_schedules": "compare-schedules small.onnx -t stcp920 --schedule sequential,greedy",
            "explain": "explain small.onnx -t interpreter",
            "machine_table": "targets eyeriss --table",
            "zoo": "zoo list",
        }.items()
    },
    "help_80": "COLUMNS=80 tune -h",
    "unknown_verb": "compil small.onnx",
    "unknown_flag": "compile small.onnx --thread 2",
    "unknown_network": "zoo build resnet51",
}


def files(folder: Path) -> None:
    """The models that the commands name."""
    onnx.save(small_net(), folder / "small.onnx")
    onnx.save(host_net(), folder / "host.onnx")
    for name, extent in (("open", "batch"), ("tiny", 2)):
        values = [helper.make_tensor_value_info(n, F32, [extent, 4]) for n in ("x", "y")]
        node = helper.make_node("Relu", ["x"], ["y"], "relu")
        onnx.save(model([node], values[:1], values[1:], []), folder / f"{name}.onnx")

    nodes = [
        helper.make_node("Relu", ["x"], ["h"], "known"),
        helper.make_node("Odd", ["h"], ["k"], "odd", domain="com.example"),
        helper.make_node("Exp", ["k"], ["y"], "behind"),
    ]
    values = [helper.make_tensor_value_info(n, F32, [2, 4]) for n in ("x", "y")]
    odd = model(nodes, values[:1], values[1:], [])
    odd.opset_import.append(helper.make_opsetid("com.example", 1))
    onnx.save(odd, folder / "odd.onnx")


def transcript(command: str) -> str:
    words = command.split()
    columns = words.pop(0).removeprefix("COLUMNS=") if command.startswith("COLUMNS=") else ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", columns)
        result = tilewright(*words)
    shown = f"COLUMNS={columns} tilewright {' '.join(words)}" if columns else f"tilewright {command}"
    text = f"$ {shown}\n{result.out}{result.err}[exit code {result.code}]\n"
    text = re.sub(r"\b[0-9a-f]{64}\b", "<sha256>", text)
    text = re.sub(r"( time: \w+ +)\d[\d.]* (µs|ms|s)\b", r"\1<time>", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_line_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert transcript(COMMANDS[name]) == (FOLDER / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", [name for name in COMMANDS if name.endswith(("_80", "_120"))])
def test_what_is_said_fits_the_terminal(name: str) -> None:
    lines = (FOLDER / f"{name}.txt").read_text().splitlines()[1:]
    tables = [line for line in lines if line.startswith((" ", "│", "╭", "╰"))]
    assert max(map(len, tables)) <= int(name.rpartition("_")[2])


def test_every_transcript_belongs_to_a_command() -> None:
    assert {p.stem for p in FOLDER.glob("*.txt")} == set(COMMANDS)


def write() -> None:
    """Write all transcripts anew."""
    with tempfile.TemporaryDirectory() as folder:
        files(Path(folder))
        os.chdir(folder)
        for name, command in COMMANDS.items():
            (FOLDER / f"{name}.txt").write_text(transcript(command))
