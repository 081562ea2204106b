"""Instruction-set records: register tiles, caches, what this machine runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.errors import UsageError
from tilewright.targets.cpu.codegen import compile_object
from tilewright.targets.cpu.emitter import Emitter, Param
from tilewright.targets.cpu.isa import (
    ISA_NAMES,
    CacheSizes,
    Isa,
    host_isa,
    isa_by_name,
    read_cache_sizes,
    require_host,
)
from tilewright.targets.cpu.values import PTR, vec


def live_registers(rows: int, vectors: int) -> int:
    """Accumulators, one row of the packed operand, one broadcast."""
    return rows * vectors + vectors + 1


@pytest.mark.parametrize("name", ISA_NAMES)
def test_every_tile_leaves_its_operands_in_registers(name: str) -> None:
    isa = isa_by_name(name)
    room = isa.num_vector_registers - isa.num_spare_registers
    for vectors in range(1, isa.max_vectors + 1):
        assert live_registers(isa.tile(vectors), vectors) <= room
    for rows, vectors in isa.tiles:
        assert live_registers(rows, vectors) <= room
        assert isa.tile(vectors) == rows


@pytest.mark.parametrize("name", ISA_NAMES)
def test_preferred_tiles_use_all_preferred_accumulators(name: str) -> None:
    isa = isa_by_name(name)
    assert all(rows * vectors == isa.preferred_accumulators for rows, vectors in isa.tiles)


@pytest.mark.parametrize("name", ISA_NAMES)
def test_one_vector_more_than_the_widest_tile_does_not_fit(name: str) -> None:
    isa = isa_by_name(name)
    assert isa.fits(1, isa.max_vectors)
    assert not isa.fits(1, isa.max_vectors + 1)
    assert isa.tile(isa.max_vectors + 1) == 1


def test_lanes_follow_the_vector_width() -> None:
    for name in ISA_NAMES:
        isa = isa_by_name(name)
        assert [lanes * 4 for lanes in isa.lane_choices("float")] == list(isa.vector_bytes)
        assert isa.lanes("double") * 2 == isa.lanes("float") == isa.lanes("half") // 2


@pytest.mark.parametrize("name", ISA_NAMES)
def test_each_instruction_set_emits_an_object_of_its_own_architecture(name: str) -> None:
    isa = isa_by_name(name)
    emitter = Emitter(attributes=isa.function_attributes)
    type_ = vec("float", isa.lanes())
    with emitter.function("double_in_place", [Param("x", PTR)]) as (x,):
        value = emitter.load(type_, x)
        emitter.store(emitter.fadd(value, value), x)
    image = compile_object(emitter.text(), isa)
    elf_machine = {"x86_64": 62, "aarch64": 183}[isa.arch]
    assert int.from_bytes(image[18:20], "little") == elf_machine


def test_fingerprint_covers_the_code_generator_and_not_the_caches() -> None:
    isa = isa_by_name("avx2")
    assert isa.fingerprint == replace(isa, caches=CacheSizes(l1_bytes=1)).fingerprint
    changes = (
        replace(isa, cpu="haswell"),
        replace(isa, features="+avx"),
        replace(isa, triple="x86_64-pc-linux"),
    )
    assert len({isa.fingerprint, *(changed.fingerprint for changed in changes)}) == 4


def test_fingerprint_ignores_the_order_in_which_features_are_listed() -> None:
    isa = isa_by_name("avx2")
    one, other = replace(isa, features="+avx,+fma"), replace(isa, features="+fma,+avx")
    assert one.fingerprint == other.fingerprint


def test_host_runs_its_own_record() -> None:
    isa = host_isa()
    assert isa.runs_on_host
    assert isa.name in ISA_NAMES
    assert require_host(isa) is isa
    assert isa_by_name("host") is isa


def test_code_for_another_architecture_is_refused_with_a_remedy() -> None:
    foreign = next(isa for isa in map(isa_by_name, ISA_NAMES) if isa.arch != host_isa().arch)
    with pytest.raises(UsageError, match=rf"cannot run {foreign.name} code: pick --isa {host_isa().name}"):
        require_host(foreign)


def test_unknown_instruction_set_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown instruction set 'sse2': expected host, avx512, avx2, neon"):
        isa_by_name("sse2")


def write_cache(root: Path, index: int, **facts: str) -> None:
    folder = root / f"index{index}"
    folder.mkdir()
    for name, value in facts.items():
        (folder / name).write_text(value + "\n")


def test_cache_sizes_come_from_the_listed_data_caches(tmp_path: Path) -> None:
    write_cache(tmp_path, 0, level="1", type="Data", size="48K", coherency_line_size="128")
    write_cache(tmp_path, 1, level="1", type="Instruction", size="64K", coherency_line_size="128")
    write_cache(tmp_path, 2, level="2", type="Unified", size="2M", coherency_line_size="128")
    defaults = CacheSizes()
    expected = CacheSizes(48 * 1024, 2 * 1024**2, defaults.l3_bytes, line_bytes=128)
    assert read_cache_sizes(tmp_path) == expected


def test_cache_sizes_fall_back_to_defaults_where_nothing_is_listed(tmp_path: Path) -> None:
    write_cache(tmp_path, 0, level="1", type="Data")
    assert read_cache_sizes(tmp_path) == CacheSizes()
    assert read_cache_sizes(tmp_path / "absent") == CacheSizes()


def test_function_attributes_keep_the_widest_vectors_whole() -> None:
    def width_bits(isa: Isa) -> int:
        return int(isa.function_attributes.rsplit('"', 2)[1])

    assert {name: width_bits(isa_by_name(name)) for name in ISA_NAMES} == {
        name: 8 * isa_by_name(name).vector_bytes[0] for name in ISA_NAMES
    }
