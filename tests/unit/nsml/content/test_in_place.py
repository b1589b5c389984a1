"""Files that are not copied: their list, what has changed since, and who could put others in their place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from nsml._path_text import path_text
from nsml.content import in_place
from nsml.content.errors import ContentError, TargetExists, TooLarge
from nsml.content.in_place import (
    LIST_NAME,
    ListedFile,
    changes,
    changes_text,
    copy,
    encode,
    look_at,
    read_list,
    why_movable,
)
from nsml.content.listing import list_folder, open_root
from nsml.content.ordered_listing import OrderedListing
from nsml.spec.in_place_paths import is_plain, place_of

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    for name in ("a", "b", "sub/c", "sub/d \u00fc"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def made(tmp_path: Path) -> Callable[[bytes], list[ListedFile]]:
    """Reads a list of such bytes."""

    def read(data: bytes) -> list[ListedFile]:
        (tmp_path / LIST_NAME).write_bytes(data)
        return list(read_list(tmp_path / LIST_NAME))

    return read


def test_nothing_has_changed_until_something_has(
    root: Path, made: Callable[[bytes], list[ListedFile]]
) -> None:
    listed = look_at(root)
    assert made(encode(listed)) == listed
    assert [one.path for one in listed] == ["a", "b", "sub/c", "sub/d \u00fc"]
    assert changes(root, listed, Random(1)).count == 0
    (root / "a").write_text("longer than it was")
    (root / "b").unlink()
    os.utime(root / "sub/c", ns=(1, 1))
    (root / "new").touch()
    before = (root / "sub/d \u00fc").stat()
    (root / "sub/d \u00fc").write_text("d".ljust(before.st_size, "!"))
    os.utime(root / "sub/d \u00fc", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert changes_text(changes(root, listed, Random(1))) == (
        "a has 18 bytes, not 1; b is missing; new is new; sub/c was written to;"
        " sub/d \u00fc has another content, with the size and time that it had"
    )
    (root / "z").touch()
    assert changes_text(changes(root, listed, Random(1))).endswith("; and 1 more")


@pytest.mark.parametrize(
    "row",
    [
        "no json",
        "[]",
        ["../a", 1, 1, "a" * 64],
        ["/a", 1, 1, "a" * 64],
        ["a", -1, 1, "a" * 64],
        ["a", True, 1, "a" * 64],
        ["a", 1, 1.5, "a" * 64],
        ["a", 1, 1, "../../x"],
        ["a", 1 << 70, 1, "a" * 64],
        [["a"], 1, 1, "a" * 64],
    ],
)
def test_a_list_that_somebody_made_up_is_refused(
    row: object, made: Callable[[bytes], list[ListedFile]], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = row if isinstance(row, str) else json.dumps(row)
    with pytest.raises(ContentError, match="cannot be read"):
        made(text.encode())
    good = json.dumps(["a", 1, 1, "a" * 64])
    with pytest.raises(ContentError, match="cannot be read"):
        made(f"{good}\n{good}\n".encode())  # twice
    with pytest.raises(ContentError, match="cannot be read"):
        made(b"[" * 100_000)
    monkeypatch.setattr(in_place, "MOST_LIST_BYTES", len(good))
    assert made(good.encode())
    with pytest.raises(ContentError, match="too long"):
        made(f"{good}\n".encode())


def test_the_longest_path_fits_in_a_line(made: Callable[[bytes], list[ListedFile]]) -> None:
    name = os.fsdecode(b"\xff" * 255)
    path = path_text("/".join([name] * 16))
    row = ListedFile(path, 1 << 59, -(1 << 63), "a" * 64)
    assert made(encode([row])) == [row]


def test_files_are_found_in_the_order_of_their_paths_and_few_names_are_held(tmp_path: Path) -> None:
    for name in ("a/x", "a.txt", "a-b/y", "a/\u00fc", "a/sub/z", "b"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / os.fsdecode(b"a/\xe9")).touch()
    (tmp_path / "c").symlink_to("a/sub")
    (tmp_path / "a+").symlink_to("a")

    def paths(**limits: int) -> list[str]:
        with open_root(tmp_path) as folder:
            return [one.path for one in OrderedListing(tmp_path, folder, **limits)]

    found = paths()
    assert found == sorted(one.path for one in list_folder(tmp_path).files)
    assert len(found) == 12
    assert paths(most_names=18, most_held=9) == found
    for limits in ({"most_names": 17}, {"most_held": 8}):
        with pytest.raises(TooLarge):
            paths(**limits)


def test_a_copy_is_whole_and_as_it_was_added_or_not_there(root: Path, tmp_path: Path) -> None:
    (root / "b").chmod(0o755)
    (root / os.fsdecode(b"caf\xe9")).touch()
    listed, target = look_at(root), tmp_path / "copy"
    copy(root, listed, target)
    assert look_at(target)[2].digest == listed[2].digest
    assert {one.name for one in target.iterdir()} == {one.name for one in root.iterdir()}
    assert [os.access(target / one, os.X_OK) for one in ("a", "b")] == [False, True]
    with pytest.raises(TargetExists):
        copy(root, listed, target)
    os.utime(root / "a", ns=(5, 5))
    copy(root, listed, tmp_path / "same content")
    (root / "a").write_text("x")
    with pytest.raises(ContentError, match="a is not what it was"):
        copy(root, listed, tmp_path / "other")
    with pytest.raises(ContentError, match="on the nodes"):
        copy(root / "none", listed, tmp_path / "other")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["copy", "data", "same content"]


def test_only_who_is_trusted_could_put_another_folder_there(tmp_path: Path) -> None:
    place = tmp_path.resolve() / "top/data"
    place.mkdir(parents=True)
    trusted = frozenset({0, os.geteuid()})
    assert why_movable(place, trusted) == ""
    place.chmod(0o777)
    assert why_movable(place, trusted) == "", "who may write in it changes files, which is seen"
    place.parent.chmod(0o777)
    assert "others can write to" in why_movable(place, trusted)
    place.parent.chmod(0o1777)
    assert why_movable(place, trusted) == "", "nobody renames what is another's there"
    assert "belongs to another user" in why_movable(place, frozenset({7}))
    (tmp_path / "link").symlink_to(place)
    assert "leads through a link" in why_movable(tmp_path.resolve() / "link", trusted)


def test_a_path_is_below_a_root_by_its_parts() -> None:
    roots = ["/shared", "/data/sets"]
    assert place_of("/shared/a", roots) == "/shared"
    assert place_of("/shared", roots) == "/shared"
    for text in (
        "/sharedx",
        "/shared/../etc",
        "/shared//a",
        "shared/a",
        "/data",
        "/shared/a/",
        "//shared",
    ):
        assert place_of(text, roots) == ""
    assert place_of("/anything", ["/"]) == "/"
    assert is_plain("/")
