"""Chunks on the disk: no more than they may take, and none that is not what its name says."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nodeagent.storage.eviction import NoRoom
from nodeagent.streaming.chunk_cache import ChunkCache
from nsml.content.digests import digest_of

DATA = [bytes([number]) * 1000 for number in range(10)]
NAMES = [digest_of(one) for one in DATA]


def made(folder: Path, most: int = 5000) -> ChunkCache:
    cache = ChunkCache(folder, kind="chunks", most_bytes=most)
    cache.create()
    return cache


def content(cache: ChunkCache, digest: str) -> bytes | None:
    file = cache.open(digest)
    if file is None:
        return None
    with file:
        file.seek(0)
        return file.read()


def files(folder: Path) -> set[str]:
    return {one.name for one in folder.glob("*/*")}


def test_the_least_recently_used_go_first_and_the_next_agent_finds_the_rest(tmp_path: Path) -> None:
    cache = made(tmp_path)
    for digest, data in zip(NAMES[:5], DATA, strict=False):
        cache.add(digest, data)
    assert content(cache, NAMES[0]) == DATA[0]
    cache.add(NAMES[5], DATA[5])
    assert content(cache, NAMES[1]) is None
    assert files(tmp_path) == set(NAMES[:6]) - {NAMES[1]}
    (tmp_path / NAMES[0][:2] / ".abc.partial").write_bytes(b"interrupted")
    later = made(tmp_path, most=4000)
    assert content(later, NAMES[0]) == DATA[0]
    later.add(NAMES[6], DATA[6])
    assert len(files(tmp_path)) == 4


def test_chunks_that_come_at_once_take_no_more_than_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = made(tmp_path)
    barrier, write = threading.Barrier(4), ChunkCache._write

    def together(self: ChunkCache, digest: str, data: bytes) -> None:
        barrier.wait()
        write(self, digest, data)

    monkeypatch.setattr(ChunkCache, "_write", together)
    with ThreadPoolExecutor(4) as pool:
        for start in (0, 4):
            list(pool.map(cache.add, NAMES[start : start + 4], DATA[start : start + 4]))
    assert 4 <= len(files(tmp_path)) <= 5


@pytest.mark.parametrize("damage", [b"", b"\1" * 999, b"\1" * 1001, b"\2" * 1000])
def test_what_was_changed_is_not_given_and_comes_anew(tmp_path: Path, damage: bytes) -> None:
    cache = made(tmp_path)
    cache.add(NAMES[1], DATA[1])
    (tmp_path / NAMES[1][:2] / NAMES[1]).write_bytes(damage)
    assert content(cache, NAMES[1]) is None
    assert files(tmp_path) == set()
    assert not cache.has(NAMES[1])
    cache.add(NAMES[1], DATA[1])
    assert content(cache, NAMES[1]) == DATA[1]


def test_a_chunk_that_is_read_stays_readable_when_it_goes(tmp_path: Path) -> None:
    cache = made(tmp_path, most=1000)
    cache.add(NAMES[0], DATA[0])
    file = cache.open(NAMES[0])
    assert file is not None
    with file:
        cache.add(NAMES[1], DATA[1])
        assert files(tmp_path) == {NAMES[1]}
        assert os.pread(file.fileno(), 2000, 0) == DATA[0]


def test_others_that_need_room_take_the_oldest_run_first(tmp_path: Path) -> None:
    cache = made(tmp_path, most=100_000)
    for digest, data in zip(NAMES, DATA, strict=True):
        cache.add(digest, data)
    content(cache, NAMES[0])
    runs = cache.kept()
    assert sum(run.size.files for run in runs) == 10
    assert [run.key for run in runs] == list(cache.stored())
    assert cache.remove(runs[2].key, lambda: False)
    assert files(tmp_path) == {NAMES[0], *NAMES[4:]}


def test_a_disk_without_room_takes_no_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = made(tmp_path)
    cache.add(NAMES[0], DATA[0])
    monkeypatch.setattr("nodeagent.streaming.chunk_cache.room_for_builds", lambda *_: 999)
    with pytest.raises(NoRoom):
        cache.add(NAMES[1], DATA[1])
    assert files(tmp_path) == set(), "what it had made room first"
