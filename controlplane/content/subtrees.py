"""Manifests of some parts of a tree, made from the manifest of all of it.

What is made lists chunks that are stored already, so it costs its own bytes alone. Large manifests are divided by a process
of their own, one at a time, with a limit of memory: see `manifests.py`.
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

from controlplane.content.manifests import MEMORY_BYTES, READ_WITHIN_S, SMALL_BYTES
from controlplane.domain.errors import InvalidRequest
from controlplane.limits.concurrency_limits import Turns
from nsml.content import manifest as manifests
from nsml.content.digests import digest_of
from nsml.content.errors import ContentError
from nsml.content.tree_parts import subtree

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from controlplane.objects.interface import ObjectStore
    from nsml.common.clock import Offload
    from nsml.content.manifest import Manifest

_NICE: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtree:
    """A manifest that was made and stored, be it of no files."""

    digest: str
    size_bytes: int
    file_count: int


class Subtrees:
    """Divides trees.

    Args:
        run: for small manifests.
    """

    def __init__(self, objects: ObjectStore, run: Offload) -> None:
        self._objects = objects
        self._run = run
        self._turns = Turns("for manifests to be divided")

    async def make(
        self, who: str, root: str, parts: Collection[str], groups: Sequence[Collection[str]]
    ) -> list[Subtree]:
        """Store a manifest of each group of parts; `who` waits for it.

        Raises:
            NotFound: there is no manifest of this digest.
            InvalidRequest: it takes too much to divide it.
            LimitReached: too many calls of `who` wait already.
        """
        async with self._turns.turn(who):
            data = await self._objects.get(root)
            if len(data) > SMALL_BYTES:
                made = await _divide_apart(data, parts, groups)
            else:
                made = await self._run(partial(_divide, data, parts, groups))
            for digest, encoded in {found.digest: encoded for found, encoded in made}.items():
                await self._objects.put_many({digest: encoded})
            return [found for found, _ in made]


def _divide(
    data: bytes, parts: Collection[str], groups: Sequence[Collection[str]]
) -> list[tuple[Subtree, bytes]]:
    manifest = manifests.decode(data)
    return [_encoded(subtree(manifest, parts, wanted)) for wanted in groups]


def _encoded(tree: Manifest) -> tuple[Subtree, bytes]:
    encoded = tree.encode()
    found = Subtree(digest=digest_of(encoded), size_bytes=tree.size, file_count=len(tree.entries))
    return found, encoded


async def _divide_apart(
    data: bytes, parts: Collection[str], groups: Sequence[Collection[str]]
) -> list[tuple[Subtree, bytes]]:
    """As `_divide`, in a process of its own. Raises InvalidRequest where it takes too much."""
    asked = json.dumps({"parts": sorted(parts), "groups": [sorted(one) for one in groups]})
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", __name__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(READ_WITHIN_S):
            answer, _ = await process.communicate(b"\n".join((asked.encode(), data)))
    except TimeoutError:
        raise _too_much(f"that takes longer than {READ_WITHIN_S:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        raise _too_much(f"that takes more than {MEMORY_BYTES >> 30} GiB of memory")
    found: list[tuple[Subtree, bytes]] = []
    start = 0
    while start < len(answer):
        end = answer.index(b"\n", start)
        facts = json.loads(answer[start:end])
        start = end + 1 + facts.pop("bytes")
        found.append((Subtree(**facts), answer[end + 1 : start]))
    return found


def _too_much(why: str) -> InvalidRequest:
    return InvalidRequest("the manifest cannot be divided into parts", why=why)


def main() -> None:
    """Divide a manifest from standard input, behind a line that says how; each manifest to standard output, behind a line of facts."""
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for the control plane
    asked = json.loads(sys.stdin.buffer.readline())
    try:
        manifest = manifests.decode(sys.stdin.buffer.read())
    except ContentError as error:
        sys.exit(str(error))
    parts = frozenset(asked["parts"])
    for wanted in asked["groups"]:
        found, encoded = _encoded(subtree(manifest, parts, frozenset(wanted)))
        facts = {
            "digest": found.digest,
            "size_bytes": found.size_bytes,
            "file_count": found.file_count,
            "bytes": len(encoded),
        }
        sys.stdout.buffer.write(json.dumps(facts).encode() + b"\n" + encoded)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
