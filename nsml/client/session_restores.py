"""Restore sessions from an archive: it is checked completely before the first byte is sent, then session by session."""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from nsml.client.errors import MissingBlobs, NotFound, Unavailable
from nsml.client.session_backups import LOST
from nsml.client.uploads import find_missing, upload
from nsml.common.clock import in_thread
from nsml.common.concurrency import to_its_end
from nsml.content.extract import naming
from nsml.content.packing import pack_files
from nsml.content.paths import native_parts
from nsml.content.safe_paths import beneath
from nsml.content.session_archives import (
    HEADER,
    MOST_JSON_BYTES,
    SUMS,
    ArchiveRefused,
    check,
    json_of,
    members,
)
from nsml.packages.locks import MOST_LOCK_BYTES
from nsml.v1 import artifacts_pb2, checkpoints_pb2, datasets_pb2, media_pb2, sessions_pb2
from nsml.v1 import session_backups_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from _typeshed import WriteableBuffer

    from nsml.client.calls import Client
    from nsml.content.session_archives import Header, Member

MOST_SESSIONS: Final = 100_000
MOST_HELD_BYTES: Final = 256 << 20
"""Most bytes in memory of an archive: records of its sessions, and names of their trees."""
MOST_RECORD_BYTES: Final = 2 << 20
"""Longest line of records: programs write a MiB at most, and a line must fit in a message."""
_MOST_BYTES: Final = 1 << 62
_PIECE_BYTES: Final = 1 << 20
_PART_RECORDS: Final = 1_000
_MOST_DEPTH: Final = 50
_DATASET: Final = "dataset.json"
"""Name of a dataset's record in this module; in the archive it is FOLDER.json."""
_LARGEST: Final = 1 << 53
_TRIES: Final = 3
"""Tries to restore a session if the platform removes its files before it exists."""
_STREAM: Final = re.compile(
    r"(?P<folder>sessions/[^/]+)/(?:records/(?P<record>[0-9]+-[0-9]+-[0-9]+)\.jsonl"
    r"|logs/(?P<log>[0-9]+-[0-9]+)\.(?P<kind>log|jsonl))"
)

M = TypeVar(
    "M",
    sessions_pb2.Session,
    checkpoints_pb2.Checkpoint,
    artifacts_pb2.Artifact,
    media_pb2.Media,
    datasets_pb2.Dataset,
)


