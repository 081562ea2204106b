"""An artifact with code for several sets of shapes: constants once, each set loaded when it is fed."""

# mypy: disable-error-code="arg-type, attr-defined, misc"

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model
from tests.support.artifacts import rewritten
from tests.support.cli import tilewright

import tilewright as tw
from tilewright.api.inspection import StoredShapes
from tilewright.errors import ArtifactCorrupt, BudgetExceeded, ModelClosed, UsageError
from tilewright.specialise.model import OpenCompiledModel
from tilewright.specialise.opened import SavedShapes

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[batch,256] x, float[batch] s) => (float[batch,256] y) {
    h = MatMul(x, w)
    c = Unsqueeze(s, last)
    d = Mul(h, c)
    e = Relu(d)
    y = MatMul(e, w)
}"""
WEIGHTS = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)


def model() -> onnx.ModelProto:
    proto = parse_model(TEXT)
    arrays = {"w": WEIGHTS, "last": np.array([1])}
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    return proto


def feed(num_rows: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(num_rows)
    x = rng.standard_normal((num_rows, 256)).astype(np.float32)
    return {"x": x, "s": rng.standard_normal(num_rows).astype(np.float32)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shapes") / "m.tw"
    with tw.compile(model(), shapes="x:1|4..5x256", threads=1) as compiled:
        assert isinstance(compiled, OpenCompiledModel)
        return compiled.save(path)


def test_each_set_of_shapes_runs_and_constants_are_there_once(path: Path) -> None:
    assert WEIGHTS.nbytes < path.stat().st_size < 2 * WEIGHTS.nbytes
    with tw.open(path) as opened:
        assert isinstance(opened, SavedShapes)
        assert opened.sets == tuple({"x": (n, 256), "s": (n,)} for n in (1, 4, 5))
        assert [i.shape for i in opened.get_inputs()] == [("batch", 256), ("batch",)]
        assert not opened.remarks
        for number in (4, 1, 5, 4):
            given = feed(number)
            (found,) = opened.run(["y"], given)
            expected = np.maximum(given["x"] @ WEIGHTS * given["s"][:, None], 0) @ WEIGHTS
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-2)
            (again,) = tw.open(path, shapes=f"x:{number}x256").run(None, given)
            np.testing.assert_array_equal(found, again)
            place = np.empty_like(found)
            assert opened.run_into(given, {"y": place})[0] is place
            np.testing.assert_array_equal(found, place)
            assert opened.at({"x": (number, 256), "s": (number,)}).program.graph.nodes
    with pytest.raises(ModelClosed):
        opened.run(None, feed(4))


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For a range of rows."""
    with tw.compile(model(), shapes="x:1..5x256", threads=1) as compiled:
        return compiled.save(tmp_path_factory.mktemp("ends") / "m.tw")


def test_rows_between_the_ends_of_a_range_run_by_the_code_for_more(ends: Path, tmp_path: Path) -> None:
    with tw.open(ends) as opened:
        assert isinstance(opened, SavedShapes)
        assert [shapes["x"][0] for shapes in opened.sets] == [1, 2, 3, 5]
        for number in (3, 1, 5, 2, 4):
            given = feed(number)
            (found,) = opened.run(None, given)
            expected = np.maximum(given["x"] @ WEIGHTS * given["s"][:, None], 0) @ WEIGHTS
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-2)
            place = np.empty_like(found)
            assert opened.run_into(given, {"y": place})[0] is place
            np.testing.assert_array_equal(found, place)
        with pytest.raises(UsageError, match="holds no code for x:6x256"):
            opened.run(None, feed(6))
        assert opened.save(tmp_path / "again.tw").read_bytes() == ends.read_bytes()


