"""Datasets between nodes, over real connections: who gets them, from whom, and what a node does that sends something else."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from controlplane.access.authority import Authority, make_authority
from nodeagent.link.own_certificate import make_own_certificate
from nodeagent.peers import server as serving
from nodeagent.peers import sources
from nodeagent.peers.network import NodeProof, PeerNetwork
from nodeagent.peers.server import ChunkServer
from nodeagent.peers.sources import Peers
from nodeagent.storage.datasets import Trees
from nodeagent.storage.other_sources import OtherSources
from nsml.client.rpc import Rpc
from nsml.client.trust import make_key, signing_request
from nsml.common.clock import Clock, SystemClock, in_thread
from nsml.common.peer_capabilities import KEY_BYTES, mac_of
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from nsml.v1 import content_pb2
from nsml.v1 import peers_pb2 as pb
from tests.support.scripted_platform import ScriptedPlatform
from tests.unit.controlplane.services.test_content import tree
from tests.unit.nodeagent.storage.test_datasets import until

KIB = 1 << 10
SEEDS = [int(os.environ["NSML_SEED"])] if "NSML_SEED" in os.environ else [1, 2]


class Platform(ScriptedPlatform):
    """Counts what it sends; sends so many chunks, and then none until it may go on."""

    def __init__(self) -> None:
        super().__init__(patience_s=60)
        self.sent: list[str] = []
        self.sends = 1 << 30
        self.may_go_on = asyncio.Event()

    async def GetBlobs(
        self, request: content_pb2.GetBlobsRequest, context: Any
    ) -> AsyncIterator[content_pb2.GetBlobsResponse]:
        async for answer in super().GetBlobs(request, context):
            if request.digests:
                if not self.sends:
                    await self.may_go_on.wait()
                else:
                    self.sends -= 1
                self.sent += [blob.digest for blob in answer.blobs if blob.last]
            yield answer


def dataset(rng: random.Random, platform: ScriptedPlatform) -> tuple[str, dict[str, bytes]]:
    """A version, and its files: many small ones, one of many chunks, an empty one."""
    chunks = {f"small/{n}": [rng.randbytes(rng.randrange(1, 4 * KIB))] for n in range(300)}
    chunks["odd \\x0aname"] = [rng.randbytes(64 * KIB) for _ in range(200)]
    chunks["empty"] = []
    entries = []
    for path, parts in chunks.items():
        refs = tuple(ChunkRef(digest_of(one), len(one)) for one in parts)
        platform.blobs |= {digest_of(one): one for one in parts}
        entries.append(Entry(path=path, mode=0o644, size=sum(map(len, parts)), chunks=refs))
    manifest = build(entries)
    platform.blobs[manifest.digest] = manifest.encode()
    return manifest.digest, {path: b"".join(parts) for path, parts in chunks.items()}


class Node:
    """Its datasets, and how it meets others."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.name = name
        self.key = os.urandom(KEY_BYTES)
        self.peers = Peers(lab.find(name), lab.network(name).connect, SystemClock())
        self.trees = Trees(
            lab.folder / name,
            rpc=lambda: lab.rpc,
            run=in_thread,
            pause=lambda: asyncio.sleep(0.01),
            others=OtherSources(self.peers),
        )
        self.trees.create()
        self.server: ChunkServer | None = None
        self.listening: grpc.aio.Server | None = None
        self.offer = pb.PeerOffer()

    def files_of(self, root: str) -> dict[str, bytes]:
        place = self.trees.folder / root
        return {
            str(path.relative_to(place)).replace("\n", "\\x0a"): path.read_bytes()
            for path in place.rglob("*")
            if path.is_file()
        }


