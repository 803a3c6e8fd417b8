"""Tokens of Kubernetes: the API server says whose they are, and what their bearers may do.

A TokenReview finds the user of a token. A SubjectAccessReview then asks whether this user may send a request
with this verb to this path, as RBAC has it under `nonResourceURLs`. Both are what kube-rbac-proxy and the
metrics filter of controller-runtime send. The process needs the right to create both, which the ClusterRole
`system:auth-delegator` gives.

Anybody can send a token, so that two things are kept apart:

- Reviews of tokens that were allowed something lately have a limit of their own. Made-up tokens, and tokens
  that are allowed nothing, share another one, of which each client address has a part. So a flood of them
  refuses no bearer whose token is known.
- A client learns that its token could not be reviewed. The log has the reason, as the API server writes it.
"""

import asyncio
import hashlib
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

from declctl.admin.authorization import ALLOWED, UNAUTHENTICATED, AccessVerdict, Decision
from declctl.errors import ApiError, Forbidden
from declctl.kit import Clock
from declctl.kit.text import excerpt
from declctl.kit.token_bucket import ClientBuckets, TokenBucket
from declctl.objects import KubeObject, RequestSender
from declctl.runtime.log import Log

REVIEW_SECONDS: Final = 10.0  # from the question on; for this time an answer counts, even if rights change
TIMEOUT_SECONDS: Final = 5.0  # for both reviews of a request
_MOST_ANSWERS = 1024  # that are remembered, of each kind
_LONGEST_TOKEN = 16 << 10  # characters; headers are shorter anyway
_PER_SECOND, _BURST = 20, 40  # reviews that are sent, of each kind of tokens; remembered answers need none
_CLIENT_PER_SECOND, _CLIENT_BURST = 5, 10  # of these, reviews of other than known tokens, of one client
KNOWN_SECONDS: Final = 3600.0  # after its last allowed request, a token is known for this time
_QUIET_SECONDS = 60.0  # between two log lines about one fault
_LONGEST_REASON = 500  # characters of a fault in the log
_NOT_REVIEWED = "The token could not be reviewed; the log of the process says why. Ask again in a moment."
_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
V = TypeVar("V")


class Unreviewed(Exception):
    """The answer to a review has no meaning; the text is a sentence for the log."""


class TooManyReviews(Exception):
    """A review was not sent, because of a limit."""


class RecentAnswers(Generic[V]):
    """Answers of the last `seconds`, at most `most` of them. Used on one loop."""

    def __init__(self, clock: Clock, *, most: int = _MOST_ANSWERS, seconds: float = REVIEW_SECONDS) -> None:
        self._clock = clock
        self._most = most
        self._seconds = seconds
        self._answers: dict[Hashable, tuple[float, V]] = {}  # with the end of each; the oldest is first

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: Hashable) -> V | None:
        """The answer; None if there is none, or if it is too old."""
        found = self._answers.get(key)
        return found[1] if found is not None and self._clock.monotonic() < found[0] else None

    def put(self, key: Hashable, answer: V, *, until: float | None = None) -> None:
        """Remember an answer, and forget the oldest one if there are too many.

        It counts until that time of the clock, by default for `seconds` from now on.
        """
        self._answers.pop(key, None)
        if len(self._answers) >= self._most:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = (self._clock.monotonic() + self._seconds if until is None else until, answer)

    def forget(self, key: Hashable) -> None:
        """Remove an answer, if there is one."""
        self._answers.pop(key, None)


class ReviewFaults:
    """Logs why tokens can't be reviewed: a fault once, and then how often it has happened. On one loop.

    Any client can cause a fault again and again. So a kind of fault, such as the class of an exception, is
    logged at most once a minute.
    """

    def __init__(self, clock: Clock, log: Log | None) -> None:
        self._clock = clock
        self._log = log
        self._quiet_until: dict[str, float] = {}  # by kind, on the clock
        self._unlogged = 0  # failures since the last line
        self._is_failing = False  # a failure was logged, and no review has succeeded since

    def failed(self, kind: str, why: str) -> None:
        """Count and log a review that has failed. `kind` is one of a few words."""
        now = self._clock.monotonic()
        if self._log is None or now < self._quiet_until.get(kind, 0.0):
            self._unlogged += 1
            return
        self._quiet_until[kind] = now + _QUIET_SECONDS
        more = f"; {self._unlogged:,} more reviews have failed since the last line" if self._unlogged else ""
        self._unlogged, self._is_failing = 0, True
        reason = excerpt(why, most=_LONGEST_REASON)
        self._log.error(f"admin address: tokens can't be reviewed, and are refused: {reason}{more}")

    def succeeded(self) -> None:
        """Log the first review that succeeds after a logged fault."""
        if self._is_failing and self._log is not None:
            failed = f", after {self._unlogged:,} more have failed" if self._unlogged else ""
            self._log.info(f"admin address: tokens can be reviewed again{failed}")
        self._unlogged, self._is_failing = 0, False


