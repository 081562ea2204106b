"""Machine code that numba made, kept on disk: it follows all sources, and only the user can have made it."""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import caching, compiler, compiler_lock, event, serialize, types

from tilewright.private_files import LOOPS, PrivateFolder, Records, cache_place, keeps_nothing
from tilewright.progress import NOTICE, checkpoint, require_compiling

logger = logging.getLogger(__name__)

MAX_KEPT = 1000


def kept(function: Any, *, is_part: bool) -> Any:
    """Compiled once for each machine: kept beside the module, or in the user's cache; a part is copied into
    what calls it.

    Divisions are numpy's: none of the loops divides by zero, so none checks for it.
    """
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "forceinline": is_part}
    found = numba.njit(**options)(function)
    found._compiler.compile = functools.partial(_compile, found._compiler.compile)
    # Its code holds that of the functions it calls, which may lie in other files: an update of those must
    # not run old code.
    names = function.__code__.co_names
    called = [function.__globals__[n] for n in names if hasattr(function.__globals__.get(n), "py_func")]
    sources = [_source_sha256(inspect.getfile(function))]
    for other in called:
        sources += other._cache.sources if isinstance(other._cache, _KeptCode) else [None]
    if None not in sources and function.__closure__ is None:
        found._cache = _KeptCode(function, tuple(map(str, sources)))
    return found


class _KeptCode(caching._Cache):  # type: ignore[misc]  # numba has no types
    """Numba's interface to machine code on disk, over records that only their user can have made.

    Numba's own files are pickles and machine code in folders whose owner it does not look at. Here the
    keyed digest is checked before anything is unpickled. The place is Python's own for compiled code, beside
    the module, if it is this user's alone; then it serves all caches. Else it is the cache.
    """

    def __init__(self, function: Any, sources: tuple[str, ...]) -> None:
        self.sources = sources
        self._function = function

    @property
    def cache_path(self) -> str | None:
        """The folder of the records."""
        return next((str(records.folder.path(LOOPS)) for records in self._places()), None)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The function compiled for a signature; None if it is not there.

        Raises:
            WouldCompile: it is not, and what asks for it does not wait.
        """
        target_context.refresh()
        name = self._name(sig, target_context.codegen())
        for records in self._places():
            try:
                stored = records.get(name)
            except OSError as error:
                logger.debug("cannot read %s (%s)", records.folder.root, error)
                continue
            if stored is not None:
                return compiler.CompileResult._rebuild(target_context, *pickle.loads(stored))
        require_compiling()
        _announce()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled function, if the disk allows it."""
        if data.library.has_dynamic_globals or data.lifted or keeps_nothing():
            return
        name, content = self._name(sig, data.codegen), serialize.dumps(data._reduce())
        for records in self._places():
            try:
                records.put(name, content)
                records.forget_oldest(MAX_KEPT)
                return
            except OSError as error:
                logger.debug("cannot write %s (%s)", records.folder.root, error)

    def enable(self) -> None:
        """Always on."""

    def disable(self) -> None:
        """Always on."""

    def flush(self) -> None:
        """Records of changed functions have other names, and go when there are too many."""

    def _places(self) -> Iterator[Records]:
        beside = PrivateFolder(Path(self._function.__code__.co_filename).parent / "__pycache__")
        if beside.is_private(create=not keeps_nothing()):
            yield Records(beside, LOOPS)
        folder = cache_place()
        if folder is not None:
            yield Records(PrivateFolder(folder), LOOPS)

    def _name(self, sig: Any, codegen: Any) -> str:
        """Digest of everything that decides the machine code."""
        code = self._function.__code__
        facts = (
            (numba.__version__, llvmlite.__version__, sys.implementation.cache_tag),
            (self._function.__module__, self._function.__qualname__, code.co_firstlineno),
            (os.path.abspath(code.co_filename), hashlib.sha256(code.co_code).hexdigest(), self.sources),
            (str(sig), codegen.magic_tuple()),
        )
        return hashlib.sha256(repr(facts).encode()).hexdigest()


class _Ending(event.Listener):  # type: ignore[misc]
    """What lets a search end between two of numba's passes: compiling a function with those that it calls
    takes seconds. What is compiled by then is kept."""

    def on_start(self, event: Any) -> None:
        """A pass begins."""
        checkpoint()

    def on_end(self, event: Any) -> None:
        """Nothing: what was made is not lost."""


event.register("numba:run_pass", _Ending())


_ask = types.Function.get_call_type


@functools.cache
def _operator_type(function: Any, context: Any, args: tuple[Any, ...]) -> Any:
    return _ask(function, context, args, {})


def _call_type(function: Any, context: Any, args: tuple[Any, ...], kws: Mapping[str, Any]) -> Any:
    """The signature of a call of one of numba's own functions; of an operator asked once for each types:
    numba tries its overloads again wherever it stands, which took a quarter of the time of the compiler."""
    is_operator = not kws and getattr(function.typing_key, "__module__", None) == "_operator"
    return _operator_type(function, context, args) if is_operator else _ask(function, context, args, kws)


def _compile(compile_function: Any, args: Any, return_type: Any) -> Any:
    """A function compiled by numba's compiler with `_call_type` in place of numba's own method.

    That is looked up on its class, so it is replaced there, until this ends, under the lock that every
    compilation in the process holds: others' functions that are compiled meanwhile are those called here.
    """
    with compiler_lock.global_compiler_lock:
        before = types.Function.get_call_type
        setattr(types.Function, "get_call_type", _call_type)  # noqa: B010
        try:
            return compile_function(args, return_type)
        finally:
            setattr(types.Function, "get_call_type", before)  # noqa: B010


@functools.cache
def _announce() -> None:
    """Say, once, that loops are compiled; a cache that keeps them makes it the last time."""
    until = "each time, as nothing is kept" if keeps_nothing() else "once on this machine"
    logger.log(NOTICE, "compiling the loops that count and simulate, %s: some seconds, up to a minute", until)


@functools.cache
def _source_sha256(path: str) -> str | None:
    """Of a source file; None if there is none, as in a frozen program: nothing is kept then."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None
