"""Who gets a tunnel, who may claim it, and when nobody waits any more; on a virtual clock."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from itertools import cycle, islice
from typing import Any, cast

import pytest

from controlplane.domain.errors import (
    AlreadyEnded,
    Denied,
    InvalidRequest,
    NodeUnavailable,
    NoSuchService,
    NotFound,
    NsmlError,
    StateConflict,
    TooManyTunnels,
    Unavailable,
)
from controlplane.domain.identity import NodeCaller, Role, User, UserCaller
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import Replica, Session
from controlplane.state.agent_connections import (
    Ability,
    AgentConnection,
    AgentConnections,
    RelayEnd,
    TunnelOrder,
)
from controlplane.tunnels.calls import direct_way
from controlplane.tunnels.tunnels import (
    MOST_PROGRAMS,
    OPENED_AT_ONCE,
    OPENED_PER_S,
    ClientWays,
    Tunnels,
)
from nsml.common.clock import SystemClock
from nsml.common.tunnel_keys import KEY_BYTES
from nsml.spec import agent_services
from nsml.v1 import sessions_pb2 as pb
from tests.simulation.virtual_time import run
from tests.unit.controlplane import builders

KIM = UserCaller(user=User(name="kim"))
LEE = UserCaller(user=User(name="lee"))
ROOT = UserCaller(user=User(name="root", role=Role.ADMIN))
ASKED, OTHER = NodeCaller(node="a"), NodeCaller(node="b")


def session(**facts: Any) -> Session:
    facts.setdefault("state", SessionState.RUNNING)
    replicas = (Replica(rank=0, node="a"), Replica(rank=1, node="b"))
    placed = facts.pop("on", replicas)
    return replace(builders.session(**facts), attempt=3, replicas=placed)


class Nodes:
    """The agents' streams, as far as tunnels ask for them."""

    def __init__(self, *names: str) -> None:
        self.links = {name: AgentConnection(name) for name in names}
        for link in self.links.values():
            link.abilities = frozenset(Ability)

    def link(self, name: str) -> AgentConnection | None:
        return self.links.get(name)

    async def order(self, name: str = "a") -> TunnelOrder:
        while not self.links[name].tunnels:  # noqa: ASYNC110 - virtual time costs nothing
            await asyncio.sleep(0.001)
        return self.links[name].tunnels.pop(0)


