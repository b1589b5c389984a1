"""However a call ends, its place is free again: none of them is ever lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import h2.connection
import h2.exceptions
import pytest

from controlplane.access import anonymous_limits as anonymous
from controlplane.access import incoming_memory as arriving
from controlplane.access import interceptor
from controlplane.access.interceptor import AccessInterceptor
from tests.unit.controlplane.rig import until

from .conftest import Door
from .test_interceptor import SHAPES, serving, tokens_of_everybody

CALLS = 600
AT_ONCE = 60
ONE = "/nsml.v1.SessionService/GetSession"
MANY = "/nsml.v1.SessionService/ReadLogs"
PUT = "/nsml.v1.ContentService/PutBlobs"
BOTH = "/nsml.v1.SessionService/OpenTunnel"


class Moody(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers soon or late, shortly or at length, or fails."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def _answer(self) -> bytes:
        if self._chance.random() < 0.5:
            await asyncio.sleep(self._chance.uniform(0, 0.03))
        if self._chance.random() < 0.1:
            raise ValueError("it fails")
        return bytes(self._chance.choice((1, 100, 1 << 20)))

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        takes_many, gives_many = SHAPES[details.method]

        async def answer(requests: Any, _: Any) -> bytes:
            if takes_many:
                async for _request in requests:
                    pass
            return await self._answer()

        async def stream(requests: Any, _: Any) -> AsyncIterator[bytes]:
            if takes_many:
                async for _request in requests:
                    yield await self._answer()
            for _ in range(3):
                yield await self._answer()

        make = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[(takes_many, gives_many)]
        return make(stream if gives_many else answer)


class Callers:
    """Calls that end in every way: by themselves, by deadline or cancellation, with half a request or none,
    with their connection, and with answers that are never taken."""

    def __init__(
        self, channel: grpc.aio.Channel, tokens: list[str | None], chance: random.Random
    ) -> None:
        self._channel = channel
        self._tokens = tokens
        self._chance = chance

    async def one(self) -> None:
        kinds: tuple[Callable[[str, str | None], Awaitable[None]], ...] = (
            self._ordinary,
            self._unwritten,
            self._raw,
        )
        method = self._chance.choice((ONE, ONE, MANY, PUT, BOTH))
        await self._chance.choice(kinds)(method, self._chance.choice(self._tokens))

    async def _ordinary(self, method: str, token: str | None) -> None:
        """A whole request, and perhaps an early end."""
        takes_many, gives_many = SHAPES[method]
        kind = f"{'stream' if takes_many else 'unary'}_{'stream' if gives_many else 'unary'}"
        request = iter([b"x"] * self._chance.randrange(4)) if takes_many else b"x"
        call = getattr(self._channel, kind)(method)(
            request, metadata=_metadata(token), timeout=self._chance.choice((0.001, 0.02, 60))
        )
        await self._ended(call, self._read(call) if gives_many else call)

    async def _unwritten(self, method: str, token: str | None) -> None:
        """No request."""
        deadline = self._chance.uniform(0.001, 0.05)
        call = self._channel.stream_unary(method)(metadata=_metadata(token), timeout=deadline)
        await self._ended(call, call)

    async def _ended(self, call: Any, end: Awaitable[object]) -> None:
        cancelling = None
        if self._chance.random() < 0.4:
            cancelling = asyncio.get_running_loop().call_later(
                self._chance.uniform(0, 0.03), call.cancel
            )
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            await end
        if cancelling is not None:
            cancelling.cancel()

    async def _read(self, call: Any) -> None:
        async for _ in call:
            if self._chance.random() < 0.2:
                call.cancel()

    async def _raw(self, method: str, token: str | None) -> None:
        """A connection of its own, which takes no answers and ends, perhaps within a message."""
        _, writer = await asyncio.open_connection("127.0.0.1", vars(self._channel)["port"])
        http = h2.connection.H2Connection()
        http.local_settings.initial_window_size = self._chance.choice((0, 1 << 20))
        http.initiate_connection()
        for _ in range(self._chance.randrange(1, 10)):
            stream = http.get_next_available_stream_id()
            http.send_headers(stream, _head(method, token))
            match self._chance.randrange(4):
                case 0:
                    http.send_data(stream, bytes(5), end_stream=True)
                case 1:
                    http.send_data(stream, b"\0\0\0\1\0half")
                case 2:
                    http.send_data(stream, bytes(5))
                    http.reset_stream(stream)
        writer.write(http.data_to_send())
        with contextlib.suppress(OSError):
            await writer.drain()
            await asyncio.sleep(self._chance.uniform(0, 0.05))
        if self._chance.random() < 0.5:
            writer.transport.abort()
        writer.close()


def _metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),) if token else ()


def _head(method: str, token: str | None) -> list[tuple[str, str]]:
    head = {
        ":method": "POST",
        ":scheme": "http",
        ":authority": "x",
        ":path": method,
        "content-type": "application/grpc",
        "te": "trailers",
    }
    return [*head.items(), *_metadata(token)]


def taken(access: AccessInterceptor) -> dict[str, object]:
    """Places that are taken or waited for."""
    requests, calls = access._requests, access._anonymous
    pools = (calls._common, *calls._own.values())
    found = {
        "held": dict(requests._held),
        "waiting": dict(requests._queues),
        "open": [dict(one.open) for one in pools if one.open],
        "unfinished": [len(one.waiting) for one in pools if one.waiting],
        "arriving": dict(access._arriving._by_user) | dict(access._arriving._bytes),
    }
    return {name: value for name, value in found.items() if value}


async def test_no_place_is_lost_however_calls_end(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(os.environ.get("NSML_SEED", random.randrange(1 << 32)))
    print("NSML_SEED", seed)
    chance = random.Random(seed)
    # So few that many wait, and some are refused.
    monkeypatch.setattr(interceptor, "MOST_REQUESTS", 4)
    monkeypatch.setattr(interceptor, "_MOST_WAITING", 8)
    monkeypatch.setattr(anonymous, "CALLS", anonymous.Room(4, 8))
    monkeypatch.setattr(anonymous, "REQUEST_WITHIN_S", 0.1)
    monkeypatch.setattr(arriving, "LATE_S", 0.001)
    few = arriving.Arriving(4 * arriving.MESSAGE_BYTES)
    async with serving(door, generic=Moody(chance), arriving=few) as channel:
        access = vars(channel)["access"]
        tokens = await tokens_of_everybody(door)
        callers = Callers(
            channel, [tokens[who] for who in ("member", "other", "anonymous", "node")], chance
        )
        waited: list[str] = []
        wait = access._requests._wait

        async def noted(who: str) -> None:
            waited.append(who)
            await wait(who)

        monkeypatch.setattr(access._requests, "_wait", noted)

        async def some() -> None:
            for _ in range(CALLS // AT_ONCE):
                await callers.one()

        async def all_are_free() -> bool:
            return not taken(access)

        # Somebody holds all places of a user until others wait.
        held = [
            channel.stream_unary(ONE)(metadata=_metadata(tokens["member"]), timeout=60)
            for _ in range(2 * interceptor.MOST_REQUESTS)
        ]

        async def somebody_waits() -> bool:
            return bool(waited)

        await until(somebody_waits, f"all places of a user are taken; seed {seed}")
        monkeypatch.setattr(interceptor, "REQUEST_WITHIN_S", 0.2)
        others = asyncio.gather(*(some() for _ in range(AT_ONCE)))
        for call in held:
            call.cancel()
        await others
        await until(all_are_free, f"no place is taken; seed {seed}")
        assert access._requests._free == sys.maxsize
