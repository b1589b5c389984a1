"""Manifests of parts of a tree, made from the manifest of the whole tree.

Their chunks are already stored, so they cost only their own bytes. Large encodings are divided one
at a time, in a separate process with a memory limit, as they are read (`manifests.py`): neither
process holds a tree in memory.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from controlplane.content.limited_process import (
    NoRoom,
    OverLimit,
    no_file,
    run_limited,
    work_limited,
)
from controlplane.content.manifests import SMALL_BYTES
from controlplane.content.shared_tasks import ANSWER_WITHIN_S, SharedTasks
from controlplane.domain.errors import RETRY_AFTER_S, InvalidRequest, Unavailable
from controlplane.limits.concurrency_limits import Turns
from controlplane.state.lru import LruDict
from nsml.common.concurrency import to_its_end
from nsml.content.counted_bytes import blob_bytes
from nsml.content.digests import digest_of
from nsml.content.errors import ContentError
from nsml.content.manifest import ENCODED_HEAD, ENCODED_TAIL, encoded_entries
from nsml.content.pages import Naming
from nsml.content.stored_manifest import StoredManifest
from nsml.content.tree_parts import part_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence
    from typing import IO

    from controlplane.content.manifests import Manifests
    from controlplane.limits.admission import Admission
    from controlplane.objects.interface import ObjectStore
    from nsml.common.clock import Clock, Offload
    from nsml.content.manifest import EntryLike

    _Asked = tuple[str, frozenset[str], tuple[frozenset[str], ...], str]

REMEMBERED: Final = 1_024
"""Cached divisions."""
MADE_FOR_S: Final = 600.0
"""Cache lifetime: unreferenced objects may be put aside at any time. See `object_gc.py`."""

_PUT_BYTES: Final = 16 << 20
"""Size of a batch of pages."""
_HELD_ENTRIES: Final = 256
"""Files of a group written per batch."""

TOP_FILES: Final = "/"
"""In a group: the files at the top of the tree, whatever their part. No part has this path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtree:
    """A stored manifest of some parts, perhaps of no files.

    `match`: the first path in it with the searched name; "": there is none, or no search.
    """

    digest: str
    size_bytes: int
    file_count: int
    match: str = ""


class Subtrees:
    """Divides trees.

    Args:
        run: for small manifests, and file I/O.
        clock: for the cache's expiry: changing a dataset of many versions may take several calls.
    """

    def __init__(
        self,
        manifests: Manifests,
        objects: ObjectStore,
        admission: Admission,
        run: Offload,
        clock: Clock,
    ) -> None:
        self._manifests = manifests
        self._objects = objects
        self._admission = admission
        self._run = run
        self._clock = clock
        self._turns = Turns("for manifests to be divided")
        self.tasks: SharedTasks[tuple[str, _Asked], list[Subtree]] = SharedTasks(
            "the manifest is being divided"
        )
        self._made: LruDict[_Asked, tuple[float, list[Subtree]]] = LruDict(REMEMBERED)

    async def make(
        self,
        user: str,
        root: str,
        parts: Collection[str],
        groups: Sequence[Collection[str]],
        *,
        search: str = "",
    ) -> list[Subtree]:
        """Store a manifest of each group of parts, as an upload of the user.

        `search`: find the first path of each group with a file or folder whose name begins like this, letter case
        aside.

        Raises:
            NotFound: the manifest, or a page of it, is missing.
            InvalidRequest: it is no manifest, or exceeds a limit of its division.
            LimitReached: too many of the user's calls are waiting, or an upload limit or quota is exceeded.
            Unavailable: it takes longer than a call, and continues; or no room for temporary files.
        """
        asked = root, frozenset(parts), tuple(map(frozenset, groups)), search
        work = partial(self._made_in_turn, user, asked)
        return await self.tasks.result((user, asked), work, within_s=ANSWER_WITHIN_S)

    async def _made_in_turn(self, user: str, asked: _Asked) -> list[Subtree]:
        async with self._turns.turn(user):
            known = self._made.get(asked)
            if known is not None and self._clock.monotonic() - known[0] < MADE_FOR_S:
                return known[1]
            try:
                found = await self._make(user, asked)
            except (ContentError, OverLimit) as error:
                raise _refused(str(error)) from error
            except (NoRoom, OSError) as error:
                raise Unavailable(
                    "the manifest cannot be divided into parts now",
                    why=str(error) if isinstance(error, NoRoom) else no_file(error),
                    retry_after_s=RETRY_AFTER_S,
                ) from error
            self._made.keep(asked, (self._clock.monotonic(), found))
            return found

    async def _make(self, user: str, asked: _Asked) -> list[Subtree]:
        """Raises as `run_limited`, and OSError."""
        root, parts, groups, search = asked
        folder = await self._run(partial(tempfile.TemporaryDirectory, prefix="nsml-manifest-"))
        try:
            whole = Path(folder.name, "whole")
            if await self._fetch(user, root, whole) > SMALL_BYTES:
                made = await _divide_apart(whole, parts, groups, search)
            else:
                made = await self._run(partial(_divide, whole, parts, groups, search))
            return [
                Subtree(
                    digest=await self._store(user, _part(whole, number)),
                    size_bytes=size,
                    file_count=files,
                    match=match,
                )
                for number, (files, size, match) in enumerate(made)
            ]
        finally:
            await to_its_end(self._run(folder.cleanup))

    async def _fetch(self, who: str, root: str, whole: Path) -> int:
        """Write the encoding to a file; return its length."""
        size = 0
        async with aclosing(self._manifests.encoding(who, root)) as pieces:
            async for piece in pieces:
                size += await self._run(partial(_append, whole, piece))
        return size

    async def _store(self, user: str, encoding: Path) -> str:
        """Store the pages and root of an encoding; return the root's digest."""
        file = await self._run(lambda: encoding.open("rb"))
        try:
            naming = Naming(file)
            held: dict[str, bytes] = {}
            while page := await self._run(naming.read):
                held[digest_of(page)] = page
                if sum(map(len, held.values())) >= _PUT_BYTES:
                    await self._put(user, held)
                    held = {}
            root = naming.root()
            await self._put(user, {**held, root.digest: root.data})
            return root.digest
        finally:
            await to_its_end(self._run(file.close))

    async def _put(self, user: str, blobs: Mapping[str, bytes]) -> None:
        size = blob_bytes(map(len, blobs.values()))
        async with self._admission.uploading(user, map(len, blobs.values())):
            await self._objects.put_many(blobs)
        self._admission.noted_kept(user, size, is_noted=False)
        await self._admission.borrow(user, size)


