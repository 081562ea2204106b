"""Machine code that is kept on disk follows every file it comes from."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.machine_code import compiled
from tilewright.progress import SearchEnded, ending_with

_INNER = """
from tilewright.machine_code import compiled


@compiled
def number():
    return {value}
"""
_OUTER = """
from inner import number
from tilewright.machine_code import compiled


@compiled
def twice():
    return 2 * number()


print(twice(), sum(twice.stats.cache_hits.values()))
"""

_WITHOUT = """
from tilewright.machine_code import compiled
from tilewright.progress import WouldCompile, without_compiling


@compiled
def number():
    return 1


with without_compiling():
    try:
        print(number())
    except WouldCompile:
        print("refused")
number()
with without_compiling():
    print(number())
"""


@pytest.mark.sampled(0)
def test_code_is_compiled_anew_when_a_function_that_it_calls_has_changed(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(_OUTER)

    def result(value: int) -> str:
        (tmp_path / "inner.py").write_text(_INNER.format(value=value))
        command = [sys.executable, "-B", "outer.py"]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    assert result(1) == "2 0\n"
    assert result(1) == "2 1\n"
    assert result(21) == "42 0\n"


@pytest.mark.sampled(0)
def test_what_waits_for_no_compiler_runs_what_is_kept(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(_WITHOUT)
    command = [sys.executable, "-B", "loop.py"]
    for answer in ("refused\n1\n", "1\n1\n"):
        ran = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        assert ran.stdout == answer


@pytest.mark.sampled(0)
def test_a_place_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    """Machine code goes to the cache instead, and what was put beside the module is never unpickled."""
    (tmp_path / "outer.py").write_text(_OUTER)
    (tmp_path / "inner.py").write_text(_INNER.format(value=1))
    beside = tmp_path / "__pycache__"
    beside.mkdir()
    beside.chmod(0o777)
    command = [sys.executable, "-B", "outer.py"]
    environment = {**os.environ, "TILEWRIGHT_CACHE": str(tmp_path / "cache")}

    def result() -> str:
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True, env=environment
        ).stdout

    assert result() == "2 0\n"
    assert result() == "2 1\n"
    assert list(beside.iterdir()) == []
    kept = list((tmp_path / "cache" / "loops").iterdir())
    assert len(kept) == 2
    for path in kept:  # a pickle that runs a command, with the header of the record that it replaces
        header = path.read_bytes()[:56]
        path.write_bytes(header + f"cos\nsystem\n(S'touch {tmp_path}/executed'\ntR.".encode())
    assert result() == "2 0\n"
    assert not (tmp_path / "executed").exists()


def test_code_is_not_kept_where_nothing_is_to_be_kept(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(_OUTER)
    (tmp_path / "inner.py").write_text(_INNER.format(value=1))
    environment = {**os.environ, "TILEWRIGHT_CACHE": str(tmp_path / "cache"), "TILEWRIGHT_NO_CACHE": "1"}
    command = [sys.executable, "-B", "outer.py"]
    result = subprocess.run(
        command, cwd=tmp_path, check=True, capture_output=True, text=True, env=environment
    )
    assert result.stdout == "2 0\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inner.py", "outer.py"]


@pytest.mark.sampled(0)
def test_the_first_time_is_announced_and_only_once(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(_OUTER)
    (tmp_path / "inner.py").write_text(_INNER.format(value=1))
    code = "import logging; logging.basicConfig(level=25, format='%(message)s'); import outer"
    told = [
        subprocess.run(
            [sys.executable, "-B", "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stderr
        for _ in range(2)
    ]
    assert told == [
        "compiling the loops that count and simulate, once on this machine: some seconds, up to a minute\n",
        "",
    ]


class _After:
    """A search that ends when it has been asked so many times whether it does."""

    def __init__(self, num_asked: int) -> None:
        self.num_left = num_asked

    @property
    def ends_here(self) -> bool:
        self.num_left -= 1
        return self.num_left < 0

    def interrupt(self) -> bool:
        return False


def _twice(number: int) -> int:
    return 2 * number


def _twice_and_one(number: int) -> int:
    return _twice(number) + 1


@pytest.mark.sampled(0)
def test_a_search_ends_while_its_loops_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it does, what it left behind compiles the next time: first what is called, then the whole."""
    monkeypatch.setenv("TILEWRIGHT_NO_CACHE", "1")
    called = compiled(_twice)
    monkeypatch.setitem(globals(), "_twice", called)
    function, num_ended = compiled(_twice_and_one), 0
    while not function.signatures:
        with ending_with(_After(3 * num_ended)):
            try:
                function(4)
            except SearchEnded:
                num_ended += 1
                assert num_ended < 100, f"ends before {called.signatures} and {function.signatures}"
    assert num_ended > 5
    assert function(4) == 9


def test_operators_are_typed_once_and_anew_when_they_have_other_overloads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numba_cache = pytest.importorskip("tilewright.numba_cache")
    from numba import float64, int64
    from numba.core.registry import cpu_target

    context, ask = cpu_target.typing_context, numba_cache._ask
    asked: list[tuple[object, ...]] = []

    def noted(*question: object) -> object:
        asked.append(question)
        return ask(*question)

    context.refresh()
    monkeypatch.setattr(numba_cache, "_ask", noted)
    numba_cache._operator_type.cache_clear()
    getitem = context.resolve_value_type(operator.getitem)
    for args in ((float64[:, ::1], int64), (float64[::1], int64)) * 2:
        assert numba_cache._call_type(getitem, context, args, {}) == ask(getitem, context, args, {})
    assert len(asked) == 2
    augmented = type(getitem)(getitem.templates + getitem.templates[:1])
    assert numba_cache._call_type(augmented, context, (float64[::1], int64), {}).return_type == float64
    assert len(asked) == 3


def test_only_our_own_compilations_type_operators_otherwise() -> None:
    numba_cache = pytest.importorskip("tilewright.numba_cache")
    numba = pytest.importorskip("numba")
    from numba.core import errors, event, types

    class Noted(event.Listener):  # type: ignore[misc]
        def on_start(self, event: object) -> None:
            found.append(types.Function.get_call_type)

        def on_end(self, event: object) -> None:
            found.append(types.Function.get_call_type)

    def increased(x: int) -> int:
        return x + 1

    found: list[object] = []
    for make, expected in ((compiled, numba_cache._call_type), (numba.njit, numba_cache._ask)):
        with event.install_listener("numba:run_pass", Noted()):
            assert make(increased)(2) == 3
            with pytest.raises(errors.TypingError):
                make(increased)("a text has no sum with a number")
        assert set(found) == {expected}
        assert types.Function.get_call_type is numba_cache._ask
        found.clear()
