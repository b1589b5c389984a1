"""The dashboard's feed under faults: it goes on, shows nothing old as new, and comes to know what there is.

Faults hit the network, the history and the control planes; and the laptop sleeps: its clock has gone on by an hour, and
its connections are dead.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass, field, fields, replace

import pytest

from controlplane.sessions.convert import session_message
from controlplane.stored import etcd_codec
from nsml.client.streams import ENDED_STATES, watch_sessions
from tests.simulation.cluster import USERS, Cluster, Shape, simulated
from tests.simulation.faults import HOUR_S, Faults
from tests.simulation.network import KEEPALIVE_S
from tests.simulation.scenario import User
from tests.simulation.virtual_time import VirtualClock, run
from tests.simulation.workload import Wish, mixed
from tests.support.fake_machine import Act
from tui.feed import Feed
from tui.model import Event, Model
from tui.sources import ALWAYS_RECEIVED, STALE_S, Source, State, Topic

FAULTS = {
    "kill control plane": 3.0,
    "stop control plane": 1.0,
    "take-overs in a row": 1.0,
    "pause control plane": 3.0,
    "deposed": 1.0,
    "cut client": 4.0,
    "lose answers": 2.0,
    "slow network": 2.0,
    "history gone": 1.0,
}
FOR_S = 60.0
LOOK_S = 0.5
LAPTOP = f"{USERS[0]}-laptop"
TOPICS = sorted(ALWAYS_RECEIVED | {Topic.QUEUE, Topic.NODES})
AGE_S = KEEPALIVE_S + STALE_S
"""What is shown as new was true so long ago at most: by then a stream that is dead is missed, where other calls are answered."""
BACK_S = KEEPALIVE_S
"""Once it answers again, what is shown is as new as that within so long: by then a stream that died meanwhile is missed, too."""
AWAY_S = 60.0
"""For so long there is no network where the laptop wakes up."""
KNOWN_S = 60.0

Facts = tuple[int, int, float]


class Telling(Wish):
    """One whose program reports a summary, too."""

    def _line(self, rank: int, line: int) -> Act:
        act = super()._line(rank, line)
        return replace(act, records=[{**one, "summary": True} for one in act.records])


@dataclass
class Screen:
    """What a dashboard knows and says, on a laptop that may sleep."""

    cluster: Cluster
    clock: VirtualClock
    model: Model = field(default_factory=Model)
    said: list[str] = field(default_factory=list)
    truths: deque[tuple[float, dict[str, Facts]]] = field(default_factory=deque)
    """What was true from each of these moments on: at every commit, for states that are soon over, and at every look."""
    is_old_since: float | None = None
    looks: int = 0

    def take(self, event: Event) -> None:
        now = self.clock.time()
        if words := self.model.comes_back(event, now):
            self.said.append(words)
        self.model.fold(event, now)

    def state(self, topic: Topic) -> State:
        return self.model.sources[topic].state(self.clock.time())

    @property
    def shown(self) -> dict[str, Facts]:
        """Its live sessions."""
        found = {}
        for row in self.model._live.values():
            one = row.session
            step = one.summary.fields["step"].number_value if "step" in one.summary.fields else 0.0
            found[one.id] = (one.state, one.attempt, step)
        return found

    async def look(self) -> None:
        """Look for ever whether what is shown as new is."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.learn()
            is_said = {self.state(Topic.CLUSTER), self.state(Topic.SESSIONS)} != {State.LIVE}
            old = [] if is_said else self.old()
            self.looks += not is_said
            if not old:
                self.is_old_since = None
                continue
            now = self.clock.monotonic()
            self.is_old_since = self.is_old_since or now
            assert now - self.is_old_since <= BACK_S, f"shown as new: {old}"

    async def follow(self) -> None:
        """Learn for ever what becomes of sessions."""
        async with aclosing(self.cluster.durable.store.watch(etcd_codec.SESSIONS, 1)) as commits:
            async for _ in commits:
                await self.learn()

    async def learn(self) -> None:
        """What is true now; what was of late stays."""
        known, now = await truth(self.cluster), self.clock.monotonic()
        self.truths.append((now, known))
        while len(self.truths) > 1 and self.truths[1][0] <= now - AGE_S:
            self.truths.popleft()

    def old(self) -> list[str]:
        """Sessions that are not as they were at any moment of late."""
        shown, thens = self.shown, [known for _, known in self.truths]
        return [
            f"{name} as {shown.get(name)}, and it is {thens[-1].get(name)}"
            for name in sorted({*shown, *thens[0]})
            if not was(shown.get(name), [then.get(name) for then in thens])
        ]


