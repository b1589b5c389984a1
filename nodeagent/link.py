"""The agent's way to the control plane: which address, over which channel, as whom."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import structlog
from google.protobuf.message import Message

from nodeagent.config import SettingsError
from nsml.client.rpc import Channel, Rpc
from nsml.clock import Clock

_FIRST_PAUSE_S = 0.1

log = structlog.get_logger()

ChannelFactory = Callable[[str], Channel]


class Link:
    """Every call of the agent starts here.

    `up` is set while the node is registered. Channels are kept until `close`: closing one would
    cancel the calls of others that still use it, and there are only as many as control planes.

    Args:
        server: where to dial first, and again when a leader cannot be reached.
        channel_factory: makes a channel to an address.
        dial_factory: makes a channel whose connection is shared with no other; by default the same.
        token: reads the node's bearer token, where no certificate says who it is; raises
            SettingsError.
    """

    def __init__(
        self,
        server: str,
        *,
        channel_factory: ChannelFactory,
        dial_factory: ChannelFactory | None = None,
        token: Callable[[], str] | None = None,
    ) -> None:
        self.up = asyncio.Event()
        self._server = server
        self._address = server
        self._factory = channel_factory
        self._dial_factory = dial_factory or channel_factory
        self._read_token = token
        self._token = token() if token is not None else None
        self._channels: dict[str, Channel] = {}
        self._retired: list[Channel] = []

    @property
    def address(self) -> str:
        """Where calls go now."""
        return self._address

    def follow(self, leader: str) -> None:
        """Dial `leader` from now on."""
        log.info("link.leader", address=leader)
        self._address = leader

    def forget_leader(self) -> None:
        """Dial the configured server again."""
        self._address = self._server

    def rpc(self) -> Rpc:
        """Calls with one request or one response."""
        return Rpc(self._channel(), token=self._token)

    def open(self, method: str, request: type[Message], response: type[Message]) -> Any:
        """A stream both ways, to be used by `write` and `read`; `method` is "Service/Method"."""
        return self._opened(self._channel(), method, request, response)

    @asynccontextmanager
    async def dial(
        self, method: str, request: type[Message], response: type[Message]
    ) -> AsyncIterator[Any]:
        """Like `open`, over a connection of its own; call and connection end with the context."""
        channel = self._dial_factory(self._address)
        try:
            call = self._opened(channel, method, request, response)
            try:
                yield call
            finally:
                call.cancel()
        finally:
            await channel.close()  # type: ignore[attr-defined]

    def _opened(
        self, channel: Channel, method: str, request: type[Message], response: type[Message]
    ) -> Any:
        opened = channel.stream_stream(
            f"/nsml.v1.{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return opened(metadata=(("authorization", f"Bearer {self._token}"),) if self._token else ())

    def read_token(self) -> None:
        """Read the token again; one that cannot be read leaves the old one."""
        if self._read_token is not None:
            try:
                self._token = self._read_token()
            except SettingsError as error:
                log.warning("link.token_unread", error=str(error))

    def refresh(self) -> None:
        """Make channels anew: what they prove themselves by has changed. Open calls go on."""
        self._retired += self._channels.values()
        self._channels = {}

    async def close(self) -> None:
        """Close all channels and with them all calls."""
        self.up.clear()
        self.refresh()
        retired, self._retired = self._retired, []
        for channel in retired:
            await channel.close()  # type: ignore[attr-defined]

    def _channel(self) -> Channel:
        channel = self._channels.get(self._address)
        if channel is None:
            channel = self._channels[self._address] = self._factory(self._address)
        return channel


class Backoff:
    """Pauses that grow from a tenth of a second to `longest_s`, each cut by chance."""

    def __init__(self, clock: Clock, rng: random.Random, *, longest_s: float) -> None:
        self._clock = clock
        self._rng = rng
        self._longest_s = longest_s
        self._failures = 0

    def reset(self) -> None:
        """It worked: begin with the shortest pause again."""
        self._failures = 0

    async def pause(self) -> None:
        """Sleep before the next attempt."""
        bound = min(_FIRST_PAUSE_S * 2 ** min(self._failures, 16), self._longest_s)
        self._failures += 1
        await self._clock.sleep(self._rng.uniform(bound / 4, bound))
