"""A folder of backups: written by who makes them, checked by anybody, read by who restores one.

    FOLDER/                  private to its owner
        nsml-backups         says what the folder is
        lock                 held while a backup is written
        blobs/ab/cdef...     content by digest, framed; shared by all backups of the folder
        20261122T081500Z/    one backup, named by when it was taken (UTC)
            manifest.json    what it is, and the digest of everything in it
            store  history  objects
            keys/            files that only the owner of the platform may read
        .NAME.partial/       one that was broken off: the next backup removes it

A backup gets its name when all of it is on disk. Everything here is blocking.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nsml.content.digests import digest_of, is_digest, verify
from nsml.content.errors import BlobCorrupt, ContentError
from nsml.content.framing import frame, unframe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FORMAT: Final = 1
MARK: Final = "nsml-backups"
PARTS: Final = ("store", "history", "objects")
MAX_BLOB_BYTES: Final = 256 << 20
_PIECE_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"[a-z]+\.[a-z]+\Z")


class BackupError(ContentError):
    """A folder that is no folder of backups, or a backup that is not whole; the text says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Size and digest of a file of a backup."""

    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a backup is.

    Attributes:
        parts: of PARTS; without "objects" the blobs are kept elsewhere.
        keys: private files by their names.
        blob_count: of those that it refers to.
        lost: digests that the platform had in its list and could not read.
        choices: how the platform was set up on its machine, for who sets it up again.
    """

    cluster_id: str
    version: str
    data_version: int
    revision: int
    taken_at: float
    parts: Mapping[str, Part] = field(default_factory=dict)
    keys: Mapping[str, Part] = field(default_factory=dict)
    blob_count: int = 0
    lost: tuple[str, ...] = ()
    choices: Mapping[str, Any] = field(default_factory=dict)


class Backup:
    """One backup that has its name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.blobs = path.parent / "blobs"
        self.manifest = _read_manifest(path / "manifest.json")

    def pieces(self, part: str) -> Iterator[bytes]:
        """The bytes of a part, in order; none of one that the backup does not have."""
        if part in self.manifest.parts:
            with (self.path / part).open("rb") as file:
                while piece := file.read(_PIECE_BYTES):
                    yield piece

    def digests(self) -> Iterator[str]:
        """The blobs that it refers to and has."""
        if "objects" not in self.manifest.parts:
            return
        lost = set(self.manifest.lost)
        with (self.path / "objects").open(encoding="ascii") as file:
            for line in file:
                digest = line.rstrip("\n")
                if not is_digest(digest):
                    raise BackupError(f"{self.path / 'objects'} has a line that is no digest")
                if digest not in lost:
                    yield digest

    def key(self, name: str) -> bytes:
        """A private file."""
        return (self.path / "keys" / name).read_bytes()

    def blob(self, digest: str) -> bytes:
        """A blob, verified; BackupError."""
        path = _blob_path(self.blobs, digest)
        try:
            data = unframe(path.read_bytes(), max_bytes=MAX_BLOB_BYTES)
            verify(digest, data)
        except FileNotFoundError:
            raise BackupError(f"{path} is missing") from None
        except BlobCorrupt as error:
            raise BackupError(f"{path} is damaged: {error}") from error
        return data

    def check(self, *, with_blobs: bool = True) -> None:
        """Compare everything with the digests in the manifest.

        Raises:
            BackupError: something is missing or damaged; the text names the file.
        """
        for name, part in self.manifest.parts.items():
            _check_file(self.path / name, part)
        for name, part in self.manifest.keys.items():
            _check_file(self.path / "keys" / name, part)
        for digest in self.digests() if with_blobs else ():
            self.blob(digest)


class Draft:
    """A backup that is being written; `finish` gives it its name."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._blobs = folder / "blobs"
        self._target = folder / name
        self._path = folder / f".{name}.partial"
        self._path.mkdir(mode=0o700)
        self._parts: dict[str, Part] = {}
        self._keys: dict[str, Part] = {}

    @property
    def digests(self) -> Iterator[str]:
        """The blobs that it refers to, once the part "objects" is there."""
        path = self._path / "objects"
        if path.exists():
            with path.open(encoding="ascii") as file:
                yield from (line.rstrip("\n") for line in file)

    @contextlib.contextmanager
    def writing(self, part: str) -> Iterator[_Writing]:
        """A part, piece by piece; it is on disk when the block ends."""
        if part not in PARTS:
            raise BackupError(f"a backup has no part {part!r}")
        with _new_file(self._path / part) as writing:
            yield writing
        self._parts[part] = writing.part

    def add_key(self, name: str, content: bytes) -> None:
        """A private file."""
        (self._path / "keys").mkdir(mode=0o700, exist_ok=True)
        with _new_file(self._path / "keys" / name) as writing:
            writing.write(content)
        self._keys[name] = writing.part

    def has_blob(self, digest: str) -> bool:
        """Whether an earlier backup in the folder has it."""
        return _blob_path(self._blobs, digest).exists()

    def add_blob(self, digest: str, data: bytes) -> None:
        """Keep a blob; on disk when this returns. BackupError when `data` is something else."""
        path = _blob_path(self._blobs, digest)
        try:
            verify(digest, data)
        except BlobCorrupt as error:
            raise BackupError(str(error)) from error
        path.parent.mkdir(mode=0o700, exist_ok=True)
        draft = self._path / "incoming"
        with _new_file(draft) as writing:
            writing.write(frame(data))
        draft.replace(path)

    def finish(self, manifest: Manifest) -> Backup:
        """Everything is there: from now on it is a backup. The parts need not be in `manifest`."""
        record = {
            **{name: getattr(manifest, name) for name in _PLAIN},
            "lost": list(manifest.lost),
            "choices": dict(manifest.choices),
            "parts": {name: _part_record(part) for name, part in self._parts.items()},
            "keys": {name: _part_record(part) for name, part in self._keys.items()},
        }
        text = json.dumps(record, sort_keys=True)
        whole = {"format": FORMAT, "digest": digest_of(text.encode()), "backup": record}
        with _new_file(self._path / "manifest.json") as writing:
            writing.write(json.dumps(whole, indent=1).encode() + b"\n")
        keys = self._path.glob("keys")
        for folder in (*self._blobs.glob("??"), self._blobs, *keys, self._path):
            _flush_folder(folder)
        self._path.rename(self._target)
        _flush_folder(self._folder)
        return Backup(self._target)


