"""Checkpoints as folders: written as drafts, synced to disk, and renamed into place.

`ROOT/<number>-<escaped name>/model/...`; the highest number of a name is the current one.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import contextmanager, suppress

from nsml._copies import copy_tree, make_private, seal_of
from nsml._digests import sha256
from nsml._notice import notice
from nsml._path_text import path_text
from nsml._rights import allow, make_folder, make_folders, make_unique, remove_tree, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Optional, Set, Tuple

_DRAFT = ".tmp-"
_LONGEST = 180
ARTIFACT = "%artifact"
"""In place of a name: `escape` never returns it."""
_MANY_FILES = 200
"""From this count on the whole file system is synced at once: each single sync takes milliseconds."""
_MOST_NAMED = 100
"""Most skipped files named in the log."""
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


class Checkpoints:
    """The checkpoints of one replica under `root`, shared by all its processes."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._seals: Dict[str, Tuple[str, List[str]]] = {}  # of this process's saves, by folder
        self._left_out: Set[str] = set()  # names already logged

    def begin(self) -> Draft:
        """Make an empty draft with a unique number.

        Raises:
            OSError: the folder cannot be made.
        """
        make_folders(self.root)
        while True:
            number = 1 + max(self._numbers(), default=0)
            path = os.path.join(self.root, f"{_DRAFT}{number}")
            try:
                make_folder(path)
            except FileExistsError:
                continue
            # Another process may have used the number and finished since the folder was read.
            if any(entry.startswith(f"{number}-") for entry in os.listdir(self.root)):
                os.rmdir(path)
                continue
            make_folder(os.path.join(path, "model"))
            return Draft(self.root, path, number, self._left_out)

    def newest(self, name: str) -> Optional[str]:
        """Return the `model` folder of the newest checkpoint of that name, relative to the root."""
        found = self._of_name(name)
        return f"{found[-1][1]}/model" if found else None

    @contextmanager
    def lent(self, folder: str, loads: str) -> Iterator[str]:
        """Yield a temporary, writable copy of the checkpoint `folder`, in the folder `loads`.

        Raises:
            OSError: it cannot be copied.
        """
        make_folders(loads)
        place = make_unique(loads)
        try:
            copy = os.path.join(place, "model")
            copy_tree(os.path.join(self.root, folder), copy)
            yield copy
        finally:
            remove_tree(place)
            with suppress(OSError):
                os.rmdir(loads)

    def seal(self, folder: str, files: List[Tuple[str, int]]) -> str:
        """Seal a checkpoint, to detect later changes; see `nsml._copies.seal_of`. Raises OSError."""
        paths = [path for path, _ in files]
        found = seal_of(os.path.join(self.root, folder), paths)
        self._seals[folder] = found, paths
        return found

    def is_changed(self, folder: str) -> bool:
        """Return whether a checkpoint saved by this process was changed since."""
        seal, paths = self._seals.get(folder, ("", []))
        if not seal:
            return False
        model = os.path.join(self.root, folder)
        try:
            found = [path for path, _ in _files(model)[0]]
            # The content half only: the agent's taking ownership of files is no change.
            return found != paths or seal_of(model, paths)[64:] != seal[64:]
        except OSError:
            return True

    def keep_newest(self, name: str) -> None:
        """Remove older checkpoints of that name (off-platform, without an agent)."""
        for _, entry in self._of_name(name)[:-1]:
            remove_tree(os.path.join(self.root, entry))

    def _of_name(self, name: str) -> List[Tuple[int, str]]:
        found = []
        for entry in _entries(self.root):
            number, dash, escaped = entry.partition("-")
            if dash and number.isdecimal() and escaped == escape(name):
                found.append((int(number), entry))
        return sorted(found)

    def _numbers(self) -> List[int]:
        entries = [
            entry[len(_DRAFT) :] if entry.startswith(_DRAFT) else entry.partition("-")[0]
            for entry in _entries(self.root)
        ]
        return [int(entry) for entry in entries if entry.isdecimal()]


