"""The trees cached on a node, by digest: whole ones, and unfinished fetches. Blocking, from any thread.

```
<folder>/<digest>             the tree
<folder>/<digest>.manifest    its manifest
<folder>/<digest>.bytes       its bytes, its files and folders, "linked" if it shares files, "apart" if it never may; users
                              with sessions that requested it; its mtime is the last use
```

Unfinished fetches beside them: `attempts.py`.

The disk space of a tree: its bytes, or if it shares files, the bytes of each file divided by its hard links. So all trees
together take the space of their files on disk, each counted once.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from nodeagent.folders import write_atomically
from nodeagent.safe_paths import remove_tree
from nodeagent.storage.attempts import STAGED, Attempts, Unfinished
from nodeagent.storage.cached_content import MOST_TOLD
from nodeagent.storage.donors import is_large, placed, read_chunk, read_written
from nodeagent.storage.reservations import Kept, Size
from nsml.content.digests import digest_of, is_digest
from nsml.content.errors import PathRefused
from nsml.content.manifest import ChunkRef
from nsml.content.pages import Naming
from nsml.content.paths import native_parts
from nsml.content.safe_paths import ByDescriptor
from nsml.content.stored_manifest import StoredManifest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from nodeagent.machine.accounts import Accounts
    from nodeagent.storage.assembly import Assembly
    from nsml.common.clock import Clock
    from nsml.v1.peers_pb2 import WantedChunk

PARTIAL: Final = ".partial"
_DONORS: Final = 8
_MANIFEST: Final = ".manifest"
_NOTE: Final = ".bytes"
_LINKED: Final = "linked"
_APART: Final = "apart"
_NOTHING: Final = Size()

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class StoredTree:
    """A cached tree; `size` is None without its note, `own` until its part of shared files is counted.

    `is_apart`: it may have files that not all users see who have the same content: a number of links would tell them.
    """

    size: int | None = None
    files: int = 0
    users: set[str] = field(default_factory=set)
    used_at: float = 0.0
    is_linked: bool = False
    is_apart: bool = False
    own: Size | None = None

    @classmethod
    def read(cls, note: Path) -> StoredTree:
        """Read the note of this agent or an earlier one; raises OSError, ValueError."""
        first, *users = note.read_text(encoding="utf-8").split("\n")
        size, files, *words = [*first.split(" "), "0"]
        return cls(
            size=int(size),
            files=int(files),
            is_linked=_LINKED in words,
            is_apart=_APART in words,
            users=set(users),
            used_at=note.stat().st_mtime,
        )

    def write(self, note: Path) -> None:
        """Write the note."""
        words = [_LINKED] * self.is_linked + [_APART] * self.is_apart
        first = " ".join([f"{self.size} {self.files}", *words])
        write_atomically(note, "\n".join([first, *sorted(self.users)]).encode())
        os.utime(note, (self.used_at, self.used_at))

    @property
    def takes(self) -> Size:
        """Its disk space."""
        return self.own or Size.of(self.size or 0, self.files)


class TreeFolder:
    """The trees below one folder: `Trees` of reservations.py, and a `Shelf` of peers/server.py.

    Args:
        folder: private to the agent.
        boot: see `datasets.Trees`.
        kind: their kind in the uses of replicas.
        accounts: groups of trees, released with them.
        is_fetching: whether a tree is being fetched.
        removing: entered before the check whether a tree to be removed is in use, and left once it has no name.
    """

    def __init__(
        self,
        folder: Path,
        *,
        boot: str,
        kind: str,
        clock: Clock,
        accounts: Accounts | None,
        is_fetching: Callable[[str], bool],
        removing: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._removing = removing
        self.path = folder / boot
        """The folder of the trees."""
        self.attempts = Attempts(self.path)
        self.is_lasting = not boot
        """Whether they survive a loss of power."""
        self.is_fetching = is_fetching
        """See Shelf of peers/server.py."""
        self._kind = kind
        self._clock = clock
        self._accounts = accounts
        self._turn = threading.Lock()
        self._trees: dict[str, StoredTree] = {}
        self._unfinished: dict[str, Unfinished] = {}
        self._donating: Counter[str] = Counter()
        self._removed: list[str] = []

    def create(self) -> None:
        """Create the folder, find its trees, and clean up after removals and earlier boots."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self.path.glob(f".*{PARTIAL}"):
            remove_tree(left)
        if not self.is_lasting:
            for earlier in set(self.path.parent.iterdir()) - {self.path}:
                remove_tree(earlier)
        self._trees = {
            path.name: self._found(path) for path in self.path.iterdir() if _is_tree(path)
        }
        for suffix in (_MANIFEST, _NOTE):
            for note in self.path.glob(f"*{suffix}"):
                if note.name.removesuffix(suffix) not in self._trees:
                    note.unlink()
        self._find_unfinished()
        if self._accounts is not None:
            self._release(*self._accounts.trees() - self._trees.keys())

    def get(self, digest: str) -> StoredTree | None:
        """Return a cached tree, or None."""
        return self._trees.get(digest)

    def take_removed(self) -> list[str]:
        """Return the trees removed since the last call."""
        with self._turn:
            removed, self._removed = self._removed, []
        return removed

    def lend(self, digests: Iterable[str]) -> None:
        """Mark trees whose files are read: they stay until `give_back`."""
        with self._turn:
            self._donating.update(digests)

    def give_back(self, digests: Iterable[str]) -> None:
        """Unmark trees after reading."""
        self._donating.subtract(digests)

    def left(self) -> list[tuple[str, int]]:
        """Return digest and bytes of the most recently used trees, oldest first."""
        noted = sorted(self._trees.items(), key=lambda one: one[1].used_at)
        return [(digest, tree.size) for digest, tree in noted if tree.size is not None][-MOST_TOLD:]

    def read_first(self, root: str, wanted: Sequence[WantedChunk], most_bytes: int) -> list[bytes]:
        """See Shelf of peers/server.py. For a tree being fetched, its valid chunks so far."""
        found: list[bytes] = []
        size = 0
        try:
            with ByDescriptor(self._place_of(root)) as tree:
                for one in wanted:
                    if found and size + one.size > most_bytes:
                        break
                    data = _read_at(tree, one)
                    if data is None:
                        break
                    found.append(data)
                    size += len(data)
        except (OSError, PathRefused):
            pass  # not here, or not yet
        return found

    def blobs(self, root: str, wanted: Collection[str]) -> Generator[tuple[str, bytes], None, None]:
        """Yield blobs of a cached tree, each once, if they match their digests: of its manifest, then of its files.

        Blocking. The tree stays while it is read. Raises OSError, ContentError.
        """
        with self._turn:
            if root not in self._trees:
                return
            self._donating[root] += 1
        try:
            left, path = set(wanted), self.path / f"{root}{_MANIFEST}"
            for digest, data in _naming(path, left):
                left.discard(digest)
                yield digest, data
            with ByDescriptor(self.path / root) as tree, StoredManifest(path) as manifest:
                for entry in manifest.entries if left else ():
                    for ref, offset in placed(entry):
                        if ref.digest not in left:
                            continue
                        chunk = _chunk_at(tree, entry.path, ref, offset)
                        if chunk is not None:
                            left.discard(ref.digest)
                            yield ref.digest, chunk
        finally:
            with self._turn:
                self._donating[root] -= 1

    def _place_of(self, root: str) -> Path:
        """Return the folder of a tree, whole or being fetched. FileNotFoundError: neither."""
        if not is_digest(root):
            raise FileNotFoundError(errno.ENOENT, "it is no tree", root[:80])
        whole = self.path / root
        if root in self._trees:
            return whole
        return next(iter(self.attempts.of(root)), whole)

    # A `Cache` of eviction.py: blocking, from any thread.

    def stored(self) -> dict[str, float]:
        """Return the last use of each, Unix seconds."""
        with self._turn:
            return {
                **{digest: left.used_at for digest, left in self._unfinished.items()},
                **{digest: tree.used_at for digest, tree in self._trees.items()},
            }

    def touch(self, key: str) -> None:
        """Mark it as used now; unknown keys are ignored."""
        with self._turn:
            self._touch(key)

    def remove(self, key: str, is_used: Callable[[], bool]) -> bool:
        """Remove it, unless it is used; return whether it is gone."""
        with self._turn, self._removing(key):
            if key not in self._trees and key not in self._unfinished:
                return True
            # A user marks its use first, and then looks for the tree by `use`.
            if self._donating[key] or is_used():
                return False
            tree = self._doom(self.path / key)
            if is_used():  # another agent may have marked a use while this one was suspended
                with suppress(FileNotFoundError):
                    tree.rename(self.path / key)
                return False
            doomed = [tree, *(self._doom(path) for path in self.attempts.of(key))]
            if self._trees.pop(key, None) is not None:
                self._removed.append(key)
                self._links_changed()
            self._unfinished.pop(key, None)
            self.attempts.staged(key).unlink(missing_ok=True)
            for suffix in (_MANIFEST, _NOTE):
                (self.path / f"{key}{suffix}").unlink(missing_ok=True)
        remove_all(*doomed)
        with self._turn:
            if key not in self._trees:  # or it was fetched again, with the same group
                self._release(key)
        return True

    def _release(self, *keys: str) -> None:
        """Release the groups of removed trees; the next start retries failures."""
        if self._accounts is not None:
            try:
                self._accounts.release(*keys)
            except OSError as error:
                log.warning("tree.group_kept", error=str(error))

    def kept(self) -> list[Kept]:
        """See reservations.Trees."""
        with self._turn:
            whole = [
                Kept(
                    kind=self._kind,
                    key=digest,
                    size=tree.takes,
                    users=frozenset(tree.users),
                    used_at=tree.used_at,
                    is_used=bool(self._donating[digest]),
                )
                for digest, tree in self._trees.items()
            ]
            return whole + [
                Kept(
                    kind=self._kind,
                    key=digest,
                    size=left.takes,
                    users=frozenset(),
                    used_at=left.used_at,
                    is_used=False,
                )
                for digest, left in self._unfinished.items()
            ]

    def recount(self) -> None:
        """See reservations.Trees."""
        with self._turn:
            stale = [
                digest for digest, one in self._trees.items() if one.is_linked and one.own is None
            ]
        for digest in stale:
            own = _part_of(self.path / digest)
            with self._turn:
                if (tree := self._trees.get(digest)) is not None:
                    tree.own = own

    # Used by fetches.

    def _found(self, path: Path) -> StoredTree:
        try:
            return StoredTree.read(note_of(path))
        except (OSError, ValueError):
            return StoredTree(used_at=path.stat().st_mtime)

    def use(self, digest: str, user: str) -> bool:
        """Return whether it is here; if so, note its use and its user."""
        with self._turn:
            tree = self._trees.get(digest)
            if tree is None:
                return False
            if not (self.path / digest).is_dir():
                del self._trees[digest]
                return False
            if user in {"", *tree.users} or tree.size is None:
                self._touch(digest)
            else:
                tree.users.add(user)
                tree.used_at = self._clock.time()
                tree.write(self.path / f"{digest}{_NOTE}")
            return True

    def _touch(self, digest: str) -> None:
        tree = self._trees.get(digest)
        if tree is not None:
            tree.used_at = now = self._clock.time()
            with suppress(OSError):
                os.utime(self.path / f"{digest}{_NOTE}", (now, now))

    def finish(
        self,
        digest: str,
        manifest: StoredManifest,
        assembly: Assembly,
        user: str,
        *,
        is_apart: bool = False,
    ) -> None:
        """Note the manifest and the size of a whole tree, and give it its name."""
        is_linked = assembly.linked_bytes > 0
        tree = StoredTree(
            size=manifest.size,
            files=manifest.files + manifest.folders,
            users={user} - {""},
            used_at=self._clock.time(),
            is_linked=is_linked,
            is_apart=is_apart,
        )
        with self._turn:
            self.attempts.staged(digest).replace(self.path / f"{digest}{_MANIFEST}")
            tree.write(self.path / f"{digest}{_NOTE}")
            assembly.name(self.path / digest)
            self._trees[digest] = tree
            if is_linked:
                self._links_changed()

    def _links_changed(self) -> None:
        """Mark trees that share files to be counted again; with the turn."""
        for tree in self._trees.values():
            tree.own = None

    def mark_linked(self, digests: Iterable[str]) -> None:
        """Note that trees share files, before they do."""
        with self._turn:
            for digest in digests:
                tree = self._trees.get(digest)
                if tree is not None and not tree.is_linked:
                    tree.is_linked = True
                    if tree.size is not None:
                        tree.write(self.path / f"{digest}{_NOTE}")

    def _find_unfinished(self) -> None:
        for digest in self.attempts.digests():
            self.keep_unfinished(digest)
        for staged in self.path.glob(f".*{STAGED}"):
            if staged.name[1:].removesuffix(STAGED) not in self._unfinished:
                staged.unlink()

    def keep_unfinished(self, digest: str) -> None:
        """Keep the unfinished fetches of a tree for its next fetch, or until others need the room."""
        left = self.attempts.left(digest)
        with self._turn:
            if left is not None and digest not in self._trees:
                self._unfinished[digest] = left
                return
        self.attempts.remove(digest)

    def claim(self, digest: str) -> tuple[list[Path], Size]:
        """Take over the unfinished fetches of a tree, which are not evicted any more; return them and their disk space."""
        with self._turn:
            left = self._unfinished.pop(digest, None)
        return ([], _NOTHING) if left is None else (self.attempts.of(digest), left.takes)

    def _doom(self, path: Path) -> Path:
        """Rename what is removed next, and return its new path."""
        doomed = self.path / f".{secrets.token_hex(8)}{PARTIAL}"
        with suppress(FileNotFoundError):
            path.rename(doomed)
        return doomed

    def newest_manifests(self, *, large: bool, with_apart: bool = False) -> list[Path]:
        """Return manifests of the trees fetched last, limited in number: large ones, or others.

        `with_apart`: also those of trees that share no files.
        """
        found = []
        for path in self.path.glob(f"*{_MANIFEST}"):
            tree = self._trees.get(path.name.removesuffix(_MANIFEST))
            if tree is not None and tree.is_apart and not with_apart:
                continue
            with suppress(FileNotFoundError):
                facts = path.stat()
                if is_large(facts.st_size) == large:
                    found.append((facts.st_mtime, path))
        return [path for _, path in sorted(found, reverse=True)[:_DONORS]]