class VirtualClock(SystemClock):
    """The loop's."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Relay:
    """A relay that is told of tunnels."""

    def __init__(self) -> None:
        self.expected: list[str] = []
        self.users: list[str] = []
        self.is_up = True

    def expect(self, tunnel_id: str, user: str) -> tuple[RelayEnd, RelayEnd] | None:
        if not self.is_up:
            return None
        self.expected.append(tunnel_id)
        self.users.append(user)
        return CLIENTS_END, AGENTS_END

    def forget(self, tunnel_id: str) -> None:
        self.expected.remove(tunnel_id)


CLIENTS_END = RelayEnd(address="relay:1", key=b"client")
AGENTS_END = RelayEnd(address="relay:1", key=b"agent")
Test = Callable[[Tunnels, Nodes], Coroutine[Any, Any, None]]


def on_virtual_time(test: Test, *, most_open: int = 64, relay: Relay | None = None) -> None:
    async def main() -> None:
        nodes = Nodes("a", "b")
        tunnels = Tunnels(
            contacts=cast("AgentConnections", nodes),
            random_bytes=random.Random(1).randbytes,
            clock=VirtualClock(),
            most_open=most_open,
            relay=relay,
        )
        async with asyncio.timeout(60):
            await test(tunnels, nodes)

    run(main())


@contextlib.contextmanager
def refused(kind: type[NsmlError], match: str | None = None) -> Iterator[None]:
    with pytest.raises(NsmlError, match=match) as caught:
        yield
    assert type(caught.value) is kind


async def held_open(
    tunnels: Tunnels,
    caller: UserCaller = KIM,
    until: asyncio.Event | None = None,
    service: str = "web",
) -> None:
    async with tunnels.opened(caller, session(), rank=0, service=service):
        await (until or asyncio.Event()).wait()


def test_the_node_that_was_asked_joins_both_ends() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        async def agent() -> bytes:
            order = await nodes.order("b")
            assert (order.attempt, order.rank, order.service) == (3, 1, "web")
            assert len(order.tunnel_id) == 32
            tunnel = tunnels.claim(OTHER, order.tunnel_id, "")
            await tunnel.up.put(b"from the program")
            return await tunnel.down.take()

        async with asyncio.TaskGroup() as group:
            serving = group.create_task(agent())
            async with tunnels.opened(KIM, session(), rank=1, service="web") as tunnel:
                assert await tunnel.up.take() == b"from the program"
                await tunnel.down.put(b"from the client")
                assert await serving == b"from the client"

    on_virtual_time(test)


def test_whoever_does_more_than_look_is_joined_to_the_session() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        for service in ("web", "agent.program", "agent.ssh", "agent.processes", "agent.stacks"):
            is_joined = service not in {"agent.processes", "agent.stacks"}
            found = session()

            async def hold(
                found: Session = found, service: str = service, is_joined: bool = is_joined
            ) -> None:
                async with tunnels.opened(KIM, found, rank=0, service=service):
                    assert tunnels.is_joined(found.id) is is_joined

            holding = asyncio.ensure_future(hold())
            tunnels.claim(ASKED, (await nodes.order()).tunnel_id, "")
            await holding
            assert not tunnels.is_joined(found.id)

    on_virtual_time(test)


def test_another_node_cannot_claim_nor_spoil_it() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        opening = asyncio.create_task(held_open(tunnels))
        order = await nodes.order()
        with refused(NotFound):
            tunnels.claim(OTHER, order.tunnel_id, "")
        with refused(NotFound):
            tunnels.claim(ASKED, "0" * 32, "")
        tunnels.claim(ASKED, order.tunnel_id, "")
        with refused(NotFound):
            tunnels.claim(ASKED, order.tunnel_id, "")
        opening.cancel()

    on_virtual_time(test)


def test_an_agent_that_does_not_dial_is_waited_for_ten_seconds() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with refused(NodeUnavailable, "does not answer"):
            await held_open(tunnels)
        assert loop.time() - began == pytest.approx(10)
        with refused(NotFound):
            tunnels.claim(ASKED, (await nodes.order()).tunnel_id, "")

    on_virtual_time(test)


def test_a_client_that_stops_waiting_is_not_waited_for() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        opening = asyncio.create_task(held_open(tunnels))
        order = await nodes.order()
        opening.cancel()
        await asyncio.wait([opening])
        with refused(NotFound):
            tunnels.claim(ASKED, order.tunnel_id, "")

    on_virtual_time(test)


def test_a_node_that_is_not_connected_is_said_at_once() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        del nodes.links["a"]
        with refused(NodeUnavailable, "node a is not connected"):
            await held_open(tunnels)
        assert asyncio.get_running_loop().time() == 0

    on_virtual_time(test)


def test_what_the_agent_cannot_reach_is_no_service() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        async def agent() -> None:
            tunnels.claim(ASKED, (await nodes.order()).tunnel_id, "it is a link " + "x" * 5000)

        async with asyncio.TaskGroup() as group:
            group.create_task(agent())
            with pytest.raises(NoSuchService, match="'web'") as caught:
                await held_open(tunnels)
        assert caught.value.why.startswith("it is a link")
        assert len(caught.value.why) == 500

    on_virtual_time(test)


def test_either_end_that_leaves_ends_the_other() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        leaving = asyncio.Event()
        opening = asyncio.create_task(held_open(tunnels, until=leaving))
        tunnel = tunnels.claim(ASKED, (await nodes.order()).tunnel_id, "")
        await asyncio.sleep(0)
        leaving.set()
        await opening
        with refused(Unavailable, "client has left"):
            await tunnel.down.take()
        with refused(Unavailable, "client has left"):
            await tunnel.up.put(b"x")

        async def agent() -> None:
            claimed = tunnels.claim(ASKED, (await nodes.order()).tunnel_id, "")
            await claimed.up.put(b"a part")
            claimed.agent_left()

        async with asyncio.TaskGroup() as group:
            group.create_task(agent())
            async with tunnels.opened(KIM, session(), rank=0, service="web") as other:
                assert await other.up.take() == b"a part"
                with refused(Unavailable, "broke"):
                    await other.up.take()
                with refused(Unavailable, "broke"):
                    await other.down.put(b"x")

    on_virtual_time(test)


def test_a_user_has_so_many_and_no_more() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        async with asyncio.TaskGroup() as group:
            first, second = (group.create_task(held_open(tunnels)) for _ in range(2))
            for _ in range(2):
                tunnels.claim(ASKED, (await nodes.order()).tunnel_id, "")
            with refused(TooManyTunnels):
                await held_open(tunnels)
            assert not nodes.links["a"].tunnels
            others = group.create_task(held_open(tunnels, ROOT))
            await nodes.order()
            first.cancel()
            await asyncio.wait([first])
            again = group.create_task(held_open(tunnels))
            tunnels.claim(ASKED, (await nodes.order()).tunnel_id, "")
            for task in (second, others, again):
                task.cancel()

    on_virtual_time(test, most_open=2)


def test_programs_and_copies_in_sessions_are_counted_by_themselves() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        async with asyncio.TaskGroup() as group:
            started = [agent_services.PROGRAM, agent_services.FILES, agent_services.SSH]
            services = ["web", *islice(cycle(started), MOST_PROGRAMS)]
            held = [group.create_task(held_open(tunnels, service=one)) for one in services]
            for _ in held:
                tunnels.claim(ASKED, (await nodes.order()).tunnel_id, "")
            for one in started:
                with refused(TooManyTunnels, f"{MOST_PROGRAMS} programs, copies"):
                    await held_open(tunnels, service=one)
            for task in held:
                task.cancel()

    on_virtual_time(test, most_open=1)


def test_who_opens_them_without_end_waits_and_nobody_else() -> None:
    """An agent dials each: 190 a second took three quarters of its core, and everybody's sessions started late."""

    async def opened(tunnels: Tunnels, nodes: Nodes, caller: UserCaller) -> None:
        opening = asyncio.create_task(held_open(tunnels, caller))
        tunnels.claim(ASKED, (await nodes.order()).tunnel_id, "")
        opening.cancel()
        await asyncio.wait([opening])

    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        now = asyncio.get_running_loop().time
        began = now()
        for _ in range(OPENED_AT_ONCE):
            await opened(tunnels, nodes, KIM)
        assert now() - began < 1
        began = now()
        for _ in range(100):
            await opened(tunnels, nodes, KIM)
        assert now() - began > 100 / OPENED_PER_S - 1
        began = now()
        await opened(tunnels, nodes, ROOT)
        assert now() - began < 1 / OPENED_PER_S

    on_virtual_time(test)


