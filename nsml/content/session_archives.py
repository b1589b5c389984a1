r"""Archives of sessions: tar files compressed by zstd, readable without nsml by `tar --zstd -x` and `sha256sum -c`.

    nsml-backup.json             first: format, version, platform, time of writing, names of sessions
    datasets/FOLDER/...          files of a dataset, and datasets/FOLDER.json, which identifies it
    sessions/FOLDER/code/...     and checkpoints/NAME/..., artifacts/NAME@V/..., files/ATTEMPT/..., media/ATTEMPT-RANK/...
    sessions/FOLDER/*.jsonl      a line for each checkpoint, artifact, media file
    sessions/FOLDER/records/*    and logs/*: records and output of its programs
    sessions/FOLDER/session.json last of a session: its record
    SHA256SUMS                   last: a line for each member, in their order

The files of a folder such as code/ are adjacent. Names are encoded by `nsml._path_text`. The fields are in
docs/session-backup.md. Archives are untrusted: `check` reads all of one, in bounded memory, before it is used.
Everything here is blocking.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
import tempfile
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final, Self

from nsml.content.errors import ContentError, PathRefused
from nsml.content.paths import split_path

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

FORMAT: Final = "nsml-session-backup"
VERSION: Final = 1
HEADER: Final = "nsml-backup.json"
SUMS: Final = "SHA256SUMS"

MOST_MEMBERS: Final = 5_000_000
MOST_JSON_BYTES: Final = 4 << 20
"""Limit of a JSON member, and of a line of a JSONL member. A program's record has at most 1 MiB."""
FREE_BYTES: Final = 16 << 30
MOST_RATIO: Final = 1_000
"""Expansion limit of an archive: FREE_BYTES, or this many times its own size if larger."""

_BLOCK: Final = tarfile.BLOCKSIZE
_PIECE_BYTES: Final = 1 << 20
_MOST_PAX_BYTES: Final = 64 << 10
_MOST_WINDOW_BYTES: Final = 128 << 20
_LEVEL: Final = 3
_MODE_BITS: Final = 0o111
_TREE: Final = re.compile(
    r"(sessions/[^/]+/(?:code|(?:checkpoints|artifacts|files|media)/[^/]+)|datasets/[^/]+)/(.+)",
    re.DOTALL,
)
_FILE: Final = re.compile(
    r"(?:sessions/[^/]+/(?:session\.json|environment\.lock|(?:checkpoints|artifacts|media)\.jsonl"
    r"|records/[0-9]{1,10}-[0-9]{1,10}-[0-9]{1,20}\.jsonl|logs/[0-9]{1,10}-[0-9]{1,10}\.(?:log|jsonl))"
    r"|datasets/[^/]+\.json)"
)
_DECIMALS: Final = re.compile(rb"[0-9]{1,20}")


class ArchiveRefused(ContentError):
    """Not an archive of sessions, a damaged one, or one not written by nsml; the text says which."""


class NoArchive(ArchiveRefused):
    """A file of another kind; the text says how it was recognized."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of an archive. `taken_at`: RFC 3339, UTC."""

    platform: str
    nsml_version: str
    taken_at: str
    user: str
    sessions: tuple[str, ...]

    def encode(self) -> bytes:
        """Encode as the first member."""
        found = {
            "format": FORMAT,
            "version": VERSION,
            "platform": self.platform,
            "nsml": self.nsml_version,
            "taken_at": self.taken_at,
            "user": self.user,
            "sessions": self.sessions,
        }
        return json.dumps(found, indent=2).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Member:
    """A file of an archive; read its bytes before advancing to the next member.

    Attributes:
        tree: its folder in the archive, such as `sessions/kim_mnist_3/code`; "" for none.
        name: its path in that folder; without a folder, its whole path.
    """

    path: str
    size: int
    is_executable: bool
    pieces: Iterator[bytes]

    @property
    def tree(self) -> str:
        """See above."""
        found = _TREE.fullmatch(self.path)
        return found[1] if found else ""

    @property
    def name(self) -> str:
        """See above."""
        found = _TREE.fullmatch(self.path)
        return found[2] if found else self.path

    def check_path(self) -> None:
        """Raise ArchiveRefused for an unexpected path."""
        try:
            split_path(self.name)
            split_path(self.tree or self.path)
        except PathRefused as error:
            raise ArchiveRefused(str(error)) from error
        if not self.tree and not _FILE.fullmatch(self.path):
            raise ArchiveRefused(f"{self.path[:200]!r} has no place in a backup of sessions")

    def read(self, most: int = MOST_JSON_BYTES) -> bytes:
        """Read all bytes. Raises ArchiveRefused for more than `most`."""
        if self.size > most:
            raise ArchiveRefused(
                f"{self.path!r} has {self.size:,} bytes, and at most {most:,} are read"
            )
        return b"".join(self.pieces)

    def lines(self, most: int = MOST_JSON_BYTES) -> Iterator[bytes]:
        """Iterate over lines without line ends. Raises ArchiveRefused for a line over `most` bytes."""
        held = b""
        for piece in self.pieces:
            *whole, held = (held + piece).split(b"\n")
            yield from whole
            if len(held) > most:
                raise ArchiveRefused(f"{self.path!r} has a line of more than {most:,} bytes")
        if held:
            yield held