class Lab:
    """Nodes of one platform. `known` are those that serve, as its control plane knows."""

    def __init__(self, folder: Path, rpc: Rpc, platform: Platform, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.rpc = rpc
        self.platform = platform
        self.authority: Authority = make_authority(SystemClock())
        self.known: list[Node] = []
        self.lives_s = 60
        self._stack = stack

    def node(self, name: str) -> Node:
        return Node(self, name)

    def network(self, name: str, authority: Authority | None = None) -> PeerNetwork:
        key_file = self.folder / f"{name}.key"
        make_key(key_file)
        signed = (authority or self.authority).sign_node(name, signing_request(key_file, name))
        proof = NodeProof(self.authority.pem, key_file.read_bytes(), signed.certificate)
        return PeerNetwork(lambda: proof)

    def find(self, asker: str) -> Callable[[str], Any]:
        async def find(root: str, _is_stream: bool) -> Sequence[pb.Peer]:
            return [self.peer(node, asker, root) for node in self.known if node.name != asker]

        return find

    def peer(self, node: Node, asker: str, root: str) -> pb.Peer:
        expires_at = round(time.time() + self.lives_s)
        mac = mac_of(node.key, root=root, node=asker, expires_at=expires_at)
        return pb.Peer(
            node=node.name,
            address=node.offer.address,
            certificate=node.offer.certificate,
            capability=pb.PeerCapability(root=root, expires_at=expires_at, mac=mac),
        )

    async def serve(
        self, node: Node, answer: Any = None, bytes_per_s: float = 0, clock: Clock | None = None
    ) -> None:
        """Have it serve, and be known; `answer` in place of what a server does."""
        network = self.network(node.name)
        own = make_own_certificate()
        listening, port = network.server(own, "127.0.0.1:0")
        node.server = ChunkServer(
            node.trees.cache,
            key=node.key,
            bytes_per_s=bytes_per_s,
            clock=clock or SystemClock(),
            run=in_thread,
        )
        if answer is not None:
            node.server.get_chunks = answer  # type: ignore[method-assign]
        node.server.add_to(listening)
        await listening.start()
        self._stack.push_async_callback(listening.stop, None)
        node.listening = listening
        node.offer = pb.PeerOffer(address=f"127.0.0.1:{port}", certificate=own.der)
        self.known.append(node)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    platform = Platform()
    server = grpc.aio.server()
    platform.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        AsyncExitStack() as stack,
    ):
        yield Lab(tmp_path, Rpc(channel), platform, stack)
    platform.may_go_on.set()
    await server.stop(None)


async def test_a_dataset_comes_from_the_node_that_has_it(lab: Lab) -> None:
    root, files = dataset(random.Random(1), lab.platform)
    one, two = lab.node("one"), lab.node("two")
    await one.trees.get(root)
    lab.platform.sent.clear()
    await lab.serve(one)
    await two.trees.get(root)
    assert two.files_of(root) == files
    assert lab.platform.sent == []
    assert one.server is not None
    assert one.server.given_bytes == sum(map(len, files.values()))
    assert two.peers.dropped == 0


async def test_nodes_that_begin_together_fetch_each_chunk_once(lab: Lab) -> None:
    """The first is still fetching when the others ask it, and those pass on what they got."""
    root, files = dataset(random.Random(2), lab.platform)
    nodes = [lab.node(f"n{number}") for number in range(4)]
    lab.platform.sends = 3
    first = asyncio.create_task(nodes[0].trees.get(root))
    await until(lambda: not lab.platform.sends)
    await lab.serve(nodes[0])
    second = asyncio.create_task(nodes[1].trees.get(root))
    await lab.serve(nodes[1])
    lab.known.reverse()  # the others ask the second one before
    others = [asyncio.create_task(node.trees.get(root)) for node in nodes[2:]]
    await until(lambda: nodes[1].server is not None and nodes[1].server.calls.total() == 2)
    lab.platform.may_go_on.set()
    await asyncio.gather(first, second, *others)
    assert all(node.files_of(root) == files for node in nodes)
    assert len(lab.platform.sent) == len(set(lab.platform.sent))


async def ask(
    lab: Lab, network: PeerNetwork, node: Node, peer: pb.Peer, *wanted: pb.WantedChunk
) -> Any:
    """What the server of a node answers, or the code with which it refuses."""
    channel = network.connect(node.offer.address, node.offer.certificate)
    call = channel.unary_stream(
        f"/{serving.SERVICE}/{serving.METHOD}",
        request_serializer=pb.GetChunksRequest.SerializeToString,
        response_deserializer=pb.GetChunksResponse.FromString,
    )
    request = pb.GetChunksRequest(capability=peer.capability, chunks=wanted)
    try:
        return [one async for answer in call(request, timeout=60) for one in answer.chunks]
    except grpc.aio.AioRpcError as error:
        return error.code()
    finally:
        await channel.close(None)