class ReviewedToken:
    """Asks the API server about each token, and each path of its bearer.

    Answers count for REVIEW_SECONDS. What a user may do counts only as long as the user of the token: a token
    that was taken back opens nothing after that time. Without an answer within TIMEOUT_SECONDS, or with one
    that makes no sense, the request is refused. Of a token only the digest is kept. Used on one loop.
    """

    def __init__(self, sender: RequestSender, *, clock: Clock, log: Log | None = None) -> None:
        self._sender = sender
        self._clock = clock
        self._faults = ReviewFaults(clock, log)
        # Digests of tokens that were allowed a request lately. A valid token alone is not enough: each pod of
        # a cluster has one.
        self._known = RecentAnswers[bool](clock, seconds=KNOWN_SECONDS)
        self._known_reviews = TokenBucket(_PER_SECOND, _BURST, clock=clock)
        self._other_reviews = TokenBucket(_PER_SECOND, _BURST, clock=clock)
        self._client_reviews = ClientBuckets(_CLIENT_PER_SECOND, _CLIENT_BURST, clock=clock)
        # By digest of a token: its user as the API server names it, empty for a token that is none, and the
        # time on the clock until which this counts.
        self._users = RecentAnswers[tuple[dict[str, Any], float]](clock)
        self._decisions = RecentAnswers[Decision](clock)  # by digest of a token, verb and path

    async def decide(self, token: str, verb: str, path: str, *, client: str = "") -> Decision:
        """Whether the user of the token may send a request with this verb to this path."""
        if len(token) > _LONGEST_TOKEN or not (token.isascii() and token.isprintable()):
            return UNAUTHENTICATED  # no token of Kubernetes
        digest = hashlib.sha256(token.encode()).digest()
        remembered = self._decisions.get((digest, verb, path))
        if remembered is not None:
            return remembered

        def take() -> None:
            """Count one review towards the limit for this token. Raises TooManyReviews above it."""
            if self._known.get(digest):
                if not self._known_reviews.try_take():
                    raise TooManyReviews
            elif not (self._client_reviews.try_take(client) and self._other_reviews.try_take()):
                raise TooManyReviews

        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                decision = await self._review(token, digest, verb, path, take)
        except TooManyReviews:
            return Decision(
                AccessVerdict.UNDECIDED, "Too many tokens are being reviewed; ask again in a moment."
            )
        except TimeoutError:
            return self._undecided("Timeout", f"the API server has not answered within {TIMEOUT_SECONDS:g} s")
        except Forbidden as error:
            return self._undecided(
                "Forbidden",
                f"{error}. The ClusterRole system:auth-delegator gives this right to the ServiceAccount of "
                "the process",
            )
        except (ApiError, Unreviewed) as error:
            return self._undecided(type(error).__name__, str(error))
        self._faults.succeeded()
        return decision

    def _undecided(self, kind: str, why: str) -> Decision:
        """Refuse a request. The reason may have texts of the API server, which no client gets."""
        self._faults.failed(kind, why)
        return Decision(AccessVerdict.UNDECIDED, _NOT_REVIEWED)

    async def _review(
        self, token: str, digest: bytes, verb: str, path: str, take: Callable[[], None]
    ) -> Decision:
        found = self._users.get(digest)
        if found is None:
            take()
            # Counted from the question on: the token may be taken back while the answer is on its way.
            until = self._clock.monotonic() + REVIEW_SECONDS
            found = await self._user_of(token), until
            self._users.put(digest, found, until=until)
        user, until = found
        if not user:
            self._known.forget(digest)  # it was taken back, or has expired
            return UNAUTHENTICATED
        take()
        decision = await self._access_of(user, verb, path)
        self._decisions.put((digest, verb, path), decision, until=until)
        if decision is ALLOWED:
            self._known.put(digest, answer=True)
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
            raise Unreviewed("the API server has accepted a token without naming its user")
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
        answer = await self._sender.request_json("POST", path, body=review)
        status = answer.get("status")
        if not isinstance(status, dict):
            raise Unreviewed(f"the API server has answered a {review['kind']} without a status")
        return status
