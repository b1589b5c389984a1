"""The agents of the benchmarks lose no end, wherever their stream breaks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bench.agents import _STEPS, DEVICES, Agent, Papers
from nsml.v1 import agents_pb2

SESSIONS = ("one", "two")
WORDS = 1 + len(SESSIONS) * len(_STEPS["ends"])
"""What is said of such orders: that they are accepted, and each step of each replica."""


class Ingest:
    """Takes so many readings, and breaks at the next."""

    def __init__(self, takes: int) -> None:
        self.samples: list[agents_pb2.NodeSample] = []
        self._takes = takes

    async def write(self, message: agents_pb2.IngestRequest) -> None:
        if len(self.samples) == self._takes:
            raise asyncio.InvalidStateError
        self.samples.append(message.sample)


class Stream:
    """Takes so many messages, and breaks at the next; answers a registration."""

    def __init__(self, takes: int = 100) -> None:
        self.said: list[agents_pb2.ControlRequest] = []
        self._takes = takes

    async def write(self, message: agents_pb2.ControlRequest) -> None:
        if len(self.said) == self._takes:
            raise asyncio.InvalidStateError
        self.said.append(message)

    async def read(self) -> agents_pb2.ControlResponse:
        return agents_pb2.ControlResponse(registered=agents_pb2.Registered(cluster_id="c"))


@pytest.mark.parametrize("takes", range(WORDS))
async def test_what_a_broken_stream_did_not_take_is_said_to_the_next(takes: int) -> None:
    ordered: list[str] = []
    nothing: Any = lambda *_: None  # noqa: E731
    agent = Agent(
        node="n",
        papers=Papers(key=b"", certificate=b"", authority=b"", address=""),
        steps=_STEPS["ends"],
        ordered=ordered.append,
        ended=nothing,
        registered=nothing,
        broken=nothing,
    )
    replicas = [agents_pb2.ReplicaId(session_id=one, attempt=1) for one in SESSIONS]
    orders = agents_pb2.Orders(
        term=1, revision=1, assignments=[agents_pb2.Assignment(replica=one) for one in replicas]
    )
    with pytest.raises(asyncio.InvalidStateError):
        await agent._obey(Stream(takes), orders)
    again = Stream()
    await agent._register(again)
    reports = [message.report for message in again.said if message.HasField("report")]
    assert {one.replica.session_id: one.phase for one in reports} == dict.fromkeys(
        SESSIONS, agents_pb2.REPLICA_PHASE_FINALIZED
    )
    assert ordered == list(SESSIONS)


async def test_readings_of_all_devices_go_on_where_they_were_on_the_next_stream() -> None:
    sent: list[None] = []
    nothing: Any = lambda *_: None  # noqa: E731
    agent = Agent(
        node="n",
        papers=Papers(key=b"", certificate=b"", authority=b"", address=""),
        steps=(),
        ordered=nothing,
        ended=nothing,
        registered=nothing,
        broken=nothing,
        readings_every_s=0.001,
        sent=lambda: sent.append(None),
    )
    streams = [Ingest(3), Ingest(2)]
    for one in streams:
        with pytest.raises(asyncio.InvalidStateError):
            await agent._read_devices(one)
    # The fourth was lost with its stream, as an agent's are.
    assert [sample.sequence for one in streams for sample in one.samples] == [1, 2, 3, 5, 6]
    assert len(sent) == 5
    uuids = {device.uuid for device in streams[0].samples[0].devices}
    assert uuids == {f"GPU-n-{index}" for index in range(DEVICES)}
