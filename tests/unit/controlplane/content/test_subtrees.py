"""A tree is divided in one pass, on a disk that may be full."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.content.limited_process import NoRoom
from controlplane.content.subtrees import _divide, _divide_apart
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from nsml.content.tree_parts import REST

PARTS = ("test", "test/label")
GROUPS = [[REST, "test"], [REST], ["test/label"], [REST, *PARTS], []]


def entries(folder: str, files: int) -> list[Entry]:
    return [
        Entry(
            path=f"{folder}/{n:04}",
            mode=0o644,
            size=n % 90,
            chunks=(ChunkRef(digest_of(b"x"), 1),) * (n % 90),
        )
        for n in range(files)
    ]


FILES = {
    REST: entries("train", 700),
    "test": entries("test", 256),
    "test/label": entries("test/label", 3),
}


def test_each_group_is_the_encoding_of_its_files(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.write_bytes(build([one for part in FILES.values() for one in part]).encode())
    sizes = _divide(whole, frozenset(PARTS), GROUPS)
    for number, group in enumerate(GROUPS):
        wanted = build([one for part in group for one in FILES[part]])
        assert (tmp_path / f"part-{number}").read_bytes() == wanted.encode()
        assert sizes[number] == (len(wanted.entries), wanted.size)


async def test_a_full_disk_is_said(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.write_bytes(build(FILES["test"]).encode())
    (tmp_path / "part-0").symlink_to("/dev/full")
    with pytest.raises(NoRoom, match="No space left"):
        await _divide_apart(whole, PARTS, [["test"]])
