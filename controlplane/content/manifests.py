"""What manifests list, read within limits: whoever sends one decides how large it is, and whether it is one.

One is read at a time for each kind, small and large; callers take turns, whatever each of them asks for, and who waits
holds no bytes. Large ones are read by a process of their own, with a limit of memory: parsing fifty megabytes
would stop all other calls for a second, and leave a gigabyte behind. What is no manifest is remembered too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import InvalidRequest
from controlplane.domain.names import check_digest
from controlplane.limits.concurrency_limits import Turns
from controlplane.state.lru import LruDict
from nsml.content import manifest as manifests
from nsml.content.errors import ContentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from controlplane.objects.interface import ObjectStore
    from nsml.common.clock import Offload
    from nsml.content.manifest import Manifest

SMALL_BYTES: Final = 1 << 20
"""Manifests up to this size are read in a thread: about 8,000 files, some 100 ms."""

MEMBERS: Final = 1_000_000
"""Blobs of which it is remembered that a manifest lists them."""

REFUSED: Final = 4_096
"""Manifests of which it is remembered why they are none, or that they are large."""

READ_WITHIN_S: Final = 300.0
MEMORY_BYTES: Final = 4 << 30
"""Address space of the process that reads a large manifest: one of a million files takes 1.6 GB."""

_NICE: Final = 10
_REFUSED_CODE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a manifest lists.

    Attributes:
        blobs: digests of its chunks.
        sizes: bytes of each file, by its path; None where only their number was asked for.
        size: bytes of all files.
        different: bytes of its chunks, each counted once.
        file_count: how many files.
    """

    blobs: frozenset[str]
    sizes: Mapping[str, int] | None = None
    size: int
    different: int
    file_count: int


class Manifests:
    """Reads manifests from the object store.

    Args:
        run: for small ones.
    """

    def __init__(self, objects: ObjectStore, run: Offload) -> None:
        self._objects = objects
        self._run = run
        self._small, self._large = (Turns("for manifests to be read") for _ in range(2))
        self._large_ones: LruDict[str, None] = LruDict(REFUSED)
        self._known: LruDict[str, Listing] = LruDict(MEMBERS, weigh=_weight)
        self._refused: LruDict[str, str] = LruDict(REFUSED)

    async def listing(self, who: str, root: str, *, is_with_sizes: bool = False) -> Listing:
        """What the manifest stored under a digest lists; `who` waits for it.

        Raises:
            NotFound: there is none.
            InvalidRequest: what is there is no manifest, or takes too much to read.
            LimitReached: too many calls of `who` wait already.
        """
        check_digest(root)
        if known := self._remembered(root, is_with_sizes=is_with_sizes):
            return known
        if root not in self._large_ones:
            async with self._small.turn(who):
                # Somebody before us may have wanted the same.
                if known := self._remembered(root, is_with_sizes=is_with_sizes):
                    return known
                data = await self._objects.get(root)
                if len(data) <= SMALL_BYTES:
                    return await self._read(root, data, is_with_sizes=is_with_sizes)
                self._large_ones.keep(root, None)
                del data  # who waits holds nothing
        async with self._large.turn(who):
            if known := self._remembered(root, is_with_sizes=is_with_sizes):
                return known
            data = await self._objects.get(root)
            return await self._read(root, data, is_with_sizes=is_with_sizes)

    def _remembered(self, root: str, *, is_with_sizes: bool) -> Listing | None:
        if why := self._refused.get(root):
            raise _no_manifest(root, why)
        known = self._known.get(root)
        return None if known is None or (is_with_sizes and known.sizes is None) else known

    async def _read(self, root: str, data: bytes, *, is_with_sizes: bool) -> Listing:
        try:
            if len(data) > SMALL_BYTES:
                known = await _read_apart(data, is_with_sizes=is_with_sizes)
            else:
                known = _listing(await self._run(partial(manifests.decode, data)))
        except ContentError as error:
            self._refused.keep(root, str(error))
            raise _no_manifest(root, str(error)) from error
        except _TooMuch as error:
            raise _no_manifest(root, str(error)) from error
        self._known.keep(root, known)
        return known


class _TooMuch(Exception):
    """A manifest cannot be read within the limits; another time it may."""


def _no_manifest(root: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{root[:12]} is not a manifest", why=why)


def _weight(listing: Listing) -> int:
    return len(listing.blobs) + len(listing.sizes or ())


def _listing(manifest: Manifest) -> Listing:
    blobs = manifest.blobs()
    return Listing(
        blobs=frozenset(blobs),
        sizes={entry.path: entry.size for entry in manifest.entries},
        size=manifest.size,
        different=sum(blobs.values()),
        file_count=len(manifest.entries),
    )


async def _read_apart(data: bytes, *, is_with_sizes: bool) -> Listing:
    """Read a manifest in a process of its own. Raises ContentError or _TooMuch."""
    command = (sys.executable, "-P", "-m", __name__, *(("--sizes",) if is_with_sizes else ()))
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(READ_WITHIN_S):
            answer, _ = await process.communicate(data)
    except TimeoutError:
        raise _TooMuch(f"reading it takes longer than {READ_WITHIN_S:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode == _REFUSED_CODE:
        raise ContentError(answer.decode())
    if process.returncode:
        raise _TooMuch(f"reading it takes more than {MEMORY_BYTES >> 30} GiB of memory")
    head, _, rest = answer.partition(b"\n")
    facts = json.loads(head)
    digests, _, sizes = rest.partition(b"\n")
    return Listing(
        blobs=frozenset(digests.decode("ascii").split()),
        sizes=json.loads(sizes) if is_with_sizes else None,
        size=facts["size"],
        different=facts["different"],
        file_count=facts["files"],
    )


def main() -> None:
    """Read a manifest from standard input; a line of facts, one of digests and one of sizes to standard output."""
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for the control plane
    try:
        manifest = manifests.decode(sys.stdin.buffer.read())
    except ContentError as error:
        sys.stdout.buffer.write(str(error).encode("utf-8", "replace"))
        sys.stdout.flush()
        sys.exit(_REFUSED_CODE)
    out, blobs = sys.stdout.buffer, manifest.blobs()
    facts = {
        "size": manifest.size,
        "different": sum(blobs.values()),
        "files": len(manifest.entries),
    }
    out.write(json.dumps(facts).encode() + b"\n")
    out.write(" ".join(blobs).encode() + b"\n")
    if "--sizes" in sys.argv:
        out.write(json.dumps({entry.path: entry.size for entry in manifest.entries}).encode())
    out.flush()


if __name__ == "__main__":
    main()
