"""A gang ends as one: whoever ends badly, the others are told at once, and the first cause is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import Cause, Session
from nodeagent.folders import ReplicaId
from nsml.client.errors import AlreadyEnded
from tests.simulation.cluster import Cluster, simulated
from tests.simulation.invariants import Life
from tests.simulation.virtual_time import run
from tests.simulation.workload import GRACE_S, Wish
from tests.support.fake_machine import Act, Script

TOLD_WITHIN_S = 1.0
FAILS_AT_S = 5.0
RUNS = Script(acts=[Act(after_s=60.0)])


def fails(code: int = 3, after_s: float = FAILS_AT_S) -> Script:
    return Script(acts=[Act(after_s=after_s)], exit_code=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang(Wish):
    """Replicas that do different things, by rank."""

    scripts: Mapping[int, Script] = field(default_factory=dict)

    def script(self, rank: int) -> Script:
        return self.scripts[rank]


@dataclass
class Stage:
    """A gang on a cluster, and what becomes of it."""

    cluster: Cluster
    gang: Gang
    session_id: str

    @property
    def now(self) -> float:
        return self.cluster.world.clock.monotonic()

    @property
    def session(self) -> Session:
        referee = self.cluster.referee
        return referee.ended.get(self.session_id) or referee.sessions[self.session_id]

    def life(self, rank: int) -> Life:
        """Of the first attempt."""
        return self.cluster.referee.lives[self.replica(rank)]

    def replica(self, rank: int) -> ReplicaId:
        return ReplicaId(session_id=self.session_id, attempt=1, rank=rank)

    async def until(self, condition: Callable[[], object], within_s: float = 120.0) -> None:
        await self.cluster.until(condition, "what the test waits for", within_s, look_s=0.01)

    async def runs(self) -> None:
        await self.until(lambda: self.session.state is SessionState.RUNNING)

    async def gone(self, rank: int) -> float:
        """When the program of a rank was gone."""
        lives = self.cluster.referee.lives
        replica = self.replica(rank)
        await self.until(lambda: replica in lives and lives[replica].ended_at is not None)
        ended_at = self.life(rank).ended_at
        assert ended_at is not None
        return ended_at

    async def ended(self) -> Session:
        await self.until(lambda: self.session.state.is_ended)
        return self.session


def play(
    scripts: Mapping[int, Script],
    act: Callable[[Stage], Awaitable[None]],
    *,
    retries: int = 0,
    gpus: int = 4,
) -> None:
    """A gang of these scripts alone on a cluster; of four GPUs each fills a node."""
    gang = Gang(
        key="gang",
        owner="kim",
        submit_at_s=0.0,
        runs_for_s=0.0,
        gpu_thousandths=1000 * gpus,
        replicas=len(scripts),
        exit_codes=(0,) * len(scripts),
        retries=retries,
        scripts=scripts,
    )

    async def all_of_it() -> None:
        async with simulated(1, {gang.key: gang}) as cluster:
            made = await cluster.client("kim").sessions.create(gang.request())
            await act(Stage(cluster, gang, made.id))

    run(all_of_it())


@pytest.mark.parametrize(("stops_in_s", "takes_s"), [(0.0, 0.0), (2.0, 2.0), (None, GRACE_S)])
def test_the_others_are_told_within_a_second_and_gone_within_their_grace(
    stops_in_s: float | None, takes_s: float
) -> None:
    async def act(stage: Stage) -> None:
        first = await stage.gone(1)
        for rank in (0, 2):
            assert await stage.gone(rank) <= first + TOLD_WITHIN_S + takes_s
        ended = await stage.ended()
        assert ended.end is not None
        assert (ended.end.cause, ended.end.exit_code, ended.end.rank) == (
            Cause.PROGRAM_FAILED,
            3,
            1,
        )
        assert [attempt.cause for attempt in ended.attempts] == [Cause.PROGRAM_FAILED]

    stubborn = Script(acts=[Act(after_s=60.0)], stops_in_s=stops_in_s)
    play({0: stubborn, 1: fails(), 2: stubborn}, act)


def test_who_ends_well_lets_the_others_run() -> None:
    async def act(stage: Stage) -> None:
        left = await stage.gone(1)
        assert await stage.gone(0) > left + 50
        assert (await stage.ended()).state is SessionState.SUCCEEDED

    play({0: RUNS, 1: fails(0)}, act)


def test_of_two_that_end_at_once_one_is_the_cause() -> None:
    async def act(stage: Stage) -> None:
        ended = await stage.ended()
        assert ended.end is not None
        assert ended.end.exit_code == {0: 3, 1: 4}[ended.end.rank]
        assert len(ended.attempts) == 1

    play({0: fails(3), 1: fails(4), 2: RUNS}, act)


def test_one_that_cannot_be_started_ends_the_gang() -> None:
    async def act(stage: Stage) -> None:
        ended = await stage.ended()
        assert ended.end is not None
        assert (ended.end.cause, ended.end.rank) == (Cause.START_FAILED, 1)
        assert await stage.gone(0) < 10

    play({0: RUNS, 1: Script(start_error="no such file")}, act)


@pytest.mark.parametrize("after_s", [-0.01, 0.0, 0.01, 0.03, 0.1])
def test_a_control_plane_that_dies_meanwhile_changes_nothing(after_s: float) -> None:
    async def act(stage: Stage) -> None:
        await stage.runs()
        await asyncio.sleep(max(stage.life(1).started_at + FAILS_AT_S + after_s - stage.now, 0.0))
        for plane in stage.cluster.planes:
            await plane.kill()
        await asyncio.sleep(3)
        for plane in stage.cluster.planes:
            plane.start()
        ended = await stage.ended()
        assert ended.end is not None
        assert (ended.end.cause, ended.end.rank) == (Cause.PROGRAM_FAILED, 1)
        assert (await stage.gone(0)) < 40
        assert len(ended.attempts) == 1

    play({0: RUNS, 1: fails()}, act)


def test_an_agent_that_comes_back_tells_what_ended_while_it_was_dead() -> None:
    """What others of the gang died of while nobody could tell is the cause."""

    async def act(stage: Stage) -> None:
        await stage.runs()
        [node] = [one for one in stage.cluster.nodes if one.name == stage.life(1).node]
        await node.kill_agent()
        await stage.gone(1)
        await stage.until(lambda: stage.session.stop is not None)  # the others noticed themselves
        await asyncio.sleep(20)
        await node.start_agent()
        ended = await stage.ended()
        assert ended.end is not None
        assert (ended.end.exit_code, ended.end.rank) == (3, 1)

    play({0: fails(9, FAILS_AT_S + 4), 1: fails(), 2: RUNS}, act)


def test_a_gang_whose_node_lost_power_is_repeated_whatever_the_others_made_of_it() -> None:
    async def act(stage: Stage) -> None:
        await stage.runs()
        [node] = [one for one in stage.cluster.nodes if one.name == stage.life(1).node]
        await node.reboot()
        await stage.gone(0)
        await stage.until(lambda: stage.session.stop is not None)
        await node.start_agent()
        await stage.until(lambda: stage.session.attempt == 2)
        assert [attempt.cause for attempt in stage.session.attempts] == [Cause.NODE_LOST]

    play({0: fails(9, FAILS_AT_S + 4), 1: RUNS}, act, retries=1)


@pytest.mark.parametrize("after_s", [-0.5, -0.02, 0.0, 0.02])
def test_a_users_wish_and_a_failure_at_once_are_one_end(after_s: float) -> None:
    async def act(stage: Stage) -> None:
        await stage.runs()
        await asyncio.sleep(max(stage.life(1).started_at + FAILS_AT_S + after_s - stage.now, 0.0))
        with suppress(AlreadyEnded):
            await stage.cluster.client("kim").sessions.stop(stage.session_id)
        ended = await stage.ended()
        assert ended.end is not None
        assert (ended.state, ended.end.cause) in {
            (SessionState.STOPPED, Cause.STOP_REQUESTED),
            (SessionState.FAILED, Cause.PROGRAM_FAILED),
        }
        assert await stage.gone(0) < await stage.gone(1) + TOLD_WITHIN_S
        assert len(ended.attempts) == 1

    play({0: RUNS, 1: fails()}, act)


def test_all_are_told_at_once_to_a_node_with_several_of_them() -> None:
    async def act(stage: Stage) -> None:
        first = await stage.gone(0)
        for rank in range(1, 8):
            assert await stage.gone(rank) <= first + TOLD_WITHIN_S

    play({0: fails(), **dict.fromkeys(range(1, 8), RUNS)}, act, gpus=1)
