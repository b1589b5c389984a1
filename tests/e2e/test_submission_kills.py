"""Submissions while control planes, agents, etcd and PostgreSQL are killed, paused and stopped, and wall clocks of control planes
and agents are set: each ends once, with the score that its checkpoint has, and leaves nothing.

NSML_SOAK_SECONDS=120 asks for the long run, NSML_SEED repeats one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg
import pytest

from bench.platform import PROGRAMS
from chaos.clocks import Clocks
from chaos.hosts import Loopback
from chaos.nemesis import CLOCK, Nemesis
from chaos.platform import ADMIN, ChaosPlatform, Shape, host_names
from chaos.processes import AGENT, CONTROL_PLANE
from chaos.recording import Recorder
from controlplane.submissions.pipeline import MOST_TRIES
from controlplane.submissions.session_cleanup import KEPT_FAILED_S
from nsml.client import contexts
from nsml.client.boards import OVER, Selection, watch_board, watch_submission
from nsml.client.calls import Client
from nsml.client.connect import connect
from nsml.client.errors import LimitReached, StateConflict, Unavailable
from nsml.v1 import boards_pb2 as pb
from nsml.v1 import sessions_pb2
from tests.clock.library import require_clock
from tests.e2e.nemesis import SOAKING, ticks_of
from tests.e2e.programs import write_program
from tests.e2e.test_submissions import EVALUATION, LOADER
from tests.support.etcd import require_etcd
from tests.support.postgres import require_postgres

T = TypeVar("T")

SHORT_S: Final = 4.0
SOAK_S: Final = float(os.environ.get("NSML_SOAK_SECONDS", "120"))
FAULTS: Final = ("kill", "pause", "stop", CLOCK)
KILLED_EVERY_S: Final = 1.5, 6.0
ROWS: Final = 10
FAILS: Final = -1
"""The checkpoint whose prediction fails."""
USERS: Final = ("lee", "ann")
AT_ONCE: Final = 2
"""Submissions of one user that are under way together."""
LIMIT: Final = 2
"""Submissions of one user that the board of the dataset `few` takes in a window."""
WRONG_S: Final = 7_200.0
"""By how much the clock of a control plane is wrong when it is started first."""
WINDOW: Final = "1h"
"""Longer than a run, and shorter than clocks are set by."""
OVER_WITHIN_S: Final = 240.0
BOARDS: Final = ("many", "few")
"""Names of the datasets; the second one's board has the limit."""
SCORED: Final = pb.SUBMISSION_STATE_SCORED
PREDICT: Final = sessions_pb2.SESSION_STAGE_PREDICT
EVALUATE: Final = sessions_pb2.SESSION_STAGE_EVALUATE
EVERY: Final = Selection(best_per=pb.BEST_PER_NONE)
PROGRAM: Final = f"""\
import argparse, pathlib
import nsml

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="train")
parser.add_argument("--pause", type=int, default=0)
config = parser.parse_args()
right = 0


def save(folder):
    pathlib.Path(folder, "right").write_text(str(right))


def load(folder):
    global right
    right = int(pathlib.Path(folder, "right").read_text())


def infer(data):
    if right == {FAILS}:
        raise RuntimeError("it cannot predict")
    return [(1.0, 3 * one if number < right else -1) for number, one in enumerate(data)]


nsml.bind(save=save, load=load, infer=infer)
if config.pause:
    nsml.paused(scope=locals())
for right in range({FAILS}, {ROWS} + 1):
    nsml.save(right)
"""


