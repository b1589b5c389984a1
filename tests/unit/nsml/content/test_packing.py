from __future__ import annotations

import os
import socket
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from nsml._path_text import path_text
from nsml.content import errors, ignore
from nsml.content.digests import digest_of
from nsml.content.ignore import IgnoreRules, rules_for
from nsml.content.listing import CODE_WARNING, list_folder
from nsml.content.manifest import decode
from nsml.content.packing import Packed, Progress, pack, pack_file, pack_files
from nsml.content.stored_manifest import StoredManifest
from nsml.v1 import content_pb2
from tests.unit.nsml.content.extracting import extract


def write(root: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def paths(packed: Packed) -> list[str]:
    return [entry.path for entry in packed.manifest.entries]


def test_a_folder_becomes_the_same_manifest_every_time(tmp_path: Path) -> None:
    files = {"main.py": b"print()", "b/x": b"", "b/y": b"same", "a/y": b"same", "b.txt": b"t"}
    write(tmp_path / "one", files)
    write(tmp_path / "two", dict(reversed(files.items())))
    (tmp_path / "one/main.py").chmod(0o750)
    (tmp_path / "two/main.py").chmod(0o711)
    (tmp_path / "two/b/y").chmod(0o666)
    one, two = pack(tmp_path / "one"), pack(tmp_path / "two")
    assert one.manifest.digest == two.manifest.digest
    assert paths(one) == ["a/y", "b.txt", "b/x", "b/y", "main.py"]
    assert [entry.mode for entry in one.manifest.entries] == [0o644] * 4 + [0o755]
    assert one.source.read(digest_of(b"same")) == b"same"
    with pytest.raises(KeyError):
        one.source.read(digest_of(b"other"))


def test_only_missing_chunks_travel_in_few_batches(tmp_path: Path) -> None:
    files = {f"d{i % 7}/f{i}": f"content {i}".encode() * 10 for i in range(2000)}
    write(tmp_path, files | {"large": os.urandom(5 << 20)})
    packed = pack(tmp_path)
    wanted = set(packed.manifest.blobs())
    wanted.discard(digest_of(files["d0/f0"]))
    batches = list(packed.source.batches(wanted))
    assert {digest for batch in batches for digest, _ in batch} == wanted
    assert all(digest_of(data) == digest for batch in batches for digest, data in batch)
    assert all(len(batch) == 1 or sum(len(d) for _, d in batch) <= 1 << 20 for batch in batches)
    assert len(batches) < 20


def test_progress_ends_at_the_totals(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"12345", "b": b"", "c/d": os.urandom(3 << 20)})
    seen: list[Progress] = []
    pack(tmp_path, progress=seen.append)
    assert (seen[-1].files, seen[-1].bytes) == (3, 5 + (3 << 20))
    assert (seen[-1].files_total, seen[-1].bytes_total) == (3, 5 + (3 << 20))
    assert [p.bytes for p in seen] == sorted(p.bytes for p in seen)


def test_ignored_files_stay_and_are_counted(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "main.py": b"x",
            ".nsmlignore": b"data/\n*.log\n!keep.log\n!venv/\n",
            "data/huge": bytes(1000),
            "data/more/huge": bytes(500),
            "a.log": b"1",
            "keep.log": b"2",
            ".git/config": b"3",
            "sub/__pycache__/m.pyc": b"4",
            "venv/x": b"5",
        },
    )
    packed = pack(tmp_path, ignore=rules_for(tmp_path))
    assert paths(packed) == [".nsmlignore", "keep.log", "main.py", "venv/x"]
    assert (packed.listed.skipped.files, packed.listed.skipped.bytes) == (5, 1503)
    assert packed.listed.skipped.is_complete


def test_the_defaults_shown_are_the_defaults_used(tmp_path: Path) -> None:
    assert rules_for(tmp_path).lines == tuple(ignore.DEFAULT_CODE_IGNORES.splitlines())
    data_rules = rules_for(tmp_path, defaults=ignore.DEFAULT_DATASET_IGNORES, exclude=["*.tmp"])
    assert not data_rules.ignores("venv", is_folder=True)
    assert data_rules.ignores("x/a.tmp", is_folder=False)


