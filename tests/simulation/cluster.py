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
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from controlplane.access.authority import Authority, make_authority
from controlplane.access.vault import Vault, make_vault
from controlplane.core.dependencies import Backends, MemberConfig
from controlplane.domain.competitions.values import (
    Competition,
    CompetitionSettings,
    CompetitionState,
    Phase,
)
from controlplane.domain.errors import NotFound, NotLeader, Unavailable
from controlplane.domain.identity import Role
from controlplane.domain.values import Node
from controlplane.history.errors import HistoryUnavailable
from controlplane.history.sql.history import History
from controlplane.history.sqlite import open_history
from controlplane.nodes.feature import node_keeper
from controlplane.nodes.nodes import NodeKeeper
from controlplane.objects.errors import ObjectsUnavailable
from controlplane.objects.interface import ObjectStore
from controlplane.plane import ControlPlane
from controlplane.sessions.feature import submitter
from controlplane.startup.server import RESIGN_WITHIN_S
from controlplane.store.election import Leader
from controlplane.store.embedded import EmbeddedStore
from controlplane.store.interface import CommitUnknown, KeyValueStore, StoreUnavailable
from nsml.client.calls import Client
from nsml.client.channel import Channel
from nsml.client.endpoints import Endpoints
from nsml.common.clock import SystemClock, inline
from tests.simulation.history_link import HistoryLink, Trouble, Way, objects_link
from tests.simulation.invariants import Invariant, Referee, Violation
from tests.simulation.machines import SimulatedNode, World
from tests.simulation.network import Network
from tests.simulation.points import Points
from tests.simulation.store_link import StoreLink, StoreTrouble
from tests.simulation.trace import Trace
from tests.simulation.virtual_time import Process, VirtualClock
from tests.simulation.workload import OWNERS, Wish
from tests.support.memory_objects import MemoryObjects
from tests.support.platforms import ensure_cluster

T = TypeVar("T")

