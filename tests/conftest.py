"""What every test can rely on: signals do what they do in a terminal, tables are as they are in a pipe."""

from __future__ import annotations

import datetime
import functools
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.other_processor import run_as
from tests.support.processor_features import PROCESSORS
from tests.support.sampling import EXAMPLES_SHARE, RARE_SHARE, drawn, with_examples

if sys.dont_write_bytecode:
    # Asserts of test modules are rewritten, which takes 16 s of processor in each worker: kept all the same.
    sys.pycache_prefix = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that choose the cases of tests that are sampled, and what of the processor tests see."""
    parser.addoption(
        "--processor",
        choices=sorted(PROCESSORS),
        help="run tests as on a processor with these features and no more; the matrix unit (amx) is emulated",
    )
    parser.addoption(
        "--sample-seed",
        metavar="TEXT",
        default=os.environ.get("TILEWRIGHT_SAMPLE_SEED"),
        help="what draws the cases of sampled tests; default: TILEWRIGHT_SAMPLE_SEED or the day (2026-11-28)",
    )
    parser.addoption(
        "--sample-share",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="run this share of sampled tests' cases and of random examples, if that is more than by default",
    )


def pytest_configure(config: pytest.Config) -> None:
    """A shell without job control starts what runs in the background with signals ignored, and `nohup` too.

    Commands that tests start inherit that, and rightly ignore them then. Some shells export their width.
    """
    os.environ.pop("COLUMNS", None)
    if config.option.sample_seed is None:  # set before workers begin, so that all have the same at midnight
        config.option.sample_seed = datetime.date.today().isoformat()
    processor = config.getoption("--processor")
    if processor is not None:
        run_as(processor)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test marked `sampled(n)` n cases, drawn by the seed, are in the default run; the others are slow.
    Of a file that is marked so n tests are, beside those that are marked themselves. Of cases where n is 0,
    and of examples that are random, the default run has a share.

    All cases and examples of a test that the command line names are in it, and all tests of a file.
    """
    named = {
        ((config.invocation_params.dir / path).resolve(), test.partition("[")[0])
        for path, _, test in (argument.partition("::") for argument in config.args)
    }

    def is_named(item: pytest.Item, test: str) -> bool:
        return (item.path.resolve(), test.partition("[")[0].partition("::")[2]) in named

    share = config.option.sample_share
    families: dict[tuple[str, int], list[pytest.Item]] = {}
    functions: dict[Callable[..., object], pytest.Item] = {}
    for item in items:
        is_slow = item.get_closest_marker("slow") is not None
        if isinstance(item, pytest.Function) and not is_slow:
            functions[item.obj] = item
        for node, marker in item.iter_markers_with_node("sampled"):
            of_file = isinstance(node, pytest.Module)
            family = node.nodeid if of_file else item.nodeid.partition("[")[0]
            if not (of_file and is_slow):
                families.setdefault((family, marker.args[0]), []).append(item)
            break
    for function, item in functions.items():
        if not is_named(item, item.nodeid):
            with_examples(function, max(share, EXAMPLES_SHARE))
    for (family, count), alike in families.items():
        if not is_named(alike[0], family):
            asked = share if count else max(share, RARE_SHARE)
            kept = drawn((i.nodeid for i in alike), count, config.option.sample_seed, asked)
            for item in alike:
                if item.nodeid not in kept and not is_named(item, item.nodeid):
                    item.add_marker(pytest.mark.slow)


def pytest_report_header(config: pytest.Config) -> str:
    """What repeats the choice of cases."""
    return f"cases of sampled tests: --sample-seed {config.option.sample_seed}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The same at the end, where `-q` prints no header."""
    terminalreporter.write_line(pytest_report_header(config))


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: collections of garbage need not walk through them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def objects_made_once() -> Iterator[None]:
    """LLVM compiles a text once in a process: many tests compile the same small networks.

    Tests of the compiler import its function by name, which stays as it is.
    """
    from tilewright.targets.llvm import codegen

    compile_object, objects = codegen.compile_object, dict[str, bytes]()

    def compile_once(ir_text: str, isa: codegen.CodeTarget, *, optimize: bool = False) -> bytes:
        key = codegen.object_key(codegen.CompileJob(ir_text, optimize), isa)
        if key not in objects:
            objects[key] = compile_object(ir_text, isa, optimize=optimize)
        return objects[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codegen, "compile_object", compile_once)
        yield


@pytest.fixture
def short_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements in turns that end at once, where figures are not the point."""
    from tilewright.benchmark import session

    monkeypatch.setattr(session, "BURST_S", 0.005)
    monkeypatch.setattr(session, "STREAMS_BURST_S", 0.01)
    monkeypatch.setattr(session, "SETTLE_S", 0.0)


@functools.cache
def _measured_once(probe: str) -> Callable[..., Any]:
    from tilewright.benchmark import limits

    found: Callable[..., Any] = functools.cache(getattr(limits, probe))
    return found


@pytest.fixture
def known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of this machine, measured once for all tests of profiles where they are not the point."""
    from tilewright.benchmark import limits

    monkeypatch.setattr(limits, "_LOOKS", 1)
    for probe in ("_read_speed", "probe_fma_peak", "probe_tile_peak"):
        monkeypatch.setattr(limits, probe, _measured_once(probe))