def was(seen: Facts | None, thens: list[Facts | None]) -> bool:
    """Whether a session was so then, or in between: a step is soon over, and they go up as long as an attempt lasts.

    An attempt's first is lower where it takes up an earlier checkpoint.
    """
    if seen is None:
        return None in thens
    steps = [then[2] for then in thens if then is not None and then[:2] == seen[:2]]
    return bool(steps) and seen[2] <= max(steps) and (seen[2] >= steps[0] or steps != sorted(steps))


async def truth(cluster: Cluster) -> dict[str, Facts]:
    """The live sessions of the user, as store and history have them."""
    listing = await cluster.durable.store.list(etcd_codec.SESSIONS)
    found = [etcd_codec.decode_session(item.value) for item in listing.items]
    mine = [one for one in found if one.owner == USERS[0]]
    summaries = await cluster.durable.history.streams.summaries([one.id for one in mine])
    told = {}
    for one in mine:
        message = session_message(one, shows_values=True)
        if message.state not in ENDED_STATES:
            step = summaries[one.id].step if one.id in summaries else 0.0
            told[one.id] = (message.state, one.attempt, step or 0.0)
    return told


def alternatives_of(seed: int) -> dict[str, Wish]:
    some = mixed(random.Random(f"{seed} wishes"), 30, over_s=2 * FOR_S)
    return {
        key: Telling(**{one.name: getattr(wish, one.name) for one in fields(wish)} | {"lines": 50})
        for key, wish in some.items()
    }


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.variant) for seed in (2, 3, 4))]
)
def test_it_goes_on_shows_nothing_old_as_new_and_comes_to_know_what_there_is(seed: int) -> None:
    print(f"seed {seed}")
    screen = run(whole(seed))
    assert screen.looks > FOR_S / LOOK_S / 4, "it was hardly ever live"
    assert any("back after 1h" in words for words in screen.said), screen.said


async def whole(seed: int) -> Screen:
    wishes = alternatives_of(seed)
    async with simulated(seed, wishes, shape=Shape(nodes=3, control_planes=3)) as cluster:
        screen = Screen(cluster, VirtualClock(asyncio.get_running_loop()))
        feed = Feed(cluster.client(USERS[0]), screen.take)
        async with asyncio.TaskGroup() as group:
            receiving = group.create_task(feed.receive(TOPICS))
            following = group.create_task(screen.follow())
            looking = group.create_task(screen.look())
            users = {name: User(cluster, name) for name in USERS}
            wanting = [group.create_task(users[wish.owner].want(wish)) for wish in wishes.values()]
            faults = Faults(cluster, cluster.rng("faults"), FAULTS, 3.0)
            breaking = group.create_task(faults.run())
            await asyncio.sleep(FOR_S)
            await fall_asleep(screen)
            await asyncio.sleep(FOR_S)
            breaking.cancel()
            await asyncio.wait([breaking])
            await cluster.restore()
            await comes_to_know(screen)
            assert not receiving.done()
            for task in (receiving, following, looking, *wanting):
                task.cancel()
        return screen


async def fall_asleep(screen: Screen) -> None:
    """For an hour of the clock on the wall; then its connections are dead, and there are no others for a while."""
    network, planes = screen.cluster.network, screen.cluster.planes
    for process in planes:
        network.freeze(LAPTOP, process.address)
    screen.clock.skew_s += HOUR_S
    until = screen.clock.monotonic() + AWAY_S
    while screen.clock.monotonic() < until:
        await asyncio.sleep(LOOK_S)
        for process in planes:
            network.cut(LAPTOP, process.address)  # faults that end mend it meanwhile
    for process in planes:
        network.heal(LAPTOP, process.address)


async def comes_to_know(screen: Screen) -> None:
    """All of it, and that it is new."""
    ends_at = screen.clock.monotonic() + KNOWN_S
    while True:
        states = {topic: screen.state(topic) for topic in TOPICS}
        is_known = screen.shown == await truth(screen.cluster)
        if is_known and set(states.values()) == {State.LIVE}:
            return
        assert screen.clock.monotonic() < ends_at, (states, screen.old())
        await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    "lack",
    [pytest.param("takes all for new", marks=pytest.mark.variant), "is not told of reports"],
)
def test_a_dashboard_that_shows_old_as_new_does_not_pass(
    monkeypatch: pytest.MonkeyPatch, lack: str
) -> None:
    if lack == "takes all for new":
        monkeypatch.setattr(Source, "state", lambda *_: State.LIVE)
    else:
        told_less = lambda *a, **named: watch_sessions(*a, **named | {"with_reports": False})  # noqa: E731
        monkeypatch.setattr("tui.feed.watch_sessions", told_less)
    with pytest.raises(ExceptionGroup) as caught:
        run(whole(2))
    assert caught.group_contains(AssertionError, match="shown as new")