@pytest.mark.parametrize(
    ("caller", "facts", "rank", "service", "kind"),
    [
        (LEE, {}, 0, "web", Denied),
        (KIM, {}, 2, "web", InvalidRequest),
        (KIM, {}, 0, "", InvalidRequest),
        (KIM, {}, 0, "x" * 33, InvalidRequest),
        (KIM, {}, 0, "../socket", InvalidRequest),
        (KIM, {}, 0, "Web", InvalidRequest),
        (KIM, {}, 0, "web.agent", InvalidRequest),
        (KIM, {}, 0, "agent.", NoSuchService),
        (KIM, {}, 0, "agent.shell", NoSuchService),
        (LEE, {}, 0, "agent.shell", Denied),
        (LEE, {}, 0, "agent.processes", Denied),
        (LEE, {}, 0, "agent.stacks", Denied),
        (KIM, {}, 2, "agent.processes", InvalidRequest),
        (KIM, {"state": SessionState.SUCCEEDED}, 0, "agent.processes", AlreadyEnded),
        (KIM, {}, 0, "web\n", InvalidRequest),
        (KIM, {"state": SessionState.QUEUED, "on": ()}, 0, "web", StateConflict),
        (KIM, {"state": SessionState.PREPARING}, 0, "web", StateConflict),
        (KIM, {"state": SessionState.HELD, "on": ()}, 0, "web", StateConflict),
        (KIM, {"state": SessionState.FINALIZING}, 0, "web", AlreadyEnded),
        (KIM, {"state": SessionState.SUCCEEDED}, 0, "web", AlreadyEnded),
        (LEE, {"state": SessionState.FAILED}, 0, "web", Denied),
    ],
)
def test_what_is_refused_at_once(
    caller: UserCaller, facts: dict[str, Any], rank: int, service: str, kind: type[NsmlError]
) -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        with refused(kind):
            async with tunnels.opened(caller, session(**facts), rank=rank, service=service):
                raise AssertionError("it was opened")
        assert not nodes.links["a"].tunnels

    on_virtual_time(test)


def test_of_an_ended_session_the_log_is_what_to_look_at() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        ended = session(state=SessionState.SUCCEEDED)
        with pytest.raises(AlreadyEnded) as refused:
            async with tunnels.opened(KIM, ended, rank=0, service="agent.exec"):
                raise AssertionError("it was opened")
        assert refused.value.attempt == f"nsml logs {ended.name}"

    on_virtual_time(test)


def test_administrators_reach_all() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        opening = asyncio.create_task(held_open(tunnels, ROOT))
        tunnels.claim(ASKED, (await nodes.order()).tunnel_id, "")
        opening.cancel()

    on_virtual_time(test)


