"""Tunnels: a client's byte stream to a program's socket, through the node's agent.

The node's agent is asked over its Control stream and dials back with the tunnel's id.
Both calls end here, in the two pipes of one `Tunnel`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.access.current import refused_by_now
from controlplane.domain.errors import (
    AlreadyEnded,
    Denied,
    InvalidRequest,
    NodeUnavailable,
    NoSuchService,
    NotFound,
    StateConflict,
    TooManyTunnels,
    Unavailable,
)
from controlplane.domain.identity import NodeCaller, UserCaller
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.policy import ALLOW, CHANGE, may
from controlplane.domain.sealing import check_enterable
from controlplane.limits.allowances import Allowance
from controlplane.limits.ordinary_calls import OrdinaryCalls
from controlplane.state.agent_connections import Ability, TunnelOrder
from controlplane.tunnels.byte_pipe import Pipe
from controlplane.tunnels.pacing import Pacing
from nsml.common.tunnel_keys import KEY_BYTES
from nsml.spec import agent_services

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from controlplane.core.dependencies import Relay
    from controlplane.domain.errors import NsmlError
    from controlplane.domain.policy import Action
    from controlplane.domain.values import Session
    from controlplane.state.agent_connections import AgentConnections, RelayEnd, SshEntrance
    from nsml.common.clock import Clock

MOST_OPEN: Final = 64
"""Maximum open tunnels of one user, except to programs started in sessions and on nodes."""
MOST_PROGRAMS: Final = 128
"""Maximum programs in sessions and on nodes that one user has started and is connected to, file copies and ssh connections."""
OPENED_AT_ONCE: Final = 200
"""Burst of tunnels that one user may open; further ones wait, at OPENED_PER_S."""
OPENED_PER_S: Final = 20.0
"""Each costs the node's agent a few milliseconds, and a program's web page may need dozens."""
ANSWER_WITHIN_S: Final = 10.0
"""Time for an agent to dial back."""
LOOKS_EVERY_S: Final = 2.0
"""Interval of checks of the rights of an open tunnel's client."""

AGENT_SERVICES: Final[Mapping[str, Action]] = {
    agent_services.PROCESSES: CHANGE,
    agent_services.STACKS: CHANGE,
    agent_services.PROGRAM: CHANGE,
    agent_services.FILES: CHANGE,
    agent_services.SSH: CHANGE,
    agent_services.EXEC: CHANGE,
}
"""Services of agents for a replica, and the right to the session that each requires."""
NODE_SERVICES: Final = frozenset({agent_services.NODE_PROGRAM})
"""Services of agents for the node itself: for administrators, as in the access table."""

_SERVICE: Final = re.compile(r"[a-z0-9-]{1,32}")
_LAST_PORT: Final = 65_535
_MOST_ERROR: Final = 500
_MOST_SOCKET: Final = 100
_MOST_CERTIFICATE: Final = 4096
_RUNS: Final = frozenset(
    {SessionState.RUNNING, SessionState.PAUSED, SessionState.UNKNOWN, SessionState.STOPPING}
)
_OVER: Final = frozenset({SessionState.FINALIZING, *(one for one in SessionState if one.is_ended)})

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientWays:
    """A client's ways to bypass the control plane."""

    boot_id: str = ""
    """Of its machine: if it is the node's, too, directly to the agent. Empty: not that way."""
    uses_relay: bool = False


THROUGH_HERE: Final = ClientWays()


@dataclass(slots=True, kw_only=True, eq=False)
class Tunnel:
    """One tunnel: `down` to the program, `up` from it."""

    node: str
    down: Pipe = field(default_factory=Pipe)
    up: Pipe = field(default_factory=Pipe)
    direct_key: bytes = b""
    direct_socket: str = ""
    """Where the agent awaits the client of its own machine, with this key."""
    relay: RelayEnd | None = None
    """The client's end of the relay, where the agent awaits it with the key,"""
    relay_certificate: bytes = b""
    """and with this certificate; empty: it does not."""
    is_left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when either call ends."""
    answer: asyncio.Future[str] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Resolved by the agent's first frame: why it cannot reach the service; "" if it can."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the bytes bypass us."""
        return bool(self.direct_socket or self.relay_certificate)

    def client_left(self) -> None:
        """End the client's call."""
        error = Unavailable("the client has left the tunnel")
        self.up.leave(error)
        self.down.drop(error)
        self.is_left.set()

    def refused(self, error: NsmlError) -> None:
        """End the client's call with `error`, and the agent's as if the client had left."""
        self.up.leave(error)
        self.client_left()

    def agent_left(self) -> None:
        """End the agent's call; the client may still read the rest of an ended stream."""
        error = Unavailable("the connection to the program broke")
        self.down.leave(error)
        self.up.break_off(error)
        self.is_left.set()


