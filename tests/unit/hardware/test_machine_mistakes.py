"""Machine files with one mistake each: one line that names the file, the culprit's path, and what to do."""
# ruff: noqa: E501 - one mistake for each line can be read as a table

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import MachineError
from tilewright.hardware.machine_file import load_machine
from tilewright.hardware.presets import preset_text

STCP920 = preset_text("stcp920")
K80 = preset_text("k80")
EYERISS = preset_text("eyeriss")
BOMB = "\n".join(
    ["a: &a [x, x]", *(f"{b}: &{b} [*{a}, *{a}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True))]
)

MISTAKES = {
    # Keys.
    "a misspelt key": (STCP920, "clock_hz", "clok_hz", "clok_hz", "did you mean clock_hz"),
    "a required key misspelt": (STCP920, "name: stcp920\n", "nmae: stcp920\n", "nmae", "did you mean name"),
    "a part's required key misspelt": (STCP920, "- name: LLB", "- nam: LLB", "levels[1].nam", "did you mean name"),
    "a key without its unit": (
        STCP920, "capacity_bytes: 8 MiB", "capacity: 8 MiB", "levels[1].capacity", "write capacity_bytes",
    ),
    "a key of another part": (
        STCP920, "per: cluster", "tile: [4]", "levels[1].tile", "belongs to a unit, move it there",
    ),
    "a key in capitals": (STCP920, "per: cluster", "Per: cluster", "levels[1].Per", "did you mean per"),
    "a key nobody knows": (
        STCP920, "per: cluster", "zzz: 1", "levels[1].zzz", "leave it out, or write one of name, capacity_bytes",
    ),
    "a key of a list's entry in a map": (
        STCP920, "overheads:\n", "overheads:\n  latency_ns: 3\n", "overheads.latency_ns", "belongs to a level",
    ),
    "a misspelt section": (STCP920, "\nunits:\n", "\nunit:\n", "unit", "did you mean units"),
    "a missing section": (EYERISS, EYERISS[EYERISS.index("units:"):EYERISS.index("networks:")], "", "units", "is missing; add it (compute units"),
    "a missing name": (EYERISS, "name: eyeriss\n", "", "name", "is missing; add it (name of the machine"),
    "a missing rate": (
        STCP920, "    macs_per_cycle: {float16: 2048, int8: 4096}\n", "", "units[0]", "give macs_per_cycle or ops_per",
    ),
    "a missing end of a network": (
        STCP920, "    inner: L1\n", "", "networks[0].inner", "is missing; add it (level on the inner side",
    ),
    # Units of numbers.
    "a unit of another kind": (STCP920, "8 MiB", "8 GHz", "levels[1].capacity_bytes", "expected one of B, kB, KiB"),
    "a unit that does not exist": (STCP920, "8 MiB", "8 KIB", "levels[1].capacity_bytes", "expected one of B, kB"),
    "a unit per second too much": (STCP920, "8 MiB", "8 MiB/s", "levels[1].capacity_bytes", "expected one of B, kB"),
    "a unit per second too little": (
        STCP920, "read_bytes_per_s: 27 GB/s", "read_bytes_per_s: 27 GB", "levels[2].read_bytes_per_s", "of B/s, kB/s",
    ),
    "a unit where there is none": (
        STCP920, "word_bits: 16", "word_bits: 16 bit", "levels[0].word_bits", "write the number alone",
    ),
    "a time as a clock": (STCP920, "value: 1 GHz", "value: 1 ns", "clock_hz", "expected one of Hz, kHz"),
    "two units at once": (STCP920, "8 MiB", "8 MiB 3 KiB", "levels[1].capacity_bytes", "write one, such as 5 TiB"),
    # Numbers.
    "a negative number": (STCP920, "8 MiB", "-8", "levels[1].capacity_bytes", "is -8; write more than 0"),
    "a negative number with a unit": (
        STCP920, "8 MiB", "-8 MiB", "levels[1].capacity_bytes", "is '-8 MiB'; write more than 0",
    ),
    "a negative time": (STCP920, "1 us", "-1 us", "overheads.barrier_ns", "is '-1 us'; write 0 or more"),
    "a capacity of zero": (STCP920, "8 MiB", "0", "levels[1].capacity_bytes", "is 0; write more than 0"),
    "a fan-out of zero": (
        STCP920, "num_instances_per_parent: 8", "num_instances_per_parent: 0", "levels[0].num_instances_per_parent",
        "is 0; write more than 0",
    ),
    "a fan-out that is no whole number": (
        STCP920, "num_instances_per_parent: 8", "num_instances_per_parent: 2.5", "levels[0].num_instances_per_parent",
        "is 2.5; write a whole number",
    ),
    "a huge capacity": (
        STCP920, "8 MiB", "99999999999999999999999", "levels[1].capacity_bytes", "at most 1.153e+18 is taken",
    ),
    "a huge fan-out": (
        STCP920, "num_instances_per_parent: 8", f"num_instances_per_parent: 1{'0' * 99}",
        "levels[0].num_instances_per_parent", "at most 1e+09 is taken",
    ),
    "fan-outs that multiply to a huge one": (
        STCP920, "num_instances_per_parent: 8", "num_instances_per_parent: 900000000",
        "levels[0].num_instances_per_parent", "makes 3.6e+09 of 'L1' together with the levels around it; at most 1e+09",
    ),
    "an exponent beyond all numbers": (STCP920, "value: 1 GHz", "value: 1e999 Hz", "clock_hz", "at most 1e+24 is taken"),
    "infinity": (STCP920, "value: 1 GHz", "value: .inf", "clock_hz", "is too large: inf"),
    "not a number": (STCP920, "value: 1 GHz", "value: .nan", "clock_hz", "is nan; write more than 0"),
    "a share above 1": (STCP920, "value: 0.85", "value: 85", "units[0].efficiency", "at most 1 is taken"),
    "an octal number": (STCP920, "word_bits: 16", "word_bits: 016", "line ", "to base 8 or 60 in YAML; write it plainly"),
    "a number to base 60": (STCP920, "word_bits: 16", "word_bits: 1:30", "line ", "to base 8 or 60 in YAML"),
    "a word for a number": (STCP920, "8 MiB", "plenty", "levels[1].capacity_bytes", "is not a number; write one"),
    "a number as text with a comma": (STCP920, "8 MiB", "'8,5 MiB'", "levels[1].capacity_bytes", "is not a number"),
    # Types.
    "true for a number": (STCP920, "8 MiB", "yes", "levels[1].capacity_bytes", "write the number"),
    "a list for a number": (STCP920, "8 MiB", "[8]", "levels[1].capacity_bytes", "is a list; write a whole number"),
    "a map for a number": (
        STCP920, "8 MiB", "{value: 8}", "levels[1].capacity_bytes", "or {value: ..., source: ...}",
    ),
    "a number for a list": (STCP920, "tile: [64, 32]", "tile: 64", "units[0].tile", "is 64; write a list, such as [a, b]"),
    "a name for a list": (
        STCP920, "runs: [contraction]", "runs: contraction", "units[0].runs", "is 'contraction'; write a list",
    ),
    "a map for a list of levels": (EYERISS, "levels:\n  - name", "levels:\n    name", "line ", "check indentation"),
    "a number for a part": (
        STCP920, STCP920[STCP920.index("overheads:"):STCP920.index("energy_source:")], "overheads: 5\n", "overheads",
        "is 5; write keys and values",
    ),
    "a number for a name": (STCP920, "name: MME", "name: 7", "units[0].name", "put it in quotes"),
    "true for a name": (STCP920, "name: MME", "name: on", "units[0].name", "is true, no text; put it in quotes"),
    "a date for a name": (STCP920, "name: MME", "name: 2020-01-01", "units[0].name", "is a date, no text; put it in quotes"),
    "text for a switch": (
        STCP920, "has_shared_port: true", "has_shared_port: often", "levels[1].has_shared_port", "is 'often'; write true or false",
    ),
    "an empty name": (STCP920, "name: MME", "name: ''", "units[0].name", "is empty; write a name"),
    "a very long name": (STCP920, "name: MME", f"name: {'m' * 500}", "units[0].name", "write a shorter name"),
    "an empty value": (STCP920, "capacity_bytes: 8 MiB", "capacity_bytes:", "levels[1].capacity_bytes", "leave the key out"),
    "no levels": (EYERISS, EYERISS[EYERISS.index("levels:"):EYERISS.index("units:")], "levels: []\n", "levels", "at least 1"),
    "a source that is no text": (
        STCP920, '256 KiB}', '256 KiB, source: [1]}', "levels[0].shares[0].source", "say where the number is from",
    ),
    # Choices.
    "a kind that does not exist": (STCP920, "kind: crossbar", "kind: torus", "networks[0].kind", "write one of bus,"),
    "a kind misspelt": (STCP920, "kind: matrix", "kind: Matrx", "units[0].kind", "did you mean matrix"),
    "a kind of tensor that does not exist": (
        STCP920, "holds: [weight]", "holds: [bias]", "levels[0].shares[0].holds[0]", "one of weight, input, output",
    ),
    "a kind of tensor in the plural": (
        EYERISS, "holds: [input]", "holds: [inputs]", "levels[0].holds[0]", "did you mean input",
    ),
    "an element type that does not exist": (
        STCP920, "{float16: 2048, int8: 4096}", "{flaot16: 2048}", "units[0].macs_per_cycle", "did you mean float16",
    ),
    "an operator that does not exist": (
        STCP920, "LogSoftmax: 5", "LogSofmax: 5", "units[2].ops_per_element", "did you mean LogSoftmax",
    ),
    # Names.
    "an unknown level": (STCP920, "level: L1", "level: L2", "units[0].level", "known are L1, LLB, DDR"),
    "a level misspelt": (EYERISS, "outer: GlobalBuffer", "outer: Globalbufer", "networks[0].outer", "did you mean GlobalB"),
    "an unknown end of a DMA engine": (STCP920, "[L1, LLB]", "[L1, L3]", "units[3].between[1]", "there is no level 'L3'"),
    "an unknown level of registers": (K80, "registers: Registers", "registers: Regs", "threads.registers", "no level 'Regs'"),
    "a level twice": (STCP920, "name: LLB", "name: L1", "levels[1].name", "give each its own"),
    "a unit twice": (STCP920, "name: VEC", "name: VME", "units[2].name", "is the name of units[1] too"),
    "levels that are no neighbours": (
        STCP920, "inner: L1", "inner: DDR", "networks[0]", "'DDR' and 'LLB' are not neighbouring levels",
    ),
    # What does not fit together.
    "a missing capacity": (
        STCP920, "    capacity_bytes: 8 MiB\n", "", "levels[1].capacity_bytes", "only the outermost level may be unlim",
    ),
    "a bandwidth given twice": (
        STCP920, "read_bytes_per_s: 27 GB/s", "read_bytes_per_s: 27 GB/s\n    read_bytes_per_cycle: 27",
        "levels[2].read_bytes_per_cycle", "leave one of them out",
    ),
    "shares above the capacity": (STCP920, "capacity_bytes: 2 MiB", "capacity_bytes: 9 MiB", "levels[1].shares", "make one of them"),
    "a share of what is not held": (
        STCP920, "    capacity_bytes: 8 MiB\n", "    capacity_bytes: 8 MiB\n    holds: [input, output]\n",
        "levels[1].shares", "holds leaves it out; add it there",
    ),
    "two shares of a kind": (
        STCP920, "{holds: [weight], capacity_bytes: 256 KiB}", "{holds: [weight, weight], capacity_bytes: 256 KiB}",
        "levels[0].shares", "add them up to one",
    ),
    "a count that is not one per core": (
        STCP920, "num_cores_per_cluster: {value: 8", "num_cores_per_cluster: {value: 9", "levels[0].per", "change per, or",
    ),
    "a DMA engine that computes": (
        STCP920, "    between: [L1, LLB]\n", "    between: [L1, LLB]\n    ops_per_cycle: {int8: 1}\n", "units[3].ops_per_cycle",
        "a DMA engine (kind: mover) does not compute",
    ),
    "a density of results": (STCP920, "name: MME", "name: MME\n    zeros: {output: gate}", "units[0].zeros", "write weight or input"),
    "densities of threads": (K80, "threads:\n", "densities: {weight: 0.5}\nthreads:\n", "densities", "leave it out, or threads"),
    "axes of threads": (
        K80, "    macs_per_cycle:", "    axes: [{dims: [K], size: 192}]\n    macs_per_cycle:", "units[0].axes", "leave it out, or threads",
    ),
    "two formats of a kind": (
        STCP920, "    per: cluster\n", "    per: cluster\n    formats: [{holds: [weight, weight], kind: bitmask}]\n",
        "levels[1].formats", "leave it in one of them",
    ),
    "an SRAM without a size": (STCP920, "    capacity_bytes: 4 GiB\n", "    component: sram\n", "levels[2].component", "add capacity_bytes"),
    "a DMA engine without a level": (STCP920, "    level: LLB\n    between", "    between", "units[3].level", "add it, as"),
    "a DMA engine without ends": (STCP920, "    between: [L1, LLB]\n", "", "units[3].between", "[Buffer, DRAM]"),
    "a unit that moves": (
        STCP920, "tile: [64, 32]", "between: [L1, LLB]", "units[0].between", "only a DMA engine has it",
    ),
    "a bus with a shape": (EYERISS, "kind: bus", "kind: bus\n    shape: [12, 14]", "networks[0].shape", "only a mesh has one"),
    # Sources.
    "an energy without a source": (
        EYERISS, EYERISS[EYERISS.index('    source: "public: Chen et al., ISSCC 2016: one'):], "", "units[0].mac_pj",
        "write {value: ..., source: ...}, or give the part a source",
    ),
    "a source of nothing": (
        STCP920, "energy_source: >-", "sources: {'levels[7]': a}\nenergy_source: >-", "sources", "there is nothing at 'levels[7]'",
    ),
    # YAML itself.
    "a key twice": (STCP920, "name: stcp920\n", "name: stcp920\nname: b\n", "line 2", "keep one of them"),
    "a tab": (EYERISS, "  - name: InputSpad", "\t- name: InputSpad", "line ", "indent with spaces, not with tabs"),
    "an alias": (
        EYERISS, "holds: [weight]", "holds: &w [weight]\n    shares: *w", "line ", "aliases are not allowed (*w); write the",
    ),
    "a bomb of aliases": ("x", "x", BOMB, "line 2", "aliases are not allowed (*a); write the value out"),
    "brackets without end": ("x", "x", "[" * 50_000, "line 1", "nested too deeply, more than MAX_DEPTH"),
    "maps in maps in maps": ("x", "x", "name: " + "{a: " * 30 + "1" + "}" * 30, "name.a.a", "nested too deeply"),
    "a tag that makes an object": (
        EYERISS, "name: eyeriss", "name: !!python/object/apply:os.system [ls]", "line 1", "write plain values without tags",
    ),
    "two documents": ("x", "x", EYERISS + "---\n" + EYERISS, "line ", "write one machine for each file"),
    "a key that is a list": ("x", "x", "? [1, 2]\n: 3", "line 1", "a key is a list or a map; write a word"),
    "a key that is a number": (EYERISS, "name: eyeriss", "7: eyeriss", "the top", "put it in quotes"),
    "a colon in plain text": (EYERISS, "name: eyeriss", "name: a: b", "line 1", "put text with a colon in quotes"),
    "a list for the whole": ("x", "x", "- a", "", "write keys such as name, levels and units"),
    "nothing": ("x", "x", "# only words\n", "", "found nothing; write keys such as name"),
    "control characters": ("x", "x", "name: \x00", "", "not readable as YAML"),
}  # fmt: skip


@pytest.mark.sampled(10)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_is_one_line_with_the_file_the_culprit_and_a_cure(mistake: str, tmp_path: Path) -> None:
    text, old, new, culprit, cure = MISTAKES[mistake]
    assert old in text
    path = tmp_path / "my machine.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(MachineError) as caught:
        load_machine(path)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < len(str(path)) + 500
    separator = ", " if culprit.startswith("line") else ": "
    assert said.startswith(f"{path}{separator}{culprit}")
    rest = said.removeprefix(f"{path}{separator}{culprit}")
    assert cure in rest
    if culprit and separator == ": ":
        assert rest.startswith(": ") or "." in culprit


def test_there_are_enough_of_them_and_no_two_say_the_same() -> None:
    assert len(MISTAKES) >= 50
    assert len({(old, new) for _, old, new, _, _ in MISTAKES.values()}) == len(MISTAKES)
