"""Presets: complete, cited number by number, and as fast as what is published of the machines."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import yaml

from tilewright.hardware.citation import cited_numbers
from tilewright.hardware.machine import Level, Machine
from tilewright.hardware.machine_file import machine_text, parse_machine
from tilewright.hardware.presets import load_preset, preset_names, preset_text

ASKED_FOR = {
    "simba-cosa-repo",
    "simba-cosa-paper",
    "simba-large",
    "simba-chip",
    "eyeriss",
    "eyeriss-v2",
    "stcp920",
    "stcp920-paper",
    "ascend910",
    "a310",
    "ipu-mk1",
    "ipu-mk2",
    "goya",
    "jetson-nano",
    "zcu102",
    "h200",
    "a100",
    "v100",
    "rtx2080ti",
    "k80",
    "nvdla-large",
    "nvdla-small",
    "nvdla-small-256",
    "tpu-v1",
    "tpu-v4i",
}


def test_all_presets_are_there() -> None:
    assert set(preset_names()) == ASKED_FOR


@pytest.mark.parametrize("name", preset_names())
def test_every_number_has_a_source(name: str) -> None:
    numbers = cited_numbers(load_preset(name))
    assert len(numbers) >= 10
    lacking = [
        (n.path, n.source)
        for n in numbers
        if not (n.source or "").startswith(("public:", "derived:", "assumed:"))
    ]
    assert lacking == []


def test_a_number_without_a_source_is_seen() -> None:
    text = preset_text("eyeriss").replace(
        '    source: "public: Chen et al., JSSC 2017 (not re-read): 12', '    # "12'
    )
    lacking = [n.path for n in cited_numbers(parse_machine(text)) if n.source is None]
    assert lacking == ["levels[0].capacity_bytes", "levels[0].word_bits"]


def count_numbers(tree: object) -> int:
    """Numbers in plain data, also those with a unit; texts that cite and name are none."""
    match tree:
        case dict():
            return sum(count_numbers(v) for k, v in tree.items() if k not in ("source", "sources", "name"))
        case list():
            return sum(count_numbers(v) for v in tree)
        case str():
            return re.fullmatch(r"[\d.]+ [A-Za-z/]+", tree) is not None
    return isinstance(tree, int | float) and not isinstance(tree, bool)


@pytest.mark.parametrize("name", preset_names())
def test_every_number_of_the_text_is_listed(name: str) -> None:
    given = count_numbers(yaml.safe_load(preset_text(name)))
    assert len(cited_numbers(load_preset(name))) == given


@pytest.mark.parametrize("name", preset_names())
def test_written_and_read_again_it_is_the_same(name: str) -> None:
    machine = load_preset(name)
    assert machine.name == name
    again = parse_machine(machine_text(machine), name)
    assert again == machine
    assert again.fingerprint() == machine.fingerprint()


def pat_public_pj(level: Level) -> float:
    """Timeloop's table for a vector access, per instance of a bank."""
    width = level.word_bits * level.words_per_access * level.num_instances_per_access
    if level.capacity_bytes is None:
        return 200 * width / 16
    words = level.capacity_bytes * 8 // level.word_bits
    kib = width * math.ceil(words / level.words_per_access) / 8192
    return ((kib - 0.5) * 5 / 99.5 + 1) * width / 16 / level.num_instances_per_access


def horowitz_pj(capacity_bytes: float) -> float:
    """64 bits of SRAM at 45 nm: through 10 pJ at 8 KiB and 100 pJ at 1 MiB."""
    return 10 * math.pow(capacity_bytes / 2**13, math.log(10) / math.log(2**7))


def jouppi_pj(capacity_bytes: float) -> float:
    """64 bits of SRAM at 7 nm: through 7.5 pJ at 8 KiB and 14 pJ at 1 MiB."""
    return 7.5 * math.pow(capacity_bytes / 2**13, math.log(14 / 7.5) / math.log(2**7))


def both_pj(capacity_bytes: float) -> float:
    return math.sqrt(horowitz_pj(capacity_bytes) * jouppi_pj(capacity_bytes))


LAWS: dict[str, Callable[[float], float]] = {
    "derived: a power law through the SRAM energies of Horowitz": horowitz_pj,
    "derived: a power law through the SRAM energies of Jouppi": jouppi_pj,
    "the geometric mean of two power laws": both_pj,
}


