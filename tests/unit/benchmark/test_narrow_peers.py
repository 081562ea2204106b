"""Wider registers are hidden from a peer: where it asks for them, and what only looks alike."""

from benchmarks.narrow_peers import narrowed

ZERO = b"\x31\xc9"  # xor ecx, ecx
XGETBV = b"\x0f\x01\xd0"


def test_the_registers_that_are_saved_are_those_of_avx() -> None:
    code = b"\x90" * 20 + ZERO + XGETBV + b"\x25\xe6\x00\x00\x00" + XGETBV
    narrow, num_places = narrowed(code)
    assert num_places == 2
    assert narrow == code.replace(XGETBV, b"\x6a\x07\x58")  # push 7; pop rax


def test_bytes_that_ask_for_no_register_stay() -> None:
    code = ZERO + b"\x90" * 20 + XGETBV
    assert narrowed(code) == (code, 0)