def test_an_ignore_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    write(tmp_path, {".nsmlignore": b"\xff\xfe\x00"})
    with pytest.raises(errors.Unreadable, match="nsmlignore"):
        rules_for(tmp_path)


@pytest.mark.parametrize("line", ["!", "a\\", "!a\\", "[[:alpha:]]"])
def test_a_line_that_is_no_pattern_is_named(tmp_path: Path, line: str) -> None:
    write(tmp_path, {".nsmlignore": f"*.log\n{line}\n".encode()})
    with pytest.raises(errors.Unreadable, match=r"\.nsmlignore, line 2: .* is not a pattern"):
        rules_for(tmp_path)
    (tmp_path / ".nsmlignore").write_text("[z\n/\n!!\n\n# x\n!#\n")
    pack(tmp_path, ignore=rules_for(tmp_path))
    with pytest.raises(errors.Unreadable, match=r"--exclude: .* is not a pattern"):
        rules_for(tmp_path, exclude=[line])


def test_a_link_inside_counts_as_what_it_leads_to(tmp_path: Path) -> None:
    write(tmp_path, {"real/a": b"1", "real/deep/b": b"2"})
    (tmp_path / "file").symlink_to("real/a")
    (tmp_path / "folder").symlink_to("real/deep")
    (tmp_path / "absolute").symlink_to(tmp_path / "real" / "a")
    (tmp_path / "twice").symlink_to("folder/b")
    packed = pack(tmp_path)
    assert paths(packed) == ["absolute", "file", "folder/b", "real/a", "real/deep/b", "twice"]
    assert packed.manifest.size == 6


@pytest.mark.parametrize("target", ["/etc/hostname", "..", "../outside", "a/../../outside"])
def test_a_link_that_leaves_the_folder_is_named(tmp_path: Path, target: str) -> None:
    write(tmp_path, {"outside": b"secret", "in/a/x": b"1"})
    (tmp_path / "in/leak").symlink_to(target)
    with pytest.raises(errors.LinkRefused, match="leak leaves the folder") as caught:
        pack(tmp_path / "in")
    assert caught.value.path == "leak"


def test_a_sibling_with_the_same_prefix_is_outside(tmp_path: Path) -> None:
    write(tmp_path, {"code/main.py": b"1", "code2/secret": b"2"})
    (tmp_path / "code/leak").symlink_to("../code2/secret")
    with pytest.raises(errors.LinkRefused):
        pack(tmp_path / "code")


