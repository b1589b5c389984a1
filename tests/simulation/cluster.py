"""A whole platform in one thread: control planes, nodes and clients on a virtual clock and network.

The seed decides everything. What survives the crash of a process survives here: the store, the
history and the objects that of control planes; journals and replica folders that of agents;
programs that of agents; disks that of machines.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from controlplane.access.authority import Authority, make_authority
from controlplane.access.vault import Vault, make_vault
from controlplane.domain.errors import NotFound, NotLeader
from controlplane.domain.identity import Role
from controlplane.domain.values import Node
from controlplane.history.interface import History
from controlplane.history.sqlite import open_history
from controlplane.objects.interface import ObjectStore
from controlplane.objects.memory import MemoryObjects
from controlplane.operations.nodes import NodeKeeper
from controlplane.plane import Character, ControlPlane, Surroundings, ensure_cluster
from controlplane.store.embedded import EmbeddedStore
from controlplane.store.interface import CommitUnknown, KeyValueStore, StoreUnavailable
from nsml.client.calls import Client
from nsml.client.ways import Ways
from nsml.clock import inline
from tests.simulation.invariants import Referee, Violation
from tests.simulation.machines import CONTROL_PLANE, SimulatedNode, World
from tests.simulation.network import Network
from tests.simulation.store_link import StoreLink
from tests.simulation.trace import Trace
from tests.simulation.virtual_time import VirtualClock
from tests.simulation.workload import OWNERS, Wish

T = TypeVar("T")

USERS = OWNERS
_RETRY_S = 0.2
_AGAIN_S = 0.5
_SILENCE_LOOK_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Durable:
    """What no crash of a control plane touches."""

    store: KeyValueStore
    history: History
    objects: ObjectStore
    authority: Authority
    vault: Vault


@dataclass
class ControlPlaneProcess:
    """One control plane, as a process that can be killed and started again."""

    world: World
    durable: Durable
    address: str
    incarnations: int = 0
    plane: ControlPlane | None = None
    _life: asyncio.Task[None] | None = None
    _link: StoreLink | None = None

    @property
    def is_alive(self) -> bool:
        return self._life is not None

    @property
    def is_leading(self) -> bool:
        return self.plane is not None and self.plane.committer.is_leading

    def start(self) -> None:
        """Begin a process that knows nothing."""
        if self._life is not None:
            return
        self.incarnations += 1
        self.world.referee.trace.note("control plane", self.address, self.incarnations)
        member = f"{self.address}.{self.incarnations}"
        self._link = StoreLink(
            self.durable.store,
            self.world.network,
            source=self.address,
            member=member,
            observer=self.world.referee,
            term=lambda: self.plane.leading.term if self.plane else 0,
        )
        self._life = self.world.group.create_task(self._live(member, self._link), name=member)

    async def kill(self) -> None:
        """SIGKILL: everything in memory is gone, what was sent is on its way."""
        life, self._life = self._life, None
        if life is None or self._link is None:
            return
        self.world.referee.trace.note("control plane killed", self.address)
        self._link.sever()
        life.cancel()
        self.world.network.crash(self.address)
        await asyncio.wait([life])

    async def _live(self, member: str, link: StoreLink) -> None:
        on = Surroundings(
            store=link,
            history=self.durable.history,
            objects=self.durable.objects,
            authority=self.durable.authority,
            vault=self.durable.vault,
            clock=self.world.clock,
            random_bytes=self.world.rng.randbytes,
        )
        cluster_id = await self._cluster_id(on)
        who = Character(member=member, version="simulated", address=self.address)
        self.plane = plane = ControlPlane(on, who, cluster_id)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(plane.run())
                await plane.state.reached(1)
                plane.add_services(self.world.network.serve(self.address, plane.interceptors()))
        finally:
            self.plane = None

    async def _cluster_id(self, on: Surroundings) -> str:
        while True:
            with suppress(StoreUnavailable, CommitUnknown):  # as its supervisor does
                return await ensure_cluster(on, "embedded")
            await asyncio.sleep(_RETRY_S)


@dataclass
class Cluster:
    """Everything; see `simulated`."""

    seed: int
    world: World
    trace: Trace
    referee: Referee
    network: Network
    planes: list[ControlPlaneProcess]
    durable: Durable
    nodes: list[SimulatedNode] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)

    def rng(self, what: str) -> random.Random:
        """A source of chance of its own for each purpose."""
        return random.Random(f"{self.seed} {what}")

    def client(self, user: str, machine: str = "") -> Client:
        """A client of a user, on a machine of its own."""
        source = machine or f"{user}-laptop"
        addresses = [plane.address for plane in self.planes]
        ways = Ways(partial(self.network.channel, source), addresses)
        rng = self.rng(f"client of {user}")
        return Client(ways, token=self.tokens[user], clock=self.world.clock, rng=rng)

    async def until(
        self, condition: Callable[[], T], what: str, within_s: float = 60.0, look_s: float = 0.1
    ) -> T:
        """The first true value of a condition; a violation when there is none in time."""
        deadline = self.world.clock.monotonic() + within_s
        while not (value := condition()):
            if self.world.clock.monotonic() > deadline:
                error = Violation(f"not within {within_s:g} s: {what}{self._left()}")
                raise self.trace.explained(error)
            await asyncio.sleep(look_s)
        return value

    def _left(self) -> str:
        leftovers = {node.name: left for node in self.nodes if (left := node.leftovers())}
        return f"; {self.referee.unfinished} are unfinished, on nodes are {leftovers}"

    @property
    def leader(self) -> ControlPlaneProcess | None:
        """Who believes to lead."""
        return next((plane for plane in self.planes if plane.is_leading), None)

    async def set_up(self, data: Path, nodes: int) -> None:
        """Start everything, users and nodes included."""
        for process in self.planes:
            process.start()
        await self.until(lambda: self.leader, "somebody leads")
        plane = await self.until(
            lambda: next((one.plane for one in self.planes if one.plane), None), "somebody serves"
        )
        assert plane is not None
        for user in USERS:
            await plane.accounts.create_user(user, Role.MEMBER, "")
            token = await plane.accounts.create_token(user)
            self.tokens[user] = token.secret.text
        for number in range(1, nodes + 1):
            name = f"n{number}"
            token = await plane.accounts.create_node_token(name)
            folder = data / name
            folder.mkdir()
            node = SimulatedNode(self.world, name, folder, token.secret.text)
            self.nodes.append(node)
            self.world.group.create_task(node.run(), name=name)
            await node.start_agent()

    async def minding(self, act: Callable[[NodeKeeper], Awaitable[Node]]) -> None:
        """Have the leader decide about a node, whoever that is by then."""
        while True:
            leader = await self.until(lambda: self.leader, "somebody leads")
            if leader is None or leader.plane is None:
                continue
            try:
                node = await act(leader.plane.keeper)
            except (NotLeader, NotFound):
                await asyncio.sleep(_AGAIN_S)
                continue
            if node.drain is not None:
                self.referee.drained(node.name)
            return

    async def restore(self) -> None:
        """Heal every link, start every process that is dead and have every node taken back."""
        self.network.heal_all()
        for process in self.planes:
            process.start()
        for node in self.nodes:
            await node.start_agent()
            await self.minding(partial(_resume, node.name))

    async def watch_silence(self) -> None:
        """Keep account of how long each node was not heard at a time, for ever."""
        since = {node.name: self.world.clock.monotonic() for node in self.nodes}
        while True:
            await asyncio.sleep(_SILENCE_LOOK_S)
            now = self.world.clock.monotonic()
            for node in self.nodes:
                if self._is_heard(node):
                    since[node.name] = now
                silent_s = now - since.setdefault(node.name, now)
                longest = self.referee.silences
                longest[node.name] = max(longest.get(node.name, 0.0), silent_s)

    def _is_heard(self, node: SimulatedNode) -> bool:
        leader = self.leader
        return (
            leader is not None
            and leader.plane is not None
            and node.has_agent
            and leader.plane.contacts.link(node.name) is not None
            and not self.network.is_frozen(node.name, leader.address)
        )

    def is_quiet(self) -> bool:
        """Nothing is left to do or to be cleaned up."""
        return not self.referee.unfinished and not any(node.leftovers() for node in self.nodes)


def _resume(name: str, keeper: NodeKeeper) -> Awaitable[Node]:
    return keeper.resume(name, asked_by="root")


@asynccontextmanager
async def simulated(
    seed: int,
    wishes: Mapping[str, Wish],
    *,
    nodes: int = 4,
    control_planes: int = 2,
) -> AsyncIterator[Cluster]:
    """A cluster that is up, inside a virtual loop (`virtual_time.run`).

    A violation of an invariant ends the block at once.
    """
    clock = VirtualClock(asyncio.get_running_loop())
    trace = Trace()
    referee = Referee(trace, wishes)
    network = Network(random.Random(f"{seed} network"))
    addresses = [f"cp{number}" for number in range(1, control_planes + 1)]
    network.name(CONTROL_PLANE, addresses)
    async with AsyncExitStack() as stack:
        stack.enter_context(trace.logging())
        disk = stack.enter_context(tempfile.TemporaryDirectory(dir=_memory_folder()))
        history = await open_history(":memory:", clock=clock, run=inline)
        stack.push_async_callback(history.close)
        durable = Durable(
            store=await stack.enter_async_context(
                EmbeddedStore(":memory:", clock=clock, run=inline)
            ),
            history=history,
            objects=MemoryObjects(clock),
            authority=make_authority(clock),
            vault=make_vault(random.Random(f"{seed} vault").randbytes),
        )
        with _plainly():
            async with asyncio.TaskGroup() as group:
                world = World(
                    network=network,
                    clock=clock,
                    rng=random.Random(f"{seed} world"),
                    referee=referee,
                    wishes=wishes,
                    group=group,
                )
                planes = [ControlPlaneProcess(world, durable, one) for one in addresses]
                cluster = Cluster(seed, world, trace, referee, network, planes, durable)
                group.create_task(_watch_over(referee))
                group.create_task(cluster.watch_silence())
                await cluster.set_up(Path(disk), nodes)
                yield cluster
                raise _Over


class _Over(Exception):
    """The block has ended: all processes are cancelled."""


@contextmanager
def _plainly() -> Iterator[None]:
    """Raise a violation as itself, whatever else fell with it."""
    try:
        yield
    except BaseExceptionGroup as group:
        violation = _leaf(group.subgroup(Violation))
        if violation is not None:
            raise violation from None
        rest = group.split(_Over)[1]
        if rest is not None:
            raise rest from None


def _leaf(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _watch_over(referee: Referee) -> None:
    await referee.broken.wait()
    referee.finish()


def _memory_folder() -> str | None:
    """Where files cost no disk."""
    place = Path("/dev/shm")
    return str(place) if place.is_dir() else None