class ArchiveWriter:
    """Writes an archive into a file; a context manager. `finish` completes it."""

    def __init__(self, file: IO[bytes], header: Header, *, now: float) -> None:
        import zstandard

        self._compressed = zstandard.ZstdCompressor(level=_LEVEL).stream_writer(file, closefd=False)
        self._lines = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._now = int(now)
        self.bytes = 0
        self.add(HEADER, header.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lines.close()

    def add(self, path: str, data: bytes) -> None:
        """Add a member from memory."""
        self.add_pieces(path, len(data), [data])

    def add_pieces(
        self, path: str, size: int, pieces: Iterable[bytes], *, is_executable: bool = False
    ) -> None:
        """Add a member of `size` bytes."""
        with self.adding(path, size, is_executable=is_executable) as write:
            for piece in pieces:
                write(piece)

    @contextmanager
    def adding(
        self, path: str, size: int, *, is_executable: bool = False
    ) -> Generator[Callable[[bytes], None], None, None]:
        """Add a member of `size` bytes; yields a function to write it piece by piece."""
        info = tarfile.TarInfo(path)
        info.size, info.mtime = size, self._now
        info.mode = 0o755 if is_executable else 0o644
        digest = hashlib.sha256()
        written = 0

        def write(piece: bytes) -> None:
            nonlocal written
            digest.update(piece)
            written += len(piece)
            self._compressed.write(piece)

        # The header only: TarFile cannot add bytes piece by piece.
        self._compressed.write(
            info.tobuf(tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape")
        )
        yield write
        if written != size:
            raise ArchiveRefused(f"{path!r} was to have {size:,} bytes, and {written:,} came")
        self._compressed.write(bytes(-size % _BLOCK))
        self.bytes += size
        if path != SUMS:
            self._lines.write(sum_line(digest.hexdigest(), path))

    def finish(self) -> None:
        """Write SHA256SUMS and the end."""
        size = self._lines.tell()
        self._lines.seek(0)
        self.add_pieces(SUMS, size, iter(partial(self._lines.read, _PIECE_BYTES), b""))
        self._compressed.write(bytes(2 * _BLOCK))
        self._compressed.close()  # type: ignore[no-untyped-call]


def sum_line(digest: str, path: str) -> bytes:
    """Format a `sha256sum` line: with a leading backslash if the name has one."""
    if "\\" in path:
        escaped = path.replace("\\", "\\\\")
        return f"\\{digest}  {escaped}\n".encode()
    return f"{digest}  {path}\n".encode()


def members(file: Path) -> Generator[Member, None, None]:
    """Iterate over the members of an archive, SHA256SUMS included. Raises ArchiveRefused, NoArchive, OSError."""
    import zstandard

    with file.open("rb") as opened:
        if (begins := opened.read(len(zstandard.FRAME_HEADER))) != zstandard.FRAME_HEADER:
            raise NoArchive("it is not compressed by zstd" if begins else "it is empty")
        opened.seek(0)
        reader = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW_BYTES).stream_reader(
            opened, read_across_frames=True
        )
        stream = _Stream(reader.read, size=file.stat().st_size)
        try:
            yield from _members(stream)
        except zstandard.ZstdError as error:
            raise ArchiveRefused(f"it cannot be decompressed: {error}") from error


def check(file: Path, look: Callable[[Member], None] = lambda _: None) -> Header:
    """Read all of an archive and verify its checksums; `look` is called with each member, and may read it.

    Writes nothing. Raises ArchiveRefused, OSError, and whatever `look` raises.
    """
    seen: set[bytes] = set()
    sums = array("Q")
    header: Header | None = None
    is_whole = False
    for member in members(file):
        if is_whole:
            raise ArchiveRefused(f"something is behind its {SUMS}")
        if member.path == SUMS:
            _check_sums(member, sums)
            is_whole = True
            continue
        digest = hashlib.sha256()
        digested = _digesting(member, digest)
        if header is None:
            header = _header(digested)
        else:
            member.check_path()
            _check_once(member.path, seen)
            look(digested)
        for _ in digested.pieces:
            pass
        sums.append(_short(sum_line(digest.hexdigest(), member.path)))
        if len(sums) > MOST_MEMBERS:
            raise ArchiveRefused(f"it has more than {MOST_MEMBERS:,} files")
    if header is None or not is_whole:
        raise ArchiveRefused(f"it ends before its {SUMS}: it is not whole")
    return header


def json_of(data: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object. Raises ArchiveRefused."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArchiveRefused(f"{what!r} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ArchiveRefused(f"{what!r} is no JSON object")
    return found


def _header(member: Member) -> Header:
    if member.path != HEADER:
        raise NoArchive(f"it does not begin with {HEADER}")
    found = json_of(member.read(), HEADER)
    if found.get("format") != FORMAT:
        raise NoArchive(f"its {HEADER} is of another format")
    if found.get("version") != VERSION:
        raise ArchiveRefused(
            f"it has version {str(found.get('version'))[:20]!r} of the format, and this nsml reads {VERSION}"
        )
    texts = [found.get(name) for name in ("platform", "nsml", "taken_at", "user")]
    names = found.get("sessions")
    if not isinstance(names, list) or not all(isinstance(one, str) for one in [*texts, *names]):
        raise ArchiveRefused(f"{HEADER} is not what nsml writes")
    platform, version, taken_at, user = map(str, texts)
    return Header(platform, version, taken_at, user, tuple(names))


def _check_once(path: str, seen: set[bytes]) -> None:
    key = hashlib.blake2b(path.encode(), digest_size=12).digest()
    if key in seen:
        raise ArchiveRefused(f"{path!r} is in it twice")
    seen.add(key)


def _check_sums(member: Member, sums: array[int]) -> None:
    """Check that the lines match the members, in order."""
    place = -1
    for place, line in enumerate(member.lines()):
        if place >= len(sums):
            raise ArchiveRefused(f"{SUMS} names more files than there are")
        if _short(line + b"\n") != sums[place]:
            name = line.partition(b"  ")[2].decode(errors="replace")
            raise ArchiveRefused(f"{name[:200]!r} is damaged: it is not what {SUMS} says")
    if place + 1 != len(sums):
        raise ArchiveRefused(f"{SUMS} names fewer files than there are")


def _short(line: bytes) -> int:
    return int.from_bytes(hashlib.sha256(line).digest()[:8], "big")


def _digesting(member: Member, digest: hashlib._Hash) -> Member:
    def pieces() -> Iterator[bytes]:
        for piece in member.pieces:
            digest.update(piece)
            yield piece

    return Member(member.path, member.size, member.is_executable, pieces())


class _Stream:
    """Decompressed bytes, with the expansion limit of the archive."""

    def __init__(self, read: Callable[[int], bytes], *, size: int) -> None:
        self._read = read
        self._left = max(FREE_BYTES, MOST_RATIO * size)

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes; none at the end."""
        data = self._read(size)
        self._left -= len(data)
        if self._left < 0:
            raise ArchiveRefused(
                f"it expands to more than {MOST_RATIO:,} times its size: it is no backup of sessions"
            )
        return data

    def exactly(self, size: int) -> bytes:
        """Read `size` bytes."""
        parts = []
        while size:
            data = self.read(min(size, _PIECE_BYTES))
            if not data:
                raise ArchiveRefused("it is cut off: it ends within a file")
            parts.append(data)
            size -= len(data)
        return b"".join(parts)

    def pieces(self, size: int) -> Iterator[bytes]:
        """Read `size` bytes in pieces, then skip the padding."""
        left = size
        while left:
            data = self.exactly(min(left, _PIECE_BYTES))
            left -= len(data)
            yield data
        self.exactly(-size % _BLOCK)


def _members(stream: _Stream) -> Iterator[Member]:
    """Read regular files with pax or ustar names; refuses everything else, as nsml writes none of it."""
    pax: dict[str, str] = {}
    is_first = True
    while True:
        block = stream.exactly(_BLOCK)
        if not block.strip(b"\0"):
            return
        info = _tar_info(block, is_first=is_first)
        is_first = False
        if info.size < 0:
            raise ArchiveRefused("it has a file of less than no bytes")
        if info.type == tarfile.XHDTYPE and not pax:
            if info.size > _MOST_PAX_BYTES:
                raise ArchiveRefused(f"it has a header of {info.size:,} bytes")
            pax = _pax(b"".join(stream.pieces(info.size)))
            continue
        if info.type not in {tarfile.REGTYPE, tarfile.AREGTYPE}:
            raise ArchiveRefused(f"{info.name[:200]!r} is no regular file")
        path, size = pax.get("path", info.name), info.size
        if "size" in pax:
            size = int(pax["size"])
        pax = {}
        pieces = stream.pieces(size)
        yield Member(path, size, bool(info.mode & _MODE_BITS), pieces)
        for _ in pieces:
            pass


def _tar_info(block: bytes, *, is_first: bool) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError) as error:
        if is_first:
            raise NoArchive("it is compressed by zstd, and no tar file") from error
        raise ArchiveRefused(f"it has a header that is none of tar: {error}") from error


def _pax(data: bytes) -> dict[str, str]:
    """Parse the records of an extended header: LENGTH KEY=VALUE and a line end each."""
    found: dict[str, str] = {}
    at = 0
    while at < len(data):
        length = _DECIMALS.match(data, at)
        end = at + int(length[0]) if length else at
        record = data[length.end() if length else at : end]
        if not record.startswith(b" ") or not record.endswith(b"\n") or end > len(data):
            raise ArchiveRefused("it has a header that is none of tar")
        key, _, value = record[1:-1].partition(b"=")
        try:
            found[key.decode()] = value.decode()
        except UnicodeDecodeError as error:
            raise ArchiveRefused("it has a name that is not UTF-8") from error
        at = end
    if "size" in found and not _DECIMALS.fullmatch(found["size"].encode()):
        raise ArchiveRefused("it has a size that is none")
    return found
