"""Measurements: that they measure what they say, never how fast this host is."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tilewright.hardware.probe import resolve_threads
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cpu.runtime.pool import AlignedBuffer
from tilewright.targets.cpu.tune import probes as topology
from tilewright.targets.llvm.codegen import JitLibrary, compile_object, emit_assembly


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "_PROBE_S", 0.002)


def test_latency_is_positive_and_its_least_below_its_median() -> None:
    probe = topology.probe_latency()
    if resolve_threads(None) < 2:
        assert probe is None
        return
    assert probe is not None
    assert 0 < probe.min_ns <= probe.median_ns
    assert probe.num_samples >= 3


def test_one_core_has_no_latency_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "resolve_threads", lambda number: 1)
    assert topology.probe_latency() is None


def test_the_peak_loop_keeps_its_accumulators_in_registers() -> None:
    """A spill in the loop would measure memory instead. The epilogue may address the stack."""
    isa = host_isa()
    if isa.arch != "x86_64":
        pytest.skip("reads x86 assembly")
    assembly = emit_assembly(topology.fma_ir(isa, 100), isa)
    fmas = [line for line in assembly.splitlines() if "vfmadd" in line]
    assert len(fmas) == topology.FMAS
    assert not any("(" in line for line in fmas)


def test_peak_and_bandwidth_count_what_was_done() -> None:
    for threads in (1, 2):
        peak = topology.probe_fma_peak(threads)
        assert peak.peak_flop_per_s > 1e8
        assert peak.num_threads == threads
    bandwidth = topology.probe_bandwidth(2, 1 << 20)
    assert bandwidth.footprint_bytes == 1 << 20
    assert bandwidth.read_bytes_per_s > 1e7


@pytest.mark.parametrize("num_passes", [1, 3])
def test_the_bandwidth_kernel_reads_every_byte_of_its_chunk_in_each_pass(num_passes: int) -> None:
    """Its sum shows it: lane 0 adds every `lanes`-th word, and the first accumulator of eight twice."""
    isa, chunk_bytes = host_isa(), 8192
    library = JitLibrary([compile_object(topology.read_ir(isa, chunk_bytes, num_passes), isa)], ["read"])
    read = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(library["read"])
    data, out = AlignedBuffer(2 * chunk_bytes), AlignedBuffer(128)
    words = np.ctypeslib.as_array((ctypes.c_int64 * (chunk_bytes // 4)).from_address(data.address))
    words[:] = np.random.default_rng(0).integers(0, 1 << 40, words.shape)
    args = (ctypes.c_uint64 * 2)(out.address, data.address)
    read(ctypes.addressof(args), 1, None)
    lanes = isa.lanes("i64")
    rows = words[chunk_bytes // 8 :].reshape(-1, 8, lanes)[:, :, 0].sum(axis=0)
    assert ctypes.c_int64.from_address(out.address + 64).value == num_passes * (rows.sum() + rows[0])
