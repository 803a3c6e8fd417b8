"""Tokens of Kubernetes: the API server says whose they are and what they may do; nothing else opens."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from declctl.admin import StaticToken, front, serve
from declctl.admin.authorization import AccessVerdict
from declctl.admin.reviews import REVIEW_SECONDS, RecentAnswers, ReviewedToken
from declctl.errors import Forbidden, Unreachable
from declctl.kit import ManualClock, SystemClock
from declctl.manifest.model import AdminAuthorization, AdminSpec
from declctl.manifest.values import Address
from declctl.testing import Logged
from tests.rooms.admin.conftest import LOOPBACK


class Reviewer:
    """An API server that knows one token, and the rights of its user."""

    def __init__(self) -> None:
        self.rights = {("get", "/cache/pods"), ("get", "/status")}
        self.asked: list[dict[str, Any]] = []
        self.fault: Exception | None = None
        self.answer: dict[str, Any] | None = None  # instead of its own
        self.on_its_way: Callable[[], object] = lambda: None  # called before an answer comes in

    async def request_json(self, method: str, path: str, *, body: Any = None) -> dict[str, Any]:
        assert method == "POST"
        self.asked.append({"path": path, **body})
        self.on_its_way()
        if self.fault is not None:
            raise self.fault
        if self.answer is not None:
            return self.answer
        spec = body["spec"]
        if body["kind"] == "TokenReview":
            assert path == "/apis/authentication.k8s.io/v1/tokenreviews"
            if spec["token"] != "of-reader":
                return {"status": {"error": "invalid bearer token"}}
            user = {"username": "reader", "groups": ["g"], "uid": "7", "extra": {"a": ["b"]}}
            return {"status": {"authenticated": True, "user": user}}
        assert path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        assert (spec["user"], spec["groups"], spec["uid"]) == ("reader", ["g"], "7")
        assert spec["extra"] == {"a": ["b"]}
        asked = spec["nonResourceAttributes"]
        return {"status": {"allowed": (asked["verb"], asked["path"]) in self.rights}}


class Scene:
    """An authorizer with its reviewer, on a clock of its own."""

    def __init__(self) -> None:
        self.clock, self.server, self.log = ManualClock(), Reviewer(), Logged()
        self.authorizer = ReviewedToken(self.server, clock=self.clock, log=self.log)

    def decide(
        self, token: str = "of-reader", verb: str = "get", path: str = "/cache/pods", client: str = "10.0.0.7"
    ) -> AccessVerdict:
        return asyncio.run(self.authorizer.decide(token, verb, path, client=client)).verdict

    def reviews(self, **of_number: Callable[[int], str]) -> int:
        """How many reviews a thousand requests lead to."""
        before = len(self.server.asked)
        for number in range(1000):
            verdict = self.decide(**{name: given(number) for name, given in of_number.items()})
            assert verdict is not AccessVerdict.ALLOWED
        return len(self.server.asked) - before


@pytest.fixture(name="scene")
def _scene() -> Scene:
    return Scene()


async def test_reads_and_writes_are_apart(runtime, http: Callable):
    """A dashboard may have a token that shows objects and reloads nothing."""
    runtime.client = Reviewer()
    runtime.admin = AdminSpec(authorization=AdminAuthorization.KUBERNETES)
    authorizer = ReviewedToken(runtime.client, clock=SystemClock())
    async with serve(runtime, LOOPBACK, authorizer=authorizer) as bound:
        given = {"Authorization": "Bearer of-reader"}

        async def status(path: str, method: str = "GET", **headers: str) -> int:
            return (await http(bound, path, method=method, headers=headers)).status

        refused = await http(bound, "/-/reload", method="POST", headers=given)
        assert refused.json["error"].startswith("reader may not post /-/reload; a ClusterRole with")
        assert [
            await status("/cache/pods", **given),
            await status("/cache/pods", "HEAD", **given),
            refused.status,
            await status("/cache/pods"),  # on loopback, too
            await status("/cache/pods", Authorization="Bearer of-nobody"),
            await status("/healthz"),
            await status("/status"),
            await status("/status", **given),
        ] == [200, 200, 403, 401, 401, 200, 200, 200]
    assert runtime.reloads == 0


def test_an_answer_counts_for_a_short_time(scene):
    """A page that refreshes itself is no load for the API server; a right that is taken away ends soon."""
    assert [scene.decide() for _ in range(100)] == [AccessVerdict.ALLOWED] * 100
    assert len(scene.server.asked) == 2
    scene.server.rights.clear()
    scene.clock.set(REVIEW_SECONDS - 0.01)
    assert scene.decide() is AccessVerdict.ALLOWED
    scene.clock.set(REVIEW_SECONDS)
    assert scene.decide() is AccessVerdict.FORBIDDEN
    scene.server.rights.add(("get", "/cache/pods"))
    scene.clock.set(2 * REVIEW_SECONDS)
    assert scene.decide() is AccessVerdict.ALLOWED
    # A remembered answer opens nothing else.
    assert scene.decide(verb="post") is AccessVerdict.FORBIDDEN
    assert scene.decide(path="/cache/pods/a") is AccessVerdict.FORBIDDEN
    assert scene.decide(token="of-reader2") is AccessVerdict.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Unreachable("connection refused"), "connection refused"),
        (Forbidden(403, "Forbidden", "tokenreviews is forbidden"), "system:auth-delegator"),
        (TimeoutError(), "has not answered within 5 s"),
    ],
)
def test_without_an_answer_nothing_is_allowed(scene, fault: Exception, told: str):
    """While the API server is away, the address is closed, and the log says why; then it opens again."""
    scene.server.fault = fault
    assert scene.decide() is AccessVerdict.UNDECIDED
    scene.server.fault = None
    assert scene.decide() is AccessVerdict.ALLOWED
    away, back = scene.log.events()
    assert back == "admin address: tokens can be reviewed again"
    assert told in away


async def test_the_text_of_the_api_server_is_for_the_log_alone(runtime, http: Callable):
    """It may name namespaces, users and addresses, and any client can send a token."""
    reviewer, log = Reviewer(), Logged()
    reviewer.fault = Forbidden(403, "Forbidden", "the account team-a/robot of 10.1.2.3 may not")
    authorizer = ReviewedToken(reviewer, clock=ManualClock(), log=log)
    async with serve(runtime, LOOPBACK, authorizer=authorizer, log=log) as bound:
        for path in ("/cache/pods", "/status", "/"):
            refused = await http(bound, path, headers={"Authorization": "Bearer of-reader"})
            assert refused.status == 503
            assert "robot" not in refused.text
            assert "the log of the process says why" in refused.text
    assert "the account team-a/robot of 10.1.2.3 may not" in "".join(log.events())


def test_a_fault_is_logged_once_a_minute_and_counted(scene):
    """A page that asks each two seconds fills no log while the API server is away."""
    scene.server.fault = Unreachable("connection refused " + "x" * 10_000)
    for _ in range(100):
        scene.decide()
        scene.clock.set(1)
    scene.server.fault = Forbidden(403, "Forbidden", "no")
    scene.decide()  # another fault is logged at once
    first, second, third = scene.log.events()
    assert first.startswith("admin address: tokens can't be reviewed, and are refused: connection refused x")
    assert len(first) < 1000
    assert second.endswith("; 59 more reviews have failed since the last line")
    assert "system:auth-delegator" in third


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"status": "yes"},
        {"status": {"authenticated": True}},
        {"status": {"authenticated": True, "user": {"username": ""}, "allowed": True}},
        {"status": {"authenticated": True, "user": "admin", "allowed": True}},
        {"status": {"authenticated": "true", "user": {"username": "a"}, "allowed": True}},
        {"status": {"authenticated": True, "user": {"username": "a"}, "allowed": "true"}},
        {"status": {"authenticated": True, "user": {"username": "a"}}},
    ],
)
def test_an_answer_without_sense_allows_nothing(scene, answer: dict):
    """A proxy that answers anything is no authority."""
    scene.server.answer = answer
    assert scene.decide() is not AccessVerdict.ALLOWED


def test_a_server_that_does_not_answer_is_waited_for_a_short_time(scene, monkeypatch):
    """A request doesn't hang with the API server."""
    monkeypatch.setattr("declctl.admin.reviews.TIMEOUT_SECONDS", 0.01)

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    scene.server.request_json = never
    assert scene.decide() is AccessVerdict.UNDECIDED


