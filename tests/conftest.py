"""What every test can rely on: signals do what they do in a terminal, tables are as they are in a pipe."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from harness.other_processor import PROCESSORS, run_as


def pytest_addoption(parser: pytest.Parser) -> None:
    """An option that hides features of the processor from all tests, or adds the emulated matrix unit."""
    parser.addoption(
        "--processor",
        choices=sorted(PROCESSORS),
        help="run tests as on a processor with these features and no more; the matrix unit (amx) is emulated",
    )


def pytest_configure(config: pytest.Config) -> None:
    """A shell without job control starts what runs in the background with signals ignored, and `nohup` too.

    Commands that tests start inherit that, and rightly ignore them then. Some shells export their width.
    """
    os.environ.pop("COLUMNS", None)
    processor = config.getoption("--processor")
    if processor is not None:
        run_as(processor)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked `sampled(n)` n cases, spread evenly, are in the default run; the others are slow."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for alike in cases.values():
        marker = alike[0].get_closest_marker("sampled")
        assert marker is not None
        kept = {place * len(alike) // marker.args[0] for place in range(marker.args[0])}
        for place, item in enumerate(alike):
            if place not in kept:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: collections of garbage need not walk through them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def short_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements in turns that end at once, where figures are not the point."""
    from tilewright.benchmark import session

    monkeypatch.setattr(session, "BURST_S", 0.005)
    monkeypatch.setattr(session, "STREAMS_BURST_S", 0.01)
    monkeypatch.setattr(session, "SETTLE_S", 0.0)
