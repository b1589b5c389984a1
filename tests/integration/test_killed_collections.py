"""Kills of an object store's control plane, database and bucket while versions come and go, loose blobs of earlier versions
move into packs, garbage is collected and packs are copied together.

Acknowledged and visible content is whole, and in the end unreferenced content takes no room.
NSML_SEED repeats one seed; NSML_STORAGE_KILLS: number of kills.
"""

import asyncio
import os
import random
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from controlplane.objects.loose import ASIDE, NAMED
from controlplane.objects.maintenance import MANY_SMALL, SMALL_BYTES
from controlplane.objects.pack import key_of
from nsml.content.framing import frame
from tests.integration import collecting_program as program
from tests.integration.collecting_program import OWNER, Servers, open_world, tree
from tests.support.living_folders import files_below
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxy
from tests.support.s3 import KEYS, S3Server

SEEDS = [int(os.environ["NSML_SEED"])] if "NSML_SEED" in os.environ else [1]
KILLS = int(os.environ.get("NSML_STORAGE_KILLS", "6"))
FEW_KILLS = int(os.environ.get("NSML_STORAGE_KILLS", "2"))
"""Those of the run that is no variant."""
MOST_MOMENTS = 600
OLD = [-1, -2, -3]
NAMES = [f"d{number}" for number in range(program.NAMES)] + [f"old{seed}" for seed in OLD]


MAINTAINED = ("moved_in", "adopted", "copied", "removed")
NEVER = 1 << 60
"""More moments than any run has."""
KILLED_PER_RUN = 5
"""Servers killed in one run of the program."""
MOST_MOMENTS_BETWEEN = 60
LONGEST_OUTAGE_S = 4.0
TIMEOUT_S = 120.0


class Run:
    """A run of the program; `said`: its messages, each a word and names."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[list[str]] = []
        self._moments = asyncio.Semaphore(0)
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            words = line.decode().split()
            # All other lines are its log, with counts of maintenance as NAME=COUNT.
            facts = dict(word.split("=", 1) for word in words if "=" in word)
            self.said += [[one] for one in MAINTAINED if facts.get(one, "0") != "0"]
            if words and words[0] in {"made", "removing", "collected", "refused"}:
                self.said.append(words)
            elif words == ["moment"]:
                self._moments.release()

    async def wait_for(self, *words: str) -> None:
        """Wait for new messages with all of these words."""
        start = len(self.said)
        async with asyncio.timeout(TIMEOUT_S):
            while not set(words) <= {said[0] for said in self.said[start:]}:
                assert not self._reading.done(), f"it ended without {words}"
                await asyncio.sleep(0.02)

    async def wait_at_moment(self) -> None:
        """Wait until it stops at a moment."""
        async with asyncio.timeout(TIMEOUT_S):
            await self._moments.acquire()

    def resume(self, moments: int) -> None:
        """Let it continue from there, until it stops again after this number of moments."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{moments}\n".encode())

    async def end(self) -> int:
        """Wait for its end; return the exit code."""
        await self._reading
        return await self.process.wait()


@asynccontextmanager
async def running(folder: Path, seed: int, moment: int, *options: str) -> AsyncIterator[Run]:
    """Start a run; it is killed at the end of the block if it has not ended."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.collecting_program"),
        *(str(folder), str(seed), str(moment), *options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    run = Run(process)
    try:
        yield run
    finally:
        if process.returncode is None:
            process.kill()
        await run.end()


class Place:
    """The object store as plain files by key, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "objects"

    def put(self, key: str, data: bytes) -> None:
        """Write a file, bypassing the object store."""
        path = self._folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def keys(self) -> set[str]:
        """Return all keys."""
        return {str(path.relative_to(self._folder)) for path in files_below(self._folder)}


