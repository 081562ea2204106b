"""Copies of peers that see no AVX-512: what is changed in their code, and what only looks alike."""

from benchmarks.peers_for_avx2 import without_avx512

ZERO = b"\x31\xc9"
XGETBV = b"\x0f\x01\xd0"


def test_the_registers_that_are_saved_are_those_of_avx() -> None:
    code = b"\x90" * 20 + ZERO + XGETBV + b"\x25\xe6\x00\x00\x00" + XGETBV
    patched, num_places = without_avx512(code)
    assert num_places == 2
    assert patched == code.replace(XGETBV, b"\x6a\x07\x58")  # push 7; pop rax


def test_bytes_that_ask_for_no_register_stay() -> None:
    code = ZERO + b"\x90" * 20 + XGETBV
    assert without_avx512(code) == (code, 0)