_PLAIN: Final = ("cluster_id", "version", "data_version", "revision", "taken_at", "blob_count")


class _Writing:
    """A file that is being written, and the digest of what it has."""

    def __init__(self, descriptor: int) -> None:
        from blake3 import blake3

        self._descriptor = descriptor
        self._digest = blake3()
        self._size = 0

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self._digest.update(data)
        self._size += len(data)

    @property
    def part(self) -> Part:
        return Part(size_bytes=self._size, digest=self._digest.hexdigest())


@contextlib.contextmanager
def drafting(folder: Path, name: str) -> Iterator[Draft]:
    """A new backup in a folder, which is made if it is not there. Left unfinished, it is removed.

    Raises:
        BackupError: the folder is something else, or another backup is being written there.
        OSError: the disk refuses.
    """
    import fcntl  # POSIX only; importing this module asks for nothing

    _open_folder(folder)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BackupError(f"another backup is being written to {folder}") from None
        if (folder / name).exists():
            raise BackupError(
                f"{folder / name} is there already: a second later it has another name"
            )
        for left in folder.glob(".*.partial"):
            shutil.rmtree(left)
        draft = Draft(folder, name)
        try:
            yield draft
        finally:
            shutil.rmtree(folder / f".{name}.partial", ignore_errors=True)
    finally:
        os.close(descriptor)


def backups_in(path: Path) -> list[Path]:
    """The backups of a folder, oldest first; of one backup that one alone.

    Raises:
        BackupError: it is neither, or there is none.
    """
    if (path / "manifest.json").exists():
        return [path]
    if not (path / MARK).exists():
        raise BackupError(f"{path} is no folder of backups: nsml admin backup makes one")
    found = sorted(one.parent for one in path.glob("[!.]*/manifest.json"))
    if not found:
        raise BackupError(f"there is no finished backup in {path}")
    return found


def _open_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    mark = folder / MARK
    if not mark.exists():
        if any(folder.iterdir()):
            raise BackupError(f"{folder} has other files in it: name an empty or a new folder")
        mark.write_text(f"{FORMAT}\n", encoding="ascii")
    if mark.read_text(encoding="ascii").strip() != str(FORMAT):
        raise BackupError(f"{folder} has backups of a newer nsml: use that one")
    folder.chmod(0o700)
    (folder / "blobs").mkdir(mode=0o700, exist_ok=True)


def _blob_path(blobs: Path, digest: str) -> Path:
    if not is_digest(digest):
        raise BackupError(f"{digest!r} is no digest")
    return blobs / digest[:2] / digest[2:]


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[_Writing]:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        yield _Writing(descriptor)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _part_record(part: Part) -> dict[str, Any]:
    return {"size_bytes": part.size_bytes, "digest": part.digest}


def _check_file(path: Path, part: Part) -> None:
    from blake3 import blake3

    digest, size = blake3(), 0
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
                size += len(piece)
    except FileNotFoundError:
        raise BackupError(f"{path} is missing") from None
    if size != part.size_bytes:
        raise BackupError(f"{path} is damaged: it has {size} bytes instead of {part.size_bytes}")
    if digest.hexdigest() != part.digest:
        raise BackupError(f"{path} is damaged: it has other content than when it was written")


def _read_manifest(path: Path) -> Manifest:
    try:
        whole = json.loads(path.read_bytes())
        if whole["format"] != FORMAT:
            raise BackupError(f"{path} is of a newer nsml: use that one")
        record = whole["backup"]
        if digest_of(json.dumps(record, sort_keys=True).encode()) != whole["digest"]:
            raise BackupError(f"{path} is damaged: it has other content than when it was written")
        if not (record["parts"].keys() <= set(PARTS) and all(map(_NAME.match, record["keys"]))):
            raise BackupError(f"{path} names files that no backup has")
        return Manifest(
            **{name: record[name] for name in _PLAIN},
            lost=tuple(record["lost"]),
            choices=record["choices"],
            parts={name: Part(**part) for name, part in record["parts"].items()},
            keys={name: Part(**part) for name, part in record["keys"].items()},
        )
    except FileNotFoundError:
        raise BackupError(f"{path} is missing") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BackupError(f"{path} is damaged: {error!r}") from error
