"""Manifests of some parts of a tree, made from the manifest of all of it.

What is made lists chunks that are stored already, so it costs its own bytes alone. A large encoding is divided by a process of
its own, one at a time, with a limit of memory, as large ones are read (`manifests.py`): no tree is in memory, here or there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from controlplane.content.manifest_reader import MEMORY_BYTES
from controlplane.content.manifests import READ_WITHIN_S, SMALL_BYTES
from controlplane.domain.errors import InvalidRequest
from controlplane.limits.concurrency_limits import Turns
from controlplane.limits.user_storage import blob_bytes
from controlplane.state.lru import LruDict
from nsml.content.digests import digest_of
from nsml.content.errors import ContentError
from nsml.content.manifest import encoded
from nsml.content.pages import Naming
from nsml.content.stored_manifest import StoredManifest
from nsml.content.tree_parts import part_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from controlplane.content.manifests import Manifests
    from controlplane.limits.admission import Admission
    from controlplane.objects.interface import ObjectStore
    from nsml.common.clock import Clock, Offload
    from nsml.content.manifest import EntryLike

    _Asked = tuple[str, frozenset[str], tuple[frozenset[str], ...]]

REMEMBERED: Final = 1_024
"""Divisions that are remembered,"""
MADE_FOR_S: Final = 600.0
"""and for how long: what nothing refers to may be put aside at any time. See `object_gc.py`."""

_NICE: Final = 10
_REFUSED_CODE: Final = 3
_PUT_BYTES: Final = 16 << 20
"""Pages that are put together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtree:
    """A manifest that was made and stored, be it of no files."""

    digest: str
    size_bytes: int
    file_count: int


class Subtrees:
    """Divides trees.

    Args:
        run: for small manifests, and for what reads and writes files.
        clock: by which it is remembered what was made: to change a dataset of many versions may take several calls.
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
        self._made: LruDict[_Asked, tuple[float, list[Subtree]]] = LruDict(REMEMBERED)

    async def make(
        self, user: str, root: str, parts: Collection[str], groups: Sequence[Collection[str]]
    ) -> list[Subtree]:
        """Store a manifest of each group of parts, for a user, as whose upload they count.

        Raises:
            NotFound: there is no manifest of this digest, or a page of it is not there.
            InvalidRequest: it is none, or it takes too much to divide it.
            LimitReached: too many calls of the user wait already, or the user may not send or keep so much.
        """
        asked = root, frozenset(parts), tuple(map(frozenset, groups))
        async with self._turns.turn(user):
            known = self._made.get(asked)
            if known is not None and self._clock.monotonic() - known[0] < MADE_FOR_S:
                return known[1]
            with tempfile.TemporaryDirectory(prefix="nsml-manifest-") as folder:
                whole = Path(folder, "whole")
                encoded_bytes = await self._fetch(user, root, whole)
                wanted = sorted(parts), [sorted(one) for one in groups]
                if encoded_bytes > SMALL_BYTES:
                    sizes = await _divide_apart(whole, *wanted)
                else:
                    try:
                        sizes = await self._run(partial(_divide, whole, *wanted))
                    except ContentError as error:
                        raise _refused(str(error)) from error
                found = [
                    Subtree(
                        digest=await self._store(user, _part(whole, number)),
                        size_bytes=size,
                        file_count=files,
                    )
                    for number, (files, size) in enumerate(sizes)
                ]
            self._made.keep(asked, (self._clock.monotonic(), found))
            return found

    async def _fetch(self, who: str, root: str, whole: Path) -> int:
        """Write the encoding to a file; gives its length."""
        with whole.open("wb") as file:
            async with aclosing(self._manifests.encoding(who, root)) as pieces:
                try:
                    async for piece in pieces:
                        await self._run(partial(file.write, piece))
                except ContentError as error:
                    raise _refused(str(error)) from error
            return file.tell()

    async def _store(self, user: str, encoding: Path) -> str:
        """Put what names a tree; gives its digest."""
        with encoding.open("rb") as file:
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

    async def _put(self, user: str, blobs: Mapping[str, bytes]) -> None:
        size = blob_bytes(map(len, blobs.values()))
        async with self._admission.uploading(user, map(len, blobs.values())):
            await self._objects.put_many(blobs)
        self._admission.noted_kept(user, size, is_noted=False)
        await self._admission.borrow(user, size)


def _part(whole: Path, number: int) -> Path:
    return whole.with_name(f"part-{number}")


def _divide(
    whole: Path, parts: Sequence[str], groups: Sequence[Sequence[str]]
) -> list[tuple[int, int]]:
    """Write the encoding of each group beside the whole one; gives files and bytes of each.

    Raises ContentError for what is no encoding of a tree.
    """
    known, sizes = frozenset(parts), list[tuple[int, int]]()
    with StoredManifest(whole) as manifest:
        manifest.check()
        for number, group in enumerate(groups):
            wanted = frozenset(group)
            files = size = 0

            def kept(wanted: Collection[str] = wanted) -> Iterator[EntryLike]:
                nonlocal files, size
                for entry in manifest.entries:
                    if part_of(entry.path, known) in wanted:
                        files, size = files + 1, size + entry.size
                        yield entry

            with _part(whole, number).open("wb") as file:
                file.writelines(encoded(kept()))
            sizes.append((files, size))
    return sizes


async def _divide_apart(
    whole: Path, parts: Sequence[str], groups: Sequence[Sequence[str]]
) -> list[tuple[int, int]]:
    """As `_divide`, in a process of its own. Raises InvalidRequest."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", __name__, str(whole)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(READ_WITHIN_S):
            answer, error = await process.communicate(json.dumps([parts, groups]).encode())
    except TimeoutError:
        raise _refused(f"that takes longer than {READ_WITHIN_S:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode == _REFUSED_CODE:
        raise _refused(error.decode())
    if process.returncode:
        raise _refused(f"that takes more than {MEMORY_BYTES >> 30} GiB of memory")
    return [(files, size) for files, size in json.loads(answer)]


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest("the manifest cannot be divided into parts", why=why)


def main() -> None:
    """Divide the encoding in a file, as standard input says; sizes go to standard output."""
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for the control plane
    parts, groups = json.load(sys.stdin)
    try:
        sizes = _divide(Path(sys.argv[1]), parts, groups)
    except ContentError as error:
        sys.stderr.write(str(error))
        sys.exit(_REFUSED_CODE)
    json.dump(sizes, sys.stdout)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
