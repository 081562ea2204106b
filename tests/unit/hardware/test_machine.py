import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.errors import MachineError
from tilewright.hardware.host import described_host, host_machine
from tilewright.hardware.machine import Machine, TensorKind, Unit
from tilewright.hardware.machine_file import MAX_FILE_BYTES, load_machine, machine_text, parse_machine
from tilewright.hardware.presets import find_machine
from tilewright.hardware.probe import CacheInfo, HostFacts, ProcessorFacts
from tilewright.hardware.quantity import UNITS, parse_quantity

CHIP = """
name: chip
clock_hz: {value: 1.5 GHz, source: "manual, p. 3"}
num_clusters: 4
num_cores_per_cluster: 8
levels:
  - name: L1
    per: core
    capacity_bytes: 1280KiB
    shares:
      - {holds: [weight], capacity_bytes: 256KiB}
    num_instances_per_parent: 8
    read_bytes_per_cycle: 64
    read_pj: {value: 1.5, source: "a table"}
  - {name: LLB, per: cluster, capacity_bytes: 8 MiB, read_bytes_per_s: 256GB/s}
  - {name: DDR, per: cluster, num_instances_per_parent: 4, holds: [input, output]}
units:
  - {name: mme, kind: matrix, macs_per_cycle: {float16: 2048}, efficiency: 0.85, tile: [64, 32]}
  - {name: vme, kind: vector, level: L1, num_per_instance: 2, ops_per_cycle: {float16: 64}}
networks:
  - {name: ring, inner: L1, outer: LLB, kind: ring, bytes_per_s: 256GB/s, has_multicast: true}
overheads: {kernel_launch_ns: 5 us}
"""


def chip(old: str = "", new: str = "") -> Machine:
    assert old in CHIP
    return parse_machine(CHIP.replace(old, new, 1) if old else CHIP, "chip.yaml")


def diagnostic(old: str, new: str) -> str:
    with pytest.raises(MachineError) as caught:
        chip(old, new)
    text = str(caught.value)
    assert text.startswith("chip.yaml")
    assert "\n" not in text
    return text


def test_units_are_converted_and_sources_kept() -> None:
    machine = chip()
    assert machine.clock_hz == 1.5e9
    assert machine.innermost.capacity_bytes == 1280 * 1024
    assert machine.overheads.kernel_launch_ns == 5000
    assert machine.sources == {"clock_hz": "manual, p. 3", "levels[0].read_pj": "a table"}


def test_instances_multiply_from_the_outside_in() -> None:
    machine = chip()
    assert [machine.num_instances(level) for level in machine.levels] == [32, 4, 4]
    assert [machine.num_units(unit) for unit in machine.units] == [32, 64]


@pytest.mark.parametrize(
    ("read", "write", "expected"),
    [(3, None, (3, 3)), (3, 0, (3, 0)), (None, 4, (0, 4)), (None, None, (0, 0))],
)
def test_a_write_costs_what_a_read_costs_where_nothing_else_is_said(
    read: float | None, write: float | None, expected: tuple[float, float]
) -> None:
    level = chip().innermost.model_copy(update={"read_pj": read, "write_pj": write})
    assert (level.read_access_pj, level.write_access_pj) == expected


def test_bandwidths_convert_both_ways() -> None:
    machine = chip()
    l1, llb, ddr = machine.levels
    assert machine.read_bytes_per_s(l1) == 64 * 1.5e9
    assert machine.read_bytes_per_cycle(llb) == pytest.approx(256 / 1.5)
    assert machine.read_bytes_per_cycle(l1) == 64
    assert machine.write_bytes_per_s(ddr) is None


def test_a_conversion_without_a_clock_names_it() -> None:
    machine = chip('clock_hz: {value: 1.5 GHz, source: "manual, p. 3"}', "")
    with pytest.raises(MachineError, match="level 'L1' needs clock_hz"):
        machine.read_bytes_per_s(machine.innermost)