@pytest.mark.parametrize("name", preset_names())
def test_energies_follow_the_rule_that_is_named(name: str) -> None:
    machine = load_preset(name)
    rule = machine.energy_source or ""
    if "pat-public" in rule:
        for level in machine.levels:
            assert level.read_pj == pytest.approx(pat_public_pj(level), rel=1e-9), level.name
        return
    laws = [law for sentence, law in LAWS.items() if sentence in rule]
    if not laws:
        assert rule.startswith(("public: Chen", "assumed: the ratios", "assumed: means of Horowitz"))
        return
    (law,) = laws
    for level in machine.levels[:-1]:
        assert level.capacity_bytes is not None
        want = law(level.capacity_bytes) * level.word_bits * level.words_per_access / 64
        assert level.read_pj == pytest.approx(want, rel=0.01), level.name


PUBLISHED = [
    # preset, unit, element type, operations per second of the whole machine, by the sources in the presets
    ("stcp920", "MME", "float16", 128e12),
    ("stcp920", "MME", "int8", 256e12),
    ("ascend910", "CUBE", "float16", 256e12),
    ("ascend910", "CUBE", "int8", 512e12),
    ("a310", "CUBE", "int8", 22e12),
    ("ipu-mk1", "AMP", "float16", 124.5e12),
    ("ipu-mk1", "AMP", "float32", 31.1e12),
    ("ipu-mk2", "AMP", "float16", 250e12),
    ("ipu-mk2", "AMP", "float32", 62.5e12),
    ("h200", "TensorCore", "float16", 989.4e12),
    ("a100", "TensorCore", "float16", 312e12),
    ("a100", "TensorCore", "int8", 624e12),
    ("h200", "TensorCore", "int8", 1978.9e12),
    ("k80", "CUDA", "float32", 8.74e12 / 2),
    ("v100", "CUDA", "float32", 15.7e12),
    ("v100", "TensorCore", "float16", 125e12),
    ("rtx2080ti", "CUDA", "float32", 13.4e12),
    ("rtx2080ti", "TensorCore", "float16", 107.6e12),
    ("rtx2080ti", "TensorCore", "int8", 215.2e12),
    ("jetson-nano", "CUDA", "float16", 472e9),
    ("tpu-v1", "MXU", "int8", 92e12),
    ("tpu-v4i", "MXU", "bfloat16", 138e12),
    ("eyeriss-v2", "MAC", "int8", 153.6e9),
    ("simba-chip", "MAC", "int8", 36 * 4.01e12),
    ("zcu102", "DPU", "int8", 3 * 4096 * 281e6),
]


@pytest.mark.parametrize(("name", "unit", "dtype", "ops_per_s"), PUBLISHED)
def test_rates_are_those_published(name: str, unit: str, dtype: str, ops_per_s: float) -> None:
    machine = load_preset(name)
    (found,) = [u for u in machine.units if u.name == unit]
    assert machine.clock_hz is not None
    rate = 2 * machine.num_units(found) * found.macs_per_cycle[dtype] * machine.clock_hz
    assert rate == pytest.approx(ops_per_s, rel=0.03)


def whole_bytes(machine: Machine, level: str) -> int:
    found = machine.level(level)
    assert found.capacity_bytes is not None
    return found.capacity_bytes * machine.num_instances(found)


def test_memories_add_up_to_those_published() -> None:
    assert whole_bytes(load_preset("ipu-mk1"), "Tile") == 304 << 20
    assert whole_bytes(load_preset("ipu-mk2"), "Tile") == pytest.approx(900e6, rel=0.03)
    assert whole_bytes(load_preset("stcp920"), "DDR") == 16 << 30
    assert whole_bytes(load_preset("eyeriss-v2"), "ClusterBuffer") == 192_000
    paper = load_preset("simba-cosa-paper")
    per_element = {
        "Registers": 64,
        "AccumulationBuffer": 3 << 10,
        "WeightBuffer": 32 << 10,
        "InputBuffer": 8 << 10,
    }
    for level, size in per_element.items():
        assert whole_bytes(paper, level) == 16 * size
    assert whole_bytes(paper, "GlobalBuffer") == 128 << 10


def test_the_large_machine_has_four_times_the_instances() -> None:
    small, large = load_preset("simba-cosa-repo"), load_preset("simba-large")
    for level in small.levels[:4]:
        assert large.num_instances(large.level(level.name)) == 4 * small.num_instances(level)
        assert large.level(level.name).capacity_bytes == level.capacity_bytes
        assert large.level(level.name).read_pj == level.read_pj
