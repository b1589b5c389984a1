"""The agent's way to the control planes: which addresses, over which channels, as whom."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import structlog
from google.protobuf.message import Message

from nodeagent.config import SettingsError
from nodeagent.link.routes import Routes
from nsml.client.channel import Channel
from nsml.client.endpoints import Endpoints
from nsml.client.rpc import Rpc
from nsml.common.backoff import backoff_s
from nsml.common.clock import Clock
from nsml.spec.metadata import RELAY

_FIRST_PAUSE_S = 0.1
_CONNECTED_WITHIN_S = 0.5
"""A leader that takes longer is asked through another control plane."""

log = structlog.get_logger()


class ChannelFactory(Protocol):
    """Makes channels, not connected yet."""

    def __call__(self, address: str, *, is_hasty: bool = False, is_own: bool = False) -> Channel:
        """A channel to `address`; SettingsError where none may be made to it.

        `is_hasty`: it breaks soon when the other end hangs, for where there is another to go to.
        `is_own`: its connection is shared with no other.
        """
        ...


class Link:
    """Every call of the agent starts here.

    Control streams and tunnels go to the leader, over the route that `routes` decides. Everything else
    goes to any control plane, and moves by itself: whoever is there takes it, also while nobody leads.

    `up` is set while the node is registered, `known` from the first time on. Channels are kept until
    `close`: closing one would cancel the calls of others that still use it, and there are only as many
    as control planes.

    Args:
        servers: where to dial first; there is always one to come back to.
        channel_factory: makes a channel to an address; SettingsError where none may be made to it.
        token: reads the node's bearer token, where no certificate says who it is; raises
            SettingsError.
        node: its name.
        learned: addresses from an earlier life.
        check: raises ClientError for an address to which the token may not be sent now.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        channel_factory: ChannelFactory,
        token: Callable[[], str] | None = None,
        node: str = "",
        learned: Iterable[str] = (),
        check: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.up = asyncio.Event()
        self.known = asyncio.Event()
        self._factory = channel_factory
        self._check = check
        self._read_token = token
        self._token = token() if token is not None else None
        self._channels: dict[str, Channel] = {}
        self._retired: list[Channel] = []
        self.routes = Routes(node, servers)
        self._ways = Endpoints(self._channel, self.routes.addresses, self._check)
        self.learn(learned)
        self.routes.begin()

    @property
    def address(self) -> str:
        """Where the Control stream goes now."""
        return self.routes.now.address

    @property
    def ways(self) -> Endpoints:
        """To any control plane, in this node's own order."""
        return self._ways

    def learn(self, addresses: Iterable[str]) -> bool:
        """Take the word where the control planes are; whether that is news.

        Only such are taken as the settings let one dial: nobody is trusted for being named.
        """
        was_alone = self.is_alone
        is_news = self.routes.learn(filter(self.may_dial, addresses))
        if was_alone and not self.is_alone:
            self.refresh()  # channels that are left soon
        elif is_news:
            self._renew_ways()
        if is_news:
            log.info("link.learned", addresses=self.routes.addresses)
        return is_news

    @property
    def is_alone(self) -> bool:
        """Whether only one control plane is known."""
        return len(self.routes.addresses) == 1

    def may_dial(self, address: str) -> bool:
        """Whether the settings allow a channel to this address."""
        try:
            self._channel(address)
        except SettingsError as error:
            log.info("link.not_allowed", address=address, error=str(error))
            return False
        return True

    def warm(self) -> None:
        """Be connected to all of them, so that moving takes no time."""
        for address in self.routes.addresses:
            self._channel(address).get_state(try_to_connect=True)  # type: ignore[attr-defined]

    async def is_connected(self) -> bool:
        """Whether the control plane of the route is there; waits a moment for the connection.

        With nowhere else to go the call itself shall say.
        """
        if self.routes.addresses == (self.address,):
            return True
        try:
            async with asyncio.timeout(_CONNECTED_WITHIN_S):
                return await Endpoints(self._channel, [self.address]).is_connected(self.address)
        except TimeoutError:
            return False

    def rpc(self, *, seen: int = 0) -> Rpc:
        """Calls with one request or one response, of any control plane that knows what we have `seen`."""
        return Rpc(self._ways, token=self._token, seen=seen)

    def open(self, method: str, request: type[Message], response: type[Message]) -> Any:
        """A stream both ways to the leader, to be used by `write` and `read`; raises ClientError.

        `method` is "Service/Method".
        """
        return self._opened(self.address, method, request, response, self._relayed())

    def open_any(self, method: str, request: type[Message], response: type[Message]) -> Any:
        """The same to any control plane; who finds it broken says so to `ways`."""
        return self._opened(self._ways.now, method, request, response, ())

    @asynccontextmanager
    async def dial(
        self, method: str, request: type[Message], response: type[Message]
    ) -> AsyncIterator[Any]:
        """Like `open`, over a connection of its own; call and connection end with the context."""
        address = self.address
        channel = self._made(address, is_own=True)
        try:
            call = self._opened(
                address, method, request, response, self._relayed(), channel=channel
            )
            try:
                yield call
            finally:
                call.cancel()
        finally:
            await channel.close()  # type: ignore[attr-defined]

    def _relayed(self) -> tuple[tuple[str, str], ...]:
        return ((RELAY, "1"),) if self.routes.now.is_relayed else ()

    def _opened(
        self,
        address: str,
        method: str,
        request: type[Message],
        response: type[Message],
        metadata: tuple[tuple[str, str], ...],
        *,
        channel: Channel | None = None,
    ) -> Any:
        if self._token:  # with a certificate the other end proves who it is
            self._check(address)
        opened = (channel or self._channel(address)).stream_stream(
            f"/nsml.v1.{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        if self._token:
            metadata = (("authorization", f"Bearer {self._token}"), *metadata)
        return opened(metadata=metadata)

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
        self._renew_ways()

    async def close(self) -> None:
        """Close all channels and with them all calls."""
        self.up.clear()
        self.refresh()
        retired, self._retired = self._retired, []
        for channel in retired:
            await channel.close()  # type: ignore[attr-defined]

    def _renew_ways(self) -> None:
        now = self._ways.now
        self._ways = Endpoints(self._channel, self.routes.addresses, self._check)
        if now in self._ways.addresses:
            self._ways.worked(now)

    def _channel(self, address: str) -> Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._made(address)
        return channel

    def _made(self, address: str, *, is_own: bool = False) -> Channel:
        return self._factory(address, is_hasty=not self.is_alone, is_own=is_own)


class Backoff:
    """Pauses that grow from a tenth of a second to `longest_s`, each cut by chance.

    Args:
        free: how many attempts are made before the first pause: one for each place to go to.
    """

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        *,
        longest_s: float,
        free: Callable[[], int] = lambda: 0,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._longest_s = longest_s
        self._free = free
        self._failures = 0

    def reset(self) -> None:
        """It worked: begin with the shortest pause again."""
        self._failures = 0

    async def pause(self) -> None:
        """Sleep before the next attempt."""
        failures = self._failures - self._free()
        self._failures += 1
        if failures < 0:
            return
        bound = backoff_s(_FIRST_PAUSE_S, failures, self._longest_s)
        await self._clock.sleep(self._rng.uniform(bound / 4, bound))
