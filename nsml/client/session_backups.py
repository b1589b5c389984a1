"""Stream sessions into an archive: their records, reported metrics and output, and their files."""

from __future__ import annotations

import json
import tempfile
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import IO, TYPE_CHECKING, Any, Final

from nsml.client.content import open_tree, tree_chunks
from nsml.client.errors import ClientError, NotFound, Unavailable
from nsml.content.digests import verify
from nsml.spec.folders import folder_name, session_folder
from nsml.spec.output_datasets import KEPT_FILES
from nsml.v1 import session_backups_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from google.protobuf.message import Message

    from nsml.client.calls import Client
    from nsml.client.media import Page
    from nsml.content.session_archives import ArchiveWriter
    from nsml.v1.checkpoints_pb2 import Checkpoint
    from nsml.v1.media_pb2 import Media
    from nsml.v1.sessions_pb2 import Session

LOST: Final = "nsml.lost"
"""Kind of the line in place of lost records: `first` and `last` are their positions."""
_PIECE_BYTES: Final = 1 << 20


@dataclass(slots=True)
class Backed:
    """Contents of a session in an archive. `left_out`: missing contents and why, a line each."""

    session: str
    bytes: int = 0
    files: int = 0
    left_out: list[str] = field(default_factory=list)


def message_dict(message: Message) -> dict[str, Any]:
    """A message as JSON, with the contract's own names."""
    from google.protobuf.json_format import MessageToDict

    found: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return found


