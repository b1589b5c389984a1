"""What a build leaves for the next one of its user: uv's cache, and the wheels that it unpacked. So of conda's packages.

```
<downloads>/<user>/cache/                     uv's own files, the agent's alone between builds
<downloads>/<user>/archives/<bucket>/<id>/    an unpacked wheel or package, the agent's and read-only
```

Environments share the files of unpacked wheels by hard links (`sealing.py`). So nothing that runs for a user may
write them: where builds have a root of their own they see each read-only, at its place in uv's cache; elsewhere
it is moved there for the time of a build, and the files are the agent's. What a build unpacks is sealed before
anything links to it.
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
"""What uv's cache is called in a build's temporary folder."""
CONDA = "conda"
"""The folder in uv's cache with the unpacked packages of conda."""
_BUCKET = re.compile(rf"archive-v[0-9]{{1,4}}|{CONDA}")
_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.+!-]{0,254}")
_RECORD = "RECORD"
"""What a wheel says of its files, which each environment has a changed copy of."""
_NOWHERE = Path("/nowhere")
"""No link may name where it lies: that is another build's the next time."""
_BLOCK = 512

log = structlog.get_logger()


class Kept:
    """What one build has of what is at `place`; nobody else has it meanwhile. Blocking.

    Args:
        place: where it is between builds.
        folder: of the build.
        rules: for what a build leaves; `rules.bytes` of one.
        most_bytes: of what is kept and no environment has, about.
        by_all: the place of what builds for everybody left: its wheels are there, too, by further names of the
            same files.
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
        """Why what the build left is not taken; empty where it is."""

    def take(self) -> None:
        """Have it, if there is any and no other build has it; `_made` is what is given to the build."""
        with suppress(OSError):
            self._place.rename(self._held)
        with suppress(OSError):
            (self._held / "cache").rename(self._made)
        if self._by_all is not None:
            # which a build for everybody may have now
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
        """Have the unpacked wheels where uv looks for them; what is to be mounted for that.

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
        """Take over what the build left, which does not run any more; `refusal` says where that is unsound."""
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
                remove_tree(entry)  # where it was mounted
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
        """Where links of an environment lead to, and where that is."""
        return Shared(seen_at=self._seen_at, folder=self._archives)

    def put_back(self) -> None:
        """Have it at its place for the next build, if it is as it should be."""
        if self.refusal or not self._made.is_dir() or not self._most_bytes:
            log.info("build.nothing_kept", reason=self.refusal)
            return
        try:
            self._held.mkdir(mode=0o700, exist_ok=True)
            self._prune()
            self._made.rename(self._held / "cache")
            if self._has_new:
                # uv believes what it finds, also where a power loss has emptied it
                flush_filesystem(self._held)
            self._place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_tree(self._place)
            os.utime(self._held)
            self._held.rename(self._place)
        except OSError as error:
            log.info("build.nothing_kept", reason=str(error))

    def _prune(self) -> None:
        """Remove the oldest unpacked wheels that no environment has, until few enough bytes are left."""
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
        """Remove what uv noted of an unpacked wheel: it does not look whether that is there."""
        for link in self._made.glob("wheels-v*/**/*"):
            if link.is_symlink() and link.readlink().name == name:
                for noted in link.parent.glob(f"{glob.escape(link.name)}.*"):
                    noted.unlink()
                link.unlink()

    def _unpacked(self) -> Iterator[tuple[str, str, Path]]:
        for path in sorted(self._archives.glob("*/*")):
            yield path.parent.name, path.name, path


def _share_tree(source: Path, target: Path) -> None:
    """Have all files of `source` at `target`, too. Raises OSError; what is half there is what nothing leads to."""
    if target.exists():
        return
    for folder, _, files in os.walk(source):
        place = target / os.path.relpath(folder, source)
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
        for name in files:
            os.link(f"{folder}/{name}", place / name, follow_symlinks=False)


def _size_if_unused(tree: Path) -> int | None:
    """The bytes that it occupies; None where an environment has a part of it, too."""
    occupied = 0
    for folder, _, files in os.walk(tree):
        for name in files:
            facts = os.lstat(f"{folder}/{name}")
            if facts.st_nlink > 1:
                return None
            occupied += facts.st_blocks * _BLOCK
    return occupied
