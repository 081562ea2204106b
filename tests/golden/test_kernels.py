"""Plans of products' kernels as text: `tests/golden/kernels/<graph>_<instruction set>.txt`.

Each is what the kernel of a small graph is generated from, and is read back: the plan that the text says
generates the same kernel. `python -m tests.golden.rewrite` writes them anew.
"""

# mypy: disable-error-code="var-annotated"

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.processors import machine_with, on_machine

from tilewright.compiler import plan
from tilewright.errors import UsageError
from tilewright.ir.text import parse_graph
from tilewright.options import Accuracy, Options
from tilewright.targets.cpu.isa import isa_of
from tilewright.targets.cpu.kernel import Kernel
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.lower.lowered import KernelLaunch
from tilewright.targets.cpu.plans import parse_plan, plan_kernels
from tilewright.targets.cpu.product.plan import KernelPlan

FOLDER = Path(__file__).parent / "kernels"
GRAPHS = {
    "product": """
  input %x: float32[56, 64]
  const %w: float32[64, 128] = sha256:w
  const %b: float32[128] = sha256:b
  %m: float32[56, 128] = MatMul(%x, %w) "m"
  %a: float32[56, 128] = Add(%m, %b) "a"
  %y: float32[56, 128] = Relu(%a) "y"
""",
    "stem": """
  input %x: float32[1, 3, 64, 64]
  const %w: float32[16, 3, 7, 7] = sha256:w
  %c: float32[1, 16, 32, 32] = Conv(%x, %w) {pads = [3, 3, 3, 3], strides = [2, 2]} "c"
  %y: float32[1, 16, 32, 32] = Relu(%c) "y"
""",
    "groups": """
  input %x: float32[1, 16, 14, 14]
  const %v: float32[32, 16, 1, 1] = sha256:v
  const %w: float32[32, 4, 3, 3] = sha256:w
  %p: float32[1, 32, 14, 14] = Conv(%x, %v) "p"
  %y: float32[1, 32, 14, 14] = Conv(%p, %w) {pads = [1, 1, 1, 1], group = 8} "y"
""",
    "residual": """
  input %x: float32[1, 64, 28, 28]
  input %z: float32[1, 32, 28, 28]
  const %w: float32[32, 64, 1, 1] = sha256:w
  %c: float32[1, 32, 28, 28] = Conv(%x, %w) "c"
  %y: float32[1, 32, 28, 28] = Add(%c, %z) "y"
""",
    "in_place": """
  input %p: float32[4, 32, 48]
  input %v: float32[4, 48, 24]
  %y: float32[4, 32, 24] = MatMul(%p, %v) "y"
""",
    "in_panels": """
  input %q: float32[4, 32, 48]
  input %k: float32[4, 24, 48]
  %t: float32[4, 48, 24] = Transpose(%k) {perm = [0, 2, 1]} "t"
  %y: float32[4, 32, 24] = MatMul(%q, %t) "y"
""",
    "few_rows": """
  input %x: float32[1, 512]
  const %w: float32[512, 256] = sha256:w
  %y: float32[1, 256] = MatMul(%x, %w) "y"
""",
    "four_bits": """
  input %x: float32[1, 512]
  const %w: float32[512, 256] = sha256:w
  %y: float32[1, 256] = MatMul(%x, %w) "y"
""",
    "long_sums": """
  input %x: float32[512, 8192]
  const %w: float32[8192, 96] = sha256:w
  %y: float32[512, 96] = MatMul(%x, %w) "y"
""",
    "window": """
  input %x: float32[2, 64, 15, 14]
  const %w: float32[48, 64, 3, 3] = sha256:w
  %y: float32[2, 48, 8, 7] = Conv(%x, %w) {pads = [1, 1, 1, 1], strides = [2, 2]} "y"
""",
    "slices": """
  input %x: float32[2, 256, 30, 28]
  const %w: float32[64, 256, 2, 3] = sha256:w
  const %b: float32[64] = sha256:b
  %c: float32[2, 64, 30, 28] = Conv(%x, %w, %b) {pads = [1, 1, 0, 1]} "c"
  %y: float32[2, 64, 30, 28] = Relu(%c) "y"
""",
    "image_tiles": """
  input %x: float32[2, 64, 28, 27]
  input %z: float32[2, 96, 28, 27]
  const %w: float32[96, 64, 3, 3] = sha256:w
  const %b: float32[96] = sha256:b
  %c: float32[2, 96, 28, 27] = Conv(%x, %w, %b) {pads = [1, 1, 1, 1]} "c"
  %s: float32[2, 96, 28, 27] = Add(%c, %z) "s"
  %y: float32[2, 96, 28, 27] = Relu(%s) "y"
""",
    "image_tiles_of_groups": """
  input %x: float32[1, 64, 30, 30]
  const %v: float32[128, 64, 1, 1] = sha256:v
  const %w: float32[128, 64, 3, 3] = sha256:w
  %p: float32[1, 128, 30, 30] = Conv(%x, %v) "p"
  %y: float32[1, 128, 28, 28] = Conv(%p, %w) {group = 2} "y"
""",
    "attention": """
  input %q: float32[2, 4, 40, 32]
  input %k: float32[2, 4, 50, 32]
  input %v: float32[2, 4, 50, 48]
  input %m: float32[2, 1, 1, 50]
  %y: float32[2, 4, 40, 48] = Attention(%q, %k, %v, %m) {is_causal = 1} "y"
""",
    "attention_of_many_queries": """
  input %q: float32[1, 8, 128, 64]
  input %k: float32[1, 8, 128, 64]
  input %v: float32[1, 8, 128, 64]
  %y: float32[1, 8, 128, 64] = Attention(%q, %k, %v) "y"
""",
    "attention_of_few_queries": """
  input %q: float32[1, 2, 1, 64]
  input %k: float32[1, 2, 1, 64]
  input %v: float32[1, 2, 1, 64]
  input %pk: float32[1, 2, 2000, 64]
  input %pv: float32[1, 2, 2000, 64]
  %y: float32[1, 2, 1, 64] = Attention(%q, %k, %v, _, %pk, %pv) "y"
""",
    "blocks": """
  input %x: float32[1, 32, 112, 112]
  const %v: float32[96, 32, 1, 1] = sha256:v
  const %w: float32[96, 1, 3, 3] = sha256:w
  const %u: float32[32, 96, 1, 1] = sha256:u
  %a: float32[1, 96, 112, 112] = Conv(%x, %v) "a"
  %b: float32[1, 96, 112, 112] = Conv(%a, %w) {pads = [1, 1, 1, 1], group = 96} "b"
  %y: float32[1, 32, 112, 112] = Conv(%b, %u) "y"
""",
    "steps": """
  input %x: float32[6, 2, 24]
  const %w: float32[1, 192, 24] = sha256:w
  const %r: float32[1, 192, 64] = sha256:r
  const %b: float32[1, 384] = sha256:b
  %y: float32[6, 1, 2, 64] = GRU(%x, %w, %r, %b) {hidden_size = 64} "y"
""",
    "doubles": """
  input %x: float64[20, 30]
  const %w: float64[30, 40] = sha256:w
  %y: float64[20, 40] = MatMul(%x, %w) "y"
""",
    "bytes": """
  input %x: uint8[40, 70]
  const %w: int8[70, 50] = sha256:w
  const %zero: uint8[] = sha256:zero
  %m: int32[40, 50] = MatMulInteger(%x, %w, %zero) "m"
  %y: float32[40, 50] = Cast(%m) {to = 1} "y"
""",
    "byte_scores": """
  input %q: uint8[4, 40, 64]
  input %k: uint8[4, 50, 64]
  const %zero: uint8[] = sha256:zero
  %t: uint8[4, 64, 50] = Transpose(%k) {perm = [0, 2, 1]} "t"
  %m: int32[4, 40, 50] = MatMulInteger(%q, %t, %zero, %zero) "m"
  %y: float32[4, 40, 50] = Cast(%m) {to = 1} "y"
""",
    "byte_image_tiles": """
  input %x: uint8[1, 64, 28, 27]
  const %w: int8[64, 64, 3, 3] = sha256:w
  const %zero: uint8[] = sha256:zero
  %m: int32[1, 64, 28, 27] = ConvInteger(%x, %w, %zero) {pads = [1, 1, 1, 1]} "m"
  %y: float32[1, 64, 28, 27] = Cast(%m) {to = 1} "y"
""",
    "byte_taps": """
  input %x: int8[1, 24, 9, 12]
  const %w: int8[24, 1, 3, 3] = sha256:w
  const %zero: int8[] = sha256:zero
  %y: int32[1, 24, 9, 12] = ConvInteger(%x, %w, %zero) {pads = [1, 1, 1, 1], group = 24} "y"
""",
}
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "product": {"w": (64, 128), "b": (128,)},
    "stem": {"w": (16, 3, 7, 7)},
    "groups": {"v": (32, 16, 1, 1), "w": (32, 4, 3, 3)},
    "residual": {"w": (32, 64, 1, 1)},
    "in_place": {},
    "blocks": {"v": (96, 32, 1, 1), "w": (96, 1, 3, 3), "u": (32, 96, 1, 1)},
    "steps": {"w": (1, 192, 24), "r": (1, 192, 64), "b": (1, 384)},
    "attention": {},
    "attention_of_few_queries": {},
    "attention_of_many_queries": {},
    "in_panels": {},
    "few_rows": {"w": (512, 256)},
    "four_bits": {"w": (512, 256)},
    "window": {"w": (48, 64, 3, 3)},
    "slices": {"w": (64, 256, 2, 3), "b": (64,)},
    "image_tiles": {"w": (96, 64, 3, 3), "b": (96,)},
    "image_tiles_of_groups": {"v": (128, 64, 1, 1), "w": (128, 64, 3, 3)},
    "long_sums": {"w": (8192, 96)},
    "doubles": {"w": (30, 40)},
    "bytes": {"w": (70, 50), "zero": ()},
    "byte_scores": {"zero": ()},
    "byte_image_tiles": {"w": (64, 64, 3, 3), "zero": ()},
    "byte_taps": {"w": (24, 1, 3, 3), "zero": ()},
}
ACCURACIES: dict[str, Accuracy] = {
    "few_rows": "relaxed",
    "window": "fast",
    "attention_of_many_queries": "relaxed",
}
# Of several kernels, or with nests behind the products: these are not read back.
PRINTED = ("blocks", "steps")
TILED = ("attention_of_many_queries", "slices")
CASES = [(name, "avx512") for name in GRAPHS if name not in TILED] + [
    ("product", "avx2"),
    ("product", "neon"),
    ("stem", "neon"),
    ("window", "avx512+amx"),
    ("slices", "avx512+amx"),
    ("attention_of_many_queries", "avx512+amx"),
    ("image_tiles", "avx2"),
    ("bytes", "neon"),
]


