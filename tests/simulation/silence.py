"""Promises of time, each on a platform where nothing else happens: nobody submits, stops, reports or fails any more.

A seed chooses which promise, when things begin, and whether the leader dies in between. What is promised must come at
its instant, and no earlier: a timer that only some other event would have set is found here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import Session
from controlplane.nodes.lost_nodes import LOST_AFTER_MARGIN_S
from controlplane.scheduler.preemption_policy import IDLE_LEAST_RUN_S, LEAST_RUN_S, MIN_RUN_S
from nsml.v1 import sessions_pb2
from tests.simulation.cluster import Cluster, Shape, simulated
from tests.simulation.invariants import Violation
from tests.simulation.virtual_time import run
from tests.simulation.workload import GRACE_S, LOST_AFTER_S, Wish
from tests.support.fake_machine import Act, Script

EARLY_S = 1.0
"""How much earlier than promised something may come: instants are taken by looks."""
LATE_S = 10.0
"""How much later: some things are looked at every few seconds, and messages take a moment."""
FAILOVER_S = 60.0
"""The same where the leader died meanwhile: another one is elected, and hears of all nodes."""
_BINDS = b'{"save": true, "load": true}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed(Wish):
    """A session of a class, with what bounds its time.

    Attributes:
        binds_after_s: when its program says that it can be resumed; None: never.
        limit_s: its time limit; 0: none.
    """

    priority: int = sessions_pb2.PRIORITY_NORMAL
    binds_after_s: float | None = None
    limit_s: float = 0.0
    lost_after_s: float = 0.0

    def script(self, rank: int) -> Script:
        acts = []
        if self.binds_after_s is not None:
            acts.append(Act(after_s=self.binds_after_s, files={"resumable.json": _BINDS}))
            acts.append(self._save(1))
        acts.append(Act(after_s=self.runs_for_s))
        return Script(acts=acts)

    def request(self) -> sessions_pb2.CreateSessionRequest:
        request = Wish.request(self)
        request.spec.priority = self.priority
        if self.limit_s:
            request.spec.time_limit.FromMilliseconds(round(self.limit_s * 1000))
        if self.lost_after_s:
            request.spec.lost_after.FromMilliseconds(round(self.lost_after_s * 1000))
        return request


@dataclass
class Stage:
    """A cluster with sessions, by key."""

    cluster: Cluster
    rng: random.Random
    ids: dict[str, str]

    @property
    def now(self) -> float:
        return self.cluster.world.clock.monotonic()

    def session(self, key: str) -> Session:
        referee, session_id = self.cluster.referee, self.ids[key]
        return referee.ended.get(session_id) or referee.sessions[session_id]

    async def submit(self, key: str) -> None:
        wish = self.cluster.world.wishes[key]
        made = await self.cluster.client(wish.owner).sessions.create(wish.request())
        self.ids[key] = made.id
        await self.until(lambda: self.ids[key] in self.cluster.referee.sessions, 10.0)

    async def runs(self, key: str, within_s: float = 30.0, attempt: int = 1) -> float:
        """When its attempt runs."""

        def is_running() -> bool:
            session = self.session(key)
            return session.state is SessionState.RUNNING and session.attempt == attempt

        await self.until(is_running, within_s)
        return self.now

    async def until(self, condition: Callable[[], object], within_s: float) -> None:
        await self.cluster.until(condition, "what was promised", within_s, look_s=0.25)


Begin = Callable[[Stage], Awaitable[tuple[str, float]]]
"""Submits what it takes; the key of the session that is to start, and when that is promised, as `Stage.now`."""


@dataclass(frozen=True, kw_only=True)
class Promise:
    """Something that is promised.

    Attributes:
        wishes: its sessions.
        begin: see `Begin`.
        nodes: how many, of two devices each.
        attempt: which attempt of that session starts then.
    """

    wishes: Callable[[random.Random], list[Timed]]
    begin: Begin
    nodes: int = 1
    attempt: int = 1


def _wish(key: str, priority: int, owner: str = "kim", **facts: object) -> Timed:
    facts = {"submit_at_s": 0.0, "runs_for_s": 50_000.0, "gpu_thousandths": 2000, **facts}
    return Timed(key=key, owner=owner, priority=priority, **facts)  # type: ignore[arg-type]


def _gives_way(least_s: float) -> Begin:
    async def begin(stage: Stage) -> tuple[str, float]:
        await stage.submit("stays")
        began = await stage.runs("stays")
        await asyncio.sleep(stage.rng.uniform(0.0, min(least_s, 100.0)))
        await stage.submit("waits")
        return "waits", began + least_s

    return begin


async def _in_class(stage: Stage) -> tuple[str, float]:
    for key in ("one", "two"):
        await stage.submit(key)
        began = await stage.runs(key)
    await asyncio.sleep(stage.rng.uniform(0.0, 900.0))
    await stage.submit("waits")
    return "waits", began + MIN_RUN_S


async def _at_the_limit(stage: Stage) -> tuple[str, float]:
    await stage.submit("stays")
    began = await stage.runs("stays")
    await asyncio.sleep(stage.rng.uniform(0.0, 60.0))
    await stage.submit("waits")
    wish = stage.cluster.world.wishes["stays"]
    assert isinstance(wish, Timed)
    return "waits", began + wish.limit_s


async def _drained(stage: Stage) -> tuple[str, float]:
    await stage.submit("stays")
    await stage.runs("stays")
    [node] = {one.node for one in stage.session("stays").replicas}
    after_s = stage.rng.uniform(30.0, 400.0)
    who = {"asked_by": "root", "reason": ""}
    await stage.cluster.minding(lambda keeper: keeper.drain(node, move_after_s=after_s, **who))
    return "stays", stage.now + after_s


async def _silent(stage: Stage) -> tuple[str, float]:
    await stage.submit("stays")
    await stage.runs("stays")
    [name] = {one.node for one in stage.session("stays").replicas}
    await next(node for node in stage.cluster.nodes if node.name == name).kill_agent()
    return "stays", stage.now + LOST_AFTER_S + GRACE_S + LOST_AFTER_MARGIN_S


_HIGH, _NORMAL = sessions_pb2.PRIORITY_HIGH, sessions_pb2.PRIORITY_NORMAL
_LOW, _IDLE = sessions_pb2.PRIORITY_LOW, sessions_pb2.PRIORITY_IDLE

PROMISES: Mapping[str, Promise] = {
    "idle gives way": Promise(
        wishes=lambda _: [_wish("stays", _IDLE), _wish("waits", _HIGH)],
        begin=_gives_way(IDLE_LEAST_RUN_S),
    ),
    "a lower class gives way": Promise(
        wishes=lambda _: [_wish("stays", _LOW, binds_after_s=0.0), _wish("waits", _NORMAL)],
        begin=_gives_way(LEAST_RUN_S),
    ),
    "a lower class gives way though it binds late": Promise(
        wishes=lambda rng: [
            _wish("stays", _LOW, binds_after_s=rng.uniform(120.0, 280.0)),
            _wish("waits", _NORMAL),
        ],
        begin=_gives_way(LEAST_RUN_S),
    ),
    "an account that holds more gives way": Promise(
        wishes=lambda _: [
            *[
                _wish(key, _NORMAL, gpu_thousandths=1000, binds_after_s=5.0)
                for key in ("one", "two")
            ],
            _wish("waits", _NORMAL, "lee", gpu_thousandths=1000),
        ],
        begin=_in_class,
    ),
    "a time limit ends": Promise(
        wishes=lambda rng: [
            _wish("stays", _NORMAL, limit_s=rng.uniform(100.0, 2_000.0)),
            _wish("waits", _NORMAL),
        ],
        begin=_at_the_limit,
    ),
    "a drained node is emptied": Promise(
        wishes=lambda _: [_wish("stays", _NORMAL)], begin=_drained, nodes=2, attempt=2
    ),
    "a silent node is given up": Promise(
        wishes=lambda _: [_wish("stays", _NORMAL, retries=1, lost_after_s=LOST_AFTER_S)],
        begin=_silent,
        nodes=2,
        attempt=2,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Kept:
    """How a promise was kept: seconds after its instant, negative before."""

    seed: int
    promise: str
    late_s: float
    leader_died: bool


def simulate_silence(seed: int, promise: str = "") -> Kept:
    """Play a promise, that of the seed where none is named; raises Violation where it does not come in time."""
    rng = random.Random(f"{seed} silence")
    name = promise or rng.choice(sorted(PROMISES))
    leader_dies = rng.random() < 0.5
    return run(_play(seed, rng, name, leader_dies=leader_dies))


async def _play(seed: int, rng: random.Random, name: str, *, leader_dies: bool) -> Kept:
    promise = PROMISES[name]
    wishes = {wish.key: wish for wish in promise.wishes(rng)}
    shape = Shape(nodes=promise.nodes, devices=2, control_planes=2)
    async with simulated(seed, wishes, shape=shape) as cluster:
        stage = Stage(cluster, rng, {})
        key, promised_at = await promise.begin(stage)
        if leader_dies:
            await asyncio.sleep(rng.uniform(0.0, max(promised_at - stage.now, 0.0)))
            leader = await cluster.until(lambda: cluster.leader, "somebody leads")
            await leader.kill()
        late_s = FAILOVER_S if leader_dies else LATE_S
        within_s = max(promised_at - stage.now, 0.0) + late_s
        at = await stage.runs(key, within_s, promise.attempt)
        if at < promised_at - EARLY_S:
            raise Violation(f"{name}: {promised_at - at:g} s too early")
        return Kept(seed=seed, promise=name, late_s=at - promised_at, leader_died=leader_dies)
