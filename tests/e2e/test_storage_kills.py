"""Kills of client, control plane, agent, database and bucket at any moment: acknowledged datasets and checkpoints are whole, and
in the end unreferenced content takes no room.

NSML_SEED repeats one seed; NSML_STORAGE_KILLS: number of kills. More than about 60 need
`-o faulthandler_timeout=7200`: pytest ends a test after a quarter of an hour.
"""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bench.platform import PROGRAMS, ROOT
from cli.exits import ExitCode
from nsml.content.digests import is_digest
from tests.e2e.programs import wait_for, write_program
from tests.integration.collecting_program import Servers
from tests.support.in_process import Platform
from tests.support.living_folders import files_below
from tests.support.postgres import PostgresServer, by_file, postgres_server
from tests.support.proxy import proxied
from tests.support.s3 import KEYS, S3Server, s3

__all__ = ["postgres_server", "s3"]

KILLS = int(os.environ.get("NSML_STORAGE_KILLS", "6"))
LONGEST_OUTAGE_S = 20.0
SAVED_BYTES = 3 << 20
EVICTING = {"NSML_AGENT_KEEP_FREE_SHARE": "0.999", "NSML_AGENT_KEEP_FREE_BYTES": str(1 << 60)}
"""Settings with which an agent is always short of room: it evicts unused content at its next check."""

PROGRAM = f"""\
import hashlib, pathlib, random, nsml
found = hashlib.sha256()
root = pathlib.Path(nsml.DATASET_PATH)
for path in sorted(root.rglob("*")):
    if path.is_file():
        found.update(str(path.relative_to(root)).encode())
        found.update(path.read_bytes())
digest = found.hexdigest()
print("digest", digest)

def save(folder):
    (pathlib.Path(folder) / "weights").write_bytes(random.Random(digest).randbytes({SAVED_BYTES}))

nsml.bind(save=save)
nsml.save("best")
made = pathlib.Path("made")
made.mkdir(exist_ok=True)
save(made)
"""


def change(tree: Path, chance: random.Random) -> None:
    """Add, change and remove some files, and insert a few bytes in the middle of a large one."""
    for _ in range(150):
        path = tree / str(chance.randrange(10)) / f"{chance.randrange(60)}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(chance.randbytes(chance.randrange(60_000)))
    for path in chance.sample(sorted(tree.rglob("*.bin")), 10):
        path.unlink()
    large = tree / "large"
    body = large.read_bytes() if large.exists() else chance.randbytes(12 << 20)
    at = chance.randrange(len(body))
    large.write_bytes(body[:at] + chance.randbytes(1_000) + body[at:])