@dataclass(slots=True)
class Inside:
    """A session of an archive.

    Attributes:
        folder: its folder in the archive.
        code: the folder with its code; "": not in the archive.
        initial: the folder with its initial checkpoint; "": not in the archive, or without files if `is_initial_empty`.
        trees: the folders with its files, including its code.
        left_out: contents missing in the archive, a line each.
    """

    folder: str
    session: sessions_pb2.Session = field(default_factory=sessions_pb2.Session)
    code: str = ""
    initial: str = ""
    is_initial_empty: bool = False
    trees: set[str] = field(default_factory=set)
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Contents:
    """Checked contents of an archive. `bytes`: total size of its files; `datasets`: versions with files, as OWNER/NAME@N."""

    header: Header
    sessions: dict[str, Inside]
    bytes: int
    datasets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored session. `was`: its name in the archive."""

    session: sessions_pb2.Session
    was: str
    was_there: bool
    left_out: tuple[str, ...] = ()
    datasets: tuple[tuple[str, str], ...] = ()
    """Datasets with another name or version than in the archive: the old and the new NAME@N."""


def read_contents(file: Path, progress: Callable[[int], None] = lambda _: None) -> Contents:
    """Check an archive. Blocking; nothing is written. Raises ArchiveRefused, OSError."""
    looking = _Looking(progress)
    header = check(file, looking.look)
    looking.check()
    return Contents(header, looking.sessions, looking.bytes, tuple(looking.datasets))


class _Looking:
    """The first pass over an archive: collects session records and trees."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress = progress
        self._trees: set[str] = set()
        self._tree = ""
        self.sessions: dict[str, Inside] = {}
        self.datasets: list[str] = []
        self._referring: dict[str, set[str]] = {}
        self._began: dict[str, _Began] = {}
        """Checkpoints of no attempt, by session folder: older versions record the initial checkpoint in no other way."""
        self._held = 0
        self.bytes = 0

    def look(self, member: Member) -> None:
        self.bytes += member.size
        self._progress(self.bytes)
        tree = member.tree
        if tree and tree != self._tree:
            if tree in self._trees:
                raise ArchiveRefused(f"{tree[:200]!r} goes on behind other files")
            self._hold(len(tree))
            self._trees.add(tree)
        self._tree = tree
        if tree:
            return
        folder, name = _placed(member.path)
        if name == "session.json":
            self._look_at_session(folder, member)
            return
        if folder in self.sessions:
            raise ArchiveRefused(f"{member.path!r} is behind the record of its session")
        if name == _DATASET:
            self._look_at_dataset(folder, member)
        elif name in _ROWS:
            self._look_at_rows(folder, name, member)
        else:
            _check_size(name, member)

    def _look_at_session(self, folder: str, member: Member) -> None:
        if len(self.sessions) == MOST_SESSIONS:
            raise ArchiveRefused(f"it has more than {MOST_SESSIONS:,} sessions")
        self._hold(member.size)
        inside = _inside(folder, member)
        began = self._began.pop(folder, None)
        if began is not None and not inside.initial and not inside.is_initial_empty:
            _set_began(inside, began)
        inside.trees |= self._referring.pop(folder, set())
        self.sessions[folder] = inside

    def _look_at_dataset(self, folder: str, member: Member) -> None:
        found = _dataset(member)
        if folder in self._trees:  # else its files are missing
            self._hold(len(found.owner) + len(found.name))
            self.datasets.append(f"{found.owner}/{found.name}@{found.version}")

    def _look_at_rows(self, folder: str, name: str, member: Member) -> None:
        if folder not in self._referring and len(self._referring) == MOST_SESSIONS:
            raise ArchiveRefused(f"it has more than {MOST_SESSIONS:,} sessions")
        trees = self._referring.setdefault(folder, set())
        for row in _rows(member, *_ROWS[name]):
            if isinstance(row.message, checkpoints_pb2.Checkpoint) and not row.message.attempt:
                began = _Began(row.path, row.message.digest[:_MOST_DIGEST], row.is_empty)
                self._hold(len(began.path) + len(began.digest))
                self._began[folder] = began
            if row.path and not row.is_empty and row.path not in trees:
                self._hold(len(row.path))
                trees.add(row.path)

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > MOST_HELD_BYTES:
            raise ArchiveRefused(f"records of sessions have more than {MOST_HELD_BYTES:,} bytes")

    def check(self) -> None:
        """Raise ArchiveRefused if a named tree or record is missing."""
        if self._referring:
            raise ArchiveRefused(f"{next(iter(self._referring))!r} has no record of a session")
        for inside in self.sessions.values():
            if lacks := inside.trees - self._trees:
                name = inside.session.name[:200]
                raise ArchiveRefused(f"{min(lacks)[:200]!r}, files of {name!r}, is not in it")


def _check_size(name: str, member: Member) -> None:
    """Raise ArchiveRefused for a file too large to read later, or to fit in a message."""
    if name == "environment.lock":
        member.read(MOST_LOCK_BYTES)
    elif name.endswith(".jsonl"):
        for _ in member.lines(MOST_RECORD_BYTES):
            pass


async def restore(
    client: Client,
    file: Path,
    contents: Contents,
    *,
    progress: Callable[[int], None] = lambda _: None,
    restored: Callable[[Restored], None] = lambda _: None,
) -> None:
    """Restore the sessions of an archive; `restored` is called with each. Sessions restored before are not sent again.

    Raises ClientError, ContentError, OSError: earlier sessions stay restored, and another call continues after them.
    """
    with tempfile.TemporaryDirectory(prefix="nsml-restore-") as scratch:
        restoring = _Restoring(client, contents, Path(scratch), restored)
        if await restoring.look():
            await restoring.send(file, progress)


