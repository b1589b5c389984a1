"""What programs put into the folder of their media, against the agent that sends it."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from nodeagent.folders import ReplicaFolder, ReplicaFolders, ReplicaId
from nodeagent.storage import media as module
from nodeagent.storage.media import MediaUploads, file_in
from nsml.client.rpc import Rpc
from nsml.common.clock import in_thread
from nsml.content.manifest import decode
from nsml.content.safe_paths import ByDescriptor
from nsml.v1 import media_pb2 as pb
from nsml.v1 import media_pb2_grpc
from tests.support.scripted_platform import ScriptedPlatform, session_id
from tests.unit.nodeagent.collect.test_ingest import HandClock
from tests.unit.nodeagent.collect.test_pace import Time as SleptClock

REPLICA = ReplicaId(session_id=session_id(1), attempt=1, rank=2)


class Shown(media_pb2_grpc.MediaServiceServicer):
    """Takes what nodes say; `refusals` are answered first."""

    def __init__(self) -> None:
        self.commits: list[pb.CommitMediaRequest] = []
        self.refusals: list[grpc.StatusCode] = []

    async def CommitMedia(
        self, request: pb.CommitMediaRequest, context: Any
    ) -> pb.CommitMediaResponse:
        if self.refusals:
            await context.abort(self.refusals.pop(0), "not now")
        self.commits.append(request)
        return pb.CommitMediaResponse()


class Bench:
    def __init__(self, data: Path, rpc: Rpc, platform: ScriptedPlatform, shown: Shown) -> None:
        self.platform, self.shown = platform, shown
        self.folder: ReplicaFolder = ReplicaFolders(data / "replicas").of(REPLICA)
        self.folder.path.parent.mkdir(parents=True)
        self.folder.create()
        self.media = self.folder.run / "media"
        self._rpc = rpc
        self.uploads = self.successor()

    def successor(self) -> MediaUploads:
        return MediaUploads(
            REPLICA, self.folder, rpc=lambda: self._rpc, run=in_thread, pause=_pause
        )

    def put(self, data: bytes, *, name: str = "") -> str:
        self.media.mkdir(exist_ok=True)
        count = len(list(self.media.iterdir()))
        name = name or f"{hashlib.sha256(data).hexdigest()}-{count}"
        (self.media / name).write_bytes(data)
        return name

    async def send(self) -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            working = group.create_task(self.uploads.work())
            await self.uploads.finished()
            working.cancel()

    def sent(self) -> dict[str, bytes]:
        found = {}
        for commit in self.shown.commits:
            names = {one.file for one in commit.files if not one.why_lost}
            entries = decode(self.platform.blobs[commit.root]).entries if names else ()
            for entry in entries:
                assert entry.path in names
                found[entry.path] = b"".join(self.platform.blobs[c.digest] for c in entry.chunks)
        return found

    def lost(self) -> dict[str, str]:
        files = [one for commit in self.shown.commits for one in commit.files]
        return {one.file: one.why_lost for one in files if one.why_lost}

    def left(self) -> list[str]:
        return sorted(path.name for path in self.media.iterdir())


async def _pause() -> None:
    await asyncio.sleep(0.01)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    platform, shown = ScriptedPlatform(patience_s=30), Shown()
    server = grpc.aio.server()
    platform.add_to(server)
    media_pb2_grpc.add_MediaServiceServicer_to_server(shown, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Bench(tmp_path, Rpc(channel), platform, shown)
    await server.stop(None)


async def test_files_are_sent_together_and_removed(bench: Bench) -> None:
    files = {bench.put(data): data for data in (b"one", b"", b"x" * (3 << 20))}
    for name in files:
        bench.uploads.add(name)
    await bench.send()
    assert bench.sent() == files
    assert (bench.lost(), bench.left()) == ({}, [])
    [commit] = bench.shown.commits
    assert (commit.session_id, commit.attempt, commit.rank) == (REPLICA.session_id, 1, 2)


async def test_nothing_was_shown(bench: Bench) -> None:
    await bench.send()
    assert bench.shown.commits == []


async def test_what_an_agent_left_the_next_one_sends(bench: Bench) -> None:
    files = {bench.put(data): data for data in (b"one", b"two")}
    bench.uploads.add(next(iter(files)))
    bench.uploads = bench.successor()
    await bench.send()
    assert bench.sent() == files
    # Records that are read again after that are of files that were sent.
    for name in files:
        bench.uploads.add(name)
    await bench.send()
    assert bench.lost() == {}


async def test_a_platform_that_is_away_is_waited_for(bench: Bench) -> None:
    bench.shown.refusals = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE]
    name = bench.put(b"one")
    await bench.send()
    assert bench.sent() == {name: b"one"}


async def test_a_session_that_was_removed_costs_nothing_more(bench: Bench) -> None:
    bench.shown.refusals = [grpc.StatusCode.NOT_FOUND]
    bench.put(b"one")
    await bench.send()
    assert (bench.shown.commits, bench.left()) == ([], [])


@pytest.mark.parametrize("what", ["open_folder", "_checked", "_packed", "put_tree"])
async def test_what_the_node_is_short_of_costs_no_file(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    whole, refusals = getattr(module, what), [errno.EMFILE, errno.ENOSPC]

    def short(*args: Any, **kwargs: Any) -> Any:
        if refusals:
            number = refusals.pop()
            raise OSError(number, os.strerror(number))
        return whole(*args, **kwargs)

    monkeypatch.setattr(module, what, short)
    name = bench.put(b"one")
    bench.uploads.add(name)
    await bench.send()
    assert (bench.sent(), bench.lost(), refusals) == ({name: b"one"}, {}, [])


async def test_a_chunk_that_cannot_be_read_again_yet_is_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, refusals = ByDescriptor.open_file, [errno.EMFILE]

    def short(self: ByDescriptor, parts: Any) -> int:
        if refusals:
            raise OSError(refusals.pop(), "too many open files")
        return whole(self, parts)

    monkeypatch.setattr(ByDescriptor, "open_file", short)
    name = bench.put(b"one")
    await bench.send()
    assert (bench.sent(), bench.lost(), refusals) == ({name: b"one"}, {}, [])


async def test_more_than_one_call_takes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FILES_AT_ONCE", 3)
    monkeypatch.setattr(module, "_BYTES_AT_ONCE", 100)
    files = {bench.put(data): data for data in [b"%d" % n * 60 for n in range(8)]}
    await bench.send()
    assert bench.sent() == files
    assert len(bench.shown.commits) >= 4


async def test_what_a_program_lies_about_is_lost_and_said(bench: Bench) -> None:
    secret = bench.folder.path / "secret"
    secret.write_text("secret")
    good = bench.put(b"good")
    names = [f"{'a' * 63}{n}-1" for n in range(6)]
    bench.put(b"others", name=names[0])
    (bench.media / names[1]).symlink_to(secret)
    os.mkfifo(bench.media / names[2])
    (bench.media / names[3]).mkdir()
    (bench.media / names[3] / "deep").mkdir()
    with (bench.media / names[4]).open("wb") as huge:
        huge.truncate((64 << 20) + 1)
    bench.put(b"draft", name=".tmp-1")
    for name in [good, *names]:
        bench.uploads.add(name)
    await bench.send()
    assert bench.sent() == {good: b"good"}
    lost = bench.lost()
    assert set(lost) == set(names)
    assert "not those that were shown" in lost[names[0]]
    assert "not a regular file" in lost[names[2]]
    assert "more than" in lost[names[4]]
    assert lost[names[5]] == "the file is missing"
    assert bench.left() == [".tmp-1", names[3]]
    assert secret.read_text() == "secret"
    # What cannot be removed is not told of again.
    count = len(bench.shown.commits)
    await bench.send()
    assert len(bench.shown.commits) == count


async def test_files_that_cost_their_program_nothing_are_not_read(bench: Bench) -> None:
    """One of holes, and one under many names: the agent would read 64 MiB for each."""
    size = 4 << 20
    hollow = bench.put(b"", name=f"{hashlib.sha256(bytes(size)).hexdigest()}-h")
    os.truncate(bench.media / hollow, size)
    one = bench.put(b"one")
    another = f"{one}-b"
    (bench.media / another).hardlink_to(bench.media / one)
    whole = bench.put(bytes(size))
    await bench.send()
    assert bench.sent() == {whole: bytes(size)}
    assert bench.lost() == {
        hollow: "it consists almost only of holes",
        **dict.fromkeys((one, another), "it has more than one name"),
    }


@pytest.mark.parametrize("kind", ["link", "file"])
async def test_a_folder_that_is_none_leads_nowhere(bench: Bench, kind: str) -> None:
    elsewhere = bench.folder.path / "elsewhere"
    elsewhere.mkdir()
    name = f"{hashlib.sha256(b'x').hexdigest()}-1"
    (elsewhere / name).write_bytes(b"x")
    if kind == "link":
        bench.media.symlink_to(elsewhere)
    else:
        bench.media.write_text("no folder")
    bench.uploads.add(name)
    await bench.send()
    assert bench.sent() == {}
    assert set(bench.lost()) == {name}
    assert (elsewhere / name).exists()


@pytest.mark.parametrize("file", [None, 3, "", "x", "../x", "a" * 64, "A" * 64 + "-1", ["x"]])
def test_records_that_name_no_file(file: Any) -> None:
    assert file_in({"kind": "media", "file": file}) is None


async def test_files_are_sent_at_a_pace_and_all_of_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is read, sent and told, by an agent that all sessions of the node need."""
    monkeypatch.setattr(module, "_FILES_PER_S", 10.0)
    monkeypatch.setattr(module, "_BURST_S", 10.0)
    clock = SleptClock()
    bench.uploads = MediaUploads(
        REPLICA, bench.folder, rpc=lambda: bench._rpc, run=in_thread, pause=_pause, clock=clock
    )
    put = {bench.put(f"{number}".encode()) for number in range(600)}
    with capture_logs() as said:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            working = group.create_task(bench.uploads.work())
            bench.uploads.look()
            await bench.uploads._idle.wait()
            working.cancel()
    assert set(bench.sent()) == put
    assert 49 < clock.slept < 51
    assert len([one for one in said if one["event"] == "media.durable"]) == 2


@pytest.mark.parametrize("is_false", [True, False])
async def test_after_the_end_no_file_waits_for_its_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_false: bool
) -> None:
    """Neither files nor false reports, also where one waits already."""
    monkeypatch.setattr(module, "_FILES_PER_S", 1.0)
    monkeypatch.setattr(module, "_BURST_S", 1.0)
    clock = HandClock()
    bench.uploads = MediaUploads(
        REPLICA, bench.folder, rpc=lambda: bench._rpc, run=in_thread, pause=_pause, clock=clock
    )
    if is_false:
        names = {f"{number:064x}-1" for number in range(1_000)}
        for name in names:
            bench.uploads.add(name)
    else:
        names = {bench.put(f"{number}".encode()) for number in range(600)}
        bench.uploads.look()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        working = group.create_task(bench.uploads.work())
        await clock.waited.wait()
        await bench.uploads.finished()
        working.cancel()
    assert set(bench.lost() if is_false else bench.sent()) == names
    assert clock.slept == 0