async def test_only_who_may_read_it_gets_it(lab: Lab) -> None:
    root, files = dataset(random.Random(3), lab.platform)
    one, two = lab.node("one"), lab.node("two")
    await one.trees.get(root)
    await lab.serve(one)
    data = files["small/7"]
    wanted = pb.WantedChunk(path="small/7", size=len(data), digest=bytes.fromhex(digest_of(data)))
    good = lab.peer(one, "two", root)
    network = lab.network("two")
    assert [c.data for c in await ask(lab, network, one, good, wanted)] == [data]

    denied = grpc.StatusCode.PERMISSION_DENIED
    # of another node, whose certificate this is not
    assert await ask(lab, lab.network("three"), one, good, wanted) is denied
    # for another dataset, for longer, without a proof, by the key of another node
    for change in (
        {"root": digest_of(b"another")},
        {"expires_at": good.capability.expires_at + 1},
        {"mac": b""},
        {"mac": lab.peer(two, "two", root).capability.mac},
    ):
        forged = pb.Peer()
        forged.CopyFrom(good)
        for name, value in change.items():
            setattr(forged.capability, name, value)
        assert await ask(lab, network, one, forged, wanted) is denied, change
    lab.lives_s = -1
    assert await ask(lab, network, one, lab.peer(one, "two", root), wanted) is denied
    # whose certificate another authority has signed, and who has none
    stranger = lab.network("two", make_authority(SystemClock()))
    unavailable = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
    assert await ask(lab, stranger, one, good, wanted) in unavailable
    nobody = replace(network, proof=lambda: NodeProof(lab.authority.pem, None, None))  # type: ignore[arg-type]
    assert await ask(lab, nobody, one, good, wanted) in unavailable
    # who serves is who the control plane said
    impostor = PeerNetwork(network.proof)
    fake = Node(lab, "fake")
    fake.offer = pb.PeerOffer(address=one.offer.address, certificate=make_own_certificate().der)
    assert await ask(lab, impostor, fake, good, wanted) in unavailable


async def test_nothing_but_the_chunks_of_that_dataset_is_read(lab: Lab) -> None:
    root, files = dataset(random.Random(4), lab.platform)
    one = lab.node("one")
    await one.trees.get(root)
    await lab.serve(one)
    secret = b"secret"
    (lab.folder / "one" / "secret").write_bytes(secret)
    digest = bytes.fromhex(digest_of(secret))
    peer, network = lab.peer(one, "two", root), lab.network("two")
    for path in ("../secret", "/etc/passwd", "..", ".", "", "small/../../secret", "small", "x\0y"):
        asked = pb.WantedChunk(path=path, size=len(secret), digest=digest)
        assert [c.missing for c in await ask(lab, network, one, peer, asked)] == [True], path
    # other bytes than it asks for are not given, wherever they are
    path = "small/7"
    right = pb.WantedChunk(
        path=path, size=len(files[path]), digest=bytes.fromhex(digest_of(files[path]))
    )
    for change in ({"offset": 1}, {"size": 1}, {"digest": digest}, {"digest": b"short"}):
        wrong = pb.WantedChunk()
        wrong.CopyFrom(right)
        for name, value in change.items():
            setattr(wrong, name, value)
        answer = await ask(lab, network, one, peer, wrong, right)
        assert [c.missing for c in answer] == [True, False], change
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    for wanted in (
        [pb.WantedChunk(offset=1 << 63)],
        [pb.WantedChunk(size=1 << 30)],
        [right] * 2001,
    ):
        assert await ask(lab, network, one, peer, *wanted) is invalid
    # a link that somebody put there leads nowhere
    place = lab.folder / "one" / root
    place.chmod(0o700)
    (place / "link").symlink_to(lab.folder / "one" / "secret")
    linked = pb.WantedChunk(path="link", size=len(secret), digest=digest)
    assert [c.missing for c in await ask(lab, network, one, peer, linked)] == [True]


async def lies(request: pb.GetChunksRequest, _: Any) -> AsyncIterator[pb.GetChunksResponse]:
    for one in request.chunks:
        yield pb.GetChunksResponse(chunks=[pb.PeerChunk(data=bytes(one.size))])


