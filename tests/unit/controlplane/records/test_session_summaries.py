"""What sessions reported last, told to who watches: all of it, the newest last, nothing twice, no more than is allowed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.identity import User, UserCaller
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import Session, Usage, Visibility
from controlplane.history.errors import HistoryUnavailable
from controlplane.history.sql.history import History
from controlplane.history.sqlite import open_history
from controlplane.history.values import Channel, Chunk, StreamKey
from controlplane.records.session_summaries import AT_ONCE, EVERY_S, LastReports
from controlplane.sessions.readers import SessionWatch
from controlplane.sessions.session_listing import Filter
from controlplane.state.live_state import LiveState
from controlplane.usage.usage import Live, Usages
from nsml.common.clock import inline
from tests.simulation.virtual_time import VirtualClock, run
from tests.support.examples import examples
from tests.unit.controlplane.builders import session

KIM = UserCaller(user=User(name="kim"))


class Histories:
    """A history that counts what is asked of it, and does not answer while it is away."""

    def __init__(self, history: History) -> None:
        self.whole = history
        self.is_away = False
        self.asked: list[set[str]] = []
        self.catalogue, self.streams = history.catalogue, self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole.streams, name)

    async def listed_summaries(self, ids: set[str]) -> Any:
        self.asked.append(set(ids))
        if self.is_away:
            raise HistoryUnavailable("away")
        return await self.whole.streams.listed_summaries(ids)


@dataclass
class Town:
    clock: VirtualClock
    history: Histories
    state: LiveState
    usages: Usages
    reports: LastReports
    sessions: list[Session] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)

    def begin(self, count: int, **facts: Any) -> list[Session]:
        found = [
            session(attempt=1, state=SessionState.RUNNING, owner="kim", **facts)
            for _ in range(count)
        ]
        for one in found:
            self.state.put_session(one, self.state.revision + 1)
            self.state.reach(self.state.revision + 1)
        self.sessions += found
        return found

    async def report(self, *sessions: Session) -> None:
        chunks = []
        for one in sessions:
            step = self.steps[one.id] = self.steps.get(one.id, 0) + 1
            told = {"kind": "metric", "time": self.clock.time(), "step": step, "summary": True}
            record = json.dumps({**told, "values": {"loss": 1 / step}}).encode()
            key = StreamKey(one.id, 1, 0, Channel.METRIC)
            chunks.append(Chunk(stream=key, first=step, last=step, records=(record,)))
        await self.history.streams.append(chunks)

    @asynccontextmanager
    async def watcher(self, from_revision: int = 0, wanted: Filter | None = None) -> Any:
        async with AsyncExitStack() as stack:
            watcher = Watcher(self)
            watch = SessionWatch(
                state=self.state,
                clock=self.clock,
                caller=KIM,
                wanted=wanted or Filter(),
                reports=self.reports,
            )
            steps = await stack.enter_async_context(aclosing(watch.steps(from_revision)))
            reading = asyncio.create_task(watcher.read(steps))
            try:
                yield watcher
            finally:
                reading.cancel()
                with suppress(asyncio.CancelledError):
                    await reading


@dataclass
class Watcher:
    """What is told of sessions, as a servicer makes it of steps; in `told` each step apart."""

    town: Town
    steps: dict[str, int] = field(default_factory=dict)
    told: list[tuple[str, ...]] = field(default_factory=list)
    revision: int = 0

    async def read(self, steps: AsyncIterator[Any]) -> None:
        async for step in steps:
            assert step.revision >= self.revision
            self.revision = step.revision
            for one in step.changed:
                summaries = (await self.town.reports.of([one.id])).summaries
                self._take(one.id, summaries.get(one.id))
            if step.reported:
                self.told.append(step.reported)
            for session_id in step.reported:
                last = self.town.reports.last(session_id)
                if last is not None:  # else it is told of later
                    self._take(session_id, last.summary)

    def _take(self, session_id: str, summary: Any) -> None:
        step = 0 if summary is None else int(summary.step)
        assert step >= self.steps.get(session_id, 0) or summary is None, "it went back"
        self.steps[session_id] = step


@asynccontextmanager
async def a_town() -> AsyncIterator[Town]:
    clock = VirtualClock(asyncio.get_running_loop())
    whole = await open_history(":memory:", clock=clock, run=inline)
    history = Histories(whole)
    state = LiveState(None, clock)  # type: ignore[arg-type]
    state.reach(1)
    usages = Usages(state=state, history=whole, clock=clock)
    reports = LastReports(
        state=state,
        history=history,  # type: ignore[arg-type]
        usages=usages,
        clock=clock,
    )
    running = asyncio.create_task(reports.run())
    try:
        yield Town(clock, history, state, usages, reports)
    finally:
        running.cancel()
        await asyncio.wait([running])
        await whole.close()


def test_the_newest_is_told_soon_and_once() -> None:
    async def main() -> None:
        async with a_town() as town, AsyncExitStack() as stack:
            one, other = town.begin(2)
            await town.report(one, other)
            watcher = await stack.enter_async_context(town.watcher())
            await asyncio.sleep(0.1)
            assert watcher.steps == {one.id: 1, other.id: 1}
            for _ in range(5):
                await town.report(one)
            await asyncio.sleep(2 * EVERY_S)
            assert watcher.steps == {one.id: 6, other.id: 1}
            await asyncio.sleep(10 * EVERY_S)
            assert watcher.told == [(one.id,)]

    run(main())


def test_nothing_is_read_while_nobody_watches_or_nothing_is_reported() -> None:
    async def main() -> None:
        async with a_town() as town:
            [one] = town.begin(1)
            await town.report(one)
            await asyncio.sleep(10 * EVERY_S)
            assert town.history.asked == []
            async with town.watcher() as watcher:
                await asyncio.sleep(EVERY_S)
                asked = len(town.history.asked)
                await asyncio.sleep(100 * EVERY_S)
                assert len(town.history.asked) == asked
            await town.report(one)
            await asyncio.sleep(10 * EVERY_S)
            assert len(town.history.asked) == asked
            assert watcher.steps == {one.id: 1}

    run(main())


def test_a_look_asks_for_those_alone_that_were_committed_to() -> None:
    async def main() -> None:
        async with a_town() as town:
            first, *_ = town.begin(1_000)
            async with town.watcher(), town.watcher():
                await asyncio.sleep(2 * EVERY_S)
                town.history.asked.clear()
                await town.report(first)
                await asyncio.sleep(2 * EVERY_S)
                assert town.history.asked == [{first.id}]

    run(main())


def test_whoever_comes_back_is_told_what_each_reported_last() -> None:
    """What he knows is of another control plane perhaps, and of nobody knows when."""

    async def main() -> None:
        async with a_town() as town:
            some = town.begin(AT_ONCE + 10)
            silent, *reporting = some
            await town.report(*reporting)
            async with town.watcher(from_revision=town.state.revision) as watcher:
                await asyncio.sleep(5 * EVERY_S)
                assert watcher.steps == {one.id: 1 for one in reporting}
                assert silent.id not in watcher.steps
                assert [len(told) for told in watcher.told] == [AT_ONCE, 9]

    run(main())


def test_of_very_many_each_has_its_turn() -> None:
    async def main() -> None:
        async with a_town() as town:
            some = town.begin(3 * AT_ONCE)
            async with town.watcher() as watcher:
                await asyncio.sleep(0.1)
                for _ in range(6):
                    await town.report(*some)
                    await asyncio.sleep(EVERY_S)
                assert len(watcher.steps) == len(some)
                assert max(map(len, watcher.told)) == AT_ONCE
                await asyncio.sleep(10 * EVERY_S)
                assert set(watcher.steps.values()) == {6}

    run(main())


def test_nobody_hears_of_what_he_does_not_see() -> None:
    async def main() -> None:
        async with a_town() as town:
            [mine, other] = [*town.begin(1, memo="a"), *town.begin(1, memo="b")]
            hidden = replace(session(attempt=1, owner="lee"), visibility=Visibility.PRIVATE)
            town.state.put_session(hidden, town.state.revision + 1)
            async with town.watcher(wanted=Filter(text="a")) as watcher:
                await asyncio.sleep(EVERY_S)
                await town.report(mine, other, hidden)
                await asyncio.sleep(3 * EVERY_S)
                assert watcher.steps == {mine.id: 1}
                # It leaves the filter while something of it is on its way.
                await town.report(mine)
                news = replace(mine, memo="c")
                town.state.put_session(news, town.state.revision + 1)
                town.state.reach(town.state.revision + 1)
                await asyncio.sleep(3 * EVERY_S)
                assert watcher.steps == {mine.id: 1}

    run(main())


def test_who_may_not_see_it_any_more_is_not_told_what_waited_for_its_turn() -> None:
    async def main() -> None:
        async with a_town() as town:
            *some, last = town.begin(AT_ONCE + 1, memo="a")
            async with town.watcher(wanted=Filter(text="a")) as watcher:
                await asyncio.sleep(EVERY_S)
                await town.report(*some, last)
                while not watcher.told:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
                [told] = watcher.told
                [left] = {one.id: one for one in (*some, last) if one.id not in told}.values()
                news = replace(left, memo="c")
                town.state.put_session(news, town.state.revision + 1)
                town.state.reach(town.state.revision + 1)
                await asyncio.sleep(3 * EVERY_S)
                assert watcher.told == [told]

    run(main())


def test_what_devices_did_is_told_as_well() -> None:
    async def main() -> None:
        async with a_town() as town:
            [one] = town.begin(1)
            async with town.watcher() as watcher:
                await asyncio.sleep(EVERY_S)
                usage = Usage(
                    device_seconds=1.0,
                    utilization=50.0,
                    utilization_peak=50.0,
                    memory_peak=1.0,
                    watt_hours=0.0,
                )
                town.usages._live[one.id] = Live(usage=usage)
                await asyncio.sleep(5 * EVERY_S)
                assert watcher.told == [(one.id,)]
                last = town.reports.last(one.id)
                assert last is not None
                assert last.usage == Live(usage=usage)

    run(main())


def test_what_the_history_could_not_say_is_told_when_it_can() -> None:
    async def main() -> None:
        async with a_town() as town:
            one, other = town.begin(2)
            await town.report(one, other)
            async with town.watcher() as watcher:
                await asyncio.sleep(EVERY_S)
                town.history.is_away = True
                # Told without what it reported, although that has not changed.
                town.state.put_session(replace(one, memo="x"), town.state.revision + 1)
                await asyncio.sleep(5 * EVERY_S)
                assert watcher.steps == {one.id: 0, other.id: 1}
                town.history.is_away = False
                await asyncio.sleep(3 * EVERY_S)
                assert watcher.steps == {one.id: 1, other.id: 1}

    run(main())


def test_any_may_have_changed_where_the_history_was_not_heard() -> None:
    async def main() -> None:
        async with a_town() as town:
            [one] = town.begin(1)
            async with town.watcher() as watcher:
                await asyncio.sleep(EVERY_S)
                changes = town.history.whole.streams._database.changes  # type: ignore[attr-defined]
                tell, changes.tell = changes.tell, lambda _: None
                await town.report(one)
                changes.tell = tell
                await asyncio.sleep(3 * EVERY_S)
                assert watcher.steps[one.id] == 0
                changes.tell_all()
                await asyncio.sleep(3 * EVERY_S)
                assert watcher.steps[one.id] == 1

    run(main())


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["report", "change", "begin", "join", "leave", "away", "back", "wait", "end"]
        ),
        st.integers(0, 7),
    ),
    max_size=40,
)


@settings(max_examples=examples(60))
@given(ACTIONS)
def test_every_watcher_comes_to_know_the_last_report_of_each(actions: list[Any]) -> None:
    async def main() -> None:
        async with a_town() as town:
            town.begin(2)
            stacks: list[tuple[Watcher, AsyncExitStack]] = []
            for what, number in actions:
                one = town.sessions[number % len(town.sessions)] if town.sessions else None
                await act(town, stacks, what, one, number)
                await asyncio.sleep(number * 0.05)
            town.history.is_away = False
            await asyncio.sleep(5 * EVERY_S)
            truth = {one.id: town.steps.get(one.id, 0) for one in town.sessions}
            for watcher, stack in stacks:
                known = {one: watcher.steps.get(one, 0) for one in truth}
                assert known == truth
                await stack.aclose()

    run(main())


async def act(
    town: Town,
    stacks: list[tuple[Watcher, AsyncExitStack]],
    what: str,
    one: Session | None,
    number: int,
) -> None:
    match what:
        case "begin":
            town.begin(1)
        case "join":
            stack = AsyncExitStack()
            watcher = await stack.enter_async_context(town.watcher())
            stacks.append((watcher, stack))
        case "leave" if stacks:
            # And comes back with what he knows.
            watcher, stack = stacks.pop(number % len(stacks))
            await stack.aclose()
            again = AsyncExitStack()
            back = await again.enter_async_context(town.watcher(watcher.revision))
            back.steps.update(watcher.steps)
            stacks.append((back, again))
        case "away" | "back":
            town.history.is_away = what == "away"
        case "report" if one is not None:
            await town.report(one)
        case "change" if one is not None:
            live = town.state.session(one.id)
            assert live is not None
            revision = town.state.revision + 1
            town.state.put_session(replace(live, memo=f"{revision}"), revision)
            town.state.reach(revision)
        case "end" if one is not None:
            town.sessions.remove(one)
            town.state.delete(f"session/{one.id}", town.state.revision + 1)
            town.state.reach(town.state.revision + 1)