def test_a_link_that_is_ignored_is_not_looked_at(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": b"1"})
    (tmp_path / "leak").symlink_to("/etc")
    assert paths(pack(tmp_path, ignore=IgnoreRules(["leak"]))) == ["main.py"]


@pytest.mark.parametrize("target", [".", "..", "self", "nowhere", "../d/self", "../other/back"])
def test_links_in_circles_and_to_nowhere_are_named(tmp_path: Path, target: str) -> None:
    write(tmp_path, {"d/x": b"1", "other/y": b"2"})
    (tmp_path / "other/back").symlink_to("../d")
    (tmp_path / "d/self").symlink_to(target)
    with pytest.raises(errors.LinkRefused):
        pack(tmp_path)


def test_what_is_no_file_is_left_out_and_named(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": b"1", "run/x": b"2"})
    assert pack(tmp_path).listed.special == ()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "run/link").symlink_to("../pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "run/sock"))
        packed = pack(tmp_path)
    assert paths(packed) == ["main.py", "run/x"]
    assert packed.listed.special == ("pipe (a pipe)", "run/link (a pipe)", "run/sock (a socket)")
    assert pack(tmp_path, ignore=IgnoreRules(["pipe", "run"])).listed.special == ()


def test_a_folder_with_no_file_is_empty_whatever_else_is_in_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(errors.EmptyFolder):
        pack(tmp_path)


UNREADABLE = """
import os, sys
from pathlib import Path
from nsml.content import errors, packing
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    packing.pack(Path(sys.argv[1]))
except errors.Unreadable as error:
    print(error.path)
"""


@pytest.mark.parametrize(("name", "expected"), [("sub/secret", "sub/secret"), ("sub", "sub")])
def test_an_unreadable_file_or_folder_is_named(tmp_path: Path, name: str, expected: str) -> None:
    write(tmp_path, {"main.py": b"1", "sub/secret": b"2"})
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 1:
            folder.chmod(folder.stat().st_mode | 0o5)
    (tmp_path / name).chmod(0)
    try:
        found = subprocess.run(
            [sys.executable, "-c", UNREADABLE, str(tmp_path)],
            check=True,
            capture_output=True,
            text=True,
            cwd=Path.cwd(),
        )
    finally:
        (tmp_path / name).chmod(0o755)
    assert found.stdout.strip() == expected


def test_too_large_names_the_largest(tmp_path: Path) -> None:
    write(tmp_path, {f"f{i}": bytes(i * 100) for i in range(1, 9)})
    with pytest.raises(errors.TooLarge) as caught:
        pack(tmp_path, max_bytes=1000)
    assert caught.value.largest[0] == ("f8", 800)
    assert len(caught.value.largest) == 5
    assert "f8" in str(caught.value)
    with pytest.raises(errors.TooLarge):
        pack(tmp_path, max_files=7)


def test_the_old_warning_comes_above_ten_megabytes(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": b"1"})
    assert list_folder(tmp_path).warnings() == ()
    write(tmp_path, {"data": bytes(10_000_001)})
    assert list_folder(tmp_path).warnings() == (CODE_WARNING,)


def test_an_empty_folder_and_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "only/folders").mkdir(parents=True)
    with pytest.raises(errors.EmptyFolder):
        pack(tmp_path)
    write(tmp_path, {"x.log": b"1"})
    with pytest.raises(errors.EmptyFolder, match="ignored: 1 file\\)"):
        pack(tmp_path, ignore=IgnoreRules(["*.log"]))
    with pytest.raises(errors.PackRefused, match="no folder"):
        pack(tmp_path / "missing")
    with pytest.raises(errors.PackRefused, match="not a folder"):
        pack(tmp_path / "x.log")


NAMES = [
    *(
        b"caf\xe9",
        b"\xb0\xed\xbe\xe7\xc0\xcc",
        b"new\nline",
        b"back\\slash",
        b"esc\x1b[2J",
        b"con",
        b"aux",
    ),
    *(b"A", b"a", b"Jr.", b"space ", b"C:x", "\u202egnp".encode(), b"n" * 255),
    *(unicodedata.normalize(form, "é").encode() for form in ("NFC", "NFD")),
]


def test_every_name_that_linux_has_travels(tmp_path: Path) -> None:
    for number, name in enumerate(NAMES):
        write(tmp_path / "there", {f"{os.fsdecode(name)}/1.png": str(number).encode()})
    packed = pack(tmp_path / "there")
    path = tmp_path / "stored"
    path.write_bytes(packed.manifest.encode())
    with StoredManifest(path) as stored:
        stored.check()
        assert [entry.path for entry in stored.entries] == paths(packed)
    assert decode(packed.manifest.encode()) == packed.manifest
    extract(packed.manifest, packed.source.read, tmp_path / "here")
    assert {
        os.fsencode(folder.name): (folder / "1.png").read_bytes()
        for folder in (tmp_path / "here").iterdir()
    } == {name: str(number).encode() for number, name in enumerate(NAMES)}
    again = [path_text(f"{os.fsdecode(name)}/1.png") for name in NAMES]
    assert pack_files(tmp_path / "here", again, max_bytes=1 << 20).manifest == packed.manifest


def test_a_name_that_is_no_utf8_is_ignored_by_its_bytes(tmp_path: Path) -> None:
    for name in (b"caf\xe9.txt", b"caf\xe8.txt", b"x.log\xff", b"a\nb"):
        write(tmp_path, {os.fsdecode(name): b"1"})
    write(tmp_path, {".nsmlignore": b"caf\xe9*\r\n*.log?\r\n*b\r\n"})
    assert paths(pack(tmp_path, ignore=rules_for(tmp_path))) == [".nsmlignore", r"caf\xe8.txt"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_an_ignore_file_is_read_as_windows_writes_it(tmp_path: Path, encoding: str) -> None:
    write(tmp_path, {"main.py": b"1", "자료": b"2", "b.csv": b"3"})
    (tmp_path / ".nsmlignore").write_bytes("자료\r\n*.csv\r\n.nsmlignore\r\n".encode(encoding))
    assert paths(pack(tmp_path, ignore=rules_for(tmp_path))) == ["main.py"]


def test_environments_of_packages_are_left_out_of_code_and_named(tmp_path: Path) -> None:
    for name in ("env", "tools/conda", "kept"):
        write(tmp_path, {f"{name}/lib/x.py": b"1"})
        (tmp_path / name / "bin").mkdir()
        (tmp_path / name / "bin/python").symlink_to(sys.executable)
    write(tmp_path, {"env/pyvenv.cfg": b"", "tools/conda/conda-meta/history": b"", "main.py": b"1"})
    (tmp_path / "kept/pyvenv.cfg").touch()
    write(tmp_path, {".nsmlignore": b"!kept/\nkept/bin\n"})
    packed = pack(tmp_path, ignore=rules_for(tmp_path))
    assert packed.listed.environments == ("env", "tools/conda")
    assert paths(packed) == [".nsmlignore", "kept/lib/x.py", "kept/pyvenv.cfg", "main.py"]
    with pytest.raises(errors.LinkRefused, match="env/bin/python leaves the folder"):
        pack(tmp_path, ignore=rules_for(tmp_path, defaults=ignore.DEFAULT_DATASET_IGNORES))


def test_empty_folders_and_rules_that_are_not_read_are_named(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"1", "sub/.nsmlignore": b"b\n", "sub/b": b"2", ".nsmlignore": b"c\n"})
    for name in ("logs", "out/deep", "c"):
        (tmp_path / name).mkdir(parents=True)
    packed = pack(tmp_path, ignore=rules_for(tmp_path))
    assert packed.listed.empty == ("logs", "out/deep")
    assert packed.listed.unread == ("sub/.nsmlignore",)


def test_one_file_is_a_folder_that_has_it_alone(tmp_path: Path) -> None:
    write(tmp_path, {"data/train.csv": b"1,2", "other": b""})
    (tmp_path / "link.csv").symlink_to("data/train.csv")
    for name in ("data/train.csv", "link.csv"):
        packed = pack_file(tmp_path / name, max_bytes=1 << 20)
        assert paths(packed) == [Path(name).name]
        assert packed.source.read(digest_of(b"1,2")) == b"1,2"
    with pytest.raises(errors.TooLarge):
        pack_file(tmp_path / "link.csv", max_bytes=2)
    with pytest.raises(errors.Unreadable, match="a folder"):
        pack_file(tmp_path / "data", max_bytes=2)


@pytest.mark.parametrize("change", ["edit", "shorten", "link", "remove"])
def test_a_file_that_changes_before_it_is_sent_is_named(tmp_path: Path, change: str) -> None:
    write(tmp_path, {"a": b"before", "b": b"before!"})
    packed = pack(tmp_path)
    path = tmp_path / "a"
    if change == "edit":
        path.write_bytes(b"after.")
    elif change == "shorten":
        path.write_bytes(b"bef")
    else:
        path.unlink()
        if change == "link":
            path.symlink_to("b")
    with pytest.raises(errors.ChangedWhilePacking, match=r"a (changed|was removed)") as caught:
        packed.source.read(digest_of(b"before"))
    assert caught.value.path == "a"


def test_a_file_that_goes_before_it_was_read_is_said_to_have_changed(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"1", "b": b"2"})

    def remove(progress: Progress) -> None:
        if progress.files == 1:
            (tmp_path / "b").unlink(missing_ok=True)

    with pytest.raises(errors.ChangedWhilePacking, match="b was removed or replaced"):
        pack(tmp_path, progress=remove)


def test_a_file_that_grows_before_it_is_read_is_whole_within_the_limit(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"1", "b": b"before"})

    def grow(progress: Progress) -> None:
        if progress.files == 1:
            (tmp_path / "b").write_bytes(b"before and after")

    packed = pack(tmp_path, progress=grow, max_bytes=17)
    assert [entry.size for entry in packed.manifest.entries] == [1, 16]
    assert packed.source.read(digest_of(b"before and after")) == b"before and after"
    (tmp_path / "b").write_bytes(b"before")
    with pytest.raises(errors.TooLarge, match="has grown over the limit of 16 bytes"):
        pack(tmp_path, progress=grow, max_bytes=16)