def test_an_agent_that_knows_no_ports_is_not_asked_for_one() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        nodes.links["a"].abilities = frozenset()
        nodes.links["a"].agent_version = "0.1.0"
        with pytest.raises(StateConflict, match=r"nsml of node a is too old") as refused:
            async with tunnels.opened(KIM, session(), rank=0, service="8888"):
                pass
        assert "0.1.0" in str(refused.value.why)
        assert nodes.links["a"].tunnels == []
        opening = asyncio.ensure_future(opened(tunnels, service="web"))
        assert (await nodes.order()).service == "web", "sockets are what every agent knows"
        opening.cancel()

    async def opened(tunnels: Tunnels, *, service: str) -> None:
        async with tunnels.opened(KIM, session(), rank=0, service=service):
            pass

    on_virtual_time(test)


def test_an_agent_that_serves_nothing_itself_is_not_asked() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        nodes.links["a"].abilities = frozenset({Ability.IMAGES, Ability.PORTS})
        nodes.links["a"].agent_version = "0.1.0"
        with pytest.raises(StateConflict, match=r"nsml of node a is too old") as refused:
            async with tunnels.opened(KIM, session(), rank=0, service="agent.processes"):
                pass
        assert "0.1.0" in str(refused.value.why)
        assert nodes.links["a"].tunnels == []

    on_virtual_time(test)


def test_what_an_agent_does_not_offer_is_said_in_its_words() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        async def agent() -> None:
            order = await nodes.order()
            assert order.service == "agent.processes"
            tunnels.claim(ASKED, order.tunnel_id, "its program does not run here")

        async with asyncio.TaskGroup() as group:
            group.create_task(agent())
            with pytest.raises(NoSuchService, match="node a does not answer this") as caught:
                async with tunnels.opened(KIM, session(), rank=0, service="agent.processes"):
                    pass
        assert caught.value.why == "its program does not run here"

    on_virtual_time(test)


def test_the_node_itself_is_asked_without_a_session() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        async def agent() -> None:
            order = await nodes.order("b")
            assert (order.session_id, order.service) == ("", agent_services.NODE_PROGRAM)
            with refused(NotFound):
                tunnels.claim(ASKED, order.tunnel_id, "")
            tunnel = tunnels.claim(OTHER, order.tunnel_id, "")
            await tunnel.up.put(b"from the node")

        async with asyncio.TaskGroup() as group:
            group.create_task(agent())
            opening = tunnels.opened_to_node(ROOT, "b", service=agent_services.NODE_PROGRAM)
            async with opening as tunnel:
                assert await tunnel.up.take() == b"from the node"

    on_virtual_time(test)


def test_services_for_replicas_and_for_nodes_are_apart() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        for service in ("web", "8888", agent_services.PROGRAM, "agent.processes", ""):
            with refused(NoSuchService, "does not offer"):
                async with tunnels.opened_to_node(ROOT, "a", service=service):
                    pass
        with refused(NoSuchService, "does not offer"):
            await held_open(tunnels, ROOT, service=agent_services.NODE_PROGRAM)
        assert nodes.links["a"].tunnels == []

    on_virtual_time(test)


def test_an_agent_that_knows_no_services_of_the_node_is_not_asked() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        nodes.links["a"].abilities = frozenset(Ability) - {Ability.NODE_SERVICES}
        with refused(StateConflict, "nsml of node a is too old"):
            await held_on_node(tunnels)
        assert nodes.links["a"].tunnels == []

    on_virtual_time(test)


def test_programs_on_nodes_count_with_those_in_sessions() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        async with asyncio.TaskGroup() as group:
            held = [group.create_task(held_on_node(tunnels)) for _ in range(MOST_PROGRAMS)]
            for _ in held:
                tunnels.claim(ASKED, (await nodes.order()).tunnel_id, "")
            with refused(TooManyTunnels, f"{MOST_PROGRAMS} programs"):
                await held_on_node(tunnels)
            with refused(TooManyTunnels, f"{MOST_PROGRAMS} programs"):
                await held_open(tunnels, ROOT, service=agent_services.PROGRAM)
            for task in held:
                task.cancel()

    on_virtual_time(test)


def test_a_node_that_refuses_is_quoted() -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        async def agent() -> None:
            tunnels.claim(ASKED, (await nodes.order()).tunnel_id, "node_shell is off")

        async with asyncio.TaskGroup() as group:
            group.create_task(agent())
            with pytest.raises(NoSuchService, match="node a refuses") as caught:
                await held_on_node(tunnels)
        assert caught.value.why == "node_shell is off"

    on_virtual_time(test)


