"""One whole simulation: users with their sessions, faults while they run, and the judgement."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from controlplane.domain.values import Cause
from nsml.client.calls import Client
from nsml.client.errors import AlreadyEnded, ClientError, Unavailable
from nsml.client.streams import ENDED_STATES, watch_sessions
from nsml.v1 import sessions_pb2
from tests.simulation.cluster import USERS, Cluster, simulated
from tests.simulation.faults import FAULTS, Faults
from tests.simulation.invariants import Violation, tally
from tests.simulation.virtual_time import run
from tests.simulation.workload import Wish, mixed

Workload = Callable[[random.Random, int], dict[str, Wish]]

AGAIN_S = 0.5
QUIET_WITHIN_S = 1_200.0
LONGEST_FAULTS_S = 200.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a simulation came to."""

    seed: int
    digest: str
    lasted_s: float
    programs: str
    events: int
    faults: int
    broken_calls: int
    moved: int


@dataclass(frozen=True, kw_only=True)
class Chaos:
    """Which faults, by weight, how often one begins on average, and how many may lead."""

    kinds: Mapping[str, float]
    every_s: float
    control_planes: int


class User:
    """Submits, stops and watches, and believes every answer."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._client: Client = cluster.client(name)

    async def want(self, wish: Wish) -> None:
        """Submit until answered; stop it when its time has come."""
        await asyncio.sleep(wish.submit_at_s)
        session = await _answered(lambda: self._client.sessions.create(wish.request()))
        self._cluster.referee.promised(wish, session)
        if wish.stop_after_s is not None:
            await asyncio.sleep(wish.stop_after_s)
            await self._stop(wish, session)

    async def _stop(self, wish: Wish, session: sessions_pb2.Session) -> None:
        try:
            await _answered(lambda: self._client.sessions.stop(session.id))
        except AlreadyEnded:
            # Also the answer to a repeated wish whose first answer was lost.
            was_first = await self._end(session) == sessions_pb2.SESSION_STATE_STOPPED
        else:
            was_first = True
        if was_first:
            self._cluster.referee.promises[wish.key].stopped = True
            self._cluster.trace.note("stop promised", wish.key)

    async def _end(self, session: sessions_pb2.Session) -> int:
        """How a session ended that has: a control plane that is behind may show it alive."""
        while True:
            seen = await _answered(lambda: self._client.sessions.get(session.id))
            if seen.state in ENDED_STATES:
                return seen.state
            await asyncio.sleep(AGAIN_S)

    async def watch(self) -> None:
        """Look at one's sessions for ever, over every break."""
        chosen = sessions_pb2.SessionFilter(owners=[self._name])
        while True:
            try:
                async with aclosing(watch_sessions(self._client, chosen)) as answers:
                    async for answer in answers:
                        for session in answer.changed:
                            self._cluster.referee.watched(self._name, session)
            except ClientError as error:
                self._cluster.trace.note("watch broke", self._name, error.reason)
                await asyncio.sleep(AGAIN_S)


async def _answered(
    ask: Callable[[], Awaitable[sessions_pb2.Session]],
) -> sessions_pb2.Session:
    """Ask until somebody answers. What the same client was told once is there wherever it asks."""
    while True:
        try:
            return await ask()
        except Unavailable:
            await asyncio.sleep(AGAIN_S)


async def scenario(
    seed: int,
    wishes: Mapping[str, Wish],
    chaos: Chaos,
    quiet_within_s: float,
) -> Outcome:
    """Run everything to its end and judge it; raises Violation."""
    async with simulated(seed, wishes, control_planes=chaos.control_planes) as cluster:
        async with asyncio.TaskGroup() as group:
            breaking = _breaking(cluster, chaos, group)
            users = {name: User(cluster, name) for name in USERS}
            watching = [group.create_task(user.watch()) for user in users.values()]
            async with asyncio.TaskGroup() as wanting:
                for wish in wishes.values():
                    wanting.create_task(users[wish.owner].want(wish))
            if breaking is not None:
                await _few_left(cluster, len(wishes) // 10)
                breaking.cancel()
            await cluster.restore()
            await cluster.until(
                cluster.is_quiet, "everything ended and is cleaned up", quiet_within_s, look_s=1.0
            )
            for task in watching:
                task.cancel()
        await judge(cluster)
        return _outcome(cluster)


def _breaking(
    cluster: Cluster, chaos: Chaos, group: asyncio.TaskGroup
) -> asyncio.Task[None] | None:
    if not chaos.kinds:
        return None
    faults = Faults(cluster, cluster.rng("faults"), chaos.kinds, chaos.every_s)
    return group.create_task(faults.run())


def _outcome(cluster: Cluster) -> Outcome:
    kinds = [event[1] for event in cluster.trace.events]
    return Outcome(
        seed=cluster.seed,
        digest=cluster.trace.digest(),
        lasted_s=round(cluster.world.clock.monotonic(), 1),
        programs=tally(cluster.referee.lives.values()),
        events=len(kinds),
        faults=kinds.count("fault"),
        broken_calls=cluster.network.broken_calls,
        moved=sum(
            attempt.cause is Cause.PREEMPTED
            for session in cluster.referee.ended.values()
            for attempt in session.attempts
        ),
    )


async def _few_left(cluster: Cluster, few: int) -> None:
    """Return when most sessions have ended, or after long enough."""
    deadline = cluster.world.clock.monotonic() + LONGEST_FAULTS_S
    while len(cluster.referee.unfinished) > few:
        if cluster.world.clock.monotonic() > deadline:
            return
        await asyncio.sleep(AGAIN_S)


async def judge(cluster: Cluster) -> None:
    """Everything that must hold once all is over."""
    referee, history = cluster.referee, cluster.durable.history
    referee.check_ends()
    referee.check_nothing_left()
    await referee.check_records(history)
    await referee.check_charges(history)
    await _check_what_users_see(cluster)
    referee.finish()


async def _check_what_users_see(cluster: Cluster) -> None:
    """Users find every session with its end, and every node free."""
    referee = cluster.referee
    for promise in referee.promises.values():
        client = cluster.client(promise.wish.owner)
        shown = await _answered(partial(client.sessions.get, promise.name))
        session = referee.ended.get(promise.session_id)
        state = sessions_pb2.SessionState.Name(shown.state).removeprefix("SESSION_STATE_")
        referee.expect(
            shown.id == promise.session_id and (session is None or session.state.value == state),
            f"{promise.name} is shown as {shown.id} {state}",
        )
    for node in await cluster.client(USERS[0]).nodes.every():
        held = sum(device.allocated_thousandths for device in node.devices)
        referee.expect(
            held == 0 and node.allocated.cpu_thousandths == 0 and len(node.devices) == 4,
            f"node {node.name} still shows {held} thousandths held",
        )


def simulate(
    seed: int,
    *,
    sessions: int = 100,
    workload: Workload = mixed,
    faults: Mapping[str, float] = FAULTS,
    fault_every_s: float = 1.5,
    quiet_within_s: float = QUIET_WITHIN_S,
    control_planes: int = 2,
) -> Outcome:
    """The scenario of a seed, from nothing to the end; raises Violation."""
    wishes = workload(random.Random(f"{seed} wishes"), sessions)
    chaos = Chaos(kinds=faults, every_s=fault_every_s, control_planes=control_planes)
    try:
        return run(scenario(seed, wishes, chaos, quiet_within_s))
    except Violation as violation:
        violation.add_note(f"NSML_SIM_SEED={seed} runs it again")
        raise