def _read_at(tree: ByDescriptor, one: WantedChunk) -> bytes | None:
    """Return a chunk of a whole or partial tree; None: it is missing. Raises OSError, PathRefused."""
    opened = tree.open_file(native_parts(one.path))
    try:
        return read_written(opened, ChunkRef(one.digest.hex(), one.size), one.offset)
    finally:
        os.close(opened)


def _chunk_at(tree: ByDescriptor, path: str, ref: ChunkRef, offset: int) -> bytes | None:
    """Return a chunk of a file of a whole tree; None if the file is gone, or has other content."""
    try:
        opened = tree.open_file(native_parts(path))
    except (OSError, PathRefused):
        return None
    try:
        return read_chunk(opened, ref, offset)
    finally:
        os.close(opened)


def _naming(path: Path, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the wanted blobs of the manifest with the encoding in this file: its pages, then its root."""
    if not wanted:
        return
    with path.open("rb") as file:
        naming = Naming(file)
        while page := naming.read():
            if (digest := digest_of(page)) in wanted:
                yield digest, page
    root = naming.root()
    if root.pages and root.digest in wanted:
        yield root.digest, root.data


def note_of(tree: Path) -> Path:
    """Return the path of a tree's note."""
    return tree.with_name(tree.name + _NOTE)


def _is_tree(path: Path) -> bool:
    return is_digest(path.name) and path.is_dir()


def remove_all(*places: Path) -> None:
    """Remove these folders and files."""
    for place in places:
        remove_tree(place)


def _part_of(tree: Path) -> Size:
    """Return the disk space of a tree: each file is divided by its hard links."""
    size, files = 0.0, 0.0
    for _, folders, names, here in os.fwalk(tree):
        files += len(folders)
        for name in names:
            with suppress(FileNotFoundError):
                facts = os.lstat(name, dir_fd=here)
                size += facts.st_size / facts.st_nlink
                files += 1 / facts.st_nlink
    return Size.of(round(size), round(files))
