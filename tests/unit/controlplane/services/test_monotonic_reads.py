"""No caller sees time go back, whichever control plane answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc.aio
import pytest

from controlplane.domain.identity import Role
from controlplane.stored import etcd_codec
from controlplane.wire import monotonic_reads as freshness
from nsml.client.calls import Client
from nsml.client.endpoints import Endpoints
from nsml.client.errors import Unavailable
from nsml.client.streams import watch_sessions
from nsml.spec.metadata import REVISION
from nsml.v1 import accounts_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Rig, serving, surroundings


class Late:
    """A store whose news come when they are let through."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.passes = asyncio.Event()
        self.passes.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Any]:
        async with aclosing(self._store.watch(prefix, from_revision)) as batches:
            async for batch in batches:
                await self.passes.wait()
                yield batch


@contextlib.asynccontextmanager
async def two() -> AsyncIterator[tuple[Rig, Rig, Late, Client]]:
    """Two control planes, the second of which can be made late, and one client of both."""
    async with surroundings() as on:
        late = Late(on.store)
        async with (
            serving(on) as first,
            serving(replace(on, store=late)) as second,
            contextlib.AsyncExitStack() as stack,
        ):
            await first.plane.core.accounts.create_user("kim", Role.MEMBER, "")
            token = await first.plane.core.accounts.create_token("kim", 3600)
            ways = Endpoints(grpc.aio.insecure_channel, [first.address, second.address])
            stack.push_async_callback(ways.close)
            yield first, second, late, Client(ways, token=token.secret.text)


def submission(number: int) -> pb.CreateSessionRequest:
    return pb.CreateSessionRequest(request_id=f"r{number}", spec=pb.SessionSpec(argv=["true"]))


async def test_who_moves_to_one_that_is_late_sees_all_that_was_answered() -> None:
    async with two() as (first, second, late, client):
        late.passes.clear()
        made = await client.sessions.create(submission(1))
        client.rpc.ways.failed(first.address)
        listing = asyncio.create_task(client.sessions.page(pb.ListSessionsRequest()))
        _, pending = await asyncio.wait({listing}, timeout=0.3)
        assert pending, "it answered before it could know"
        assert second.plane.core.state.session(made.id) is None
        late.passes.set()
        assert [one.id for one in (await listing).sessions] == [made.id]


async def test_what_a_watch_told_is_not_taken_back() -> None:
    async with two() as (first, _, late, client):
        late.passes.clear()
        async with aclosing(watch_sessions(client, pb.SessionFilter())) as answers:
            seen = (await anext(answers)).revision
            made = await client.sessions.create(submission(1))
            async for answer in answers:
                assert answer.revision >= seen
                if any(one.id == made.id for one in answer.changed):
                    break
        client.rpc.ways.failed(first.address)
        asyncio.get_running_loop().call_later(0.2, late.passes.set)
        assert [one.id async for one in client.sessions.every(pb.SessionFilter())] == [made.id]


async def test_one_that_stays_behind_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freshness, "CATCH_UP_S", 0.1)
    async with two() as (first, second, late, client):
        late.passes.clear()
        await client.sessions.create(submission(1))
        alone = Client(
            client.rpc.ways.channel(second.address),
            token=dict(client.rpc._metadata())["authorization"].removeprefix("Bearer "),
        )
        alone.rpc.has_seen(client.rpc.seen)
        with pytest.raises(Unavailable, match="behind"):
            await alone.sessions.page(pb.ListSessionsRequest())
        # The client of both asks the other one.
        client.rpc.ways.failed(first.address)
        assert len((await client.sessions.page(pb.ListSessionsRequest())).sessions) == 1
        late.passes.set()


@pytest.mark.parametrize("said", ["x", "-1", "1" * 40, "999999999999999999", "\u0661"])
async def test_a_revision_that_never_was_is_waited_for_by_nobody(said: str) -> None:
    async with two() as (_, _, _, client):
        call = client.rpc.ways.channel(client.rpc.ways.now).unary_unary(
            "/nsml.v1.SessionService/ListSessions",
            request_serializer=pb.ListSessionsRequest.SerializeToString,
            response_deserializer=pb.ListSessionsResponse.FromString,
        )
        key = REVISION if said.isascii() else f"{REVISION}-bin"
        value = said if said.isascii() else said.encode()
        metadata = (*client.rpc._metadata(), (key, value))
        assert await call(pb.ListSessionsRequest(), metadata=metadata, timeout=60) is not None


async def test_nobody_unknown_has_the_store_asked() -> None:
    """What it is said to have seen costs a read of the store: that is for those who are known."""
    async with two() as (_, second, late, client):
        read: list[str] = []

        async def listing(prefix: str, **how: Any) -> Any:
            read.append(prefix)
            return await late._store.list(prefix, **how)

        late.list = listing  # type: ignore[attr-defined] # before the store's own
        call = client.rpc.ways.channel(second.address).unary_unary(
            "/nsml.v1.AccountService/JoinNode",
            request_serializer=accounts_pb2.JoinNodeRequest.SerializeToString,
            response_deserializer=accounts_pb2.JoinNodeResponse.FromString,
        )
        newest = ((REVISION, "999999999999999999"),)
        for metadata, asked in ((newest, 0), ((*newest, *client.rpc._metadata()), 1)):
            with pytest.raises(grpc.aio.AioRpcError):
                await call(accounts_pb2.JoinNodeRequest(), metadata=metadata, timeout=60)
            assert read.count(etcd_codec.CLUSTER) == asked
