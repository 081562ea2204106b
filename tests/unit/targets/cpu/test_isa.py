"""Instruction-set records: register tiles, caches, what this machine runs."""

from dataclasses import replace

import pytest

from tilewright.errors import UsageError
from tilewright.hardware.host import host_machine
from tilewright.hardware.instruction_sets import instruction_set_by_name
from tilewright.hardware.machine import Instructions, Level, Machine
from tilewright.hardware.machine_file import machine_text, parse_machine
from tilewright.hardware.presets import load_preset
from tilewright.hardware.processor import vector_unit
from tilewright.hardware.rates import PROFILE, processor_rates
from tilewright.targets.cpu.isa import (
    ISA_NAMES,
    CacheSizes,
    Isa,
    host_isa,
    isa_by_name,
    isa_of,
)
from tilewright.targets.llvm.codegen import compile_object
from tilewright.targets.llvm.emitter import Emitter, Param
from tilewright.targets.llvm.values import PTR, vec


def live_registers(rows: int, vectors: int) -> int:
    """Accumulators, one row of the packed operand, one broadcast."""
    return rows * vectors + vectors + 1


@pytest.mark.parametrize("name", ISA_NAMES)
def test_every_tile_leaves_its_operands_in_registers(name: str) -> None:
    isa = isa_by_name(name)
    room = isa.num_vector_registers - isa.num_spare_registers
    for vectors in (n for n in range(1, isa.num_vector_registers) if isa.fits(1, n)):
        assert live_registers(isa.tile(vectors), vectors) <= room
    for rows, vectors in isa.tiles:
        assert live_registers(rows, vectors) <= room
        assert isa.tile(vectors) == rows


@pytest.mark.parametrize("name", ISA_NAMES)
def test_preferred_tiles_use_all_preferred_accumulators(name: str) -> None:
    isa = isa_by_name(name)
    assert all(rows * vectors == isa.preferred_accumulators for rows, vectors in isa.tiles)


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
    assert isa_by_name("host") is isa


def test_code_for_another_architecture_is_refused_with_a_remedy() -> None:
    foreign = next(isa for isa in map(isa_by_name, ISA_NAMES) if isa.arch != host_isa().arch)
    with pytest.raises(UsageError, match=rf"cannot run {foreign.name} code: pick --isa {host_isa().name}"):
        isa_of(host_machine(), foreign.name)


def test_unknown_instruction_set_lists_the_known_ones() -> None:
    listed = "give host, avx512, avx512\\+amx, avx2, neon"
    with pytest.raises(UsageError, match=f"unknown instruction set 'sse2': {listed}"):
        isa_by_name("sse2")


def machine(*levels: Level, processor: str = "x86-64-v4", **instructions: tuple[str, ...]) -> Machine:
    described = Instructions(triple="x86_64-unknown-linux-gnu", processor=processor, **instructions)
    dram = Level(name="DRAM", managed_by="hardware")
    return Machine(name="m", levels=(*levels, dram), units=(), instructions=described)


def cache(name: str, capacity_bytes: int) -> Level:
    return Level(name=name, capacity_bytes=capacity_bytes, managed_by="hardware", line_bytes=128)


def test_cache_sizes_are_those_of_the_machine() -> None:
    isa = isa_of(machine(cache("L1", 48 << 10), cache("L2", 2 << 20)))
    assert isa.caches == CacheSizes(48 << 10, 2 << 20, CacheSizes().l3_bytes, line_bytes=128)


def test_cache_sizes_are_assumed_where_the_machine_has_none() -> None:
    assert isa_of(machine()).caches == CacheSizes()
    scratchpad = Level(name="L1", capacity_bytes=1 << 20)
    assert isa_of(machine(scratchpad)).caches == CacheSizes(), "no cache: the schedule fills it"


def test_an_instruction_set_is_the_same_machine_with_narrower_vectors() -> None:
    wide = machine(cache("L2", 3 << 20))
    narrow = isa_of(wide, "avx2")
    assert (isa_of(wide).name, narrow.name) == ("avx512", "avx2")
    assert narrow.caches == isa_of(wide).caches
    assert narrow.vector_bytes == isa_of(wide).vector_bytes[1:]
    promised = replace(isa_by_name("avx2"), caches=CacheSizes(), rates=PROFILE)
    assert replace(narrow, caches=CacheSizes()) == promised


@pytest.mark.parametrize("name", [None, "avx512", "avx2"])
def test_cores_on_a_mesh_read_their_shared_cache_slower_in_every_instruction_set(name: str | None) -> None:
    needs = instruction_set_by_name("avx512").needs
    mesh = isa_of(machine(processor="emeraldrapids", features=needs), name)
    cluster = isa_of(machine(processor="znver5", features=needs), name)
    assert cluster.rates == PROFILE
    assert mesh.rates == processor_rates("emeraldrapids")
    assert mesh.rates.shared_bytes_per_cycle < cluster.rates.shared_bytes_per_cycle
    assert mesh.rates_digest != cluster.rates_digest == ""


def test_cores_with_narrow_pipes_take_one_of_the_widest_vectors_in_a_cycle() -> None:
    rates = {}
    for processor in ("znver4", "znver5"):
        plain = machine(processor=processor, features=instruction_set_by_name("avx512").needs)
        assert plain.instructions is not None
        described = plain.model_copy(update={"units": (vector_unit(plain.instructions, (64, 32)),)})
        rates[processor] = [isa_of(described, name).fmas_per_cycle for name in ("avx512", "avx2")]
    assert rates == {"znver4": [1.0, 2.0], "znver5": [2.0, 2.0]}
    assert isa_of(machine()).fmas_per_cycle == 2, "where nothing is described"


def test_what_a_processor_lacks_counts_more_than_its_name() -> None:
    assert isa_of(machine(missing_features=("avx512bw",))).name == "avx2"
    with pytest.raises(UsageError, match="'m' \\(x86-64-v4\\) cannot run avx512 code: pick --isa avx2"):
        isa_of(machine(missing_features=("avx512bw",)), "avx512")


def test_features_reach_the_code_generator_with_their_signs() -> None:
    isa = isa_of(machine(features=("fma", "avx512vnni"), missing_features=("avx512fp16",)))
    assert isa.features == "-avx512fp16,+avx512vnni,+fma"


def test_only_machines_with_a_processor_have_an_instruction_set() -> None:
    for other in (load_preset("stcp920"), machine(processor="i486")):
        with pytest.raises(UsageError, match="has none of avx512, avx512\\+amx, avx2, neon"):
            isa_of(other)


def test_the_record_of_this_host_is_that_of_its_machine() -> None:
    assert isa_of(host_machine()) == host_isa()
    assert isa_of(parse_machine(machine_text(host_machine()), "text")) == host_isa()


def test_function_attributes_keep_the_widest_vectors_whole() -> None:
    def width_bits(isa: Isa) -> int:
        return int(isa.function_attributes.rsplit('"', 2)[1])

    assert {name: width_bits(isa_by_name(name)) for name in ISA_NAMES} == {
        name: 8 * isa_by_name(name).vector_bytes[0] for name in ISA_NAMES
    }


def test_the_matrix_unit_is_promised_by_its_own_name_alone() -> None:
    plain, matrix = isa_by_name("avx512"), isa_by_name("avx512+amx")
    assert matrix.has_matrix_unit
    assert not plain.has_matrix_unit
    assert matrix.vector_bytes == plain.vector_bytes
    assert matrix.fingerprint != plain.fingerprint
    assert matrix.runs_on_host <= plain.runs_on_host
    assert isa_by_name("aarch64") == isa_by_name("neon")
