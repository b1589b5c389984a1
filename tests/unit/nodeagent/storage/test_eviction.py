"""What goes when a disk is short of room, and what never does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.environments.builds import Builds
from nodeagent.folders import ReplicaFolders, ReplicaId
from nodeagent.replica.assignments import note_use, used_things
from nodeagent.storage.eviction import (
    KeepFree,
    Space,
    Store,
    is_full,
    lacks_files,
    relieve,
    shortage,
)
from nsml.packages.requirements import Requirements
from tests.support import disks
from tests.support.sandboxes import environments_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodeagent.environments.virtualenvs import Environments

MB = 1_000_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of its own, of 64 MB."""
    with disks.small_disk(tmp_path / "disk", "size=64m") as place:
        yield place


def fill(environments: Environments, name: str, *, used_at: float, size: int = 10 * MB) -> str:
    """An environment as if it had been built, of some size."""
    key = environments.key(Requirements(lines=(name,)), "kim")
    place = environments.folder / key
    place.mkdir(parents=True)
    (place / "content").write_bytes(b"x" * size)
    mark = place.with_suffix(".ready")
    mark.touch()
    os.utime(mark, (used_at, used_at))
    return key


def replica(folders: ReplicaFolders, number: int) -> ReplicaId:
    replica_id = ReplicaId(session_id=f"s{'a' * 15}{chr(97 + number)}", attempt=1, rank=0)
    folders.of(replica_id).create()
    return replica_id


def test_the_least_recently_used_go_until_there_is_room(disk: Path) -> None:
    environments = environments_in(disk)
    folders = ReplicaFolders(disk / "replicas")
    folders.create()
    keys = [fill(environments, str(n), used_at=1_000.0 + n) for n in range(5)]
    needed = replica(folders, 0)
    note_use(folders.of(needed), f"environment {keys[0]}")
    store = Store(kind="environment", cache=environments, place=environments.folder)

    def relieved(share: float) -> set[str]:
        relieve([store], KeepFree(share=share, bytes=1 << 60), lambda: used_things(folders))
        return set(environments.stored())

    assert relieved(0.1) == set(keys)
    assert environments.stored()[keys[0]] > 1e9  # what is needed is used now
    assert relieved(0.5) == {keys[0], keys[3], keys[4]}
    with Builds(environments.folder).unused(keys[3]):
        assert relieved(0.6) == {keys[0], keys[3]}
    assert relieved(0.99) == {keys[0]}
    folders.of(needed).remove()
    assert relieved(0.99) == set()


def test_a_use_is_noted_once_and_survives_a_torn_line(tmp_path: Path) -> None:
    folders = ReplicaFolders(tmp_path / "replicas")
    folders.create()
    folder = folders.of(replica(folders, 1))
    for thing in ("environment a", "image b", "environment a"):
        note_use(folder, thing)
    with folder.uses.open("a") as uses:
        uses.write("image c")
    note_use(folder, "image cd")
    assert used_things(folders) == {"environment a", "image b", "image c", "image cd", ""}
    assert folder.uses.read_text().split("\n").count("environment a") == 1


def test_what_cannot_be_removed_keeps_no_other(tmp_path: Path) -> None:
    class Stubborn:
        gone: set[str] = set()  # noqa: RUF012 - one instance

        def stored(self) -> dict[str, float]:
            return {"a": 1.0, "b": 2.0}

        def touch(self, key: str) -> None:
            raise AssertionError(key)

        def remove(self, key: str, is_used: object) -> bool:
            if key == "a":
                raise OSError("read-only")
            self.gone.add(key)
            return True

    cache = Stubborn()
    everything = KeepFree(share=1.0, bytes=1 << 62)
    relieve([Store(kind="x", cache=cache, place=tmp_path)], everything, frozenset)
    assert cache.gone == {"b"}
    elsewhere = Store(kind="x", cache=Stubborn(), place=tmp_path / "not here")
    relieve([elsewhere], everything, frozenset)


@given(st.floats(0, 1), st.integers(0, 1 << 60), st.integers(1, 1 << 60), st.integers(0, 1 << 60))
def test_short_is_less_than_both(share: float, bound: int, size: int, free: int) -> None:
    keep = KeepFree(share=share, bytes=bound)
    assert keep.is_short(Space(size=size, free=free, files=0, free_files=0)) == (
        free < share * size and free < bound
    )


def test_a_disk_that_is_nearly_full_is_told_of_before_anything_is_ended(disk: Path) -> None:
    assert shortage(disk) == ""
    (disk / "junk").write_bytes(b"x" * 66 * MB)
    assert "are free on the disk of" in shortage(disk)
    (disk / "junk").unlink()
    assert shortage(disk) == ""
    assert shortage(disk / "nowhere") == ""


@pytest.mark.parametrize(
    ("size", "floor"),
    [
        (10**12, 2 << 30),
        (10**12, 0),
        (40 * 10**9, 800 * MB),
        (10**12, 50 * 10**9),
        (64 * MB, 30 * MB),
    ],
)
def test_builds_and_pulls_end_well_before_sessions_do(
    monkeypatch: pytest.MonkeyPatch, size: int, floor: int
) -> None:
    """By the size of a disk, and the room on it at which sessions are ended."""

    def is_full_with(free: int) -> bool:
        found = os.statvfs_result((1, 1, size, free, free, 0, 0, 0, 0, 255))
        monkeypatch.setattr("nodeagent.storage.eviction.os.statvfs", lambda _: found)
        return is_full(Path("/"), floor)

    assert is_full_with(max(round(1.9 * floor), 0))
    assert is_full_with(min(size // 26, (4 << 30) - 1))
    assert not is_full_with(size)


def test_many_small_files_fill_a_disk_too(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,nr_inodes=100", str(disk)], check=True)
    assert not lacks_files(disk)
    for number in range(97):
        (disk / f"{number}").touch()
    assert lacks_files(disk)
    assert not lacks_files(disk / "no such place")
