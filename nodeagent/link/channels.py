"""The agent's connection to the control planes: addresses, channels, and credentials."""

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
"""If a leader takes longer, another control plane relays to it."""

log = structlog.get_logger()


class ChannelFactory(Protocol):
    """Creates unconnected channels."""

    def __call__(self, address: str, *, is_hasty: bool = False, is_own: bool = False) -> Channel:
        """Return a channel to `address`; SettingsError if it is not allowed.

        `is_hasty`: breaks soon when the other end hangs, if there is another to go to.
        `is_own`: its connection is not shared.
        """
        ...


class Link:
    """Makes all calls of the agent.

    Control streams and tunnels go to the leader, over the route chosen by `routes`. Everything else
    goes to any control plane, and fails over by itself: any one present serves it, also without a leader.

    `up` is set while the node is registered, `known` from the first time on. Channels are kept until
    `close`: closing one would cancel others' calls on it, and there are only as many as control
    planes.

    Args:
        servers: addresses to dial first; they are never dropped.
        channel_factory: creates a channel to an address; SettingsError if it is not allowed.
        token: reads the node's bearer token, for a node without a certificate; raises
            SettingsError.
        node: its name.
        learned: addresses from an earlier run.
        check: raises ClientError for an address that must not get the token now.
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
        """Address of the Control stream now."""
        return self.routes.now.address

    @property
    def ways(self) -> Endpoints:
        """Endpoints of all control planes, in this node's own order."""
        return self._ways

    def learn(self, addresses: Iterable[str]) -> bool:
        """Add addresses of control planes; return whether that is news.

        Only addresses allowed by the settings are added: being named gives no trust.
        """
        was_alone = self.is_alone
        is_news = self.routes.learn(filter(self.may_dial, addresses))
        if was_alone and not self.is_alone:
            self.refresh()  # channels that notice a dead peer soon
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
        """Connect to all of them, so that failover takes no time."""
        for address in self.routes.addresses:
            self._channel(address).get_state(try_to_connect=True)  # type: ignore[attr-defined]

    async def is_connected(self) -> bool:
        """Whether the control plane of the route is connected, after a short wait.

        Without an alternative always True: the call itself reports the error.
        """
        if self.routes.addresses == (self.address,):
            return True
        try:
            async with asyncio.timeout(_CONNECTED_WITHIN_S):
                return await Endpoints(self._channel, [self.address]).is_connected(self.address)
        except TimeoutError:
            return False

    def rpc(self, *, seen: int = 0) -> Rpc:
        """Return unary and one-way streaming calls, to any control plane that has the state we have `seen`."""
        return Rpc(self._ways, token=self._token, seen=seen)

    def open(self, method: str, request: type[Message], response: type[Message]) -> Any:
        """Open a stream both ways to the leader, to be used by `write` and `read`; raises ClientError.

        `method` is "Service/Method".
        """
        return self._opened(self.address, method, request, response, self._relayed())

    def open_any(self, method: str, request: type[Message], response: type[Message]) -> Any:
        """Open the same to any control plane; report it to `ways` if it is broken."""
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
        if self._token:  # with a certificate the other end authenticates itself
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
        """Read the token again; on an error the old one is kept."""
        if self._read_token is not None:
            try:
                self._token = self._read_token()
            except SettingsError as error:
                log.warning("link.token_unread", error=str(error))

    def refresh(self) -> None:
        """Recreate channels after a change of credentials. Open calls continue."""
        self._retired += self._channels.values()
        self._channels = {}
        self._renew_ways()

    async def close(self) -> None:
        """Close all channels, and thereby all calls."""
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
    """Pauses that grow from a tenth of a second to `longest_s`, each with jitter.

    Args:
        free: number of attempts before the first pause: one for each address.
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
        """Begin with the shortest pause again, after a success."""
        self._failures = 0

    async def pause(self) -> None:
        """Sleep before the next attempt."""
        failures = self._failures - self._free()
        self._failures += 1
        if failures < 0:
            return
        bound = backoff_s(_FIRST_PAUSE_S, failures, self._longest_s)
        await self._clock.sleep(self._rng.uniform(bound / 4, bound))
