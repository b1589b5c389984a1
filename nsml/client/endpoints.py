"""Which of a platform's control planes a call goes to, and when it goes to another one.

A call that failed because nobody was there goes on at the next address, if that can do no harm: if it is
idempotent (`nsml.client.idempotency`). All others go elsewhere only where they surely were not sent, or
were refused before anything was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from nsml.client.errors import StillWorking, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsml.client.channel import Channel

T = TypeVar("T")

PATIENCE_S = 1.0
"""Of a call that may be repeated, before another control plane is asked as well; and for a connection."""


class Endpoints:
    """Channels to the control planes of one platform, made as they are needed.

    `now` is the one that calls take first: it stays until it fails.

    Args:
        open_channel: makes a channel to an address, not connected yet.
        addresses: at least one; the first is tried first.
        check: raises ClientError for an address to which no token may be sent now.

    Attributes:
        avoids_relay_until: tunnels take no relay before this time of the loop, in seconds: one was out of reach.
    """

    def __init__(
        self,
        open_channel: Callable[[str], Channel],
        addresses: Sequence[str],
        check: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._open_channel = open_channel
        self.check = check
        self._channels: dict[str, Channel] = {}
        self.addresses = tuple(dict.fromkeys(addresses))
        self.now = self.addresses[0]
        self.avoids_relay_until = 0.0

    @classmethod
    def alone(cls, channel: Channel) -> Endpoints:
        """The one way there is."""
        return cls(lambda _: channel, [""])

    def channel(self, address: str) -> Channel:
        """The channel to one of the addresses."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._open_channel(address)
        return channel

    def round(self) -> Iterator[str]:
        """Each address once, from the one that is used now."""
        place = self.addresses.index(self.now)
        yield from self.addresses[place:]
        yield from self.addresses[:place]

    def failed(self, address: str) -> None:
        """Nobody is there: calls take the next one from now on."""
        if address == self.now:
            place = self.addresses.index(address) + 1
            self.now = self.addresses[place % len(self.addresses)]

    def worked(self, address: str) -> None:
        """Calls take this one from now on."""
        self.now = address

    def warm(self) -> None:
        """Connect to the one that would be next, so that moving there takes no time."""
        if len(self.addresses) > 1:
            spare = list(self.round())[1]
            self.channel(spare).get_state(try_to_connect=True)  # type: ignore[attr-defined]

    async def is_connected(self, address: str) -> bool:
        """Wait for the connection to an address; False as soon as there cannot be one."""
        channel: Any = self.channel(address)
        state = channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            if state in {
                grpc.ChannelConnectivity.TRANSIENT_FAILURE,
                grpc.ChannelConnectivity.SHUTDOWN,
            }:
                return False
            await channel.wait_for_state_change(state)
            state = channel.get_state(try_to_connect=True)
        return True

    async def close(self) -> None:
        """Close all channels and with them all calls."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()  # type: ignore[attr-defined]


Ask = Callable[[str, float], Awaitable[T]]
"""Asks the control plane at an address, within so many seconds. Raises ClientError."""


async def asked_of_any(ways: Endpoints, ask: Ask[T], within_s: float) -> T:
    """The first answer that there is; who says nothing for a while is not waited for alone."""
    now = asyncio.get_running_loop().time
    deadline = now() + within_s
    untried = list(ways.round())
    waiting: dict[asyncio.Future[T], str] = {}
    failure: Unavailable | None = None
    try:
        while untried or waiting:
            if untried:
                address = untried.pop(0)
                waiting[asyncio.ensure_future(ask(address, deadline - now()))] = address
            done, _ = await asyncio.wait(
                waiting,
                timeout=PATIENCE_S if untried else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for one in [one for one in waiting if one in done]:
                address = waiting.pop(one)
                try:
                    answer = one.result()
                except StillWorking:
                    ways.worked(address)
                    raise  # others would begin anew
                except Unavailable as error:
                    ways.failed(address)
                    if failure is None or _tells(error) >= _tells(failure):
                        failure = error
                else:
                    ways.worked(address)
                    return answer
    finally:
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    raise failure or Unavailable("nobody was asked")


def _tells(failure: Unavailable) -> tuple[bool, bool]:
    """How much a failure tells: most who says when to come again, least who was not there."""
    return failure.retry_after_s is not None, not failure.is_undone


async def asked_once(ways: Endpoints, ask: Ask[T], within_s: float) -> T:
    """The answer of the first that is there; nobody else is asked once it may have heard."""
    now = asyncio.get_running_loop().time
    deadline = now() + within_s
    failure = Unavailable("there is no connection")
    failure.is_undone = True
    for address in ways.round():
        try:
            async with asyncio.timeout(PATIENCE_S):
                is_connected = await ways.is_connected(address)
        except TimeoutError:
            is_connected = False
        if is_connected:
            try:
                answer = await ask(address, deadline - now())
            except StillWorking:
                ways.worked(address)
                raise
            except Unavailable as error:
                failure = error
                if not error.is_undone:
                    ways.failed(address)
                    raise
            else:
                ways.worked(address)
                return answer
        ways.failed(address)
    raise failure