def digest_of(tree: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(tree.rglob("*")):
        if path.is_file():
            found.update(str(path.relative_to(tree)).encode())
            found.update(path.read_bytes())
    return found.hexdigest()


class Campaign:
    """Pushes, sessions, evictions and removals, each with a kill, and checks of the result.

    Args:
        servers: functions by name; each kills something and starts it again, and no fault outlasts the call: after it a retry
            succeeds.
    """

    def __init__(
        self,
        platform: Platform,
        folder: Path,
        chance: random.Random,
        servers: dict[str, Callable[[], None]],
    ) -> None:
        self.platform = platform
        self.killed: Counter[str] = Counter()
        self._chance = chance
        self._tree, self._copy = folder / "tree", folder / "copy"
        self._tree.mkdir()
        self._program = write_program(folder / "program", PROGRAM)
        self._kill = {
            "controlplane": lambda: self._restart("controlplane"),
            "agent": lambda: self._restart("agent"),
            **servers,
        }
        moments = {
            "push": ["client", "controlplane", *servers],
            "session": ["controlplane", "agent", *servers],
            "evict": ["agent"],
            "remove": ["client", "controlplane", *(one for one in servers if one != "bucket")],
        }
        self._pairs = [(moment, one) for moment, victims in moments.items() for one in victims]
        self._took_s = 2.0
        self._versions: dict[int, str] = {}
        self._sessions: dict[str, str] = {}
        self._made: list[str] = []
        """Digests of the dataset that each session read, also of removed sessions."""

    def run(self, kills: int) -> None:
        """Kill this many times: each victim at each moment equally often, in random order."""
        left: list[tuple[str, str]] = []
        for number in range(kills):
            if not left:
                left = self._chance.sample(self._pairs, len(self._pairs))
            moment, victim = left.pop()
            print(number, moment, victim, flush=True)
            change(self._tree, self._chance)
            self._push(victim if moment == "push" else None)
            if moment != "push":
                self._run(victim if moment == "session" else None)
            if moment == "evict":
                self._kill_as_it_evicts()
            elif moment == "remove":
                self._remove(victim)
            self.killed[f"{moment} {victim}"] += 1

    def check(self) -> None:
        """Check that all acknowledged content is there, and nothing is damaged."""
        nsml = self.platform.nsml
        listed = self.platform.json("dataset", "versions", "t")["items"]
        # A push that was repeated has made one version, and what was removed is gone.
        assert {one["version"] for one in listed} == self._versions.keys()
        for number, digest in self._versions.items():
            nsml("dataset", "pull", f"t@{number}", str(self._copy), timeout_s=300)
            assert digest_of(self._copy / "t") == digest, f"version {number}"
            shutil.rmtree(self._copy)
        assert set(nsml("ps", "-a", "-o", "name").stdout.split()) == self._sessions.keys()
        for session, digest in self._sessions.items():
            nsml("model", "pull", session, "best", str(self._copy), timeout_s=300)
            self._check_copy(digest)
        if self._made:
            listed = self.platform.json("dataset", "versions", "made")["items"]
            assert len(listed) == len(self._made), "each session has made one version"
        for number, digest in enumerate(self._made, 1):
            nsml("dataset", "pull", f"made@{number}", str(self._copy), timeout_s=300)
            self._check_copy(digest)
        nsml("doctor", "storage", timeout_s=300)
        wait_for(lambda: self._trees() == set(), what="nothing is left of what was evicted")
        print(dict(self.killed), "evicted:", self._evicted(), flush=True)
        assert self._evicted() >= len(self._sessions) // 2

    def _check_copy(self, digest: str) -> None:
        """Check that the pulled files are those that a session with that dataset saves."""
        (weights,) = files_below(self._copy, "weights")
        assert weights.read_bytes() == random.Random(digest).randbytes(SAVED_BYTES)
        shutil.rmtree(self._copy)

    def remove_all(self) -> None:
        """Remove every session and dataset."""
        if self._sessions:
            self.platform.nsml("rm", "-y", *self._sessions, timeout_s=300)
        names = self.platform.nsml("dataset", "ls", "-o", "name").stdout.split()
        self.platform.nsml("dataset", "rm", "-y", *names, timeout_s=300)

    @property
    def session_count(self) -> int:
        """Number of sessions that are not removed; all have ended."""
        return len(self._sessions)

    def _restart(self, program: str) -> None:
        self.platform.kill(program)
        self.platform.up()

    def _begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [PROGRAMS / "nsml", *arguments],
            env=self.platform.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _strike(self, victim: str, client: subprocess.Popen[bytes]) -> None:
        if victim == "client":
            client.send_signal(signal.SIGKILL)
        else:
            self._kill[victim]()

    def _push(self, victim: str | None) -> None:
        """The push or its retry succeeds, whichever process is killed."""
        began = time.monotonic()
        push = ("dataset", "push", "t", str(self._tree))
        pushing = self._begin(*push)
        if victim:
            time.sleep(self._chance.uniform(0.3, self._took_s))
            self._strike(victim, pushing)
        pushing.wait(timeout=300)
        if pushing.returncode:
            done = self._retried(push)
            assert done.returncode == 0, done.stderr
        elif not victim:
            self._took_s = time.monotonic() - began
        (newest, *_) = self.platform.json("dataset", "versions", "t")["items"]
        self._versions[newest["version"]] = digest_of(self._tree)

    def _run(self, victim: str | None) -> None:
        """A session sees all of its dataset and its checkpoint is durable, or it is run again."""
        nsml, digest = self.platform.nsml, digest_of(self._tree)
        options = ("-d", "t", "-g", "0", "--output-dataset", "made", "-o", "name")
        run = nsml("run", *options, cwd=self._program, timeout_s=180)
        session = run.stdout.strip()
        if victim:
            time.sleep(self._chance.uniform(0.0, 2.5))
            self._kill[victim]()

        def ended() -> str:
            found = nsml("ps", "-a", "-o", "csv", "--fields", "name,state", check=False).stdout
            states = dict(line.split(",")[:2] for line in found.splitlines() if "," in line)
            state = states.get(session, "")
            return state if state in {"SUCCEEDED", "FAILED", "STOPPED", "HELD"} else ""

        state = wait_for(ended, timeout_s=300, what=f"{session} ends")
        said = nsml("logs", session, timeout_s=120).stdout
        assert (state, f"digest {digest}" in said) == ("SUCCEEDED", True), said
        self._sessions[session] = digest
        self._made.append(digest)

    def _evicted(self) -> int:
        """Return the number of dataset trees evicted by the agent."""
        log = (self.platform.folder / "data" / "agent.log").read_text(errors="replace")
        return sum("disk.relieved" in line and '"dataset"' in line for line in log.splitlines())

    def _remove(self, victim: str) -> None:
        """Remove the newest session or version: it is gone after the removal or its retry."""
        if self._chance.random() < 0.5:
            session, _ = self._sessions.popitem()
            removal: tuple[str, ...] = ("rm", "-y", session)
        else:
            version, _ = self._versions.popitem()
            removal = ("dataset", "rm", "-y", f"t@{version}")
        removing = self._begin(*removal)
        time.sleep(self._chance.uniform(0.2, 0.8))
        self._strike(victim, removing)
        removing.wait(timeout=300)
        if removing.returncode:
            # NotFound if the first one succeeded; `check` verifies that it is gone.
            self._retried(removal)

    def _retried(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Retry a command until the platform has recovered: for some seconds it may still answer "try again in 2 s"."""

        def retried() -> subprocess.CompletedProcess[str] | None:
            done = self.platform.nsml(*arguments, check=False, timeout_s=300)
            return done if done.returncode != ExitCode.UNAVAILABLE else None

        return wait_for(retried, what=f"the platform recovers for nsml {' '.join(arguments)}")

    def _trees(self) -> set[str]:
        """Return the names in the agent's dataset folder, also those being removed."""
        folder = self.platform.folder / "data/agent/datasets"
        return {path.name for path in folder.iterdir()}

    def _kill_as_it_evicts(self) -> None:
        """Kill the agent while it evicts the newest tree, or at any moment if that is gone already."""
        here = {name for name in self._trees() if is_digest(name)}
        ends_at = time.monotonic() + 60
        while here <= self._trees() and here:
            assert time.monotonic() < ends_at, "nothing is evicted"
            time.sleep(0.001)
        time.sleep(self._chance.uniform(0.0, 0.02))
        self.platform.kill("agent")
        is_cut = any(name.endswith(".partial") for name in self._trees())
        self.killed["evict agent, in the middle"] += is_cut
        self.platform.up()


def chance_of() -> random.Random:
    seed = int(os.environ.get("NSML_SEED", time.time_ns() % 1_000_000))
    print(f"NSML_SEED={seed}")
    return random.Random(seed)


@pytest.mark.long("it kills a platform over and over")
@pytest.mark.timeout(60 + 60 * KILLS)
@pytest.mark.variant
def test_nothing_is_lost_or_corrupt_whoever_is_killed(tmp_path: Path) -> None:
    with Platform(simulate_gpus=2, environment=EVICTING) as platform:
        campaign = Campaign(platform, tmp_path, chance_of(), {})
        campaign.run(KILLS)
        campaign.check()


@pytest.mark.long("it kills a platform and its servers over and over")
@pytest.mark.timeout(180 + 60 * KILLS)
def test_nor_when_its_database_or_its_bucket_is(
    tmp_path: Path, postgres_server: PostgresServer, s3: S3Server
) -> None:
    chance, bucket = chance_of(), s3.bucket()
    with (
        postgres_server.database() as url,
        proxied(s3.endpoint.removeprefix("http://")) as proxy,
        proxied(f"127.0.0.1:{postgres_server.port}") as before_database,
        Platform(
            simulate_gpus=2,
            options=[
                "--history",
                by_file(postgres_server.url_through(before_database.address, url), tmp_path),
            ],
            environment={
                **EVICTING,
                **KEYS,
                "NSML_CONTROLPLANE_OBJECTS": f"s3://{bucket}/p",
                "NSML_CONTROLPLANE_S3_ENDPOINT": f"http://{proxy.address}",
                "NSML_CONTROLPLANE_DIRECT_READS": "true",
            },
        ) as platform,
    ):

        def away_s() -> float:
            """Return a duration: mostly short, sometimes longer than the timeout of calls."""
            return LONGEST_OUTAGE_S * chance.random() ** 4

        def kill_database() -> None:
            postgres_server.kill()
            time.sleep(away_s())
            postgres_server.start()

        def cut_bucket() -> None:
            if chance.random() < 0.5:
                proxy.cut(after_bytes=chance.randrange(1 << 20))
                time.sleep(max(1.0, away_s()))
            else:
                proxy.refuse()
                time.sleep(away_s())
            proxy.heal()

        def lose_commits() -> None:
            """Drop the answers of commits, which are done."""
            before_database.lose_answers(b"COMMIT", chance.choice([1, 2, 5, 20]))
            time.sleep(max(1.0, away_s()))
            before_database.heal()

        def kill_all() -> None:
            platform.kill("agent")
            platform.kill("controlplane")
            kill_database()
            platform.up()

        servers = {
            "database": kill_database,
            "bucket": cut_bucket,
            "commit": lose_commits,
            "all": kill_all,
        }
        campaign = Campaign(platform, tmp_path, chance, servers)
        campaign.run(KILLS)
        name = urlsplit(url).path.removeprefix("/")

        def asked(query: str) -> int:
            [(value,)] = postgres_server.execute(query, name)
            return int(value)

        def collect() -> None:
            """Collect until nothing is left to collect, on an advanced clock."""
            term = asked("SELECT value FROM properties WHERE name = 'term'")
            Servers(
                history=url,
                objects=f"s3://{bucket}/p",
                endpoint=s3.endpoint,
                keys=dict(KEYS),
                term=term,
            ).write(tmp_path)
            program = [sys.executable, "-m", "tests.integration.collecting_program"]
            subprocess.run([*program, str(tmp_path), "0", "0"], cwd=ROOT, timeout=600, check=True)

        count = "SELECT count(*) FROM sessions"
        wait_for(
            lambda: asked(count) == campaign.session_count, what="the database has all sessions"
        )
        with stopped(platform):
            collect()
        campaign.check()
        campaign.remove_all()
        with stopped(platform):
            collect()
            assert set(s3.keys(bucket)) <= {"p/mark", "p/clock"}, "nothing takes room"


@contextmanager
def stopped(platform: Platform) -> Iterator[None]:
    """Stop the platform, and start it again after the block."""
    platform.nsml("down", "-y", timeout_s=120)
    yield
    platform.up()