class Tunnels:
    """The tunnels through this control plane.

    Args:
        random_bytes: returns unpredictable bytes.
        clock: for the rate at which a user opens them.
        pacing: delays their bytes.
        relay: relays bytes of clients on other machines than the node instead.
    """

    def __init__(
        self,
        *,
        contacts: AgentConnections,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        pacing: Pacing | None = None,
        relay: Relay | None = None,
        most_open: int = MOST_OPEN,
        answer_within_s: float = ANSWER_WITHIN_S,
    ) -> None:
        self._contacts = contacts
        self._random_bytes = random_bytes
        self.pacing = pacing or Pacing(OrdinaryCalls())
        self._relay = relay
        self._most_open = most_open
        self._answer_within_s = answer_within_s
        self._asked: dict[str, Tunnel] = {}
        self._open: Counter[tuple[str, bool]] = Counter()
        self._clock = clock
        self._joined: Counter[str] = Counter()
        self._lately = Allowance(OPENED_AT_ONCE, OPENED_AT_ONCE / OPENED_PER_S, clock.monotonic)

    @contextlib.asynccontextmanager
    async def opened(
        self,
        caller: UserCaller,
        session: Session,
        *,
        rank: int,
        service: str,
        only_checks: bool = False,
        ways: ClientWays = THROUGH_HERE,
        ssh_entrance: SshEntrance | None = None,
    ) -> AsyncIterator[Tunnel]:
        """Open a tunnel to a session that the caller sees, for the duration of the context.

        `only_checks`: pass no bytes, only check that a program listens. `ways`: the caller's ways to
        bypass us. `ssh_entrance`: for an ssh server that accepts only it.

        Raises:
            Denied: the session is another user's.
            Sealed: it is a step of a submission.
            InvalidRequest: there is no such rank, or the service has no name.
            AlreadyEnded, StateConflict: the session does not run.
            NoSuchService: the agent cannot reach the socket.
            TooManyTunnels: the caller has too many.
            NodeUnavailable: the agent is not connected, or does not dial in time.
        """
        node = _node_of(caller, session, rank, service)
        order = TunnelOrder(
            tunnel_id=self._new_id(),
            session_id=session.id,
            attempt=session.attempt,
            rank=rank,
            service=service,
            only_checks=only_checks,
            user=caller.user.name,
            ssh_entrance=ssh_entrance,
        )
        is_look = service in agent_services.LOOKS or only_checks
        if is_look:  # few bytes, not worth a connection to a relay
            ways = THROUGH_HERE if only_checks else replace(ways, uses_relay=False)
        async with self._dialled(caller, node, order, ways) as tunnel:
            _log.info("tunnel.opened", session=session.name, rank=rank, service=service)
            with contextlib.nullcontext() if is_look else self._counted_as_joined(session.id):
                yield tunnel

    @contextlib.asynccontextmanager
    async def opened_to_node(
        self,
        caller: UserCaller,
        node: str,
        *,
        service: str,
        ways: ClientWays = THROUGH_HERE,
    ) -> AsyncIterator[Tunnel]:
        """Open a tunnel to a node, for an administrator, for the duration of the context.

        Raises:
            StateConflict: the agent is too old.
            NoSuchService: the agent does not serve this, or refuses.
            TooManyTunnels, NodeUnavailable: as `opened`.
        """
        if service not in NODE_SERVICES:
            raise _not_offered(service)
        order = TunnelOrder(tunnel_id=self._new_id(), service=service, user=caller.user.name)
        async with self._dialled(caller, node, order, ways) as tunnel:
            _log.info("tunnel.opened", node=node, by=caller.user.name, service=service)
            yield tunnel

    def is_joined(self, session_id: str) -> bool:
        """Return whether a user is connected to a session now, for more than an inspection."""
        return self._joined[session_id] > 0

    @contextlib.contextmanager
    def _counted_as_joined(self, session_id: str) -> Iterator[None]:
        self._joined[session_id] += 1
        try:
            yield
        finally:
            self._joined[session_id] -= 1
            if not self._joined[session_id]:
                del self._joined[session_id]

    def _new_id(self) -> str:
        return self._random_bytes(16).hex()

    @contextlib.contextmanager
    def _with_way(
        self, order: TunnelOrder, node: str, ways: ClientWays
    ) -> Iterator[tuple[TunnelOrder, RelayEnd | None]]:
        """Yield the order with the key to a bypass, if one is possible, and the client's end of the relay, if used."""
        link = self._contacts.link(node)
        abilities = frozenset[Ability]() if link is None else link.abilities
        if link is not None and ways.boot_id and ways.boot_id == link.boot_id:
            is_able = Ability.DIRECT in abilities
            key = self._random_bytes(KEY_BYTES) if is_able else b""
            yield replace(order, direct_key=key), None
            return
        is_able = ways.uses_relay and Ability.RELAY in abilities
        ends = self._relay.expect(order.tunnel_id, order.user) if self._relay and is_able else None
        if self._relay is None or ends is None:
            yield order, None
            return
        client, agent = ends
        try:
            yield replace(order, direct_key=self._random_bytes(KEY_BYTES), relay=agent), client
        finally:
            self._relay.forget(order.tunnel_id)

    @contextlib.asynccontextmanager
    async def _dialled(
        self, caller: UserCaller, node: str, order: TunnelOrder, ways: ClientWays
    ) -> AsyncIterator[Tunnel]:
        """Yield a tunnel after the agent of `node` has dialled back."""
        with contextlib.ExitStack() as held:
            held.enter_context(self._counted(caller.user.name, order.service))
            await self._wait_for_turn(caller.user.name)
            order, relay = held.enter_context(self._with_way(order, node, ways))
            tunnel = Tunnel(node=node, direct_key=order.direct_key, relay=relay)
            self._asked[order.tunnel_id] = tunnel
            try:
                await self._ask(tunnel, order)
                looking = asyncio.create_task(self._look_again(tunnel), name="tunnel.look_again")
                try:
                    yield tunnel
                finally:
                    looking.cancel()
            finally:
                self._asked.pop(order.tunnel_id, None)
                tunnel.client_left()

    async def _look_again(self, tunnel: Tunnel) -> None:
        """End it when its client loses the right, also while no bytes pass."""
        while (error := await refused_by_now()) is None:
            await self._clock.sleep(LOOKS_EVERY_S)
        tunnel.refused(error)

    def is_awaited(self, tunnel_id: str) -> bool:
        """Return whether it was requested here."""
        return tunnel_id in self._asked

    def claim(
        self,
        agent: NodeCaller,
        tunnel_id: str,
        error: str,
        direct_socket: str = "",
        relay_certificate: bytes = b"",
    ) -> Tunnel:
        """Return the tunnel that the agent was asked for; `error` is why its service is unreachable.

        `direct_socket`: where the agent awaits the client, if requested and possible; `relay_certificate`: the agent
        awaits it at the relay, with this certificate.

        Raises:
            NotFound: no client waits for it (any more), or another node was asked.
        """
        tunnel = self._asked.get(tunnel_id)
        if tunnel is None or tunnel.node != agent.node or tunnel.answer.done():
            raise NotFound("no client waits for this tunnel")
        if tunnel.relay is not None:
            tunnel.relay_certificate = relay_certificate[:_MOST_CERTIFICATE]
        elif tunnel.direct_key:
            tunnel.direct_socket = direct_socket[:_MOST_SOCKET]
        tunnel.answer.set_result(error[:_MOST_ERROR])
        return tunnel

    async def _ask(self, tunnel: Tunnel, order: TunnelOrder) -> None:
        link = self._contacts.link(tunnel.node)
        if link is None:
            raise NodeUnavailable(
                f"node {tunnel.node} is not connected",
                why="its agent does not speak to this control plane now",
            )
        for ability in _needed(order):
            link.check(ability)
        link.open_tunnel(order)
        try:
            async with asyncio.timeout(self._answer_within_s):
                error = await tunnel.answer
        except TimeoutError as late:
            raise NodeUnavailable(
                f"node {tunnel.node} does not answer",
                why=f"its agent did not dial within {self._answer_within_s:g} s",
            ) from late
        if error:
            if order.service in NODE_SERVICES:
                raise NoSuchService(f"node {tunnel.node} refuses this", why=error)
            if order.service in AGENT_SERVICES:
                raise NoSuchService(f"node {tunnel.node} does not answer this now", why=error)
            if order.service.isdigit():
                raise NoSuchService(
                    f"nothing listens on port {order.service} in this session", why=error
                )
            raise NoSuchService(
                f"nothing serves {order.service!r} in this session",
                why=error,
                attempt=f"a program serves by listening on $NSML_RUN_DIR/tunnel/{order.service}",
            )

    async def _wait_for_turn(self, user: str) -> None:
        """Wait while the user opens tunnels faster than the limit."""
        while not self._lately.has_room(user, 1):
            await self._clock.sleep(1 / OPENED_PER_S)
        self._lately.use(user, 1)

    @contextlib.contextmanager
    def _counted(self, user: str, service: str) -> Iterator[None]:
        is_program = service in agent_services.STARTED
        most, what = (
            (MOST_PROGRAMS, "programs, copies and ssh connections")
            if is_program
            else (self._most_open, "tunnels")
        )
        if self._open[user, is_program] >= most:
            raise TooManyTunnels(f"you have {most} {what} open, and no more is allowed")
        self._open[user, is_program] += 1
        try:
            yield
        finally:
            self._open[user, is_program] -= 1
            if not self._open[user, is_program]:
                del self._open[user, is_program]


