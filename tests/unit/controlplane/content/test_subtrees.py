"""A tree is divided in one pass, on a disk that may be full."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.content.limited_process import NoRoom
from controlplane.content.subtrees import TOP_FILES, _divide, _divide_apart
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build, decode
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
    sizes = _divide(whole, frozenset(PARTS), GROUPS, "")
    for number, group in enumerate(GROUPS):
        wanted = build([one for part in group for one in FILES[part]])
        assert (tmp_path / f"part-{number}").read_bytes() == wanted.encode()
        assert sizes[number] == (len(wanted.entries), wanted.size, "")


async def test_a_full_disk_is_said(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.write_bytes(build(FILES["test"]).encode())
    (tmp_path / "part-0").symlink_to("/dev/full")
    with pytest.raises(NoRoom, match="No space left"):
        await _divide_apart(whole, PARTS, [["test"]], "")


async def test_files_at_the_top_and_the_first_match_of_a_group(tmp_path: Path) -> None:
    paths = ["a.py", "b/test_labels", "c/Test_Label/x", "d/no_test_label", "test/z"]
    whole = tmp_path / "whole"
    whole.write_bytes(
        build([Entry(path=path, mode=0o644, size=0, chunks=()) for path in paths]).encode()
    )
    groups = [[TOP_FILES], [REST, "a.py"], ["c", "d"], ["d"], ["a.py", TOP_FILES]]
    wanted = [
        (["a.py"], ""),
        (["a.py", "b/test_labels"], "b/test_labels"),
        (["c/Test_Label/x", "d/no_test_label"], "c/Test_Label/x"),
        (["d/no_test_label"], ""),
        (["a.py"], ""),
    ]
    parts = frozenset({"a.py", "c", "d", "test"})
    here = _divide(whole, parts, groups, "test_label")
    assert here == await _divide_apart(whole, parts, groups, "test_label")
    for number, (files, match) in enumerate(wanted):
        made = decode((tmp_path / f"part-{number}").read_bytes())
        assert [one.path for one in made.entries] == files
        assert here[number] == (len(files), 0, match)
