"""A folder of backups: writing, checking and restoring them.

    FOLDER/                  private to its owner
        nsml-backups         identifies the folder
        lock                 held while a backup is written
        blobs/ab/cdef...     content by digest, framed; shared by all backups of the folder
        20261122T081500Z/    one backup, named by its time (UTC)
            manifest.json    its metadata, and the digest of everything in it
            store  history  objects
            keys/            files that only the owner of the platform may read
        .NAME.partial/       an aborted backup: the next backup removes it

A backup gets its name when all of it is on disk. Others may have changed the folder since: only regular
files of bounded size are read, links are not followed, and a restore must call `refuse_foreign` first. Everything
here is blocking.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nsml.common.private_files import is_exposed
from nsml.content.digests import digest_of, is_digest, verify
from nsml.content.errors import BlobCorrupt, ContentError
from nsml.content.framing import frame, unframe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import BinaryIO

FORMAT: Final = 1
MARK: Final = "nsml-backups"
PARTS: Final = ("store", "history", "objects")
MAX_BLOB_BYTES: Final = 256 << 20
_PIECE_BYTES: Final = 1 << 20
_MOST_MANIFEST_BYTES: Final = 64 << 20
_MOST_KEY_BYTES: Final = 1 << 20
_MOST_LINE_BYTES: Final = 1 << 10
_NAME: Final = re.compile(r"[a-z]+\.[a-z]+\Z")


class BackupError(ContentError):
    """Not a folder of backups, or an incomplete backup; the text says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """Size and digest of a file of a backup."""

    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The metadata of a backup.

    Attributes:
        parts: of PARTS; without "objects" the blobs are kept elsewhere.
        keys: private files by their names.
        blob_count: number of referenced blobs.
        lost: digests of blobs listed by the platform but unreadable.
        choices: the platform's setup options on its machine, for setting it up again.
    """

    cluster_id: str
    version: str
    data_version: int
    revision: int
    taken_at: float
    parts: Mapping[str, FileDigest] = field(default_factory=dict)
    keys: Mapping[str, FileDigest] = field(default_factory=dict)
    blob_count: int = 0
    lost: tuple[str, ...] = ()
    choices: Mapping[str, Any] = field(default_factory=dict)


class Backup:
    """One finished backup."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.blobs = path.parent / "blobs"
        self.manifest = _read_manifest(path / "manifest.json")

    def pieces(self, part: str) -> Iterator[bytes]:
        """Read a part piece by piece; nothing if the backup lacks it."""
        if part in self.manifest.parts:
            with _opened(self.path / part) as file:
                while piece := file.read(_PIECE_BYTES):
                    yield piece

    def digests(self) -> Iterator[str]:
        """The referenced blobs except lost ones."""
        if "objects" not in self.manifest.parts:
            return
        lost = set(self.manifest.lost)
        with _opened(self.path / "objects") as file:
            # Longer lines are no digests: the limit bounds the memory.
            while line := file.readline(_MOST_LINE_BYTES):
                digest = line.removesuffix(b"\n").decode("ascii", errors="replace")
                if not is_digest(digest):
                    raise BackupError(f"{self.path / 'objects'} has a line that is no digest")
                if digest not in lost:
                    yield digest

    def key(self, name: str) -> bytes:
        """Read a private file."""
        return _read(self.path / "keys" / name, _MOST_KEY_BYTES)

    def blob(self, digest: str) -> bytes:
        """Read and verify a blob; BackupError."""
        path = _blob_path(self.blobs, digest)
        try:
            data = unframe(_read(path, MAX_BLOB_BYTES + _PIECE_BYTES), max_bytes=MAX_BLOB_BYTES)
            verify(digest, data)
        except BlobCorrupt as error:
            raise BackupError(f"{path} is damaged: {error}") from error
        return data

    def refuse_foreign(self) -> None:
        """Refuse a backup if other accounts can change it or read its private keys.

        A restore trusts its users, tokens and keys. Blobs need no check: they have digests.

        Raises:
            BackupError: the text names the file.
        """
        keys = [self.path / "keys" / name for name in self.manifest.keys if name != "ca.pem"]
        parts = [self.path / name for name in ("manifest.json", *self.manifest.parts)]
        folders = [self.path.parent, self.path]
        for place in (*folders, *parts, *((keys[0].parent, *keys) if keys else ())):
            try:
                # a folder may be named by way of a link
                facts = place.stat() if place in folders else place.lstat()
            except FileNotFoundError:
                raise BackupError(f"{place} is missing") from None
            if problem := _foreign(facts):
                raise BackupError(
                    f"{place} {problem}, and could say anything: make sure that it is yours, copy it,"
                    " chown -R the copy to the account that restores it, and chmod -R go= it"
                )
        for place in keys:
            if is_exposed(place.lstat()):
                raise BackupError(
                    f"{place} may be read by others on this machine: chmod -R go= {self.path}; who has"
                    " read it has the platform"
                )

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
    """A backup being written; `finish` gives it its name."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._blobs = folder / "blobs"
        self._target = folder / name
        self._path = folder / f".{name}.partial"
        self._path.mkdir(mode=0o700)
        self._parts: dict[str, FileDigest] = {}
        self._keys: dict[str, FileDigest] = {}

    @property
    def digests(self) -> Iterator[str]:
        """The digests of its blobs; empty before the part "objects" is written."""
        path = self._path / "objects"
        if path.exists():
            with path.open(encoding="ascii") as file:
                yield from (line.rstrip("\n") for line in file)

    @contextlib.contextmanager
    def writing(self, part: str) -> Iterator[_Writing]:
        """Write a part piece by piece; it is on disk when the block ends."""
        if part not in PARTS:
            raise BackupError(f"a backup has no part {part!r}")
        with _new_file(self._path / part) as writing:
            yield writing
        self._parts[part] = writing.part

    def add_key(self, name: str, content: bytes) -> None:
        """Add a private file."""
        (self._path / "keys").mkdir(mode=0o700, exist_ok=True)
        with _new_file(self._path / "keys" / name) as writing:
            if writing.is_exposed:
                raise BackupError(
                    f"on the disk of {self._folder} no file can be closed to other accounts, and the"
                    " platform's private keys would be open: --without-keys leaves them out"
                )
            writing.write(content)
        self._keys[name] = writing.part

    def has_blob(self, digest: str) -> bool:
        """Whether the folder already has this blob."""
        return _blob_path(self._blobs, digest).exists()

    def add_blob(self, digest: str, data: bytes) -> None:
        """Store a blob; on disk when this returns. BackupError if `data` does not match `digest`."""
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
        """Complete the backup and give it its name. `manifest` needs no parts or keys."""
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
    """A file being written, and the digest of its bytes so far."""

    def __init__(self, descriptor: int) -> None:
        from blake3 import blake3

        self._descriptor = descriptor
        self._digest = blake3()
        self._size = 0

    @property
    def is_exposed(self) -> bool:
        """Whether other accounts may read it despite its mode at creation."""
        return is_exposed(os.fstat(self._descriptor))

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self._digest.update(data)
        self._size += len(data)

    @property
    def part(self) -> FileDigest:
        return FileDigest(size_bytes=self._size, digest=self._digest.hexdigest())


@contextlib.contextmanager
def drafting(folder: Path, name: str) -> Iterator[Draft]:
    """Start a backup in a folder, created if missing. Unfinished, it is removed.

    Raises:
        BackupError: the folder is something else, or another backup is being written there.
        OSError: writing failed.
    """
    import fcntl  # POSIX only: the module must import everywhere

    _open_folder(folder)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(folder / "lock", flags, 0o600)
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
    """List the backups of a folder, oldest first; of a backup, only itself.

    Raises:
        BackupError: it is neither, or has none.
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
    if _is_anothers(folder.stat()):
        raise BackupError(
            f"{folder} belongs to another account, which could put anything into the backups there:"
            " name a folder of your own"
        )
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