def test_tokens_that_are_made_up_are_no_flood_of_reviews(scene):
    """Strangers who try tokens don't use up the API server's time, however many they are."""
    assert scene.reviews(token="t{}".format, client=lambda number: f"10.0.1.{number % 250}") == 40
    assert scene.log.events() == []  # the API server is well


def test_a_known_token_is_reviewed_while_others_are_made_up(scene):
    """Prometheus scrapes as before, also from behind the same proxy as the strangers."""
    assert scene.decide() is AccessVerdict.ALLOWED
    for second in range(60):
        for number in range(100):
            scene.decide(token=f"t{second}-{number}", client=f"10.0.0.{number}")
        assert scene.decide() is AccessVerdict.ALLOWED, second
        scene.clock.set(1)


def test_a_new_token_is_reviewed_while_another_client_makes_up_tokens(scene):
    """The rotated token of a user doesn't wait for a stranger to end."""
    assert scene.reviews(token="t{}".format, client=lambda _: "10.0.0.66") <= 10
    assert scene.decide() is AccessVerdict.ALLOWED


def test_a_token_that_may_do_nothing_is_not_known(scene):
    """Each pod of a cluster has a valid token: that alone gives it no part of the reviews of users."""
    scene.server.rights.clear()
    assert scene.reviews(path="/cache/pods/{}".format) <= 10


