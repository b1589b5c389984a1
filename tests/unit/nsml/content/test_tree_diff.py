"""What differs between two trees, held against a plain comparison of two dictionaries."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.content import tree_diff as module
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from nsml.content.stored_manifest import StoredManifest
from nsml.content.tree_diff import FileChange, Kind, TreeDiff, tree_diff

Tree = dict[str, tuple[str, int]]
"""Content and mode by path."""

TREES = st.dictionaries(
    st.sampled_from(["a", "a/b", "a0", "b", "c/d", "é", "z\U0001f600", "\uffee"]),
    st.tuples(st.sampled_from(["", "x", "y", "xy", "x" * 70]), st.sampled_from([0o644, 0o755])),
).filter(lambda tree: not {"a", "a/b"} <= set(tree))


def entries(tree: Tree) -> list[Entry]:
    """A chunk of a byte each, so that long texts have more chunks than are held."""
    return [
        Entry(
            path=path,
            mode=mode,
            size=len(text),
            chunks=tuple(ChunkRef(digest_of(one.encode()), 1) for one in text),
        )
        for path, (text, mode) in sorted(tree.items(), key=lambda item: item[0].encode())
    ]


def compare(before: Tree, after: Tree, most: int = 100) -> TreeDiff:
    return tree_diff(entries(before), entries(after), most=most)


@given(TREES, TREES)
def test_every_file_is_told_once(before: Tree, after: Tree) -> None:
    diff = compare(before, after)
    changed = {path for path in before.keys() & after.keys() if before[path] != after[path]}
    assert diff.unchanged == len(before.keys() & after.keys()) - len(changed)
    named = Counter(one.path for one in diff.files) + Counter(
        one.path_before for one in diff.files if one.path_before
    )
    assert named == Counter((before.keys() ^ after.keys()) | changed)
    for one in diff.files:
        match one.kind:
            case Kind.ADDED:
                assert (one.path not in before, one.before_bytes) == (True, None)
            case Kind.REMOVED:
                assert (one.path not in after, one.after_bytes) == (True, None)
            case Kind.CHANGED:
                assert one.path in changed
            case Kind.RENAMED:
                assert before[one.path_before][0] == after[one.path][0] != ""
    # Nothing that could be paired is left.
    left = {
        kind: {tree[one.path][0] for one in diff.files if one.kind is kind and tree[one.path][0]}
        for kind, tree in ((Kind.ADDED, after), (Kind.REMOVED, before))
    }
    assert not left[Kind.ADDED] & left[Kind.REMOVED]
    sizes = [sum(len(text) for text, _ in tree.values()) for tree in (before, after)]
    assert diff.added_bytes - diff.removed_bytes == sizes[1] - sizes[0]
    assert [one.path for one in diff.files] == sorted(one.path for one in diff.files)


@given(TREES, TREES, st.integers(0, 4))
def test_a_short_list_counts_all(before: Tree, after: Tree, most: int) -> None:
    whole, short = compare(before, after), compare(before, after, most)
    assert short.files == whole.files[:most]
    assert short.counts == whole.counts
    assert short.left_out == len(whole.files) - len(short.files)


@given(TREES, TREES)
def test_manifests_in_files_are_compared_alike(before: Tree, after: Tree) -> None:
    with TemporaryDirectory() as folder:
        files = Path(folder, "before"), Path(folder, "after")
        for file, tree in zip(files, (before, after), strict=True):
            file.write_bytes(build(entries(tree)).encode())
        with StoredManifest(files[0]) as old, StoredManifest(files[1]) as new:
            assert tree_diff(old.entries, new.entries, most=100) == compare(before, after)


def test_too_many_files_are_not_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PAIRED", 6)
    before = {f"old/{number}": (f"{number}", 0o644) for number in range(4)}
    after = {f"new/{number}": (f"{number}", 0o644) for number in range(4)}
    diff = compare(before, after, most=3)
    assert not diff.has_renames
    assert diff.counts == {Kind.ADDED: 4, Kind.REMOVED: 4, Kind.CHANGED: 0, Kind.RENAMED: 0}
    assert (len(diff.files), diff.left_out, diff.added_bytes) == (3, 5, 4)
    assert all(one == FileChange(Kind.ADDED, one.path, None, 1) for one in diff.files)
    monkeypatch.setattr(module, "MOST_PAIRED", 8)
    assert compare(before, after).counts[Kind.RENAMED] == 4
