"""Questions for peers: those that share an answer."""

from __future__ import annotations

import asyncio

from nodeagent.peers.finding import PeerFinder
from nsml.v1 import agents_pb2 as agents
from nsml.v1 import peers_pb2 as pb


async def test_a_fetch_does_not_share_the_answer_of_a_stream() -> None:
    finder = PeerFinder(lambda: None)
    finder.is_answered = True
    streams = [asyncio.create_task(finder.find("root", True)) for _ in range(2)]
    await asyncio.sleep(0)
    fetch = asyncio.create_task(finder.find("root", False))
    await asyncio.sleep(0)
    assert finder.take_questions() == [("root", True), ("root", False)]
    for node in ("has-it", "fetches-it"):
        finder.answered(agents.FoundPeers(root="root", peers=[pb.Peer(node=node)]))
    assert [one.node for stream in streams for one in await stream] == ["has-it"] * 2
    assert [one.node for one in await fetch] == ["fetches-it"]