def test_shares_divide_a_capacity() -> None:
    l1, _, ddr = chip().levels
    assert l1.capacity_for_bytes(TensorKind.WEIGHT) == 256 * 1024
    assert l1.capacity_for_bytes(TensorKind.INPUT) == 1024 * 1024
    assert ddr.capacity_for_bytes(TensorKind.WEIGHT) == 0
    assert ddr.capacity_for_bytes(TensorKind.INPUT) is None


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "capacity_bytes: 1280KiB",
            "capacity: 1280KiB",
            "levels[0].capacity: unknown key; its unit is missing, write capacity_bytes",
        ),
        (
            "kernel_launch_ns: 5 us",
            "kernel_launch: 5 us",
            "overheads.kernel_launch: unknown key; its unit is missing, write kernel_launch_ns",
        ),
        ("clock_hz", "clok_hz", "clok_hz: unknown key; did you mean clock_hz"),
        (
            "capacity_bytes: 1280KiB",
            "capacity_bytes: 0",
            "levels[0].capacity_bytes: is 0; write more than 0",
        ),
        (
            "capacity_bytes: 1280KiB",
            "capacity_bytes: -3",
            "levels[0].capacity_bytes: is -3; write more than 0",
        ),
        (
            "1280KiB",
            "1280 GHz",
            "levels[0].capacity_bytes: '1280 GHz' has the unit 'GHz'; expected one of B, kB, KiB",
        ),
        ("1280KiB", "many", "levels[0].capacity_bytes: 'many' is not a number"),
        ("1280KiB", "true", "levels[0].capacity_bytes: is true or false where a number is expected"),
        ("1280KiB", "1.5", "levels[0].capacity_bytes: is 1.5; write a whole number"),
        (
            "float16: 2048",
            "float16: .inf",
            "units[0].macs_per_cycle.float16: is too large: inf; at most 1e+24 is taken",
        ),
        (
            "float16: 2048",
            "half: 2048",
            "units[0].macs_per_cycle: 'half' is not an element type; known are float32",
        ),
        (
            ", macs_per_cycle: {float16: 2048}",
            "",
            "units[0]: has no rate; give macs_per_cycle or ops_per_cycle",
        ),
        (
            "efficiency: 0.85",
            "efficiency: 85",
            "units[0].efficiency: is too large: 85; at most 1 is taken",
        ),
        (
            "kind: ring",
            "kind: torus",
            "networks[0].kind: is 'torus'; write one of bus, crossbar, ring, mesh, tree",
        ),
        ("name: LLB,", "name: L1,", "levels[1].name: 'L1' is the name of levels[0] too; give each its own"),
        (
            "capacity_bytes: 8 MiB, ",
            "",
            "levels[1].capacity_bytes: is missing; only the outermost level may be unlimited",
        ),
        ("level: L1", "level: L9", "units[1].level: there is no level 'L9'"),
        ("outer: LLB", "outer: DDR", "networks[0]: 'L1' and 'DDR' are not neighbouring levels"),
        (
            "num_clusters: 4",
            "num_clusters: 2",
            "levels[0].per: there are 32 of 'L1', but 16 for one per core",
        ),
        (
            'read_pj: {value: 1.5, source: "a table"}',
            "read_pj: 1.5",
            "levels[0].read_pj: an energy needs a source",
        ),
        (
            "read_bytes_per_s: 256GB/s}",
            "read_bytes_per_s: 1GB/s, read_bytes_per_cycle: 1}",
            "levels[1].read_bytes_per_cycle: read bandwidth is given as read_bytes_per_s too",
        ),
        ("256KiB", "2MiB", "levels[0].shares: take 2097152 of 1310720 bytes"),
        ("name: chip", "name: chip\nname: chop", "line 3: the key 'name' is given twice"),
        ("name: chip", "name: &a chip\ndescription: *a", "line 3: description: aliases are not allowed (*a)"),
        ("name: chip", "name: !!python/object:os.system chip", "line 2: name: tag !!python/object"),
        ("name: chip", "", "name: is missing; add it (name of the machine, shown in reports"),
        ("name: chip", "7: chip", "the top: the key 7 is not text"),
        ("name: chip", "name: [", "line "),
    ],
)
def test_mistakes_are_one_line_with_file_and_key(old: str, new: str, expected: str) -> None:
    assert expected in diagnostic(old, new)


def test_several_mistakes_are_counted() -> None:
    text = diagnostic("name: chip\nclock_hz", "nome: chip\nclok_hz")
    assert text.endswith("(and 1 more)")


def test_one_energy_source_serves_all_energies() -> None:
    text = CHIP.replace('{value: 1.5, source: "a table"}', "1.5") + "energy_source: a table\n"
    assert parse_machine(text).innermost.read_pj == 1.5


def test_a_key_in_the_wrong_place_is_sent_home() -> None:
    text = diagnostic("read_bytes_per_cycle: 64", "clock_hz: 64")
    assert "levels[0].clock_hz: unknown key; it belongs to a machine" in text


@pytest.mark.parametrize(
    "text", ["", "- a", "7", "[" * 100_000, "? [1, 2]\n: 3", "a: 2020-99-99", "\x00", "a: !!float x"]
)
def test_what_is_no_description_is_refused(text: str) -> None:
    with pytest.raises(MachineError, match=r"^f\.yaml"):
        parse_machine(text, "f.yaml")


def test_files_are_read_with_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "chip.yaml"
    path.write_text(CHIP)
    assert load_machine(path) == chip()
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(MachineError, match="larger than"):
        load_machine(path)
    path.write_bytes(b"name: \xff")
    with pytest.raises(MachineError, match="not UTF-8 text"):
        load_machine(path)
    with pytest.raises(MachineError, match="cannot be read: No such file"):
        load_machine(tmp_path / "none.yaml")
    with pytest.raises(MachineError, match="cannot be read: Is a directory"):
        load_machine(tmp_path)


def test_a_file_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "my_chip.yaml").write_text(CHIP)
    missing = str(tmp_path / "mychip.yaml")
    with pytest.raises(
        MachineError, match=r"mychip\.yaml: .*; did you mean .*/my_chip\.yaml.*\? `tilewright"
    ) as e:
        find_machine(missing)
    assert len(str(e.value).splitlines()) == 1
    with pytest.raises(tw.MachineError, match=r"did you mean .*/my_chip\.yaml"):
        tw.map("3_14_64_64_1", machine=missing)