def test_files_that_are_named_are_all_that_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"run.sh": b"1", "sub/w": b"2", "other": b"3", "sub/more/x": b"4"})
    (tmp_path / "run.sh").chmod(0o755)
    whole = pack(tmp_path, ignore=IgnoreRules(["other", "more/"]))
    monkeypatch.setattr(os, "scandir", None)
    named = pack_files(tmp_path, ["sub/w", "run.sh", "sub/w"], max_bytes=2)
    assert named.manifest == whole.manifest
    assert named.source.read(digest_of(b"2")) == b"2"
    assert paths(pack_files(tmp_path, [], max_bytes=0)) == []
    with pytest.raises(errors.TooLarge):
        pack_files(tmp_path, ["sub/w", "run.sh"], max_bytes=1)


@pytest.mark.parametrize("path", ["missing", "sub", "link", "linked/w", "pipe", "w/x"])
def test_a_named_file_that_is_none_is_refused(tmp_path: Path, path: str) -> None:
    write(tmp_path, {"w": b"1", "sub/w": b"2"})
    (tmp_path / "link").symlink_to("w")
    (tmp_path / "linked").symlink_to("sub")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(errors.Unreadable) as caught:
        pack_files(tmp_path, ["w", path], max_bytes=100)
    assert caught.value.path == path


