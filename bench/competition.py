"""A competition on one machine: its scores and ranks, and how soon after an evaluation every watcher has the score.

python -m bench.competition [--json] [--users 100] [--models 5000] [--submissions 4000] [--watchers 200] [--at-once 0]

An organiser has a dataset with hidden labels. USERS users have one session each, which saves MODELS checkpoints
together; a checkpoint says how many rows it predicts right, so that the score of each submission is known before. All
else is real: the prediction programs and the evaluations are sessions. Half of the watchers watch the whole board, a
quarter the best 50, a quarter their own entries; in processes of their own, on the same processors.

`seen_..._ms` is from the end of an evaluation's program, as recorded with its session, to the answer with its score at a
watcher, over all pairs of a submission and a watcher that sees it; `scored_..._ms` until the score is recorded. Scores, ranks, their order in every answer on the way
(of one watcher of each kind in each process) and in the last answers of all, and that no score is there before its
evaluation has ended, are checked: `wrong` counts what was wrong, and the exit code is then 1. `steps_s` is a submission
alone, from the call to its score.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psutil

from bench.competition_watchers import KINDS, MOST, OWN, TOP, WHOLE, Watcher, Watching
from bench.platform import ROOT, Platform
from bench.report import percentile, report
from nsml.client import contexts
from nsml.client.boards import OVER, watch_submission
from nsml.client.connect import connect
from nsml.v1 import boards_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from nsml.client.calls import Client
    from nsml.client.contexts import Context

ROWS: Final = 1_000
"""Of the test set: scores are thousandths."""
SUBMITTERS: Final = 16
DATASET: Final = "rows"
ORGANISER: Final = "organiser"
TIMEOUT_S: Final = 600.0
CLOCKS_S: Final = 0.05
"""How much earlier a score may be seen than its evaluation ended: a session's end is recorded after its program's."""
SHOWN: Final = 20
_LITTLE: Final = ("-g", "0", "--memory", "128M", "--shm-size", "2M")
_LOADER: Final = """\
def test_data_loader(root_path):
    with open(f"{root_path}/test/test_data") as file:
        return file.read().split()
"""
_EVALUATION: Final = """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--prediction")
parser.add_argument("--test_label_path")
config = parser.parse_args()
with open(config.prediction) as file, open(config.test_label_path) as labels:
    right = [one == other for one, other in zip(file, labels)]
print(sum(right) / len(right))
"""
_PROGRAM: Final = """\
import argparse
import json
import pathlib

import nsml

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="train")
parser.add_argument("--pause", type=int, default=0)
parser.add_argument("--right")
config = parser.parse_args()
right = 0


def save(folder):
    pathlib.Path(folder, "right").write_text(str(right))


def load(folder):
    global right
    right = int(pathlib.Path(folder, "right").read_text())


def infer(data):
    return [(1.0, int(one) + (number >= right)) for number, one in enumerate(data)]


nsml.bind(save=save, load=load, infer=infer)
if config.pause:
    nsml.paused(scope=locals())
for number, right in enumerate(json.loads(config.right)):
    nsml.save(str(number))
"""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the competition is.

    Attributes:
        at_once: submissions that are on their way together, 0: all.
        alone: more submissions, whose steps are timed while nothing else runs; the first is not counted.
        watcher_processes: in which the watchers are.
        cpus: of each session. More make a step shorter, and fewer steps run at once.
    """

    users: int = 100
    models: int = 5_000
    submissions: int = 4_000
    watchers: int = 200
    at_once: int = 0
    alone: int = 5
    watcher_processes: int = 4
    cpus: float = 0.05


@dataclass(kw_only=True)
class Outcome:
    """What was measured, and sentences on what was wrong."""

    figures: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class User:
    """A user, with the session and how many rows each of its checkpoints predicts right."""

    name: str
    token: str
    session: str = ""
    right: tuple[int, ...] = ()


def run(sizes: Sizes) -> Outcome:
    """Hold the competition on a platform of its own."""
    with Platform(simulate_gpus=1, options=["--isolation", "namespace"]) as platform:
        context = contexts.choose(contexts.load(platform.environment), platform.environment)
        return asyncio.run(_Competition(platform, context, sizes).run())


