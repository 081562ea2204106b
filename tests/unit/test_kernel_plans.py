"""Plans as text that are run: each gives what its loops say, and what cannot be run is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.benchmark import kernel_plans
from tilewright.benchmark.kernel_plans import compare_plans, compare_with_file
from tilewright.errors import UsageError
from tilewright.targets.cpu.isa import host_isa

FOLDER = Path(__file__).parents[1] / "golden" / "kernels"
# Of other vectors, or of many products.
SKIPPED = ("neon", "amx", "long_sums", "image_tiles_avx512", "of_groups", "blocks", "steps")
PATHS = [path for path in sorted(FOLDER.iterdir()) if not any(word in path.stem for word in SKIPPED)]
needs_vectors = pytest.mark.skipif(
    host_isa().arch != "x86_64" or host_isa().lanes() < 16, reason="plans of AVX-512"
)


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_plans, "_ROUND_S", 0.0)
    monkeypatch.setattr(kernel_plans, "_NUM_ROUNDS", 2)


@pytest.mark.sampled(5)
@needs_vectors
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_kernel_of_a_plan_gives_what_its_loops_say(path: Path) -> None:
    (found,) = compare_plans({path.stem: path.read_text()})
    assert found.error < 1e-3
    assert found.ratio is None


@needs_vectors
def test_another_tile_is_compared_with_the_kernels_own_plan(tmp_path: Path) -> None:
    own = (FOLDER / "product_avx512.txt").read_text()
    mine = tmp_path / "mine.txt"
    mine.write_text(own.replace("tile 14 rows by 2 vectors", "tile 5 rows by 3 vectors"))
    other = (FOLDER / "stem_avx512.txt").read_text()
    chosen, written = compare_with_file("k3", f"{other}\n{own}", mine)
    assert (chosen.name, written.name) == ("k3", str(mine))
    assert written.ratio is not None
    assert "k3: " in str(chosen)
    assert " as fast" in str(written)


@needs_vectors
def test_a_plan_of_other_values_is_told(tmp_path: Path) -> None:
    own = (FOLDER / "residual_avx512.txt").read_text()
    path = tmp_path / "mine.txt"
    path.write_text(own.replace("finish add(acc, r0)", "finish sub(acc, r0)"))
    with pytest.raises(UsageError, match="gives other values than k3"):
        compare_with_file("k3", own, path)


@needs_vectors
@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("product", "sum k 64: a 1, b 128", "sum k 64: a 77, b 128", "reach elements 0 to 8371 of input0"),
        ("product", "row m 56: a 64, c 128", "row m 56: a 64, c 130", "reach elements 0 to 7277 of output0"),
        ("product", "c 1, r0 1", "c 2, r0 1", "the columns of c lie side by side"),
        ("window", "window 2 oh 1 kh", "window 2 ox 1 kh", "a window of the plan moves along ox"),
        (
            "attention",
            "tile 8 rows by 3 vectors of 16\n",
            "tile 4 rows by 3 vectors of 16\n",
            "in the rows of",
        ),
        ("attention", "a 32, c 64", "a 32, c 40", "distance of rows of scores"),
        ("attention", "row a2 40: a 64, c 48", "row a2 40: a 64, c 49", "reach elements 0 to"),
        (
            "attention",
            "a = input0 float32",
            "a = input0 float16",
            "an attention's operands are float32: input0",
        ),
        ("attention", "  shift s", "  keys from 0: 8 of r9\n  shift s", "none of the product's operands"),
        ("attention_of_few_queries", "keys from 0:", "keys from 32:", "not all 2001, one behind"),
        ("attention", "    sum a3 50: a 1, b 48\n", "", "one line that begins with sum"),
        ("attention", "row a2 40: a 32", "row a9 40: a 32", "loops do not fit together"),
        ("groups", "in constant panels", "in constant panels of 24 bits", "groups that lie side by side"),
        ("product", "vectors of 16", "vectors of 1000000", "lanes of a tile are at most 64"),
        ("product", "float32[64, 128]", "float32[64, 12800000]", "input1 .* is too large to be checked"),
        ("four_bits", "sum k 512", "sum k 500", r"no kernel can be made of this plan \(FieldError"),
        (
            "four_bits",
            "product float32",
            "product float64",
            r"no kernel can be made of this plan \(TypeError",
        ),
    ],
)
def test_a_plan_that_cannot_be_run_is_told(name: str, old: str, new: str, message: str) -> None:
    text = (FOLDER / f"{name}_avx512.txt").read_text()
    assert old in text
    with pytest.raises(UsageError, match=message):
        compare_plans({name: text.replace(old, new)})


def test_a_file_that_is_no_plan_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read as a plan"):
        compare_with_file("k0", "", tmp_path / "missing.txt")
    path = tmp_path / "mine.txt"
    path.write_text("nothing")
    with pytest.raises(UsageError, match=r"mine.txt: kernel plan, at 'nothing'"):
        compare_with_file("k0", "", path)
    path.write_text((FOLDER / "product_avx512.txt").read_text())
    with pytest.raises(UsageError, match="which no plan of k0 has"):
        compare_with_file("k0", (FOLDER / "stem_avx512.txt").read_text(), path)


def test_values_of_a_kernel_that_differ_from_its_loops_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_plans, "_error", lambda *_: 0.5)
    with pytest.raises(UsageError, match="gives other values than its loops say"):
        compare_plans({"mine": (FOLDER / "product_avx512.txt").read_text()})
