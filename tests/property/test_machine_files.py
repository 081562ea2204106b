"""Machine files with lines and characters lost, moved, repeated, replaced: a machine, or one line why not."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.errors import MachineError
from tilewright.hardware.machine_file import machine_text, parse_machine
from tilewright.hardware.operator_view import operator_view
from tilewright.hardware.presets import preset_text

TEXTS = [preset_text(name) for name in ("eyeriss", "k80", "stcp920", "simba-cosa-paper")]
SURPRISES = [
    "0", "-1", "1e999", ".nan", ".inf", "null", "~", "[]", "{}", '""', "yes", "&a", "*a", "!!python/name:os",
    "\t", ": ", "- ", "#", "{value: 1}", "{value: 1, source: a}", "9" * 30, "0x10", "010", "1:30",
    "2020-01-01", "\x00", "<<: {name: a}", "|", ">", "%", "@", "`", "?", "---", "...", "L1", "é", "\u2028",
    "8 GiB", "5 W",
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        lines = text.split("\n")
        first, second = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        match draw(
            st.sampled_from(["lose", "insert", "lose line", "repeat line", "swap lines", "replace value"])
        ):
            case "lose":
                text = text[:at] + text[at + 1 :]
            case "insert":
                text = text[:at] + draw(st.sampled_from(SURPRISES)) + text[at:]
            case "lose line":
                text = "\n".join(lines[:first] + lines[first + 1 :])
            case "repeat line":
                text = "\n".join([*lines[:first], lines[first], *lines[first:]])
            case "swap lines":
                lines[first], lines[second] = lines[second], lines[first]
                text = "\n".join(lines)
            case "replace value":
                key, colon, _ = lines[first].partition(": ")
                lines[first] = key + colon + draw(st.sampled_from(SURPRISES))
                text = "\n".join(lines)
    return text


def diagnostic(text: str) -> str | None:
    """What is said of a text, or nothing: then it is a machine, which is written and read as the same one."""
    try:
        machine = parse_machine(text, "mine.yaml")
        assert parse_machine(machine_text(machine)) == machine
        assert operator_view(machine).machine.outermost.num_instances_per_parent == 1
    except MachineError as error:
        return str(error)
    return None


@settings(max_examples=150)
@given(damaged())
def test_a_damaged_file_is_a_machine_or_one_line(text: str) -> None:
    said = diagnostic(text)
    if said is not None:
        assert said.startswith(("mine.yaml", "machine '"))
        assert "\n" not in said
        assert len(said) < 600
