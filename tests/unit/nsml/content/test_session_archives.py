"""Archives of sessions: what tar and sha256sum make of them, and what is refused."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from nsml.client import session_restores
from nsml.client.session_restores import read_contents
from nsml.content import session_archives
from nsml.content.session_archives import (
    HEADER,
    SUMS,
    ArchiveRefused,
    ArchiveWriter,
    Header,
    Member,
    members,
    sum_line,
)

ABOUT = Header("c1", "0.2", "2026-11-28T20:00:00Z", "kim", ("kim/mnist/1",))
FOLDER = "sessions/kim_mnist_1"
ODD = r"a\x0ab/" + "d" * 200 + "/ü.txt"
"""A name with an escaped line end, longer than tar's own header takes, and not in ASCII."""
SESSION = {"id": "s1", "name": "kim/mnist/1", "owner": "kim", "state": "SESSION_STATE_SUCCEEDED"}


def record(**more: object) -> bytes:
    return json.dumps({"session": SESSION, "code": f"{FOLDER}/code", **more}).encode()


def whole(path: Path) -> Path:
    with path.open("wb") as file, ArchiveWriter(file, ABOUT, now=1.0) as archive:
        archive.add(f"{FOLDER}/code/main.py", b"print(1)\n")
        archive.add_pieces(f"{FOLDER}/code/{ODD}", 3, [b"a", b"bc"], is_executable=True)
        archive.add(f"{FOLDER}/logs/1-0.log", b"hello\n")
        archive.add(f"{FOLDER}/session.json", record())
        archive.finish()
    return path


def crafted(path: Path, files: list[tuple[str | tarfile.TarInfo, bytes]], **how: bool) -> Path:
    """What somebody else has written: sound sums, and whatever else they like."""
    sums = b""
    packed = io.BytesIO()
    given = [(HEADER, ABOUT.encode()), *files] if how.get("header", True) else files
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in given:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            if info.isreg():
                info.size = len(data)
                sums += sum_line(hashlib.sha256(data).hexdigest(), info.name)
            tar.addfile(info, io.BytesIO(data))
        if how.get("sums", True):
            info = tarfile.TarInfo(SUMS)
            info.size = len(sums)
            tar.addfile(info, io.BytesIO(sums))
    path.write_bytes(zstandard.compress(packed.getvalue()))
    return path


def special(kind: bytes, target: str = "/etc/passwd") -> tarfile.TarInfo:
    info = tarfile.TarInfo(f"{FOLDER}/code/x")
    info.type, info.linkname = kind, target
    return info


def test_tar_and_sha256sum_read_one(tmp_path: Path) -> None:
    file = whole(tmp_path / "a.tar.zst")
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["tar", "--zstd", "-xf", file, "-C", out], check=True)
    subprocess.run(["sha256sum", "--strict", "--quiet", "-c", SUMS], cwd=out, check=True)
    assert (out / FOLDER / "code" / ODD).read_bytes() == b"abc"
    assert (out / FOLDER / "code" / ODD).stat().st_mode & 0o111
    assert not (out / FOLDER / "code/main.py").stat().st_mode & 0o111


def test_what_was_written_is_read(tmp_path: Path) -> None:
    contents = read_contents(whole(tmp_path / "a.tar.zst"))
    assert contents.header == ABOUT
    [inside] = contents.sessions.values()
    assert (inside.session.name, inside.trees) == ("kim/mnist/1", {f"{FOLDER}/code"})
    found = {one.path: one.read() for one in members(tmp_path / "a.tar.zst")}
    assert found[f"{FOLDER}/code/{ODD}"] == b"abc"


