"""The whole dashboard under faults, while keys are pressed: it never leaves, shows nothing old as new, and comes back by itself.

Real gRPC goes through proxies that drop, delay, cut half-way and say nothing; the server is killed and comes back with another
leader; parts of it are away; the laptop sleeps for an hour, and its clock is set. Everything that is shown has ticks, which
count on while faults go by: so it is seen on the screen whether what it calls live is. NSML_SEED repeats one seed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import re
import time
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from nsml.client import connect as connecting
from nsml.client.calls import Client
from nsml.client.contexts import Context
from nsml.client.endpoints import Endpoints
from nsml.client.rpc import pinging
from nsml.common.clock import SystemClock
from nsml.v1 import checkpoints_pb2, media_pb2, nodes_pb2
from nsml.v1 import sessions_pb2 as pb
from nsml.v1.datasets_pb2 import Dataset
from nsml.v1.projects_pb2 import Project, ProjectSettings
from tests.e2e.nemesis import SOAKING
from tests.support.proxy import Proxy
from tests.unit.nsml.client.contract_server import TOKEN, ContractServer
from tui.app import Dashboard
from tui.listing import Listing
from tui.screens.frame import NAMES, Frame
from tui.screens.nodes import NodesScreen
from tui.screens.session import SessionScreen
from tui.screens.sessions import SessionsScreen
from tui.sources import STALE_S
from tui.widgets.log_view import LogView

RATE: Final = 20.0
"""Seconds of the dashboard's clock in one of the machine's: it waits seconds before it asks again, or calls something old."""
HOUR_S: Final = 3_600.0
TICK_S: Final = 0.05
WITHIN_S: Final = 30.0
"""Of a busy machine, for what is sure to come."""
TURNS: Final = 200
"""Turns of the loop within which a key has done what it does."""
LOOKS: Final = 20
"""So often in a row it is said that nothing can be received before that is taken for settled."""
SIZES: Final = ((120, 40), (80, 24), (200, 60))
KIND: Final = re.compile(r"\b(memo|why|node|data|proj|log|ckpt|pic)-(\d{5})")
OLD: Final = re.compile(
    r"as of ([\d-]+ )?\d\d:\d\d(:\d\d)?Z?, no update since"
    r"|unreachable for .* try \d+ (in \d+s|now)"
)
"""How old it is, or when it is tried again."""

KEYS: Final[Sequence[Sequence[str]]] = [
    *([str(number)] for number in range(1, 7)),
    *([key] for key in "hijkgGtTdplaMcIeuwfvboxE"),
    *([key] for key in ("enter", "escape", "tab", "space", "question_mark", "ctrl+r", "pagedown")),
    ["slash", *"memo", "escape"],
    ["slash", "enter"],
    ["colon", *"ps memo", "enter"],
    ["colon", *"plot 1", "enter"],
    ["colon", "escape"],
    ["colon", *"none such [", "enter"],
    ["ctrl+p", "escape"],
    ["ctrl+k", "n"],
    ["m", "escape"],
]


class Fast(SystemClock):
    """A clock of a laptop that goes faster than the machine's, and may be set."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self._began = time.time(), time.monotonic()

    def time(self) -> float:
        at, since = self._began
        return at + (time.monotonic() - since) * RATE + self.ahead_s

    def monotonic(self) -> float:
        return time.monotonic() * RATE

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / RATE)


