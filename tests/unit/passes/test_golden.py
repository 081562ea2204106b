"""What each pass does to small graphs, as text: `tests/golden/passes/<pass>.txt`.

A file holds cases of three sections: `before` is written by hand, `after` and `remarks` are what the pass
makes of it. `python -m tests.golden.rewrite` rewrites those two; read the difference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.ir.text import parse_graph, print_graph
from tilewright.ir.verify import require_valid
from tilewright.passes import PASSES

FOLDER = Path(__file__).parents[2] / "golden" / "passes"


@dataclass(frozen=True)
class GoldenCase:
    pass_name: str
    title: str
    before: str
    after: str
    remarks: str

    def run(self) -> tuple[Graph, Graph, GoldenCase]:
        """The graph before and after, and the case as it is now."""
        graph = parse_graph(self.before)
        original = graph.clone()
        result = PASSES.get(self.pass_name).run(graph)
        require_valid(graph, after=self.pass_name)
        remarks = "".join(f"{remark}\n" for remark in result.remarks)
        return (
            original,
            graph,
            GoldenCase(self.pass_name, self.title, self.before, print_graph(graph), remarks),
        )

    def text(self) -> str:
        return (
            f"=== {self.title}\n--- before\n{self.before}--- after\n{self.after}--- remarks\n{self.remarks}"
        )


def read(path: Path) -> list[GoldenCase]:
    cases = []
    for part in re.split(r"^=== ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        sections = dict(
            section.split("\n", 1) for section in re.split(r"^--- ", body, flags=re.MULTILINE)[1:]
        )
        cases.append(
            GoldenCase(
                path.stem, title, sections["before"], sections.get("after", ""), sections.get("remarks", "")
            )
        )
    return cases


CASES = [case for path in sorted(FOLDER.glob("*.txt")) for case in read(path)]


def feed(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {v.name: rng.standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.inputs}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.pass_name}: {c.title}")
def test_pass_does_what_the_text_says(case: GoldenCase) -> None:
    before, after, now = case.run()
    assert now.text() == case.text()
    values = feed(before)
    expected, found = (run_graph(g, values, dtype=DType.FLOAT64) for g in (before, after))
    assert list(found) == list(expected)
    for name, array in expected.items():
        # Constants of the texts are float32: what is folded from them is rounded once, to 6e-8.
        np.testing.assert_allclose(found[name], array, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.pass_name}: {c.title}")
def test_second_run_finds_nothing(case: GoldenCase) -> None:
    _, after, _ = case.run()
    assert PASSES.get(case.pass_name).run(after).num_changes == 0


def test_every_pass_has_cases() -> None:
    assert {case.pass_name for case in CASES} == set(PASSES.names())


def write() -> None:
    """Write what the passes make of all cases anew."""
    for path in sorted(FOLDER.glob("*.txt")):
        path.write_text("".join(case.run()[2].text() for case in read(path)), encoding="utf-8")
