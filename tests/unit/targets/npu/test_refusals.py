"""What a described machine cannot do is said in one line, when it is asked and when it is tried."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from tests.support.models import small_net

import tilewright as tw
from tilewright.hardware.machine import Machine
from tilewright.hardware.machine_file import parse_machine
from tilewright.hardware.missing_fields import MissingField, missing_fields
from tilewright.hardware.presets import load_preset, preset_names, preset_text
from tilewright.targets.npu.target import NpuTarget


@pytest.mark.sampled(1)
@pytest.mark.parametrize("machine", preset_names())
def test_a_machine_runs_what_it_says_it_runs(machine: str) -> None:
    report = tw.check(small_net(), machine)
    if report.ok:
        assert tw.compile(small_net(), machine).steps
        return
    with pytest.raises(tw.MachineError) as caught:
        tw.compile(small_net(), machine)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    if "lower the network with -t" in message:
        lowered = message.split("-t '")[1].split("'")[0]
        assert message.rstrip(".") in {operator.reason for operator in report.unsupported}
        assert tw.compile(small_net(), lowered).steps
        return
    for operator in report.unsupported:
        where = [lack.partition(" `")[0] for lack in operator.reason.split("N: ", 1)[1].split("; ")]
        assert all(f"{place} `" in message for place in where), operator
    assert "serves mapping alone (`tilewright map`)" in message


def described(text: str, lacks: Sequence[MissingField]) -> Machine:
    """A machine's text with the lines of some lacks, and 8 for each N."""
    document = yaml.safe_load(text)
    for lack in lacks:
        place, _, _ = lack.where.partition(" ")
        added = yaml.safe_load(lack.line.replace("N", "8"))
        if place == "units":
            document["units"] += added
        elif place in added:
            document |= added
        else:
            listed, _, number = place.rstrip("]").partition("[")
            document[listed][int(number)] |= added
    return parse_machine(yaml.safe_dump(document))


MISSING = {
    "k80": "    runs: [contraction, depthwise, elementwise, reduction, special]\n",
    "stcp920": 'clock_hz: {value: 1 GHz, source: "public: product manual of the STCP920"}\n',
    "goya": "    macs_per_cycle: {value: {int8: 256, float32: 64}, "
    'source: "assumed: a multiply-add per lane, for depthwise convolution"}\n',
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*(n for n in preset_names() if missing_fields(load_preset(n))), *MISSING])
def test_with_the_lines_that_it_says_a_machine_runs_networks(name: str) -> None:
    line = MISSING.get(name, "")
    assert line in preset_text(name)
    text = preset_text(name).replace(line, "", 1)
    lacks = missing_fields(parse_machine(text))
    assert lacks
    machine = described(text, lacks)
    assert missing_fields(machine) == ()
    multiplied = [dtype for unit in machine.units for dtype in unit.macs_per_cycle]
    dtype = None if any(dtype.startswith(("float", "bfloat")) for dtype in multiplied) else multiplied[0]
    target = NpuTarget(machine, dtype=dtype)  # type: ignore[arg-type]
    assert all(target.supports(node) for node in tw.load(small_net()).graph.nodes)


def test_a_refusal_is_one_line_before_anything_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.compiler.best_plan", None)
    monkeypatch.setattr("tilewright.targets.npu.target.batches_of", None)
    words = r"levels\[3\] GlobalBuffer `per: core` .*; levels\[4\] DRAM .*; units `- {name"
    with pytest.raises(tw.MachineError, match=words) as caught:
        tw.simulate(small_net(), "eyeriss")
    assert len(str(caught.value).splitlines()) == 1
    graph = tw.load(small_net()).graph
    with pytest.raises(tw.MachineError, match=words):
        NpuTarget(load_preset("eyeriss")).batches(graph, graph.inputs)


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
        (
            "nowhere.yaml",
            r"nowhere\.yaml: cannot be read: No such file or directory; `tilewright targets` lists",
        ),
        ("./stcp92.yaml", r"stcp92\.yaml: cannot be read: .*; did you mean stcp920"),
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
