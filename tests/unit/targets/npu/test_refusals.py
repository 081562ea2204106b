"""What a described machine cannot do is said in one line, when it is asked and when it is tried."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.models import small_net

import tilewright as tw
from tilewright.hardware.presets import preset_names

NOT_FOR_NETWORKS = {
    "simba-chip": "no bandwidth; give read_bytes_per_s",
    "simba-large": "clock_hz: is missing",
    "eyeriss": "none is a scratchpad of each core; mark one per: core",
    "jetson-nano": "none runs elementwise; give one of them runs",
}


@pytest.mark.parametrize("machine", preset_names())
def test_a_machine_runs_what_it_says_it_runs(machine: str) -> None:
    report = tw.check(small_net(), machine)
    if report.ok:
        assert tw.compile(small_net(), machine).steps
        return
    with pytest.raises(tw.MachineError) as caught:
        tw.compile(small_net(), machine)
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).rstrip(".") in {o.reason for o in report.unsupported}


@pytest.mark.parametrize("machine", NOT_FOR_NETWORKS)
def test_what_is_missing_is_named(machine: str) -> None:
    with pytest.raises(tw.MachineError, match=NOT_FOR_NETWORKS[machine]):
        tw.compile(small_net(), machine)


def test_an_instruction_set_is_for_the_host() -> None:
    with pytest.raises(
        tw.UsageError, match=r"target stcp920: has no instruction set; leave out --isa avx2\."
    ):
        tw.compile(small_net(), "stcp920", isa="avx2")


def test_a_limit_of_memory_holds() -> None:
    peak_bytes = tw.compile(small_net(), "stcp920").memory.peak_bytes  # type: ignore[union-attr]
    assert tw.compile(small_net(), "stcp920", max_memory_bytes=peak_bytes).steps
    with pytest.raises(tw.BudgetExceeded, match="main memory holds"):
        tw.compile(small_net(), "stcp920", max_memory_bytes=peak_bytes - 1)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("npu", "target npu: needs a machine; give a YAML file"),
        ("stcp921", "Did you mean stcp920"),
        ("gpu9", "a machine that `tilewright targets` lists"),
        ("nowhere.yaml", r"nowhere\.yaml: cannot be read"),
        ("stcp920{over=none}", "did you mean overlap"),
    ],
)
def test_a_target_that_is_none_is_one_line(target: str, words: str) -> None:
    with pytest.raises(tw.UsageError, match=words) as caught:
        tw.compile(small_net(), target)
    assert len(str(caught.value).splitlines()) == 1


def test_models_are_compared_across_machines(tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    path.write_bytes(small_net().SerializeToString())
    compared = tw.compare(path, "stcp920")
    assert compared.ok
    assert compared.b == f"{path}@stcp920"
    with pytest.raises(tw.UsageError, match="unknown engine 'stcp921'"):
        tw.compare(path, f"{path}@stcp921")