def _part(whole: Path, number: int) -> Path:
    return whole.with_name(f"part-{number}")


def _append(path: Path, data: bytes) -> int:
    with path.open("ab") as file:
        return file.write(data)


def _divide(
    whole: Path, parts: Collection[str], groups: Sequence[Collection[str]], search: str
) -> list[tuple[int, int, str]]:
    """Write the encoding of each group beside the whole one; return (files, bytes, match) of each.

    Raises ContentError if it is no encoding of a tree.
    """
    with StoredManifest(whole) as manifest, ExitStack() as files:
        manifest.check()
        made = [
            _Group(files.enter_context(_part(whole, number).open("wb")), search)
            for number in range(len(groups))
        ]
        by_part = {
            part: [one for one, group in zip(made, groups, strict=True) if part in group]
            for part in frozenset().union(*groups)
        }
        top = by_part.get(TOP_FILES, ())
        for entry in manifest.entries:
            own = by_part.get(part_of(entry.path, parts), ())
            for one in own:
                one.add(entry)
            if top and "/" not in entry.path:
                for one in top:
                    if one not in own:
                        one.add(entry)
        for one in made:
            one.end()
        return [(one.file_count, one.size_bytes, one.match) for one in made]


class _Group:
    """Writes the encoding of some files of a tree, added in its order, to a file; searches their paths."""

    def __init__(self, file: IO[bytes], search: str) -> None:
        self.file_count = self.size_bytes = 0
        self.match = ""
        self._search = f"/{search.casefold()}" if search else ""
        self._file = file
        self._held: list[EntryLike] = []
        file.write(ENCODED_HEAD)

    def add(self, entry: EntryLike) -> None:
        if self._search and not self.match and self._search in f"/{entry.path}".casefold():
            self.match = entry.path
        self._held.append(entry)
        if len(self._held) >= _HELD_ENTRIES:
            self._write()

    def end(self) -> None:
        self._write()
        self._file.write(ENCODED_TAIL)

    def _write(self) -> None:
        self._file.writelines(encoded_entries(self._held, is_first=not self.file_count))
        self.file_count += len(self._held)
        self.size_bytes += sum(entry.size for entry in self._held)
        self._held = []


async def _divide_apart(
    whole: Path, parts: Collection[str], groups: Sequence[Collection[str]], search: str
) -> list[tuple[int, int, str]]:
    """`_divide` in a separate process; raises as `run_limited`."""
    wanted = json.dumps([sorted(parts), [sorted(one) for one in groups], search]).encode()

    async def given() -> AsyncIterator[bytes]:
        yield wanted

    answer = await run_limited(__name__, str(whole), given=given())
    return [(files, size, match) for files, size, match in json.loads(answer)]


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest("the manifest cannot be divided into parts", why=why)


def main() -> None:
    """Divide the encoding in a file into the groups on stdin; print sizes to stdout."""

    def work() -> str:
        parts, groups, search = json.load(sys.stdin)
        return json.dumps(_divide(Path(sys.argv[1]), frozenset(parts), groups, search))

    work_limited(work)


if __name__ == "__main__":
    main()