async def find_restored(
    client: Client, session: sessions_pb2.Session, platform: str
) -> sessions_pb2.Session | None:
    """Return the caller's session that was restored from this one; None: it can be. Raises ClientError."""
    request = pb.RestoredSession(session=session, platform=platform, validate_only=True)
    answer = await client.rpc.upload(
        "SessionBackupService/RestoreSession",
        _each([pb.RestoreSessionRequest(session=request)]),
        pb.RestoreSessionResponse,
    )
    return answer.session if answer.was_there else None


@dataclass(frozen=True, slots=True)
class _Row:
    """A checkpoint, an artifact or a media file; `path`: the folder of the archive with its files, "" for none."""

    message: checkpoints_pb2.Checkpoint | artifacts_pb2.Artifact | media_pb2.Media
    path: str

    @property
    def is_empty(self) -> bool:
        """Whether it has no files, so that its folder is not in the archive."""
        return not isinstance(self.message, media_pb2.Media) and not self.message.file_count


class _Began(NamedTuple):
    """A checkpoint that may be the initial one, until the record of its session is read."""

    path: str
    digest: str
    is_empty: bool


_MOST_DIGEST: Final = 128
_ROWS: Final = {
    "checkpoints.jsonl": ("checkpoint", checkpoints_pb2.Checkpoint),
    "artifacts.jsonl": ("artifact", artifacts_pb2.Artifact),
    "media.jsonl": ("media", media_pb2.Media),
}


