"""A headless Chromium for tests of pages, spoken to over two pipes in the protocol that it has for tools."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chromium-headless-shell")
TIMEOUT_S = 60.0
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--no-default-browser-check",
    # What a page would load from elsewhere fails, and is told as an error.
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
# The browser reads what it is asked from its descriptor 3 and answers on 4.
_LAUNCH = (
    "import os, sys\n"
    "asked, answers = (os.dup(int(number)) for number in sys.argv[1:3])\n"
    "asked, answers = (os.dup2(number, place) for number, place in ((asked, 63), (answers, 64)))\n"
    "os.dup2(asked, 3)\n"
    "os.dup2(answers, 4)\n"
    "os.closerange(5, 65)\n"
    "os.execvp(sys.argv[3], sys.argv[3:])\n"
)

_OVERFLOWING = """
(() => {
  const width = %d, wider = [];
  const ways = ["auto", "scroll", "hidden"];
  const scrolls = (e) => e !== document.body && ways.includes(getComputedStyle(e).overflowX);
  const isScrolled = (element) => {
    for (let e = element.parentElement; e; e = e.parentElement) if (scrolls(e)) return true;
    return false;
  };
  for (const element of document.body.querySelectorAll("*")) {
    const area = element.getBoundingClientRect();
    if (area.width && area.right > width + 0.5 && !isScrolled(element))
      wider.push(`${element.tagName} ${element.getAttribute("class")} to ${Math.round(area.right)}`);
  }
  const whole = document.documentElement.scrollWidth;
  if (whole > width) wider.push(`page ${whole}`);
  return wider.slice(0, 10);
})()
"""


_SMALLEST_PX = 9.0
# Texts of pictures that are cut off, lie on each other, or are too small to read; turned ones may cross.
_UNREADABLE = """
(() => {
  const told = [];
  const isTurned = (text) => (text.getAttribute("transform") ?? "").includes("rotate");
  for (const svg of document.querySelectorAll(".drawn svg, .nest svg")) {
    const frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    const scale = frame.width / svg.viewBox.baseVal.width;
    const texts = [...svg.querySelectorAll("text")].filter((t) => t.textContent.trim());
    const areas = texts.map((t) => t.getBoundingClientRect());
    texts.forEach((text, i) => {
      const a = areas[i], name = JSON.stringify(text.textContent);
      const size = parseFloat(getComputedStyle(text).fontSize) * scale;
      if (size < %g) told.push(`${name} has ${size.toFixed(1)} px`);
      if (a.left < frame.left - 1 || a.right > frame.right + 1 ||
          a.top < frame.top - 1 || a.bottom > frame.bottom + 1) told.push(`${name} is cut off`);
      for (let j = 0; j < i; j += 1) {
        const b = areas[j];
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (!isTurned(text) && !isTurned(texts[j]) && across > 1 && down > 0.3 * Math.min(a.height, b.height))
          told.push(`${name} lies on ${JSON.stringify(texts[j].textContent)}`);
      }
    });
  }
  return told.slice(0, 10);
})()
"""


def browser_path() -> str | None:
    """The browser that there is."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


needs_browser = pytest.mark.skipif(browser_path() is None, reason=f"there is no browser: {', '.join(NAMES)}")
_BOX = """(() => {
  const box = document.querySelector(%s).getBoundingClientRect();
  return {x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height};
})()"""


