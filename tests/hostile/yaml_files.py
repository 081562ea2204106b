"""Descriptions that are damaged on purpose: machines, and Timeloop's architectures, problems and mappings.

`python -m tests.hostile.yaml_files 500` tries that many, each in a worker with a limit on its memory, and
says what came out. A file is mended or refused: a typed error of one line that names the file, in bounded
time. Anything else is a finding.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import timeloop

from tilewright.errors import MachineError, UsageError
from tilewright.hardware.machine_file import load_machine, parse_machine
from tilewright.hardware.presets import preset_names, preset_text
from tilewright.mapping.cases import load_cases
from tilewright.mapping.timeloop import load_architecture, load_mapping, load_problem

MAX_SECONDS = 30.0
"""For one file, on a machine that does other things too: a file of MAX_VALUES takes three alone."""
MAX_MESSAGE = 1100
MEMORY_BYTES = 4 << 30

DIGITS = "9" * 100_000
VALUES = (
    "",
    "~",
    "null",
    "true",
    "yes",
    "-1",
    "0",
    "1.5",
    "1.0e+999",
    "1e999",
    "-.inf",
    ".inf",
    ".nan",
    DIGITS,
    f"-{DIGITS}",
    f"0x{'f' * 100_000}",
    f"0b{'1' * 100_000}",
    f"0.{DIGITS}",
    f"1.0e+{DIGITS}",
    f'"{DIGITS}"',
    f'"1e{DIGITS} GB/s"',
    "0b1" + "0" * 390,
    "9" * 400,
    str(2**53 + 1),
    str(2**63),
    str(-(2**63)),
    "010",
    "0o17",
    "1:30",
    "1_000",
    "2001-01-01",
    "2001-13-45",
    "2001-01-01T25:61:61Z",
    "[]",
    "{}",
    "[[]]",
    "{a: {b: c}}",
    "[1, 2, 3]",
    "&a [*a]",
    "*missing",
    "&a x",
    "<<",
    "{<<: {a: 1}}",
    "=",
    "!!python/object/apply:os.system [echo]",
    "!!python/name:os.system",
    "!!set {a, b}",
    "!!omap [a: 1]",
    "!!pairs [a: 1]",
    "!!binary aGVsbG8=",
    "!!binary ?",
    "!!int abc",
    "!!float x",
    "!!timestamp x",
    "!!bool x",
    "!!null x",
    "!Component {name: x}",
    "!Nothing",
    "! x",
    f"!{'a' * 5000} x",
    '"\\e[31m\\n\\0\\u202e"',
    "'it''s'",
    "|\n  block",
    "\N{SNOWMAN}",
    "64KiB",
    "64 parsecs",
    "a" * 5000,
    "a " * 60_000,
    "@x",
    "%x",
    "`x`",
    "{{ x }}",
    "? x",
    "- x",
    ": x",
    "# x",
    "\t",
    "x: y",
    "x[0..99999999999999999999]",
    "x[0..-1]",
    "PE[1..1000000000]",
)
"""What a value is replaced by."""

RAW: tuple[bytes, ...] = (
    b"",
    b"\0",
    b"\xff\xfe",
    b"\xff",
    b"\xc3",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\x1b[2J",
    b"\r",
    b"\xc2\x85",
    b"\xe2\x80\xa8",
    b"---\n",
    b"...\n",
    b"%YAML 9.9\n---\n",
    b"%TAG ! x\n---\n",
)
"""What is put between other bytes."""


def machine(path: Path) -> None:
    load_machine(path)


def architecture(path: Path) -> None:
    load_architecture(path)


def problem(path: Path) -> None:
    load_problem(path)


def mapping(path: Path) -> None:
    beside = path.with_name("whole.yaml")
    beside.write_text(timeloop.PRODUCT)
    load_mapping(path, load_problem(beside), parse_machine(timeloop.TWO_LEVELS))


def cases(path: Path) -> None:
    load_cases(path)


Read = Callable[[Path], None]
_TEXTS: tuple[tuple[str, Read], ...] = (
    *((preset_text(name), machine) for name in preset_names() if name != "host"),
    *((text, architecture) for text in (timeloop.TREE, timeloop.LIST, timeloop.FLAT, timeloop.PROCESSED)),
    *((text, problem) for text in (timeloop.CONVOLUTION, timeloop.PRODUCT)),
    (timeloop.MAPPING, mapping),
    ('{"cases": [{"id": "a", "dims": {"C": 4}, "mapping": [{"level": "L"}]}]}', cases),
)


@dataclass(frozen=True, slots=True)
class Damaged:
    """A file of the corpus: what it was made of, what was done to it, what reads it."""

    content: bytes
    read: Read
    how: str


def damaged(seed: int) -> Damaged:
    """A valid description with one to four changes, or one that is large in some way."""
    rng = random.Random(seed)
    text, read = rng.choice(_TEXTS)
    if rng.random() < 0.12:
        name, content = rng.choice(tuple(_large(rng)))
        return Damaged(content, rng.choice((machine, architecture, problem, mapping, cases)), name)
    done = []
    for _ in range(rng.randint(1, 4)):
        change = rng.choice(_CHANGES)
        text = change(rng, text)
        done.append(change.__name__.strip("_"))
    content = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.15:
        at = rng.randrange(len(content) + 1)
        content = content[:at] + rng.choice(RAW) + content[at:]
        done.append("raw")
    return Damaged(content, read, "+".join(done))


def _large(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Files whose size or depth is the attack."""
    n = rng.choice((1000, 100_000, 1_000_000, 10_000_000))
    key = rng.choice(("levels", "architecture", "problem", "mapping", "arch"))
    yield "a long list", f"{key}: [{'1,' * (n // 2)}]".encode()
    yield "many keys", "".join(f"k{i}: 1\n" for i in range(n // 8)).encode()
    yield "deep lists", b"[" * n
    yield "deep maps", b"{a: " * (n // 4)
    yield "deep blocks", "".join(" " * i + "a:\n" for i in range(min(n, 1400))).encode()
    yield "deep dashes", b"- " * (n // 2)
    yield "deep questions", b"? " * (n // 2)
    yield "a long comment", b"#" * n
    yield "a long key", b"a" * n + b": 1"
    yield "a long quote", b'"' + b"a" * n
    yield "empty lines", b"\n" * n
    yield "many documents", b"---\n" * (n // 4)
    yield "many directives", b"%YAML 1.1\n" * (n // 10)
    yield "zeros", bytes(n)
    yield (
        "laughs",
        "\n".join(
            ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30))]
        ).encode(),
    )
    yield (
        "merged laughs",
        "\n".join(
            ["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 40))]
        ).encode(),
    )
    yield "text in lines", b">\n" + b" a\n" * (n // 3)
    yield "a number in JSON", b'{"cases": ' + b"9" * n + b"}"
    yield "lists in JSON", b'{"cases": ' + b"[" * n + b"]" * n + b"}"


# Changes of text that is YAML: what stands after a colon or a dash is a value, what lies in lines is a part.


def _values(text: str) -> list[tuple[int, int]]:
    """Where values stand: after `: `, `- ` or in brackets, up to what ends them."""
    found, start = [], 0
    for at, letter in enumerate(text):
        if letter in "\n,]}":
            if text[start:at].strip():
                found.append((start, at))
            start = at + 1
        elif letter in ":[{-" and text[at + 1 : at + 2] in (" ", ""):
            start = at + 1
    return found or [(0, len(text))]


def _value(rng: random.Random, text: str) -> str:
    start, end = rng.choice(_values(text))
    return f"{text[:start]} {rng.choice(VALUES)}{text[end:]}"


def _swap_values(rng: random.Random, text: str) -> str:
    places = _values(text)
    (a, b), (c, d) = sorted((rng.choice(places), rng.choice(places)))
    return text if c < b else text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:]


def _lines(rng: random.Random, text: str, change: Callable[[list[str], int], None]) -> str:
    lines = text.split("\n")
    change(lines, rng.randrange(len(lines)))
    return "\n".join(lines)


def _lose_line(rng: random.Random, text: str) -> str:
    return _lines(rng, text, lambda lines, at: lines.pop(at) and None)


def _double_line(rng: random.Random, text: str) -> str:
    return _lines(rng, text, lambda lines, at: lines.insert(at, lines[at]))


def _indent(rng: random.Random, text: str) -> str:
    return _lines(
        rng, text, lambda lines, at: lines.__setitem__(at, rng.choice((" ", "\t", "  ")) + lines[at])
    )


def _outdent(rng: random.Random, text: str) -> str:
    return _lines(rng, text, lambda lines, at: lines.__setitem__(at, lines[at][2:]))


def _key(rng: random.Random, text: str) -> str:
    name = rng.choice(
        ('"a\\e[31m\\nb"', "1", "true", "~", "[1]", "{a: b}", "01", "? [a]", "1.5", "<<", '""', "a" * 3000)
    )
    return _lines(rng, text, lambda lines, at: lines.insert(at, f"{name}: {rng.choice(VALUES)}"))


def _cut(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _repeat(rng: random.Random, text: str) -> str:
    start, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    return text[:end] + text[start:end] * rng.choice((1, 2, 50)) + text[end:]


def _letter(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice("{}[]:,-#&*!|>'\"%@`\\?\n\t \x85\u2028\ud800") + text[at + 1 :]


_CHANGES: tuple[Callable[[random.Random, str], str], ...] = (
    *(_value,) * 6,
    _swap_values,
    _lose_line,
    _double_line,
    _indent,
    _outdent,
    _key,
    _key,
    _cut,
    _repeat,
    _letter,
)


class _OutOfTime(BaseException):
    """Not an Exception: nothing that reads a file may catch it."""


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(path: Path, read: Read) -> str:
    """`read`, `refused`, or what is wrong with how the file was met."""
    try:
        with _alarm(MAX_SECONDS):
            read(path)
    except (MachineError, UsageError) as error:
        said = str(error)
        if not said.isprintable():
            return f"not one printable line: {said[:200]!r}"
        if len(said) > MAX_MESSAGE + len(str(path)):
            return f"{len(said)} characters: {said[:200]}"
        if str(path) not in said and path.name not in said:
            return f"the file is not named: {said[:200]}"
        return "refused"
    except _OutOfTime:
        return f"more than {MAX_SECONDS} s"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "read"


def try_seed(seed: int, folder: Path) -> tuple[str, str]:
    """How the file of a seed was made, and its outcome."""
    made = damaged(seed)
    path = folder / f"file{seed}.yaml"
    path.write_bytes(made.content)
    found = outcome(path, made.read)
    path.unlink()
    return f"seed {seed}: {made.read.__name__}: {made.how}", found


def odd_files(folder: Path) -> Iterator[Path]:
    """What is no file, or not one to read whole, under the name of one."""
    os.mkfifo(folder / "pipe.yaml")
    yield folder / "pipe.yaml"
    (folder / "folder.yaml").mkdir()
    yield folder / "folder.yaml"
    with chdir(folder), socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.yaml")
    yield folder / "socket.yaml"
    links = {"zero": "/dev/zero", "tty": "/dev/tty", "nothing": "nothing", "ring": "ring.yaml"}
    for name, target in links.items():
        (folder / f"{name}.yaml").symlink_to(target)
        yield folder / f"{name}.yaml"
    (folder / "piped.yaml").symlink_to(folder / "pipe.yaml")
    yield folder / "piped.yaml"
    (folder / "sparse.yaml").touch()
    os.truncate(folder / "sparse.yaml", 1 << 40)
    yield folder / "sparse.yaml"
    yield folder / ("a" * 300 + ".yaml")


READERS: tuple[Read, ...] = (machine, architecture, problem, mapping, cases)


def main() -> int:
    """Try many files, and say what came out."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    outcomes: Counter[str] = Counter()
    findings, slowest = [], (0.0, "")
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            start = time.perf_counter()
            how, found = try_seed(seed, Path(folder))
            slowest = max(slowest, (time.perf_counter() - start, how))
            outcomes[found if found in ("read", "refused") else "finding"] += 1
            if found not in ("read", "refused"):
                findings.append(f"{how}: {found}")
        for path in odd_files(Path(folder)):
            for read in READERS:
                found = outcome(path, read)
                outcomes[found if found == "refused" else "finding"] += 1
                if found != "refused":
                    findings.append(f"{path.name}: {read.__name__}: {found}")
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    for finding in findings:
        print(finding)
    print(f"{count} files: {dict(outcomes)}; slowest {slowest[0]:.1f} s ({slowest[1]}); peak {peak_mib} MiB")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