def test_a_token_that_was_taken_back_is_not_known_any_more(scene):
    """Its bearer is a stranger then, ten seconds after the question about the token; also on other paths."""
    scene.server.on_its_way = lambda: scene.clock.set(2)
    assert scene.decide() is AccessVerdict.ALLOWED
    scene.clock.set(REVIEW_SECONDS - 7)
    assert scene.decide(path="/status") is AccessVerdict.ALLOWED
    scene.clock.set(1)
    scene.server.answer = {"status": {"authenticated": False}}
    assert scene.decide(path="/status") is AccessVerdict.UNAUTHENTICATED
    assert scene.decide() is AccessVerdict.UNAUTHENTICATED
    scene.server.answer, scene.server.on_its_way = None, lambda: None
    scene.server.rights.clear()
    scene.clock.set(REVIEW_SECONDS)
    assert scene.reviews(path="/cache/pods/{}".format) <= 10


async def test_the_texts_of_a_probe_need_the_right_to_the_status(runtime, http: Callable):
    """In each cluster all users may get /readyz: that shows them no text of a server or a handler."""
    runtime.client = Reviewer()
    runtime.client.rights = {("get", "/readyz")}
    authorizer = ReviewedToken(runtime.client, clock=ManualClock())
    async with serve(runtime, LOOPBACK, authorizer=authorizer) as bound:
        assert (await http(bound, "/readyz", headers={"Authorization": "Bearer of-reader"})).status == 200
    _, *asked = runtime.client.asked
    assert [each["spec"]["nonResourceAttributes"]["path"] for each in asked] == ["/status"]


@pytest.mark.parametrize("token", ["x" * 20_000, "\u00fc", "a\x00b", "\udcff"])
def test_what_is_no_token_is_not_sent(scene, token: str):
    """The API server isn't bothered with bytes that are no token."""
    assert scene.decide(token=token) is AccessVerdict.UNAUTHENTICATED
    assert scene.server.asked == []


def test_answers_that_are_remembered_are_few():
    """A flood of paths does not fill the memory."""
    answers = RecentAnswers[int](ManualClock(), most=3)
    for number in range(10):
        answers.put(number, number)
    assert len(answers) == 3
    assert [answers.get(number) for number in (6, 7, 9)] == [None, 7, 9]


async def test_the_manifest_chooses_it_and_the_environment_does_not_undo_it(runtime, http: Callable):
    """A token of the environment opens nothing where Kubernetes decides, and the log says so."""
    runtime.client = Reviewer()
    runtime.admin = AdminSpec(bind_address=LOOPBACK, authorization=AdminAuthorization.KUBERNETES)
    log = Logged()
    async with front(given=StaticToken("mine"), log=log)(runtime):
        port = int(re.search(r"127\.0\.0\.1:(\d+)", "\n".join(log.events()))[1])
        for headers in ({"Authorization": "Bearer mine"}, {}):
            assert (await http(Address("127.0.0.1", port), "/cache/pods", headers=headers)).status == 401
    assert any("is not used" in line for line in log.events())
