"""Sizes, counts, durations and shapes as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby


def format_bytes(size_bytes: float) -> str:
    """A size for people.

    >>> format_bytes(1536), format_bytes(10)
    ('1.5 KiB', '10 B')
    """
    for unit in ("B", "KiB", "MiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} GiB"


def format_count(count: float) -> str:
    """A number with its decimal prefix, to stand before a unit.

    >>> format_count(999), format_count(999_600), format_count(1_234_000)
    ('999 ', '1 M', '1.23 M')
    """
    for prefix in ("", "k", "M", "G"):
        if abs(count) < 999.5:  # three digits of more would be 1e+03
            return f"{count:.3g} {prefix}"
        count /= 1000
    return f"{count:.3g} T"


def counted(count: int, noun: str) -> str:
    """A number of things, in the plural but for one.

    >>> counted(1, "kernel"), counted(2, "kernel"), counted(0, "entry")
    ('1 kernel', '2 kernels', '0 entries')
    """
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"


def format_ms(milliseconds: float) -> str:
    """A duration for people.

    >>> format_ms(0.0123), format_ms(12.3), format_ms(2500)
    ('12.3 µs', '12.3 ms', '2.50 s')
    """
    if milliseconds < 1:
        return f"{milliseconds * 1000:.1f} µs"
    return f"{milliseconds:.1f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.2f} s"


def format_age(seconds: float | None) -> str:
    """How long ago something was, for people; nothing where that is unknown.

    >>> format_age(90), format_age(7200), format_age(3 * 86400), format_age(None)
    ('2 min', '2 h', '3 d', '')
    """
    if seconds is None:
        return ""
    for unit, unit_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_shape(shape: Sequence[int]) -> str:
    """A shape as the --shapes flag writes it.

    >>> format_shape((1, 3, 224, 224))
    '1x3x224x224'
    """
    return "x".join(str(d) for d in shape) if shape else "scalar"


def format_shapes(shapes: Iterable[Sequence[int]]) -> str:
    """Shapes one after another, with how many where equal ones follow each other.

    >>> format_shapes([(1, 13), (1, 26), (1, 26), ()])
    '1x13, 2 of 1x26, scalar'
    """
    runs = ((format_shape(shape), sum(1 for _ in run)) for shape, run in groupby(map(tuple, shapes)))
    return ", ".join(text if count == 1 else f"{count} of {text}" for text, count in runs)
