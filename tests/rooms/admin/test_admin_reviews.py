"""Tokens of Kubernetes: the API server says whose they are and what they may do; nothing else opens."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from declctl.admin import StaticToken, front, serve
from declctl.admin.authorization import AccessVerdict, Decision
from declctl.admin.reviews import REVIEW_SECONDS, RecentAnswers, ReviewedToken
from declctl.errors import Forbidden, Unreachable
from declctl.kit import ManualClock, SystemClock
from declctl.manifest.model import AdminAuthorization, AdminSpec
from declctl.manifest.values import Address
from tests.rooms.admin.conftest import Lines

LOOPBACK = Address("127.0.0.1", 0)


class Reviewer:
    """An API server that knows one token, and the rights of its user."""

    def __init__(self) -> None:
        self.rights = {("get", "/cache/pods"), ("get", "/status")}
        self.asked: list[dict[str, Any]] = []
        self.fault: Exception | None = None
        self.answer: dict[str, Any] | None = None  # instead of its own

    async def request_json(self, method: str, path: str, *, body: Any = None) -> dict[str, Any]:
        assert method == "POST"
        self.asked.append({"path": path, **body})
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
        self.clock, self.server, self.log = ManualClock(), Reviewer(), Lines()
        self.authorizer = ReviewedToken(self.server, clock=self.clock, log=self.log)

    def decide(
        self,
        token: str = "of-reader",
        verb: str = "get",
        path: str = "/cache/pods",
        *,
        client: str = "10.0.0.7",
    ) -> Decision:
        return asyncio.run(self.authorizer.decide(token, verb, path, client=client))


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


def test_an_answer_counts_for_a_short_time():
    """A page that refreshes itself is no load for the API server; a right that is taken away ends soon."""
    scene = Scene()
    assert scene.decide().verdict is AccessVerdict.ALLOWED
    for _ in range(100):
        scene.decide()
    assert len(scene.server.asked) == 2
    scene.server.rights.clear()
    scene.clock.set(REVIEW_SECONDS - 0.01)
    assert scene.decide().verdict is AccessVerdict.ALLOWED
    scene.clock.set(REVIEW_SECONDS)
    assert scene.decide().verdict is AccessVerdict.FORBIDDEN
    scene.server.rights.add(("get", "/cache/pods"))
    scene.clock.set(2 * REVIEW_SECONDS)
    assert scene.decide().verdict is AccessVerdict.ALLOWED


def test_another_path_verb_or_token_is_another_question():
    """A remembered answer opens nothing else."""
    scene = Scene()
    assert scene.decide().verdict is AccessVerdict.ALLOWED
    assert scene.decide(verb="post").verdict is AccessVerdict.FORBIDDEN
    assert scene.decide(path="/cache/pods/a").verdict is AccessVerdict.FORBIDDEN
    assert scene.decide(token="of-reader2").verdict is AccessVerdict.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Unreachable("connection refused"), "connection refused"),
        (Forbidden(403, "Forbidden", "tokenreviews is forbidden"), "system:auth-delegator"),
        (TimeoutError(), "has not answered within 5 s"),
    ],
)
def test_without_an_answer_nothing_is_allowed(fault: Exception, told: str):
    """While the API server is away, the address is closed, and the log says why; then it opens again."""
    scene = Scene()
    scene.server.fault = fault
    decision = scene.decide()
    assert decision.verdict is AccessVerdict.UNDECIDED
    assert told in scene.log.lines[0]
    scene.server.fault = None
    assert scene.decide().verdict is AccessVerdict.ALLOWED
    assert scene.log.lines[1:] == ["admin address: tokens can be reviewed again"]


async def test_the_text_of_the_api_server_is_for_the_log_alone(runtime, http: Callable):
    """It may name namespaces, users and addresses, and any client can send a token."""
    reviewer, log = Reviewer(), Lines()
    reviewer.fault = Forbidden(403, "Forbidden", "the account team-a/robot of 10.1.2.3 may not")
    authorizer = ReviewedToken(reviewer, clock=ManualClock(), log=log)
    async with serve(runtime, LOOPBACK, authorizer=authorizer, log=log) as bound:
        for path in ("/cache/pods", "/status", "/"):
            refused = await http(bound, path, headers={"Authorization": "Bearer of-reader"})
            assert refused.status == 503
            assert "robot" not in refused.text
            assert "the log of the process says why" in refused.text
    assert "the account team-a/robot of 10.1.2.3 may not" in "".join(log.lines)


def test_a_fault_is_logged_once_a_minute_and_counted():
    """A page that asks each two seconds fills no log while the API server is away."""
    scene = Scene()
    scene.server.fault = Unreachable("connection refused " + "x" * 10_000)
    for _ in range(100):
        scene.decide()
        scene.clock.set(1)
    first, second = scene.log.lines
    assert first.startswith("admin address: tokens can't be reviewed, and are refused: connection refused x")
    assert len(first) < 1000
    assert second.endswith("; 59 more reviews have failed since the last line")
    scene.server.fault = Forbidden(403, "Forbidden", "no")
    scene.decide()  # another fault is logged at once
    assert "system:auth-delegator" in scene.log.lines[2]
    scene.server.fault = None
    scene.decide()
    assert scene.log.lines[3] == "admin address: tokens can be reviewed again"


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
def test_an_answer_without_sense_allows_nothing(answer: dict):
    """A proxy that answers anything is no authority."""
    scene = Scene()
    scene.server.answer = answer
    assert scene.decide().verdict is not AccessVerdict.ALLOWED


def test_a_server_that_does_not_answer_is_waited_for_a_short_time(monkeypatch: pytest.MonkeyPatch):
    """A request doesn't hang with the API server."""
    monkeypatch.setattr("declctl.admin.reviews.TIMEOUT_SECONDS", 0.01)
    scene = Scene()

    async def never(*_: object, **__: object) -> dict:
        await asyncio.Event().wait()
        raise AssertionError

    scene.server.request_json = never
    assert scene.decide().verdict is AccessVerdict.UNDECIDED


