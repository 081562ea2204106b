"""Registers of products by formula, beside those that ptxas took of 140 convolutions.

`registers.json` holds each plan once: its text, whether channels fill tiles, registers. It is written anew by
`python -m benchmarks cuda_static --registers tests/unit/targets/cuda/registers.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.cuda import CONVOLUTIONS, code_of, convolution
from benchmarks.ptx_uses import has_tools, kernel_uses

from tilewright.targets.cuda.products.tiles import TILES, ProductPlan, num_registers
from tilewright.targets.cuda.ptx import gpu_isa, ptx_of

RECORDED = json.loads(Path(__file__).with_name("registers.json").read_text())


def plan_of(text: str) -> ProductPlan:
    """A plan by its text; the length of the sum, which no register holds, is left out."""
    found = re.fullmatch(r"(\w+) (\d+) x (\d+), (\d) stages(?:, depth in (\d+) parts)?", text)
    assert found is not None, text
    kind: Any = found[1]
    tile = next(t for t in TILES if (t.rows, t.columns) == (int(found[2]), int(found[3])))
    return ProductPlan(kind, tile, 4 if kind == "fma" else 2, int(found[4]), int(found[5] or 1), 0)


def errors(rows: Iterable[tuple[str, bool, int]]) -> list[float]:
    return sorted(
        abs(num_registers(plan_of(text), is_whole=whole) / taken - 1) for text, whole, taken in rows
    )


def test_registers_are_nearly_those_that_ptxas_took() -> None:
    found = errors(RECORDED)
    assert len(found) > 40
    assert sum(error <= 0.1 for error in found) >= 0.9 * len(found)
    assert found[-1] <= 0.2


@pytest.mark.skipif(not has_tools(), reason="needs ptxas and nvdisasm: pip install tilewright[cuda-check]")
@pytest.mark.slow
@pytest.mark.parametrize("accuracy", ["default", "fast"])
@pytest.mark.parametrize("batch", [1, 32])
def test_ptxas_takes_nearly_as_many_again(batch: int, accuracy: str) -> None:
    rows = []
    for shape in CONVOLUTIONS[::4]:
        kernel = code_of(convolution(shape, batch), accuracy=accuracy).placed.launches[0].kernel
        use = kernel_uses(ptx_of([kernel.text], gpu_isa("sm_90"))[0], "sm_90")[kernel.symbol]
        rows.append(
            (kernel.notes[0], shape[0] % (16 if accuracy == "default" else 32) == 0, use.num_registers)
        )
    found = errors(rows)
    assert sum(error <= 0.1 for error in found) >= 0.8 * len(found), rows
    assert found[-1] <= 0.25, rows
