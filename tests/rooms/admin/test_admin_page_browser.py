"""The page in a real browser: it stays current without a navigation, and is readable everywhere."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from declctl.admin import StaticToken, serve
from declctl.manifest.values import Address
from declctl.runtime.reloading.files import FileWatchStatus
from declctl.runtime.reporting.status import Condition, ControllerStatus, PluginStatus
from tests.browsing import Chromium, needs_chromium, started_chromium
from tests.rooms.admin.conftest import LOOPBACK, NOTIFY, PODS, STATUS, FakeRuntime, pod
from tests.rooms.kit.figure_examples import COUNTS, RATES

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = needs_chromium
TOKEN = "open sesame"
SECRET = "connection to s3cr3t failed"
EVERY = 2_000  # milliseconds between two views
HOSTILE = '<img src=x onerror="window.hacked=1">'
# Nothing is wrong: no alarm.
WELL = replace(
    STATUS,
    handlers=(replace(NOTIFY, zombies=0),),
    server=replace(STATUS.server, unreachable_since=None, error=None),
    plugins=(PluginStatus("slack", "1.2.0", "Ready"),),
    file_watch=FileWatchStatus(),
)
UNCLOSED = "handlers.py:1: '(' was never closed"
REFUSED = Condition("Reloaded", "False", "SyntaxError", UNCLOSED, datetime(2026, 1, 1, tzinfo=UTC))


class Scene:
    """A page of a browser, and the controller that it shows."""

    def __init__(self, page: "Page", runtime: FakeRuntime, url: str) -> None:
        self.page = page
        self.runtime = runtime
        self.url = url

    async def next_view(self) -> None:
        """Let two seconds pass for the page, and wait for its next view."""
        async with self.page.expect_response(lambda answer: answer.url == self.url) as answer:
            await self.page.clock.run_for(EVERY)
            looks = 0
            while not answer.is_done():
                await asyncio.sleep(0.05)
                looks += 1
                # The view before was on its way when the time passed: its two seconds began after that.
                if looks % 100 == 0:
                    await self.page.clock.run_for(EVERY)

    async def sees(self, selector: str, text: str) -> None:
        """Wait until an element has a text in it."""
        from playwright.async_api import expect

        await expect(self.page.locator(selector)).to_contain_text(text)

    async def misses(self, selector: str, text: str) -> None:
        """Wait until an element does not have a text in it."""
        from playwright.async_api import expect

        await expect(self.page.locator(selector)).not_to_contain_text(text)

    async def width(self) -> tuple[int, int]:
        """The width of the content, and of the window."""
        content, window = await self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        return content, window


Browse = Callable[..., None]


@pytest.fixture(name="chromium", scope="module")
def _chromium() -> Iterator[Chromium]:
    with started_chromium() as chromium:
        yield chromium


@pytest.fixture(name="browse")
def _browse(runtime: FakeRuntime, chromium: Chromium) -> Browse:
    """Runs a scenario with a page that is open, and a clock that stands. Nothing is wrong at first."""
    runtime.now = WELL

    def browse(
        scenario: Callable[[Scene], Awaitable[None]],
        *,
        token: str | None = None,
        stopped: bool = True,
        **context: Any,
    ) -> None:
        async def run() -> None:
            async with (
                serve(runtime, LOOPBACK, authorizer=StaticToken(token) if token else None) as bound,
                chromium.page(stopped=stopped, **context) as page,
            ):
                url = f"http://127.0.0.1:{bound.port}/"
                await page.goto(url)
                await scenario(Scene(page, runtime, url))

        chromium.run(run)

    return browse


def test_figures_change_and_nothing_else_does(browse: Browse) -> None:
    """A new figure appears without a navigation; the position and the focus stay as they are."""

    async def scenario(scene: Scene) -> None:
        page, runtime = scene.page, scene.runtime
        await page.evaluate("window.mark = document.querySelector('#handlers tr[data-key=notify]')")
        await page.locator("#resources td a").focus()
        await page.evaluate("scrollTo(0, 120)")
        runtime.say(handlers=(replace(WELL.handlers[0], succeeded=4321),))
        await scene.next_view()
        await scene.sees("#handlers tr[data-key=notify]", "4,321")
        assert await page.evaluate("mark === document.querySelector('#handlers tr[data-key=notify]')")
        assert await page.evaluate("scrollY") == 120
        assert await page.evaluate("document.activeElement.textContent") == "2"

    browse(scenario, viewport={"width": 1000, "height": 400})


def test_a_view_without_news_touches_no_element(browse: Browse) -> None:
    """Nothing flickers, and a screen reader has nothing to read, while nothing changes."""

    async def scenario(scene: Scene) -> None:
        await scene.next_view()  # the first one has the first rates
        await scene.sees("#live", "Live")
        await scene.page.evaluate(
            """() => {
              window.changes = [];
              const observer = new MutationObserver((found) => changes.push(...found.map((one) => one.type)));
              const what = {childList: true, characterData: true, attributes: true, subtree: true};
              for (const id of ["head", "alarms", "sections", "content", "connection"])
                observer.observe(document.getElementById(id), what);
            }"""
        )
        for _ in range(3):
            await scene.next_view()
        assert await scene.page.evaluate("changes") == []
        scene.runtime.say(generation=7)
        await scene.next_view()
        await scene.sees("#head", "generation 7")
        assert (
            await scene.page.evaluate("changes") == ["characterData"]
            or len(await scene.page.evaluate("changes")) <= 4
        )

    browse(scenario)


def test_rows_come_and_go_around_the_one_with_the_focus(browse: Browse) -> None:
    """A row before the focused one is added and removed, and the focus stays."""

    async def scenario(scene: Scene) -> None:
        page, runtime = scene.page, scene.runtime
        await page.locator("#resources tr[data-key=pods] a").focus()
        runtime.say(resources=(replace(PODS, name="nodes"), PODS))
        await scene.next_view()
        await scene.sees("#resources", "nodes")
        names = await page.locator("#resources tbody th .named").all_inner_texts()
        assert [name.split()[0] for name in names] == ["nodes", "pods"]
        assert await page.evaluate("document.activeElement.getAttribute('href')") == "cache/pods"
        runtime.say(resources=(PODS,), handlers=())
        await scene.next_view()
        await scene.misses("#resources", "nodes")
        assert await page.evaluate("document.activeElement.getAttribute('href')") == "cache/pods"
        assert await page.locator("#handlers").count() == 0
        assert await page.locator("nav a[href='#handlers']").count() == 0

    browse(scenario)


def test_rates_are_calls_per_second(browse: Browse) -> None:
    """Twenty calls in two seconds are ten in a second; a process that starts again begins anew."""

    async def scenario(scene: Scene) -> None:
        first = WELL.handlers[0]
        cell = "#handlers td[data-label='Calls per second']"
        await scene.sees(cell, "\N{EN DASH}")
        scene.runtime.say(handlers=(replace(first, succeeded=first.succeeded + 20),))
        await scene.next_view()
        await scene.sees(cell, "10")
        scene.runtime.say(handlers=(replace(first, succeeded=0),))
        await scene.next_view()
        await scene.sees(cell, "\N{EN DASH}")

    browse(scenario)


def test_a_refused_edit_is_red_at_the_top(browse: Browse) -> None:
    """It says what has happened and what to do, in words and in colour, until the edit is mended."""

    async def scenario(scene: Scene) -> None:
        page, runtime = scene.page, scene.runtime
        await scene.sees("#alarms", "No alarms")
        assert await page.title() == "pod-guard"
        runtime.say(conditions=(*WELL.conditions, REFUSED))
        runtime.told_history = {
            "attempts": [{"result": "Refused", "generation": 6, "suggestion": "close the `(`"}],
            "inMemory": [6],
        }
        await scene.next_view()
        await scene.sees("#alarms article.bad", "Alarm: The last edit was refused: SyntaxError")
        await scene.sees("#alarms article.bad", "'(' was never closed. Generation 6 goes on.")
        await scene.sees("#alarms article.bad", "What to do: Close the (.")
        assert await page.title() == "✗ 1 · pod-guard"
        red, green, blue = await _colour(page, "#alarms article.bad h2")
        assert red > 2 * max(green, blue)
        assert await page.get_attribute("#alarms", "aria-live") == "polite"
        runtime.say(conditions=WELL.conditions)
        await scene.next_view()
        await scene.sees("#alarms", "No alarms")

    browse(scenario)


async def _colour(page: "Page", selector: str) -> Sequence[int]:
    shown = await page.eval_on_selector(selector, "element => getComputedStyle(element).color")
    return [int(part) for part in shown.removeprefix("rgb(").removesuffix(")").split(",")]


def test_hostile_names_are_texts(browse: Browse, runtime: FakeRuntime) -> None:
    """Markup in names, errors and keys is shown as it is written, in the first view and in later ones."""
    failing = replace(WELL.handlers[0], name=HOSTILE, last_error=f"{HOSTILE}: </script><script>hacked=1")
    hostile = replace(
        WELL, name=HOSTILE, handlers=(failing,), resources=(replace(PODS, name=HOSTILE, error=HOSTILE),)
    )
    runtime.cache.objects = {f"default/{HOSTILE}": pod("default", HOSTILE, HOSTILE)}

    async def scenario(scene: Scene) -> None:
        page = scene.page
        for _ in range(2):
            assert await page.locator("h1").inner_text() == HOSTILE
            await scene.sees("#handlers tbody th", HOSTILE)
            await scene.sees("#handlers tbody", "</script><script>hacked=1")
            await scene.sees("#alarms", HOSTILE)
            assert await page.locator("img").count() == 0
            assert await page.evaluate("window.hacked") is None
            scene.runtime.say(handlers=(replace(hostile.handlers[0], succeeded=77),))
            await scene.next_view()
            await scene.sees("#handlers tbody", "77")
        scene.runtime.say(resources=(PODS,))
        await scene.next_view()
        await page.click("a[href='cache/pods']")
        await scene.sees("#reader li", f"default/{HOSTILE}")
        await page.click("#reader li a")
        await scene.sees("#reader pre", f'"name": "{HOSTILE.replace(chr(34), chr(92) + chr(34))}"')
        assert await page.locator("img").count() == 0
        assert await page.evaluate("window.hacked") is None

    runtime.now = hostile
    browse(scenario)


def test_a_token_shows_everything_and_is_kept_by_the_tab_alone(browse: Browse, runtime: FakeRuntime) -> None:
    """Without it there are types and counts; with it texts; a wrong one is refused and not kept."""
    secretive = (replace(NOTIFY, zombies=0, last_error=SECRET, last_error_type="OSError"),)

    async def scenario(scene: Scene) -> None:
        page = scene.page
        scene.runtime.say(handlers=secretive)
        await page.reload()
        await scene.sees("#handlers", "OSError")
        await scene.sees("#head", "Types and counts alone")
        assert SECRET not in await page.content()
        field = page.get_by_label("The token of this address")
        await field.fill("not this one")
        await page.keyboard.press("Enter")
        await scene.sees("#token-answer", "The token was refused")
        assert await page.evaluate("sessionStorage.length") == 0
        await field.fill(TOKEN)
        async with page.expect_request(lambda asked: asked.headers.get("authorization") == f"Bearer {TOKEN}"):
            await page.keyboard.press("Enter")
        await scene.sees("#handlers", SECRET)
        await scene.misses("#head", "Types and counts alone")
        assert await page.locator("#token").is_hidden()
        assert await page.evaluate("[localStorage.length, document.cookie, location.search]") == [0, "", ""]
        # Links to guarded paths carry the token, too.
        await page.click("a[href='cache/pods']")
        await scene.sees("#reader", "default/web-1")
        await page.click("#reader-close")
        await page.reload()
        await page.clock.run_for(0)
        await scene.sees("#handlers", SECRET)
        await page.click("#forget")
        await scene.misses("#handlers", SECRET)
        await scene.sees("#head", "Types and counts alone")
        assert await page.evaluate("sessionStorage.length") == 0

    browse(scenario, token=TOKEN)


def test_a_controller_that_is_gone_is_an_alarm_until_it_is_back(
    runtime: FakeRuntime, chromium: Chromium
) -> None:
    """The page says since when nothing answers, keeps what it has, and goes on by itself."""
    runtime.now = WELL

    async def run() -> None:
        async with chromium.page(stopped=True) as page:
            async with serve(runtime, LOOPBACK) as bound:
                url = f"http://127.0.0.1:{bound.port}/"
                await page.goto(url)
                scene = Scene(page, runtime, url)
                await scene.next_view()
                await scene.sees("#live", "Live")
            for _ in range(3):
                async with page.expect_event("requestfailed"):
                    await page.clock.run_for(EVERY)
            lost = "Alarm: The controller can't be reached since 2026-01-01 12:00:04 UTC"
            await scene.sees("#connection article.bad", lost)
            await scene.sees("#connection", "What to do")
            await scene.sees("#handlers", "notify")
            assert (await page.title()).startswith("✗")
            runtime.say(generation=9)
            async with serve(runtime, Address("127.0.0.1", bound.port)):
                await scene.next_view()
                await scene.sees("#head", "generation 9")
                assert await page.locator("#connection").inner_text() == ""
                assert await page.title() == "pod-guard"

    chromium.run(run)


def test_a_hidden_tab_asks_nothing(browse: Browse) -> None:
    """A forgotten tab costs the controller nothing, and is current as soon as it is looked at."""

    async def scenario(scene: Scene) -> None:
        page = scene.page
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await _set_hidden(page, hidden=True)
        await page.clock.run_for(60_000)
        assert asked == []
        scene.runtime.say(generation=8)
        await _set_hidden(page, hidden=False)
        await scene.sees("#head", "generation 8")

    browse(scenario)


async def _set_hidden(page: "Page", *, hidden: bool) -> None:
    # A headless browser shows every tab.
    await page.evaluate(
        "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )


def test_an_address_that_refuses_is_an_alarm_with_its_sentence(browse: Browse) -> None:
    """An answer such as 503 is shown with its reason."""

    async def scenario(scene: Scene) -> None:
        refusal = '{"error": "16 requests are being answered; ask again in a moment."}'
        await scene.page.route(scene.url, lambda route: route.fulfill(status=503, body=refusal))
        await scene.page.clock.run_for(EVERY)
        await scene.sees("#connection", "Alarm: The controller shows no state since 2026-01-01 12:00:02 UTC")
        await scene.sees("#connection", "It answers 503: 16 requests are being answered")

    browse(scenario)


def test_a_page_of_another_version_says_so(browse: Browse) -> None:
    """After an upgrade of declctl, an open page does not guess what its answers mean."""

    async def scenario(scene: Scene) -> None:
        await scene.page.route(scene.url, lambda route: route.fulfill(json={"build": "another", "head": 7}))
        await scene.page.clock.run_for(EVERY)
        await scene.sees("#connection", "another version")
        await scene.sees("#handlers", "notify")

    browse(scenario)


_LONG = "a_text_without_a_place_to_break_" * 6


def _everything() -> ControllerStatus:
    """A status in which everything is wrong, with long names."""
    return replace(
        STATUS,
        conditions=(*STATUS.conditions, REFUSED),
        handlers=(
            replace(NOTIFY, name=_LONG, dead_letters=7, last_error=_LONG, last_error_time=datetime.now(UTC)),
            NOTIFY,
        ),
        resources=(replace(PODS, name=_LONG, synced=False, error=_LONG, error_type="Forbidden"), PODS),
    )


@pytest.mark.parametrize("width", [320, 360, 414])
def test_a_phone_shows_one_column(browse: Browse, runtime: FakeRuntime, width: int) -> None:
    """Nothing is scrolled sideways, and each figure has the name of its column beside it."""

    async def scenario(scene: Scene) -> None:
        scene.runtime.now = _everything()
        await scene.page.reload()
        content, window = await scene.width()
        assert content <= window == width
        outside = await scene.page.evaluate(
            """[...document.querySelectorAll('main *, #alarms *')]
              .filter((each) => each.getBoundingClientRect().right > innerWidth + 1)
              .filter((each) => !each.closest('.unseen, thead')).map((each) => each.outerHTML.slice(0, 80))"""
        )
        assert outside == []
        label = "getComputedStyle(document.querySelector(\"td[data-label='Succeeded']\"), '::before').content"
        assert await scene.page.evaluate(label) == '"Succeeded"'

    browse(scenario, viewport={"width": width, "height": 740}, is_mobile=True, has_touch=True)


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(browse: Browse, scheme: str, width: int) -> None:
    """Axe finds no violation of WCAG 2.2 AA: contrasts, names, landmarks, headings, tables."""
    from axe_playwright_python.async_playwright import Axe

    async def scenario(scene: Scene) -> None:
        scene.runtime.now = _everything()
        await scene.page.reload()
        found = await Axe().run(scene.page)
        assert found.violations_count == 0, found.generate_report()
        background = await scene.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") is (scheme == "light")
        await scene.page.evaluate("scrollTo(0, 0)")
        await scene.page.locator("a[href='cache/pods']").click()
        await scene.sees("#reader", "keys")
        found = await Axe().run(scene.page)
        assert found.violations_count == 0, found.generate_report()

    browse(scenario, viewport={"width": width, "height": 900}, color_scheme=scheme, stopped=False)


def test_the_page_works_by_keyboard(browse: Browse) -> None:
    """The first stop skips the head; a list of keys opens by Enter, and Escape leads back to its link."""

    async def scenario(scene: Scene) -> None:
        page = scene.page
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == "Skip to the sections"
        await page.keyboard.press("Enter")
        assert await page.evaluate("location.hash") == "#content"
        await page.locator("a[href='cache/pods']").focus()
        await page.keyboard.press("Enter")
        await scene.sees("#reader", "team-a/web-2")
        await page.keyboard.press("Escape")
        await page.click("text=All figures of handlers")
        await scene.sees("#reader pre", '"name": "notify"')
        await scene.misses("#reader pre", "bundleHash")
        await page.keyboard.press("Escape")
        await page.locator("a[href='cache/pods']").focus()
        await page.keyboard.press("Enter")
        await page.keyboard.press("Escape")
        assert await page.locator("#reader").is_hidden()
        assert await page.evaluate("document.activeElement.getAttribute('href')") == "cache/pods"

    browse(scenario)


def test_without_a_script_the_page_has_everything(browse: Browse) -> None:
    """Where scripts are switched off, the whole state is there, and the browser asks for it again."""

    async def scenario(scene: Scene) -> None:
        for selector, text in (("h1", "pod-guard"), ("#alarms", "No alarms"), ("#handlers", "12")):
            await scene.sees(selector, text)
        assert await scene.page.locator("#token").is_hidden()
        assert await scene.page.locator("meta[http-equiv=refresh]").count() == 1
        await scene.page.click("a[href='cache/pods']")
        assert "team-a/web-2" in await scene.page.content()

    browse(scenario, java_script_enabled=False, stopped=False)


def test_the_script_writes_figures_as_the_commands_do(browse: Browse):
    """A rate on the page is the one of `declctl top`, and a number of keys that of `declctl status`."""

    async def scenario(scene: Scene) -> None:
        rates = await scene.page.evaluate("given => given.map(rateText)", list(RATES))
        assert dict(zip(RATES, rates, strict=True)) == RATES
        counts = await scene.page.evaluate("given => given.map(countText)", list(COUNTS))
        assert dict(zip(COUNTS, counts, strict=True)) == COUNTS

    browse(scenario)
