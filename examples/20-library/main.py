"""Pods of a namespace, through the library: a cache with indexes, handlers that come late, a watch.

python main.py --sandbox                     # needs no cluster
python main.py --kubeconfig ~/.kube/config
"""

import argparse
import asyncio
from contextlib import ExitStack

from board import INDEXES, Board, by_node
from cluster import sandbox

from declctl import Client, SharedInformerFactory, TimedOut, until_with_sync


async def main(kubeconfig: str | None, namespace: str) -> None:
    client = await Client.connect(kubeconfig=kubeconfig)
    try:
        async with SharedInformerFactory(client, namespace=namespace) as factory:
            pods = factory.informer("v1", "Pod", indexers=INDEXES)
            first = Board()
            registration = pods.add_event_handler(first)
            await factory.wait_for_cache_sync(timeout=30)  # the cache is filled…
            await registration.synced.wait()  # … and the handler has heard of everything in it
            print(f"{len(first.pods)} pods, of which the handler was told")
            for line in by_node(pods):
                print(line)

            # A handler that comes late hears the cache; one with a resync period hears it again and again.
            late = Board()
            pods.add_event_handler(late, resync_period=1)
            while not late.heard["resynced"]:
                await asyncio.sleep(0.1)
            print(f"a late handler was told of {late.heard['initial']} pods, and is told of them again")

            # Names and labels are enough for many questions, and much smaller than whole objects.
            deployments = await factory.for_resource("deployments.apps", metadata_only=True)
            await factory.wait_for_cache_sync(timeout=30)
            for each in deployments.lister.list():
                print(f"{each['kind']} of deployment {each.name}, without a spec: {'spec' not in each}")
            print(f"{pods.statistics().lists} list of pods was made for all of this")

        # Waiting for something to happen, without keeping a cache for it.
        web = client.list_watch("v1", "Pod", namespace=namespace, label_selector="app=web")
        try:
            event = await until_with_sync(web, None, lambda event: event.type == "ADDED", timeout=5)
            print(f"{event.obj.key} is a web pod")
        except TimedOut as late:
            print(f"no web pod: {late}")
    finally:
        await client.close()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sandbox", action="store_true", help="an API server in memory, with some pods")
    parser.add_argument("--kubeconfig", help="by default as kubectl finds it")
    parser.add_argument("--namespace", default="demo")
    return parser.parse_args()


if __name__ == "__main__":
    asked = arguments()
    with ExitStack() as stack:
        found = stack.enter_context(sandbox()) if asked.sandbox else asked.kubeconfig
        asyncio.run(main(found, asked.namespace))
