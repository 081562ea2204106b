"""Arrangements of constants as plain values, as artifacts keep them."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from tilewright.fields import FieldError, decoded, field_of, inside
from tilewright.ir.dtype import DType
from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import (
    Arrangement,
    FewBitPanels,
    MatrixTiles,
    Order,
    PanelOrder,
    SliceTiles,
    Stacked,
    Window,
    WinogradPanels,
)
from tilewright.targets.cpu.integer_arrangements import (
    ColumnSums,
    IntegerWords,
    SignedBytes,
    StepOnes,
    WidenedWords,
    WinogradWords,
)

_KINDS: dict[str, Any] = {
    arrangement.kind: arrangement
    for arrangement in (
        Order,
        PanelOrder,
        FewBitPanels,
        WinogradPanels,
        MatrixTiles,
        SliceTiles,
        IntegerWords,
        WidenedWords,
        WinogradWords,
        ColumnSums,
        StepOnes,
    )
}


@dataclass(frozen=True, slots=True)
class _StackedFields:
    parts: tuple[tuple[tuple[int, int], ...], ...]
    stride: int


def encode_arrangement(arrangement: Arrangement | None) -> dict[str, Any] | None:
    """Plain values; None for a constant as it is."""
    match arrangement:
        case None:
            return None
        case Stacked(inner, parts, stride):
            stated = {"inner": encode_arrangement(inner), "parts": parts, "stride": stride}
        case _:
            stated = {f.name: _plain(getattr(arrangement, f.name)) for f in fields(arrangement)}  # type: ignore[arg-type]  # records all
    return {"kind": arrangement.kind, **stated}


def decode_arrangement(document: Any) -> Arrangement | None:
    """What `encode_arrangement` described.

    Raises:
        FieldError: naming what is missing, of another type, or not known.
    """
    if document is None:
        return None
    kind = field_of(document, "kind", str)
    if kind == Stacked.kind:
        stated = decoded(_StackedFields, document)
        with inside("inner"):
            inner = decode_arrangement(document.get("inner"))
        return Stacked(inner, stated.parts, stated.stride)
    if kind not in _KINDS:
        raise FieldError(f"unknown arrangement {kind[:40]!r}", ".kind")
    arrangement: Arrangement = decoded(_KINDS[kind], document)
    return arrangement


def _plain(value: Any) -> Any:
    match value:
        case Window() | SignedBytes():
            return asdict(value)
        case DType():
            return str(value)
    return value
