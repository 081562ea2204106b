"""Bad input gets one line that names it and says what to do next, and the exit code of its kind."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.support.artifacts import rewritten
from tests.support.cli import tilewright
from tests.support.models import F32, feed_for, model, small_net

import tilewright as tw

USAGE, REFUSED, MISMATCH, LIMIT = 2, 3, 4, 5


def value(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, F32, list(shape))


def net(node: onnx.NodeProto, *shape: int | str) -> onnx.ModelProto:
    return model([node], [value("x", *shape)], [value("y", *shape)], [])


class Shelf:
    """Files that are wrong in one way each, beside a few that are right; `folder / name` finds them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        small = small_net()
        right = small.SerializeToString()
        self.put("good.onnx", right)
        self.put("empty.onnx", b"")
        self.put("text.onnx", b"this is not a model\n")
        self.put("cut.onnx", right[: len(right) // 2])
        self.put("unknown_op.onnx", net(helper.make_node("Frobnicate", ["x"], ["y"], "f1"), 4))
        foreign = net(helper.make_node("Relu", ["x"], ["y"], "f2", domain="com.example"), 4)
        foreign.opset_import.append(helper.make_opsetid("com.example", 1))
        self.put("unknown_domain.onnx", foreign)
        self.put("open_batch.onnx", net(helper.make_node("Relu", ["x"], ["y"], "r"), "batch", 4))
        places = helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [1, "number"])
        found = model([helper.make_node("NonZero", ["x"], ["y"], "n")], [value("x", 4)], [places], [])
        self.put("of_data.onnx", found)
        new = net(helper.make_node("Relu", ["x"], ["y"], "r"), 4)
        new.opset_import[0].version = 999
        self.put("new.onnx", new)
        self.put("no_input.onnx", net(helper.make_node("Relu", ["nowhere"], ["y"], "r"), 4))
        (folder / "folder").mkdir()
        (folder / "folder.tw").mkdir()
        compiled = tw.compile(small, threads=1)
        compiled.save(folder / "good.tw")
        tw.compile(folder / "good.onnx", threads=1, accuracy="strict").save(folder / "strict.tw")
        tw.compile(net(helper.make_node("Relu", ["x"], ["y"], "r"), 4)).save(folder / "other.tw")
        whole = (folder / "good.tw").read_bytes()
        middle = len(whole) // 2
        with zipfile.ZipFile(folder / "good.tw") as archive:
            graph = archive.getinfo("graph.txt")
        at = graph.header_offset + 30 + len(graph.filename) + graph.compress_size // 2
        self.put("flipped.tw", whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        self.put("cut.tw", whole[:middle])
        self.put("text.tw", b"this is not an artifact\n")
        self.put("empty.tw", b"")
        with zipfile.ZipFile(folder / "foreign.tw", "w") as archive:
            archive.writestr("readme.txt", "a zip archive of something else")
        feed = feed_for(small)
        (image,) = feed.values()
        self.arrays("good.npz", image=image)
        self.arrays("missing.npz")
        self.arrays("renamed.npz", picture=image)
        self.arrays("extra.npz", image=image, extra=image)
        self.arrays("shape.npz", image=image[:, :2])
        self.arrays("rank.npz", image=image[0])
        self.arrays("dtype.npz", image=image.astype(np.int64))
        np.savez(folder / "pickled.npz", image=np.array([{"a": 1}], object))
        np.save(folder / "single.npy", image)
        self.put("text.npz", b"not an archive\n")
        self.put("empty.npz", b"")
        self.put("file", b"")

    def put(self, name: str, content: bytes | onnx.ModelProto) -> None:
        data = content if isinstance(content, bytes) else content.SerializeToString()
        (self.folder / name).write_bytes(data)

    def arrays(self, name: str, **arrays: np.ndarray) -> None:
        np.savez(self.folder / name, **arrays)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shelf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE", str(folder / "cache"))
        Shelf(folder)
    return folder


@pytest.fixture(autouse=True)
def here(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad files are named as a user would, from their folder."""
    monkeypatch.chdir(shelf)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(shelf / "cache"))


@dataclass(frozen=True, slots=True)
class Mistake:
    """A command line, its exit code, and words that its error must have: what is wrong, what to do."""

    command: str
    code: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return self.command


def mistake(command: str, code: int, *words: str) -> Mistake:
    return Mistake(command, code, words)


MISTAKES = (
    # Verbs and flags.
    mistake("frobnicate", USAGE, "frobnicate", "--help"),
    mistake("compil good.onnx", USAGE, "compil", "--help"),
    mistake("--frobnicate", USAGE, "--frobnicate", "--help"),
    mistake("compile", USAGE, "MODEL", "compile --help"),
    mistake("reduce good.onnx", USAGE, "does not fail", "-i"),
    mistake("bisect good.onnx -t interpreter", USAGE, "no kernels", "--target cpu"),
    mistake("compile .", USAGE, ".: is a folder", "ONNX file"),
    mistake("tune .", USAGE, ".: is a folder", "ONNX file"),
    mistake("plan good.tw", USAGE, "good.tw", "artifact", "ONNX file"),
    mistake("compare-schedules good.tw", USAGE, "good.tw", "artifact", "ONNX file"),
    mistake("compile good.onnx -o good.onnx", USAGE, "good.onnx", "would replace", "-o"),
    mistake("tune good.onnx -o ./good.onnx", USAGE, "good.onnx", "would replace", "-o"),
    mistake("reduce good.onnx -o good.onnx", USAGE, "good.onnx", "would replace", "-o"),
    mistake("run good.tw --random -o good.tw", USAGE, "good.tw", "would replace", "-o"),
    mistake("run good.tw -i text.onnx", USAGE, "text.onnx", "no arrays of numpy", "numpy.savez"),
    mistake("compile good.onnx --frobnicate", USAGE, "--frobnicate", "compile --help"),
    mistake("compile good.onnx good.onnx", USAGE, "good.onnx", "compile --help"),
    mistake("compile good.onnx --threads two", USAGE, "--threads", "integer", "--help"),
    mistake("compile good.onnx --timeout soon", USAGE, "--timeout", "number", "--help"),
    mistake("cache frobnicate", USAGE, "frobnicate", "cache --help"),
    mistake("zoo build", USAGE, "NAME", "zoo build --help"),
    # Names.
    mistake("compile good.onnx -t gpu9", USAGE, "target", "'gpu9'", "cpu"),
    mistake("check good.onnx -t gpu9", USAGE, "target", "'gpu9'", "cpu"),
    mistake("targets gpu9", USAGE, "target", "'gpu9'", "cpu"),
    mistake("compile good.onnx --partition layerwize", USAGE, "'layerwize'", "layerwise"),
    mistake("compile good.onnx --schedule greed", USAGE, "'greed'", "greedy"),
    mistake("compile good.onnx --disable-pass fold-batchnorm", USAGE, "fold-batchnorm", "fold-batch-norm"),
    mistake("compile good.onnx --dump-after dead", USAGE, "'dead'", "dead-code"),
    mistake("compile good.onnx --isa mmx", USAGE, "'mmx'", "avx2"),
    mistake("bench good.onnx --vs torchscript", USAGE, "torchscript", "onnxruntime"),
    mistake("compare good.onnx good.onnx@torchscript", USAGE, "torchscript", "onnxruntime"),
    mistake("zoo build resnet51", USAGE, "resnet51", "resnet50"),
    mistake("demo resnet51", USAGE, "resnet51", "resnet50"),
    mistake("schema frobnicate", USAGE, "frobnicate", "machine"),
    mistake("explain good.tw conv3", USAGE, "'conv3'", "conv"),
    mistake("explain good.tw zzzzzzzzz", USAGE, "'zzzzzzzzz'", "without a name"),
    # Numbers.
    mistake("compile good.onnx --threads -1", USAGE, "threads", "-1", "positive"),
    mistake("compile good.onnx --threads 0", USAGE, "threads", "0", "positive"),
    mistake("bench good.onnx --threads 0", USAGE, "threads", "0", "positive"),
    mistake("bench good.onnx --duration 0", USAGE, "duration", "0"),
    mistake("bench good.onnx --streams 0", USAGE, "streams", "0", "256"),
    mistake("bench good.onnx --duration -3", USAGE, "duration", "-3"),
    mistake("demo --duration 0", USAGE, "duration", "0"),
    mistake("compile good.onnx --max-memory lots", USAGE, "'lots'", "MiB"),
    mistake("compile good.onnx --max-memory 0", USAGE, "0", "MiB"),
    mistake("compile good.onnx --timeout 0", USAGE, "timeout", "0", "positive"),
    mistake("compile good.onnx --timeout -1", USAGE, "timeout", "-1", "positive"),
    mistake("compare good.onnx --rtol -0.1", USAGE, "rtol", "negative"),
    mistake("compare good.onnx --atol -0.1", USAGE, "atol", "negative"),
    mistake("run good.tw --random --seed -1", USAGE, "seed", "-1"),
    mistake("zoo build resnet18 --image 0 -o x.onnx", USAGE, "image", "0"),
    mistake("zoo build resnet18 --batch 0 -o x.onnx", USAGE, "batch", "0"),
    mistake("tune good.onnx --search everywhere", USAGE, "everywhere", "reformer"),
    mistake("tune good.onnx --search reformer --workers here", USAGE, "workers 'here'", "ray"),
    mistake("cache prune --max-size lots", USAGE, "'lots'", "MiB"),
    mistake("cache prune --older-than ever", USAGE, "'ever'", "30d"),
    mistake("cache prune", USAGE, "--max-size", "--older-than"),
    # Shapes.
    mistake("compile good.onnx --shapes image", USAGE, "'image'", "1x3x224x224"),
    mistake("compile good.onnx --shapes image:1x3xAx12", USAGE, "image:1x3xAx12", "1x3x224x224"),
    mistake("compile good.onnx --shapes image:1x3x12", USAGE, "'image'", "1x3x12", "1x3x12x12"),
    mistake("compile good.onnx --shapes picture:1x3x12x12", USAGE, "'picture'", "image"),
    mistake("compile good.onnx --shapes image:1x4x12x12", USAGE, "image:1x4x12x12", "give 3"),
    mistake("compile of_data.onnx", REFUSED, "NonZero 'n'", "depends on data", "tilewright run"),
    mistake("compile open_batch.onnx", USAGE, "'x'", "batch", "--shapes"),
    mistake("run good.tw --random --shapes image:2x3x12x12", USAGE, "good.tw", "shapes", "image:1x3x12x12"),
    # What an artifact was not compiled with.
    mistake("run good.tw --random --accuracy strict", USAGE, "good.tw", "--accuracy strict", "anew"),
    mistake("explain good.tw --partition layerwise", USAGE, "good.tw", "--partition layerwise", "auto"),
    mistake("profile good.tw --effort 0", USAGE, "good.tw", "--effort 0"),
    mistake("bench strict.tw --accuracy default", USAGE, "strict.tw", "--accuracy default", "strict"),
    mistake("compare strict.tw interpreter --accuracy default", USAGE, "strict.tw", "--accuracy default"),
    mistake("run strict.tw --random --accuracy default", USAGE, "strict.tw", "--accuracy default"),
    mistake("bench good.tw --accuracy fast", USAGE, "good.tw", "--accuracy fast"),
    mistake("compare good.tw interpreter --memory naive", USAGE, "good.tw", "--memory naive"),
    mistake("run good.tw --random --isa mmx", USAGE, "mmx", "avx2"),
    mistake("run good.tw --random --max-memory 1KiB", LIMIT, "good.tw", "1.0 KiB"),
    mistake("run good.onnx --random --trust", USAGE, "--trust", "artifacts"),
    mistake("trust add nothing", USAGE, "nothing", "public key"),
    mistake("trust rm 0123", USAGE, "0123", "trust ls"),
    # Files that are not there, or not what they should be.
    mistake("compile nowhere.onnx", USAGE, "nowhere.onnx", "path"),
    mistake("inspect nowhere.onnx", USAGE, "nowhere.onnx", "path"),
    mistake("inspect nowhere.tw", USAGE, "nowhere.tw", "path"),
    mistake("explain nowhere.tw", USAGE, "nowhere.tw", "path"),
    mistake("compile file/model.onnx", USAGE, "file/model.onnx", "path"),
    mistake("compile folder", USAGE, "folder", "file"),
    mistake("compile good.tw", USAGE, "good.tw", "ONNX"),
    mistake("check good.tw", USAGE, "good.tw", "ONNX"),
    mistake("compile empty.onnx", REFUSED, "empty.onnx", "empty"),
    mistake("compile text.onnx", REFUSED, "text.onnx", "ONNX"),
    mistake("compile cut.onnx", REFUSED, "cut.onnx"),
    mistake("compile no_input.onnx", REFUSED, "no_input.onnx", "'nowhere'"),
    mistake("compile new.onnx", REFUSED, "new.onnx", "999"),
    mistake("compile unknown_op.onnx", REFUSED, "unknown_op.onnx", "Frobnicate", "f1", "export"),
    mistake("compile unknown_domain.onnx", REFUSED, "unknown_domain.onnx", "com.example", "'f2'"),
    mistake("run text.onnx --random", REFUSED, "text.onnx", "ONNX"),
    # Artifacts.
    mistake("inspect flipped.tw", REFUSED, "flipped.tw", "compile"),
    mistake("run cut.tw --random", REFUSED, "cut.tw", "compile"),
    mistake("run text.tw --random", REFUSED, "text.tw", "compile"),
    mistake("run empty.tw --random", REFUSED, "empty.tw", "compile"),
    mistake("run foreign.tw --random", REFUSED, "foreign.tw", "compile"),
    mistake("bench good.tw --vs onnxruntime", USAGE, "good.tw", "ONNX"),
    mistake("compare good.tw onnxruntime", USAGE, "good.tw", "ONNX"),
    # Inputs.
    mistake("run good.tw", USAGE, "-i", "--random"),
    mistake("run good.tw -i good.npz --random", USAGE, "-i", "--random"),
    mistake("run good.tw -i nowhere.npz", USAGE, "nowhere.npz", "savez"),
    mistake("run good.tw -i text.npz", USAGE, "text.npz", "savez"),
    mistake("run good.tw -i empty.npz", USAGE, "empty.npz", "savez"),
    mistake("run good.tw -i folder", USAGE, "folder", "savez"),
    mistake("run good.tw -i single.npy", USAGE, "single.npy", "savez"),
    mistake("run good.tw -i pickled.npz", USAGE, "pickled.npz", "savez"),
    mistake("run good.tw -i missing.npz", USAGE, "'image'"),
    mistake("run good.tw -i renamed.npz", USAGE, "'image'"),
    mistake("run good.tw -i extra.npz", USAGE, "'extra'", "image"),
    mistake("run good.tw -i shape.npz", USAGE, "'image'", "1, 2, 12, 12", "1, 3, 12, 12"),
    mistake("run good.tw -i rank.npz", USAGE, "'image'", "3, 12, 12", "1, 3, 12, 12"),
    mistake("run good.tw -i dtype.npz", USAGE, "'image'", "int64", "float32"),
    # Where results go.
    mistake("compile good.onnx -o nowhere/m.tw", USAGE, "nowhere", "folder"),
    mistake("compile good.onnx -o folder.tw", USAGE, "folder.tw", "folder"),
    mistake("run good.tw --random -o nowhere/y.npz", USAGE, "nowhere/y.npz", "path"),
    mistake("run good.tw --random -o folder", USAGE, "folder", "file"),
    mistake("zoo build squeezenet1_1 --image 64 -o nowhere/m.onnx", USAGE, "nowhere/m.onnx", "path"),
    mistake("explain good.tw --report r.pdf", USAGE, "r.pdf", ".html"),
    mistake("cache import nowhere.zip", USAGE, "nowhere.zip", "path"),
    mistake("cache import text.npz", USAGE, "text.npz"),
    mistake("cache ls --cache file", USAGE, "file"),
    # Limits.
    mistake("compile good.onnx --max-memory 100", LIMIT, "100", "memory"),
    mistake("compile good.onnx --timeout 0.000001 --no-cache", LIMIT, "timeout"),
)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("one", MISTAKES, ids=str)
def test_a_mistake_gets_one_line_that_says_what_and_what_next(one: Mistake) -> None:
    before = set(os.listdir())
    result = tilewright(*one.command.split())
    assert result.code == one.code, result.err
    complaint = result.complaint
    for word in one.words:
        assert word.lower() in complaint.lower(), complaint
    assert "Traceback" not in complaint
    assert "internal error" not in complaint
    assert len(complaint) < 500
    assert set(os.listdir()) <= before | {"cache"}


def test_no_mistake_is_listed_twice() -> None:
    assert len({m.command for m in MISTAKES}) == len(MISTAKES) >= 50


def test_what_no_target_runs_is_shown_and_refused() -> None:
    result = tilewright("check", "unknown_op.onnx")
    assert result.code == REFUSED
    (line,) = result.err.splitlines()
    assert "Frobnicate" in line


def test_random_values_that_a_model_cannot_use_are_not_its_fault(tmp_path: Path) -> None:
    ids = helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [8])
    gather = helper.make_node("Gather", ["x", "ids"], ["y"], "rows")
    onnx.save(model([gather], [value("x", 1, 4), ids], [value("y", 8, 4)], []), tmp_path / "row.onnx")
    for verb in (("run", "--random"), ("profile", "--duration", "0.01")):
        result = tilewright(verb[0], tmp_path / "row.onnx", *verb[1:])
        assert result.code == USAGE, result.complaint
        assert result.complaint.endswith(
            "on random inputs, Gather 'rows': index 1 lies outside axis 0, which has 1 element. "
            "Give others with -i FILE.npz."
        )


def test_results_that_differ_are_shown_and_counted() -> None:
    result = tilewright("compare", "good.onnx", "--rtol", 0, "--atol", 0, "--seed", 3)
    assert result.code == MISMATCH
    assert "DIFFERS" in result.out
    (line,) = result.err.splitlines()
    assert line.startswith("tilewright: ")
    assert "2 tensors differ" in line or "1 of 2 tensors differ" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    result = tilewright("compile", "good.onnx", "-o", tmp_path / "m.tw")
    assert result.code == USAGE
    assert str(tmp_path) in result.complaint


def test_a_newer_artifact_names_the_version_it_needs(shelf: Path, tmp_path: Path) -> None:
    from tilewright.artifact import FORMAT_VERSION

    newer = {"format_version": FORMAT_VERSION + 1}
    rewritten(shelf / "good.tw", tmp_path / "newer.tw", lambda manifest, _: manifest.update(newer))
    result = tilewright("inspect", tmp_path / "newer.tw")
    assert result.code == REFUSED
    assert "newer.tw" in result.complaint
    assert str(FORMAT_VERSION + 1) in result.complaint


def test_a_traceback_comes_only_with_debug() -> None:
    plain = tilewright("compile", "nowhere.onnx")
    spoken = tilewright("compile", "nowhere.onnx", "--debug")
    assert "Traceback" not in plain.err
    assert "Traceback" in spoken.err
    assert spoken.code == plain.code == USAGE
    assert spoken.err.splitlines()[-1] == plain.err.splitlines()[-1]


def test_a_bug_of_ours_is_one_line_that_asks_for_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **named: Any) -> None:
        raise KeyError("some invariant")

    monkeypatch.setattr("tilewright.zoo.names", broken)
    result = tilewright("zoo", "list")
    assert result.code == 1
    assert "some invariant" in result.complaint
    assert "--debug" in result.complaint


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(28, "No space left on device", "m.tw"), USAGE, "m.tw: No space left"),
        (PermissionError(13, "Permission denied", "m.tw"), USAGE, "m.tw: Permission denied"),
        (MemoryError(), LIMIT, "not enough memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=str,
)
def test_trouble_of_the_machine_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, words: str
) -> None:
    def fail(*arguments: Any, **named: Any) -> None:
        raise error

    monkeypatch.setattr("tilewright.zoo.names", fail)
    result = tilewright("zoo", "list")
    assert result.code == code
    assert words in result.complaint
