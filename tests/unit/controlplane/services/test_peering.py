"""Which nodes an agent is told of that asks for a dataset: who may read it, who has it, and who does not serve."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.identity import Role
from controlplane.nodes import peering
from nsml.common.peer_capabilities import KEY_BYTES, is_valid
from nsml.content.digests import digest_of
from nsml.v1 import agents_pb2, nodes_pb2, peers_pb2, resources_pb2, sessions_pb2
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform, until
from tests.unit.controlplane.services.test_content import push, send, tree
from tests.unit.controlplane.services.test_nodes import drain

ALL = resources_pb2.Resources(gpu_thousandths=1000)


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def joined(rig: Rig, name: str, pod: str = "") -> Agent:
    """A node with one GPU that serves others."""
    offer = peers_pb2.PeerOffer(
        address=f"{name}.example:18558", certificate=name.encode(), key=os.urandom(KEY_BYTES)
    )
    agent = await rig.agent(name, gpus=1, pod=pod, peer_offer=offer)
    return await agent.connect()


async def pushed(user: Stubs) -> str:
    """The digest of a dataset of theirs."""
    manifest, blobs = tree(a=b"data")
    await send(user, blobs)
    await push(user, "digits", manifest)
    return manifest.digest


async def runs(user: Stubs, agent: Agent, name: str = "digits") -> sessions_pb2.Session:
    """A session with the dataset, on that node: the only one with a free GPU."""
    asked = sessions_pb2.DatasetReference(name=name)
    session = await user.submit(datasets=[asked], resources=ALL)
    await agent.assignments(1)
    return session


async def has(rig: Rig, agent: Agent, *roots: str) -> None:
    things = [agents_pb2.StockedThing(dataset_digest=root, bytes=7) for root in roots]
    await agent.say(agents_pb2.ControlRequest(stock=agents_pb2.StockReport(things=things)))

    async def is_known() -> bool:
        return set(rig.plane.core.state.stock(agent.node).things) == set(roots)

    await until(is_known, f"{agent.node} has {roots}")


async def found(agent: Agent, root: str, *, is_stream: bool = False) -> list[peers_pb2.Peer]:
    agent.found_peers.clear()
    asked = agents_pb2.FindPeers(root=root, is_stream=is_stream)
    await agent.say(agents_pb2.ControlRequest(find_peers=asked))

    async def is_answered() -> bool:
        return bool(agent.found_peers)

    await until(is_answered, "it is answered")
    (answer,) = agent.found_peers
    assert answer.root == root
    return list(answer.peers)


def names(peers: list[peers_pb2.Peer]) -> list[str]:
    return [one.node for one in peers]


def counts(peer: peers_pb2.Peer, server: Agent, asker: str, now: float, **other: Any) -> bool:
    """Whether the server takes it for a capability of the asker."""
    told = peer.capability
    facts = {"root": told.root, "expires_at": told.expires_at, "node": asker, **other}
    return is_valid(told.mac, server.register.peer_offer.key, now=now, **facts)


async def test_a_node_is_told_of_those_that_have_the_data_of_its_sessions(rig: Rig) -> None:
    kim = await rig.user("kim")
    root = await pushed(kim)
    a = await joined(rig, "a")
    assert a.registered is not None
    assert a.registered.finds_peers
    await runs(kim, a)
    assert await found(a, root) == []
    await has(rig, a, root)

    b = await joined(rig, "b")
    # nothing that runs there has it, so that nobody tells
    assert await found(b, root) == []
    await runs(kim, b)
    (peer,) = await found(b, root)
    assert (peer.node, peer.address, peer.certificate) == ("a", "a.example:18558", b"a")
    now = rig.plane.core.clock.time()
    assert counts(peer, a, "b", now)
    assert not counts(peer, a, "c", now)
    assert not counts(peer, b, "b", now)
    assert not counts(peer, a, "b", now, root=digest_of(b"another"))
    assert not counts(peer, a, "b", now + peering.LIFE_S + 2)
    # by the clock of the node that serves, which is ahead
    beat = agents_pb2.Heartbeat()
    beat.sent_at.FromSeconds(round(now) + 5000)
    await a.say(agents_pb2.ControlRequest(heartbeat=beat))

    async def is_later() -> bool:
        (peer,) = await found(b, root)
        return counts(peer, a, "b", now + 5000) and not counts(peer, a, "b", now + 5600)

    await until(is_later, "its clock is known")
    # code is not given
    assert await found(b, "0" * 64) == []


async def test_nodes_that_fetch_it_are_named_to_those_that_begin_later(rig: Rig) -> None:
    kim = await rig.user("kim")
    root = await pushed(kim)
    agents = []
    for name in "abcde":
        agents.append(await joined(rig, name, pod="p" if name in "ce" else ""))
        await runs(kim, agents[-1])
    told = [names(await found(agent, root)) for agent in agents]
    assert told == [[], ["a"], ["a", "b"], ["a", "b", "c"], ["c", "a", "b"]]
    # asked again they are no later than before: nobody waits in a circle
    assert [names(await found(agent, root)) for agent in agents] == told
    # who has all of it comes before who fetches it, and of a pod before others
    await has(rig, agents[3], root)
    assert names(await found(agents[1], root)) == ["d", "a"]
    assert names(await found(agents[4], root)) == ["c", "d", "a"]
    assert names(await found(agents[0], root)) == ["d"]


async def test_a_node_that_was_drained_serves_nobody(rig: Rig) -> None:
    kim, boss = await rig.user("kim"), await rig.user("boss", role=Role.ADMIN)
    root = await pushed(kim)
    a = await joined(rig, "a")
    await runs(kim, a)
    await has(rig, a, root)
    b = await joined(rig, "b")
    await runs(kim, b)
    assert names(await found(b, root)) == ["a"]
    await drain(boss, "a")
    assert await found(b, root) == []
    await boss.nodes.ResumeNode(nodes_pb2.ResumeNodeRequest(name="a"))
    assert names(await found(b, root)) == ["a"]
    await a.close()

    async def is_gone() -> bool:
        return await found(b, root) == []

    await until(is_gone, "it is known that it went")


async def test_a_stream_is_told_of_nodes_with_all_of_it_and_passes_nothing_on(rig: Rig) -> None:
    kim = await rig.user("kim")
    root = await pushed(kim)
    a, b, c = [await joined(rig, name) for name in "abc"]
    for agent in (a, b, c):
        await runs(kim, agent)
    assert await found(a, root) == []
    assert names(await found(b, root, is_stream=True)) == [], "a has only begun to fetch it"
    assert names(await found(c, root)) == ["a"], "b keeps nothing"
    await has(rig, c, root)
    assert names(await found(b, root, is_stream=True)) == ["c"]


async def test_what_nodes_fetched_from_where_is_shown(rig: Rig) -> None:
    kim = await rig.user("kim")
    a = await joined(rig, "a")
    fetched = agents_pb2.FetchedBytes(from_platform=1, from_peers=2, to_peers=3, dropped_peers=4)
    fetched.from_bucket = 5
    report = agents_pb2.StockReport(fetched=fetched, bucket_note="it does not answer")
    await a.say(agents_pb2.ControlRequest(stock=report))

    async def is_shown() -> bool:
        one = (await kim.nodes.GetNode(nodes_pb2.GetNodeRequest(name="a"))).transfers
        shown = one.from_platform, one.from_peers, one.to_peers, one.dropped_peers
        of_bucket = one.from_bucket, one.bucket_note
        return shown == (1, 2, 3, 4) and of_bucket == (5, "it does not answer")

    await until(is_shown, "it is shown")


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.frozensets(st.sampled_from("abcd")), st.booleans())
    )
)
def test_loads_are_counted_as_nodes_ask_and_are_forgotten(
    questions: list[tuple[str, frozenset[str], bool]],
) -> None:
    fetches = peering.Fetches()
    last: dict[str, peering.Fetch] = {}  # the plain definition
    for at, (node, peers, expires) in enumerate(questions):
        last[node] = peering.Fetch(0, at, peers)
        fetches.note(node, last[node])
        if expires:
            last = {name: one for name, one in last.items() if one.at > at - 3}
            fetches.expire(at - 3)
        assert {name: fetches.get(name) for name in "abcd"} == {
            name: last.get(name) for name in "abcd"
        }
        for peer in "abcd":
            assert fetches.load(peer) == sum(peer in one.peers for one in last.values())


async def test_an_agent_that_asks_without_end_is_named_nobody_for_a_while(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peering, "PERIOD_S", math.inf)
    monkeypatch.setattr(peering, "MOST_QUESTIONS", 2)
    kim = await rig.user("kim")
    root = await pushed(kim)
    for name in "ab":
        agent = await joined(rig, name)
        await runs(kim, agent)
        told = [names(await found(agent, root)) for _ in range(3)]
    assert told == [["a"], ["a"], []]


@pytest.mark.parametrize(
    "offer", [{"key": b"short"}, {"certificate": bytes(5000)}, {"address": "x" * 300}]
)
async def test_an_offer_that_cannot_be_is_refused(rig: Rig, offer: dict[str, Any]) -> None:
    facts = {"address": "a:1", "certificate": b"c", "key": bytes(KEY_BYTES), **offer}
    agent = await rig.agent("a", peer_offer=peers_pb2.PeerOffer(**facts))
    await agent.connect()
    assert agent.error is not None
    assert agent.error.code().name == "INVALID_ARGUMENT"
