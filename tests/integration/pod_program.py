"""An agent reduced to the cache of datasets that it shares with others of its pod.

Usage: python -m tests.integration.pod_program PORT FOLDER AGENT DIGEST
Has the dataset in the folder from the platform at the port of loopback, says so by one line, and uses it until its standard
input ends.
"""

import asyncio
import sys
from pathlib import Path

import grpc.aio

from nodeagent.storage import pod_lock, pod_trees
from nsml.client.rpc import Rpc
from nsml.common.clock import SystemClock, in_own_thread, in_thread

# Who was killed is noticed soon.
pod_lock.LEASE_S = 3.0
pod_trees.BEAT_S = 0.5
pod_trees._LOOK_EVERY_S = 0.05


async def main() -> None:
    port, folder, agent, digest = sys.argv[1:]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        trees = pod_trees.PodTrees(
            Path(folder),
            agent,
            uses=lambda: frozenset({f"dataset {digest}"}),
            rpc=lambda: Rpc(channel),
            run=in_thread,
            run_long=in_own_thread,
            pause=lambda: asyncio.sleep(0.05),
            clock=SystemClock(),
        )
        print("has", await trees.get(digest), flush=True)
        await in_own_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
