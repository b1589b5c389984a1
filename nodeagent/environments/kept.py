"""The cache of builds of a user: uv's own files, and its unpacked wheels; the same for conda packages.

```
<downloads>/<user>/cache/                     uv's own files, the agent's alone between builds
<downloads>/<user>/archives/<bucket>/<id>/    an unpacked wheel or package, the agent's and read-only
```

Environments share the files of unpacked wheels by hard links (`sealing.py`). So no process of a user may write
them: builds with a root of their own see each wheel read-only, at its place in uv's cache; elsewhere it is moved
there during a build, and the files are the agent's. Wheels unpacked by a build are sealed before anything links to
them.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from nodeagent.environments.sealing import Shared, Unsound, seal
from nodeagent.folders import flush_filesystem
from nodeagent.runtimes.launch import shown_entry
from nodeagent.safe_paths import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodeagent.environments.sealing import Rules
    from nodeagent.folders import ReplicaFolder
    from nodeagent.shim.namespaces import MountEntry

IN_TMP = "kept"
"""Name of uv's cache in a build's temporary folder."""
CONDA = "conda"
"""The folder in uv's cache with the unpacked packages of conda."""
_BUCKET = re.compile(rf"archive-v[0-9]{{1,4}}|{CONDA}")
_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.+!-]{0,254}")
_RECORD = "RECORD"
"""A wheel's list of its files; each environment has a changed copy."""
_NOWHERE = Path("/nowhere")
"""No link may name its own tree's path: the next time another build has it."""
_BLOCK = 512

log = structlog.get_logger()