def test_tokens_that_are_made_up_are_no_flood_of_reviews():
    """Strangers who try tokens don't use up the API server's time, however many they are."""
    scene = Scene()
    for number in range(1000):
        decision = scene.decide(token=f"t{number}", client=f"10.0.1.{number % 250}")
        assert decision.verdict in (AccessVerdict.UNAUTHENTICATED, AccessVerdict.UNDECIDED)
    assert len(scene.server.asked) == 40
    assert scene.log.lines == []  # the API server is well


def test_a_known_token_is_reviewed_while_others_are_made_up():
    """Prometheus scrapes as before, also from behind the same proxy as the strangers."""
    scene = Scene()
    assert scene.decide().verdict is AccessVerdict.ALLOWED
    for second in range(60):
        for number in range(100):
            scene.decide(token=f"t{second}-{number}", client=f"10.0.0.{number}")
        assert scene.decide().verdict is AccessVerdict.ALLOWED, second
        scene.clock.set(1)


def test_a_new_token_is_reviewed_while_another_client_makes_up_tokens():
    """The rotated token of a user doesn't wait for a stranger to end."""
    scene = Scene()
    for number in range(1000):
        scene.decide(token=f"t{number}", client="10.0.0.66")
    assert len(scene.server.asked) <= 10
    assert scene.decide(client="10.0.0.7").verdict is AccessVerdict.ALLOWED


def test_a_token_that_may_do_nothing_is_not_known():
    """Each pod of a cluster has a valid token: that alone gives it no part of the reviews of users."""
    scene = Scene()
    scene.server.rights.clear()
    for number in range(1000):
        scene.decide(path=f"/cache/pods/{number}")
    assert len(scene.server.asked) <= 10


def test_a_token_that_was_taken_back_is_not_known_any_more():
    """Its bearer is a stranger then."""
    scene = Scene()
    assert scene.decide().verdict is AccessVerdict.ALLOWED
    scene.clock.set(REVIEW_SECONDS)
    scene.server.answer = {"status": {"authenticated": False}}
    assert scene.decide().verdict is AccessVerdict.UNAUTHENTICATED
    scene.server.answer = None
    scene.server.rights.clear()
    scene.clock.set(REVIEW_SECONDS)
    before = len(scene.server.asked)
    for number in range(1000):
        scene.decide(path=f"/cache/pods/{number}")
    assert len(scene.server.asked) - before <= 10


async def test_the_texts_of_a_probe_need_the_right_to_the_status(runtime, http: Callable):
    """In each cluster all users may get /readyz: that shows them no text of a server or a handler."""
    runtime.client = Reviewer()
    runtime.client.rights = {("get", "/readyz")}
    seen: list[str] = []
    authorizer = ReviewedToken(runtime.client, clock=ManualClock())
    async with serve(runtime, LOOPBACK, authorizer=authorizer) as bound:
        assert (await http(bound, "/readyz", headers={"Authorization": "Bearer of-reader"})).status == 200
    seen.extend(each["spec"]["nonResourceAttributes"]["path"] for each in runtime.client.asked[1:])
    assert seen == ["/status"]


@pytest.mark.parametrize("token", ["x" * 20_000, "\u00fc", "a\x00b", "\udcff"])
def test_what_is_no_token_is_not_sent(token: str):
    """The API server isn't bothered with bytes that are no token."""
    scene = Scene()
    assert scene.decide(token=token).verdict is AccessVerdict.UNAUTHENTICATED
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
    log = Lines()
    async with front(given=StaticToken("mine"), log=log)(runtime):
        port = int(re.search(r"127\.0\.0\.1:(\d+)", "\n".join(log.lines))[1])
        bound = Address("127.0.0.1", port)
        given = {"Authorization": "Bearer mine"}
        assert (await http(bound, "/cache/pods", headers=given)).status == 401
        assert (await http(bound, "/cache/pods")).status == 401
    assert any("is not used" in line for line in log.lines)