def test_an_unknown_level_lists_the_known() -> None:
    with pytest.raises(MachineError, match="has no level 'L7'; known are L1, LLB, DDR"):
        chip().level("L7")


def test_fingerprints_follow_numbers_and_ignore_citations() -> None:
    assert chip().fingerprint() == chip("a table", "another table").fingerprint()
    assert chip().fingerprint() == chip("1280KiB", "1310720").fingerprint()
    assert chip().fingerprint() != chip("1280KiB", "1281KiB").fingerprint()


@pytest.mark.parametrize("kind", [k for k in UNITS if UNITS[k]])
def test_every_unit_is_read(kind: str) -> None:
    for unit, factor in UNITS[kind].items():
        assert parse_quantity(f"3 {unit}", kind) == pytest.approx(3 * factor)
        assert parse_quantity(f"1e3{unit}", kind) == pytest.approx(1000 * factor)


def host_facts(caches: tuple[CacheInfo, ...], threads: int = 4) -> HostFacts:
    return HostFacts("CPU", "x86_64", threads, threads, None, threads, 1 << 30, caches, None)


def test_the_host_has_its_caches_and_memory() -> None:
    caches = (
        CacheInfo(1, "Data", 48 << 10, 64, 1),
        CacheInfo(1, "Instruction", 32 << 10, 64, 1),
        CacheInfo(2, "Unified", 2 << 20, 64, 2),
        CacheInfo(3, "Unified", 32 << 20, 64, 16),
    )
    machine = described_host(host_facts(caches))
    assert [level.name for level in machine.levels] == ["L1", "L2", "L3", "DRAM"]
    assert [machine.num_instances(level) for level in machine.levels] == [4, 2, 1, 1]
    assert machine.outermost.capacity_bytes == 1 << 30
    assert machine.num_cores == 4


def test_a_host_without_readable_caches_is_still_a_machine() -> None:
    machine = described_host(host_facts(()))
    assert [level.name for level in machine.levels] == ["DRAM"]
    assert machine.num_cores == 4


@pytest.mark.parametrize("cores", range(1, 14))
@pytest.mark.parametrize("sharing", [(1, 1, 2), (1, 2, 4), (2, 4, 64), (1, 3, 5)])
def test_caches_that_the_cores_do_not_fill_evenly_still_nest(cores: int, sharing: tuple[int, ...]) -> None:
    caches = tuple(CacheInfo(i, "Unified", 1 << (15 + i), 64, n) for i, n in enumerate(sharing, start=1))
    machine = described_host(host_facts(caches, cores))
    for level, n in zip(machine.levels, sharing, strict=False):
        assert 1 <= machine.num_instances(level) <= max(1, cores // n)


def test_the_units_of_the_host_follow_its_features() -> None:
    amx = ("amx-bf16", "amx-int8", "amx-tile")
    features = ("avx2", "avx512bf16", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl", "avx512vnni")
    has = (*amx, *features, "bmi", "bmi2", "f16c", "fma")
    caches = (CacheInfo(1, "Data", 48 << 10, 64, 1), CacheInfo(2, "Unified", 2 << 20, 64, 2))

    def units(name: str, features: tuple[str, ...]) -> tuple[Unit, ...]:
        processor = ProcessorFacts("x86_64-unknown-linux-gnu", name, features, ())
        machine = described_host(replace(host_facts(caches), processor=processor))
        assert all(machine.num_units(unit) == machine.num_cores for unit in machine.units)
        assert all(machine.source_of(f"units[{n}].macs_per_cycle") for n in range(len(machine.units)))
        return machine.units

    vector, matrix = units("sapphirerapids", has)
    assert vector.vector_bytes == (64, 32, 16)
    assert vector.macs_per_cycle == {"float32": 32, "float64": 16, "int8": 128}
    assert (matrix.kind, matrix.macs_per_cycle["bfloat16"], matrix.tile) == ("matrix", 512, (16, 16, 32))
    (halved,) = units("znver4", has[3:])
    assert halved.macs_per_cycle["float32"] == 16, "its pipes take half a vector"
    (narrow,) = units("haswell", ("avx2", "bmi", "bmi2", "f16c", "fma"))
    assert (narrow.vector_bytes, narrow.macs_per_cycle["float32"]) == ((32, 16), 16)
    assert units("i486", ()) == ()


def test_this_host_is_a_machine() -> None:
    machine = host_machine()
    assert machine.outermost.name == "DRAM"
    assert machine.num_cores >= 1
    assert machine.instructions is not None
    assert parse_machine(machine_text(machine), "text") == machine


def test_targets_without_code_do_not_load_the_code_generator() -> None:
    code = (
        "import sys; from tilewright.hardware.host import host_memory; machine = host_memory(); "
        "print(machine.units, machine.instructions, 'llvmlite' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["()", "None", "False"]
