"""`nsml.artifact`: files and folders of the program, copied beside its checkpoints and uploaded like them."""

from __future__ import annotations

import os
import stat
import time

from nsml._checkpoints import Checkpoints
from nsml._copies import check_room, copy_file
from nsml._frames import MAX_PAYLOAD
from nsml._notice import notice
from nsml._path_text import path_text
from nsml._report import encode
from nsml._rights import make_folder, remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, NoReturn, Tuple

    Keep = Callable[[str, str, List[Tuple[str, int]]], None]

_NAMED = 3
_LONGEST_REASON = 500


class Artifacts:
    """Saves artifacts of one process.

    Args:
        run_dir: "" outside of a session; then the last version of each name stays in `.nsml/artifacts`.
        root: nsml's own folder, which is never copied.
        checkpoints: copies are stored beside them.
        keep: called with name, folder and files of each saved artifact.
    """

    def __init__(self, run_dir: str, root: str, checkpoints: Checkpoints, keep: Keep) -> None:
        self._run_dir = run_dir
        self._root = root
        self._place = checkpoints if run_dir else Checkpoints(os.path.join(root, "artifacts"))
        self._keep = keep

    def save(self, name: str, path: Any) -> None:
        """Copy a file or a folder.

        Raises:
            OSError: it cannot be read, or the disk is full or broken.
            TypeError, ValueError: `path` is no path, has no files, or has too many.
            RecursionError: endlessly nested folders.
        """
        source = os.path.realpath(os.fsdecode(os.fspath(path)))
        own = os.path.realpath(self._root)
        if (source + os.sep).startswith(own + os.sep):
            raise ValueError(f"{source} is in nsml's own folder")
        draft = self._place.begin()
        try:
            copying = _Copying(source, draft.model, own)
            copying.copy()
            folder, files = draft.commit(name, is_artifact=bool(self._run_dir))
        except BaseException:
            draft.discard()
            raise
        _name_them(name, "left out, neither regular files nor folders", copying.left_out)
        _name_them(name, "changed while they were copied", copying.changed)
        if not self._run_dir:
            self._place.keep_newest(name)
            return
        try:
            _check_not_empty(files, source)
            self._keep(name, folder, files)
        except BaseException:
            remove_tree(os.path.join(self._place.root, os.path.dirname(folder)))
            raise

    def record(
        self, name: str, folder: str, files: List[Tuple[str, int]], seal: str, step: Any
    ) -> bytes:
        """Return the record of a saved artifact. Raises ValueError if it has too many files for a record."""
        record = {
            "kind": "artifact",
            "time": time.time(),
            "name": name,
            "folder": folder,
            "files": [(path_text(path), size) for path, size in files],
            "seal": seal,
            "size": sum(size for _, size in files),
        }
        payload = encode({**record, "step": step if isinstance(step, (int, float)) else None})
        if len(payload) > MAX_PAYLOAD:
            raise ValueError(
                f"{len(files):,} files are too many for one artifact: pack them into one"
            )
        return payload

    def lost_record(self, name: str, why: str) -> bytes:
        """Return the record of an artifact that could not be saved."""
        # Unique in its replica, as other artifacts' folders are.
        folder = f"lost-{os.getpid()}-{time.time_ns()}"
        record = {"kind": "artifact", "time": time.time(), "name": name, "folder": folder}
        return encode({**record, "files": [], "size": 0, "lost": why[:_LONGEST_REASON]})


class _Copying:
    """Copies a file or a folder into the folder `target`; `own` is never copied.

    Links are skipped: nothing outside of the folder is copied.
    """

    def __init__(self, source: str, target: str, own: str) -> None:
        self._source = source
        self._target = target
        self._own = own
        self._has_room = False
        self.left_out: List[str] = []
        self.changed: List[str] = []

    def copy(self) -> None:
        """Copy it. Raises OSError; ENOSPC before the disk is full. ValueError: it is neither file nor folder."""
        facts = os.stat(self._source)
        if stat.S_ISREG(facts.st_mode):
            name = os.path.basename(self._source)
            self._copy_file(self._source, os.path.join(self._target, name), path_text(name))
        elif stat.S_ISDIR(facts.st_mode):
            self._copy_folder()
        else:
            raise ValueError(f"{self._source} is neither a regular file nor a folder")

    def _copy_folder(self) -> None:
        for base, folders, names in os.walk(self._source, onerror=_raise):
            below = os.path.relpath(base, self._source)
            there = os.path.normpath(os.path.join(self._target, below))
            for name in list(folders):
                path = os.path.join(base, name)
                if path == self._own:
                    folders.remove(name)
                elif os.path.islink(path):
                    names.append(name)
                    folders.remove(name)
                else:
                    make_folder(os.path.join(there, name))
            for name in names:
                path = os.path.join(base, name)
                text = path_text(os.path.relpath(path, self._source).replace(os.sep, "/"))
                if stat.S_ISREG(os.lstat(path).st_mode):
                    self._copy_file(path, os.path.join(there, name), text)
                else:
                    self.left_out.append(text)

    def _copy_file(self, path: str, there: str, text: str) -> None:
        before = os.stat(path)
        # Shared blocks need no room.
        if not copy_file(path, there, clone_only=not self._has_room) and not self._has_room:
            check_room(self._source, self._target)
            self._has_room = True
            copy_file(path, there)
        after = os.stat(path)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            self.changed.append(text)


def _check_not_empty(files: List[Tuple[str, int]], source: str) -> None:
    if not files:
        raise ValueError(f"there are no files in {source}")


def _name_them(name: str, what: str, paths: List[str]) -> None:
    if paths:
        more = f" and {len(paths) - _NAMED} more" if paths[_NAMED:] else ""
        notice(f"artifact {name}: {what}: {', '.join(paths[:_NAMED])}{more}")


def _raise(error: OSError) -> NoReturn:
    raise error
