"""An agent reduced to its datasets, which it fetches from other nodes, too, and serves to them.

Usage: python -m tests.integration.peering_program PORT LAB NAME ROOT
Has the dataset ROOT in LAB/NAME, from the platform at PORT of the loopback and from the nodes in LAB/offers whose names come
before its own. Then makes LAB/NAME.done, and serves until it is killed.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import grpc.aio

from nodeagent.folders import write_atomically
from nodeagent.peers.exchange import Exchange
from nodeagent.peers.network import NodeProof, PeerNetwork
from nodeagent.storage import datasets
from nodeagent.storage.datasets import Trees
from nodeagent.storage.other_sources import OtherSources
from nsml.client.rpc import Rpc
from nsml.common.clock import SystemClock, in_own_thread, in_thread
from nsml.common.peer_capabilities import mac_of
from nsml.v1 import peers_pb2 as pb


def offered(lab: Path, name: str, root: str) -> Sequence[pb.Peer]:
    """What a control plane would answer."""
    found = []
    for path in sorted((lab / "offers").glob("*.json")):
        if path.stem >= name:
            break
        offer = json.loads(path.read_text())
        expires_at = round(time.time()) + 60
        key = bytes.fromhex(offer["key"])
        mac = mac_of(key, root=root, node=name, expires_at=expires_at)
        found.append(
            pb.Peer(
                node=path.stem,
                address=offer["address"],
                certificate=bytes.fromhex(offer["certificate"]),
                capability=pb.PeerCapability(root=root, expires_at=expires_at, mac=mac),
            )
        )
    return found


async def main() -> None:
    datasets.FROM_OTHERS_BYTES = 0
    port, folder, name, root = sys.argv[1:]
    lab = Path(folder)
    files = [lab / "authority.pem", lab / f"{name}.key", lab / f"{name}.pem"]
    network = PeerNetwork(lambda: NodeProof(*(file.read_bytes() for file in files)))
    exchange = Exchange(
        network,
        listen="127.0.0.1:0",
        host="127.0.0.1",
        bytes_per_s=0,
        asked=lambda: None,
        clock=SystemClock(),
    )

    async def find(wanted: str, _is_stream: bool) -> Sequence[pb.Peer]:
        return offered(lab, name, wanted)

    assert exchange.peers is not None
    exchange.peers._find = find
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        trees = Trees(
            lab / name,
            rpc=lambda: Rpc(channel),
            run=in_thread,
            run_long=in_own_thread,
            pause=lambda: asyncio.sleep(0.05),
            others=OtherSources(exchange.peers),
        )
        trees.create()
        async with exchange.serving(trees.cache, in_thread):
            assert exchange.offer is not None
            offer = {
                "address": exchange.offer.address,
                "certificate": exchange.offer.certificate.hex(),
                "key": exchange.offer.key.hex(),
            }
            write_atomically(lab / "offers" / f"{name}.json", json.dumps(offer).encode())
            await trees.get(root)
            (lab / f"{name}.done").touch()
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
