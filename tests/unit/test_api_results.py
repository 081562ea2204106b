"""What `tw.inspect`, `tw.compare`, `tw.profile` and `tw.check` return: figures, tables, JSON."""

# mypy: disable-error-code="arg-type, attr-defined, call-arg"

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from tests.support.models import feed_for, small_net

import tilewright as tw
from tilewright.api import TuneRequest, TuneResult
from tilewright.results import Result
from tilewright.target_ref import TargetRef


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    onnx.save(small_net(), folder / "m.onnx")
    onnx.save(small_net(seed=1), folder / "twin.onnx")
    tw.compile(small_net(), threads=1, cache_dir=folder / "cache").save(folder / "m.tw")
    return folder


def shown(result: Result) -> Result:
    """The result, of which everything that is for people and for programs can be made."""
    assert json.loads(json.dumps(result.to_json()))
    assert str(result)
    assert result.rows()
    assert result._repr_html_().startswith("<table>")
    return result


def test_a_file_and_its_artifact_are_of_the_same_model(folder: Path) -> None:
    model, artifact = (shown(tw.inspect(folder / name)) for name in ("m.onnx", "m.tw"))
    assert model.model_sha256 == artifact.model_sha256
    assert (model.num_kernels, model.target) == (None, "any")
    assert artifact.num_kernels == sum(artifact.algorithms.values())
    assert model.model.inputs == artifact.model.inputs


def test_sides_with_other_weights_differ_and_say_where(folder: Path) -> None:
    feed = feed_for(small_net())
    same = shown(tw.compare(folder / "m.tw", "interpreter", feed=feed, layers=True))
    assert same.ok
    assert same.differing == ()
    assert len(same.layers) >= 2
    twin = shown(
        tw.compare(f"{folder / 'm.onnx'}@interpreter", f"{folder / 'twin.onnx'}@interpreter", feed=feed)
    )
    assert not twin.ok
    assert twin.differing[0].name in {"logits", "r1"}
    assert twin.layers is None


@pytest.mark.usefixtures("known_limits")
@pytest.mark.sampled(0)
def test_a_profile_has_a_row_for_each_kernel(folder: Path) -> None:
    profile = shown(tw.profile(folder / "m.tw", feed=feed_for(small_net()), duration_s=0.05, threads=1))
    assert len(profile.tables(every=True)[0].rows) == len(profile.kernels)
    assert profile.to_json()["kernels"][0]["of_limit"] == profile.kernels[0].of_limit


def test_a_check_has_a_row_for_each_way_to_treat_operators(folder: Path) -> None:
    report = shown(tw.check(folder / "m.onnx"))
    assert len(report.rows()) == len(report.operators)
    assert report.to_json()["ok"] is True


def test_tuning_has_a_row_for_each_subgraph_and_writes_the_artifact(folder: Path) -> None:
    asked = {"threads": 1, "budget": "2trials", "search": "flat", "cache_dir": folder / "tuned"}
    tuned = shown(tw.tune(small_net(), output=folder / "tuned.tw", **asked))
    assert isinstance(tuned, TuneResult)
    assert len(tuned.rows()) == len(tuned.tuning.subgraphs)
    assert tuned.lines() == (tuned.tuning.outcome,)
    assert tuned.to_json().keys() == {*tuned.tuning.to_json(), "artifact"}
    assert [k.symbol for k in tw.open(folder / "tuned.tw").kernels] == [k.symbol for k in tuned.model.kernels]


def test_what_cannot_be_tuned_is_refused_before_anything_is_measured(folder: Path) -> None:
    with pytest.raises(tw.UsageError, match="is compiled already"):
        tw.tune(folder / "m.tw")
    with pytest.raises(tw.UsageError, match="its folder"):
        tw.tune(folder / "m.onnx", output=folder / "no" / "m.tw")
    with pytest.raises(tw.UsageError, match="nothing can be measured"):
        TuneRequest(model=tw.load(small_net()), options=tw.Options(target=TargetRef.parse("stcp920")))
