"""Chromium for tests of the page at the admin address.

A browser of this machine is used, and none is downloaded. Without one, or without playwright, a test is
skipped. If DECLCTL_TEST_CHROMIUM names the program of a browser, as in CI, the test fails instead.
"""

import asyncio
import importlib.util
import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_NAMED = os.environ.get("DECLCTL_TEST_CHROMIUM")
_PROGRAM = _NAMED or next(filter(None, map(shutil.which, _PROGRAMS)), None)
_SECONDS = 240.0  # for everything that one test does with a browser
_MILLISECONDS = 60_000  # for one step of it
START = datetime(2026, 1, 1, 12, tzinfo=UTC)  # of the clock of a page that is `stopped`
# What Chromium says of an answer with the status 401, and of a refused connection. Tests cause both.
_EXPECTED = "Failed to load resource"


def _lacking() -> str:
    if _PROGRAM is None:
        return "no Chromium here (`apt-get install chromium`; DECLCTL_TEST_CHROMIUM names another one)"
    if any(importlib.util.find_spec(name) is None for name in ("playwright", "axe_playwright_python")):
        return "no playwright here (`make browser` installs it)"
    return ""


needs_chromium = pytest.mark.skipif(bool(_lacking()) and not _NAMED, reason=_lacking())


class Chromium:
    """A browser that several tests share. Each page that it opens has cookies and storage of its own."""

    def __init__(self, browser: "Browser", runner: asyncio.Runner) -> None:
        self._browser = browser
        self._runner = runner

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Run a scenario on the loop of the browser, with a limit on its time."""

        async def limited() -> None:
            async with asyncio.timeout(_SECONDS):
                await scenario()

        self._runner.run(limited())

    @asynccontextmanager
    async def page(self, *, stopped: bool = False, **context: Any) -> AsyncGenerator["Page", None]:
        """An empty page. Errors in its console, and scripts that fail, fail the test.

        `stopped`: its clock stands at `START`, and moves by `page.clock.run_for(milliseconds)` alone.
        `context` are options of playwright's `new_context`: viewport, color_scheme, java_script_enabled.
        """
        faults: list[str] = []
        alone = await self._browser.new_context(**context)
        try:
            page = await alone.new_page()
            page.set_default_timeout(_MILLISECONDS)
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
            if stopped:
                await page.clock.install(time=START - timedelta(hours=1))
                await page.clock.pause_at(START)
            yield page
        finally:
            await alone.close()
        assert [fault for fault in faults if _EXPECTED not in fault] == []


@contextmanager
def started_chromium() -> Iterator[Chromium]:
    """A browser that runs inside the `with` block."""
    from playwright.async_api import async_playwright, expect

    expect.set_options(timeout=_MILLISECONDS)
    with asyncio.Runner() as runner:  # one loop for all tests: the browser belongs to it
        started = async_playwright()
        playwright = runner.run(started.__aenter__())
        try:
            # Chromium's sandbox needs rights that a container seldom has. Tests open their own pages alone.
            launched = playwright.chromium.launch(executable_path=_PROGRAM, args=["--no-sandbox"])
            browser = runner.run(launched)
            try:
                yield Chromium(browser, runner)
            finally:
                runner.run(browser.close())
        finally:
            runner.run(started.__aexit__())
