"""The demo cluster."""

import random
from collections import Counter

from declctl.kit import ManualClock
from declctl.sandbox.store import Churn
from tests.rooms.sandbox.shapes import store


def live(steps, seed=3):
    cluster = store()
    changes = []
    cluster.history.subscribe(lambda resource, change: changes.append((resource[1], change)))
    churn = Churn(cluster, clock=ManualClock(), chance=random.Random(seed))
    churn.begin()
    for _ in range(steps):
        churn.step()
    return cluster, [change for plural, change in changes if plural == "pods"]


def made(steps, seed=3):
    return [(change.type, change.new.key, change.new.data) for change in live(steps, seed)[1]]


def test_a_life_looks_real():
    """Pods come, get a node, run, are relabelled, finish or fail, and go, in two namespaces."""
    _, changes = live(400)
    assert Counter(change.type for change in changes).keys() == {"ADDED", "MODIFIED", "DELETED"}
    phases = {change.new.decode()["status"]["phase"] for change in changes}
    assert phases == {"Pending", "Running", "Succeeded", "Failed"}
    assert {change.new.namespace for change in changes} == {"demo", "default"}


def test_it_settles_at_its_size():
    """The cluster neither dies out nor grows without end."""
    cluster, _ = live(400)
    assert 5 <= len(cluster.objects("Pod")) <= 11


def test_a_seed_repeats_a_life():
    assert made(100) == made(100)
    assert made(100) != made(100, seed=4)


def test_pods_that_others_delete_are_replaced(cluster):
    """Deleting everything in the middle, even the namespace, doesn't disturb it."""
    churn = Churn(cluster, clock=ManualClock(), chance=random.Random(1))
    churn.begin()
    for _ in range(50):
        churn.step()
    cluster.delete("Namespace", "demo")
    for pod in cluster.objects("Pod"):
        cluster.delete("Pod", pod["metadata"]["name"], pod["metadata"]["namespace"])
    for _ in range(100):
        churn.step()
    assert {pod["metadata"]["namespace"] for pod in cluster.objects("Pod")} == {"demo", "default"}


def test_it_begins_with_a_pod_whatever_chance_says():
    """The demo never stands still because there is nothing yet that could change."""
    assert {made(1, seed=seed)[0][0] for seed in range(40)} == {"ADDED"}
