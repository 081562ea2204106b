"""Artifacts that older releases wrote stay readable: one of each format version and target is kept here.

They are never written again. A new format version gets new files beside these.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.artifact import FORMAT_VERSION
from tilewright.artifact.container import Archive
from tilewright.ir.interpret import run_graph

KEPT = sorted((Path(__file__).parent / "artifacts").glob("*.tw"))


def test_every_format_version_has_a_kept_artifact_for_each_kind_of_target() -> None:
    names = {path.stem for path in KEPT}
    versions = range(1, FORMAT_VERSION + 1)
    assert names == {f"format{v}_{target}" for v in versions for target in ("cpu", "interpreter")}
    assert all(Archive(p).format_version == int(p.stem[len("format") :].split("_")[0]) for p in KEPT)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_kept_artifact_opens_and_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    Archive(path).verify()
    opened = tw.open(path)
    rng = np.random.default_rng(0)
    feed = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in opened.get_inputs()}
    want = run_graph(opened.program.graph, feed)
    for array, info in zip(opened.run(None, feed), opened.get_outputs(), strict=True):
        np.testing.assert_allclose(array, want[info.name], rtol=2e-5, atol=2e-5)
    assert opened.explain().nodes
    # What format 3 calls relaxed was the default before.
    assert opened.options.accuracy == ("default" if Archive(path).format_version >= 3 else "relaxed")
    # Its machine code, if any, was made elsewhere: the user is told that it was not used.
    assert len(opened.remarks) == (1 if path.stem.endswith("cpu") else 0)
