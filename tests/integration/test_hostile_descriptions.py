"""Damaged descriptions of machines and of Timeloop's: mended or refused in one line, in bounded time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.hostile import yaml_files
from tests.hostile.yaml_files import READERS, odd_files, outcome, try_seed

from tilewright.errors import MachineError
from tilewright.hardware import machine_file
from tilewright.hardware.machine_file import parse_machine

ROOT = Path(__file__).parents[2]


def test_every_text_that_is_damaged_can_be_read_whole(tmp_path: Path) -> None:
    for number, (text, read) in enumerate(yaml_files._TEXTS):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        assert outcome(path, read) == "read", text[:100]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("group", range(4))
def test_damaged_files_are_read_or_refused(tmp_path: Path, group: int) -> None:
    for seed in range(10 * group, 10 * group + 10):
        how, found = try_seed(seed, tmp_path)
        assert found in ("read", "refused"), how


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, read: yaml_files.Read) -> None:
    for path in odd_files(tmp_path):
        assert outcome(path, read) == "refused", path


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (f"clock_hz: {'9' * 100_000}", "line 1: clock_hz: a number of 100000 digits; at most MAX_DIGITS"),
        (f"levels:\n- {{capacity_bytes: 0x{'f' * 5000}}}", "line 2: levels[0].capacity_bytes: a number of"),
        (f"name: {'a ' * 100_000}", "line 1: name: text of 199999 characters; at most MAX_TEXT"),
        (f"levels: [{'1,' * 60_000}]", "line 1: levels[29997]: more than MAX_VALUES"),
        ("[" * 100, "line 1: " + "[0]" * 20 + "...: nested too deeply, more than MAX_DEPTH"),
        ("name: !!binary aGk=", "line 1: name: tag !!binary"),
        # Each of the tags is that long; read out, they took 20 s and 10 GB.
        (f"%TAG ! {'a' * 500_000}\n---\n[{'!b x,' * 20_000}]", "line 1: a %TAG directive; write"),
        ("name: x\n" + "".join(f"a{i}: !t{i} x\n" for i in range(20_000)), "line 2: a0: tag !t0; write"),
        ("name: 2001-13-45", "line 1: name: 2001-13-45 is not what YAML takes it for (timestamp: month"),
        ("levels: !!int abc", "line 1: levels: abc is not what YAML takes it for (int"),
        ("a: &a [1]\nb: *a", "line 2: b: aliases are not allowed (*a)"),
    ],
)
def test_limits_are_named_with_line_and_key(text: str, limit: str) -> None:
    with pytest.raises(MachineError) as caught:
        parse_machine(text, "chip.yaml")
    assert str(caught.value).startswith(f"chip.yaml, {limit}")
    for word in limit.split():
        if word.startswith("MAX_"):
            assert f"{word} = {getattr(machine_file, word)}" in str(caught.value)


@pytest.mark.slow
def test_500_damaged_files() -> None:
    command = [sys.executable, "-m", "tests.hostile.yaml_files", "500", "1000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