@dataclass
class Campaign:
    """Submissions of known scores to a tormented platform, and what was heard of them."""

    platform: ChaosPlatform
    rng: random.Random
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    clients: dict[str, list[Client]] = field(default_factory=dict)
    """By user: one for each control plane, that also knows the others."""
    sessions: dict[tuple[str, str], str] = field(default_factory=dict)
    """By user and dataset."""
    rights: dict[str, int] = field(default_factory=dict)
    """Of acknowledged submissions, by id: how many rows they have right."""
    owners: dict[str, str] = field(default_factory=dict)
    made_between: dict[str, tuple[float, float]] = field(default_factory=dict)
    """When each was asked for first, and acknowledged last; by a monotonic clock."""
    watched: dict[str, pb.Submission] = field(default_factory=dict)
    """What a watch said last of each submission."""
    boards: dict[str, list[Any]] = field(default_factory=dict)
    """What the watches of the board said last, by control plane."""
    killed: int = 0
    """Tries of steps that were ended."""
    watches: list[asyncio.Task[None]] = field(default_factory=list)

    def nsml(self, *words: str, user: str = "", cwd: Path | None = None) -> str:
        token = {"NSML_TOKEN_FILE": str(self._token(user))} if user else {}
        done = subprocess.run(
            [PROGRAMS / "nsml", *words],
            cwd=cwd or self.folder,
            env={**self.environment, **token},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert done.returncode == 0, f"nsml {' '.join(words)}: {done.stderr.strip()[-600:]}"
        return done.stdout

    def _token(self, user: str) -> Path:
        return self.folder / f"{user}.token"

    # Before

    def prepare(self) -> None:
        """Make users and datasets, and train what is submitted."""
        context, *_ = self.platform.contexts()
        config = contexts.Config(folder=str(self.folder / "config"))
        contexts.save(config.with_context(context))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NSML_")}
        path = f"{PROGRAMS}:{os.environ['PATH']}"
        self.environment = {**kept, "NSML_CONFIG_DIR": config.folder, "PATH": path, "NO_COLOR": "1"}
        for user in USERS:
            self.nsml("admin", "user", "add", user)
            contexts.write_private(
                self._token(user), self.nsml("admin", "user", "token", user).split()[-1]
            )
        data = self.folder / "data"
        (data / "test").mkdir(parents=True)
        rows = range(1, ROWS + 1)
        (data / "test/test_data").write_text("".join(f"{one}\n" for one in rows))
        (data / "test/test_label").write_text("".join(f"{3 * one}\n" for one in rows))
        (data / "data_loader.py").write_text(LOADER)
        evaluation = self.folder / "evaluation.py"
        evaluation.write_text(EVALUATION)
        for name in BOARDS:
            self.nsml("dataset", "push", "-l", "-e", str(evaluation), name, str(data))
            self.nsml("dataset", "share", "-y", name, "--public")
        self.nsml("board", "set", BOARDS[1], "--limit", f"{LIMIT}/{WINDOW}")
        code = write_program(self.folder / "code", PROGRAM)
        for user in USERS:
            for name in BOARDS:
                words = ("run", "-g", "0", "-d", f"{ADMIN}/{name}", "--wait", "-o", "name")
                self.sessions[user, name] = self.nsml(*words, user=user, cwd=code).split()[0]

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Have clients of all users."""
        async with asyncio.TaskGroup() as group:
            opened = []
            for user in (ADMIN, *USERS):
                for context in self.platform.contexts():
                    token = context.token_file if user == ADMIN else str(self._token(user))
                    opening = connect(context._replace(token_file=token), deadline_s=5.0)
                    self.clients.setdefault(user, []).append(await opening.__aenter__())
                    opened.append(opening)
            self.watches = [
                group.create_task(self._watch_board(number))
                for number in range(len(self.clients[ADMIN]))
            ]
            try:
                yield
            finally:
                for one in self.watches:
                    one.cancel()
                for opening in opened:
                    await opening.__aexit__(None, None, None)

    # During

    async def submit_until(self, is_over: Callable[[], bool]) -> None:
        """Let all users submit until then, and to the board with a limit as often as that takes them."""
        async with asyncio.TaskGroup() as group:
            for user in USERS:
                group.create_task(self._submit_many(user, is_over, group))
                for _ in range(LIMIT):
                    group.create_task(self._submit_few(user, is_over, group))

    async def _submit_many(
        self, user: str, is_over: Callable[[], bool], group: asyncio.TaskGroup
    ) -> None:
        places = asyncio.Semaphore(AT_ONCE)
        while not is_over():
            await places.acquire()
            right = self.rng.randint(FAILS, ROWS)
            watching = group.create_task(
                self._watch(user, await self._submit(user, BOARDS[0], right))
            )
            watching.add_done_callback(lambda _: places.release())

    async def _submit_few(
        self, user: str, is_over: Callable[[], bool], group: asyncio.TaskGroup
    ) -> None:
        """Submit until nothing more is taken, and try again until then; several do so at once."""
        is_full = False
        while not (is_full and is_over()):
            try:
                made = await self._submit(user, BOARDS[1], self.rng.randint(0, ROWS))
                group.create_task(self._watch(user, made))
            except LimitReached:
                is_full = True
                await asyncio.sleep(0.5)

    async def _submit(self, user: str, dataset: str, right: int) -> str:
        """Submit, and sometimes once more by the same request."""
        request_id = f"{self.rng.getrandbits(64):x}"
        session = self.sessions[user, dataset]

        async def ask(client: Client) -> str:
            made = await client.submissions.create(session, str(right), request_id=request_id)
            return str(made.id)

        asked_at = time.monotonic()
        made = await self.answered(user, ask)
        self.made_between[made] = asked_at, time.monotonic()
        if self.rng.random() < 0.3:
            assert await self.answered(user, ask) == made, "a repeated request made another one"
        self.rights[made], self.owners[made] = right, user
        return made

    async def answered(self, user: str, ask: Callable[[Client], Awaitable[T]]) -> T:
        """Ask any control plane until one answers."""
        ends_at = time.monotonic() + OVER_WITHIN_S
        while True:
            try:
                return await ask(self.rng.choice(self.clients[user]))
            except Unavailable:
                assert time.monotonic() < ends_at, "nobody answers"
                await asyncio.sleep(0.1)

    async def _watch(self, user: str, submission_id: str) -> None:
        client = self.rng.choice(self.clients[user])
        async with asyncio.timeout(OVER_WITHIN_S + SOAK_S):
            async with aclosing(watch_submission(client, submission_id)) as changes:
                async for one in changes:
                    before = self.watched.get(submission_id)
                    assert before is None or before.state <= one.state, f"{before} became {one}"
                    self.watched[submission_id] = one

    async def _watch_board(self, number: int) -> None:
        name = self.platform.contexts()[number].name
        client = self.clients[ADMIN][number]
        async with aclosing(watch_board(client, f"{ADMIN}/{BOARDS[0]}", EVERY)) as answers:
            async for one in answers:
                self.boards[name] = listed(one.entries)

    async def reevaluate(self) -> None:
        """Evaluate again what was submitted so far, once there is something."""
        board = f"{ADMIN}/{BOARDS[0]}"

        async def begin(client: Client) -> bool:
            if (await client.boards.get(board)).to_reevaluate:
                return True  # by a call whose answer was lost
            try:
                await client.boards.reevaluate(board)
            except StateConflict:
                return False
            return True

        async def is_shown(client: Client) -> bool:
            return (await client.boards.get(board)).evaluation > 1

        await until(lambda: self.answered(ADMIN, begin), "it is evaluated again")
        await until(lambda: self.answered(ADMIN, is_shown), "new scores are shown")

    async def kill_steps(self, is_over: Callable[[], bool]) -> None:
        """Until then, end what keeps the session of a step, now and then: that try is lost."""
        while not is_over():
            await asyncio.sleep(self.rng.uniform(*KILLED_EVERY_S))
            claims = []
            for part in self.platform.of_kind(AGENT):
                replicas = self.platform.folder / part.name / "agent/replicas"
                for file in replicas.glob("*/shim.json"):
                    with suppress(OSError, ValueError):
                        claims.append(json.loads(file.read_bytes()))
            alive = [one["pid"] for one in claims if ticks_of(one["pid"]) == one["start_ticks"]]
            if alive:
                with suppress(ProcessLookupError):
                    os.kill(self.rng.choice(alive), signal.SIGKILL)
                    self.killed += 1

    # After

    async def check(self) -> None:
        """Check all that was promised, once nothing fails any more."""
        given_up = "SELECT submission_id FROM submission_scores WHERE evaluation > 1 AND cause = %d"
        lost = {name for (name,) in self._sql(given_up % pb.SUBMISSION_CAUSE_PLATFORM)}
        said = []
        ends = await self.answered(ADMIN, steps)
        for made, right in self.rights.items():
            found = await self.answered(self.owners[made], partial(submission, made))
            assert found.state in OVER, found
            if found.cause == pb.SUBMISSION_CAUSE_PLATFORM:
                lost.add(made)
            elif made in lost:
                assert found.state == SCORED
            elif right == FAILS and found.cause == pb.SUBMISSION_CAUSE_INFER_FAILED:
                pass
            elif (found.state, found.score) != (SCORED, right / ROWS):
                of = [one.end for one in ends if one.spec.submission_id == made]
                said.append(f"{right} right: {found}\nits sessions: {of}")
            watched = self.watched[made]
            assert watched.state == found.state
            if made not in lost:
                assert watched.score == found.score
        wrong = "\n".join(said)
        assert not said, wrong
        await self._check_boards()
        await self._check_limits(lost)
        await self._check_sessions()

    async def _check_boards(self) -> None:
        """A board has each submission once, ranked by its score, and its watches say the same."""
        for name in BOARDS:
            answer = await self.answered(ADMIN, partial(entries, f"{ADMIN}/{name}"))
            made = [one for one in self.watched.values() if one.dataset == f"{ADMIN}/{name}"]
            found = Counter(one.submission_id for one in answer.entries)
            assert found == Counter(one.id for one in made)
            scored = [one for one in answer.entries if one.HasField("score")]
            best = sorted(scored, key=lambda one: (-one.score, one.submitted_at.ToNanoseconds()))
            assert [one.rank for one in best] == list(range(1, len(scored) + 1))
            self._check_order(answer.entries)
            if name == BOARDS[0]:
                seen = {one.name: listed(answer.entries) for one in self.platform.contexts()}
                await until(lambda seen=seen: self.boards == seen, "watches say what is listed")  # type: ignore[misc]

    def _check_order(self, found: Iterable[pb.BoardEntry]) -> None:
        """Who was acknowledged before another one was asked for is the earlier one, whatever clocks said."""
        in_order = sorted(found, key=lambda one: one.submitted_at.ToNanoseconds())
        latest = 0.0
        for one in in_order:
            asked_at, acknowledged_at = self.made_between[one.submission_id]
            assert acknowledged_at >= latest, f"{one} was there before an earlier one was asked for"
            latest = max(latest, asked_at)

    async def _check_limits(self, lost: set[str]) -> None:
        """What was acknowledged is there, and no more than the limit permits."""
        for user in USERS:
            every = await self.answered(user, of_user)
            own = [made for made, owner in self.owners.items() if owner == user]
            assert sorted(one.id for one in every) == sorted(own)
            counted = [one for one in every if one.dataset == f"{ADMIN}/{BOARDS[1]}"]
            assert sum(one.id not in lost for one in counted) <= LIMIT
            if not lost & {one.id for one in counted}:
                with pytest.raises(LimitReached):
                    await self._submit(user, BOARDS[1], ROWS)

    async def _check_sessions(self) -> None:
        """Each try of a step has made one session, and none more than it may have."""
        made: Counter[tuple[str, int]] = Counter()
        for one in await self.answered(ADMIN, steps):
            assert one.attempt <= 1, one
            made[one.spec.submission_id, one.spec.stage] += 1
        again = "SELECT submission_id, tries FROM submission_scores WHERE evaluation > 1"
        for name, tries in self._sql(again):
            assert tries <= MOST_TRIES  # 0: scored for the first time, by its submission
            made[name, EVALUATE] -= tries
        tried = "SELECT id, cause, predict_tries, evaluate_tries FROM submissions"
        counts: Counter[int] = Counter()
        for name, cause, predicted, evaluated in self._sql(tried):
            found = made[name, PREDICT], made[name, EVALUATE]
            assert found == (predicted, evaluated), name
            assert max(found) <= MOST_TRIES
            assert cause != pb.SUBMISSION_CAUSE_PLATFORM or max(found) == MOST_TRIES
            counts[max(found)] += 1
        print("submissions by tries:", dict(counts), flush=True)

    def _sql(self, statement: str) -> list[Any]:
        with psycopg.connect(self.platform.history_url(), autocommit=True) as connection:
            done = connection.execute(statement.encode())
            return done.fetchall() if done.description else []

    async def clean(self) -> None:
        """A week later nothing is left of the steps; a leader that takes over looks at once."""
        for table in ("submissions", "submission_scores"):
            self._sql(f"UPDATE {table} SET ended_at = ended_at - {KEPT_FAILED_S + 60:.0f}")
        for part in self.platform.of_kind(CONTROL_PLANE):
            await asyncio.to_thread(part.kill)
            await asyncio.to_thread(part.start)
            await until(lambda part=part: self.platform.is_ready(part), f"{part.name} serves")  # type: ignore[misc]

        async def are_gone() -> bool:
            return not await self.answered(ADMIN, steps)

        await until(are_gone, "sessions of steps are removed")
        for part in self.platform.of_kind(AGENT):
            replicas = self.platform.folder / part.name / "agent/replicas"
            await until(lambda at=replicas: not list(at.iterdir()), f"{replicas} is empty")  # type: ignore[misc]
        named = (
            "SELECT id FROM submissions WHERE predict_session_id <> '' OR evaluate_session_id <> ''"
            " UNION SELECT submission_id FROM submission_scores WHERE session_id <> ''"
        )
        await until(lambda: not self._sql(named), "nothing names a removed session")


def submission(made: str, client: Client) -> Awaitable[pb.Submission]:
    return client.submissions.get(made)


def entries(board: str, client: Client) -> Awaitable[pb.ListEntriesResponse]:
    return client.boards.entries(board, EVERY)


async def of_user(client: Client) -> list[pb.Submission]:
    return [one async for one in client.submissions.every()]


async def steps(client: Client) -> list[sessions_pb2.Session]:
    """The sessions of submissions, of all users."""
    chosen = sessions_pb2.SessionFilter(include_ended=True)
    return [one async for one in client.sessions.every(chosen) if one.spec.submission_id]


def listed(found: Iterable[pb.BoardEntry]) -> list[tuple[str, int, int, float]]:
    return [(one.submission_id, one.state, one.rank, one.score) for one in found]


async def until(is_so: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    ends_at = time.monotonic() + OVER_WITHIN_S
    while True:
        found = is_so()
        if found if isinstance(found, bool) else await found:
            return
        assert time.monotonic() < ends_at, f"not within {OVER_WITHIN_S:g} s: {what}"
        await asyncio.sleep(0.1)


async def tormented(platform: ChaosPlatform, seconds: float, *, is_long: bool) -> None:
    """Submit under faults and check; the long run has steps ended and scores evaluated again, too."""
    seed = int(os.environ.get("NSML_SEED", random.randrange(1 << 32)))
    print("NSML_SEED", seed, flush=True)
    rng = random.Random(seed)
    work = platform.folder / "work"
    work.mkdir()
    campaign = Campaign(platform, random.Random(rng.random()), work)
    faults = platform.folder / "faults.jsonl"
    recorder = Recorder(faults)
    nemesis = Nemesis(
        platform=platform,
        rng=rng,
        recorder=recorder,
        chosen=FAULTS,
        ledgers=platform.folder / "ledgers",
    )
    # As of a machine that takes its clock for local time, until a time service sets it.
    platform.clocks.ahead_s["cp2"] = rng.choice((-1, 1)) * WRONG_S
    await platform.start()
    await asyncio.to_thread(campaign.prepare)
    platform.clocks.set("cp2", 0.0)
    async with campaign.connected():
        tormenting = asyncio.create_task(nemesis.torment(seconds))
        more = [campaign.kill_steps(tormenting.done), campaign.reevaluate()] if is_long else []
        beside = [asyncio.create_task(one) for one in more]
        await campaign.submit_until(tormenting.done)
        for task in (tormenting, *beside):
            await task
        recorder.close()
        for one in map(json.loads, faults.read_text().splitlines()):
            if one.get("healed") == CLOCK:
                print(one["proof"])
        print(
            dict(nemesis.fired),
            campaign.killed,
            "steps killed",
            len(campaign.rights),
            "submissions",
            flush=True,
        )
        await campaign.check()
        await campaign.clean()
    assert nemesis.fired.total() >= len(FAULTS)
    assert campaign.rights


@pytest.fixture
def platform() -> Iterator[ChaosPlatform]:
    """Two control planes and two agents whose sessions have isolation and networks of their own."""
    require_etcd()
    shape = Shape(control_planes=2, agents=2)
    folder = Path(tempfile.mkdtemp(prefix="nsml-submissions-"))
    folder.chmod(0o711)  # PostgreSQL's user may pass
    hosts = Loopback(host_names(shape), why="nothing is cut here")
    etcd = shutil.which("etcd")
    assert etcd
    made = ChaosPlatform(
        folder=folder,
        hosts=hosts,
        shape=shape,
        environ=os.environ,
        etcd_binary=etcd,
        database=require_postgres(),
        say=lambda text: print(text, flush=True),
        agent_environment={"NSML_AGENT_ISOLATION": "namespace"},
        clocks=Clocks(require_clock(), folder),
    )
    try:
        yield made
    finally:
        made.end()
        hosts.close()
        if "NSML_KEEP" in os.environ:
            print(folder)
        else:
            subprocess.run(["chmod", "-R", "u+w", folder], check=False)
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.long("two control planes and all they need, and faults need time to show")
async def test_a_moment_of_faults(platform: ChaosPlatform) -> None:
    await tormented(platform, SHORT_S, is_long=False)


@pytest.mark.parametrize("seconds", [pytest.param(SOAK_S, marks=SOAKING)])
async def test_a_long_run_of_faults(platform: ChaosPlatform, seconds: float) -> None:
    await tormented(platform, seconds, is_long=True)
