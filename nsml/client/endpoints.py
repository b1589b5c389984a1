"""Choose the control plane for each call, and fail over to others.

A call that fails because nobody answers is retried at the next address if it is idempotent
(`nsml.client.idempotency`). Other calls are retried only if they were certainly not sent, or were refused
before anything was done.
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
"""Wait for an idempotent call before another control plane is asked as well; and for a connection."""


class Endpoints:
    """Channels to the control planes of one platform, made as they are needed.

    `now`: the address that calls try first, until it fails.

    Args:
        open_channel: makes a channel to an address, not connected yet.
        addresses: at least one; the first is tried first.
        check: raises ClientError for an address to which no token may be sent now.

    Attributes:
        avoids_relay_until: tunnels use no relay before this time of the loop, in seconds: one was unreachable.
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
        """Wrap a single channel."""
        return cls(lambda _: channel, [""])

    def channel(self, address: str) -> Channel:
        """Return the channel to an address."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._open_channel(address)
        return channel

    def round(self) -> Iterator[str]:
        """Yield each address once, starting at `now`."""
        place = self.addresses.index(self.now)
        yield from self.addresses[place:]
        yield from self.addresses[:place]

    def failed(self, address: str) -> None:
        """If `now` is this address, move it to the next one."""
        if address == self.now:
            place = self.addresses.index(address) + 1
            self.now = self.addresses[place % len(self.addresses)]

    def worked(self, address: str) -> None:
        """Set `now` to this address."""
        self.now = address

    def warm(self) -> None:
        """Connect to the next address in advance, so that a failover takes no time."""
        if len(self.addresses) > 1:
            spare = list(self.round())[1]
            self.channel(spare).get_state(try_to_connect=True)  # type: ignore[attr-defined]

    async def is_connected(self, address: str) -> bool:
        """Wait for the connection to an address; False as soon as it has failed."""
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
"""Calls the control plane at an address, with a timeout in seconds. Raises ClientError."""


async def asked_of_any(ways: Endpoints, ask: Ask[T], within_s: float) -> T:
    """Return the first response; after PATIENCE_S of silence the next address is asked too."""
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
                    raise  # others would start over
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
    """Rank a failure: highest with a time to retry, lowest if the call had no effect."""
    return failure.retry_after_s is not None, not failure.is_undone


async def asked_once(ways: Endpoints, ask: Ask[T], within_s: float) -> T:
    """Return the response of the first reachable address; no retry once it may have the call."""
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