class Draft:
    """An unfinished checkpoint; it is valid from `commit` on."""

    def __init__(self, root: str, path: str, number: int, left_out: Set[str]) -> None:
        self._root = root
        self._path = path
        self._number = number
        self._left_out = left_out
        self.model = os.path.join(path, "model")

    def commit(self, name: str, *, is_artifact: bool = False) -> Tuple[str, List[Tuple[str, int]]]:
        """Move it into place, safe from a power cut; return its folder below the root, its files and sizes.

        An artifact is stored beside the checkpoints, and is never replaced by one.

        A file that the program can still write, since it is open, mapped or linked elsewhere, is replaced
        by a copy.

        Raises:
            OSError: the disk is full or broken; the draft is kept, to be discarded.
        """
        self._adopt_siblings()
        files, others = _files(self.model)
        self._name_left_out(others)
        _close_to_writers(self.model, [path for path, _ in files])
        files = [(path, os.stat(os.path.join(self.model, path)).st_size) for path, _ in files]
        if len(files) < _MANY_FILES or not _sync_file_system(self.model):
            for path, _ in files:
                _sync(os.path.join(self.model, path))
            for folder, _, _ in walk(self.model):
                _sync(folder)
        _sync(self._path)
        entry = f"{self._number}-{ARTIFACT if is_artifact else escape(name)}"
        os.rename(self._path, os.path.join(self._root, entry))
        _sync(self._root)
        return entry + "/model", files

    def discard(self) -> None:
        """Remove the draft."""
        remove_tree(self._path)

    def settle(self) -> None:
        """Restore the folder if the save function replaced it by a file.

        Raises:
            OSError: there is neither folder nor file any more.
        """
        allow(self._path, stat.S_IRWXU)
        if os.path.islink(self.model):
            raise NotADirectoryError("the save function put a link in place of the folder")
        if os.path.isfile(self.model):
            aside = os.path.join(self._path, ".file")
            os.rename(self.model, aside)
            make_folder(self.model)
            os.rename(aside, os.path.join(self.model, "model"))
        if not os.path.isdir(self.model):
            raise FileNotFoundError("the save function removed the folder that it was given")
        allow(self.model, stat.S_IRWXU)

    def is_empty(self) -> bool:
        """Return whether nothing was written under `model`."""
        return not os.listdir(self.model)

    def _name_left_out(self, others: List[str]) -> None:
        """Log skipped files, each once."""
        new = [name for name in others if name not in self._left_out]
        if new and len(self._left_out) < _MOST_NAMED:
            self._left_out.update(new[:_MOST_NAMED])
            more = f" and {len(new) - 3} more" if new[3:] else ""
            notice(f"left out of checkpoints, no regular files: {', '.join(new[:3])}{more}")

    def _adopt_siblings(self) -> None:
        """Move in files named after the folder: `numpy.savez(path)` writes `path.npz` beside it."""
        for entry in os.listdir(self._path):
            if entry != "model":
                path = os.path.join(self._path, entry)
                if os.path.isdir(path) and not os.path.islink(path):
                    allow(path, stat.S_IRWXU)  # else it cannot be moved
                os.rename(path, os.path.join(self.model, entry))


def escape(name: str) -> str:
    """Escape `name` for a file name: bytes other than letters, digits, `_-.` become `%XX`."""
    raw = name.encode("utf-8", "replace")
    text = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:100]}%~{sha256(raw).hexdigest()[:32]}"


def _entries(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _files(folder: str) -> Tuple[List[Tuple[str, int]], List[str]]:
    """Return regular files below `folder` with their sizes, and all that is neither file nor folder; sorted.

    Makes files readable by the owner, whatever modes user code has set. Raises OSError.
    """
    found, others = [], []
    for base, folders, names in walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(base, name))]
        for name in names + links:
            path = os.path.join(base, name)
            relative = os.path.relpath(path, folder).replace(os.sep, "/")
            facts = os.lstat(path)
            if stat.S_ISREG(facts.st_mode):
                allow(path, stat.S_IRUSR, facts.st_mode)
                found.append((relative, facts.st_size))
            else:
                others.append(path_text(relative))
    return sorted(found), sorted(others)


def _close_to_writers(folder: str, files: List[str]) -> None:
    held = []
    for name in files:
        path = os.path.join(folder, name)
        if make_private(path):
            held.append(name)
        if os.name != "nt":  # where files that are read-only cannot be removed
            os.chmod(path, 0o555 if os.stat(path).st_mode & stat.S_IXUSR else 0o444)
    if held:
        more = f" and {len(held) - 1} more" if held[1:] else ""
        notice(f"still open for writing, or linked: {held[0]}{more}; copies as of now are saved")


def _sync_file_system(folder: str) -> bool:
    """Sync the whole file system of a folder; False if this system cannot. Raises OSError."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes

        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except (ImportError, OSError, AttributeError):
        return False
    fd = os.open(folder, os.O_RDONLY)
    try:
        if syncfs(fd) != 0:
            raise OSError(ctypes.get_errno(), "the file system cannot be synced", folder)
    finally:
        os.close(fd)
    return True


def _sync(path: str) -> None:
    if os.name == "nt" and os.path.isdir(path):  # folders cannot be opened on Windows
        return
    fd = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
