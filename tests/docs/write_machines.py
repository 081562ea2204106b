"""`docs/machines.md` from the machine's parts: `python -m tests.docs.write_machines > docs/machines.md`.

The tables of keys say what the text below each field says; `tests/docs` keeps the page true.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tilewright.hardware.citation import cited_numbers
from tilewright.hardware.diagnostic import PARTS
from tilewright.hardware.machine_schema import machine_schema
from tilewright.hardware.missing_fields import missing_fields
from tilewright.hardware.presets import load_preset, preset_names
from tilewright.hardware.quantity import QUANTITIES, UNITS

EXAMPLE = """\
# yaml-language-server: $schema=machine.schema.json
name: mine
clock_hz: {value: 800 MHz, source: "data sheet, page 3"}
levels:                            # from the inside out
  - name: Spad
    capacity_bytes: 16 KiB
    num_instances_per_parent: 64   # one Buffer feeds 64 of these
    read_pj: 0.6                   # of one access of word_bits * words_per_access
    write_pj: 0.6
  - name: Buffer
    capacity_bytes: 512 KiB
    holds: [input, output]         # weights bypass it, from DRAM to Spad
    words_per_access: 16
    read_pj: 30
    write_pj: 30
  - name: DRAM                     # only the outermost level may be unlimited
    read_bytes_per_s: 12.8 GB/s
    write_bytes_per_s: 12.8 GB/s
    words_per_access: 64
    read_pj: 6400
    write_pj: 6400
units:
  - {name: MAC, kind: mac, num_per_instance: 4, macs_per_cycle: {int8: 1}, mac_pj: 0.25}   # beside each Spad
energy_source: "estimates of the design team, 2026"
"""
"""The machine that the page shows; a test maps a layer onto it."""

_HEAD = """# Machines

Written by `python -m tests.docs.write_machines`; kept true by `tests/docs`.

A machine is described in one YAML file: its memories, its compute units, the networks between them, and what
they cost. Mapping, scheduling and simulation read the same description.
`tilewright targets` lists those that come with the package.

## Write your own

```
tilewright targets eyeriss > mine.yaml        # a machine to start from, or begin with the one below
tilewright targets mine.yaml --table          # check it: every mistake is named in one line
tilewright map 3_14_256_256_1 -t mine.yaml    # use it
```

```yaml
"""

_RULES = """```

* **Levels** are listed from the inside out. `num_instances_per_parent` counts the instances below *one*
  instance of the next outer level, so they multiply: 64 `Spad` in all. At the outermost level it says
  how many there are; an operator is mapped onto one of them.
* **Numbers are those of one instance.** A capacity is counted in words of `word_bits` by the mapper: 16
  KiB of 8-bit words hold 16,384 elements.
* **`holds`** lists the kinds of tensor that a level stores; others bypass it. Kinds that share a level
  share its capacity, unless `shares` reserves parts of it.
* **Bandwidth** is given per second or per cycle, for reads and for writes; left out, it is no limit. An
  access moves `word_bits` times `words_per_access` bits and costs `read_pj` or `write_pj`.
* **Every energy needs a source**: `{value: 6400, source: "..."}`, a `source` key of the part, or one
  `energy_source` for the whole machine. Other numbers may have one in the same ways; in the machines of
  the package all have. They begin with `public:` (published; `not re-read` where we did not see the
  document ourselves), `derived:` (computed from published numbers, it says how) or `assumed:`.
* **The dataflow** of an array is its `axes`: `axes: [{dims: [C], size: 16}, {dims: [K], size: 16}]` at a
  level that feeds 256 instances, or at a unit of 256 multipliers, spreads input channels over rows and
  output channels over columns, and nothing else. `map` and `simulate` keep to it alike. Where no axis has
  what a depthwise convolution can spread, another unit that `runs: [depthwise]` takes it; without one it is
  refused, and `runs: [contraction, depthwise]` at the array lets it run there, on few multipliers.
