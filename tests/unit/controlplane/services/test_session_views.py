"""Many sessions as messages: others run in between, and no more are made than are sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import pytest

from controlplane.domain.identity import Role, User, UserCaller
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.limits import NO_LIMITS
from controlplane.domain.values import Cause, Progress, Project, Session, Stop, Visibility
from controlplane.history.sql.history import History
from controlplane.history.sqlite import open_history
from controlplane.history.values import (
    CheckpointCount,
    NodeSample,
    Summary,
    TrainingProgress,
)
from controlplane.limits.user_storage import Kept, ProjectKept
from controlplane.records.session_summaries import LastReports
from controlplane.sessions.session_views import AT_ONCE, Presenter
from controlplane.state.live_state import LiveState
from controlplane.store.tables import Stored
from controlplane.usage.usage import Usages
from controlplane.wire.chunking import parts_as_made
from nsml.common.clock import inline
from nsml.v1 import sessions_pb2
from tests.unit.controlplane.builders import session
from tests.unit.controlplane.workbench import HandClock

ADMIN = UserCaller(user=User(name="root", role=Role.ADMIN))


@dataclass
class Desk:
    history: History
    state: LiveState
    made: list[str] = field(default_factory=list)

    @property
    def presenter(self) -> Presenter:
        clock = HandClock()
        usages = Usages(state=self.state, history=self.history, clock=clock)
        reports = LastReports(state=self.state, history=self.history, usages=usages, clock=clock)
        return Presenter(
            state=self.state,
            history=self.history,
            reports=reports,
            waiting=self.made.append,
            usages=usages,
            kept=Kept(NO_LIMITS, self.history, clock),
            project_kept=ProjectKept(self.history, clock, find=self.state.project, every=tuple),
            clock=clock,
        )


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    history = await open_history(":memory:", clock=HandClock(), run=inline)
    yield Desk(history, LiveState(None, HandClock()))  # type: ignore[arg-type]
    await history.close()


async def test_others_run_between_many_sessions(desk: Desk) -> None:
    sessions = [session() for _ in range(10 * AT_ONCE)]
    seen: set[int] = set()

    async def other() -> None:
        while True:
            seen.add(len(desk.made))
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    messages = [one async for one in desk.presenter.sessions(sessions, ADMIN)]
    running.cancel()
    assert [one.id for one in messages] == [one.id for one in sessions]
    assert len(seen) >= 10


async def test_no_more_are_made_than_a_message_holds(desk: Desk) -> None:
    sessions = [session(memo="m" * 4_096, command=("c" * 30_000,)) for _ in range(5 * AT_ONCE)]
    async with aclosing(desk.presenter.sessions(sessions, ADMIN)) as made:
        part = await anext(parts_as_made(made))
    assert 0 < len(part) < len(desk.made) <= len(part) + AT_ONCE


async def test_no_revision_is_newer_than_what_is_told(desk: Desk) -> None:
    sessions = [session(memo="old") for _ in range(2 * AT_ONCE)]
    for one in sessions:
        desk.state.put_session(one, 5)
    async with aclosing(desk.presenter.sessions(sessions, ADMIN)) as made:
        told = [await anext(made)]
        for one in sessions:
            desk.state.put_session(replace(one, memo="new"), 6)
        told += [one async for one in made]
    assert {(one.memo, one.revision) for one in told} == {("old", 5)}


@pytest.mark.parametrize(
    ("state", "asked_at", "until"),
    [
        (SessionState.STOPPING, 1000.0, 1070),
        # Of a version that did not note it.
        (SessionState.STOPPING, 0.0, None),
        (SessionState.FINALIZING, 1000.0, None),
    ],
)
async def test_who_is_being_stopped_is_told_why_and_until_when(
    desk: Desk, state: SessionState, asked_at: float, until: int | None
) -> None:
    stop = Stop(
        grace_s=10.0,
        notice_s=60.0,
        cause=Cause.PREEMPTED,
        reason="moves to make room for a session of lee",
        asked_at=asked_at,
    )
    shown = await desk.presenter.session(session(state=state, stop=stop), ADMIN)
    assert shown.HasField("stop") is (state is SessionState.STOPPING)
    if shown.HasField("stop"):
        told = (shown.stop.cause, shown.stop.reason, shown.stop.asked_by)
        assert told == (sessions_pb2.CAUSE_PREEMPTED, stop.reason, "")
    assert (shown.stop.until.seconds if shown.stop.HasField("until") else None) == until


ENVIRONMENT = {"LR": "s3cret-1", "EMPTY": ""}
COMMAND = ("nsml", "run", "--env", "LR", "--env=EMPTY")


@pytest.mark.parametrize(
    ("name", "role", "team", "sees"),
    [
        ("kim", Role.MEMBER, "", True),
        ("kim", Role.MEMBER, "vision", True),
        ("root", Role.ADMIN, "", True),
        ("lee", Role.MEMBER, "vision", False),
        ("lee", Role.MEMBER, "", False),
    ],
)
async def test_values_are_for_the_owner_and_administrators(
    desk: Desk, name: str, role: Role, team: str, sees: bool
) -> None:
    one = session(
        spec={"environment": ENVIRONMENT},
        command=COMMAND,
        team="vision",
        visibility=Visibility.PUBLIC,
    )
    viewer = UserCaller(user=User(name=name, role=role, team=team))
    alone = await desk.presenter.session(one, viewer)
    [listed] = [message async for message in desk.presenter.sessions([one], viewer)]
    assert alone == listed
    assert (b"s3cret" in alone.SerializeToString()) is sees
    if sees:
        assert dict(alone.spec.environment) == ENVIRONMENT
        assert alone.command == ["nsml", "run", "--env", "LR=s3cret-1", "--env=EMPTY="]
    else:
        assert dict(alone.spec.environment) == {"LR": "***", "EMPTY": "***"}
        assert alone.command == list(COMMAND)


async def test_none_of_many_values_is_shown(desk: Desk) -> None:
    environment = {f"NAME_{number}": f"s3cret-{number}" for number in range(400)}
    lee = UserCaller(user=User(name="lee"))
    for _ in range(20):  # each message keeps its map in an order of its own
        shown = await desk.presenter.session(session(spec={"environment": environment}), lee)
        assert b"s3cret" not in shown.SerializeToString()
        assert dict(shown.spec.environment) == dict.fromkeys(environment, "***")


async def test_a_command_that_was_kept_with_its_values_is_shown_without(desk: Desk) -> None:
    one = session(command=("nsml", "run", "--env", "LR=s3cret", "--", "--env", "X=mine"))
    lee = UserCaller(user=User(name="lee"))
    shown = await desk.presenter.session(one, lee)
    assert shown.command == ["nsml", "run", "--env", "LR", "--", "--env", "X=mine"]


class Slow:
    """A history whose answers wait for a word; tells what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[set[str]] = []
        self.counts: dict[str, CheckpointCount] = {}
        self.may_answer = asyncio.Event()
        self.catalogue = self.streams = self.telemetry = self.environment_locks = self
        self.reported_config = self

    async def checkpoint_counts(self, session_ids: set[str]) -> dict[str, CheckpointCount]:
        self.asked.append(set(session_ids))
        counts = dict(self.counts)
        await self.may_answer.wait()
        return counts

    async def facts_of(self, _: str) -> None:
        """No lock of an environment is kept."""

    async def of(self, _: list[str]) -> dict[str, object]:
        return {}  # no configuration was reported

    async def newest(self) -> dict[str, NodeSample]:
        return self.known()

    def known(self) -> dict[str, NodeSample]:
        return {}

    async def summaries(self, session_ids: set[str]) -> dict[str, Summary]:
        return {}

    async def progress(self, session_ids: set[str]) -> dict[str, TrainingProgress]:
        return {}