class Truth:
    """What the server knows; each tick all of it is other than before."""

    def __init__(self, server: ContractServer) -> None:
        self.server, self.state = server, server.state
        self.at = 0
        for number in (1, 2):
            self.state.add(f"kim/mnist/{number}", pb.SESSION_STATE_SUCCEEDED)
        self._waits = self.state.add("kim/mnist/3", pb.SESSION_STATE_QUEUED)
        self.runs = self.state.add("kim/mnist/4", replicas=[pb.Replica(node="gpu-1")])
        self.tick()

    def tick(self) -> None:
        """All is told anew, in messages of their own: others are being sent."""
        self.at += 1
        at, state = f"{self.at:05d}", self.state
        state.nodes = [nodes_pb2.Node(name="gpu-1", setting_note=f"node-{at}")]
        state.datasets = [Dataset(name="mnist", owner="kim", version=1, message=f"data-{at}")]
        state.projects = {
            "vision": Project(name="vision", settings=ProjectSettings(owner=f"proj-{at}"))
        }
        checkpoint = checkpoints_pb2.Checkpoint(name=f"ckpt-{at}", session=self.runs.name)
        state.checkpoints = {self.runs.id: [checkpoint]}
        state.media = {self.runs.id: [media_pb2.Media(name=f"pic-{at}", kind="image")]}
        state.change(self._waits, waiting=f"why-{at}")
        state.change(self.runs, memo=f"memo-{at}")
        state.report(self.runs, "loss", float(self.at), step=self.at)
        state.log(self.runs, f"log-{at}\n".encode())

    async def go_on(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()

    def restart(self) -> None:
        """Another one leads where the server comes back."""
        self.state.term += 1
        self.state.leader = f"cp-{self.state.term}"
        self.server.restore()


@dataclass
class Chaos:
    """A dashboard, who presses its keys, and what lies between it and the server."""

    rng: random.Random
    pilot: Pilot[None]
    clock: Fast
    truth: Truth
    proxies: Sequence[Proxy]
    done: list[str] = field(default_factory=list)
    """What was done, for whoever reads of a failure."""
    is_gone: bool = False
    """Whether nothing can be received, and the screen has said so."""
    floor: int = 0
    """What is called live is no older: since then nothing could be received for a while, which was said."""
    was_old: int = 0

    @property
    def app(self) -> Dashboard:
        app = self.pilot.app
        assert isinstance(app, Dashboard)
        return app

    @property
    def lines(self) -> list[str]:
        return [strip.text.rstrip() for strip in self.app.screen._compositor.render_strips()]

    @property
    def is_framed(self) -> bool:
        """Whether a whole screen is in front, and nothing before it; one that is about to come is not seen yet."""
        screen = self.app.screen
        return isinstance(screen, Frame) and screen.is_mounted and screen.stack_updates > 0

    @property
    def says_old(self) -> bool:
        """Whether the screen in front says how old it is, or when it is tried again; on as many lines as that takes."""
        at = self.app.screen.query_one("#trouble").region
        lines = [line[at.x : at.right] for line in self.lines[at.y : at.bottom]]
        return bool(OLD.search(" ".join(" ".join(lines).split())))

    def explain(self) -> str:
        return "\n".join([f"after {self.done}", *self.lines])

    # What must hold at any moment

    def look(self) -> None:
        """Look at what is on the screen."""
        app, lines = self.app, self.lines
        assert not app._exit, self.explain()
        assert app._exception is None, self.explain()
        text = "\n".join(lines)
        assert "Traceback" not in text, text
        if not self.is_framed or not any(lines):
            return
        says_live = "● live" in text
        if self.is_gone:
            assert not says_live, self.explain()
        if not says_live or self.says_old:
            self.was_old = 0
            return
        log = app.focused
        is_held = isinstance(log, LogView) and not log.is_following
        old = {
            kind: at
            for kind, at in shown(text).items()
            if at < self.floor
            and not (kind == "log" and is_held)  # whoever has keys for it holds it
        }
        self.was_old = self.was_old + 1 if old else 0
        assert self.was_old < TURNS, f"{old} before {self.floor}\n{self.explain()}"

    async def until(self, holds: Any, what: str) -> None:
        ends_at = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < ends_at, f"never {what}: {self.explain()}"
            await self.pilot.pause(0.02)
            self.look()

    # Keys

    async def press(self, *keys: str) -> None:
        """Type them, however fast, and wait until all have had their turn, which is soon."""
        self.done.append("+".join(keys))
        for key in keys:
            await self.pilot.press(key)
            self.look()
        order = self.app._key_order
        for _ in range(TURNS):
            if not order._waiting and order._settling is None:
                return
            await self.pilot.pause(0.01)
            self.look()
        raise AssertionError(f"keys are held back: {self.explain()}")

    async def press_some(self, count: int) -> None:
        for _ in range(count):
            await self.press(*self.rng.choice(KEYS))
        if self.rng.random() < 0.5:
            await self.go(self.rng.randrange(len(NAMES)))

    async def go(self, place: int) -> None:
        """Keys work: out of whatever is open, to a screen that has a number."""
        for _ in range(TURNS):
            if not self.is_framed or isinstance(self.app.focused, Input):
                await self.press("escape")
            elif self.app.current_mode == list(NAMES)[place] and len(self.app.screen_stack) == 1:
                return
            else:
                await self.press(str(place + 1))
        raise AssertionError(f"{place + 1} does nothing: {self.explain()}")

    # Faults

    async def nothing_is_received(self, begin: str) -> None:
        """What that means: it is said, with an age or a countdown, and stays said."""
        self.done.append(begin)
        since, begun = self.truth.at, self.clock.monotonic()
        match begin:
            case "silence":
                for proxy in self.proxies:
                    proxy.silence()
            case "kill":
                await asyncio.to_thread(self.truth.server.cut)
            case "sleep":
                self.fall_asleep()
            case _:
                for proxy in self.proxies:
                    proxy.refuse()
        await self.press_some(2)
        # What had come before, and was not read, is new for a moment still.
        await self.until(lambda: self.clock.monotonic() > begun + 2 * STALE_S, "late enough")
        looks, ends_at = 0, time.monotonic() + WITHIN_S
        while looks < LOOKS:
            assert time.monotonic() < ends_at, f"never said to be gone: {self.explain()}"
            if not self.is_framed:  # what a key opens may come late
                await self.press("escape")
            await self.pilot.pause(0.01)
            self.look()
            looks = looks + 1 if self.says_gone() else 0
        self.is_gone = True
        await self.press_some(4)
        await self.until(lambda: not self.is_framed or self.says_old, "told")
        self.is_gone = False
        self.floor = since
        if begin == "kill":
            await asyncio.to_thread(self.truth.restart)
        for proxy in self.proxies:
            proxy.heal()

    def says_gone(self) -> bool:
        return self.is_framed and "● live" not in "\n".join(self.lines) and self.says_old

    def fall_asleep(self) -> None:
        """For an hour; there is no network where it wakes up."""
        for proxy in self.proxies:
            proxy.lose()
            proxy.silence()
        self.clock.ahead_s += HOUR_S

    async def something_is_wrong(self) -> None:
        """Of which nothing need be said."""
        rng, proxy = self.rng, self.rng.choice(self.proxies)
        kind = rng.choice(["lag", "cut", "cut half-way", "lose", "part away", "clock set"])
        self.done.append(kind)
        match kind:
            case "lag":
                proxy.lag_s = lambda: rng.uniform(0.0, 0.05)
            case "cut":
                proxy.cut()
            case "cut half-way":
                proxy.cut(rng.randrange(1, 20_000))
            case "lose":
                proxy.lose()
            case "part away":
                self.truth.state.away = frozenset(rng.sample(PARTS, 3))
            case _:
                self.clock.ahead_s += rng.choice([-HOUR_S, HOUR_S])
        await self.press_some(3)
        self.truth.state.away = frozenset()
        proxy.heal()

    # In the end

    async def settle(self) -> None:
        """All screens show all that there is, as new."""
        await self.go(0)
        sessions = self.app.screen
        assert isinstance(sessions, SessionsScreen)
        sessions._change(**msgspec.structs.asdict(Listing()))
        sessions.filter_by("")
        await self.until(lambda: sessions.table.has_focus, "keys for the list")
        await self.press("g")
        for place, kinds in enumerate(("memo log", "why", "node", "data", "memo", "proj")):
            await self.go(place)
            await self.press("escape")
            screen = self.app.screen
            while isinstance(screen, NodesScreen) and not screen.nodes.display:
                await self.press("h")
            await self.shows(kinds)
        await self.go(0)
        await self.press("enter")
        await self.until(lambda: isinstance(self.app.screen, SessionScreen), "the session")
        for key, kinds in {"l": "log", "M": "ckpt", "I": "pic", "d": "memo"}.items():
            await self.press(key)
            await self.shows(kinds)
        await self.is_same()

    async def shows(self, kinds: str) -> None:
        wanted = dict.fromkeys(kinds.split(), self.truth.at)
        leader = f"leader {self.truth.state.leader} "
        await self.until(
            lambda: (
                wanted.items() <= shown("\n".join(self.lines)).items()
                and "● live" in self.lines[0]
                and leader in self.lines[0]
                and not self.says_old
            ),
            f"live with {wanted}, {leader}",
        )

    async def is_same(self) -> None:
        """What is known is what the server knows."""
        state, model = self.truth.state, self.app.model
        await self.until(
            lambda: {row.session.id: row.session for row in model.every_row()} == state.sessions,
            "the same sessions",
        )
        log = bytes(state.logs[self.truth.runs.id, 1, 0]).decode().splitlines()
        await self.until(lambda: list(model.shown.lines) == log[-len(model.shown.lines) :], "log")
        await self.until(
            lambda: (
                [line.y[-1] for line in (model.shown.groups or {}).get("loss", ())]
                == [float(self.truth.at)]
            ),
            "the last of what was reported",
        )


GONE: Final = ("silence", "kill", "sleep", "refuse")
PARTS: Final = [
    "GetCluster",
    "WatchSessions",
    "ListSessions",
    "ReadLogs",
    "ReadSeries",
    "ListNodes",
    "ListQueue",
    "ListDatasets",
    "ListProjects",
    "GetProject",
    "ExplainSession",
    "ListCheckpoints",
    "ListMedia",
    "ReadTelemetry",
]


def shown(text: str) -> dict[str, int]:
    """The newest of each kind that is on the screen."""
    found: dict[str, int] = {}
    for kind, at in KIND.findall(text):
        found[kind] = max(found.get(kind, 0), int(at))
    return found


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Fast:
    """The clock, and a dashboard whose other times are as much shorter."""
    monkeypatch.setattr("tui.shell.REPAINTS_A_SECOND", 20)
    # While all of this goes on the process is never idle, which Textual would wait for after each key.
    for module in ("textual.app", "textual.pilot"):
        monkeypatch.setattr(f"{module}.wait_for_idle", lambda *_: asyncio.sleep(0))
    options = [
        (name, round(value / RATE) if name.endswith("_ms") else value)
        for name, value in connecting._OPTIONS
    ]
    monkeypatch.setattr(connecting, "_OPTIONS", tuple(options))
    pings = pinging(every_s=1.0, within_s=0.5)
    monkeypatch.setattr(connecting, "_ALONE", pings)
    monkeypatch.setattr(connecting, "HASTY", pings)
    monkeypatch.setattr("nsml.client.endpoints.PATIENCE_S", 0.2)
    return Fast()


@asynccontextmanager
async def connected(context: Context, clock: Fast) -> AsyncIterator[Client]:
    """As `nsml.client.connect.connect`, with another clock."""
    ways = Endpoints(partial(connecting.open_channel, context), context.servers)
    try:
        yield Client(ways, token=TOKEN, deadline_s=30.0 / RATE, clock=clock)
    finally:
        await ways.close()


@pytest.fixture
def truth() -> Iterator[Truth]:
    with ContractServer() as server:
        server.state.piece = 1 << 16
        yield Truth(server)


async def run(seed: int, truth: Truth, clock: Fast, *, faults: int) -> None:
    """One dashboard through so many faults."""
    rng = random.Random(seed)
    async with AsyncExitStack() as stack:
        proxies = [
            await stack.enter_async_context(Proxy(truth.server.address))
            for _ in range(1 + seed % 2)
        ]
        server, *others = [proxy.address for proxy in proxies]
        context = Context(name="test", server=server, others=tuple(others))
        app = Dashboard(lambda: connected(context, clock), clock=clock, platform="test")
        ticking = asyncio.create_task(truth.go_on())
        async with app.run_test(size=rng.choice(SIZES)) as pilot:
            chaos = Chaos(rng, pilot, clock, truth, proxies)
            await chaos.until(lambda: "● live" in "\n".join(chaos.lines), "live")
            for number in range(faults):
                await chaos.nothing_is_received(GONE[(2 * seed + number) % len(GONE)])
                await chaos.something_is_wrong()
            ticking.cancel()
            with suppress(asyncio.CancelledError):
                await ticking
            await pilot.resize_terminal(*SIZES[0])
            await chaos.settle()


async def whole(seed: int, truth: Truth, clock: Fast, *, faults: int) -> None:
    """The same, and nothing goes wrong behind it that nobody sees."""
    print(f"seed {seed}")
    wrong: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: wrong.append(str(context)))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        await run(seed, truth, clock, faults=faults)
        gc.collect()
        await asyncio.sleep(0)
    assert not wrong, wrong
    forgotten = [str(one.message) for one in warned if "never awaited" in str(one.message)]
    assert not forgotten, forgotten


@pytest.mark.parametrize(
    "seed",
    [int(os.environ["NSML_SEED"])]
    if "NSML_SEED" in os.environ
    # The same is simulated for each change, in tests/simulation/test_dashboard.py.
    else [pytest.param(seed, marks=pytest.mark.variant) for seed in (1, 2)],
)
async def test_it_never_leaves_shows_nothing_old_as_new_and_comes_back(
    seed: int, truth: Truth, fast: Fast
) -> None:
    await whole(seed, truth, fast, faults=2)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=SOAKING) for seed in range(100, 130)])
async def test_the_same_for_long(seed: int, truth: Truth, fast: Fast) -> None:
    await whole(seed, truth, fast, faults=8)