* **Zeros** in operands: `densities`, `formats` of levels and `zeros` of units, as
  [counted](mapping.md#operands-with-zeros).
* **Without energies of your own** give `technology_nm: 22`, and `component: lpddr4` or the like at a level:
  energies and leakage that the file leaves out come from a
  [library with sources](mapping.md#energy-and-area-by-component).
* **Clusters and cores** matter when a network is scheduled over them: `per` states that a level exists
  once for each core, for each cluster or for the machine, and the counts must agree.

The file is plain YAML: no aliases, no tags, no key twice, no tabs. A number to base 8 or 60, which YAML
makes of `010` and `1:30`, is refused. Files of Timeloop (versions 0.2 to 0.4, and the flat lists before
them) are read by `tilewright map -t` as they are. A file has at most 1 MiB, 30,000 values, 60 levels of
brackets, 400 digits in a number and 100,000 characters in a text.

## In an editor

```
tilewright schema machine > machine.schema.json
```

The first line of the file above makes editors with the YAML language server (Visual Studio Code with
Red Hat's YAML extension, Neovim, Helix, Emacs with eglot) complete keys, show what they mean and mark
mistakes as one types. Without that line, name the schema in the settings:

```json
{"yaml.schemas": {"./machine.schema.json": ["machines/*.yaml"]}}
```

In IDEs of JetBrains it is entered under *Languages & Frameworks, Schemas and DTDs, JSON Schema
Mappings*. Any validator of JSON Schema (draft 2020-12) checks files with it, too; names of levels and
sources of energies are checked by `tilewright` alone.

## What mapping and simulation use

`tilewright map` models multipliers at the end of a chain of levels. From a larger machine it takes one
instance of the outermost level, the type of unit with the most multiply-accumulates per cycle for
elements as wide as a word of inputs, as that many single multipliers, and the levels from the one that
this unit reads from outwards; it prints this choice. A unit's `efficiency` slows the clock of what is
mapped onto; its `tile` and `latency_ns` are ignored. Networks matter only with `--noc`, which simulates a
mesh between the elements and the memory that they share: its shape, flits, multicast, latency and energy
of hops, and the `latency_ns` of the outermost level.

`tilewright simulate` runs whole networks and needs more: `clock_hz`, a scratchpad with `per: core`, the
bandwidths of the levels from there outwards, and units that between them run the operation classes of
the network. Everything that is missing is listed before planning begins, each with the line to add.
Clusters that share a level have equal parts of its capacity and of its bandwidth; what goes from level
to level is no faster than the DMA engines between the two, all of them together, each of whose
transfers starts with `copy_setup_ns`. Idle power (`static_power_w`) is charged for the time of a run;
where the mean power comes out above `max_power_w`, the result says so (`exceeds_power`), and which part
takes most. It does not read `networks`, `threads`, `line_bytes` and `latency_ns`.
"""


def document() -> str:
    """The whole page as Markdown."""
    lines = [_HEAD + EXAMPLE + _RULES, *_numbers(), *_keys(), *_presets(), ""]
    return "\n".join(lines)


def _numbers() -> Iterator[str]:
    yield "## Numbers\n"
    yield "A number is written plainly, in the unit that its key ends with, or as text with a unit; any may"
    yield "carry a source: `{value: 27 GB/s, source: data sheet}`.\n"
    yield "| type | units | limits |"
    yield "|---|---|---|"
    for name, quantity in QUANTITIES.items():
        units = ", ".join(f"`{unit}`" for unit in UNITS[quantity.kind]) or "none"
        kind = "a whole number, " if quantity.is_integer else ""
        least = "0 or more" if quantity.may_be_zero else "more than 0"
        yield f"| {_words(name)} | {units} | {kind}{least}, at most {quantity.maximum:.4g} |"
    yield ""


def _words(name: str) -> str:
    """`BytesPerSecond` as people say it."""
    spaced = "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()
    return spaced.replace("not negative", "number or 0")


def _keys() -> Iterator[str]:
    yield "## Keys"
    schema = machine_schema()
    for word, part in PARTS.items():
        part_schema = schema if word == "machine" else schema["$defs"][part.__name__]
        text = " ".join((part.__doc__ or "").split())
        yield f"\n### {word.capitalize()}\n\n{text}\n"
        yield "| key | value | left out | meaning |"
        yield "|---|---|---|---|"
        for key, value in part_schema["properties"].items():
            default = "required" if key in part_schema.get("required", ()) else _default(value)
            text = _value(value, schema["$defs"])
            yield f"| `{key}` | {text} | {default} | {value['description']} |"
    yield ""


def _default(value: dict[str, Any]) -> str:
    default = value.get("default")
    match default:
        case None | [] | {} | "":
            return ""
        case bool():
            return str(default).lower()
        case list():
            return ", ".join(map(str, default))
        case dict():
            return ""
        case float():
            return f"{default:g}"
    return str(default)


def _value(value: dict[str, Any], parts: dict[str, Any]) -> str:
    """What may stand at a key, in words; `parts` are the schema's definitions."""
    if "anyOf" in value:
        return _value(value["anyOf"][0], parts)
    if "$ref" in value:
        name = value["$ref"].rsplit("/", 1)[-1]
        return _words(name) if name in QUANTITIES else f"[{name.lower()}](#{name.lower()})"
    if "enum" in value or "const" in value:
        return ", ".join(f"`{choice}`" for choice in value.get("enum", [value.get("const")]))
    match value["type"]:
        case "array" if "prefixItems" in value:
            words = dict.fromkeys(_value(item, parts) for item in value["prefixItems"])
            return f"a list of {len(value['prefixItems'])}: {', '.join(words)}"
        case "array":
            return f"a list: {_items(value['items'], parts)}"
        case "object" if "properties" in value:
            return "a number for each element type"
        case "object" if "$ref" in value.get("additionalProperties", {}):
            return "a number for each ONNX operator"
        case "object" if "propertyNames" in value:
            return f"for `weight` and `input`: {_value(value['additionalProperties'], parts)}"
        case "object":
            return "a text for each path"
        case "number":
            return f"a number up to {value['maximum']:g}"
    return {"string": "text", "boolean": "`true`, `false`"}[value["type"]]


def _items(items: dict[str, Any], parts: dict[str, Any]) -> str:
    name = items.get("$ref", "").rsplit("/", 1)[-1]
    choices = parts.get(name, {}).get("enum")
    return ", ".join(f"`{choice}`" for choice in choices) if choices else _value(items, parts)


def _presets() -> Iterator[str]:
    yield "## Machines of the package\n"
    yield "`tilewright targets NAME` prints one, `--table` shows it with all sources; the last columns count"
    yield "numbers by what their source begins with. Those for `simulate` run networks; the others serve"
    yield "mapping of single operators alone, and `simulate` says what to add to their files.\n"
    yield "| machine | for | what it is | public | derived | assumed |"
    yield "|---|---|---|---:|---:|---:|"
    for name in preset_names():
        machine = load_preset(name)
        counts = Counter((number.source or "").partition(":")[0] for number in cited_numbers(machine))
        columns = " | ".join(str(counts[word]) for word in ("public", "derived", "assumed"))
        serves = "`map`" if missing_fields(machine) else "`simulate`, `map`"
        yield f"| `{name}` | {serves} | {machine.description} | {columns} |"


if __name__ == "__main__":
    print(document(), end="")
