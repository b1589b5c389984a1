"""What follows when a server no longer knows who we are, from one that forgets on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
import pytest

from controlplane.store.etcd import EtcdStore
from controlplane.store.etcd_members import Login
from controlplane.store.etcdpb import kv_pb2
from controlplane.store.etcdpb import rpc_pb2 as pb
from controlplane.store.interface import StoreRefused
from nsml.common.clock import SystemClock

ROOT = Login(user="root", password="correct")
DENIED = "rpc error: code = PermissionDenied desc = etcdserver: permission denied"


class Forgetful:
    """As much of an etcd as one key takes; `forgets` says before how many watches it restarts."""

    def __init__(self) -> None:
        self.forgets = 0
        self.may_read = True
        self.logins = 0
        self._tokens: set[str] = set()

    def forget(self) -> None:
        self._tokens.clear()

    def _knows(self, context: grpc.aio.ServicerContext[Any, Any]) -> bool:
        return dict(context.invocation_metadata() or ()).get("token") in self._tokens

    async def status(self, _: pb.StatusRequest, __: object) -> pb.StatusResponse:
        return pb.StatusResponse(version="3.5.21", leader=1)

    async def authenticate(self, _: pb.AuthenticateRequest, __: object) -> pb.AuthenticateResponse:
        self.logins += 1
        token = f"token.{self.logins}"
        self._tokens.add(token)
        return pb.AuthenticateResponse(token=token)

    async def range(
        self, request: pb.RangeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.RangeResponse:
        if not self._knows(context):
            code, words = grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token"
            await context.abort(code, words)
        if request.range_end and not self.may_read:
            code, words = grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied"
            await context.abort(code, words)
        return pb.RangeResponse(header=pb.ResponseHeader(revision=7))

    async def watch(
        self, asked: AsyncIterator[pb.WatchRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.WatchResponse]:
        await anext(asked)
        if self.forgets:
            self.forgets -= 1
            self.forget()
        if not self._knows(context) or not self.may_read:
            yield pb.WatchResponse(created=True, canceled=True, cancel_reason=DENIED)
            return
        yield pb.WatchResponse(created=True)
        item = kv_pb2.KeyValue(key=b"nsml/a", value=b"1", mod_revision=7)
        yield pb.WatchResponse(events=[kv_pb2.Event(kv=item)])
        await asyncio.Event().wait()


@pytest.fixture
async def forgetful() -> AsyncIterator[tuple[Forgetful, str]]:
    served, server = Forgetful(), grpc.aio.server()
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
    for service, name, made in (
        ("Maintenance", "Status", unary(served.status, pb.StatusRequest.FromString, _written)),
        (
            "Auth",
            "Authenticate",
            unary(served.authenticate, pb.AuthenticateRequest.FromString, _written),
        ),
        ("KV", "Range", unary(served.range, pb.RangeRequest.FromString, _written)),
        ("Watch", "Watch", stream(served.watch, pb.WatchRequest.FromString, _written)),
    ):
        generic = grpc.method_handlers_generic_handler(f"etcdserverpb.{service}", {name: made})
        server.add_generic_rpc_handlers((generic,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield served, f"http://127.0.0.1:{port}"
    finally:
        await server.stop(None)


def _written(message: Any) -> bytes:
    return message.SerializeToString()


async def test_a_watch_outlives_any_number_of_restarts(forgetful: tuple[Forgetful, str]) -> None:
    """A server that restarts again before the watch stands denies it again: that is no refusal."""
    server, endpoint = forgetful
    server.forgets = 4
    async with (
        EtcdStore([endpoint], clock=SystemClock(), login=ROOT, deadline_s=60) as store,
        asyncio.timeout(60),
        aclosing(store.watch("a", 7)) as batches,
    ):
        assert [event.key for event in (await anext(batches)).events] == ["a"]
    assert server.logins == 5


async def test_a_watch_without_rights_is_refused(forgetful: tuple[Forgetful, str]) -> None:
    server, endpoint = forgetful
    async with EtcdStore([endpoint], clock=SystemClock(), login=ROOT, deadline_s=60) as store:
        server.may_read = False
        with pytest.raises(StoreRefused, match="permission denied"):
            async with asyncio.timeout(60), aclosing(store.watch("a", 7)) as batches:
                await anext(batches)
    assert server.logins == 1
