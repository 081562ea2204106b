"""Commands that measure, perhaps elsewhere: what is no worker is told in a line, what is lost is one task."""

from __future__ import annotations

import json
import os
import select
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.fake_contestants import MODULE, fake, load

from tilewright.errors import UsageError
from tilewright.system import worker_process
from tilewright.system.worker_process import READY, WorkerProcess, write_texts
from tilewright.tuning import measuring
from tilewright.tuning.cluster import ClusterMeasuringPool
from tilewright.tuning.runners import PROTOCOL, Greeting, NoRunner, RunnerFleet, Wanted, emulator_here
from tilewright.tuning.workers import Effort, Failed, Measured, MeasureRequest, PackedCode, _result

ROOT = str(Path(__file__).resolve().parents[3])
X = np.array([1.0, 2.0], np.float32)
WANTED = Wanted("1", "neon")
GREETING = Greeting(PROTOCOL, "0.2.0", "1", "a processor", "", ("neon",), ("this machine",))


def command(*words: str) -> str:
    return shlex.join((sys.executable, *words))


RUNNER = command("-m", MODULE)


@pytest.fixture(autouse=True)
def tests_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]))


def request(code: PackedCode, limit_s: float = 30.0) -> MeasureRequest:
    effort = Effort(min_rounds=2, max_rounds=2, seconds=10, num_warm_up=0)
    return MeasureRequest(code, {"x": X}, {"y": 2 * X}, 1e-6, fake(run_ns=4000.0), effort, limit_s)


def times(results: list[Measured | Failed]) -> list[float | str]:
    return [r.reason if isinstance(r, Failed) else r.candidate.whole_ns[0] for r in results]


def test_runners_measure_in_order_and_one_that_ends_loses_its_task_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    codes = [fake(run_ns=1000.0 + n) for n in range(4)]
    codes[2:2] = [fake("triple"), fake("crash once", marker=tmp_path / "a")]
    with ClusterMeasuringPool(RunnerFleet([RUNNER, command("-c", ""), RUNNER], WANTED)) as pool:
        assert pool.num_machines == 2
        expected = [1000.0, 1001.0, "wrong-values", 1000.0, 1002.0, 1003.0]
        assert times(list(pool.measure(map(request, codes)))) == expected
    assert "is left out" in caplog.text


def test_what_a_runner_holds_travels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = RunnerFleet([RUNNER], WANTED)
    sent: list[list[str]] = []
    with ClusterMeasuringPool(fleet) as pool:
        process = fleet._pools[0]._process
        assert process is not None
        ask = type(process).ask

        def noted(self: Any, texts: Any, timeout_s: float) -> list[bytes]:
            question = json.loads(bytes(texts[0]))
            if question["ask"] == "load":
                sent.append(question["sent"])
            return ask(self, texts, timeout_s)

        monkeypatch.setattr(type(process), "ask", noted)
        assert times(list(pool.measure([request(fake(run_ns=n)) for n in (1.0, 2.0)]))) == [1.0, 2.0]
    assert [len(pieces) for pieces in sent] == [2, 0, 0], "the baseline's weights are the candidates'"


def said(tmp_path: Path, data: bytes, then: str = "") -> str:
    """A command that says so, and no more."""
    file = tmp_path / f"said {hash(data)}"
    file.write_bytes(data)
    return command("-c", f"import os, sys; os.write(1, open({str(file)!r}, 'rb').read()); {then}")


def framed(tmp_path: Path, *texts: bytes) -> bytes:
    with (tmp_path / "frame").open("wb") as file:
        write_texts(file.fileno(), texts)
    return (tmp_path / "frame").read_bytes()


def greeted(tmp_path: Path, **changes: Any) -> bytes:
    return framed(tmp_path, READY, *replace(GREETING, **changes).texts())


def test_what_is_no_worker_is_told_in_a_line(tmp_path: Path) -> None:
    banner = b"Welcome to board 7!\nLast login: today\n"
    for given, expected in (
        (said(tmp_path, banner), "it said Welcome to board 7! Last login: today, which is no answer"),
        (said(tmp_path, (2).to_bytes(4, "little") + b"\xff" * 16), "announced an answer of 3689"),
        (said(tmp_path, framed(tmp_path, b"hello")), r"\(it said hello\)"),
        (said(tmp_path, framed(tmp_path, READY)), "its greeting cannot be read"),
        (said(tmp_path, framed(tmp_path, READY, b"[1]")), "its greeting cannot be read"),
        (said(tmp_path, greeted(tmp_path, protocol=99)), "speaks version 99 of the protocol, this is 1"),
        (said(tmp_path, greeted(tmp_path, interface="0")), "has tilewright 0.2.0, which runs other code"),
        (said(tmp_path, greeted(tmp_path, instruction_sets=("avx2",))), "a processor does not run neon code"),
        (command("-c", "import sys; sys.exit('ssh: no route')"), "ended with status 1: ssh: no route"),
        ("no-such-program worker", "no program 'no-such-program' is found"),
        ("ssh 'board", "no closing quotation"),
        ("", "it is empty"),
    ):
        with pytest.raises(NoRunner, match=expected) as raised:
            RunnerFleet([given], WANTED)
        assert "\n" not in str(raised.value)
        assert str(raised.value).startswith("--runner ")


