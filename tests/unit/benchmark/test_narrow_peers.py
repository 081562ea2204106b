"""Wider instructions are hidden from a peer: where it asks, and what it is told."""

from __future__ import annotations

import ctypes
import struct

import pytest
from benchmarks.narrow_peers import handler, places

from tilewright.targets.cpu.isa import host_isa

EAX, EBX, ECX, EDX, RIP = 144, 128, 152, 136, 168
CPUID = b"\x0f\xa2"


def test_only_questions_for_leaf_7_are_found() -> None:
    wanted = b"\xb8\x07\x00\x00\x00\x31\xc9" + CPUID  # mov eax, 7; xor ecx, ecx; cpuid
    through = b"\x41\xbf\x07\x00\x00\x00\x44\x89\xf8" + CPUID  # mov r15d, 7; mov eax, r15d; cpuid
    other = b"\xb8\x01\x00\x00\x00" + CPUID
    code = other + wanted + b"\x90" * 64 + CPUID + through
    assert places(code) == [len(other) + 7, len(code) - 2]


@pytest.mark.skipif(host_isa().arch != "x86_64", reason="cpuid is an instruction of x86")
def test_a_processor_is_told_without_avx512_and_with_avx2() -> None:
    told = []
    for leaf in (7, 1):
        context = ctypes.create_string_buffer(256)
        struct.pack_into("<Q", context, EAX, leaf)
        struct.pack_into("<Q", context, RIP, 1000)
        ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(handler()["handle"])(
            4, None, ctypes.addressof(context)
        )
        assert struct.unpack_from("<Q", context, RIP) == (1000 + len(CPUID),)
        told.append([struct.unpack_from("<Q", context, at)[0] for at in (EAX, EBX, ECX, EDX)])
    (_, features, more, _), (family, _, basic, _) = told
    assert not features & 1 << 16
    assert not more & 1 << 11
    assert bool(features & 1 << 5) == ("avx2" in host_isa().name or "avx512" in host_isa().name)
    assert family
    assert basic & 1 << 12  # FMA is told by another leaf, which stays as it is