class BucketPlace:
    """The object store as plain files by key, in a bucket."""

    def __init__(self, server: S3Server, bucket: str) -> None:
        self._server, self._bucket = server, bucket

    def put(self, key: str, data: bytes) -> None:
        """See Place."""
        self._server.client().put_object(Bucket=self._bucket, Key=f"p/{key}", Body=data)

    def keys(self) -> set[str]:
        """See Place."""
        return {key.removeprefix("p/") for key in self._server.keys(self._bucket)}


async def begin(folder: Path, place: Place | BucketPlace) -> None:
    """Create loose blobs as an earlier version did: trees of three datasets, and two unreferenced ones, one of them put aside."""
    for seed, under in [*((one, NAMED) for one in [*OLD, -4]), (-5, ASIDE)]:
        for digest, data in tree(seed)[1].items():
            place.put(f"{under}/{digest[:2]}/{digest[2:]}", frame(data))
    world = await open_world(folder)
    for seed in OLD:
        await world.note(f"old{seed}", seed)
    await world.history.close()


async def visible(folder: Path) -> dict[str, set[str]]:
    """Return the trees of all versions, by dataset, after reading and checking each."""
    world = await open_world(folder)
    found = {}
    for name in NAMES:
        versions = await world.history.catalogue.dataset_versions(OWNER, name)
        found[name] = {one.version.message for one in versions}
    for one in set().union(*found.values()):
        root, blobs = tree(int(one))
        digests = list(blobs)
        while digests:
            read = await world.objects.get_first(digests, 16 << 20)
            for digest, data in zip(digests, read, strict=False):
                assert blobs[digest] == data, f"{digest} of {root}"
            del digests[: len(read)]
    await world.history.close()
    return found