class _Restoring:
    """The second pass over an archive: sends everything."""

    def __init__(
        self,
        client: Client,
        contents: Contents,
        scratch: Path,
        restored: Callable[[Restored], None],
    ) -> None:
        self._client = client
        self._contents = contents
        self._scratch = scratch
        self._restored = restored
        self._wanted: set[str] = set()
        self._left: dict[str, Inside] = {}
        self._roots: dict[str, str] = {}
        self._datasets: dict[str, tuple[str, int, str]] = {}
        """Restored name, version and digest, by the digest in the archive."""
        self._made_here: set[str] = set()
        """Names of the datasets that this restore made."""
        self._empty_root = ""
        self._streams: dict[str, _Kept] = {}
        self._tree: _Tree | None = None
        self._file = Path()
        self._progress: Callable[[int], None] = lambda _: None
        self._done = 0

    async def look(self) -> bool:
        """Query the sessions that exist already; return whether any is left to send."""
        for folder, inside in self._contents.sessions.items():
            request = pb.RestoreSessionRequest(session=self._session(inside, is_check=True))
            answer = await self._call([request])
            if answer.was_there:
                self._restored(Restored(answer.session, inside.session.name, was_there=True))
            else:
                self._left[folder] = inside
                self._wanted |= inside.trees
        return bool(self._left)

    async def send(self, file: Path, progress: Callable[[int], None]) -> None:
        """Send the rest; `progress` counts half of the bytes when they are read, and half when they are sent."""
        self._progress = progress
        self._file = file
        try:
            async for member in _members(file):
                is_kept = await self._send(member)
                self._count(member.size if is_kept else 2 * member.size)
            if self._tree is not None:
                raise ArchiveRefused("it ends within the files of a session")
        finally:
            if self._tree is not None:
                self._tree.remove()
            for kept in self._streams.values():
                kept.close()

    def _count(self, size: int) -> None:
        self._done += size
        self._progress(self._done // 2)

    async def _send(self, member: Member) -> bool:
        """Process the next file; return whether it belongs to a tree, which is sent as a whole."""
        if self._tree is not None and member.tree != self._tree.path:
            tree, self._tree = self._tree, None
            await self._push(tree)
        if member.tree in self._wanted or member.tree.startswith("datasets/"):
            if self._tree is None:
                self._tree = _Tree(member.tree, self._scratch)
            member.check_path()
            await to_its_end(in_thread(partial(self._tree.add, member)))
            return True
        if not member.tree and member.path not in {HEADER, SUMS}:
            await self._take(member)
        return False

    async def _push(self, tree: _Tree) -> None:
        """Send the missing chunks of a tree, and record its digest."""
        try:
            before = self._done
            self._roots[tree.path] = await self._pushed(tree.folder, tree.names)
            self._count(tree.bytes - (self._done - before))
        finally:
            tree.remove()

    async def _send_again(self, trees: set[str]) -> None:
        """Send missing chunks of trees sent before: the platform soon removes content that nothing refers to."""
        tree: _Tree | None = None
        try:
            async for member in _members(self._file):
                if tree is not None and member.tree != tree.path:
                    sent, tree = tree, None
                    await self._upload(sent.folder, sent.names)
                    sent.remove()
                if member.tree in trees:
                    tree = tree or _Tree(member.tree, self._scratch)
                    member.check_path()
                    await to_its_end(in_thread(partial(tree.add, member)))
        finally:
            if tree is not None:
                tree.remove()
        await self._upload(self._empty(), [])

    async def _upload(self, folder: Path, names: list[str]) -> None:
        packed = await in_thread(partial(pack_files, folder, names, max_bytes=_MOST_BYTES))
        await upload(self._client, packed)

    def _empty(self) -> Path:
        folder = self._scratch / "empty"
        folder.mkdir(exist_ok=True)
        return folder

    async def _pushed(self, folder: Path, names: list[str]) -> str:
        packed = await in_thread(partial(pack_files, folder, names, max_bytes=_MOST_BYTES))
        root = packed.manifest.digest
        if await find_missing(self._client, [root], root=root):
            before = self._done
            await upload(
                self._client,
                packed,
                progress=lambda sent: self._count(sent.bytes - (self._done - before)),
            )
        return root

    async def _root(self, row: _Row) -> str:
        """Return the digest of its restored files; "": not in the archive."""
        if not row.path:
            return ""
        if row.path not in self._roots and row.is_empty:
            self._roots[row.path] = await self._pushed(self._empty(), [])
        if row.path not in self._roots:
            raise ArchiveRefused(f"{row.path[:200]!r} is not in it any more")
        return self._roots[row.path]

    async def _take(self, member: Member) -> None:
        """Process a file outside of trees: keep it until the record of its session or dataset is read."""
        folder, name = _placed(member.path)
        if folder.startswith("datasets/"):
            await self._make_dataset(folder, member)
        elif folder not in self._left:
            return
        elif name == "session.json":
            await self._make_session(self._left[folder])
        else:
            kept = self._streams.setdefault(folder, _Kept(self._scratch))
            await to_its_end(in_thread(partial(kept.add, name, member)))

    async def _make_dataset(self, folder: str, member: Member) -> None:
        """Restore a version to the user's own datasets; under another name if theirs has other content."""
        found = _dataset(member)
        if folder not in self._roots:
            return
        root = self._roots[folder]
        for name in (found.name, f"{found.name}.restored"):
            try:
                known = await self._client.datasets.versions(name)
            except NotFound:
                known = []
            same = [one.version for one in known if one.digest == root]
            # An archive, which may be a stranger's, adds no version to a dataset that was here before.
            if same or not known or name in self._made_here:
                break
        if not same:
            made = await self._client.datasets.create_version(
                datasets_pb2.CreateDatasetVersionRequest(
                    name=name, digest=root, message=found.message
                )
            )
            same = [made.dataset.version]
            self._made_here.add(name)
        self._datasets[found.digest] = (name, same[0], root)

    async def _make_session(self, inside: Inside) -> None:
        kept = self._streams.pop(inside.folder, None) or _Kept(self._scratch)
        if inside.is_initial_empty:
            self._empty_root = await self._pushed(self._empty(), [])
        try:
            answer = await self._made(inside, kept)
        finally:
            kept.close()
        self._restored(
            Restored(
                answer.session,
                inside.session.name,
                answer.was_there,
                inside.left_out,
                self._renamed(inside),
            )
        )

    async def _made(self, inside: Inside, kept: _Kept) -> pb.RestoreSessionResponse:
        for _ in range(_TRIES - 1):
            try:
                return await self._call(self._requests(inside, kept))
            except MissingBlobs:
                await self._send_again(inside.trees)
            except Unavailable:
                # A refusal during sending may look like a broken connection.
                roots = [self._roots[one] for one in inside.trees if one in self._roots]
                if not await find_missing(self._client, roots):
                    raise
                await self._send_again(inside.trees)
        return await self._call(self._requests(inside, kept))

    def _session(
        self, inside: Inside, *, lock: str = "", is_check: bool = False
    ) -> pb.RestoredSession:
        made = pb.RestoredSession(
            session=inside.session,
            platform=self._contents.header.platform,
            environment_lock=lock,
            validate_only=is_check,
        )
        spec = made.session.spec
        spec.bundle_digest = "" if is_check else self._roots.get(inside.code, "")
        if spec.HasField("initial_checkpoint"):
            empty = self._empty_root if inside.is_initial_empty else ""
            root = self._roots.get(inside.initial, empty)
            spec.initial_checkpoint.digest = "" if is_check else root
        for one in spec.datasets:
            if one.digest in self._datasets:
                # Its program reads it from the same folder as before.
                one.folder = one.folder or one.name.rpartition("/")[2]
                one.name, one.version, one.digest = self._datasets[one.digest]
                if one.folder == one.name:
                    one.folder = ""
        return made

    def _renamed(self, inside: Inside) -> tuple[tuple[str, str], ...]:
        """Return the old and new NAME@N of datasets whose name or version changed."""
        pairs = []
        for one in inside.session.spec.datasets:
            if one.digest in self._datasets:
                name, version, _ = self._datasets[one.digest]
                pairs.append((f"{one.name}@{one.version}", f"{name}@{version}"))
        return tuple((was, now) for was, now in pairs if was.rpartition("/")[2] != now)

    async def _requests(
        self, inside: Inside, kept: _Kept
    ) -> AsyncIterator[pb.RestoreSessionRequest]:
        lock = kept.text("environment.lock", MOST_LOCK_BYTES)
        yield pb.RestoreSessionRequest(session=self._session(inside, lock=lock))
        for name, (kind, message) in _ROWS.items():
            for line in kept.lines(name):
                row = _row(line, name, kind, message)
                root = await self._root(row)
                if isinstance(row.message, media_pb2.Media):
                    row.message.root = root
                    yield pb.RestoreSessionRequest(media=row.message)
                else:
                    row.message.digest = root
                    made = pb.RestoreSessionRequest()
                    getattr(made, kind).CopyFrom(row.message)
                    yield made
        for part in kept.parts(inside.folder):
            yield pb.RestoreSessionRequest(part=part)
        yield pb.RestoreSessionRequest(is_whole=True)

    async def _call(
        self, requests: AsyncIterator[pb.RestoreSessionRequest] | list[pb.RestoreSessionRequest]
    ) -> pb.RestoreSessionResponse:
        given = _each(requests) if isinstance(requests, list) else requests
        return await self._client.rpc.upload(
            "SessionBackupService/RestoreSession", given, pb.RestoreSessionResponse
        )


async def _members(file: Path) -> AsyncIterator[Member]:
    """Yield the members of an archive, decompressed in threads, even if they are not read."""
    with closing(members(file)) as found:
        while (member := await to_its_end(in_thread(partial(next, found, None)))) is not None:
            yield member


async def _each(
    requests: list[pb.RestoreSessionRequest],
) -> AsyncIterator[pb.RestoreSessionRequest]:
    for one in requests:
        yield one


class _Tree:
    """A tree of the archive, extracted to its own folder, writable only by this user."""

    def __init__(self, path: str, scratch: Path) -> None:
        self.path = path
        self.names: list[str] = []
        self.bytes = 0
        self.folder = scratch / "tree"
        self.folder.mkdir()
        self._made: set[tuple[str, ...]] = set()
        self._stack = ExitStack()
        self._root = self._stack.enter_context(beneath(self.folder))

    def add(self, member: Member) -> None:
        """Write a file. Raises ExtractRefused if this file system cannot have its name."""
        parts = native_parts(member.name)
        with naming(member.name):
            for depth in range(1, len(parts)):
                if parts[:depth] not in self._made:
                    self._root.make_folder(parts[:depth])
                    self._made.add(parts[:depth])
            opened = self._root.create_file(parts)
        try:
            for piece in member.pieces:
                view = memoryview(piece)
                while view:
                    view = view[os.write(opened, view) :]
            os.fchmod(opened, 0o755 if member.is_executable else 0o644)
        finally:
            os.close(opened)
        self.names.append(member.name)
        self.bytes += member.size

    def remove(self) -> None:
        """Remove its folder; idempotent."""
        self._stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class _Kept:
    """Small files and streams of a session, concatenated in a temporary file until its record is read."""

    def __init__(self, scratch: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 - closed by `close`
        self._places: dict[str, tuple[int, int]] = {}

    def add(self, name: str, member: Member) -> None:
        """Append a file."""
        start = self._file.seek(0, os.SEEK_END)
        self._file.writelines(member.pieces)
        self._places[name] = start, self._file.tell()
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _opened(self, name: str) -> IO[bytes]:
        start, end = self._places.get(name, (0, 0))
        return io.BufferedReader(_Slice(self._file.fileno(), start, end))

    def text(self, name: str, most: int) -> str:
        """Read a small file; "": none. Raises ArchiveRefused for more than `most` bytes, or no UTF-8."""
        data = self._opened(name).read(most + 1)
        if len(data) > most:
            raise ArchiveRefused(f"{name!r} has more than {most:,} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise ArchiveRefused(f"{name!r} is no text") from error

    def lines(self, name: str) -> Iterator[bytes]:
        """Yield the lines of a file, without line ends; none if it is missing."""
        file = self._opened(name)
        while line := file.readline(MOST_JSON_BYTES + 1):
            if len(line) > MOST_JSON_BYTES:
                raise ArchiveRefused(f"{name!r} has a line of more than {MOST_JSON_BYTES:,} bytes")
            yield line.removesuffix(b"\n")

    def parts(self, folder: str) -> Iterator[pb.StreamPart]:
        """Yield the parts of all streams, in order."""
        for name in sorted(self._places):
            found = _STREAM.fullmatch(f"{folder}/{name}")
            if found is None:
                continue
            if found["record"]:
                attempt, rank, writer = map(int, found["record"].split("-"))
                yield from _record_parts(self.lines(name), _stream(attempt, rank, writer))
            elif found["kind"] == "log":
                attempt, rank = map(int, found["log"].split("-"))
                index = self.lines(f"logs/{attempt}-{rank}.jsonl")
                yield from _log_parts(
                    self._opened(name), index, _stream(attempt, rank, is_log=True)
                )


class _Slice(io.RawIOBase):
    """The bytes [start, end) of a file that has other readers."""

    def __init__(self, file: int, start: int, end: int) -> None:
        self._file = file
        self._at = start
        self._end = end

    def readable(self) -> bool:
        return True

    def readinto(self, into: WriteableBuffer, /) -> int:
        view = memoryview(into)
        data = os.pread(self._file, min(len(view), self._end - self._at), self._at)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def _stream(attempt: int, rank: int, writer: int = 0, *, is_log: bool = False) -> pb.StreamPart:
    if not (0 < attempt < 1 << 32 and rank < 1 << 32 and writer < 1 << 63):
        raise ArchiveRefused(f"it has a stream of attempt {attempt}, rank {rank}")
    return pb.StreamPart(attempt=attempt, rank=rank, writer=writer, is_log=is_log)


def _record_parts(lines: Iterator[bytes], stream: pb.StreamPart) -> Iterator[pb.StreamPart]:
    """Yield parts of records with their positions; a line may mark lost records."""
    first = 1
    batch: list[bytes] = []
    size = 0

    def part(last: int, **fields: Any) -> pb.StreamPart:
        made = pb.StreamPart(first=first, last=last, **fields)
        made.MergeFrom(stream)
        return made

    for line in lines:
        lost = _lost(line, first + len(batch))
        if batch and (lost or size + len(line) > _PIECE_BYTES or len(batch) == _PART_RECORDS):
            yield part(first + len(batch) - 1, records=batch)
            first, batch, size = first + len(batch), [], 0
        if lost:
            yield part(lost, is_lost=True)
            first = lost + 1
        else:
            batch.append(line)
            size += len(line)
    if batch:
        yield part(first + len(batch) - 1, records=batch)


def _lost(line: bytes, first: int) -> int:
    """Return the last position of records lost from `first` on; 0: the line is a record."""
    if LOST.encode() not in line:
        return 0
    try:
        found = json_of(line, "a record")
    except ArchiveRefused:
        return 0
    last = found.get("last")
    is_mark = found.get("kind") == LOST and found.get("first") == first
    return last if is_mark and type(last) is int and first <= last < _LARGEST else 0


def _log_parts(
    file: IO[bytes], index: Iterator[bytes], stream: pb.StreamPart
) -> Iterator[pb.StreamPart]:
    """Yield the bytes of a log with their receive times."""
    wanted = 0
    for line in index:
        found = json_of(line, "the index of a log")
        first, last = found.get("first"), found.get("last")
        if (
            type(first) is not int
            or type(last) is not int
            or not wanted <= first <= last < _LARGEST
        ):
            raise ArchiveRefused("the index of a log is not in order")
        wanted = last + 1
        made = pb.StreamPart(first=first, last=last)
        made.MergeFrom(stream)
        if found.get("lost") is True:
            made.is_lost = True
            yield made
            continue
        at = found.get("received_at")
        if isinstance(at, int | float) and 0 < at < 1 << 33:
            made.received_at.FromNanoseconds(round(at * 1e9))
        while first <= last:
            data = file.read(min(last - first + 1, _PIECE_BYTES))
            if not data:
                raise ArchiveRefused("a log is shorter than its index says")
            made.first, made.last, made.data = first, first + len(data) - 1, data
            yield made
            first += len(data)


def _placed(path: str) -> tuple[str, str]:
    """Return the folder of a file's session or dataset, and the file's name there."""
    kind, _, rest = path.partition("/")
    if kind == "datasets":
        return path.removesuffix(".json"), _DATASET
    folder, _, name = rest.partition("/")
    return f"{kind}/{folder}", name


def _dataset(member: Member) -> datasets_pb2.Dataset:
    found = json_of(member.read(), member.path)
    return _parsed(found.get("dataset"), datasets_pb2.Dataset, member)


def _inside(folder: str, member: Member) -> Inside:
    found = json_of(member.read(), member.path)
    code, left_out = found.get("code"), found.get("left_out", [])
    if not isinstance(code, str | None) or not isinstance(left_out, list):
        raise ArchiveRefused(f"{member.path!r} is not what nsml writes")
    session = _parsed(found.get("session"), sessions_pb2.Session, member)
    if not session.id or not session.name:
        raise ArchiveRefused(f"{member.path!r} is the record of no session")
    initial = found.get("initial_checkpoint")
    if not isinstance(initial, str | None):
        raise ArchiveRefused(f"{member.path!r} is not what nsml writes")
    return Inside(
        folder,
        session,
        code=code or "",
        initial=initial or "",
        is_initial_empty=initial == "",
        trees={one for one in (code, initial) if one},
        left_out=tuple(str(one) for one in left_out),
    )


def _set_began(inside: Inside, began: _Began) -> None:
    """Set the session's initial checkpoint to `began` if the digests match."""
    if began.path and began.digest == inside.session.spec.initial_checkpoint.digest:
        inside.is_initial_empty = began.is_empty
        inside.initial = "" if began.is_empty else began.path


def _rows(member: Member, kind: str, message: type[Any]) -> Iterator[_Row]:
    for line in member.lines():
        yield _row(line, member.path, kind, message)


def _row(line: bytes, what: str, kind: str, message: type[Any]) -> _Row:
    found = json_of(line, what)
    path = found.get("path")
    if not isinstance(path, str | None):
        raise ArchiveRefused(f"{what!r} is not what nsml writes")
    return _Row(_parsed(found.get(kind), message, what), path or "")


def _parsed(value: Any, message: type[M], member: Member | str) -> M:
    """Parse a message of the contract from JSON; unknown fields, of newer versions, are ignored."""
    from google.protobuf.json_format import ParseDict, ParseError

    path = member if isinstance(member, str) else member.path
    if not isinstance(value, dict):
        raise ArchiveRefused(f"{path!r} is not what nsml writes")
    made = message()
    try:
        ParseDict(value, made, ignore_unknown_fields=True, max_recursion_depth=_MOST_DEPTH)
    except (ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ArchiveRefused(f"{path!r} is not what nsml writes: {str(error)[:200]}") from error
    return made
