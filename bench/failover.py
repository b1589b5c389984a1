"""How long nobody decides when the leader is gone: killed, stopped in good order, or paused.

A platform of three etcd members, PostgreSQL, three control planes and four agents on this machine. 200
sessions run (each a program of its own, kept by an agent), 50 more are submitted a second, and twenty
streams are followed: half of them watch all sessions, half follow a log. Then the leader is killed
(`kill -9`), stopped (SIGTERM), or paused (SIGSTOP, beyond its lease), again and again. From that signal
on is measured:

- `commit`: to the next placement that a later leader committed, as the store tells it. One is due all that
  time: devices are free, and from the signal on sessions for them are submitted to the control planes that
  are left.
- `streams`: until every watch and every log that broke has had its next word.

What is measured is control planes, on a machine that may have two cores: of the 50 a second most ask for
a whole node, which never is free. They are taken, planned for, shown in every watch, and stopped after
three seconds, which ends and records them as any other. `STARTED_PER_S` a second get a device and run a
program.

Those who use the platform would be other machines: as root this program, which plays them, goes before
what it measures. How busy the machine was, and how much of it its host took away, is told beside the rest.

At the end the 200 sessions are counted: lost, running twice; and so are commits of an older term.

    python -m bench.failover [--json] [--rounds N] [--modes kill,graceful,paused] [--sessions N] [--rate N]
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter, deque
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from bench.report import percentile, report
from bench.witness import Witness
from chaos.hosts import Loopback
from chaos.platform import ChaosPlatform, Shape, find_database, host_names
from chaos.processes import CONTROL_PLANE, NotDone, command_of
from cli.exits import CommandError
from controlplane.store.election import watch_leader
from controlplane.store.etcd_members import Tls
from controlplane.store.etcd_process import find_etcd
from controlplane.store.open import open_store
from nsml.client.connect import connect
from nsml.client.errors import ClientError
from nsml.client.streams import Link, read_logs, watch_sessions
from nsml.common.clock import SystemClock
from nsml.common.concurrency import TaskGroup
from nsml.v1 import resources_pb2, sessions_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from chaos.processes import Program
    from controlplane.store.election import Leader
    from controlplane.store.interface import KeyValueStore
    from nsml.client.calls import Client
    from nsml.client.contexts import Context

SPARE_GPUS: Final = 12
"""Devices that no session runs on all the time. More than those that are started in between need."""
STARTED_PER_S: Final = 4.0
"""Of the submitted sessions, those that ask for one device; the others ask for a whole node."""
DUE_EVERY_S: Final = 0.05
"""Pause between the sessions for one device that are submitted while nobody leads."""
WAITS_S: Final = 3.0
"""A submitted session that still waits after this is stopped, so that the queue stays as it is."""
AGENTS: Final = 4
TALKERS: Final = 10
"""Sessions that write a line now and then, each followed by one reader; as many watches."""
BETWEEN_ROUNDS_S: Final = 6.0
"""Two leaders are not deposed within five seconds."""
SETTLES_S: Final = 2.0
"""How long twenty new streams, all with one leader, are let come to rest before it goes."""
PAUSE_S: Final = 6.0
MODES: Final = {"kill": "", "graceful": "graceful_", "paused": "paused_"}
AHEAD: Final = 10
"""By how much those who use the platform go before it, in steps of `nice`."""
_WITHIN_S: Final = 60.0
_TALKER: Final = "import time\nwhile True:\n    print('line', flush=True)\n    time.sleep(0.1)"


@dataclass(eq=False)
class Followed:
    """One stream, and when it broke last, and was heard."""

    name: str
    broke_at: float = 0.0
    back_at: float = 0.0
    """When it was heard first since it broke."""
    heard_at: float = 0.0

    @property
    def is_broken(self) -> bool:
        """Whether nothing was heard since it broke."""
        return self.back_at < self.broke_at

    def on_link(self, link: Link) -> None:
        """The connection broke, or is back."""
        if not link.is_live and link.failures == 1:
            self.broke_at = time.monotonic()

    def heard(self) -> None:
        """Something came."""
        self.heard_at = time.monotonic()
        if self.is_broken:
            self.back_at = self.heard_at


async def _watch(client: Client, followed: Followed) -> None:
    chosen = sessions_pb2.SessionFilter()
    async for _ in watch_sessions(client, chosen, on_link=followed.on_link):
        followed.heard()


async def _follow_log(client: Client, session: str, followed: Followed) -> None:
    pieces = read_logs(client, session, tail_lines=1, follow=True, on_link=followed.on_link)
    async for _ in pieces:
        followed.heard()


def _request(argv: Sequence[str], *, gpus: int = 1) -> sessions_pb2.CreateSessionRequest:
    return sessions_pb2.CreateSessionRequest(
        request_id=uuid.uuid4().hex,
        spec=sessions_pb2.SessionSpec(
            argv=argv,
            resources=resources_pb2.Resources(
                gpu_thousandths=gpus * 1000, cpu_thousandths=100, memory_bytes=1_000_000_000
            ),
        ),
    )


@dataclass
class Submitted:
    """The load.

    Attributes:
        node_gpus: devices of a whole node.
    """

    per_s: float
    node_gpus: int
    answered: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    waiting: deque[tuple[float, str]] = field(default_factory=deque)

    async def run(self, clients: Sequence[Client]) -> None:
        """Submit at the rate, and stop what waits too long; until cancelled."""
        share = STARTED_PER_S / self.per_s
        async with TaskGroup() as group:
            due, number = time.monotonic(), 0
            while True:
                number += 1
                is_started = int(number * share) > int((number - 1) * share)
                client = clients[number % len(clients)]
                group.create_task(self.submit(client, 1 if is_started else self.node_gpus))
                due += 1 / self.per_s
                while self.waiting and self.waiting[0][0] < time.monotonic() - WAITS_S:
                    _, session = self.waiting.popleft()
                    group.create_task(self._stop(client, session))
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def submit(self, client: Client, gpus: int) -> None:
        """One that ends by itself, if it is ever placed."""
        try:
            session = await client.sessions.create(_request(["true"], gpus=gpus))
        except ClientError as error:
            self.refused[error.reason] += 1
            return
        self.answered += 1
        if gpus > 1:
            self.waiting.append((time.monotonic(), session.id))

    async def _stop(self, client: Client, session: str) -> None:
        with suppress(ClientError):  # it has ended, or is stopped with the platform
            await client.sessions.stop(session)


class Bench:
    """One platform under load, and rounds of the end of its leader."""

    def __init__(
        self, platform: ChaosPlatform, say: Callable[[str], None], *, sessions: int, per_s: float
    ) -> None:
        self._count = sessions
        self._platform = platform
        self._say = say
        self._followed: list[Followed] = []
        self.submitted = Submitted(per_s=per_s, node_gpus=platform.shape.gpus)
        self._clients: dict[str, Client] = {}
        self.figures: dict[str, list[float]] = {}

    async def run(self, modes: Sequence[str], rounds: int) -> dict[str, float]:
        """All rounds; the figures."""
        urls, ca = self._platform.etcd_urls, self._platform.etcd_authority
        async with AsyncExitStack() as stack:
            tls = Tls(ca=ca.read_bytes())
            store = await stack.enter_async_context(open_store(urls, clock=SystemClock(), tls=tls))
            witness = await stack.enter_async_context(Witness.of(urls, ca))
            for context in self._contexts():
                opened = connect(context, deadline_s=10.0)
                self._clients[context.name] = await stack.enter_async_context(opened)
            clients = list(self._clients.values())
            async with TaskGroup() as group:
                commands = await self._fill(clients[0])
                submitting = group.create_task(self.submitted.run(clients))
                await asyncio.sleep(SETTLES_S)
                began = _processors()
                for mode in modes:
                    for number in range(rounds):
                        while not await self._round(store, witness, mode, number):
                            pass
                spent = _processors(began)
                counts = await self._counts(clients[0], commands)
                submitting.cancel()
            totals = await witness.totals()
        counts |= {"commits": totals["commits"], "stale_commits": totals["stale"]}
        percent = 100 / max(sum(spent.values()), 1e-9)
        counts["stolen_pct"] = spent.get("steal", 0.0) * percent
        counts["idle_pct"] = (spent["idle"] + spent.get("iowait", 0.0)) * percent
        return self._summary(modes) | counts

    def _contexts(self) -> list[Context]:
        """One for each control plane, that knows the others."""
        found = self._platform.contexts()
        servers = [one.server for one in found]
        return [
            one.at([one.server, *(other for other in servers if other != one.server)])
            for one in found
        ]

    async def _fill(self, client: Client) -> list[str]:
        """Have the sessions run that run all the time; their commands, of which no two are the same."""
        mark = 80_000 + secrets.randbelow(5_000)
        marks = [f"{mark}.{number:03}" for number in range(self._count)]
        self._say(f"starting {self._count} sessions")
        places = asyncio.Semaphore(8)

        async def submit(argv: list[str]) -> str:
            async with places:
                return (await client.sessions.create(_request(argv))).id

        talkers = [[sys.executable, "-c", _TALKER, mark] for mark in marks[:TALKERS]]
        sleepers = [["sleep", mark] for mark in marks[TALKERS:]]
        wishes = map(submit, sleepers)
        self._talkers = await asyncio.gather(*map(submit, talkers))
        self._sessions = [*await asyncio.gather(*wishes), *self._talkers]
        await self._all_run(client)
        return [" ".join(argv) for argv in (*talkers, *sleepers)]

    async def _all_run(self, client: Client) -> None:
        ends_at = time.monotonic() + 300
        while (found := await self._running(client)) < self._count:
            if time.monotonic() > ends_at:
                raise SystemExit(f"only {found} of {self._count} sessions run")
            await asyncio.sleep(0.5)

    async def _running(self, client: Client) -> int:
        cluster = await client.nodes.cluster()
        return cluster.sessions_running

    @asynccontextmanager
    async def _streams(self, at: str) -> AsyncIterator[None]:
        """All streams, each with a client of its own that is connected to `at` first."""
        context = next(one for one in self._contexts() if one.name == at)
        kinds = ("watch", "log of")
        self._followed = [
            Followed(f"{kind} {session}") for session in self._talkers for kind in kinds
        ]
        async with AsyncExitStack() as stack, TaskGroup() as group:
            work = []
            for number, followed in enumerate(self._followed):
                client = await stack.enter_async_context(connect(context, deadline_s=10.0))
                session = self._talkers[number // 2]
                following = (
                    _follow_log(client, session, followed)
                    if number % 2
                    else _watch(client, followed)
                )
                work.append(group.create_task(following))
            async with asyncio.timeout(_WITHIN_S):
                await self._all_heard()
            yield
            for one in work:
                one.cancel()

    async def _all_heard(self) -> None:
        while True:
            if all(one.heard_at for one in self._followed):
                return
            await asyncio.sleep(0.01)

    async def _leader(self, store: KeyValueStore) -> Leader:
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(_WITHIN_S),
                aclosing(watch_leader(store, clock=SystemClock())) as leaders,
            ):
                async for leader in leaders:
                    if leader is not None:
                        return leader
        raise SystemExit("nobody leads")

    async def _round(self, store: KeyValueStore, witness: Witness, mode: str, number: int) -> bool:
        """The end of one leader; False when it was none any more before it began."""
        first = await self._leader(store)
        async with self._streams(first.member):
            await asyncio.sleep(SETTLES_S)
            leader = await self._leader(store)
            if leader.term != first.term:  # an overloaded machine loses leaders by itself
                self._say("the leader has changed by itself: once more")
                return False
            part = self._platform.parts[leader.member]
            began = time.monotonic()
            _signal(part, mode)
            at = dt.datetime.now(tz=dt.UTC).isoformat()  # as the logs have it
            async with asyncio.timeout(_WITHIN_S):
                async with self._due(leader.member):
                    placed_at = await witness.placement_after(leader.term)
                commit_ms = (placed_at - began) * 1000
                streams_ms, slowest = await self._resumed(began)
        self._note(f"{MODES[mode]}commit", commit_ms)
        self._note(f"{MODES[mode]}streams", streams_ms)
        figures = f"commit {commit_ms:.0f} ms, streams {streams_ms:.0f} ms, last {slowest}"
        self._say(f"{mode} {number + 1}: {figures} ({leader.member} at {at})")
        await asyncio.sleep(max(0.0, began + PAUSE_S - time.monotonic()))
        if mode == "paused":
            part.resume()
        else:
            await asyncio.to_thread(_gone, part)
            part.start()
            await self._ready(part)
        await asyncio.sleep(BETWEEN_ROUNDS_S)
        return True

    @asynccontextmanager
    async def _due(self, gone: str) -> AsyncIterator[None]:
        """Meanwhile there is always something that can be placed."""
        left = [client for name, client in self._clients.items() if name != gone]

        async def submit() -> None:
            async with TaskGroup() as group:
                for number in count():
                    group.create_task(self.submitted.submit(left[number % len(left)], 1))
                    await asyncio.sleep(DUE_EVERY_S)

        async with TaskGroup() as group:
            submitting = group.create_task(submit())
            yield
            submitting.cancel()

    async def _resumed(self, began: float) -> tuple[float, str]:
        """Milliseconds until every stream that broke has had its next word, and which was the last."""
        # One that hangs is noticed late: long enough must nothing have broken, and each be heard at the end.
        await asyncio.sleep(began + 3.0 - time.monotonic())
        while True:
            lately = max(began, time.monotonic() - 1.0)
            behind = [one for one in self._followed if one.heard_at <= lately or one.is_broken]
            if not behind:
                break
            await asyncio.sleep(0.005)
        broke = [one for one in self._followed if one.broke_at > began]
        last = max(broke, key=lambda one: one.back_at, default=Followed("none", back_at=began))
        return (last.back_at - began) * 1000, last.name

    async def _ready(self, part: Program) -> None:
        ends_at = time.monotonic() + _WITHIN_S
        while not self._platform.is_ready(part):
            if time.monotonic() > ends_at:
                raise SystemExit(f"{part.name} does not start again: {part.last_words()}")
            await asyncio.sleep(0.05)

    async def _counts(self, client: Client, commands: Sequence[str]) -> dict[str, float]:
        """What must be zero, and how much was done."""
        lost = 0
        for session_id in self._sessions:
            found = await client.sessions.get(session_id)
            lost += found.state != sessions_pb2.SESSION_STATE_RUNNING or found.attempt != 1
        programs = Counter(command_of(pid) for pid in psutil.pids())
        runs = [programs[command] for command in commands]
        return {
            "sessions_lost": lost + sum(1 for found in runs if not found),
            "sessions_running_twice": sum(1 for found in runs if found > 1),
            "submissions_answered": self.submitted.answered,
            "submissions_refused": sum(self.submitted.refused.values()),
        }

    def _note(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(value)

    def _summary(self, modes: Sequence[str]) -> dict[str, float]:
        found: dict[str, float] = {}
        for mode in modes:
            commits = self.figures[f"{MODES[mode]}commit"]
            found[f"{MODES[mode]}commit_p50_ms"] = statistics.median(commits)
            found[f"{MODES[mode]}commit_p95_ms"] = percentile(commits, 0.95)
            streams = self.figures[f"{MODES[mode]}streams"]
            found[f"{MODES[mode]}streams_p95_ms"] = percentile(streams, 0.95)
            found[f"{MODES[mode]}rounds"] = len(commits)
        return found


class Behind(Loopback):
    """Hosts whose programs do not go before others, where this one does."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names, why="nothing is cut here")
        self._enter: tuple[str, ...] = ()
        with suppress(PermissionError):
            os.nice(-AHEAD)
            self._enter = ("nice", "-n", str(AHEAD))

    def enter(self, _host: str) -> tuple[str, ...]:
        """An ordinary place among all processes."""
        return self._enter