def _needed(order: TunnelOrder) -> Iterator[Ability]:
    """Yield the required abilities of an agent."""
    if order.service.isdigit():
        yield Ability.PORTS
    if order.service in AGENT_SERVICES:
        yield Ability.SERVICES
    if order.ssh_entrance is not None:
        yield Ability.SSH_ENTRANCE  # an older one would require no key
    if order.service in NODE_SERVICES:
        yield Ability.NODE_SERVICES


def _not_offered(service: str) -> NoSuchService:
    return NoSuchService(
        f"this control plane does not offer {service[:80]!r}",
        why="it knows no such service of agents",
    )


def _node_of(caller: UserCaller, session: Session, rank: int, service: str) -> str:
    """Return the node that runs the replica, after all immediate checks."""
    if may(caller, AGENT_SERVICES.get(service, CHANGE), session) is not ALLOW:
        raise Denied(
            f"session {session.name} is {session.owner}'s",
            why="only its owner and administrators can reach into it, also where it is shared",
        )
    check_enterable(session)
    if service.startswith(agent_services.PREFIX):
        if service not in AGENT_SERVICES:
            raise _not_offered(service)
    elif not _SERVICE.fullmatch(service):
        raise InvalidRequest(
            f"{service[:80]!r} is no name of a service", why="1 to 32 of a-z, 0-9 and -"
        )
    if service.isdigit() and (service.startswith("0") or int(service) > _LAST_PORT):
        raise InvalidRequest(f"{service} is not a TCP port", why="ports are 1 to 65535")
    if session.state in _OVER:
        raise AlreadyEnded(f"session {session.name} has ended", attempt=f"nsml logs {session.name}")
    if session.state not in _RUNS:
        raise StateConflict(
            f"session {session.name} does not run",
            why=f"it is {session.state.lower()}",
            attempt=f"nsml status --explain {session.name}",
        )
    node = next((one.node for one in session.replicas if one.rank == rank), "")
    if not node:
        last = len(session.replicas) - 1
        raise InvalidRequest(
            f"session {session.name} has no replica {rank}",
            why=f"its ranks are 0 to {last}" if last else "its only rank is 0",
        )
    return node