@pytest.fixture
def slow() -> Slow:
    return Slow()


async def viewers(
    slow: Slow, desk: Desk, *seen: Session
) -> list[asyncio.Task[sessions_pb2.Session]]:
    """One viewer of each session, who has asked."""
    presenter = replace(desk, history=slow).presenter  # type: ignore[arg-type]
    tasks = [asyncio.create_task(presenter.session(one, ADMIN)) for one in seen]
    while not slow.asked:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_who_asks_meanwhile_asks_together(desk: Desk, slow: Slow) -> None:
    seen = [session(attempt=1) for _ in range(10)]
    tasks = await viewers(slow, desk, *seen)
    # Nobody is told what was read before he asked.
    slow.counts = {one.id: CheckpointCount(there=7, lost=2) for one in seen}
    slow.may_answer.set()
    told = await asyncio.gather(*tasks)
    assert [one.checkpoint_count for one in told] == [0] + [7] * 9
    assert [one.lost_checkpoint_count for one in told] == [0] + [2] * 9
    assert slow.asked == [{seen[0].id}, {one.id for one in seen[1:]}]


async def test_a_checkpoint_counts_as_saved_before_its_node_says_so(desk: Desk, slow: Slow) -> None:
    seen = [session(attempt=1, progress=Progress(saved_at=6.0)) for _ in range(4)]
    tasks = await viewers(slow, desk, *seen)
    # The first has asked before; of the last the clock of its node is ahead.
    slow.counts = {
        one.id: CheckpointCount(there=1, saved_at=at)
        for one, at in zip(seen, (9.0, 5.0, 9.0, 1e12), strict=True)
    }
    slow.may_answer.set()
    told = [one.progress.saved_at.seconds for one in await asyncio.gather(*tasks)]
    assert told == [6, 6, 9, HandClock().time()]


async def test_one_who_goes_leaves_the_others_their_answer(desk: Desk, slow: Slow) -> None:
    seen = [session(attempt=1) for _ in range(3)]
    first, second, third = await viewers(slow, desk, *seen)
    first.cancel()
    slow.counts = {seen[2].id: CheckpointCount(there=7)}
    while len(slow.asked) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    second.cancel()
    slow.may_answer.set()
    assert (await third).checkpoint_count == 7


async def test_what_is_kept_is_nobodys_to_change(desk: Desk) -> None:
    one, presenter = session(memo="mine"), desk.presenter
    first = await presenter.session(one, ADMIN)
    first.memo = "changed"
    assert (await presenter.session(one, ADMIN)).memo == "mine"
    later = await presenter.session(replace(one, memo="later"), ADMIN)
    assert later.memo == "later"


async def test_who_left_a_project_is_not_told_how_much_it_keeps(desk: Desk) -> None:
    one = session(owner="kim", project="vision", state=SessionState.RUNNING)
    presenter, told = desk.presenter, []
    for members in ({"kim"}, {"lee"}):
        project = Project(name="vision", members=frozenset(members), kept_bytes=1000)
        desk.state.projects["vision"] = Stored(
            key="project/vision", value=project, revision=1, create_revision=1
        )
        presenter._project_kept.take("vision", 500)
        told.append((await presenter.session(one, UserCaller(user=User(name="kim")))).waiting)
    assert told[0] == ""
    assert told[1].endswith(" wait on their node, since its project is at its storage quota")
    seen = await presenter.session(one, ADMIN)
    assert "keeps 1.0 kB of 1.0 kB for project vision" in seen.waiting