async def says_nothing(_: Any, __: Any) -> AsyncIterator[pb.GetChunksResponse]:
    for _ in ():
        yield pb.GetChunksResponse()


async def sends_without_end(_: Any, __: Any) -> AsyncIterator[pb.GetChunksResponse]:
    while True:
        yield pb.GetChunksResponse()


async def sends_too_much(
    request: pb.GetChunksRequest, _: Any
) -> AsyncIterator[pb.GetChunksResponse]:
    while True:
        yield pb.GetChunksResponse(chunks=[pb.PeerChunk(missing=True)] * len(request.chunks))


async def has_none(request: pb.GetChunksRequest, _: Any) -> AsyncIterator[pb.GetChunksResponse]:
    yield pb.GetChunksResponse(chunks=[pb.PeerChunk(missing=True)] * len(request.chunks))


async def refuses(_: Any, context: Any) -> AsyncIterator[pb.GetChunksResponse]:
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")
    yield pb.GetChunksResponse()


async def hangs(_: Any, __: Any) -> AsyncIterator[pb.GetChunksResponse]:
    await asyncio.Event().wait()
    yield pb.GetChunksResponse()


async def dribbles(request: pb.GetChunksRequest, _: Any) -> AsyncIterator[pb.GetChunksResponse]:
    for _one in request.chunks:
        await asyncio.sleep(0.05)
        yield pb.GetChunksResponse(chunks=[pb.PeerChunk(missing=True)])