class _Competition:
    def __init__(self, platform: Platform, context: Context, sizes: Sizes) -> None:
        self._platform = platform
        self._context = context
        self._sizes = sizes
        self._random = random.Random(1)
        self._truth: dict[str, float] = {}
        self._outcome = Outcome()

    async def run(self) -> Outcome:
        """See `run`."""
        async with connect(self._context) as admin:
            await admin.accounts.create_user(ORGANISER)
            organiser = await self._user(admin, ORGANISER, created=True)
            self._push(organiser)
            users = await self._trained(admin)
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(connect(self._context, token=one.token))
                for one in users
            ]
            owner = await stack.enter_async_context(connect(self._context, token=organiser.token))
            chosen = self._chosen(users)
            alone, chosen = chosen[: self._sizes.alone], chosen[self._sizes.alone :]
            await self._alone(clients, users, alone)
            await self._compete(owner, clients, users, chosen)
        return self._outcome

    async def _user(self, admin: Client, name: str, *, created: bool = False) -> User:
        if not created:
            await admin.accounts.create_user(name)
        return User(name=name, token=(await admin.accounts.create_token(name)).token)

    def _environment(self, user: User) -> dict[str, str]:
        file = self._platform.folder / f"{user.name}.token"
        if not file.exists():
            file.touch(mode=0o600)
            file.write_text(user.token)
        return {"NSML_TOKEN_FILE": str(file)}

    def _push(self, organiser: User) -> None:
        folder = self._platform.folder / DATASET
        test = folder / "test"
        test.mkdir(parents=True)
        text = "".join(f"{one}\n" for one in range(ROWS))
        (test / "test_data").write_text(text)
        (test / "test_label").write_text(text)
        (folder / "data_loader.py").write_text(_LOADER)
        evaluation = self._platform.folder / "evaluation.py"
        evaluation.write_text(_EVALUATION)
        environment = self._environment(organiser)
        words = ("push", "-l", "-e", str(evaluation), DATASET, str(folder))
        self._platform.nsml("dataset", *words, environment=environment)
        self._platform.nsml("dataset", "share", "-y", DATASET, "--public", environment=environment)

    async def _trained(self, admin: Client) -> list[User]:
        """Make the users, and the sessions with their checkpoints."""
        code = self._platform.folder / "code"
        code.mkdir()
        (code / "main.py").write_text(_PROGRAM)
        sizes, places = self._sizes, asyncio.Semaphore(SUBMITTERS)

        async def one(number: int) -> User:
            user = await self._user(admin, f"user{number:03d}")
            count = sizes.models // sizes.users + (number < sizes.models % sizes.users)
            right = tuple(self._random.randrange(1, ROWS + 1) for _ in range(count))
            words = ("run", *_LITTLE, "-c", f"{sizes.cpus:g}", "-d", f"{ORGANISER}/{DATASET}")
            async with places:
                done = await asyncio.to_thread(
                    self._platform.nsml,
                    *words,
                    *("--wait", "-o", "name", "-a"),
                    f"--right {json.dumps(right, separators=(',', ':'))}",
                    cwd=code,
                    environment=self._environment(user),
                    timeout_s=TIMEOUT_S,
                )
            session = done.stdout.split()[0]
            return User(name=user.name, token=user.token, session=session, right=right)

        return list(await asyncio.gather(*map(one, range(sizes.users))))

    def _chosen(self, users: Sequence[User]) -> list[tuple[int, int]]:
        """Return the submissions: number of the user, and of the checkpoint; first those for `_alone`."""
        models = [
            (whose, one) for whose, user in enumerate(users) for one in range(len(user.right))
        ]
        alone = [self._random.choice(models) for _ in range(self._sizes.alone)]
        return alone + self._random.choices(models, k=self._sizes.submissions)

    async def _submit(
        self, clients: Sequence[Client], users: Sequence[User], which: tuple[int, int]
    ) -> pb.Submission:
        whose, checkpoint = which
        user = users[whose]
        made = await clients[whose].submissions.create(
            user.session, str(checkpoint), request_id=uuid.uuid4().hex
        )
        self._truth[made.id] = user.right[checkpoint] / ROWS
        return made

    async def _alone(
        self, clients: Sequence[Client], users: Sequence[User], chosen: Sequence[tuple[int, int]]
    ) -> None:
        """Submit one after the other, and note how long each took; the first is not counted."""
        taken: dict[str, list[float]] = {}
        for which in chosen:
            began = time.time()
            made = await self._submit(clients, users, which)
            async for one in watch_submission(clients[which[0]], made.id):
                made = one
            now = time.time()
            if made.state != pb.SUBMISSION_STATE_SCORED:
                raise RuntimeError(f"a submission failed: {made}")
            predict, evaluate = made.steps
            parts = {
                "steps_s": now - began,
                "alone_to_predict_s": predict.started_at.ToNanoseconds() / 1e9 - began,
                "alone_predict_s": _between(predict.started_at, predict.ended_at),
                "alone_to_evaluate_s": _between(predict.ended_at, evaluate.started_at),
                "alone_evaluate_s": _between(evaluate.started_at, evaluate.ended_at),
                "alone_to_score_s": now - evaluate.ended_at.ToNanoseconds() / 1e9,
            }
            for name, value in parts.items():
                taken.setdefault(name, []).append(value)
        self._outcome.figures |= {
            name: statistics.median(values[1:]) for name, values in taken.items() if values[1:]
        }

    async def _compete(
        self,
        owner: Client,
        clients: Sequence[Client],
        users: Sequence[User],
        chosen: Sequence[tuple[int, int]],
    ) -> None:
        places = asyncio.Semaphore(SUBMITTERS)
        under_way = asyncio.Semaphore(self._sizes.at_once or len(chosen))

        async def submit(which: tuple[int, int]) -> None:
            async with under_way:
                async with places:
                    made = await self._submit(clients, users, which)
                if self._sizes.at_once:
                    async for _ in watch_submission(clients[which[0]], made.id):
                        pass

        board = f"{ORGANISER}/{DATASET}"
        with self._watchers(users, board) as processes, _processor(self._platform) as used:
            began = time.monotonic()
            await asyncio.gather(*map(submit, chosen))
            self._outcome.figures["submitted_s"] = time.monotonic() - began
            over = await self._all_over(owner)
            took_s = time.monotonic() - began
            figures = used()
            expected = [
                (one.id, one.owner, self._truth[one.id])
                for one in sorted(
                    over,
                    key=lambda one: (
                        -self._truth[one.id],
                        one.submitted_at.ToNanoseconds(),
                        one.id,
                    ),
                )
            ]
            seen = await asyncio.to_thread(_ended, processes, expected)
        self._outcome.figures |= figures | {
            "submissions_per_min": 60 * len(chosen) / took_s,
            "total_s": took_s,
            "cpu_s_per_submission": figures["cpu_s"] / len(chosen),
        }
        await self._check(owner, over, expected)
        self._compare(seen, {one.id: one for one in over}, {one for one, *_ in expected})

    async def _all_over(self, owner: Client) -> list[pb.Submission]:
        """Return all submissions once they are over."""
        while True:
            found = [one async for one in owner.submissions.every(DATASET)]
            live = [one for one in found if one.state not in OVER]
            if not live:
                return found
            # The newest: to list all of them again and again costs what is measured.
            async for _ in watch_submission(owner, live[0].id):
                pass

    async def _check(
        self,
        owner: Client,
        over: Sequence[pb.Submission],
        expected: Sequence[tuple[str, str, float]],
    ) -> None:
        wrong = self._outcome.wrong
        ranks = {one: rank for rank, (one, *_) in enumerate(expected, 1)}
        if missing := self._truth.keys() - {one.id for one in over}:
            wrong.append(f"{len(missing)} submissions are not listed")
        for one in over:
            if one.state != pb.SUBMISSION_STATE_SCORED:
                wrong.append(
                    f"{one.id} failed: {pb.SubmissionCause.Name(one.cause)}: {one.message}"
                )
            elif one.score != self._truth[one.id]:
                wrong.append(f"{one.id} has score {one.score}, not {self._truth[one.id]}")
            elif one.rank != ranks[one.id]:
                wrong.append(f"{one.id} has rank {one.rank}, not {ranks[one.id]}")
        listed = (await owner.boards.entries(DATASET)).entries
        have = [(one.submission_id, one.owner, one.score) for one in listed]
        if have != list(expected[:MOST]):
            wrong.append("the list of entries is another one than expected")

    def _compare(
        self, seen: Sequence[Mapping[str, Any]], over: Mapping[str, pb.Submission], ids: set[str]
    ) -> None:
        figures, wrong = self._outcome.figures, self._outcome.wrong
        every: list[float] = []
        whole: dict[str, list[float]] = {}
        for kind in KINDS:
            delays = []
            for one in seen:
                for submission, times in one["at"].get(kind, {}).items():
                    if submission not in ids:
                        wrong.append(
                            f"there is no submission {submission}, which {kind} watchers see"
                        )
                        continue
                    evaluate = over[submission].steps[-1]
                    ended_at = evaluate.ended_at.ToNanoseconds() / 1e9
                    found = [1000 * (at - ended_at) for at in times if submission in self._counted]
                    delays += found
                    if any(at < ended_at - CLOCKS_S for at in times):
                        wrong.append(f"{submission} had a score before its evaluation ended")
                    whole.setdefault(submission, []).extend(found)
            every += delays
            if delays:
                figures |= {
                    f"seen_{kind}_p50_ms": statistics.median(delays),
                    f"seen_{kind}_p95_ms": percentile(delays, 0.95),
                    f"seen_{kind}_max_ms": max(delays),
                }
            figures[f"answers_{kind}"] = sum(one["answers"].get(kind, 0) for one in seen)
        for one in seen:
            wrong += one["wrong"]
            for submission, scores in one["scores"].items():
                if scores != [self._truth.get(submission)]:
                    wrong.append(f"{submission} was seen with {scores}")
        last = [max(values) for values in whole.values() if values]
        scored = [
            1000 * _between(one.steps[-1].ended_at, one.ended_at)
            for one in over.values()
            if one.id in self._counted and one.steps
        ]
        figures |= {
            "scored_p50_ms": statistics.median(scored),
            "scored_p95_ms": percentile(scored, 0.95),
            "seen_p50_ms": statistics.median(every),
            "seen_p95_ms": percentile(every, 0.95),
            "seen_max_ms": max(every),
            "seen_by_all_p95_ms": percentile(last, 0.95),
            "pairs": float(len(every)),
            "wrong": float(len(wrong)),
        }

    @property
    def _counted(self) -> set[str]:
        return set(list(self._truth)[self._sizes.alone :])

    @contextmanager
    def _watchers(self, users: Sequence[User], board: str) -> Iterator[list[subprocess.Popen[str]]]:
        kinds = (WHOLE, TOP, WHOLE, OWN)
        watchers = [
            Watcher(
                user=users[number % len(users)].name,
                token=users[number % len(users)].token,
                # Each user's watchers are of several kinds.
                kind=kinds[(number + number // len(users)) % len(kinds)],
            )
            for number in range(self._sizes.watchers)
        ]
        context = self._context
        processes = []
        try:
            for number in range(self._sizes.watcher_processes):
                watching = Watching(
                    server=context.server,
                    ca=context.ca,
                    server_name=context.server_name,
                    board=board,
                    watchers=watchers[number :: self._sizes.watcher_processes],
                )
                process = subprocess.Popen(
                    [sys.executable, "-m", "bench.competition_watchers"],
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                processes.append(process)
                _tell(process, asdict(watching))
            for process in processes:
                if _line(process) != "watching":
                    raise RuntimeError("a process of watchers ended")
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.communicate()


@contextmanager
def _processor(platform: Platform) -> Iterator[Callable[[], dict[str, float]]]:
    """Yield a function that returns the processor time used since, of the machine and of the platform's programs."""
    programs = {name: psutil.Process(platform.pid(name)) for name in ("controlplane", "agent")}

    def now() -> dict[str, float]:
        whole = psutil.cpu_times()
        figures = {"cpu_s": whole.user + whole.system + whole.nice}
        for name, process in programs.items():
            times = process.cpu_times()
            figures[f"{name}_cpu_s"] = times.user + times.system
        return figures

    before = now()
    yield lambda: {name: value - before[name] for name, value in now().items()}


def _ended(
    processes: Sequence[subprocess.Popen[str]], expected: Sequence[tuple[str, str, float]]
) -> list[dict[str, Any]]:
    """Tell the watchers what they have to see in the end, and return what they saw."""
    for process in processes:
        _tell(process, expected)
    return [json.loads(_line(process)) for process in processes]


def _tell(process: subprocess.Popen[str], what: object) -> None:
    if process.stdin is None:
        raise TypeError
    process.stdin.write(json.dumps(what) + "\n")
    process.stdin.flush()


def _line(process: subprocess.Popen[str]) -> str:
    if process.stdout is None:
        raise TypeError
    return process.stdout.readline().strip()


def _between(began: Timestamp, ended: Timestamp) -> float:
    return (ended.ToNanoseconds() - began.ToNanoseconds()) / 1e9


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="bench.competition", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    sizes = Sizes()
    for name in ("users", "models", "submissions", "watchers", "at_once"):
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=getattr(sizes, name))
    chosen = parser.parse_args()
    if min(chosen.users, chosen.submissions, chosen.watchers) < 1 or chosen.models < chosen.users:
        parser.error("at least one user, submission and watcher, and a model for each user")
    # Whoever ends it, nothing is left running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    outcome = run(
        Sizes(
            users=chosen.users,
            models=chosen.models,
            submissions=chosen.submissions,
            watchers=chosen.watchers,
            at_once=chosen.at_once,
        )
    )
    report(outcome.figures)
    for sentence in outcome.wrong[:SHOWN]:
        print(sentence, file=sys.stderr)
    if outcome.wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
