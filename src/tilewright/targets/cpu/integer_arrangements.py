"""Arrangements of constants for products of integers: words of signed bytes, and what corrects sums."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tilewright.arrays import Array
from tilewright.fields import FieldError, Signed
from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import (
    MIN_LIMIT,
    NUM_TAPS,
    STEPS_PER_WORD,
    Window,
    padded_extent,
    panel_by_panel,
    require_filter,
    require_panels,
    transform_filter,
)


@dataclass(frozen=True, slots=True)
class SignedBytes:
    """Bytes of an integer factor as `[outer, runs, steps of a run, columns]`, taken as signed ones."""

    window: Window
    num_outer: int
    num_runs: int
    run_length: int
    flips: bool

    def of(self, array: Array) -> Array:
        """The bytes; signs change by flipping the top bit."""
        view = self.window.of(array)
        if view.itemsize != 1:
            raise FieldError(f"elements of {view.itemsize} bytes", ".window")
        given = view.reshape(self.num_outer, self.num_runs, self.run_length, -1)
        return (given ^ 0x80).view(np.int8) if self.flips else given.view(np.int8)


@dataclass(frozen=True, slots=True)
class IntegerWords:
    """For each outer position and each panel the panel's columns for every word of the summed steps: four
    signed bytes, one per step, for each column. Missing steps and columns are zero.

    `packed_steps` says which step of a run each packed byte of a column belongs to; -1 for none.
    """

    kind: ClassVar[str] = "words"
    source: SignedBytes
    packed_steps: tuple[Signed, ...]
    lanes: int
    width: int

    def arrange(self, array: Array, into: Array | None = None) -> Array:
        """The words."""
        require_panels(self.lanes, self.width)
        given = self.source.of(array)
        num_outer, runs, _, extent = given.shape
        padded, per_run = padded_extent(extent, self.lanes), len(self.packed_steps)
        packed = np.array(self.packed_steps)
        here, there = np.flatnonzero(packed >= 0), packed[packed >= 0]
        columns = np.zeros((num_outer, runs, per_run, padded), np.int8)
        columns[:, :, here, :extent] = given[:, :, there]
        num_words = runs * per_run // STEPS_PER_WORD
        words = columns.reshape(num_outer, num_words, STEPS_PER_WORD, padded).swapaxes(2, 3)
        return panel_by_panel(words, self.width)


@dataclass(frozen=True, slots=True)
class WidenedWords:
    """Words that hold one step each, its zero point taken off, in panels."""

    kind: ClassVar[str] = "widened"
    source: SignedBytes
    zero: Signed
    lanes: int
    width: int

    def arrange(self, array: Array, into: Array | None = None) -> Array:
        """The words."""
        require_panels(self.lanes, self.width)
        given = self.source.of(array)
        num_outer, runs, _, extent = given.shape
        words = np.zeros((num_outer, runs, padded_extent(extent, self.lanes)), np.int32)
        words[:, :, :extent] = given[:, :, 0].astype(np.int32) - self.zero
        return panel_by_panel(words, self.width).view(np.int8)


@dataclass(frozen=True, slots=True)
class WinogradWords:
    """Filters of 3 x 3 taps of bytes less their zero point, transformed by an integer matrix, in panels.

    As `WinogradPanels`, but a step holds two input channels of 16 bits for each column; one that is missing,
    and columns behind the last, are zero.
    """

    kind: ClassVar[str] = "winograd words"
    window: Window
    zero: Signed
    lanes: int
    width: int
    weight: tuple[tuple[Signed, ...], ...]

    def arrange(self, array: Array, into: Array | None = None) -> Array:
        """The factors of all products."""
        require_panels(self.lanes, self.width)
        view, g = self.window.of(array), np.array(self.weight, np.int16)
        require_filter(view, g)
        if view.itemsize != 1:
            raise FieldError(f"elements of {view.itemsize} bytes", ".window")
        num_inputs, num_outputs = view.shape[2:]
        steps = -(-num_inputs // 2)
        taps = np.zeros((NUM_TAPS, NUM_TAPS, 2 * steps, padded_extent(num_outputs, self.lanes)), np.int16)
        taps[:, :, :num_inputs, :num_outputs] = view.astype(np.int16) - np.int16(self.zero)
        made = np.zeros((len(g), len(g), *taps.shape[2:]), np.int16)
        transform_filter(taps, g, made)
        words = made.reshape(1, -1, 2, made.shape[-1]).swapaxes(2, 3)
        return panel_by_panel(words, self.width).view(np.int8)


@dataclass(frozen=True, slots=True)
class ColumnSums:
    """Sums of an integer factor per column, times a factor plus a constant."""

    kind: ClassVar[str] = "sums"
    source: SignedBytes
    lanes: int
    factor: Signed
    constant: Signed

    def arrange(self, array: Array, into: Array | None = None) -> Array:
        """The sums, zero (plus the constant) behind the last column."""
        require_panels(self.lanes, self.lanes)
        given = self.source.of(array)
        num_outer, _, _, extent = given.shape
        result = np.zeros((num_outer, padded_extent(extent, self.lanes)), np.int64)
        result[:, :extent] = given.sum(axis=(1, 2), dtype=np.int64) * self.factor
        return (result + self.constant).astype(np.int32).reshape(-1)


@dataclass(frozen=True, slots=True)
class StepOnes:
    """A byte of one for each step that exists: multiplied with the other factor they give its sums."""

    kind: ClassVar[str] = "ones"
    num_runs: int
    packed_steps: tuple[Signed, ...]

    def arrange(self, array: Array, into: Array | None = None) -> Array:
        """The ones, whatever the constant."""
        if self.num_runs * len(self.packed_steps) > max(MIN_LIMIT, 4 * array.size):
            raise FieldError(f"{self.num_runs} runs of {array.size} elements", ".num_runs")
        result = np.zeros((self.num_runs, len(self.packed_steps)), np.int8)
        result[:, np.flatnonzero(np.array(self.packed_steps) >= 0)] = 1
        return result.reshape(-1)
