"""Writes of programs are told as they happen, whatever they do with their folders."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from inotify_simple import Event, flags

from nodeagent.collect.file_watcher import Writes, WrittenFolder
from nodeagent.collect.spool import ReplicaSpool, SpoolFollower, SpoolLimits
from nodeagent.folders import ReplicaFolder, ReplicaId
from nsml.common.clock import inline

REPLICA = ReplicaId(session_id="s" + "a" * 16, attempt=1, rank=0)


@pytest.fixture
async def writes() -> AsyncIterator[Writes]:
    writes = Writes(pace_s=0.001)
    yield writes
    writes.close()


def made(path: Path) -> ReplicaFolder:
    folder = ReplicaFolder(path)
    folder.create()
    folder.output.touch()
    return folder


async def stirred(written: WrittenFolder) -> None:
    """Waits until it is; and forgets it."""
    async with asyncio.timeout(60):
        await written.stirred.wait()
    written.stirred.clear()


def _prints(folder: ReplicaFolder) -> None:
    with folder.output.open("ab") as output:
        output.write(b"line\n")


def _reports(folder: ReplicaFolder) -> None:
    with (folder.spool / "1.records").open("ab") as records:
        records.write(b"record")


def _shortens(folder: ReplicaFolder) -> None:
    os.truncate(folder.output, 0)


@pytest.mark.parametrize("write", [_prints, _reports, _shortens])
async def test_what_is_written_is_told(
    writes: Writes, tmp_path: Path, write: Callable[[ReplicaFolder], None]
) -> None:
    one, other = made(tmp_path / "one"), made(tmp_path / "other")
    for folder in (one, other):
        folder.output.write_bytes(b"before")
        folder.spool.mkdir(parents=True, exist_ok=True)
    with writes.told(one) as written, writes.told(other) as quiet:
        assert written.is_watched()
        assert quiet.is_watched()
        for _ in range(3):
            write(one)
            await stirred(written)
        assert not quiet.stirred.is_set()


async def test_a_spool_that_comes_later_is_told_of(writes: Writes, tmp_path: Path) -> None:
    folder = made(tmp_path)
    shutil.rmtree(folder.spool, ignore_errors=True)
    with writes.told(folder) as written:
        assert written.is_watched()
        folder.spool.mkdir()
        await stirred(written)
        assert written.is_watched()
        _reports(folder)
        await stirred(written)


async def test_a_spool_that_is_replaced_is_told_of(writes: Writes, tmp_path: Path) -> None:
    folder = made(tmp_path)
    folder.spool.mkdir(parents=True, exist_ok=True)
    with writes.told(folder) as written:
        assert written.is_watched()
        for number in range(20):
            folder.spool.rename(folder.run / f"old{number}")
            folder.spool.mkdir()
            await stirred(written)
            assert written.is_watched()
            written.stirred.clear()
            _reports(folder)
            await stirred(written)
        # However often: each replica has three watches at most.
        assert len(writes._watched) <= 3
    assert not writes._watched


async def test_a_link_is_not_followed(writes: Writes, tmp_path: Path) -> None:
    folder = made(tmp_path / "replica")
    shutil.rmtree(folder.spool, ignore_errors=True)
    folder.spool.symlink_to(tmp_path)
    with writes.told(folder) as written:
        assert not written.is_watched()


async def test_one_that_is_gone_is_forgotten(writes: Writes, tmp_path: Path) -> None:
    folder, other = made(tmp_path / "gone"), made(tmp_path / "other")
    with writes.told(other) as still:
        with writes.told(folder) as written:
            assert written.is_watched()
            shutil.rmtree(tmp_path / "gone")
            await stirred(written)
            assert not written.is_watched()
        assert still.is_watched()
        _prints(other)
        await stirred(still)


async def test_what_the_kernel_left_out_lets_all_look(
    writes: Writes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path)
    with writes.told(folder) as written:
        assert written.is_watched()
        lost = [Event(-1, int(flags.Q_OVERFLOW), 0, "")]
        monkeypatch.setattr(writes._inotify, "read", lambda timeout: lost)
        _prints(folder)
        await stirred(written)


async def test_a_follower_reads_as_it_is_told(writes: Writes, tmp_path: Path) -> None:
    folder = made(tmp_path)
    text = b""
    with writes.told(folder) as written:
        spool = ReplicaSpool(REPLICA, folder, {})
        # It never looks by itself.
        follower = SpoolFollower(spool, inline, shortest_s=1e6, longest_s=1e6, written=written)
        following = aiter(follower)
        for _ in range(5):
            _prints(folder)
            async with asyncio.timeout(60):
                for item in await anext(following):
                    text += item.text  # type: ignore[union-attr]
    assert text == b"line\n" * 5


async def test_without_room_for_watches_it_is_not_told(
    writes: Writes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writes._inotify, "add_watch", full)
    with writes.told(made(tmp_path)) as written:
        assert not written.is_watched()


async def test_what_is_more_than_one_look_takes_is_not_left_lying(
    writes: Writes, tmp_path: Path
) -> None:
    folder = made(tmp_path)
    spool = ReplicaSpool(REPLICA, folder, {}, SpoolLimits(bytes=100))
    with writes.told(folder) as written:
        follower = SpoolFollower(spool, inline, shortest_s=1e6, longest_s=1e6, written=written)
        following = aiter(follower)
        folder.output.write_bytes(b"x" * 250)
        async with asyncio.timeout(60):
            assert [len((await anext(following))[0].text) for _ in range(3)] == [100, 100, 50]  # type: ignore[union-attr]
            # Nothing more is written, and yet the end is heard of.
            follower.end()
            assert [items async for items in following] == []
