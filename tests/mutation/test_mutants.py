"""Mutants are what they are listed to be, where mutmut is installed."""

import pytest

pytest.importorskip("mutmut")

from tests.mutation.mutants import mutants_of

SOURCE = '''
def f(a: int = 1) -> bool:
    """Whether 2 > a."""
    if a < 1 and not_text("x", "some text") :
        raise ValueError(f"{a + 1}")
    return any(a)
'''


def test_each_condition_number_and_name_is_mutated_but_no_text() -> None:
    found = [(mutant.was.strip(), mutant.now.strip()) for mutant in mutants_of(SOURCE)]
    condition = 'if a < 1 and not_text("x", "some text") :'
    assert {now for was, now in found if was == condition} == {
        "if True :",
        "if False :",
        *(f'if {x} and not_text("x", "some text") :' for x in ("a <= 1", "a < 2", "a < 0")),
        'if a < 1 or not_text("x", "some text") :',
        "if (a < 1) :",
        'if (not_text("x", "some text")) :',
        'if a < 1 and not_text("XXxXX", "some text") :',
        'if a < 1 and not_text("some text") :',
    }
    assert [now for was, now in found if was == "return any(a)"] == ["return all(a)"]
    assert {was for was, _ in found} == {"def f(a: int = 1) -> bool:", condition, "return any(a)"}
