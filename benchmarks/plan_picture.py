"""The picture of a plan for the first screen of the README: a network on a described accelerator, over time.

`python -m benchmarks plan_picture docs/plan.png` simulates SqueezeNet on `stcp920` and takes what its page
shows. It needs a browser (Debian's chromium).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.support.browser import running_browser

from benchmarks.command import Namespace, Parser
from tilewright import zoo
from tilewright.api import simulate

_WIDTH_PX = 1000


def options(parser: Parser) -> None:
    """What it can be told."""
    parser.add_argument("picture", type=Path, help="the PNG to write")


def main(arguments: Namespace) -> None:
    """Simulate, draw, and keep the lanes of the page."""
    result = simulate(zoo.build("squeezenet1_1"), "stcp920")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        result.save_page(page)
        with running_browser(Path(folder) / "browser") as browser, browser.page(page, _WIDTH_PX) as opened:
            opened.drawn()
            opened.screenshot(arguments.picture, ".lanes")