class Browser:
    """A running browser; pages are opened one at a time."""

    def __init__(self, asked: int, answers: int) -> None:
        self._asked, self._answers = asked, answers
        self._unread = b""
        self._number = 0
        self._events: list[dict[str, Any]] = []

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Call one method of the protocol, and wait for its result."""
        self._number += 1
        request: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session is not None:
            request["sessionId"] = session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self._asked, data) :]
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            message = self._read(deadline, method)
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result
            self._events.append(message)

    def wait_for(self, event: str, session: str) -> None:
        """Until something has happened."""
        deadline = time.monotonic() + TIMEOUT_S
        while not any(e.get("method") == event and e.get("sessionId") == session for e in self._events):
            self._events.append(self._read(deadline, event))

    def events(self, session: str) -> list[dict[str, Any]]:
        """What has happened in a page so far."""
        return [event for event in self._events if event.get("sessionId") == session]

    def _read(self, deadline: float, awaited: str) -> dict[str, Any]:
        while b"\0" not in self._unread:
            left_s = deadline - time.monotonic()
            ready, _, _ = select.select([self._answers], [], [], max(0.0, left_s))
            assert ready, f"the browser gave no {awaited} within {TIMEOUT_S:g} s"
            data = os.read(self._answers, 1 << 16)
            assert data, f"the browser ended before {awaited}"
            self._unread += data
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    @contextlib.contextmanager
    def page(self, path: Path, width: int, height: int = 900, *, is_dark: bool = False) -> Iterator[Page]:
        """A file, opened at a width, for a reader whose system is light or dark."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable", session)
        opened = Page(self, session)
        opened.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.ask("Emulation.setEmulatedMedia", session, features=[scheme])
        self.ask("Page.navigate", session, url=path.resolve().as_uri())
        self.wait_for("Page.loadEventFired", session)
        opened.drawn()
        try:
            yield opened
        finally:
            self.ask("Target.closeTarget", targetId=target)


class Page:
    """An open page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session, self.width = browser, session, 0

    def resize(self, width: int, height: int = 900) -> None:
        """Give it another width, as a phone has where it is small."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._browser.ask("Emulation.setDeviceMetricsOverride", self._session, **size)
        self.width = width

    def value(self, expression: str) -> Any:
        """What JavaScript gives for an expression."""
        told = self._browser.ask(
            "Runtime.evaluate", self._session, expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def drawn(self) -> None:
        """Wait until everything that was asked for has been drawn."""
        self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def until(self, expression: str) -> None:
        """Wait until an expression of JavaScript holds."""
        deadline = time.monotonic() + 5 * TIMEOUT_S
        while not self.value(f"Boolean({expression})"):
            assert time.monotonic() < deadline, f"not so within {5 * TIMEOUT_S:g} s: {expression}"
            time.sleep(0.02)

    def headings(self) -> list[str]:
        """The page's sections."""
        texts: list[str] = self.value("[...document.querySelectorAll('h2')].map((h) => h.textContent)")
        return texts

    def overflowing(self) -> list[str]:
        """What is wider than the page, and does not scroll in its place."""
        elements: list[str] = self.value(_OVERFLOWING % self.width)
        return elements

    def unreadable(self) -> list[str]:
        """Texts of pictures that are cut off, lie on each other, or are too small."""
        texts: list[str] = self.value(_UNREADABLE % _SMALLEST_PX)
        return texts

    def diagnostics(self) -> list[str]:
        """Errors and warnings on the console, and what could not be loaded."""
        told = []
        for event in self._browser.events(self._session):
            params = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                told.append(str(params["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                told.append(str(params["args"]))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                told.append(str(params["entry"]))
        return told

    def screenshot(self, path: Path, selector: str | None = None) -> Path:
        """What is seen as a PNG, or the whole of the first element that a selector finds."""
        clip: dict[str, Any] = {}
        if selector is not None:
            box = self.value(_BOX % json.dumps(selector))
            clip = {"clip": {**box, "scale": 1}, "captureBeyondViewport": True}
        told = self._browser.ask("Page.captureScreenshot", self._session, format="png", **clip)
        path.write_bytes(base64.b64decode(told["data"]))
        return path


@contextlib.contextmanager
def running_browser(folder: Path) -> Iterator[Browser]:
    """A browser whose profile lies in `folder`; it ends with the block."""
    path = browser_path()
    assert path is not None
    asked_read, asked_write = os.pipe()
    answers_read, answers_write = os.pipe()
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    command = [path, *_FLAGS, *sandbox, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(
        [sys.executable, "-c", _LAUNCH, str(asked_read), str(answers_write), *command],
        pass_fds=(asked_read, answers_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(asked_read)
    os.close(answers_write)
    try:
        browser = Browser(asked_write, answers_read)
        yield browser
        with contextlib.suppress(AssertionError, OSError):
            browser.ask("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    finally:
        os.close(asked_write)
        os.close(answers_read)
        if process.poll() is None:
            process.kill()
        process.wait()
