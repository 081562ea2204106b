"""Names that try to become code, in every place of a model that has a name.

`python -m tests.hostile.names COUNT [SEED]` exports COUNT models with such names, compiles what comes out
with every warning an error, and looks at the symbols; it prints one JSON line with what it found.
"""

# mypy: disable-error-code="return-value, union-attr"

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.errors import InternalError, TilewrightError

# What ends a comment, a string, a line or a macro; what starts a directive; formats; words; controls.
PIECES = (
    *(
        "*/",
        "/*",
        "//",
        "*\\/",
        "*\\",
        "\\",
        "\\\n",
        "*\\\n/",
        "??/",
        "??/\n",
        "??'",
        "*??/\n/",
        "<::>",
        "%:",
    ),
    *(
        '"',
        '\\"',
        "'",
        "`",
        "$name",
        "${upper}",
        "$$",
        "{}",
        "%s",
        "%n",
        "%1$n",
        "%%",
        ";",
        "}",
        "{",
        "(",
        ")",
    ),
    *('#include "/etc/passwd"', "\n#define NULL 1\n", "\n#error x\n", '_Pragma("once")', "\n#pragma once\n"),
    *(
        "int evil(void){return 1;}",
        "\nint evil = 1;\n",
        "*/ int evil = 1; /*",
        "__attribute__((constructor))",
    ),
    *(
        "\0",
        "\r",
        "\r\n",
        "\v",
        "\f",
        "\b",
        "\x1b[2J",
        "\x1b]0;evil\x07",
        "\x9b31m",
        "\x7f",
        "\ufeff",
        "\u2028",
    ),
    *("\u202e", "\u2066", "\u2069", "\u200b", "\ud7ff", "é", "ß", "İ", "ﬀ", "名前", "🦊", "\U000e0001"),
    *(
        "int",
        "class",
        "main",
        "NULL",
        "_",
        "__",
        "__FILE__",
        "errno",
        "stdio",
        "string",
        "example",
        "tw_x",
        "0",
    ),
    *("a" * 40, "../", "..\\", "/etc/", "~", "-o", "--", " ", ".", "con", "%p", "\\u0022", "\\x2a/", "x"),
)

STRICT_C = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror")
STRICT_CPP = ("-std=c++11", "-pedantic", "-Wall", "-Wextra", "-Werror")


def hostile_name(rng: random.Random) -> str:
    """One piece, several together, or a very long one."""
    name = "".join(rng.choices(PIECES, k=rng.choice((1, 1, 2, 3, 5, 9))))
    return name * 200 if rng.random() < 0.03 else name


