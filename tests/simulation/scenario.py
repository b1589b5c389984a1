"""One whole simulation: users with their sessions, faults while they run, and the judgement."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from controlplane.domain.values import Cause
from controlplane.records.logs import Logs
from controlplane.state.live_state import RELIST_EVERY_S
from nsml.client.calls import Client
from nsml.client.errors import AlreadyEnded, ClientError, Unavailable
from nsml.client.streams import ENDED_STATES, watch_sessions
from nsml.common.clock import inline
from nsml.v1 import sessions_pb2
from tests.simulation.cluster import USERS, Cluster, Shape, simulated
from tests.simulation.faults import FAULTS, Faults
from tests.simulation.invariants import Invariant, Promise, tally
from tests.simulation.network import PACE_S
from tests.simulation.situations import Situation, situation
from tests.simulation.virtual_time import run
from tests.simulation.workload import Wish, mixed

Workload = Callable[[random.Random, int], dict[str, Wish]]

AGAIN_S = 0.5
QUIET_WITHIN_S = 1_200.0
LONGEST_FAULTS_S = 200.0
BEHIND_S = 20.0
"""How long a control plane that did not reach the store may show what was."""

STILL_FOR_S = 8.0
STILL_WITHIN_S = 200.0

MOST_CALLS = 100
"""Of one machine and method within PACE_S; it is a third of that at most, where all is sound."""

LONGEST_S = 10_000.0
"""Virtual seconds after which a scenario is taken for one that never ends."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a simulation came to.

    Attributes:
        faults: how often each kind had an effect.
        operations: how much of what happened.
        checks: how often each invariant was looked at.
        moved: attempts that were moved elsewhere.
    """

    seed: int
    digest: str
    lasted_s: float
    programs: str
    events: int
    faults: Mapping[str, int]
    operations: Mapping[str, int]
    checks: Mapping[str, int]
    broken_calls: int
    moved: int


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
            self._cluster.referee.stop_promised(wish)

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
            self._cluster.referee.watches_anew(self._name)
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


async def scenario(seed: int, chosen: Situation, quiet_within_s: float) -> Outcome:
    """Run everything to its end and judge it; raises Violation."""
    wishes = chosen.wishes
    async with simulated(seed, wishes, shape=chosen.shape) as cluster:
        async with asyncio.TaskGroup() as group:
            breaking = _breaking(cluster, chosen, group)
            users = {name: User(cluster, name) for name in USERS}
            watching = [group.create_task(user.watch()) for user in users.values()]
            wanting = [group.create_task(users[wish.owner].want(wish)) for wish in wishes.values()]
            if breaking is not None:
                await _few_left(cluster, wanting, len(wishes) // 10, chosen.faults_for_s)
                breaking.cancel()
                await asyncio.wait([breaking])
            await cluster.restore()
            await cluster.until(
                lambda: all(want.done() for want in wanting) and cluster.is_quiet(),
                "everything ended and is cleaned up",
                quiet_within_s,
                look_s=1.0,
            )
            await _check_what_watchers_saw(cluster)
            for task in watching:
                task.cancel()
        await judge(cluster)
        return _outcome(cluster)


def _breaking(
    cluster: Cluster, chosen: Situation, group: asyncio.TaskGroup
) -> asyncio.Task[None] | None:
    if not chosen.faults:
        return None
    faults = Faults(cluster, cluster.rng("faults"), chosen.faults, chosen.every_s)
    return group.create_task(faults.run())


def _outcome(cluster: Cluster) -> Outcome:
    referee = cluster.referee
    return Outcome(
        seed=cluster.seed,
        digest=cluster.trace.digest(),
        lasted_s=round(cluster.world.clock.monotonic(), 1),
        programs=tally(referee.lives.values()),
        events=len(cluster.trace.events),
        faults=dict(cluster.world.fired),
        operations=dict(referee.operations),
        checks={invariant.value: count for invariant, count in referee.checks.items()},
        broken_calls=cluster.network.broken_calls,
        moved=sum(
            attempt.cause is Cause.PREEMPTED
            for session in referee.ended.values()
            for attempt in session.attempts
        ),
    )


async def _few_left(
    cluster: Cluster, wanting: Sequence[asyncio.Task[None]], few: int, within_s: float
) -> None:
    """Return when most sessions have ended, or after long enough."""
    deadline = cluster.world.clock.monotonic() + within_s
    while cluster.world.clock.monotonic() < deadline:
        if len(cluster.referee.unfinished) <= few and all(want.done() for want in wanting):
            return
        await asyncio.sleep(AGAIN_S)


async def judge(cluster: Cluster) -> None:
    """Everything that must hold once all is over."""
    referee, history = cluster.referee, cluster.durable.history
    referee.check_ends()
    referee.check_nothing_left()
    if cluster.world.fired["lost watch events"]:
        await asyncio.sleep(RELIST_EVERY_S + 10.0)  # until then a control plane may not know
    logs = Logs(history=history, objects=cluster.durable.objects, run=inline)
    await referee.check_records(logs)
    await referee.check_charges(history)
    await referee.check_checkpoints(history)
    await _check_what_users_see(cluster)
    await _check_stillness(cluster)
    _check_pace(cluster)
    referee.finish()


async def _check_stillness(cluster: Cluster) -> None:
    """When nothing is left to do, nothing is written, once every agent has come back."""
    referee, time = cluster.referee, cluster.world.clock.monotonic
    until = time() + STILL_WITHIN_S
    while time() < until:
        if time() > referee.last_commit_at + STILL_FOR_S:
            referee.expect(Invariant.STILLNESS, True, "")
            return
        await asyncio.sleep(1.0)
    referee.violation(Invariant.STILLNESS, "something is written again and again for nothing")


def _check_pace(cluster: Cluster) -> None:
    """No part of the platform asks as fast as it is refused, whatever is wrong."""
    for (source, method, span), calls in cluster.network.paces.items():
        if source.partition("-")[0] not in USERS:  # they are of the tests
            text = f"{source} called {method} {calls} times from {span * PACE_S:g} s on"
            cluster.referee.expect(Invariant.PACE, calls <= MOST_CALLS, text)


async def _check_what_users_see(cluster: Cluster) -> None:
    """Users find every session with its end, and every node free; whom they ask may be behind."""
    for promise in cluster.referee.promises.values():
        await _seen(cluster, Invariant.PROMISES, partial(_shown_wrong, cluster, promise))
    await _seen(cluster, Invariant.NOTHING_LEFT, partial(_shown_held, cluster))


async def _check_what_watchers_saw(cluster: Cluster) -> None:
    """Whom they ask may be behind, and not know before it lists anew what it was not told."""
    is_told = not cluster.world.fired["lost watch events"]

    async def wrong() -> str:
        return ", ".join(cluster.referee.unended)

    within_s = BEHIND_S if is_told else BEHIND_S + RELIST_EVERY_S
    await _seen(cluster, Invariant.SHOWN_ENDS, wrong, within_s)


async def _seen(
    cluster: Cluster,
    invariant: Invariant,
    wrong: Callable[[], Awaitable[str]],
    within_s: float = BEHIND_S,
) -> None:
    until = cluster.world.clock.monotonic() + within_s
    while text := await wrong():
        if cluster.world.clock.monotonic() > until:
            break
        await asyncio.sleep(AGAIN_S)
    cluster.referee.expect(invariant, not text, text)


async def _shown_wrong(cluster: Cluster, promise: Promise) -> str:
    client = cluster.client(promise.wish.owner)
    shown = await _answered(partial(client.sessions.get, promise.name))
    session = cluster.referee.ended.get(promise.session_id)
    state = sessions_pb2.SessionState.Name(shown.state).removeprefix("SESSION_STATE_")
    is_right = session is None or session.state.value == state
    if shown.id == promise.session_id and is_right:
        return ""
    return f"{promise.name} is shown as {shown.id} {state}"


async def _shown_held(cluster: Cluster) -> str:
    for node in await cluster.client(USERS[0]).nodes.every():
        held = sum(device.allocated_thousandths for device in node.devices)
        if held or node.allocated.cpu_thousandths or len(node.devices) != cluster.shape.devices:
            return f"node {node.name} shows {len(node.devices)} devices, {held} thousandths held"
    return ""


def play(seed: int, chosen: Situation, quiet_within_s: float) -> Outcome:
    """`scenario` on virtual time; raises Violation, and Stalled when it does not end."""
    return run(scenario(seed, chosen, quiet_within_s), longest_s=LONGEST_S)


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
    """A large scenario of a seed, from nothing to the end; raises Violation."""
    chosen = Situation(
        shape=Shape(control_planes=control_planes),
        wishes=workload(random.Random(f"{seed} wishes"), sessions),
        faults=faults,
        every_s=fault_every_s,
        faults_for_s=LONGEST_FAULTS_S,
    )
    return play(seed, chosen, quiet_within_s)


def simulate_situation(seed: int, profile: str = "all") -> Outcome:
    """The small scenario that a seed chooses; raises Violation."""
    return play(seed, situation(seed, profile), QUIET_WITHIN_S)
