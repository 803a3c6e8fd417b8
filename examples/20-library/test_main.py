"""Unit tests of the board: an informer over objects in memory, without a server and without waiting."""

import asyncio

from board import INDEXES, Board, by_node

from declctl import FakeControllerSource, SharedInformerFactory


class FakeCluster:
    """What a factory needs of a client, with pods in memory."""

    def __init__(self) -> None:
        self.pods = FakeControllerSource()

    def source(self, gvk, *, projection, **scope):
        self.pods.projection = projection
        return self.pods


def pod(name, node):
    return {
        "metadata": {"name": name, "namespace": "demo", "labels": {"app": "web"}},
        "spec": {"nodeName": node},
    }


async def heard(board, **counts):
    """Return when the board has heard that much; the test's time limit ends a wait in vain."""
    async with asyncio.timeout(10):
        while any(board.heard[what] < count for what, count in counts.items()):
            await asyncio.sleep(0)


def test_the_board_follows_the_pods():
    async def scenario():
        cluster, board = FakeCluster(), Board()
        cluster.pods.add(pod("a", "node-1"))
        async with SharedInformerFactory(cluster) as factory:
            pods = factory.informer("v1", "Pod", indexers=INDEXES)
            pods.add_event_handler(board)
            await factory.wait_for_cache_sync()
            cluster.pods.add(pod("b", "node-1"))
            cluster.pods.modify(pod("a", "node-2"))
            await heard(board, initial=1, added=1, updated=1)
            assert by_node(pods) == ["node-1: b", "node-2: a"]
            cluster.pods.delete("demo/b")
            await heard(board, deleted=1)
            assert by_node(pods) == ["node-2: a"]
            assert board.pods == {"demo/a"}

    asyncio.run(scenario())


def test_a_delete_that_the_watch_missed_is_heard_too():
    async def scenario():
        cluster, board = FakeCluster(), Board()
        cluster.pods.add(pod("a", "node-1"))
        async with SharedInformerFactory(cluster) as factory:
            pods = factory.informer("v1", "Pod", indexers=INDEXES)
            pods.add_event_handler(board)
            await factory.wait_for_cache_sync()
            await heard(board, initial=1)
            cluster.pods.silent = True  # the server says nothing of it…
            cluster.pods.delete("demo/a")
            cluster.pods.compact()  # … and then has forgotten it: the informer lists again
            cluster.pods.silent = False
            cluster.pods.cut()
            await heard(board, deleted=1)
            assert board.pods == set()

    asyncio.run(scenario())