def test_a_folder_swapped_for_a_link_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path, {"in/sub/x": b"public", "secret/x": b"public"})
    packed = pack(tmp_path / "in")
    (tmp_path / "in/sub/x").unlink()
    (tmp_path / "in/sub").rmdir()
    (tmp_path / "in/sub").symlink_to(tmp_path / "secret")
    with pytest.raises(errors.ChangedWhilePacking):
        packed.source.read(digest_of(b"public"))


def test_loading_the_modules_loads_no_library() -> None:
    code = (
        "import sys, nsml.content.packing, nsml.content.extract, nsml.content.framing;"
        "print({'blake3', 'zstandard', 'pyfastcdc', 'pathspec', 'fcntl', 'pwd', 'termios'}"
        " & set(sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=Path.cwd()
    )
    assert "blake3" not in ran.stdout
    assert "zstandard" not in ran.stdout
    assert "pyfastcdc" not in ran.stdout
    assert "pathspec" not in ran.stdout


def test_a_batch_of_tiny_chunks_is_no_larger_than_a_message(tmp_path: Path) -> None:
    """Each takes a digest, too: a hundred thousand of them were more than the platform takes."""
    for number in range(500):
        (tmp_path / f"{number}").write_text(f"{number}")
    packed = pack(tmp_path)
    batches = list(packed.source.batches(list(packed.manifest.blobs()), max_bytes=10_000))
    assert sum(map(len, batches)) == 500
    for batch in batches:
        message = content_pb2.PutBlobsRequest()
        for digest, data in batch:
            message.blobs.add(digest=digest, data=data, last=True)
        assert message.ByteSize() <= 10_000