class SessionBackup:
    """Writes sessions into one archive, one after the other.

    Args:
        client: of the sessions' platform.
        archive: the archive to write.
        with_checkpoints: include the files of checkpoints; else only their records.
        with_datasets: include the files of the datasets used.
        progress: called with the bytes of files and records in the archive.
    """

    def __init__(
        self,
        client: Client,
        archive: ArchiveWriter,
        *,
        with_checkpoints: bool,
        with_datasets: bool,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._archive = archive
        self._with_checkpoints = with_checkpoints
        self._with_datasets = with_datasets
        self._progress = progress
        self._folders: set[str] = set()
        self._trees: dict[str, str] = {}
        """Folders of the archive by the digests of their trees: equal trees are stored once."""
        self._empty: set[str] = set()
        """Folders of trees without files, which are not in the archive."""
        self._no_datasets: dict[str, str] = {}
        """Why a dataset is not in the archive, by its digest."""

    async def size_of(self, session: Session) -> int:
        """Estimate the bytes of its files: checkpoints and artifacts."""
        checkpoints = await self._client.checkpoints.every(session.id)
        artifacts = await self._client.artifacts.every(session.id)
        sizes = {one.digest: one.size_bytes for one in artifacts}
        if self._with_checkpoints:
            sizes |= {one.digest: one.size_bytes for one in checkpoints}
        sizes.pop("", None)
        return sum(sizes.values())

    async def add_datasets(self, sessions: Sequence[Session]) -> int:
        """Add the datasets that sessions used, if `with_datasets`; return the number of files added.

        Call it before `add`. Versions of a name are added in order, so that they are restored in that order. Raises as
        `add`.
        """
        if not self._with_datasets:
            return 0
        found = {
            one.digest: (f"{'' if '/' in one.name else f'{each.owner}/'}{one.name}", one.version)
            for each in sessions
            for one in each.spec.datasets
            if one.digest
        }
        adding = Backed("")
        for digest, (name, version) in sorted(found.items(), key=itemgetter(1)):
            if why := await self._add_dataset(name, version, digest, adding):
                self._no_datasets[digest] = why
        return adding.files

    async def add(self, session: Session) -> Backed:
        """Add an ended session. Raises ClientError, ContentError, OSError: the archive cannot be finished then."""
        backed = Backed(session.name)
        before = self._archive.bytes
        for reference in session.spec.datasets:
            if why := self._no_datasets.get(reference.digest):
                backed.left_out.append(f"dataset {reference.name}@{reference.version}: {why}")
        folder = self._new_folder("sessions", session_folder(session.name))
        code = await self._add_code(session, folder, backed)
        checkpoints = await self._add_checkpoints(session, folder, backed)
        initial = await self._add_initial(session, folder, backed)
        artifacts = await self._add_artifacts(session, folder, backed)
        media = await self._add_media(session, folder, backed)
        for name, rows in (
            ("checkpoints", checkpoints),
            ("artifacts", artifacts),
            ("media", media),
        ):
            if rows:
                self._archive.add(f"{folder}/{name}.jsonl", b"".join(map(_line, rows)))
        await self._add_lock(session, folder)
        await self._add_streams(session, folder)
        record = {
            "session": message_dict(session),
            "code": code,
            "initial_checkpoint": initial,
            "left_out": backed.left_out,
        }
        self._archive.add(f"{folder}/session.json", json.dumps(record, indent=2).encode() + b"\n")
        backed.bytes = self._archive.bytes - before
        return backed

    def _new_folder(self, above: str, name: str) -> str:
        """Return a folder not yet used in the archive."""
        folder, number = f"{above}/{name}", 1
        while folder in self._folders:
            number += 1
            folder = f"{above}/{name}-{number}"
        self._folders.add(folder)
        return folder

    async def _add_tree(
        self,
        path: str,
        root: str,
        what: str,
        backed: Backed,
        shown_by: Callable[[], Awaitable[object]],
    ) -> str | None:
        """Add a tree unless it is in the archive; return its folder there.

        None: the platform has no such tree any more, and `what` is left out. Raises NotFound, among other errors, if the
        tree disappears while it is written.
        """
        if root in self._trees:
            return self._trees[root]
        async with AsyncExitStack() as stack:
            client = self._client
            try:
                tree = await stack.enter_async_context(open_tree(client, root, shown_by=shown_by))
                chunks = await stack.enter_async_context(
                    aclosing(tree_chunks(client, root, tree, shown_by=shown_by))
                )
                # Before the first file begins: an archive cannot undo one.
                data = await anext(chunks, b"")
            except NotFound as error:
                backed.left_out.append(_gone(what, error))
                return None
            for entry in tree.entries:
                adding = self._archive.adding(
                    f"{path}/{entry.path}", entry.size, is_executable=bool(entry.mode & 0o111)
                )
                with adding as write:
                    for ref in entry.chunks:
                        verify(ref.digest, data)
                        write(data)
                        self._progress(self._archive.bytes)
                        data = await anext(chunks, b"")
                backed.files += 1
        self._trees[root] = path
        if not tree.entries:
            self._empty.add(path)
        return path

    async def _add_code(self, session: Session, folder: str, backed: Backed) -> str | None:
        if not (root := session.spec.bundle_digest):
            return None
        shown_by = partial(self._client.sessions.get, session.id)
        return await self._add_tree(f"{folder}/code", root, "the code", backed, shown_by)

    async def _add_checkpoints(
        self, session: Session, folder: str, backed: Backed
    ) -> list[dict[str, Any]]:
        rows = []
        left_out = 0
        for one in await self._client.checkpoints.every(session.id):
            path: str | None = None
            if one.digest and self._with_checkpoints:
                path = await self._add_checkpoint(session, folder, one, backed)
            elif one.digest:
                left_out += 1
            else:
                backed.left_out.append(f"checkpoint {one.name}: {one.why_lost or 'not durable'}")
            rows.append({"checkpoint": message_dict(one), "path": path})
        if left_out:
            backed.left_out.append(f"files of {left_out} checkpoints (--no-checkpoints)")
        return rows

    async def _add_checkpoint(
        self, session: Session, folder: str, one: Checkpoint, backed: Backed
    ) -> str | None:
        what = f"checkpoint {one.name}"
        shown_by = partial(self._client.checkpoints.get, session.id, one.name)
        try:
            # A checkpoint's content may be read only after a request by its name.
            found = await shown_by()
        except NotFound as error:
            backed.left_out.append(_gone(what, error))
            return None
        place = f"{folder}/checkpoints/{folder_name(one.name)}"
        return await self._add_tree(place, found.digest, what, backed, shown_by)

    async def _add_initial(self, session: Session, folder: str, backed: Backed) -> str | None:
        """Return the folder with its initial checkpoint: mostly one of its own, unless that name was saved again.

        "": the checkpoint has no files. None: it is not in the archive.
        """
        if not session.spec.HasField("initial_checkpoint"):
            return None
        initial = session.spec.initial_checkpoint
        if path := self._trees.get(initial.digest):
            return "" if path in self._empty else path
        what = f"checkpoint {initial.name} of {initial.session_name}, with which it began"
        if not self._with_checkpoints:
            backed.left_out.append(f"{what} (--no-checkpoints)")
            return None
        shown_by = partial(self._client.checkpoints.get, initial.session, initial.name)
        try:
            found = await shown_by()
        except NotFound as error:
            backed.left_out.append(_gone(what, error))
            return None
        if found.digest != initial.digest:
            backed.left_out.append(f"{what}: its name was saved again")
            return None
        # No checkpoint has this folder name: see `folder_name`.
        place = f"{folder}/checkpoints/%start"
        path = await self._add_tree(place, found.digest, what, backed, shown_by)
        return "" if path in self._empty else path

    async def _add_artifacts(
        self, session: Session, folder: str, backed: Backed
    ) -> list[dict[str, Any]]:
        rows = []
        for one in await self._client.artifacts.every(session.id):
            path: str | None = None
            is_kept = one.name == KEPT_FILES
            what = f"files of attempt {one.attempt}" if is_kept else f"artifact {one.name}"
            if one.digest:
                shown_by = partial(self._client.artifacts.every, session.id, one.name)
                place = (
                    f"{folder}/files/{one.attempt}"
                    if is_kept
                    else f"{folder}/artifacts/{folder_name(f'{one.name}@{one.version}')}"
                )
                path = await self._add_tree(place, one.digest, what, backed, shown_by)
            else:
                backed.left_out.append(f"{what}: {one.why_lost}")
            rows.append({"artifact": message_dict(one), "path": path})
        return rows

    async def _add_media(
        self, session: Session, folder: str, backed: Backed
    ) -> list[dict[str, Any]]:
        from nsml.client.media import pages
        from nsml.v1.media_pb2 import ListMediaRequest

        rows = []
        tree, replica = "", (0, 0)
        async with aclosing(pages(self._client, ListMediaRequest(session=session.id))) as found:
            async for page in found:
                places: dict[tuple[int, int, str], str] = {}
                async with aclosing(_media_files(self._client, page, backed)) as files:
                    async for one, data in files:
                        if not tree or replica != (one.attempt, one.rank):
                            # A tree ends where another one begins, and never continues.
                            replica = one.attempt, one.rank
                            tree = self._new_folder(f"{folder}/media", "{}-{}".format(*replica))
                        self._archive.add(f"{tree}/{one.file}", data)
                        places[one.attempt, one.rank, one.file] = tree
                        self._progress(self._archive.bytes)
                        backed.files += 1
                for one in page.media:
                    path = places.get((one.attempt, one.rank, one.file))
                    rows.append({"media": message_dict(one), "path": path})
                    if not one.root:
                        backed.left_out.append(f"media {one.name}: {one.why_lost or 'not durable'}")
        return rows

    async def _add_lock(self, session: Session, folder: str) -> None:
        try:
            lock = await self._client.environments.lock(session.id)
        except NotFound:
            return
        self._archive.add(f"{folder}/environment.lock", lock.content.encode())

    async def _add_streams(self, session: Session, folder: str) -> None:
        request = pb.ReadSessionStreamsRequest(session=session.id)
        answers = self._client.rpc.stream(
            "SessionBackupService/ReadSessionStreams", request, pb.ReadSessionStreamsResponse
        )
        stream: _Stream | None = None
        async with aclosing(answers):
            async for answer in answers:
                part = answer.part
                key = (part.is_log, part.attempt, part.rank, part.writer)
                if stream is None or stream.key != key:
                    if stream is not None:
                        stream.add_to(self._archive, folder)
                    stream = _Stream(key)
                stream.take(part)
                self._progress(self._archive.bytes)
        if stream is not None:
            stream.add_to(self._archive, folder)

    async def _add_dataset(self, name: str, version: int, digest: str, adding: Backed) -> str:
        """Add a dataset version if it can be read; return why it is not in the archive, or ""."""
        label = f"dataset {name}@{version}"
        shown_by = partial(self._client.datasets.get, name, version)
        try:
            found = await shown_by()
        except ClientError as error:
            if isinstance(error, Unavailable):
                raise
            return error.message
        if found.in_place:
            return "it is in place"
        if found.digest != digest:
            return "its content or its rights have changed"
        folder = self._new_folder(
            "datasets", folder_name(f"{found.owner}_{found.name}@{found.version}")
        )
        if await self._add_tree(folder, found.digest, label, adding, shown_by) is None:
            return adding.left_out.pop().removeprefix(f"{label}: ")
        record = {"dataset": message_dict(found), "path": folder}
        self._archive.add(f"{folder}.json", json.dumps(record, indent=2).encode() + b"\n")
        return ""


class _Stream:
    """Buffers a stream in a temporary file, since a member of an archive begins with its size."""

    def __init__(self, key: tuple[bool, int, int, int]) -> None:
        self.key = key
        self._is_log = key[0]
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `add_to`
        self._index = tempfile.TemporaryFile()  # noqa: SIM115 - as above

    def take(self, part: pb.StreamPart) -> None:
        """Add the next part."""
        if self._is_log:
            line: dict[str, Any] = {"first": part.first, "last": part.last}
            line |= (
                {"lost": True}
                if part.is_lost
                else {"received_at": part.received_at.ToNanoseconds() / 1e9}
            )
            self._index.write(_line(line))
            self._file.write(part.data)
        elif part.is_lost:
            self._file.write(_line({"kind": LOST, "first": part.first, "last": part.last}))
        else:
            # A line end in JSON is only whitespace between tokens.
            self._file.writelines(record.replace(b"\n", b" ") + b"\n" for record in part.records)

    def add_to(self, archive: ArchiveWriter, folder: str) -> None:
        """Add it to an archive."""
        _, attempt, rank, writer = self.key
        with self._file, self._index:
            if self._is_log:
                _add_file(archive, f"{folder}/logs/{attempt}-{rank}.log", self._file)
                _add_file(archive, f"{folder}/logs/{attempt}-{rank}.jsonl", self._index)
            else:
                path = f"{folder}/records/{attempt}-{rank}-{writer}.jsonl"
                _add_file(archive, path, self._file)


def _add_file(archive: ArchiveWriter, path: str, file: IO[bytes]) -> None:
    size = file.tell()
    file.seek(0)
    archive.add_pieces(path, size, iter(partial(file.read, _PIECE_BYTES), b""))


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _gone(what: str, error: NotFound) -> str:
    return f"{what}: {error.why or error.message}"


async def _media_files(
    client: Client, page: Page, backed: Backed
) -> AsyncGenerator[tuple[Media, bytes], None]:
    """Yield the durable files of a page, replica by replica; those that the platform no longer has are left out."""
    from nsml.client.media import contents

    wanted = sorted((one for one in page.media if one.root), key=_replica)
    groups = [wanted]
    for some in groups:
        came: set[int] = set()
        try:
            async with aclosing(contents(client, some, shown_by=page.shown_by)) as files:
                async for one, data in files:
                    came.add(id(one))
                    yield one, data
        except NotFound as error:
            left = [one for one in some if id(one) not in came]
            by_root = [list(of) for _, of in groupby(left, attrgetter("root"))]
            if some is wanted:
                groups += by_root
            else:
                backed.left_out.extend(_gone(f"media {one.name}", error) for one in left)


def _replica(one: Media) -> tuple[int, int, str]:
    return one.attempt, one.rank, one.root