def _is_anothers(facts: os.stat_result) -> bool:
    """Whether a file belongs to neither us nor root; False on systems without such accounts."""
    who_we_are = getattr(os, "geteuid", None)
    return who_we_are is not None and facts.st_uid not in {0, who_we_are()}


def _foreign(facts: os.stat_result) -> str:
    """Return why an account other than ours and root may have changed a file; "" if none may."""
    if _is_anothers(facts):
        return "belongs to another account"
    if stat.S_ISLNK(facts.st_mode):
        return "is a link"
    is_open = hasattr(os, "geteuid") and facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_shared = stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX  # as /tmp
    return "may be changed by other accounts" if is_open and not is_shared else ""


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file of a backup for reading.

    Raises BackupError if it is missing, a link, a device, or a pipe, which would block.
    """
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):  # not all systems have all
        flags |= getattr(os, name, 0)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise BackupError(f"{path} is missing") from None
    except OSError as error:
        if path.is_symlink() or not path.is_file():
            raise BackupError(f"{path} is no regular file") from None
        raise BackupError(f"{path} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BackupError(f"{path} is no regular file")
        yield file


def _read(path: Path, most_bytes: int) -> bytes:
    """Read a small file of a backup. Raises BackupError."""
    with _opened(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise BackupError(f"{path} is damaged: it has more than {most_bytes} bytes")
    return data


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


def _part_record(part: FileDigest) -> dict[str, Any]:
    return {"size_bytes": part.size_bytes, "digest": part.digest}


def _check_file(path: Path, part: FileDigest) -> None:
    from blake3 import blake3

    digest, size = blake3(), 0
    with _opened(path) as file:
        there = os.fstat(file.fileno()).st_size
        while size <= part.size_bytes and (piece := file.read(_PIECE_BYTES)):
            digest.update(piece)
            size += len(piece)
    if size != part.size_bytes:
        raise BackupError(f"{path} is damaged: it has {there} bytes instead of {part.size_bytes}")
    if digest.hexdigest() != part.digest:
        raise BackupError(f"{path} is damaged: it has other content than when it was written")


def _read_manifest(path: Path) -> Manifest:
    try:
        whole = json.loads(_read(path, _MOST_MANIFEST_BYTES))
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
            parts={name: FileDigest(**part) for name, part in record["parts"].items()},
            keys={name: FileDigest(**part) for name, part in record["keys"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BackupError(f"{path} is damaged: {error!r}") from error
