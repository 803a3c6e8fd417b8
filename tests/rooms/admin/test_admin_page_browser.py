"""The page in a real browser: it stays current without a navigation, and is readable everywhere."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import wraps
from inspect import Signature, signature
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from declctl.admin import StaticToken, serve
from declctl.kit import ManualClock
from declctl.manifest.model import HandlerSpec, ResourceSpec
from declctl.manifest.values import Address
from declctl.objects import GroupVersionKind
from declctl.runtime.reporting.status import ControllerCondition
from declctl.writes import KindWrites
from tests.browsing import Chromium, needs_chromium, started_chromium
from tests.rooms.admin.conftest import HEALTHY, LOOPBACK, NOTIFY, PODS, STATUS, WELL, FakeRuntime, pod
from tests.rooms.kit.figure_examples import COUNTS

if TYPE_CHECKING:
    from playwright.async_api import LocatorAssertions, Page

pytestmark = [needs_chromium, pytest.mark.thorough]
TOKEN = "open sesame"
SECRET = "connection to s3cr3t failed"
EVERY = 2_000  # milliseconds between two views
HOSTILE = '<img src=x onerror="window.hacked=1">'
UNCLOSED = "handlers.py:1: '(' was never closed"
REFUSED = ControllerCondition("Reloaded", "False", "SyntaxError", UNCLOSED, datetime(2026, 1, 1, tzinfo=UTC))


class Scene:
    """A page of a browser, and the controller that it shows."""

    def __init__(self, page: "Page", runtime: FakeRuntime, url: str, clock: ManualClock) -> None:
        self.page = page
        self.runtime = runtime
        self.url = url
        self.clock = clock  # of the process

    async def sample(self, *, calls: int = 0, failed: int = 0, **changes: Any) -> None:
        """Let ten seconds pass for the process, with calls of its first handler."""
        first, *others = self.runtime.now.handlers
        first = replace(first, succeeded=first.succeeded + calls, failed=first.failed + failed)
        self.runtime.say(**{"handlers": (first, *others), **changes})
        await self.clock.advance(10.0)

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
        await self._expect(selector).to_contain_text(text)

    async def misses(self, selector: str, text: str) -> None:
        await self._expect(selector).not_to_contain_text(text)

    def _expect(self, selector: str) -> "LocatorAssertions":
        from playwright.async_api import expect

        return expect(self.page.locator(selector))


@pytest.fixture(name="chromium", scope="module")
def _chromium() -> Iterator[Chromium]:
    with started_chromium() as chromium:
        yield chromium


def browsed(
    *, token: str | None = None, stopped: bool = True, **context: Any
) -> Callable[[Callable], Callable]:
    """Runs a test with a page that is open, and a clock that stands. Nothing is wrong at first."""

    def test_of(scenario: Callable[..., Awaitable[None]]) -> Callable:
        @wraps(scenario)
        def test(runtime: FakeRuntime, chromium: Chromium, **arguments: object) -> None:
            runtime.now = WELL

            async def run() -> None:
                clock, authorizer = ManualClock(), StaticToken(token) if token else None
                async with (
                    serve(runtime, LOOPBACK, authorizer=authorizer, clock=clock) as bound,
                    chromium.page(stopped=stopped, **context) as page,
                ):
                    url = f"http://127.0.0.1:{bound.port}/"
                    await page.goto(url)
                    await scenario(Scene(page, runtime, url, clock), **arguments)

            chromium.run(run)

        # The fixtures that pytest has to give: those of `test`, and what the scenario takes beside the scene.
        first, second, _ = signature(test, follow_wrapped=False).parameters.values()
        _, *others = signature(scenario).parameters.values()
        test.__signature__ = Signature([first, second, *others])
        return test

    return test_of


@browsed(viewport={"width": 1000, "height": 400})
async def test_figures_change_and_nothing_else_does(scene: Scene) -> None:
    """A new figure appears without a navigation; the position and the focus stay as they are."""
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


@browsed()
async def test_a_view_without_news_touches_no_element(scene: Scene) -> None:
    """Nothing flickers, and a screen reader has nothing to read, while nothing changes."""
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
    assert len(await scene.page.evaluate("changes")) <= 4


@browsed()
async def test_rows_come_and_go_around_the_one_with_the_focus(scene: Scene) -> None:
    """A row before the focused one is added and removed, and the focus stays."""
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


DEGRADED = ControllerCondition("Degraded", "True", "ResourceError", "", datetime(2026, 1, 1, tzinfo=UTC))


@browsed()
async def test_a_slow_minute_is_seen_by_whoever_opens_the_page_later(scene: Scene) -> None:
    """Each figure has its line of the last 15 minutes, with marks; an open page draws the next sample."""
    page, row = scene.page, "#handlers tr[data-key=notify]"
    for calls in (20, 600, 20):
        await scene.sample(calls=calls)
    turned = replace(DEGRADED, last_transition_time=scene.clock.now())
    await scene.sample(calls=20, failed=10, condition_changes=(turned,))
    await page.reload()
    line = f"{row} td[data-label=Calls] .line"
    await scene.sees(f"{row} td[data-label=Calls]", "3.0/s")
    await scene.sees(f"{row} td[data-label=Calls]", "↑ 60/s")
    assert await page.get_attribute(line, "aria-label") == (
        "Calls of notify in the last 15 minutes: 2.0/s to 60/s"
    )
    heights = await _heights(page, f"{line} .curve")
    assert len(heights) == 4
    assert min(heights) == heights[1] == 2.0
    assert heights[0] == heights[2] > heights[3] > heights[1]
    await scene.sees("#recent .marks", "Degraded is True: ResourceError")
    # All lines have one time: the mark stands at one place in each of them, and is red.
    await page.wait_for_selector(".line .mark.bad path.hit", state="attached")
    marks = await page.locator(".line .mark.bad path.hit").evaluate_all(
        "all => all.map(e => e.getAttribute('d'))"
    )
    assert len(marks) > 5
    assert len(set(marks)) == 1
    title = await page.locator(f"{line} .mark title").first.text_content()
    assert title == "00:00:30 Degraded is True: ResourceError"
    colours = [
        await _colour(page, f"{line} {part}", "stroke") for part in (".mark.bad path", ".curve.faults")
    ]
    assert colours[0] == colours[1] != await _colour(page, f"{line} .curve", "stroke")
    await page.evaluate(f"window.kept = document.querySelector('{line}')")
    await scene.sample(calls=1200)
    async with page.expect_response(lambda answer: answer.url.endswith("/figures")):
        await scene.next_view()
    await page.wait_for_function(
        f"document.querySelector('{line} .curve').getAttribute('d').split('L').length === 5"
    )
    assert await page.evaluate(f"kept === document.querySelector('{line}')")


async def _heights(page: "Page", selector: str) -> list[float]:
    """The places of the points of a line, from the top."""
    path = await page.get_attribute(selector, "d")
    return [float(point.split()[1]) for point in re.split("[ML]", path or "")[1:]]


async def _colour(page: "Page", selector: str, name: str) -> str:
    return await page.locator(selector).first.evaluate(f"each => getComputedStyle(each).{name}")


DECLARED = {
    "resources": (ResourceSpec("pods", "v1", "Pod"), ResourceSpec("settings", "v1", "ConfigMap")),
    "handlers": (
        HandlerSpec("notify", "pods", applies=(GroupVersionKind.of("v1", "ConfigMap"),), status=True),
        HandlerSpec("audit", "pods", include_snapshots_from=("settings",)),
    ),
}


def _written(count: int) -> tuple[KindWrites, ...]:
    kinds = ("v1", "ConfigMap", "apply"), ("events.k8s.io/v1", "Event", "create")
    return tuple(KindWrites("notify", GroupVersionKind.of(*kind), verb, count) for *kind, verb in kinds)


@browsed(viewport={"width": 1200, "height": 900})
async def test_the_graph_shows_the_way_of_changes_with_their_counts(scene: Scene) -> None:
    """From resources over informers and handlers to what these write, also if they do not declare it."""
    page, runtime = scene.page, scene.runtime
    runtime.declared = DECLARED
    idle = replace(HEALTHY, name="audit", succeeded=0, failed=0, retried=0)
    runtime.say(handlers=(HEALTHY, idle), kind_writes=_written(0))
    await scene.sample()
    await page.reload()
    names = await page.locator(".graph .box .name").all_text_contents()
    assert sorted(names) == sorted(
        ["pods", "settings", "Pod", "ConfigMap", "notify", "audit", "ConfigMap", "Pod status", "Event"]
    )
    await page.evaluate("window.kept = document.querySelector(\".box[data-key='handler notify']\")")
    failing = replace(runtime.now.handlers[0], dead_letters=3, succeeded=29)
    runtime.say(handlers=(failing, runtime.now.handlers[1]), kind_writes=_written(10))
    await scene.clock.advance(5.0)
    await scene.next_view()
    # In the last 15 seconds: 20 calls, and 10 writes of each kind.
    for ends, count in (
        ("informer pods → handler notify", "80/min"),
        ("informer pods → handler audit", "0/min"),
        ("handler notify → write v1 ConfigMap", "40/min"),
        ("handler notify → write events.k8s.io/v1 Event", "40/min"),
    ):
        await scene.sees(f".count[data-key='count {ends}']", count)
    assert await page.locator(".count[data-key='count informer settings → handler audit']").count() == 0
    await scene.sees(".box.bad[data-key='handler notify']", "✗ failing")
    await scene.sees(".box.good[data-key='handler audit']", "✓ 4 waiting")
    assert await page.evaluate("kept === document.querySelector(\".box[data-key='handler notify']\")")
    boxes = await page.locator(".graph .box").evaluate_all(
        "all => all.map(e => e.getBoundingClientRect().toJSON())"
    )
    for one, other in combinations(boxes, 2):
        apart = one["right"] <= other["left"] or other["right"] <= one["left"]
        assert apart or one["bottom"] <= other["top"] or other["bottom"] <= one["top"]


@browsed()
async def test_a_refused_edit_is_red_at_the_top(scene: Scene) -> None:
    """It says what has happened and what to do, in words and in colour, until the edit is mended."""
    page, runtime = scene.page, scene.runtime
    await scene.sees("#alarms", "No alarms")
    assert await page.title() == "pod-guard"
    runtime.say(conditions=(*WELL.conditions, REFUSED))
    runtime.told_history = {
        "attempts": [
            {
                "result": "Refused",
                "generation": 6,
                "suggestion": "close the `(`",
                "time": "2026-01-01T00:00:00Z",
            }
        ],
        "generation": 6,
        "kept": [],
    }
    await scene.next_view()
    await scene.sees(
        "#alarms article.bad", "Alarm: The last edit was refused: SyntaxError, at 2026-01-01 00:00:00 UTC"
    )
    await scene.sees("#alarms article.bad", "'(' was never closed. Generation 6 goes on.")
    await scene.sees("#alarms article.bad", "What to do: Close the (.")
    assert await page.title() == "✗ 1 · pod-guard"
    colour = await page.eval_on_selector("#alarms article.bad h2", "each => getComputedStyle(each).color")
    red, green, blue = (int(part) for part in re.findall(r"\d+", colour))
    assert red > 2 * max(green, blue)
    assert await page.get_attribute("#alarms", "aria-live") == "polite"
    runtime.say(conditions=WELL.conditions)
    await scene.next_view()
    await scene.sees("#alarms", "No alarms")


@browsed()
async def test_hostile_names_are_texts(scene: Scene) -> None:
    """Markup in names, errors and keys is shown as it is written, in the first view and in later ones."""
    page, runtime = scene.page, scene.runtime
    failing = replace(WELL.handlers[0], name=HOSTILE, last_error=f"{HOSTILE}: </script><script>hacked=1")
    runtime.say(name=HOSTILE, handlers=(failing,), resources=(replace(PODS, name=HOSTILE, error=HOSTILE),))
    runtime.declared = {
        "resources": (ResourceSpec(HOSTILE, "v1", HOSTILE),),
        "handlers": (HandlerSpec(HOSTILE, HOSTILE),),
    }
    await scene.sample()
    runtime.cache.objects = {f"default/{HOSTILE}": pod("default", HOSTILE, HOSTILE)}
    await page.reload()
    for _ in range(2):
        assert await page.locator("h1").inner_text() == HOSTILE
        await scene.sees("#handlers tbody th", HOSTILE)
        await scene.sees("#handlers tbody", "</script><script>hacked=1")
        await scene.sees("#alarms", HOSTILE)
        await scene.sees(".graph .box[data-key^='handler'] title", HOSTILE)
        await page.wait_for_selector(".line svg .curve >> nth=3", state="attached")  # drawn after the view
        assert await page.locator("img").count() == 0
        assert await page.evaluate("window.hacked") is None
        runtime.say(handlers=(replace(failing, succeeded=77),))
        await scene.next_view()
        await scene.sees("#handlers tbody", "77")
    runtime.say(resources=(PODS,))
    await scene.next_view()
    await page.click("a[href='cache/pods']")
    await scene.sees("#reader li", f"default/{HOSTILE}")
    await page.click("#reader li a")
    await scene.sees("#reader pre", f'"name": "{HOSTILE.replace(chr(34), chr(92) + chr(34))}"')
    assert await page.locator("img").count() == 0
    assert await page.evaluate("window.hacked") is None


@browsed(token=TOKEN)
async def test_a_token_shows_everything_and_is_kept_by_the_tab_alone(scene: Scene) -> None:
    """Without it there are types and counts; with it texts; a wrong one is refused and not kept."""
    page = scene.page
    scene.runtime.say(handlers=(replace(WELL.handlers[0], last_error=SECRET, last_error_type="OSError"),))
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
                scene = Scene(page, runtime, url, ManualClock())
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


@browsed()
async def test_a_hidden_tab_asks_nothing(scene: Scene) -> None:
    """A forgotten tab costs the controller nothing, and is current as soon as it is looked at."""
    page = scene.page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    # A headless browser shows every tab.
    set_hidden = (
        "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange')); }"
    )
    await page.evaluate(set_hidden, True)
    await page.clock.run_for(60_000)
    assert asked == []
    scene.runtime.say(generation=8)
    await page.evaluate(set_hidden, False)
    await scene.sees("#head", "generation 8")


@browsed()
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            {"status": 503, "json": {"error": "ask again in a moment."}},
            [
                "Alarm: The controller shows no state since 2026-01-01 12:00:02 UTC",
                "It answers 503: ask again in a moment",
            ],
        ),
        # After an upgrade of declctl, an open page does not guess what its answers mean.
        ({"json": {"build": "another", "head": 7}}, ["another version"]),
    ],
)
async def test_an_odd_answer_is_told(scene: Scene, answer: dict[str, Any], words: list[str]) -> None:
    """A refusal with its reason; what the page had stays."""
    await scene.page.route(scene.url, lambda route: route.fulfill(**answer))
    await scene.page.clock.run_for(EVERY)
    for text in words:
        await scene.sees("#connection", text)
    await scene.sees("#handlers", "notify")


_LONG = "a_text_without_a_place_to_break_" * 6


async def _show_everything(scene: Scene) -> None:
    """Let everything be wrong, with long names and lines, and load the page again."""
    kind = GroupVersionKind.of("example.dev/v1", "A" * 63)
    scene.runtime.declared = {
        "resources": (ResourceSpec(_LONG, "v1", "Pod"), ResourceSpec("pods", "v1", "Pod")),
        "handlers": (HandlerSpec(_LONG, _LONG, applies=(kind,)), HandlerSpec("notify", "pods")),
    }
    scene.runtime.now = replace(
        STATUS,
        conditions=(*STATUS.conditions, REFUSED),
        handlers=(
            replace(NOTIFY, name=_LONG, dead_letters=7, last_error=_LONG, last_error_time=datetime.now(UTC)),
            NOTIFY,
        ),
        resources=(replace(PODS, name=_LONG, synced=False, error=_LONG, error_type="Forbidden"), PODS),
        condition_changes=(DEGRADED,),
    )
    for _ in range(3):
        await scene.sample(calls=30, failed=5)
    await scene.page.reload()
    await scene.page.wait_for_selector(".line svg .curve.faults", state="attached")


@browsed(is_mobile=True, has_touch=True)
@pytest.mark.parametrize("width", [320, 390])
async def test_a_phone_shows_one_column(scene: Scene, width: int) -> None:
    """Nothing but the graph is scrolled sideways, and each figure has the name of its column beside it."""
    await scene.page.set_viewport_size({"width": width, "height": 740})
    await _show_everything(scene)
    content = await scene.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert content[0] <= content[1] == width
    outside = await scene.page.evaluate(
        """[...document.querySelectorAll('main *, #alarms *')]
          .filter((each) => each.getBoundingClientRect().right > innerWidth + 1)
          .filter((each) => !each.closest('.unseen, thead, .graph'))
          .map((each) => each.outerHTML.slice(0, 80))"""
    )
    assert outside == []
    picture = await scene.page.evaluate(
        "(({scrollWidth, clientWidth}) => [scrollWidth, clientWidth])(document.querySelector('.picture'))"
    )
    assert picture[0] > 2 * picture[1]
    label = "getComputedStyle(document.querySelector(\"td[data-label='Waiting']\"), '::before').content"
    assert await scene.page.evaluate(label) == '"Waiting"'


@browsed(stopped=False)
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_is_accessible(scene: Scene, scheme: Any, width: int) -> None:
    """Axe finds no violation of WCAG 2.2 AA: contrasts, names, landmarks, headings, tables."""
    from axe_playwright_python.async_playwright import Axe

    page = scene.page
    await page.set_viewport_size({"width": width, "height": 900})
    await page.emulate_media(color_scheme=scheme)
    await _show_everything(scene)
    found = await Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is (scheme == "light")
    await page.evaluate("scrollTo(0, 0)")
    await page.locator("a[href='cache/pods']").click()
    await scene.sees("#reader", "keys")
    found = await Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@browsed()
async def test_the_page_works_by_keyboard(scene: Scene) -> None:
    """The first stop skips the head; a list of keys opens by Enter, and Escape leads back to its link."""
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


@browsed(java_script_enabled=False, stopped=False)
async def test_without_a_script_the_page_has_everything(scene: Scene) -> None:
    """Where scripts are switched off, the whole state is there, and the browser asks for it again."""
    for selector, text in (("h1", "pod-guard"), ("#alarms", "No alarms"), ("#handlers", "9 succeeded")):
        await scene.sees(selector, text)
    assert await scene.page.locator("#token").is_hidden()
    assert await scene.page.locator("meta[http-equiv=refresh]").count() == 1
    await scene.page.click("a[href='cache/pods']")
    assert "team-a/web-2" in await scene.page.content()


@browsed()
async def test_the_script_writes_figures_as_the_commands_do(scene: Scene) -> None:
    """A number of keys is that of `declctl status`."""
    counts = await scene.page.evaluate("given => given.map(countText)", list(COUNTS))
    assert dict(zip(COUNTS, counts, strict=True)) == COUNTS