async def held_on_node(tunnels: Tunnels) -> None:
    async with tunnels.opened_to_node(ROOT, "a", service=agent_services.NODE_PROGRAM):
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("boot_id", "abilities", "only_checks", "is_direct"),
    [
        ("this boot", frozenset(Ability), False, True),
        ("another machine", frozenset(Ability), False, False),
        ("", frozenset(Ability), False, False),
        ("this boot", frozenset(Ability) - {Ability.DIRECT}, False, False),
        ("this boot", frozenset(Ability), True, False),
    ],
)
def test_only_clients_on_the_node_itself_go_there_directly(
    boot_id: str, abilities: frozenset[Ability], only_checks: bool, is_direct: bool
) -> None:
    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        nodes.links["a"].boot_id = "this boot"
        nodes.links["a"].abilities = abilities

        async def agent() -> bytes:
            order = await nodes.order()
            tunnels.claim(ASKED, order.tunnel_id, "", "a socket")
            return order.direct_key

        async with asyncio.TaskGroup() as group:
            asked = group.create_task(agent())
            opening = tunnels.opened(
                KIM,
                session(),
                rank=0,
                service="web",
                ways=ClientWays(boot_id=boot_id),
                only_checks=only_checks,
            )
            async with opening as tunnel:
                assert tunnel.direct_key == await asked
                assert bool(tunnel.direct_key) is bool(tunnel.direct_socket) is is_direct

    on_virtual_time(test)


ELSEWHERE = ClientWays(boot_id="another machine", uses_relay=True)


@pytest.mark.parametrize(
    ("ways", "abilities", "more", "is_up", "is_relayed"),
    [
        (ELSEWHERE, frozenset(Ability), {}, True, True),
        (ClientWays(uses_relay=True), frozenset(Ability), {}, True, True),
        (ELSEWHERE, frozenset(Ability), {"service": agent_services.PROGRAM}, True, True),
        (ELSEWHERE, frozenset(Ability), {"service": agent_services.STACKS}, True, False),
        (ELSEWHERE, frozenset(Ability), {"only_checks": True}, True, False),
        (ELSEWHERE, frozenset(Ability) - {Ability.RELAY}, {}, True, False),
        (ELSEWHERE, frozenset(Ability), {}, False, False),
        (ClientWays(boot_id="another machine"), frozenset(Ability), {}, True, False),
        (ClientWays(boot_id="this boot", uses_relay=True), frozenset(Ability), {}, True, False),
    ],
)
def test_clients_of_other_machines_meet_the_agent_at_the_relay(
    ways: ClientWays,
    abilities: frozenset[Ability],
    more: dict[str, Any],
    is_up: bool,
    is_relayed: bool,
) -> None:
    relay = Relay()
    relay.is_up = is_up

    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        nodes.links["a"].boot_id = "this boot"
        nodes.links["a"].abilities = abilities

        async def agent() -> TunnelOrder:
            order = await nodes.order()
            tunnels.claim(ASKED, order.tunnel_id, "", relay_certificate=b"the agent's")
            return order

        async with asyncio.TaskGroup() as group:
            asked = group.create_task(agent())
            opening = tunnels.opened(
                KIM, session(), rank=0, ways=ways, **{"service": "web", **more}
            )
            async with opening as tunnel:
                order = await asked
                assert relay.expected == ([order.tunnel_id] if is_relayed else [])
                assert order.relay == (AGENTS_END if is_relayed else None)
                assert tunnel.is_elsewhere is is_relayed
                way = direct_way(tunnel)
                if is_relayed:
                    assert relay.users == ["kim"]
                    assert way == pb.DirectWay(
                        key=order.direct_key,
                        relay=pb.RelayWay(
                            address="relay:1", key=b"client", certificate=b"the agent's"
                        ),
                    )
                    assert len(order.direct_key) == KEY_BYTES
                else:
                    assert way is None
        assert relay.expected == []

    on_virtual_time(test, relay=relay)


def test_an_agent_that_cannot_reach_the_relay_has_the_bytes_pass_here() -> None:
    relay, service = Relay(), agent_services.NODE_PROGRAM

    async def test(tunnels: Tunnels, nodes: Nodes) -> None:
        async def agent() -> None:
            tunnels.claim(ASKED, (await nodes.order()).tunnel_id, "")

        async with asyncio.TaskGroup() as group:
            group.create_task(agent())
            async with tunnels.opened_to_node(ROOT, "a", service=service, ways=ELSEWHERE) as tunnel:
                assert not tunnel.is_elsewhere
                assert direct_way(tunnel) is None

    on_virtual_time(test, relay=relay)
    assert relay.users == ["root"]
    assert relay.expected == []