def _processors(since: Mapping[str, float] | None = None) -> dict[str, float]:
    """What the processors did, in seconds; the difference to what they had done then."""
    now = {name: float(value) for name, value in psutil.cpu_times()._asdict().items()}
    return {name: value - (since or {}).get(name, 0.0) for name, value in now.items()}


def _signal(part: Program, mode: str) -> None:
    process = part.process
    if process is None or process.poll() is not None:
        raise NotDone(f"{part.name} does not run")
    number = {"kill": signal.SIGKILL, "graceful": signal.SIGTERM, "paused": signal.SIGSTOP}[mode]
    process.send_signal(number)


def _gone(part: Program) -> None:
    if part.process is not None:
        part.process.wait(_WITHIN_S)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="bench.failover", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--rounds", type=int, default=30, help="of each mode")
    parser.add_argument("--modes", default=",".join(MODES), help="of kill, graceful, paused")
    parser.add_argument("--sessions", type=int, default=200, help="that run all the time")
    parser.add_argument("--rate", type=float, default=50, help="submissions a second")
    parser.add_argument("--keep", action="store_true", help="leave the folder with all logs")
    chosen = parser.parse_args()
    modes = chosen.modes.split(",")
    etcd, database = find_etcd(), find_database()
    if etcd is None or database is None:
        parser.exit(1, "bench.failover: it takes a sound etcd and PostgreSQL on this machine\n")

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    shape = Shape(control_planes=3, agents=AGENTS, gpus=(chosen.sessions + SPARE_GPUS) // AGENTS)
    folder = Path(tempfile.mkdtemp(prefix="nsml-failover-"))
    folder.chmod(0o711)
    hosts = Behind(host_names(shape))
    platform = ChaosPlatform(
        folder=folder,
        hosts=hosts,
        shape=shape,
        environ=os.environ,
        etcd_binary=str(etcd),
        database=database,
        say=say,
    )

    async def measure() -> dict[str, float]:
        await platform.start()
        bench = Bench(platform, say, sessions=chosen.sessions, per_s=chosen.rate)
        return await bench.run(modes, chosen.rounds)

    # Whoever ends it, nothing is left running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        figures = asyncio.run(measure())
    except CommandError as error:
        parser.exit(1, f"bench.failover: {error} {error.why}\n")
    finally:
        for part in platform.of_kind(CONTROL_PLANE):
            part.resume()
        platform.end()
        hosts.close()
        if not chosen.keep:
            subprocess.run(["chmod", "-R", "u+w", str(folder)], check=False)
            shutil.rmtree(folder, ignore_errors=True)
        else:
            say(f"logs: {folder}")
    peers = {"slurm_default_ms": 120_000.0, "kubernetes_lease_ms": 15_000.0}
    report(figures, peers=peers)


if __name__ == "__main__":
    main()