USERS = OWNERS
_RETRY_S = 0.2
ARCHIVED_AFTER_S = 5.0
"""Logs of what ended move while others still run, and faults hit that."""
_AGAIN_S = 0.5
_SILENCE_LOOK_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How large a cluster is, and how fast its network; seconds."""

    nodes: int = 4
    devices: int = 4
    control_planes: int = 2
    latency_s: tuple[float, float] = (0.0002, 0.002)
    team_gpus: int = 0
    """Thousandths of GPUs that all users may hold at once, as one team of a competition; 0: there is none."""


class OneTeam:
    """All users are in one team of a competition, and all sessions count for it: they use no datasets here."""

    COMPETITION = "c1"

    async def of(self, *_: object) -> tuple[str, ...]:
        """See CompetitionTeams."""
        return (f"{self.COMPETITION}/lions",)


@dataclass(frozen=True, kw_only=True)
class Durable:
    """What no crash of a control plane touches, and what is wrong with it."""

    store: KeyValueStore
    history: History
    objects: ObjectStore
    authority: Authority
    vault: Vault
    store_trouble: StoreTrouble = field(default_factory=StoreTrouble)
    history_trouble: Trouble = field(default_factory=Trouble)
    objects_trouble: Trouble = field(default_factory=Trouble)


class MemoryPeers:
    """The other control planes, as one reaches them."""

    def __init__(self, network: Network, source: str) -> None:
        self._network = network
        self._source = source

    def channel(self, address: str, *, is_tls: bool) -> Channel:
        assert not is_tls
        return self._network.channel(self._source, address)

    async def attend(self, leader: Leader, met: Callable[[], None]) -> None:
        await self._network.pass_link(self._source, leader.address)
        if self._network.is_met(self._source, leader.address, leader.process):
            met()
            await self._network.lost(self._source, leader.address, leader.process)

    async def refuses(self, address: str) -> bool:
        await self._network.pass_link(self._source, address)
        return self._network.refuses(self._source, address) is True

    async def close(self) -> None:
        """Nothing is held."""


@dataclass
class ControlPlaneProcess:
    """One control plane, as a process that can be killed, paused, stopped and started again."""

    world: World
    durable: Durable
    address: str
    incarnations: int = 0
    plane: ControlPlane | None = None
    link: StoreLink | None = None
    _life: asyncio.Task[None] | None = None
    _stopping: asyncio.Task[None] | None = None
    _resigning: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.points = Points(self._crashed)
        self.process = Process(self.address)
        self.clock = VirtualClock(asyncio.get_running_loop())

    @property
    def is_alive(self) -> bool:
        return self._life is not None

    @property
    def is_leading(self) -> bool:
        """Whether it believes so, and can do anything about it."""
        return (
            self.plane is not None
            and self.plane.core.committer.is_leading
            and not self.process.is_paused
        )

    def start(self) -> None:
        """Begin a process that knows nothing."""
        if self._life is not None:
            return
        self.incarnations += 1
        self.world.referee.has_newcomers |= self.incarnations > 1
        self.world.referee.trace.note("control plane", self.address, self.incarnations)
        member = f"{self.address}.{self.incarnations}"
        self.process = Process(member)
        self.link = StoreLink(
            self.durable.store,
            self.world.network,
            source=self.address,
            member=member,
            observer=self.world.referee,
            points=self.points,
            trouble=self.durable.store_trouble,
            outside=self.world.outside,
        )
        self._life = self.world.group.create_task(
            self._live(member, self.link), name=member, context=self.process.context()
        )

    async def kill(self) -> None:
        """SIGKILL: everything in memory is gone, what was sent is on its way."""
        life, self._life = self._life, None
        if life is None:
            return
        resigning, self._resigning = self._resigning, None
        if resigning is not None:
            resigning.cancel()
        self.world.referee.trace.note("control plane killed", self.address)
        self._end_now()
        life.cancel()
        self.points.bury()
        self.process.bury()
        await asyncio.wait([life])

    def stop(self) -> bool:
        """SIGTERM: it resigns and says goodbye, as `server.py` does; False when it does already."""
        life, self._stopping = self._life, self._life
        if life is None or self._resigning is not None:
            return False
        self.world.referee.trace.note("control plane stops", self.address)
        life.add_done_callback(self._stopped)
        loop = asyncio.get_running_loop()
        # Kept by its process, which may be paused or die before it has resigned.
        self._resigning = loop.create_task(self._resign(life), context=self.process.context())
        return True

    async def _resign(self, life: asyncio.Task[None]) -> None:
        if self.plane is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(RESIGN_WITHIN_S):
                    await self.plane.resign()
        if self.plane is not None:
            self.plane.core.contacts.close_all(Unavailable("this control plane stops"))
        life.cancel()

    async def stopped(self) -> None:
        """Return when it is not stopping any more."""
        while self._life is not None and self._life is self._stopping:
            await asyncio.wait([self._life])
            await asyncio.sleep(0)

    def _stopped(self, life: asyncio.Task[None]) -> None:
        if self._life is life:
            self._life = self._resigning = None
            self._end_now()

    def _end_now(self) -> None:
        """Nothing that the process does from here on has an effect."""
        if self.link is not None:
            self.link.sever()
        self.world.network.crash(self.address)

    def _crashed(self, point: str) -> None:
        self.world.fire("crash of a control plane at a point", self.address, point)
        self.process.die()
        self._end_now()

    async def _live(self, member: str, link: StoreLink) -> None:
        on = self._surroundings(member, link)
        cluster_id = await self._cluster_id(on)
        who = MemberConfig(
            member=member,
            version="simulated",
            address=self.address,
            archive_logs_after_s=ARCHIVED_AFTER_S,
        )
        self.plane = plane = ControlPlane(on, who, cluster_id)
        if self.world.referee.team_gpus:
            plane.core.shared(submitter)._teams = OneTeam()  # type: ignore[assignment]
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(plane.run())
                await plane.core.state.reached(1)
                server = self.world.network.serve(self.address, plane.interceptors())
                server.process = plane.core.process
                plane.add_services(server)
        finally:
            self.plane = None

    def _surroundings(self, member: str, link: StoreLink) -> Backends:
        durable = self.durable

        def way(name: str, trouble: Trouble, error: type[Exception]) -> Way:
            return Way(
                member=member,
                rng=self.world.rng,
                points=self.points,
                witness=self.world.referee,
                trouble=trouble,
                error=error,
                name=name,
            )

        return Backends(
            store=link,
            history=HistoryLink(
                durable.history, way("history", durable.history_trouble, HistoryUnavailable)
            ),
            objects=objects_link(
                durable.objects, way("objects", durable.objects_trouble, ObjectsUnavailable)
            ),
            authority=durable.authority,
            vault=durable.vault,
            clock=self.clock,
            random_bytes=self.world.rng.randbytes,
            peers=MemoryPeers(self.world.network, self.address),
        )

    async def _cluster_id(self, on: Backends) -> str:
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
    shape: Shape
    nodes: list[SimulatedNode] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)

    def rng(self, what: str) -> random.Random:
        """A source of chance of its own for each purpose."""
        return random.Random(f"{self.seed} {what}")

    def client(self, user: str, machine: str = "") -> Client:
        """A client of a user, on a machine of its own."""
        source = machine or f"{user}-laptop"
        addresses = [plane.address for plane in self.planes]
        ways = Endpoints(partial(self.network.channel, source), addresses)
        rng = self.rng(f"client of {user}")
        return Client(ways, token=self.tokens[user], clock=self.world.clock, rng=rng)

    async def until(
        self, condition: Callable[[], T], what: str, within_s: float = 60.0, look_s: float = 0.1
    ) -> T:
        """The first true value of a condition; a violation when there is none in time."""
        deadline = self.world.clock.monotonic() + within_s
        while not (value := condition()):
            if self.world.clock.monotonic() > deadline:
                error = Violation(
                    f"[{Invariant.RECOVERY}] not within {within_s:g} s: {what}{self._left()}"
                )
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

    async def _open_competition(self) -> None:
        """One with a limit, which the leader has yet to bring to the scheduler."""
        phase = Phase(name="one", starts_at=1.0, ends_at=1e12, dataset_owner="root", dataset="d")
        settings = CompetitionSettings(phases=(phase,), gpu_thousandths=self.shape.team_gpus)
        await self.durable.history.competitions.create(
            Competition(
                id=OneTeam.COMPETITION,
                owner="root",
                name="cup",
                settings=settings,
                created_at=0.0,
                state=CompetitionState.OPEN,
            )
        )

    @property
    def _knows_competition(self) -> bool:
        return all(one.plane and one.plane.core.state.team_quotas for one in self.planes)

    async def set_up(self, data: Path) -> None:
        """Start everything, users and nodes included."""
        self.referee.team_gpus = self.shape.team_gpus
        if self.shape.team_gpus:
            await self._open_competition()
        for process in self.planes:
            process.start()
        await self.until(lambda: self.leader, "somebody leads")
        plane = await self.until(
            lambda: next((one.plane for one in self.planes if one.plane), None), "somebody serves"
        )
        assert plane is not None
        for user in USERS:
            await plane.core.accounts.create_user(user, Role.MEMBER, "")
            token = await plane.core.accounts.create_token(user)
            self.tokens[user] = token.secret.text
        for number in range(1, self.shape.nodes + 1):
            name = f"n{number}"
            token = await plane.core.accounts.create_node_token(name)
            folder = data / name
            folder.mkdir()
            devices, servers = self.shape.devices, ",".join(one.address for one in self.planes)
            node = SimulatedNode(self.world, name, folder, token.secret.text, servers, devices)
            self.nodes.append(node)
            self.world.group.create_task(node.run(), name=name)
            await node.start_agent()
        # What no known node could ever hold would be refused.
        await self.until(lambda: self._known_nodes == self.shape.nodes, "all nodes are known")
        if self.shape.team_gpus:
            await self.until(lambda: self._knows_competition, "the limit of the team is known")

    @property
    def _known_nodes(self) -> int:
        """To every control plane: any may be asked."""
        return min(len(one.plane.core.state.nodes) if one.plane else 0 for one in self.planes)

    async def minding(self, act: Callable[[NodeKeeper], Awaitable[Node]]) -> None:
        """Have the leader decide about a node, whoever that is by then."""
        while True:
            leader = await self.until(lambda: self.leader, "somebody leads")
            if leader is None or leader.plane is None:
                continue
            try:
                node = await act(leader.plane.core.shared(node_keeper))
            except (NotLeader, NotFound):
                await asyncio.sleep(_AGAIN_S)
                continue
            if node.drain is not None:
                self.referee.drained(node.name)
            return

    async def restore(self) -> None:
        """Heal and mend everything, start what is dead or paused and have every node taken back."""
        self.network.heal_all()
        self.network.latency_s = self.shape.latency_s
        durable = self.durable
        durable.store_trouble.no_space = False
        for trouble in (durable.history_trouble, durable.objects_trouble):
            trouble.is_gone, trouble.failing, trouble.slow_s = False, 0.0, 0.0
        for process in self.planes:
            process.points.disarm()
            process.clock.skew_s = 0.0
            if process.link is not None:
                process.link.lose_events(0)
            process.process.resume()
            if process.process.is_paused:  # it crashed, and nobody was left to bury it
                await process.kill()
            await process.stopped()
            process.start()
        for node in self.nodes:
            node.points.disarm()
            node.clock.skew_s = 0.0
            node.disk.is_full, node.disk.failing, node.disk.slow_s = False, 0.0, 0.0
            node.process.resume()
            if node.process.is_paused:
                await node.kill_agent()
            await node.start_agent()
            await self.minding(partial(_resume, node.name))

    def bury(self) -> None:
        """End every process; without it, one that is paused would never see that it is cancelled."""
        for one in (*self.planes, *self.nodes):
            one.points.bury()
            one.process.bury()

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
            and leader.plane.core.contacts.link(node.name) is not None
            and not self.network.is_frozen(node.name, leader.address)
            and not self.network.is_frozen(leader.address, node.name)
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
    shape: Shape | None = None,
) -> AsyncIterator[Cluster]:
    """A cluster that is up, inside a virtual loop (`virtual_time.run`).

    A violation of an invariant ends the block at once.
    """
    clock = VirtualClock(asyncio.get_running_loop())
    trace = Trace()
    referee = Referee(trace, wishes)
    shape = shape or Shape()
    network = Network(random.Random(f"{seed} network"), latency_s=shape.latency_s)
    addresses = [f"cp{number}" for number in range(1, shape.control_planes + 1)]
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
            authority=_authority(),
            vault=make_vault(random.Random(f"{seed} vault").randbytes),
        )
        referee.blob = durable.objects.get
        referee.cursors = durable.history.streams.cursors
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
                cluster = Cluster(seed, world, trace, referee, network, planes, durable, shape)
                group.create_task(_watch_over(referee))
                group.create_task(cluster.watch_silence())
                try:
                    await cluster.set_up(Path(disk))
                    yield cluster
                finally:
                    cluster.bury()
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


@cache
def _authority() -> Authority:
    """Keys take their time to make, and no two simulations meet."""
    return make_authority(SystemClock())


def _memory_folder() -> str | None:
    """Where files cost no disk."""
    place = Path("/dev/shm")
    return str(place) if place.is_dir() else None