async def check_room(folder: Path, place: Place | BucketPlace, left: set[str]) -> None:
    """Check that all stored content belongs to one of the trees."""
    world = await open_world(folder)
    wanted = {digest for one in left for digest in tree(int(one))[1]}
    assert {blob.digest async for blob in world.objects.list()} == wanted
    assert [blob async for blob in world.objects.list_aside()] == []
    packs = {key_of(pack.name): pack for pack in await world.history.packs.packs()}
    assert place.keys() - {"mark", "clock"} == packs.keys(), (
        "nothing unfinished is left, and no blob of its own"
    )
    assert sum(pack.stored < SMALL_BYTES for pack in packs.values()) < MANY_SMALL
    large = [pack for pack in packs.values() if pack.stored >= SMALL_BYTES]
    assert all(pack.used >= pack.stored // 2 for pack in large)
    await world.history.close()


class Kept:
    """The trees that must exist, by dataset, and counts of the program's messages."""

    def __init__(self) -> None:
        self.needed: dict[str, set[str]] = defaultdict(
            set, {f"old{one}": {str(one)} for one in OLD}
        )
        self.done: Counter[str] = Counter()

    def note(self, said: list[list[str]]) -> None:
        """Add the messages of a run."""
        for word, *names in said:
            self.done[word] += 1
            if word == "made":
                self.needed[names[0]].add(names[1])
            elif word == "removing":
                self.needed[names[0]].clear()

    async def check(self, folder: Path) -> set[str]:
        """Check that all of them are visible, and all visible trees whole; return the visible ones."""
        found = await visible(folder)
        for name, wanted in self.needed.items():
            assert wanted <= found[name], name
        return set().union(*found.values())

    async def end(self, folder: Path, place: Place | BucketPlace) -> None:
        """Collect until nothing is left to collect; check the rest, and that the killed runs did work."""
        async with running(folder, 0, 0) as run:
            assert await run.end() == 0
        await check_room(folder, place, await self.check(folder))
        assert self.done["made"], "it did what it was killed in"
        assert self.done["collected"]


@pytest.mark.parametrize(
    ("seed", "kills"),
    [
        *((seed, FEW_KILLS) for seed in SEEDS),
        *(pytest.param(seed, KILLS, marks=pytest.mark.variant) for seed in (2, 3, 4)),
    ],
)
@pytest.mark.timeout(120 + 60 * KILLS)
async def test_no_version_is_lost_and_no_room(seed: int, kills: int, tmp_path: Path) -> None:
    chance, kept, place = random.Random(seed), Kept(), Place(tmp_path)
    await begin(tmp_path, place)
    for number in range(kills):
        moment = chance.randrange(1, MOST_MOMENTS)
        async with running(tmp_path, chance.randrange(1 << 30), moment) as run:
            assert await run.end() == -signal.SIGKILL
        kept.note(run.said)
        print(number, moment, dict(kept.done), flush=True)
        await kept.check(tmp_path)
    await kept.end(tmp_path, place)


@pytest.mark.long("it kills servers over and over, and collects what is left")
@pytest.mark.timeout(120 + 60 * KILLS)
@pytest.mark.parametrize("seed", SEEDS)
async def test_neither_is_lost_when_the_database_and_the_bucket_die(
    seed: int, tmp_path: Path, postgres_server: PostgresServer, postgres_database: str, s3: S3Server
) -> None:
    chance, kept, bucket = random.Random(seed), Kept(), s3.bucket()
    place = BucketPlace(s3, bucket)
    killed: Counter[str] = Counter()
    async with (
        Proxy(s3.endpoint.removeprefix("http://")) as proxy,
        Proxy(f"127.0.0.1:{postgres_server.port}") as before_database,
    ):
        Servers(
            history=postgres_server.url_through(before_database.address, postgres_database),
            objects=f"s3://{bucket}/p",
            endpoint=f"http://{proxy.address}",
            keys=dict(KEYS),
        ).write(tmp_path)

        async def kill_database(resume: Callable[[], None]) -> None:
            """Kill it while the program stands at the moment, or while it continues."""
            killing = asyncio.create_task(asyncio.to_thread(postgres_server.kill))
            if chance.random() < 0.5:
                await killing
            resume()
            await killing
            await asyncio.sleep(LONGEST_OUTAGE_S * chance.random() ** 3)
            await asyncio.to_thread(postgres_server.start)

        async def cut_bucket(resume: Callable[[], None]) -> None:
            """Refuse connections for a while; or cut them once, in the middle of a message."""
            if chance.random() < 0.5:
                proxy.cut(after_bytes=chance.randrange(1 << chance.randrange(21)))
                resume()
                return
            proxy.refuse()
            resume()
            await asyncio.sleep(LONGEST_OUTAGE_S * chance.random() ** 3)
            proxy.heal()

        async def lose_commits(resume: Callable[[], None]) -> None:
            """Drop the answers: the commits are done, but the client cannot know."""
            before_database.lose_answers(b"COMMIT", chance.choice([1, 1, 1, 2, 5]))
            resume()

        servers = {"database": kill_database, "bucket": cut_bucket, "commit": lose_commits}
        await begin(tmp_path, place)
        while sum(killed.values()) < KILLS:
            moment = chance.randrange(1, MOST_MOMENTS // 4)
            async with running(tmp_path, chance.randrange(1 << 30), moment) as run:
                assert await run.end() == -signal.SIGKILL
            killed["program"] += 1
            kept.note(run.said)
            moment = chance.randrange(1, MOST_MOMENTS_BETWEEN)
            async with running(tmp_path, chance.randrange(1 << 30), moment, "--ask") as run:
                for victim in chance.choices(sorted(servers), k=KILLED_PER_RUN):
                    await run.wait_at_moment()
                    await servers[victim](
                        partial(run.resume, chance.randrange(1, MOST_MOMENTS_BETWEEN))
                    )
                    killed[victim] += 1
                await run.wait_at_moment()
                before_database.heal()
                run.resume(NEVER)
                await run.wait_for("made", "collected")
            kept.note(run.said)
            print(dict(killed), dict(kept.done), flush=True)
            await kept.check(tmp_path)
        await kept.end(tmp_path, place)
