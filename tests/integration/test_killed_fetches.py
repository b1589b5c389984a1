"""The cache of a node whose agent is killed again and again while it fetches, and whose disk changes bytes meanwhile.

Whatever has its name is whole, what is right on the disk is not fetched again, and nothing is left in the end. NSML_SEED repeats one seed.
"""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from nsml.content.digests import digest_of, is_digest
from nsml.content.manifest import ChunkRef, Entry, Manifest, build
from nsml.v1 import content_pb2
from tests.support.scripted_platform import ScriptedPlatform

SOAKING = pytest.mark.slow
KIB = 1 << 10


@dataclass
class Version:
    """A tree, and the bytes of its files."""

    manifest: Manifest
    files: dict[str, bytes]

    @property
    def chunks(self) -> list[tuple[str, int, ChunkRef]]:
        """Path and offset of each."""
        found = []
        for entry in self.manifest.entries:
            offset = 0
            for ref in entry.chunks:
                found.append((entry.path, offset, ref))
                offset += ref.size
        return found


@dataclass
class Killing(ScriptedPlatform):
    """Kills whoever asks, at the moment when so many chunks were sent."""

    victim: asyncio.subprocess.Process | None = None
    sends: int = 0
    sent: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(patience_s=60)

    async def GetBlobs(
        self, request: content_pb2.GetBlobsRequest, context: Any
    ) -> AsyncIterator[content_pb2.GetBlobsResponse]:
        async for answer in super().GetBlobs(request, context):
            self.sends -= 1
            if self.sends == 0 and self.victim is not None:
                self.victim.kill()
            self.sent.extend(blob.digest for blob in answer.blobs)
            yield answer


def made(rng: random.Random, before: Version | None = None) -> Version:
    """Some small files, some of several chunks, some empty; most of them those of the version before."""
    files: dict[str, list[bytes]] = {}
    for number in range(600):
        size = rng.choice([0, 1, rng.randrange(4 * KIB)])
        files[f"{number % 7}/{number}"] = [rng.randbytes(size)] if size else []
    for number in range(4):
        pieces = [rng.randbytes(rng.randrange(1, 32 * KIB)) for _ in range(rng.randrange(2, 12))]
        files[f"large/{number}"] = pieces * rng.choice([1, 1, 2])
    whole = {path: b"".join(chunks) for path, chunks in files.items()}
    refs = {
        path: tuple(ChunkRef(digest_of(one), len(one)) for one in chunks)
        for path, chunks in files.items()
    }
    for entry in before.manifest.entries if before is not None else ():
        if rng.random() < 0.8 and before is not None:
            whole[entry.path], refs[entry.path] = before.files[entry.path], entry.chunks
    entries = [
        Entry(path=path, mode=rng.choice([0o644, 0o755]), size=len(whole[path]), chunks=refs[path])
        for path in whole
    ]
    return Version(build(entries), whole)


def check_named(place: Path, versions: dict[str, Version]) -> set[str]:
    """Whatever has its name is what that says; the names."""
    names = {path.name for path in place.iterdir() if is_digest(path.name)}
    for name in names:
        version = versions[name]
        found = {str(p.relative_to(place / name)): p for p in (place / name).rglob("*")}
        files = {path: p for path, p in found.items() if p.is_file()}
        assert files.keys() == version.files.keys()
        for entry in version.manifest.entries:
            assert files[entry.path].read_bytes() == version.files[entry.path], entry.path
            assert files[entry.path].stat().st_mode & 0o777 == entry.mode & 0o555, entry.path
        assert all(p.stat().st_mode & 0o777 == 0o555 for p in found.values() if p.is_dir())
    return names


def right_chunks(place: Path, versions: dict[str, Version]) -> set[str]:
    """Chunks of which all places in unfinished trees are right."""
    right: dict[str, bool] = {}
    for digest, version in versions.items():
        attempts = list(place.glob(f".{digest}.*.unfinished"))
        for path, offset, ref in version.chunks if attempts else ():
            data = b""
            for attempt in attempts:
                with suppress(FileNotFoundError):
                    data = (attempt / path).read_bytes()
            is_right = digest_of(data[offset : offset + ref.size]) == ref.digest
            right[ref.digest] = right.get(ref.digest, True) and is_right
    return {digest for digest, is_right in right.items() if is_right}


def damage(rng: random.Random, place: Path) -> None:
    """Change, cut or remove some of what is unfinished: not what has its name, which nobody reads again."""
    files = [p for p in place.glob(".*.unfinished/**/*") if p.is_file() and p.stat().st_nlink == 1]
    for path in rng.sample(files, min(len(files), 5)):
        path.parent.chmod(0o700)
        path.chmod(0o600)
        data = path.read_bytes()
        match rng.randrange(3):
            case 0 if data:
                at = rng.randrange(len(data))
                path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            case 1:
                path.write_bytes(data[: len(data) // 2])
            case _:
                path.unlink()


def left_in(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()}


async def run(seed: int, place: Path, *, kills: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    platform = Killing()
    server = grpc.aio.server()
    platform.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    one = made(rng)
    other = made(rng, one)
    versions = {version.manifest.digest: version for version in (one, other)}
    for version in versions.values():
        platform.blobs[version.manifest.digest] = version.manifest.encode()
        for path, offset, ref in version.chunks:
            platform.blobs[ref.digest] = version.files[path][offset : offset + ref.size]
    # Of the second most is linked from the first.
    for wanted, most in (([one], 400), ([one, other], 60)):
        digests = [version.manifest.digest for version in wanted]
        for kill in range(kills + 1):
            is_last = kill == kills
            platform.sends = 0 if is_last else rng.randrange(1, most)
            platform.sent.clear()
            there = right_chunks(place, versions)
            command = ("-m", "tests.integration.fetching_program", str(port), str(place), *digests)
            platform.victim = await asyncio.create_subprocess_exec(sys.executable, *command)
            code = await platform.victim.wait()
            print(f"ended with {code}: {len(there)} chunks were there, {len(platform.sent)} came")
            assert code in ((0,) if is_last else (0, -9))
            assert not there & set(platform.sent)
            names = check_named(place, versions)
            if code == 0:
                assert set(digests) <= names
                break
            if rng.random() < 0.7:
                damage(rng, place)
    assert left_in(place) == {
        f"{name}{suffix}" for name in versions for suffix in ("", ".manifest", ".bytes")
    }
    await server.stop(None)


SEEDS = [int(os.environ["NSML_SEED"])] if "NSML_SEED" in os.environ else [1]


@pytest.mark.parametrize(
    "seed", [*SEEDS, *(pytest.param(n, marks=pytest.mark.variant) for n in (2, 3))]
)
async def test_an_agent_is_killed_while_it_fetches(seed: int, tmp_path: Path) -> None:
    await run(seed, tmp_path, kills=2)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=SOAKING) for seed in range(100, 140)])
async def test_the_same_for_long(seed: int, tmp_path: Path) -> None:
    await run(seed, tmp_path, kills=6)