def dtype_of(name: str, key: str) -> type:
    """The element type of a constant."""
    if name.startswith("byte"):
        return np.uint8 if key == "zero" and name != "byte_taps" else np.int8
    return np.float64 if name == "doubles" else np.float32


def constant(name: str, key: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """A constant; of `four_bits` one whose weights are integers times a scale."""
    dtype = dtype_of(name, key)
    if name.startswith("byte") or name == "four_bits":
        return np.ones(shape, dtype)
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def planned(name: str, instruction_set: str) -> Kernel:
    """The last kernel of a graph that has a plan."""
    constants = {key: constant(name, key, shape) for key, shape in SHAPES[name].items()}
    opset = 23 if name.startswith("attention") else 17
    graph = parse_graph(
        f'graph "{name}" opset {opset} {{{GRAPHS[name]}  return %y\n}}\n', constants=constants
    )
    accuracy = ACCURACIES.get(name, "default")
    machine = machine_with(instruction_set)
    with on_machine(machine):
        program = plan(graph, Options(threads=2, accuracy=accuracy, no_cache=True)).program
    isa = isa_of(machine)
    # Of a unit that is never slow.
    isa = replace(isa, matrix_rates=replace(isa.matrix_rates, slow_exposed_load_cycles=4.6))
    lowered = lower_partition(program.partition, isa, accuracy=accuracy)
    steps = [step for steps in lowered.work for step in steps if isinstance(step, KernelLaunch)]
    kernels = [part for step in steps for part in step.kernel.all_kernels() if part.plan is not None]
    return kernels[-1]


def path(name: str, instruction_set: str) -> Path:
    """The file of a case."""
    return FOLDER / f"{name}_{instruction_set}.txt"


def write() -> None:
    """Write all files anew."""
    FOLDER.mkdir(exist_ok=True)
    for case in CASES:
        path(*case).write_text(str(planned(*case).plan))


@pytest.mark.parametrize(("name", "instruction_set"), CASES)
def test_a_plan_reads_as_before_and_generates_its_kernel(name: str, instruction_set: str) -> None:
    kernel = planned(name, instruction_set)
    text = str(kernel.plan)
    assert text == path(name, instruction_set).read_text(), "python -m tests.golden.rewrite"
    if name in PRINTED:
        return
    read = parse_plan(text + "# what means nothing\n")
    assert str(read) == text
    made = {k.symbol: k for k in plan_kernels(read, isa_of(machine_with(instruction_set)))}
    again = made[kernel.symbol]
    assert again.text == kernel.text
    assert (again.num_chunks, again.scratch_bytes, again.macs) == (
        kernel.num_chunks,
        kernel.scratch_bytes,
        kernel.macs,
    )


def test_every_file_is_of_a_case() -> None:
    assert sorted(FOLDER.iterdir()) == sorted(path(*case) for case in CASES)


TEXT = path("product", "avx512").read_text() if path("product", "avx512").exists() else ""


def test_another_tile_and_cut_give_another_kernel_of_the_same_product() -> None:
    text = TEXT.replace("tile 14 rows by 2 vectors", "tile 5 rows by 3 vectors")
    plan = parse_plan(text)
    assert isinstance(plan, KernelPlan)
    assert plan.max_rows == 5
    isa = isa_of(machine_with("avx512"))
    assert plan_kernels(plan, isa)[-1].symbol != plan_kernels(parse_plan(TEXT), isa)[-1].symbol


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("product float32", "product float33", "'float33' is no element type"),
        ("float32 by fma", "float32 by magic", "products are by fma, vnni, pairs"),
        ("float32 by fma", "float32 by vnni", "sums of bytes by vnni are int32"),
        ("float32 by fma", "int32 by vnni", "0 lines begin with 'zeros', one is needed"),
        ("  row m", "  zeros 1 and 0\n  row m", "a plan of these lines says"),
        (" in constant panels", "", "b ends with how it is read: in place, in panels, in panels by head"),
        ("a = input0", "a = table0", "table0 is none of input, output, local"),
        ("sum k 64:", "sum k sixty:", "kernel plan, at 'k sixty: a 1, b 128'"),
        ("finish max(add(acc, r0), 0", "finish max(add(acc, r7), 0", "'r7' is neither acc"),
        ("finish max(", "finish most(", "'most' of 2 values is no function"),
        ("  tile", "  tiles", "0 lines begin with 'tile', one is needed"),
        ("  column", "  columns", "0 lines begin with 'column', one is needed"),
        ("  row m", "  row m 56: a 64, c 128\n  row m", "2 lines begin with 'row', one is needed"),
        ("[56, 64]", "[56 64]", "kernel plan, at 'input0 float32[56 64]'".replace("[", r"\[")),
        ("sum k 64:", f"sum k {'9' * 5000}:", "a number has more than 18 digits"),
        ("tile 14 rows", "tile 0 rows", "kernel plan, at '0 rows by 2 vectors of 16'"),
        ("  finish", "  twice the product\n  finish", "at 'twice the product': a plan of these lines says"),
        (
            "product float32 by",
            "attention\n  product float32 by",
            "1 lines begin with 'product', 2 are needed",
        ),
        ("sum k 64: a 1", "sum k 64: a 1, z 1", "a plan of these lines says 'sum k 64: a 1, b 128' here"),
    ],
)
def test_what_is_no_plan_is_told_with_its_line(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        parse_plan(TEXT.replace(old, new))
