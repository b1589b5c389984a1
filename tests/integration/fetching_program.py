"""An agent reduced to its cache of datasets.

Usage: python -m tests.integration.fetching_program PORT FOLDER DIGEST...
Has each dataset in the folder, all at once, from the platform at the port of loopback; then ends with 0.
"""

import asyncio
import sys
from pathlib import Path

import grpc.aio

from nodeagent.storage.datasets import Trees
from nsml.client.rpc import Rpc
from nsml.common.clock import in_own_thread, in_thread


async def main() -> None:
    port, folder, *digests = sys.argv[1:]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        trees = Trees(
            Path(folder),
            rpc=lambda: Rpc(channel),
            run=in_thread,
            run_long=in_own_thread,
            pause=lambda: asyncio.sleep(0.05),
            may_link=True,
        )
        trees.create()
        await asyncio.gather(*(trees.get(digest) for digest in digests))


if __name__ == "__main__":
    asyncio.run(main())