class Kept:
    """The cache at `place`, taken by one build at a time. Blocking.

    Args:
        place: its path between builds.
        folder: of the build.
        rules: for new contents; `rules.bytes` of each tree.
        most_bytes: of cached wheels that no environment uses, about.
        by_all: the cache of builds for everybody: its wheels are added, by hard links to the same files.
    """

    def __init__(
        self,
        place: Path,
        folder: ReplicaFolder,
        rules: Rules,
        most_bytes: int,
        *,
        by_all: Path | None = None,
    ) -> None:
        self._place = place
        self._by_all = by_all
        self._made = folder.tmp / IN_TMP
        self._held = folder.path / IN_TMP
        self._rules = replace(rules, place=_NOWHERE, outside=frozenset())
        self._most_bytes = most_bytes
        self._archives = self._held / "archives"
        self._lent: dict[tuple[str, str], tuple[int, int]] = {}
        self._is_moved = False
        self._has_new = False
        self._seen_at = ""
        self.refusal = "it did not run"
        """Why the build's cache is not kept; "" if it is."""

    def take(self) -> None:
        """Take the cache, if it exists and no other build has it; `_made` is given to the build."""
        with suppress(OSError):
            self._place.rename(self._held)
        with suppress(OSError):
            (self._held / "cache").rename(self._made)
        if self._by_all is not None:
            # a build for everybody may have it now
            with suppress(OSError):
                self._share(self._by_all)
        for bucket, name, path in self._unpacked():
            facts = path.lstat()
            self._lent[bucket, name] = (facts.st_dev, facts.st_ino)
            (self._made / bucket).mkdir(mode=0o700, exist_ok=True)
            (self._made / bucket / name).mkdir(mode=0o700)

    def _share(self, other: Path) -> None:
        for link in (other / "cache").glob("wheels-v*/**/*"):
            mine = self._made / link.relative_to(other / "cache")
            if not link.is_symlink() or mine.is_symlink():
                continue
            target = link.readlink()
            unpacked = "/".join(target.parts[-2:])
            _share_tree(other / "archives" / unpacked, self._archives / unpacked)
            mine.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for noted in link.parent.glob(f"{glob.escape(link.name)}.*"):
                shutil.copyfile(noted, mine.with_name(noted.name))
            mine.symlink_to(target)

    def lend(self, tmp: str, *, has_own_root: bool) -> list[MountEntry]:
        """Put the unpacked wheels where uv looks for them; return the mounts for that.

        `tmp` is the build's temporary folder as it sees it.
        """
        self._seen_at = f"{tmp}/{IN_TMP}"
        if has_own_root:
            return [
                shown_entry(path, f"{self._seen_at}/{bucket}/{name}")
                for bucket, name, path in self._unpacked()
            ]
        self._is_moved = True
        for bucket, name, path in list(self._unpacked()):
            target = self._made / bucket / name
            target.rmdir()
            path.rename(target)
        return []

    def collect(self) -> None:
        """Seal the contents left by the build, which has ended; set `refusal` if they are unsound."""
        self.refusal = ""
        if self._made.is_symlink() or (self._made.exists() and not self._made.is_dir()):
            self.refusal = "its cache is no folder"
            return
        try:
            for bucket in [*self._made.glob("archive-*"), *self._made.glob(CONDA)]:
                self._collect_bucket(bucket)
            if self._made.is_dir():
                seal(self._made, replace(self._rules, is_private=True))
        except (Unsound, OSError) as error:
            self.refusal = str(error) or "what the build left cannot be read"

    def _collect_bucket(self, bucket: Path) -> None:
        if bucket.is_symlink() or not bucket.is_dir() or not _BUCKET.fullmatch(bucket.name):
            raise Unsound(f"{bucket.name[:80]!r} is no folder of unpacked wheels")
        place = self._archives / bucket.name
        for folder in (self._held, self._archives, place):
            folder.mkdir(mode=0o700, exist_ok=True)
        for entry in sorted(bucket.iterdir()):
            facts = entry.lstat()
            lent = self._lent.get((bucket.name, entry.name))
            if lent is not None and not self._is_moved:
                remove_tree(entry)  # its mount point
            elif lent is not None and lent == (facts.st_dev, facts.st_ino):
                entry.rename(place / entry.name)
            elif _ID.fullmatch(entry.name) and stat.S_ISDIR(facts.st_mode) and lent is None:
                seal(entry, replace(self._rules, rewritten=_RECORD))
                entry.rename(place / entry.name)
                self._has_new = True
            else:
                raise Unsound(f"{entry.name[:80]!r} is no unpacked wheel")

    @property
    def shared(self) -> Shared:
        """The unpacked wheels, for links of an environment."""
        return Shared(seen_at=self._seen_at, folder=self._archives)

    def put_back(self) -> None:
        """Move the cache back for the next build, unless it was refused."""
        if self.refusal or not self._made.is_dir() or not self._most_bytes:
            log.info("build.nothing_kept", reason=self.refusal)
            return
        try:
            self._held.mkdir(mode=0o700, exist_ok=True)
            self._prune()
            self._made.rename(self._held / "cache")
            if self._has_new:
                # uv trusts its cache, also files that a power loss has emptied
                flush_filesystem(self._held)
            self._place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_tree(self._place)
            os.utime(self._held)
            self._held.rename(self._place)
        except OSError as error:
            log.info("build.nothing_kept", reason=str(error))

    def _prune(self) -> None:
        """Remove the oldest unpacked wheels that no environment uses, down to `_most_bytes`."""
        unused = []
        for _, _, path in self._unpacked():
            size = _size_if_unused(path)
            if size is not None:
                unused.append((path.stat().st_mtime, size, path))
        left = sum(size for _, size, _ in unused)
        for _, size, path in sorted(unused):
            if left <= self._most_bytes:
                break
            self._forget(path.name)
            remove_tree(path)
            left -= size

    def _forget(self, name: str) -> None:
        """Remove uv's entries of an unpacked wheel: uv does not check that it exists."""
        for link in self._made.glob("wheels-v*/**/*"):
            if link.is_symlink() and link.readlink().name == name:
                for noted in link.parent.glob(f"{glob.escape(link.name)}.*"):
                    noted.unlink()
                link.unlink()

    def _unpacked(self) -> Iterator[tuple[str, str, Path]]:
        for path in sorted(self._archives.glob("*/*")):
            yield path.parent.name, path.name, path


def _share_tree(source: Path, target: Path) -> None:
    """Hard-link all files of `source` below `target`. Raises OSError; nothing refers to an incomplete tree."""
    if target.exists():
        return
    for folder, _, files in os.walk(source):
        place = target / os.path.relpath(folder, source)
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
        for name in files:
            os.link(f"{folder}/{name}", place / name, follow_symlinks=False)


def _size_if_unused(tree: Path) -> int | None:
    """The bytes that it occupies; None if an environment shares a part of it."""
    occupied = 0
    for folder, _, files in os.walk(tree):
        for name in files:
            facts = os.lstat(f"{folder}/{name}")
            if facts.st_nlink > 1:
                return None
            occupied += facts.st_blocks * _BLOCK
    return occupied
