"""Tokens of Kubernetes: the API server says whose they are, and what their bearers may do.

A TokenReview finds the user of a token. A SubjectAccessReview then asks whether this user may send a request
with this verb to this path, as RBAC has it under `nonResourceURLs`. Both are what kube-rbac-proxy and the
metrics filter of controller-runtime send. The process needs the right to create both, which the ClusterRole
`system:auth-delegator` gives.
"""

import asyncio
import hashlib
from collections.abc import Hashable
from typing import Any, Final, Generic, Protocol, TypeVar

from declctl.admin.authorization import ALLOWED, UNAUTHENTICATED, AccessVerdict, Decision
from declctl.errors import ApiError, Forbidden
from declctl.kit import Clock
from declctl.kit.text import excerpt
from declctl.kit.token_bucket import TokenBucket
from declctl.objects import KubeObject

REVIEW_SECONDS: Final = 10.0  # for which an answer of the API server is used again, even if rights change
TIMEOUT_SECONDS: Final = 5.0  # for both reviews of a request
_MOST_ANSWERS = 1024  # that are remembered, of each kind
_LONGEST_TOKEN = 16 << 10  # characters; headers are shorter anyway
_PER_SECOND, _BURST = 20, 40  # reviews that are sent; remembered answers need none
_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
V = TypeVar("V")


class ReviewSender(Protocol):
    """A client of the API server."""

    async def request_json(self, method: str, path: str, *, body: KubeObject | None = None) -> KubeObject:
        """Send one request; raises the ApiError family."""
        ...


class Unreviewed(Exception):
    """A review was not made, or its answer has no meaning; the text is a sentence for the client."""


class RecentAnswers(Generic[V]):
    """Answers of the last REVIEW_SECONDS, at most `most` of them. Used on one loop."""

    def __init__(self, clock: Clock, *, most: int = _MOST_ANSWERS) -> None:
        self._clock = clock
        self._most = most
        self._answers: dict[Hashable, tuple[float, V]] = {}  # with the end of each; the oldest is first

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: Hashable) -> V | None:
        """The answer; None if there is none, or if it is too old."""
        found = self._answers.get(key)
        return found[1] if found is not None and self._clock.monotonic() < found[0] else None

    def put(self, key: Hashable, answer: V) -> None:
        """Remember an answer, and forget the oldest one if there are too many."""
        self._answers.pop(key, None)
        if len(self._answers) >= self._most:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = (self._clock.monotonic() + REVIEW_SECONDS, answer)


class ReviewedToken:
    """Asks the API server about each token, and each path of its bearer.

    Answers count for REVIEW_SECONDS. Without an answer within TIMEOUT_SECONDS, or with one that makes no
    sense, the request is refused. Of a token only the digest is kept.
    """

    def __init__(self, sender: ReviewSender, *, clock: Clock) -> None:
        self._sender = sender
        self._bucket = TokenBucket(_PER_SECOND, _BURST, clock=clock)
        # By digest of a token: its user as the API server names it, empty for a token that is none.
        self._users = RecentAnswers[dict[str, Any]](clock)
        self._decisions = RecentAnswers[Decision](clock)  # by digest of a token, verb and path

    async def decide(self, token: str, verb: str, path: str) -> Decision:
        """Whether the user of the token may send a request with this verb to this path."""
        if len(token) > _LONGEST_TOKEN or not (token.isascii() and token.isprintable()):
            return UNAUTHENTICATED  # no token of Kubernetes
        digest = hashlib.sha256(token.encode()).digest()
        known = self._decisions.get((digest, verb, path))
        if known is not None:
            return known
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await self._review(token, digest, verb, path)
        except TimeoutError:
            return _undecided(f"it has not answered within {TIMEOUT_SECONDS:g} s")
        except Forbidden as error:
            return _undecided(
                f"{error}. The ClusterRole system:auth-delegator gives this right to the ServiceAccount of "
                "the process"
            )
        except ApiError as error:
            return _undecided(str(error))
        except Unreviewed as error:
            return Decision(AccessVerdict.UNDECIDED, str(error))

    async def _review(self, token: str, digest: bytes, verb: str, path: str) -> Decision:
        user = self._users.get(digest)
        if user is None:
            user = await self._user_of(token)
            self._users.put(digest, user)
        if not user:
            return UNAUTHENTICATED
        decision = await self._access_of(user, verb, path)
        self._decisions.put((digest, verb, path), decision)
        return decision

    async def _user_of(self, token: str) -> dict[str, Any]:
        """The user of a token, empty for a wrong one."""
        status = await self._ask(
            _TOKENS,
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}},
        )
        # Absent is false, as in Go. Its `error` only says why a token is wrong.
        if status.get("authenticated") is not True:
            return {}
        user = status.get("user")
        if not isinstance(user, dict) or not isinstance(user.get("username"), str) or not user["username"]:
            raise Unreviewed("The API server has accepted a token without naming its user.")
        return user

    async def _access_of(self, user: dict[str, Any], verb: str, path: str) -> Decision:
        named = {"user": user["username"]}
        named |= {name: user[name] for name in ("groups", "uid", "extra") if user.get(name)}
        status = await self._ask(
            _ACCESS,
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {**named, "nonResourceAttributes": {"path": path, "verb": verb}},
            },
        )
        if status.get("allowed") is True:
            return ALLOWED
        who, where = excerpt(user["username"], most=200), excerpt(path, most=200)
        return Decision(
            AccessVerdict.FORBIDDEN,
            f"{who} may not {verb} {where}; a ClusterRole with nonResourceURLs: ['{where}'] and "
            f"verbs: ['{verb}'] gives the right.",
        )

    async def _ask(self, path: str, review: KubeObject) -> dict[str, Any]:
        """The status of the answer to a review."""
        # Tokens that are made up must not become a flood of requests to the API server.
        if not self._bucket.try_take():
            raise Unreviewed("Too many tokens are being reviewed; ask again in a moment.")
        answer = await self._sender.request_json("POST", path, body=review)
        status = answer.get("status")
        if not isinstance(status, dict):
            raise Unreviewed(f"The API server has answered a {review['kind']} without a status.")
        return status


def _undecided(why: str) -> Decision:
    return Decision(
        AccessVerdict.UNDECIDED, f"The API server was asked whether the token may do this: {why}."
    )
