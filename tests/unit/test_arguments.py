"""What callers give wrong: every public function answers with one typed line, or does what was meant."""

# mypy: disable-error-code="dict-item, misc"

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.support.models import feed_for, small_net

import tilewright as tw
from tilewright.arguments import argument, checked, shown
from tilewright.target_ref import TargetRef


class Rude:
    """Nothing works on it."""

    def __fspath__(self) -> int:
        return 5

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    __str__ = __repr__

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no array")


VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        1.5,
        float("nan"),
        10**30,
        "",
        "x\0y",
        "\ud800",
        "nope",
        "a" * 5000,
        "\x1b[2J",
        "😀",
    ),
    *(b"x", b"\0", [], [None], {}, {"a": None}, {1: 2}, {"image": "abc"}, {"image": (1, 2.5)}, (), set()),
    *(
        np.zeros(3),
        np.array(["a"], object),
        np.float32(1),
        Path("x\0y"),
        Path("no/such"),
        range(3),
        int,
        Rude(),
    ),
    *({"image": (10**30, 3, 12, 12)}, {"image": [1, "3", 12, 12]}, {b"image": 1}, object(), lambda *a: None),
)
_PARTS = 9  # tests that the values are dealt to
FLAGS = (
    *("hint", "effort", "budget", "threads", "partition", "schedule", "memory", "disabled_passes"),
    *("accuracy", "seed", "isa", "max_memory_bytes", "dump_after", "cache_dir", "no_cache", "frozen"),
    "timeout_s",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arguments")
    onnx.save(small_net(), folder / "m.onnx")
    tw.compile(small_net(), "interpreter").save(folder / "m.tw")
    return folder


def calls(folder: Path) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    model, proto, feed = tw.load(small_net()), small_net(), feed_for(small_net())
    compiled, interpreted = tw.compile(proto, threads=1), tw.open(folder / "m.tw")
    session = tw.InferenceSession(str(folder / "m.tw"))
    yield "load", tw.load
    yield "load shapes", lambda v: tw.load(proto, shapes=v)
    yield "load example_inputs", lambda v: tw.load(proto, example_inputs=v)
    yield "check", tw.check
    yield "check target", lambda v: tw.check(model, v)
    yield "check shapes", lambda v: tw.check(model, shapes=v)
    yield "compile", tw.compile
    yield "compile target", lambda v: tw.compile(model, v)
    yield "compile options", lambda v: tw.compile(model, options=v, target="interpreter")
    yield "compile shapes", lambda v: tw.compile(model, "interpreter", shapes=v)
    for flag in FLAGS:
        yield f"compile {flag}", lambda v, flag=flag: tw.compile(model, "interpreter", **{flag: v})
        yield f"Options {flag}", lambda v, flag=flag: tw.Options(**{flag: v})
    yield "compile surprise", lambda v: tw.compile(model, surprise=v)
    yield "tune target", lambda v: tw.tune(model, "null" if v is None else v)
    yield "tune afresh", lambda v: tw.tune(model, "null", afresh=v)
    yield "open", tw.open
    yield "open threads", lambda v: tw.open(folder / "m.tw", v)
    yield "open trust", lambda v: tw.open(folder / "m.tw", trust=v)
    yield "export", lambda v: tw.export(v, folder)
    yield "export folder", lambda v: tw.export(model, v, "sparc")
    yield "export isa", lambda v: tw.export(model, folder / "no", v)
    yield "export name", lambda v: tw.export(model, folder / "no", name=v)
    yield "session", tw.InferenceSession
    yield "session options", lambda v: tw.InferenceSession(str(folder / "m.tw"), v)
    yield "bench feed", lambda v: tw.bench(compiled, feed=v, duration=-1.0)
    yield "bench duration", lambda v: tw.bench(compiled, feed={}, duration=v)
    yield "bench", lambda v: tw.bench(v, feed={})
    yield "bench others", lambda v: tw.bench(compiled, v, feed={})
    yield "map", lambda v: tw.map(v, mapper="cosa", machine="simba-cosa-paper")
    yield "map machine", lambda v: tw.map("1_1_1_1_1", v, mapper="cosa")
    for name in (
        "mapper",
        "objective",
        "budget",
        "seed",
        "link_transfers",
        "shapes",
        "noc",
        "sweep",
        "evaluate",
    ):
        yield f"map {name}", lambda v, name=name: tw.map("1_1_1_1_1", **{"mapper": "cosa", name: v})
    yield "inspect", tw.inspect
    yield "inspect shapes", lambda v: tw.inspect(folder / "m.onnx", shapes=v)
    yield "compare", tw.compare
    yield (
        "compare with",
        lambda v: tw.compare(folder / "m.onnx", v, options=tw.Options(target=TargetRef.parse("interpreter"))),
    )
    yield "compare rtol", lambda v: tw.compare(folder / "m.tw", rtol=v)
    yield "profile", tw.profile
    yield "profile duration", lambda v: tw.profile(folder / "m.tw", duration_s=v)
    for name, runs in (("cpu", compiled), ("interpreter", interpreted), ("session", session)):
        yield f"{name} names", lambda v, runs=runs: runs.run(v, feed)
        yield f"{name} name", lambda v, runs=runs: runs.run([v], feed)
        yield f"{name} feed", lambda v, runs=runs: runs.run(None, v)
        yield f"{name} input", lambda v, runs=runs: runs.run(None, {"image": v})
        yield f"{name} one more", lambda v, runs=runs: runs.run(None, {**feed, str(type(v)): v})
    yield "save", lambda v: compiled.save(v)
    yield "explain", compiled.explain
    yield "report", lambda v: compiled.report().save(v)
    yield "error graph", lambda v: compiled.measure_error(v, feed, "x")
    yield "error feed", lambda v: compiled.measure_error(model.graph, v, "x")
    yield "error inputs", lambda v: compiled.measure_error(model.graph, {}, v)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("first", range(_PARTS))
def test_every_public_call_answers_in_one_typed_line(
    first: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "work").mkdir(exist_ok=True)
    monkeypatch.chdir(folder / "work")
    wrong: list[str] = []
    for name, call in calls(folder):
        for value in VALUES[first::_PARTS]:
            try:
                call(value)
            except tw.TilewrightError as error:
                if len(str(error).splitlines()) != 1 or isinstance(error, tw.InternalError):
                    wrong.append(f"{name} {shown(value)}: {error!r}")
            except Exception as error:  # what must not happen
                wrong.append(f"{name} {shown(value)}: {type(error).__name__}: {error}")
    assert wrong == []


def array(values: Any) -> Any:
    return np.asarray(values, np.float32)


@pytest.mark.parametrize("target", ["cpu", "interpreter"])
def test_arrays_of_other_forms_run_right_or_are_refused(target: str) -> None:
    compiled = tw.compile(small_net(), target)
    feed = feed_for(small_net())
    want = compiled.run(None, feed)
    image = feed["image"]
    wide = np.zeros((*image.shape[:-1], 2 * image.shape[-1]), np.float32)
    wide[..., ::2] = image
    read_only = image.copy()
    read_only.flags.writeable = False
    odd = np.frombuffer(b"\0" + image.tobytes(), np.uint8)[1:].view(np.float32).reshape(image.shape)
    forms = {
        "strided": wide[..., ::2],
        "Fortran": np.asfortranarray(image),
        "reversed": np.ascontiguousarray(image[..., ::-1])[..., ::-1],
        "read-only": read_only,
        "unaligned": odd,
        "masked": np.ma.masked_array(image, mask=False),
        "lists": None if target == "cpu" else image.tolist(),
        "other bytes first": image.astype(">f4"),
        "objects": image.astype(object),
        "doubles": image.astype(np.float64),
        "one number": np.float32(1),
        "no number": np.zeros(0, np.float32),
        "text": np.full(image.shape, "a"),
        "records": np.zeros(image.shape, [("a", "f4")]),
        "dates": np.zeros(image.shape, "M8[s]"),
        "ragged": [[1.0], [1.0, 2.0]],
    }
    ran = []
    for name, form in forms.items():
        refusal = ""
        try:
            results = compiled.run(None, {"image": form})
        except tw.UsageError as error:
            refusal = str(error)
        if refusal:
            assert "image" in refusal, name
            assert len(refusal.splitlines()) == 1, name
            continue
        ran.append(name)
        for got, right in zip(results, want, strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6, err_msg=name)
    assert {"strided", "Fortran", "reversed", "read-only", "unaligned"} <= set(ran)


def test_numbers_of_numpy_are_numbers() -> None:
    options = tw.Options(threads=np.int64(2), timeout_s=np.float32(1.5), no_cache=np.True_)  # type: ignore[arg-type]
    assert (type(options.threads), type(options.timeout_s), options.no_cache) == (int, float, True)
    assert tw.load(small_net(), shapes={"image": np.array([1, 3, 12, 12])}).shapes == {
        "image": (1, 3, 12, 12)
    }


def test_a_text_that_names_a_folder_is_a_path(tmp_path: Path) -> None:
    assert tw.Options(cache_dir=str(tmp_path)).cache_dir == tmp_path  # type: ignore[arg-type]
    tuned = tw.tune(small_net(), threads=1, budget="1trials", search="flat", cache_dir=str(tmp_path))
    assert (tmp_path / "tuning.db").exists()
    assert tuned.model.options.cache_dir == tmp_path
    assert argument("machine", "stcp920", str | Path) == "stcp920", "a name stays a text"
    assert argument("file", "m.onnx", str | os.PathLike) == "m.onnx"
    assert argument("output", None, Path | None) is None


def test_the_message_says_what_was_expected() -> None:
    with pytest.raises(tw.UsageError, match=r"^threads: expected a whole number or None, found '2'\.$"):
        tw.Options(threads="2")  # type: ignore[arg-type]
    with pytest.raises(tw.UsageError, match=r"^cache-dir: expected a path, found ''\.$"):
        tw.Options(cache_dir="")  # type: ignore[arg-type]
    with pytest.raises(tw.UsageError, match=r"^path: expected a path, found b'm\.tw'\.$"):
        tw.open(b"m.tw")  # type: ignore[arg-type]
    with pytest.raises(tw.UsageError, match="unknown setting 'treads': did you mean threads"):
        tw.open("m.tw", treads=2)  # type: ignore[call-arg]
    assert shown(10**100) == "a number of 333 bits"
    assert len(shown("x" * 1000)) < 80
    assert shown(b"x" * 60) == repr(b"x" * 60)[:60] + "..."


def test_what_fits_passes_as_it_is() -> None:
    @checked
    def function(a: int, *rest: str, b: float = 1.0, **others: Any) -> tuple[object, ...]:
        """Say what came."""
        return a, rest, b, others

    assert function(1, "x", "y", b=2, c=3) == (1, ("x", "y"), 2.0, {"c": 3})
    assert function.__doc__ == "Say what came."
    assert argument("x", None, str | None) is None
