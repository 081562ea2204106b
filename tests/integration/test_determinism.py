"""Equal requests give equal bytes: artifacts from fresh processes, outputs from any number of threads."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.models import feed_for, host_net, small_net

import tilewright as tw
from tilewright import zoo

pytestmark = pytest.mark.sampled(2)

NUM_PROCESSES = {"cpu": 4, "interpreter": 2, "stcp920": 2}
NUM_RUNS = 1000

COMPILE = """
import sys, numpy as np, tilewright as tw
compiled = tw.compile(sys.argv[1], sys.argv[3], no_cache=True, threads=2)
compiled.save(sys.argv[2])
arrays = {i.name: np.linspace(-1, 1, int(np.prod(i.shape)), dtype=np.float32) for i in compiled.get_inputs()}
feed = {i.name: arrays[i.name].reshape(i.shape) for i in compiled.get_inputs()}
for _ in range(2):
    sys.stdout.buffer.write(b"".join(a.tobytes() for a in compiled.run(None, feed)))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def assert_processes_agree(target: str, num_processes: int, folder: Path) -> None:
    """Artifacts and outputs of fresh processes, each with another order of sets, are the same."""
    model = folder / "model.onnx"
    network = zoo.build("squeezenet1_1", image=48) if target == "cpu" else small_net()
    model.write_bytes(network.SerializeToString())
    digests: list[str] = []
    outputs: list[bytes] = []
    for number in range(num_processes):
        inside = folder / f"folder{number}"
        inside.mkdir()
        path = inside / f"model{number}.tw"
        environment = {**os.environ, "PYTHONHASHSEED": str(7919 * number + 1)}
        done = subprocess.run(
            [sys.executable, "-c", COMPILE, str(model), str(path), target],
            check=True,
            env=environment,
            cwd=inside,
            stdout=subprocess.PIPE,
        )
        digests.append(hashlib.sha256(path.read_bytes()).hexdigest())
        half = len(done.stdout) // 2
        outputs += [done.stdout[:half], done.stdout[half:]]
    assert len(set(digests)) == 1
    assert len(set(outputs)) == 1
    assert outputs[0]


@pytest.mark.sampled(0)
@pytest.mark.parametrize("target", NUM_PROCESSES)
def test_fresh_processes_write_the_same_artifact_and_compute_the_same_bits(
    target: str, tmp_path: Path
) -> None:
    assert_processes_agree(target, NUM_PROCESSES[target], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("target", NUM_PROCESSES)
def test_many_fresh_processes_agree(target: str, tmp_path: Path) -> None:
    assert_processes_agree(target, 20, tmp_path)


def test_the_cache_does_not_change_the_artifact(tmp_path: Path) -> None:
    written = [
        tw.compile(small_net(), **settings).save(tmp_path / f"{i}.tw").read_bytes()
        for i, settings in enumerate(({"no_cache": True}, {"cache_dir": tmp_path}, {"cache_dir": tmp_path}))
    ]
    assert len(set(written)) == 1


def test_another_option_or_model_is_another_artifact(tmp_path: Path) -> None:
    written = [
        tw.compile(model, **settings).save(tmp_path / "m.tw").read_bytes()
        for model, settings in (
            (small_net(), {}),
            (small_net(seed=1), {}),
            (small_net(), {"seed": 1}),
            (small_net(), {"target": "interpreter"}),
            (small_net(), {"target": "stcp920"}),
            (small_net(), {"target": "ipu-mk1"}),
        )
    ]
    assert len(set(written)) == len(written)


@pytest.mark.parametrize("make", [small_net, host_net])
def test_one_thread_and_two_give_the_same_bits_in_every_run(make: Any) -> None:
    feed = feed_for(make())
    models = [tw.compile(make(), threads=n) for n in (1, 2)]
    assert [m.num_threads for m in models] == [1, 2]
    want = [a.tobytes() for a in models[0].run(None, feed)]
    for compiled in models:
        for _ in range(NUM_RUNS // 2):
            assert [a.tobytes() for a in compiled.run(None, feed)] == want


def test_a_network_gives_the_same_bits_for_any_number_of_threads() -> None:
    model = zoo.build("squeezenet1_1", image=64)
    feed = zoo.example_inputs(model, 0)
    compiled = [tw.compile(model, threads=n) for n in (1, 2, 3, 5)]
    outputs = [c.run(None, feed)[0] for c in compiled for _ in range(5)]
    assert all(np.array_equal(outputs[0], o) for o in outputs[1:])