@pytest.mark.parametrize(
    "answer",
    [lies, says_nothing, sends_without_end, sends_too_much, refuses, hangs, dribbles],
    ids=lambda one: one.__name__,
)
async def test_a_node_that_does_not_do_what_it_should_is_dropped(
    lab: Lab, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_PAUSE_S", 0.5)
    monkeypatch.setattr(sources, "_CALL_S", 0.5)
    root, files = dataset(random.Random(5), lab.platform)
    bad, node = lab.node("bad"), lab.node("node")
    await lab.serve(bad, answer)
    await node.trees.get(root)
    assert node.files_of(root) == files
    assert node.peers.dropped == 1
    assert node.peers.is_avoided("bad")


class Waits(SystemClock):
    """Waits for nothing, and notes how long it would have."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_s = 0.0

    async def sleep(self, seconds: float) -> None:
        self.longest_s = max(self.longest_s, seconds)


async def test_no_more_is_sent_than_the_settings_allow(lab: Lab) -> None:
    root, files = dataset(random.Random(9), lab.platform)
    size = sum(map(len, files.values()))
    one, node = lab.node("one"), lab.node("node")
    await one.trees.get(root)
    clock = Waits()
    await lab.serve(one, bytes_per_s=size / 1000, clock=clock)
    await node.trees.get(root)
    assert node.files_of(root) == files
    assert 900 < clock.longest_s <= 1000


async def test_small_datasets_are_asked_of_nobody(lab: Lab) -> None:
    manifest, blobs = tree(a=b"small")
    lab.platform.blobs |= blobs
    one, node = lab.node("one"), lab.node("node")
    await one.trees.get(manifest.digest)
    await lab.serve(one)
    lab.platform.sent.clear()
    await node.trees.get(manifest.digest)
    assert lab.platform.sent == [digest_of(b"small")]


async def test_what_one_node_does_not_have_another_one_has(lab: Lab) -> None:
    root, files = dataset(random.Random(6), lab.platform)
    one, two, node = lab.node("one"), lab.node("two"), lab.node("node")
    await two.trees.get(root)
    lab.platform.sent.clear()
    await lab.serve(one, has_none)
    await lab.serve(two)
    await node.trees.get(root)
    assert node.files_of(root) == files
    assert lab.platform.sent == []
    assert node.peers.dropped == 0


async def test_a_node_that_was_started_anew_is_met_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another certificate and another key; what it had before does not count there."""
    monkeypatch.setattr(sources, "_AWAY_FOR_S", 0.0)
    root, _ = dataset(random.Random(7), lab.platform)
    one = lab.node("one")
    await one.trees.get(root)
    await lab.serve(one)
    old = lab.peer(one, "two", root)
    assert one.listening is not None
    await one.listening.stop(None)
    lab.known.clear()
    one.key = os.urandom(KEY_BYTES)
    await lab.serve(one)
    network = lab.network("two")
    assert await ask(lab, network, one, old) is grpc.StatusCode.PERMISSION_DENIED
    assert await ask(lab, network, one, lab.peer(one, "two", root)) == []


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_others_send_and_when_they_go_the_dataset_is_whole(
    lab: Lab, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three nodes, of which some damage bytes, lose their connections, or have only a part. NSML_SEED repeats one seed."""
    print(f"seed {seed}")
    monkeypatch.setattr(sources, "_PAUSE_S", 1.0)
    monkeypatch.setattr(sources, "_AWAY_FOR_S", 0.1)
    rng = random.Random(seed)
    root, files = dataset(rng, lab.platform)

    def faulty(node: Node, damage: float, loss: float) -> Any:
        async def answer(
            request: pb.GetChunksRequest, context: Any
        ) -> AsyncIterator[pb.GetChunksResponse]:
            async for given in ChunkServer.get_chunks(node.server, request, context):  # type: ignore[arg-type]
                if rng.random() < damage:
                    one = rng.choice(given.chunks)
                    one.data = bytes(reversed(one.data)) or b"x"
                if rng.random() < loss:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
                yield given

        return answer

    for number in range(3):
        holder = lab.node(f"holder{number}")
        await holder.trees.get(root)
        place = holder.trees.folder / root
        for path in rng.sample(sorted(place.rglob("[0-9]*")), 50):  # the disk, too
            path.parent.chmod(0o700)
            path.chmod(0o600)
            with suppress(ValueError):
                data = bytearray(path.read_bytes())
                data[rng.randrange(len(data))] ^= 1
                path.write_bytes(data)
        await lab.serve(holder, faulty(holder, rng.choice([0, 0, 0.1]), rng.choice([0, 0.05, 0.3])))
    node = lab.node("node")
    await node.trees.get(root)
    assert node.files_of(root) == files


@asynccontextmanager
async def reading_slowly(
    lab: Lab, node: Node, peer: pb.Peer, wanted: Sequence[pb.WantedChunk]
) -> AsyncIterator[None]:
    network = lab.network("two")
    channel = network.connect(node.offer.address, node.offer.certificate)
    call = channel.unary_stream(
        f"/{serving.SERVICE}/{serving.METHOD}",
        request_serializer=pb.GetChunksRequest.SerializeToString,
        response_deserializer=pb.GetChunksResponse.FromString,
    )(pb.GetChunksRequest(capability=peer.capability, chunks=wanted))
    await call.read()
    try:
        yield
    finally:
        call.cancel()
        await channel.close(None)


async def test_who_reads_nothing_holds_nobody_up_and_too_many_are_refused(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MOST_OF_ONE", serving.UPLOADS + 1)
    root, files = dataset(random.Random(8), lab.platform)
    one = lab.node("one")
    await one.trees.get(root)
    await lab.serve(one)
    large = files["odd \\x0aname"]
    wanted = [
        pb.WantedChunk(
            path="odd \\x0aname",
            offset=at,
            size=64 * KIB,
            digest=bytes.fromhex(digest_of(large[at : at + 64 * KIB])),
        )
        for at in range(0, len(large), 64 * KIB)
    ]
    more = wanted * 5
    """More than gRPC holds for whoever reads nothing: its windows grow to several megabytes."""
    peer = lab.peer(one, "two", root)
    network = lab.network("two")
    async with AsyncExitStack() as stack:
        for _ in range(serving.UPLOADS):
            await stack.enter_async_context(reading_slowly(lab, one, peer, more))
        assert len(await ask(lab, network, one, peer, *wanted)) == len(wanted)
        await stack.enter_async_context(reading_slowly(lab, one, peer, more))
        assert await ask(lab, network, one, peer) is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_connections_that_say_nothing_are_bounded(lab: Lab) -> None:
    one = lab.node("one")
    await lab.serve(one)
    port = int(one.offer.address.rpartition(":")[2])
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
    await until(lambda: sum(reader.at_eof() for reader, _ in streams) >= 300 - 256)
    for _, writer in streams:
        writer.close()
    root = digest_of(b"root")
    network = lab.network("two")

    async def answers() -> bool:
        return await ask(lab, network, one, lab.peer(one, "two", root)) == []

    async with asyncio.timeout(60):
        while not await answers():
            pass