def test_later_runs_at_the_same_shapes_find_what_runs_them_at_once(
    ends: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tw.open(ends) as opened:
        first = {n: opened.run(None, feed(n))[0] for n in (4, 5)}

        def not_again(*_: Any) -> None:
            raise AssertionError

        with monkeypatch.context() as patched:
            patched.setattr(opened, "_shapes_of", not_again)
            for number in (5, 4):
                np.testing.assert_array_equal(opened.run(None, feed(number))[0], first[number])
        lists = {name: array.tolist() for name, array in feed(5).items()}
        with pytest.raises(UsageError, match="is float64"):
            opened.run(None, lists)
        with pytest.raises(UsageError, match="'s' is missing"):
            opened.run(None, {"x": feed(4)["x"]})
    with pytest.raises(ModelClosed):
        opened.run(None, feed(4))


def test_rows_run_by_code_that_was_generated_again(
    ends: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which computes all rows: the file says nothing of them to the one who makes code."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    given = feed(3)
    with tw.open(ends) as opened:
        (found,) = opened.run(None, given)
        assert opened.remarks
    expected = np.maximum(given["x"] @ WEIGHTS * given["s"][:, None], 0) @ WEIGHTS
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    "changed",
    [
        {"of_set": 4},
        {"of_set": 2},
        {"extents": [5]},
        {"extents": [0]},
        {"inputs": {"x": 2}},
        {"inputs": {"z": 0}},
        {"inputs": {}},
        {"outputs": {}},
        {"outputs": {"y": 1}},
        {"outputs": {"y": 2}},
    ],
    ids=str,
)
def test_rows_that_do_not_fit_the_sets_are_refused(
    ends: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    forged = rewritten(ends, tmp_path / "m.tw", lambda manifest, _: manifest["rows"][0].update(changed))
    with pytest.raises(ArtifactCorrupt):
        tw.open(forged, trust=True).run(None, feed(4))


def test_saved_again_it_is_the_same_file(path: Path, tmp_path: Path) -> None:
    with tw.open(path) as opened:
        assert opened.save(tmp_path / "again.tw").read_bytes() == path.read_bytes()
    with tw.compile(model(), shapes="x:1|4..5x256", threads=1) as compiled:
        assert compiled.save(tmp_path / "anew.tw").read_bytes() == path.read_bytes()


def test_what_there_is_no_code_for_is_refused_in_one_line(path: Path) -> None:
    opened = tw.open(path)
    for ask, message in (
        (lambda: opened.run(None, feed(3)), "no code for x:3x256,s:3, only for x:1x256,s:1; x:4x256"),
        (lambda: opened.run(None, {"x": feed(4)["x"]}), "input 's' is missing"),
        (lambda: opened.at({"x": (1, 256)}), "no code for"),
        (lambda: opened.program, "holds code for 3 sets of shapes: name one with --shapes"),
        (lambda: tw.open(path, shapes="x:3x256"), "holds code for no sets of shapes with x:3x256"),
        (lambda: tw.open(path, shapes="x:1..9x256"), "holds code for no sets"),
        (lambda: tw.open(path, accuracy="strict"), "cannot honour --accuracy strict"),
        (lambda: tw.compile(model()).save(path), "leaves dimension 0 .batch. open"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            ask()
        assert "\n" not in str(caught.value)
    assert isinstance(tw.open(path, shapes="x:1|4..5x256", frozen_shapes=True), SavedShapes)


def test_code_of_somebody_else_is_generated_again_set_by_set(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wanted,) = tw.open(path).run(None, feed(4))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with tw.open(path) as opened:
        assert not opened.remarks  # nothing of it was looked at yet
        (found,) = opened.run(None, feed(4))
        (remark,) = opened.remarks
        assert "which you do not trust" in remark
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-2)
    with tw.open(path, frozen_shapes=True) as ready:
        assert len(ready.remarks) == 3
    with tw.open(path, trust=True, frozen_shapes=True) as trusted:
        np.testing.assert_array_equal(trusted.run(None, feed(4))[0], wanted)
        assert not trusted.remarks


def test_each_set_has_code_for_each_instruction_set(tmp_path: Path) -> None:
    with tw.compile(model(), shapes="x:1|4x256", threads=1, isa="host,neon") as compiled:
        compiled.save(tmp_path / "m.tw")
    with zipfile.ZipFile(tmp_path / "m.tw") as archive:
        names = archive.namelist()
    for number in (0, 1):
        for code in (0, 1):
            assert f"shapes/{number}/code/{code}/facts.json" in names
    looked = tilewright("inspect", tmp_path / "m.tw", "--json").document
    assert looked["isas"][1] == "neon"
    assert tw.open(tmp_path / "m.tw", isa=looked["isas"][0]).run(None, feed(4))
    sizes = looked["sizes"]
    with zipfile.ZipFile(tmp_path / "m.tw") as archive:
        members = {member.filename: member.file_size for member in archive.infolist()}
    assert sizes["file_bytes"] == (tmp_path / "m.tw").stat().st_size
    assert sizes["weight_bytes"] == members["weights.safetensors"]
    for code, size_bytes in enumerate(sizes["code_bytes"]):
        assert size_bytes == sum(s for name, s in members.items() if f"/code/{code}/" in name)
    for number, size_bytes in enumerate(sizes["set_bytes"]):
        assert size_bytes == sum(s for name, s in members.items() if name.startswith(f"shapes/{number}/"))


def test_a_look_says_what_else_the_code_runs(ends: Path) -> None:
    looked = tw.inspect(ends)
    assert isinstance(looked.model, StoredShapes)
    assert looked.model.sets_beside == ("x:4x256,s:4",)
    rows = looked.tables()[0].rows
    assert ("also runs", "x:4x256,s:4") in rows
    assert next(text for name, text in rows if name == "code for").startswith("x:1x256,s:1, ")


def test_memory_is_asked_of_the_sets_that_may_run(path: Path) -> None:
    needed = {n: tw.open(path, shapes=f"x:{n}x256").memory.peak_bytes for n in (1, 5)}  # type: ignore[union-attr]
    assert needed[1] < needed[5]
    tw.open(path, shapes="x:1x256", max_memory_bytes=needed[1])
    with pytest.raises(BudgetExceeded):
        tw.open(path, max_memory_bytes=needed[1])


def test_a_set_that_is_not_what_the_file_says_is_damage(path: Path, tmp_path: Path) -> None:
    forged = tmp_path / "forged.tw"
    for change, message in (
        ({"shapes": []}, "there are none"),
        ({"shapes": [{"x": [1, 256]}]}, "of other inputs"),
        ({"shapes": [{"x": [2, 256], "s": [2]}]}, "other inputs than the file says"),
        ({"shapes": [{"x": [-1, 256], "s": [2]}]}, "expected a whole number"),
    ):
        rewritten(path, forged, lambda manifest, _, change=change: manifest.update(change))
        with pytest.raises(ArtifactCorrupt, match=message):
            tw.open(forged, trust=True).run(None, feed(2))


def test_the_command_line_compiles_looks_and_runs(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "m.onnx")
    written = tmp_path / "m.tw"
    asked = ("compile", tmp_path / "m.onnx", "-o", written, "--shapes", "x:1|4x256", "--json")
    document = tilewright(*asked).document
    assert document["kind"] == "compile-shapes"
    assert [made["shapes"]["x"] for made in document["kept"]] == [[1, 256], [4, 256]]
    looked = tilewright("inspect", written, "--json").document
    assert [shapes["s"] for shapes in looked["model"]["sets"]] == [[1], [4]]
    assert tilewright("inspect", written, "--shapes", "x:4x256", "--json").document["num_kernels"] > 0
    np.savez(tmp_path / "x.npz", **feed(4))
    assert tilewright("run", written, "-i", tmp_path / "x.npz").code == 0
    assert tilewright("run", written, "--random", "--shapes", "x:1x256").code == 0
    for verb in ("run", "explain"):
        refused = tilewright(verb, written, *(["--random"] if verb == "run" else []))
        assert refused.code == 2
        assert refused.err.count("\n") == 1
        assert "--shapes" in refused.err
