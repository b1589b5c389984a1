"""What waits for one Ingest stream: turns of replicas, and how much is sent ahead of answers."""

from __future__ import annotations

import asyncio

from nodeagent.collect.send_window import MESSAGE_CHUNKS, MESSAGES_AHEAD, REPLICA_CHUNKS, SendQueue
from nodeagent.folders import ReplicaId
from nsml.v1 import agents_pb2 as pb

REPLICAS = [ReplicaId(session_id="s" + name * 16, attempt=1, rank=0) for name in "abc"]


def chunk(size: int = 1) -> pb.Chunk:
    return pb.Chunk(first=1, last=size, data=b"x" * size)


async def is_waiting(task: asyncio.Task[object]) -> bool:
    for _ in range(20):
        await asyncio.sleep(0)
    return not task.done()


async def test_replicas_take_turns_and_each_keeps_its_order() -> None:
    queue = SendQueue()
    for replica, count in zip(REPLICAS, (60, 2, 1), strict=True):
        for number in range(1, count + 1):
            await queue.put(replica, pb.Chunk(first=REPLICAS.index(replica), last=number))
    sent = [(one.first, one.last) for one in (await queue.next_message()).chunks]
    assert sent[:6] == [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (0, 3)]
    assert sent == sorted(sent, key=lambda one: (one[1], one[0]))


async def test_a_message_is_bounded_by_bytes_and_by_chunks() -> None:
    queue = SendQueue()
    for replica in REPLICAS:
        for _ in range(REPLICA_CHUNKS):
            await queue.put(replica, chunk())
    assert len((await queue.next_message()).chunks) == MESSAGE_CHUNKS
    queue = SendQueue()
    for _ in range(10):
        await queue.put(REPLICAS[0], chunk(256 << 10))
    assert (await queue.next_message()).ByteSize() <= 1 << 20


async def test_little_is_sent_ahead_of_what_is_answered() -> None:
    queue = SendQueue()
    for _ in range(MESSAGES_AHEAD):
        await queue.put(REPLICAS[0], chunk())
        await queue.next_message()
    await queue.put(REPLICAS[0], chunk())
    async with asyncio.timeout(60):
        waiting = asyncio.create_task(queue.next_message())
        assert await is_waiting(waiting)
        queue.answered()
        assert len((await waiting).chunks) == 1


async def test_a_replica_waits_for_room_of_its_own_alone() -> None:
    queue = SendQueue()
    for _ in range(REPLICA_CHUNKS):
        await queue.put(REPLICAS[0], chunk())
    async with asyncio.timeout(60):
        waiting = asyncio.create_task(queue.put(REPLICAS[0], chunk()))
        assert await is_waiting(waiting)
        await queue.put(REPLICAS[1], chunk())
        await queue.next_message()
        await waiting


async def test_the_newest_reading_goes_with_the_next_message_and_needs_no_answer() -> None:
    queue = SendQueue()
    for _ in range(MESSAGES_AHEAD + 1):
        queue.offer(pb.NodeSample(sequence=1))
        queue.offer(pb.NodeSample(sequence=2))
        assert (await queue.next_message()).sample.sequence == 2
