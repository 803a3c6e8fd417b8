"""The page of a running controller in a real browser: what a person sees while something fails."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundles import telling
from clusters import Cluster
from processes import Declctl
from rest import pod

from declctl.testing import BundleDir
from tests.browsing import Chromium, needs_chromium, started_chromium

pytestmark = needs_chromium
_BROKEN = "def tell(change:\n"
_FAILING = "def tell(change):\n    raise KeyError('no <b>team</b>')\n"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """One browser for all tests of this file."""
    with started_chromium() as chromium:
        yield chromium


@pytest.fixture
def bundle(tmp_path: Path, namespace: str) -> BundleDir:
    """A handler that tells every change of the pods of the test's namespace."""
    return telling(tmp_path / "bundle", namespace=namespace)


@pytest.mark.guarantee("G25")
def test_a_broken_edit_is_red_until_it_is_mended(
    cluster: Cluster, bundle: BundleDir, namespace: str, chromium: Chromium
) -> None:
    """One view sees a refused edit, its mending, a handler that fails, and the end of the process."""
    from playwright.async_api import expect

    cluster.rest.create(pod("first", namespace))
    text = (bundle.path / "handlers.py").read_text("utf-8")

    async def scenario(declctl: Declctl) -> None:
        async with chromium.page() as page:
            await page.goto(declctl.admin())
            await page.evaluate("window.mark = 1")
            alarm = page.locator("#alarms article.bad")
            await expect(page.locator("#alarms")).to_contain_text("No alarms")
            await expect(page.locator("#resources tr[data-key=pods]")).to_contain_text("✓ synced")
            await expect(page.locator("#indexes")).to_contain_text("spec.nodeName")

            bundle.write("handlers.py", _BROKEN)
            await expect(alarm).to_contain_text("Alarm: The last edit was refused: SyntaxError")
            await expect(alarm).to_contain_text("handlers.py:1: this is not valid Python")
            await expect(alarm).to_contain_text("Generation 1 goes on")
            await expect(alarm).to_contain_text("What to do:")
            await expect(page).to_have_title("✗ 1 · e2e")
            newest = page.locator("#reloads tbody tr").first
            await expect(newest).to_contain_text("✗ Refused")

            bundle.write("handlers.py", f"{text}\n# mended\n")
            await expect(page.locator("#alarms")).to_contain_text("No alarms")
            await expect(page.locator("#head")).to_contain_text("generation 2")
            await expect(newest).to_contain_text("~handler tell (code)")
            await expect(newest).to_contain_text("2 (runs)")

            bundle.write("handlers.py", _FAILING)
            await expect(page.locator("#head")).to_contain_text("generation 3")
            await asyncio.to_thread(cluster.rest.create, pod("second", namespace))
            await expect(alarm).to_contain_text("The handler tell fails")
            await expect(alarm).to_contain_text(f"{namespace}/second: KeyError: 'no <b>team</b>'")
            await expect(page.locator("#handlers tr[data-key=tell]")).to_contain_text("✗ fails")

            await asyncio.to_thread(declctl.stop)
            gone = page.locator("#connection article.bad")
            since = re.compile(r"can't be reached since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
            await expect(gone).to_contain_text(since)
            await expect(page.locator("#head")).to_contain_text("generation 3")
            assert await page.evaluate("window.mark") == 1

    with Declctl(bundle.path, kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        chromium.run(lambda: scenario(declctl))
