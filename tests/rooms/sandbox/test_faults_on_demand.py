"""Rules and orders, without a server."""

import pytest

from declctl.sandbox import faults as rules
from declctl.sandbox import requests
from declctl.sandbox.faults import Faults, Ledger, LedgerEntry, Match, RequestFault, WatchOrders
from declctl.sandbox.status import Refusal
from tests.rooms.sandbox.shapes import store


def faults():
    return Faults(store().history, lambda resource: 0)


def test_a_rule_meets_what_it_matches():
    """A refusal for lists of pods in one namespace touches nothing else."""
    given = faults()
    given.refuse(500, Match(verb="list", resource="pods", namespace="team"))
    assert given.meet("list", "pods", "other") == RequestFault()
    assert given.meet("watch", "pods", "team") == RequestFault()
    assert given.meet("list", "pods", "team").refusal.code == 500


def test_too_many_requests_says_when_to_come_back():
    """A 429 has a Retry-After of a second, or of as long as told."""
    assert faults().refuse(429).refusal.retry_after == 1
    assert faults().refuse(429, retry_after=7).refusal.document()["details"]["retryAfterSeconds"] == 7


def test_latency_adds_up():
    """Delays of several rules are added, and a refusal can be late."""
    given = faults()
    given.delay(0.5)
    given.delay(0.25, Match(resource="pods"))
    given.refuse(500)
    wait, refusal, _ = given.meet("get", "pods", "")
    assert (wait, refusal.code) == (0.75, 500)


def test_a_list_that_trickles_is_not_late():
    """It is answered at once, bit by bit; with `times` only so many are."""
    given = faults()
    given.trickle(5.0, Match(resource="pods"), times=1)
    assert given.meet("list", "pods", "") == RequestFault()
    assert [given.pace("nodes", ""), given.pace("pods", ""), given.pace("pods", "")] == [0.0, 5.0, 0.0]
    assert given.rules == []


def test_the_nth_write_of_anything_can_fail():
    """`write` is for all changes but those of Events and Leases; `skip` leaves the first ones alone."""
    given = faults()
    given.refuse(500, Match(verb="write"), skip=1, times=1)
    given.lose(Match(verb="write"), skip=2, times=1)
    asked = [("patch", "pods"), ("get", "pods"), ("create", "events"), ("delete", "pods"), ("update", "x")]
    met = [given.meet(verb, resource, "") for verb, resource in asked]
    assert [fault.refusal is not None for fault in met] == [False, False, False, True, False]
    assert [fault.lost for fault in met] == [False] * 4 + [True]
    assert given.rules == []


def test_orders_and_silence_are_for_the_watches_of_one_resource():
    """Or for all of them; an order says how many it has reached."""
    given = faults()
    stream = WatchOrders("pods")
    given.streams.append(stream)
    assert [given.cut_watches("nodes"), given.malformed_line("nodes"), given.huge_line(9, "nodes")] == [0] * 3
    assert (stream.ending, len(stream.injected)) == ("", 0)
    assert (given.cut_watches("pods", clean=True), stream.ending) == (1, "clean")
    given.silence("pods")
    assert (given.is_silent("pods"), given.is_silent("nodes")) == (True, False)
    given.silence()
    assert given.is_silent("nodes")
    given.speak()
    assert not given.is_silent("pods")


def test_clear_is_a_good_day():
    """After clear nothing is left of any fault."""
    given = faults()
    fresh = given.document()
    given.refuse(500)
    given.silence()
    given.watch_list = "invalid"
    given.expired_watch = "status"
    given.withhold_initial_events_end = True
    given.clear()
    assert given.document() == fresh


@pytest.mark.parametrize(
    "given",
    [
        {"fault": "refuse", "status": 429, "verb": "list", "times": 2},
        {"fault": "lose", "verb": "write", "skip": 1, "times": 1},
        {"fault": "clear"},
        {"fault": "delay", "seconds": 1},
        {"fault": "trickle", "seconds": 1},
        {"fault": "cut", "resource": "pods"},
        {"fault": "cutMidLine"},
        {"fault": "malformedLine"},
        {"fault": "hugeLine", "size": 10},
        {"fault": "silence", "resource": "pods"},
        {"fault": "speak"},
        {"fault": "compact"},
        {"fault": "bookmark"},
        {"fault": "outage", "seconds": 3},
        {"fault": "withholdInitialEventsEnd"},
        {"fault": "watchList", "mode": "invalid"},
        {"fault": "expiredWatch", "mode": "status"},
    ],
    ids=lambda given: given["fault"],
)
def test_every_fault_can_be_ordered_over_http(given):
    """A POST does what the method does, and tells what is in force."""
    asked = []
    assert rules.order(faults(), given, asked.append)["fault"] == given["fault"]
    assert asked == ([3.0] if given["fault"] == "outage" else [])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fault": "dance"}, "there is no fault 'dance': give one of bookmark, clear, compact, cut"),
        ("x", "there is no fault None"),
        ({"fault": "refuse"}, "can't be ordered like this: 'status'"),
        ({"fault": "delay", "seconds": "soon"}, "can't be ordered like this"),
        ({"fault": "watchList", "mode": "maybe"}, "mode is on, invalid or ignored"),
        ({"fault": "expiredWatch", "mode": "maybe"}, "mode is event or status"),
    ],
)
def test_a_wrong_order_says_what_is_wrong(given, words):
    """An unknown fault, or a field that doesn't fit, is 400 with a sentence."""
    with pytest.raises(Refusal, match=words) as refused:
        rules.order(faults(), given, lambda seconds: None)
    assert refused.value.code == 400


def test_reviews_know_the_faults():
    """Everybody may do everything, until a 403 is ordered for it."""
    given = faults()
    body = b'{"spec":{"resourceAttributes":{"verb":"list","resource":"pods","namespace":"a"}}}'
    assert requests.review("", body, given)["status"]["allowed"]
    given.refuse(403, Match(verb="list", resource="pods"))
    assert not requests.review("", body, given)["status"]["allowed"]


def test_the_ledger_counts():
    """Requests are counted by verb, resource and namespace, and forgotten on demand."""
    ledger = Ledger()
    for verb, namespace in (("list", "a"), ("list", "b"), ("watch", "a")):
        ledger.record(LedgerEntry(verb, "pods", namespace, "", {}, 0.0, 1, "test"))
    assert ledger.count("list", resource="pods") == 2
    assert ledger.count(namespace="a") == 2
    assert rules.ledger_document(ledger, {"verb": "watch"})["requests"][0]["namespace"] == "a"
    ledger.clear()
    assert ledger.count() == 0