def test_answers_that_make_no_sense_count_as_a_crash(tmp_path: Path) -> None:
    reply = framed(tmp_path, json.dumps({"candidate": {"whole_ns": [-1.0], "steps_ns": []}}).encode())
    frames = greeted(tmp_path) + framed(tmp_path, b"{}") * 2 + reply
    with ClusterMeasuringPool(RunnerFleet([said(tmp_path, frames, "sys.stdin.read()")], WANTED)) as pool:
        (result,) = pool.measure([request(fake())])
    assert result == Failed("crashed", "it gave an answer that cannot be read")


def test_a_machine_like_this_one_is_told_by_its_fingerprint() -> None:
    assert Wanted("1", "neon", "this machine").refusal(GREETING) == ""
    refusal = Wanted("1", "avx2", "another").refusal(GREETING)
    assert "is another processor, compiler or version" in refusal
    assert "(neon) with --isa" in refusal


def test_an_emulator_is_seen_and_named(tmp_path: Path) -> None:
    for name, program in (("self", "/usr/bin/python3"), ("thread-self", "/usr/bin/qemu-aarch64")):
        (tmp_path / "proc" / name).mkdir(parents=True)
        (tmp_path / "proc" / name / "exe").symlink_to(program)
    assert emulator_here(tmp_path) == "qemu-aarch64"
    assert emulator_here() == ""
    assert replace(GREETING, emulator="qemu-aarch64").place == "an emulator (qemu-aarch64 on a processor)"


def answer(*whole_ns: Any, steps: Any = None, **more: Any) -> dict[str, Any]:
    """What a worker says of a request, of candidate and baseline alike."""
    samples = {"whole_ns": list(whole_ns), "steps_ns": [[1.0]] * len(whole_ns) if steps is None else steps}
    return {"candidate": samples, "baseline": samples, "num_rejected": 0, "is_disturbed": False, **more}


@pytest.mark.parametrize(
    "said",
    [
        answer(),
        answer(0.0, 5.0),
        answer(float("nan"), 5.0),
        answer(1e15, 5.0),  # longer than all of it may take
        answer(5.0, 5.0, 5.0),  # more rounds than were asked for
        answer(5.0, steps=[[1.0], [1.0]]),
        answer(5.0, 5.0, steps=[[1.0], []]),
        answer(5.0, 5.0, baseline=None),
        answer(5.0, 5.0, baseline={"whole_ns": [5.0], "steps_ns": [[1.0]]}),
        answer(5.0, num_rejected=float("inf")),
        {"candidate": []},
    ],
)
def test_times_that_no_run_gives_are_no_answer(said: dict[str, Any]) -> None:
    assert isinstance(_result(request(fake()), answer(5.0, 6.0)), Measured)
    with pytest.raises((ArithmeticError, KeyError, TypeError, ValueError)):
        _result(request(fake()), said)


def test_what_a_worker_says_is_shown_in_one_line_of_a_bounded_length() -> None:
    result = _result(request(fake()), {"reason": "\x1b", "detail": "\x1b[2J\n" * 10**6})
    assert isinstance(result, Failed)
    assert result.reason == "wrong-values"
    hostile = replace(GREETING, version="\x1b[2J\n", processor="\n", instruction_sets=("\x1b[2J\n",))
    refusals = (Wanted("0", "neon").refusal(hostile), Wanted("1", "neon", "another").refusal(hostile))
    for line in (result.detail, *refusals):
        assert line.isprintable()
        assert len(line) <= 1500


def test_a_search_that_is_left_half_way_can_ask_its_runners_again() -> None:
    with ClusterMeasuringPool(RunnerFleet([RUNNER], WANTED)) as pool:
        results = pool.measure([request(fake(run_ns=n)) for n in (1.0, 2.0, 3.0, 4.0)])
        assert times([next(results)]) == [1.0]  # type: ignore[list-item]
        results.close()  # type: ignore[attr-defined]  # while the second batch is measured
        assert times(list(pool.measure([request(fake(run_ns=5.0))]))) == [5.0]


def test_standard_error_that_another_process_has_is_read_to_its_end_and_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `ssh` leaves one that keeps its connection: the number of the pipe may be another file's then."""
    process = WorkerProcess(
        ["sh", "-c", "(sleep .4; echo late >&2; sleep .1) >/dev/null & exit 3"], start_s=5, is_python=False
    )
    monkeypatch.setattr(worker_process, "_LINGER_S", 0.0)
    assert not process.is_ready()
    process.end()
    read_from, write_to = os.pipe()
    os.write(write_to, b"mine")
    descriptors = [read_from, *(os.dup(read_from) for _ in range(8))]
    process._reader.join(5)
    assert select.select([read_from], [], [], 0)[0]
    assert os.read(read_from, 9) == b"mine"
    for descriptor in (write_to, *descriptors):
        os.close(descriptor)


def test_a_request_that_a_worker_cannot_read_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    serving: list[Any] = []
    monkeypatch.setattr(measuring, "serve_texts", lambda start, greeting: serving.append(start()))
    measuring.serve(load)
    for text in (b"rubbish", b"[]", b"{}", b'{"ask": "load"}', b"[" * 10**5):
        with pytest.raises(
            UsageError, match=r"^a request cannot be read \(.*install one version of tilewright"
        ):
            serving[0]([text])