DEEP = b"[" * 100_000
MAIN = (f"{FOLDER}/code/main.py", b"x")
HOSTILE: dict[str, tuple[list[tuple[str | tarfile.TarInfo, bytes]], str]] = {
    "a way up": ([(f"{FOLDER}/code/../../x", b"")], "is refused"),
    "a way up in the folder": ([("sessions/../code/x", b"")], "is refused"),
    "an absolute path": ([("/etc/passwd", b"")], "is refused"),
    "a NUL": ([(f"{FOLDER}/code/a\\x00b", b"")], "NUL"),
    "a name that is not the text of one": ([(f"{FOLDER}/code/a\nb", b"")], "is refused"),
    "escape sequences": ([(f"{FOLDER}/code/\x1b[2J", b"")], "is refused"),
    "a long name": ([(f"{FOLDER}/code/{'n' * 256}", b"")], "is refused"),
    "a deep one": ([(f"{FOLDER}/code/{'d/' * 65}x", b"")], "is refused"),
    "a file of no session": ([("home/.bashrc", b"")], "has no place"),
    "a file beside its session": ([(f"{FOLDER}/.ssh", b"")], "has no place"),
    "a symbolic link": ([(special(tarfile.SYMTYPE), b"")], "no regular file"),
    "a hard link": ([(special(tarfile.LNKTYPE), b"")], "no regular file"),
    "a device": ([(special(tarfile.CHRTYPE), b"")], "no regular file"),
    "a pipe": ([(special(tarfile.FIFOTYPE), b"")], "no regular file"),
    "a folder": ([(special(tarfile.DIRTYPE), b"")], "no regular file"),
    "one file twice": ([MAIN, MAIN], "twice"),
    "a record that is no JSON": ([(f"{FOLDER}/session.json", b"{")], "is no JSON"),
    "a deep record": ([(f"{FOLDER}/session.json", DEEP)], "is no JSON"),
    "a huge number": ([(f"{FOLDER}/session.json", b"9" * 10_000)], "is no JSON"),
    "a list for a record": ([(f"{FOLDER}/session.json", b"[]")], "no JSON object"),
    "a huge record": ([(f"{FOLDER}/session.json", b" " * (5 << 20))], "at most"),
    "a huge line": ([(f"{FOLDER}/media.jsonl", b" " * (6 << 20))], "a line of more than"),
    "a huge report": (
        [(f"{FOLDER}/records/1-0-1.jsonl", b"1" * (4 << 20))],
        "a line of more than",
    ),
    "a dataset without a record": ([("datasets/a.json", b"{}")], "not what nsml writes"),
    "a huge lock": ([(f"{FOLDER}/environment.lock", b"a" * (2 << 20))], "at most"),
    "a record of nothing": ([(f"{FOLDER}/session.json", b'{"session": {}}')], "no session"),
    "a field of another kind": (
        [MAIN, (f"{FOLDER}/session.json", record(session={**SESSION, "attempt": -1}))],
        "not what nsml writes",
    ),
    "code that is not there": ([(f"{FOLDER}/session.json", record())], "is not in it"),
    "files that are not there": (
        [
            (
                f"{FOLDER}/checkpoints.jsonl",
                b'{"checkpoint": {"name": "a", "file_count": 1}, "path": "/etc"}\n',
            ),
            MAIN,
            (f"{FOLDER}/session.json", record()),
        ],
        "is not in it",
    ),
    "files without a session": ([(f"{FOLDER}/media.jsonl", b"")], "no record of a session"),
    "a tree that goes on later": (
        [
            MAIN,
            (f"{FOLDER}/media/1-0/a", b""),
            (f"{FOLDER}/code/more.py", b""),
            (f"{FOLDER}/session.json", record()),
        ],
        "goes on behind other files",
    ),
    "files behind their session": (
        [MAIN, (f"{FOLDER}/session.json", record()), (f"{FOLDER}/logs/1-0.log", b"")],
        "behind the record",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_one_is_refused(kind: str, tmp_path: Path) -> None:
    files, why = HOSTILE[kind]
    before = crafted(tmp_path / "a.tar.zst", files).read_bytes()
    with pytest.raises(ArchiveRefused, match=why):
        read_contents(tmp_path / "a.tar.zst")
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [before]


def test_what_stays_in_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = whole(tmp_path / "a.tar.zst")
    held = len(record()) + len(f"{FOLDER}/code")
    monkeypatch.setattr(session_restores, "MOST_HELD_BYTES", held)
    read_contents(file)
    monkeypatch.setattr(session_restores, "MOST_HELD_BYTES", held - 1)
    with pytest.raises(ArchiveRefused, match="records of sessions have more than"):
        read_contents(file)


def test_many_streams_of_a_session_are_kept_in_one_file(tmp_path: Path) -> None:
    opened = len(list(Path("/proc/self/fd").iterdir()))
    kept = session_restores._Kept(tmp_path)
    for rank in range(100):
        data = b"%d\n" % rank * 2
        index = json.dumps({"first": 0, "last": len(data) - 1}).encode()
        for suffix, content in ("log", data), ("jsonl", index):
            name = f"logs/1-{rank}.{suffix}"
            kept.add(name, Member(name, len(content), False, iter([content])))
    found = {one.rank: one.data for one in kept.parts(FOLDER)}
    assert found == {rank: b"%d\n" % rank * 2 for rank in range(100)}
    assert len(list(Path("/proc/self/fd").iterdir())) < opened + 50
    kept.close()


def test_what_is_no_backup_of_sessions_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.tar.zst"
    file.write_bytes(b"PK\3\4 and so on")
    with pytest.raises(ArchiveRefused, match="not compressed by zstd"):
        read_contents(file)
    file.write_bytes(zstandard.compress(b"x" * 2048))
    with pytest.raises(ArchiveRefused, match="no tar file"):
        read_contents(file)
    with pytest.raises(ArchiveRefused, match="does not begin with"):
        read_contents(crafted(file, [MAIN], header=False))
    newer = json.loads(ABOUT.encode()) | {"version": 2}
    with pytest.raises(ArchiveRefused, match="version '2'"):
        read_contents(crafted(file, [(HEADER, json.dumps(newer).encode())], header=False))


def test_one_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    data = whole(tmp_path / "a.tar.zst").read_bytes()
    file = tmp_path / "cut.tar.zst"
    for size in (0, 10, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:size])
        with pytest.raises(ArchiveRefused):
            read_contents(file)
    with pytest.raises(ArchiveRefused, match="not whole"):
        read_contents(crafted(file, [MAIN], sums=False))


def damaged(path: Path, change: Callable[[bytes], bytes]) -> Path:
    data = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    path.write_bytes(zstandard.compress(change(data)))
    return path


def test_damage_is_named(tmp_path: Path) -> None:
    def other(data: bytes) -> bytes:
        return data.replace(b"hello", b"jello")

    with pytest.raises(ArchiveRefused, match=r"logs/1-0\.log' is damaged"):
        read_contents(damaged(whole(tmp_path / "a.tar.zst"), other))


def test_sizes_that_lie_are_refused(tmp_path: Path) -> None:
    def huge(data: bytes) -> bytes:
        info = tarfile.TarInfo(f"{FOLDER}/code/main.py")
        info.size = 1 << 62
        block = info.tobuf(tarfile.GNU_FORMAT)
        at = data.index(b"sessions/kim_mnist_1/code/main.py")
        return data[:at] + block + data[at + 512 :]

    with pytest.raises(ArchiveRefused, match="cut off"):
        read_contents(damaged(whole(tmp_path / "a.tar.zst"), huge))

    def long_header(data: bytes) -> bytes:
        info = tarfile.TarInfo("x")
        info.type, info.size = tarfile.XHDTYPE, 1 << 40
        return data[:1024] + info.tobuf(tarfile.GNU_FORMAT) + data[1024:]

    with pytest.raises(ArchiveRefused, match=r"a header of 1,099,511,627,776 bytes"):
        read_contents(damaged(whole(tmp_path / "a.tar.zst"), long_header))


def test_a_bomb_ends_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_archives, "FREE_BYTES", 1 << 20)
    monkeypatch.setattr(session_archives, "MOST_RATIO", 100)
    file = crafted(tmp_path / "a.tar.zst", [(f"{FOLDER}/code/zeros", bytes(8 << 20))])
    with pytest.raises(ArchiveRefused, match="expands to more than 100 times its size"):
        read_contents(file)
