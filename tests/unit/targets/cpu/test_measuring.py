"""Real code in the process that measures, and code that crashes, hangs or computes something else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import onnx.parser
import pytest
from tests.support.models import small_net

import tilewright as tw
from tilewright.compiler import plan
from tilewright.ir.interpret import run_graph
from tilewright.options import Options
from tilewright.targets.cpu.image.code import CpuCode
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.cpu.tune.bench import random_feed
from tilewright.targets.cpu.tune.measuring import measuring_pool, packed
from tilewright.targets.llvm.codegen import compile_object
from tilewright.tuning.workers import Effort, Failed, LocalMeasuringPool, Measured, MeasureRequest, PackedCode

EFFORT = Effort(min_rounds=2, max_rounds=2)
PROGRAM = plan(tw.load(small_net(channels=8, size=12)).graph, Options(threads=2)).program
FEED = random_feed(PROGRAM)
EXPECTED = run_graph(PROGRAM.graph, FEED)


@pytest.fixture(scope="module")
def code() -> CpuCode:
    return CpuTarget().generate(PROGRAM, profile=True)


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalMeasuringPool]:
    with measuring_pool() as opened:
        yield opened


def request(
    candidate: PackedCode, baseline: PackedCode | None = None, limit_s: float = 60.0
) -> MeasureRequest:
    return MeasureRequest(candidate, FEED, EXPECTED, 1e-4, baseline, EFFORT, limit_s)


def with_body(code: CpuCode, body: str) -> PackedCode:
    """The code with another body in its first kernel."""
    symbol = code.image.main.kernel_symbols[0]
    (place,) = [i for i, k in enumerate({k.symbol: k for k in _kernels(code)}) if k == symbol]
    text = f"define void @{symbol}(ptr %args, i64 %chunk, ptr %scratch) {{\n{body}\n}}\n"
    objects = list(code.image.objects)
    objects[place] = compile_object(text, host_isa())
    return packed(replace(code, image=replace(code.image, objects=tuple(objects))))


def _kernels(code: CpuCode) -> list:
    return [k for launch in code.lowered.launches for k in launch.kernel.all_kernels()]


def test_code_is_measured_with_its_steps_beside_code_without(code: CpuCode, pool: LocalMeasuringPool) -> None:
    plain = packed(CpuTarget().generate(PROGRAM))
    (result,) = pool.measure([request(packed(code), plain)])
    assert isinstance(result, Measured)
    assert result.baseline is not None
    assert len(result.candidate.whole_ns) == len(result.baseline.whole_ns) > 0
    assert {len(steps) for steps in result.candidate.steps_ns} == {len(code.lowered.steps)}
    assert {len(steps) for steps in result.baseline.steps_ns} == {0}
    assert min(result.candidate.whole_ns + result.baseline.whole_ns) > 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("body", "reason", "limit_s"),
    [
        ("store i8 1, ptr null\nret void", "crashed", 60.0),
        ("entry:\n  br label %loop\nloop:\n  br label %loop", "hung", 1.0),
        ("ret void", "wrong-values", 60.0),
    ],
)
def test_code_that_goes_wrong_is_told(
    body: str, reason: str, limit_s: float, code: CpuCode, pool: LocalMeasuringPool
) -> None:
    failed, after = pool.measure(
        [request(with_body(code, body), packed(code), limit_s), request(packed(code))]
    )
    assert isinstance(failed, Failed)
    assert failed.reason == reason
    assert isinstance(after, Measured)


def test_code_of_another_processor_is_declined(code: CpuCode, pool: LocalMeasuringPool) -> None:
    image = replace(code.image, features="+sse99")
    (result,) = pool.measure([request(packed(replace(code, image=image)))])
    assert isinstance(result, Failed)
    assert result.reason == "declined"
    assert "another processor" in result.detail


MIXED = """<ir_version: 8, opset_import: ["": 17]>
    g (float[3,2,2] x) => (float[3] y, float[3] z, float[3] c)
    <float[3] c = {1, 2, 3}, float[3] w = {4, 5, 6}> {
        d = Det(x)  y = Add(d, w)  z = Softmax(y) }"""


def test_operators_in_python_and_constant_outputs_travel_with_their_program(pool: LocalMeasuringPool) -> None:
    program = plan(tw.load(onnx.parser.parse_model(MIXED)).graph, Options()).program
    mixed = CpuTarget().generate(program, profile=True)
    assert mixed.image.host_steps
    feed = random_feed(program)
    expected = run_graph(program.graph, feed)
    (result,) = pool.measure([MeasureRequest(packed(mixed), feed, expected, 1e-4, None, EFFORT, 60.0)])
    assert isinstance(result, Measured), result
    assert {len(steps) for steps in result.candidate.steps_ns} == {len(mixed.lowered.steps)}
    wrong = {**expected, "c": expected["c"] + 1}
    (result,) = pool.measure([MeasureRequest(packed(mixed), feed, wrong, 1e-4, None, EFFORT, 60.0)])
    assert isinstance(result, Failed)
    assert result.reason == "wrong-values"