def hostile_names(rng: random.Random) -> Iterator[str]:
    """Distinct names, each piece alone first."""
    seen: set[str] = set()
    alone = iter(PIECES)
    while True:
        name = next(alone, None) or hostile_name(rng)
        if name not in seen:
            seen.add(name)
            yield name


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model, and the names at its places."""

    proto: onnx.ModelProto
    names: Mapping[str, str]


PLACES = ("graph", "x", "w", "h", "b", "y", "z", "matmul", "add", "relu", "producer", "doc", "key")


def named_model(names: Iterator[str]) -> NamedModel:
    """A small model of every kind of name: graph, nodes, inputs, outputs, weights, values in between."""
    at = {place: next(names) for place in PLACES}
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((4, 4)).astype(np.float32), at["w"]),
        numpy_helper.from_array(rng.standard_normal(4).astype(np.float32), at["b"]),
    ]
    nodes = [
        helper.make_node("MatMul", [at["x"], at["w"]], [at["h"]], name=at["matmul"]),
        helper.make_node("Add", [at["h"], at["b"]], [at["y"]], name=at["add"]),
        helper.make_node("Relu", [at["y"]], [at["z"]], name=at["relu"]),
    ]
    infos = {p: helper.make_tensor_value_info(at[p], TensorProto.FLOAT, [2, 4]) for p in ("x", "y", "z")}
    graph = helper.make_graph(nodes, at["graph"], [infos["x"]], [infos["y"], infos["z"]], weights)
    graph.doc_string = at["doc"]
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], producer_name=at["producer"], ir_version=8
    )
    helper.set_model_props(proto, {at["key"]: at["doc"]})
    return NamedModel(proto, at)


def compilers() -> dict[str, tuple[str, ...]]:
    """The compilers that this machine has, each as strict as it can be told to be."""
    c, cpp = shutil.which("cc") or shutil.which("gcc"), shutil.which("g++")
    found = {} if c is None else {"c": (c, *STRICT_C)}
    return found if cpp is None else {**found, "cpp": (cpp, *STRICT_CPP)}


def problem_of_export(folder: Path, made: tw.ExportedModel | object) -> str | None:
    """What is wrong with an exported model: a warning, a file too many, a symbol that was not declared."""
    name = str(made.name)  # type: ignore[attr-defined]
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        return f"the name {name!r}"
    expected = {f"{name}.o", f"{name}.h", f"{name}.weights", "example.c"}
    if {p.name for p in folder.iterdir()} != expected:
        return f"files {sorted(p.name for p in folder.iterdir())}"
    for file in (folder / f"{name}.h", folder / "example.c"):
        text = file.read_bytes()
        if not all(byte == 10 or 32 <= byte < 127 for byte in text):
            return f"{file.name} holds bytes that are no plain text"
    for language, command in compilers().items():
        source = folder / ("example.c" if language == "c" else "use.cpp")
        if language == "cpp":
            source.write_text(f'#include "{name}.h"\nint main() {{ return {name.upper()}_OK; }}\n')
        unit = folder / "unit.o"
        problem = _run(*command, "-c", source, "-o", unit, folder=folder)
        if problem is None and language == "c":
            problem = _other_symbols(unit, {"main", f"{name}_run"}, defined=True) or _other_symbols(
                folder / f"{name}.o", {f"{name}_run"}, defined=True
            )
        if problem is not None:
            return f"{language}: {problem}"
    return None


def _run(*command: str | Path, folder: Path) -> str | None:
    result = subprocess.run(
        [str(c) for c in command], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    said = (result.stdout + result.stderr).strip()
    return None if result.returncode == 0 and not said else said[:500] or f"exit code {result.returncode}"


def _other_symbols(path: Path, allowed: set[str], *, defined: bool) -> str | None:
    nm = shutil.which("nm")
    if nm is None:
        return None
    listed = subprocess.run(
        [nm, "-g", *(["--defined-only"] if defined else []), str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    others = {line.split()[-1] for line in listed.splitlines()} - allowed
    return f"{path.name} has the symbols {sorted(others)}" if others else None


def hunt(count: int, seed: int = 0) -> dict[str, Any]:
    """Export `count` models with hostile names; what was found, with the names that show it."""
    rng = random.Random(seed)
    names = hostile_names(rng)
    found: list[str] = []
    outcomes = {"exported": 0, "refused": 0}
    start_s, slowest_s = time.monotonic(), 0.0
    for _ in range(count):
        model = named_model(names)
        given = next(names)
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            try:
                made = tw.export(model.proto.SerializeToString(), folder, name=given)
            except InternalError as error:
                found.append(f"{error} with {model.names!r} as {given!r}")
            except TilewrightError as error:
                outcomes["refused"] += 1
                if len(str(error).splitlines()) != 1:
                    found.append(f"an error of several lines: {error!r}")
            except Exception as error:  # what the hunt is for
                found.append(f"{type(error).__name__}: {error} with {model.names!r} as {given!r}")
            else:
                outcomes["exported"] += 1
                if (problem := problem_of_export(folder, made)) is not None:
                    found.append(f"{problem} with {model.names!r} as {given!r}")
        slowest_s = max(slowest_s, time.monotonic() - began_s)
    seconds = time.monotonic() - start_s
    return {"models": count, **outcomes, "found": found, "seconds": seconds, "slowest_s": slowest_s}


if __name__ == "__main__":
    print(json.dumps(hunt(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)))
