from __future__ import annotations

import errno
import os
import stat
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsml.content import safe_paths as beneath_module
from nsml.content.digests import digest_of
from nsml.content.errors import BlobCorrupt, ContentError, ExtractRefused, PathRefused, TargetExists
from nsml.content.extract import Extraction, extract_stream, remove_tree
from nsml.content.manifest import ChunkRef, Entry, Limits, Manifest, build
from nsml.content.packing import pack
from nsml.content.safe_paths import Beneath, ByDescriptor, ByPath
from tests.unit.nsml.content.extracting import extract

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

CONTENT = b"content"
REF = ChunkRef(digest_of(CONTENT), len(CONTENT))


def entry(path: str) -> Entry:
    return Entry(path=path, mode=0o644, size=REF.size, chunks=(REF,))


@pytest.fixture(params=[ByDescriptor, ByPath])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to reach files: with folder descriptors and without, as on Windows."""
    opener: Callable[[Path], Beneath] = request.param
    monkeypatch.setattr("nsml.content.extract.beneath", opener)
    monkeypatch.setattr("nsml.content.listing.beneath", opener)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "pkg/deep").mkdir(parents=True)
    (root / "main.py").write_bytes(b"print(1)")
    (root / "main.py").chmod(0o700)
    (root / "pkg/empty").write_bytes(b"")
    (root / "pkg/deep/large").write_bytes(os.urandom(4 << 20))
    (root / "pkg/두번째").write_bytes(b"two")
    return root


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.mark.usefixtures("system")
def test_what_was_packed_comes_out(folder: Path, tmp_path: Path) -> None:
    packed = pack(folder)
    target = tmp_path / "made/on/the/way"
    extract(packed.manifest, packed.source.read, target)
    assert tree(target)["pkg/deep/large"] == (0o644, (folder / "pkg/deep/large").read_bytes())
    assert tree(target)["main.py"] == (0o755, b"print(1)")
    assert pack(target).manifest.digest == packed.manifest.digest
    assert [path.name for path in target.parent.iterdir()] == ["way"]


def test_a_chunk_of_another_size_than_was_told_leaves_nothing(tmp_path: Path) -> None:
    """What is told is what quotas and limits look at."""
    lie = Entry(path="a", mode=0o644, size=1, chunks=(ChunkRef(REF.digest, 1),))
    with pytest.raises(BlobCorrupt):
        extract(build([lie]), lambda _: CONTENT, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("system")
def test_a_dataset_is_laid_out_read_only(folder: Path, tmp_path: Path) -> None:
    packed = pack(folder)
    target = tmp_path / "dataset"
    extract(packed.manifest, packed.source.read, target, read_only=True)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [target, *target.rglob("*")]}
    assert modes == {0o444, 0o555}
    remove_tree(target)
    assert not target.exists()
    remove_tree(target)


async def test_chunks_may_stream_in(folder: Path, tmp_path: Path) -> None:
    packed = pack(folder)

    async def chunks() -> AsyncIterator[bytes]:
        for ref in packed.manifest.refs():
            yield packed.source.read(ref.digest)

    await extract_stream(packed.manifest, chunks(), tmp_path / "out")
    assert pack(tmp_path / "out").manifest == packed.manifest


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize(
    "chunk", [b"", b"contenT", b"content!", b"conten", CONTENT * 2, bytes(1 << 20)]
)
def test_wrong_bytes_leave_nothing(tmp_path: Path, chunk: bytes) -> None:
    with pytest.raises(BlobCorrupt):
        extract(build([entry("a"), entry("b/c")]), lambda _: chunk, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [0, 1, 3])
def test_too_few_and_too_many_chunks_leave_nothing(tmp_path: Path, count: int) -> None:
    def feed() -> None:
        with Extraction(build([entry("a"), entry("b")]), tmp_path / "out") as extraction:
            for _ in range(count):
                extraction.write(CONTENT)
            extraction.finish()

    with pytest.raises(BlobCorrupt):
        feed()
    assert list(tmp_path.iterdir()) == []


def test_a_first_file_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(ByDescriptor):
        def create_file(self, parts: tuple[str, ...]) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/".join(parts))

    monkeypatch.setattr("nsml.content.extract.beneath", Full)
    is_open = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="No space left"):
        extract(build([entry("in/a/folder")]), lambda _: CONTENT, tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) <= is_open


@pytest.mark.parametrize("name", ["n" * 255, "이름" * 42])
def test_a_target_may_have_as_long_a_name_as_files_have(tmp_path: Path, name: str) -> None:
    extract(build([]), lambda _: b"", tmp_path / name)
    assert (tmp_path / name).is_dir()


def test_a_reader_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def read(digest: str) -> bytes:
        raise ConnectionError(digest)

    with pytest.raises(ConnectionError):
        extract(build([entry("a/b/c")]), read, tmp_path / "out", read_only=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("system")
def test_an_existing_target_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "mine").write_bytes(b"1")
    with pytest.raises(TargetExists):
        extract(build([entry("a")]), lambda _: CONTENT, target)
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(TargetExists):
        extract(build([entry("a")]), lambda _: CONTENT, tmp_path / "dangling")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TargetExists):
        extract(build([entry("a")]), lambda _: CONTENT, tmp_path / "empty")
    assert [path.name for path in target.iterdir()] == ["mine"]


@pytest.mark.parametrize("opener", [ByDescriptor, ByPath])
@pytest.mark.parametrize("what", ["file", "link", "dangling link"])
def test_a_new_file_is_never_one_that_was_there(
    tmp_path: Path, opener: Callable[[Path], Beneath], what: str
) -> None:
    (tmp_path / "other").write_bytes(b"mine")
    match what:
        case "file":
            (tmp_path / "a").write_bytes(b"mine")
        case "link":
            (tmp_path / "a").symlink_to("other")
        case _:
            (tmp_path / "a").symlink_to("nowhere")
    with opener(tmp_path) as folder, pytest.raises(FileExistsError):
        folder.create_file(("a",))
    assert (tmp_path / "other").read_bytes() == b"mine"
    assert not (tmp_path / "nowhere").exists()


def test_of_two_at_once_one_wins_and_the_other_is_told(tmp_path: Path) -> None:
    manifest = build([entry("a")])
    with Extraction(manifest, tmp_path / "out") as first:
        first.write(CONTENT)
        with Extraction(manifest, tmp_path / "out") as second:
            second.write(CONTENT)
            second.finish()
        with pytest.raises(TargetExists):
            first.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out/a").read_bytes() == CONTENT


ESCAPES = [
    "../x",
    "a/../../x",
    "/tmp/x",
    "..\\x",
    r"\x2e\x2e/x",
    r"a\x2f..\x2fx",
    r"a\x00",
    "a/./x",
    "a//x",
    "",
    ".",
    "..",
    "a\0b",
    "a\nb",
    "a\u202eb",
    "a" * 256,
    "/".join(["d"] * 65),
    "/".join(["deep" * 40] * 40),
]


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("path", ESCAPES)
def test_paths_that_escape_are_refused_even_when_not_decoded(tmp_path: Path, path: str) -> None:
    manifest = Manifest(entries=(entry(path),))
    with pytest.raises(PathRefused):
        extract(manifest, lambda _: CONTENT, tmp_path / "root/out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("paths", [["a", "a"], ["a", "a/b"]])
def test_trees_that_would_overwrite_themselves_are_refused(
    tmp_path: Path, paths: list[str]
) -> None:
    manifest = Manifest(entries=tuple(entry(path) for path in sorted(paths)))
    with pytest.raises(ContentError):
        extract(manifest, lambda _: CONTENT, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_caps_stop_a_bomb_before_a_byte_is_written(tmp_path: Path) -> None:
    manifest = build([entry(f"f{i}") for i in range(100)])
    for limits in (Limits(entries=99), Limits(bytes=699)):
        with pytest.raises(ContentError):
            extract(manifest, lambda _: CONTENT, tmp_path / "out", limits=limits)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("system")
def test_a_folder_swapped_for_a_link_in_the_middle_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    manifest = build([entry("d/a"), entry("d/b"), entry("e/c"), entry("d/e/f")])

    def read(_: str) -> bytes:
        for partial in tmp_path.glob(".out.*"):
            moved = partial / "d"
            if moved.is_dir() and not moved.is_symlink():
                moved.rename(partial / "moved")
                moved.symlink_to(outside)
        return CONTENT

    with pytest.raises(OSError):
        extract(manifest, read, tmp_path / "out")
    assert list(outside.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]


class MacFolder(ByPath):
    """A file system that tells neither letter case nor normal forms apart, and has names in UTF-8 alone."""

    def _path(self, parts: tuple[str, ...], *, parents: int | None = None) -> Path:
        for part in parts:
            if os.fsencode(part) != part.encode("utf-8", "replace"):
                raise OSError(errno.EILSEQ, os.strerror(errno.EILSEQ))
        folded = tuple(unicodedata.normalize("NFC", part).casefold() for part in parts)
        return super()._path(folded, parents=parents)


@pytest.mark.parametrize(
    ("names", "named"),
    [
        (["A/1", "a/2"], "a/2"),
        (["A", "a/2"], "a/2"),
        (["x/B", "x/b"], "x/b"),
        (["é", "e\u0301"], "é"),
        (["x", r"y/caf\xe9"], r"y/caf\xe9"),
    ],
)
def test_a_tree_whose_names_a_system_does_not_have_is_refused_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], named: str
) -> None:
    manifest = build([entry(name) for name in names])
    extract(manifest, lambda _: CONTENT, tmp_path / "linux")
    monkeypatch.setattr("nsml.content.extract.beneath", MacFolder)
    with pytest.raises(ExtractRefused) as refused:
        extract(manifest, lambda _: CONTENT, tmp_path / "mac")
    assert str(refused.value).startswith(f"{named} cannot be laid out here")
    assert [path.name for path in tmp_path.iterdir()] == ["linux"]


@pytest.mark.parametrize(
    "name", ["what?", "C:x", "NUL", "x/con.txt/y", "lpt9", "x/dot./y", "space ", r"caf\xe9"]
)
def test_names_that_windows_forbids_are_refused_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    manifest = build([entry("console.py"), entry("a.b/.x"), entry(name)])
    extract(manifest, lambda _: CONTENT, tmp_path / "here")
    monkeypatch.setattr("nsml.content.extract._ON_WINDOWS", True)
    with pytest.raises(PathRefused, match="Windows"):
        Extraction(manifest, tmp_path / "there")


def test_the_safe_way_is_chosen_where_the_system_has_it(tmp_path: Path) -> None:
    with beneath_module.beneath(tmp_path) as chosen:
        assert isinstance(chosen, ByDescriptor)
