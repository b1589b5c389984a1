"""Requests that are never whole: all users together hold no more than their budget, and it is shared fairly."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any, Self
from urllib.parse import unquote

import grpc
import h2.connection
import pytest

from controlplane.access import anonymous_limits as anonymous
from controlplane.access import interceptor
from controlplane.access.incoming_memory import (
    AHEAD_BYTES,
    LIMIT,
    MESSAGE_BYTES,
    STRANGERS,
    Arriving,
    Message,
)
from controlplane.domain.errors import LimitReached
from controlplane.startup.server import GRPC_OPTIONS
from controlplane.wire.errors import refuse
from tests.unit.controlplane.rig import until

from .conftest import Door
from .test_interceptor import Everything, outcome, serving, tokens_of_everybody
from .test_places import BOTH, ONE, PUT, _head

OPTIONS = tuple({**dict(GRPC_OPTIONS), "grpc.server_handshake_timeout_ms": 60_000}.items())
"""Those of a server; a busy machine may take its time."""
HEALTH = anonymous.CHECK
FIND = "/nsml.v1.ContentService/FindMissingBlobs"


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of these ends for want of time, however busy the machine is."""
    monkeypatch.setattr(interceptor, "REQUEST_WITHIN_S", 600.0)
    monkeypatch.setattr(anonymous, "REQUEST_WITHIN_S", 600.0)


class Halves:
    """Requests of which only the first bytes come, on a connection of their own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._http = h2.connection.H2Connection()
        self._http.initiate_connection()
        self.ends: list[tuple[int, str]] = []
        """Code and words of those that have ended."""

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._reading = asyncio.create_task(self._read())
        self._writer.write(self._http.data_to_send())  # a server waits two seconds for it
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        self._writer.transport.abort()

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(1 << 16):
                for event in self._http.receive_data(data):
                    headers = dict(getattr(event, "headers", None) or ())
                    if code := headers.get(b"grpc-status"):
                        words = unquote(headers[b"grpc-message"].decode())
                        self.ends.append((int(code), words))
                self._writer.write(self._http.data_to_send())

    async def begin(self, method: str, token: str | None, count: int, before: bytes = b"") -> None:
        """Open calls whose message of 4 MB does not end; `before` is sent first."""
        half = b"\0" + (MESSAGE_BYTES - 8).to_bytes(4, "big") + bytes(100)
        for _ in range(count):
            stream = self._http.get_next_available_stream_id()
            self._http.send_headers(stream, _head(method, token))
            self._http.send_data(stream, before + half)
        self._writer.write(self._http.data_to_send())
        await self._writer.drain()

    @property
    def refused(self) -> int:
        """How many have ended for want of room; none ends for anything else."""
        exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert all(code == exhausted and "large requests" in words for code, words in self.ends)
        return len(self.ends)


async def holds(arriving: Arriving, expected: dict[str, int], why: str) -> None:
    async def does() -> bool:
        return {who: size / MESSAGE_BYTES for who, size in arriving._bytes.items()} == expected

    await until(does, why)


async def test_unfinished_requests_of_all_users_share_one_budget(door: Door) -> None:
    refused: Counter[str] = Counter()
    arriving = Arriving(8 * MESSAGE_BYTES, refused)
    async with serving(door, arriving=arriving, options=OPTIONS) as channel:
        tokens = await tokens_of_everybody(door)
        port = vars(channel)["port"]
        async with Halves(port) as greedy, Halves(port) as modest, Halves(port) as others:
            await greedy.begin(ONE, tokens["member"], 20)
            await holds(arriving, {"kim": 8}, "one user alone has all of it, and no more")
            await modest.begin(ONE, tokens["other"], 3)
            await others.begin(HEALTH, None, 2)
            await others.begin(ONE, tokens["admin"], 2)
            await others.begin(FIND, tokens["node"], 2)
            shared: dict[str, int] = {"kim": 3, "lee": 3, STRANGERS: 2}
            await holds(arriving, shared, "the user with the most makes room")
            for who in ("other", "member", "admin", "node", "anonymous"):
                method = HEALTH if who in {"node", "anonymous"} else ONE
                answer = await outcome(channel, method, tokens[who])
                assert answer.startswith("open"), "whole requests are answered beside them"

            async def are_known() -> bool:
                return greedy.refused == 17

            await until(are_known, "those that made room know why")
            assert modest.refused == others.refused == 0
            assert refused == {LIMIT: 17}
        await holds(arriving, {}, "with their connections their room is free")


async def test_further_messages_of_an_upload_count_and_quiet_streams_do_not(door: Door) -> None:
    ended: list[Exception] = []

    class Reads(Everything):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            if details.method != PUT:
                return super().service(details)

            async def answer(requests: Any, context: Any) -> bytes:
                try:
                    async for _ in requests:
                        pass
                except LimitReached as error:
                    ended.append(error)
                    await refuse(context, error)
                return b""

            return grpc.stream_unary_rpc_method_handler(answer)

    arriving = Arriving(2 * MESSAGE_BYTES)
    whole = bytes(5)
    async with serving(door, arriving=arriving, options=OPTIONS, generic=Reads()) as channel:
        tokens = await tokens_of_everybody(door)
        async with Halves(vars(channel)["port"]) as uploads, Halves(vars(channel)["port"]) as quiet:
            await quiet.begin(BOTH, tokens["member"], 3, before=whole)
            await uploads.begin(PUT, tokens["member"], 3, before=whole)

            async def is_refused() -> bool:
                return uploads.refused == 1 and len(ended) == 1

            await until(is_refused, "one upload too many ends")
            await holds(arriving, {"kim": 2}, "the others go on")
            assert quiet.ends == []


async def test_calls_that_wait_for_their_turn_count_for_what_is_here_of_them(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interceptor, "MOST_REQUESTS", 1)
    arriving = Arriving(2 * MESSAGE_BYTES)
    async with serving(door, arriving=arriving, options=OPTIONS) as channel:
        tokens = await tokens_of_everybody(door)
        async with Halves(vars(channel)["port"]) as halves:
            await halves.begin(ONE, tokens["member"], 5)
            part = AHEAD_BYTES / MESSAGE_BYTES
            await holds(arriving, {"kim": 1 + 4 * part}, "one is read, four wait")  # type: ignore[dict-item]


async def test_of_equals_the_one_that_waited_longest_makes_room() -> None:
    ended: list[str] = []

    def message(who: str) -> Message:
        return Message(arriving, who, MESSAGE_BYTES, lambda: ended.append(who), None)

    arriving = Arriving(3 * MESSAGE_BYTES)
    old, middle, new, late = (message(who) for who in ("kim", "lee", "ann", "joe"))
    for one in (old, middle, new, late):
        arriving.count(one)
    assert ended == ["kim"]
    assert old.is_given_up
    for one in (old, middle, new, late):
        one.over()
    assert not arriving._bytes
    assert not arriving._by_user


async def test_no_limit_is_none() -> None:
    arriving = Arriving(0)
    for _ in range(1_000):
        arriving.count(Message(arriving, "kim", MESSAGE_BYTES, lambda: pytest.fail("ended"), None))


def test_what_one_message_may_take_is_what_the_server_says() -> None:
    options = dict(GRPC_OPTIONS)
    assert options["grpc.max_receive_message_length"] == MESSAGE_BYTES
    assert options["grpc.http2.lookahead_bytes"] == AHEAD_BYTES
