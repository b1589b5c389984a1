"""The notice: tells a program that can save to do so, before it is ended.

Three files of the run folder, which is the program's own (docs/giving-way.md): `notice.json` from us,
`resumable.json` and `left.json` from the program. Standard library only; no link is followed.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

NOTICE = "notice.json"
RESUMABLE = "resumable.json"
LEFT = "left.json"

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LONGEST = 4096


def post(run: str, *, goes: bool, reason: str) -> bool:
    """Give notice to the program of the run folder; False if it cannot save.

    It can after binding a save function, or after a save. `goes`: it is to exit then.
    """
    try:
        with _opened(run) as folder:
            if not _can_save(folder):
                return False
            content = json.dumps({"goes": goes, "reason": reason}).encode()
            staged = f".{NOTICE}.{os.getpid()}"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(staged, dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(staged, flags, 0o644, dir_fd=folder)
            try:
                os.fchmod(file, 0o644)  # the program's user must be able to read it
                os.write(file, content)
            finally:
                os.close(file)
            os.rename(staged, NOTICE, src_dir_fd=folder, dst_dir_fd=folder)
            return True
    except OSError:
        return False


def has_left(run: str) -> bool:
    """Whether the program reported that it saved and exits."""
    with contextlib.suppress(OSError), _opened(run) as folder:
        return stat.S_ISREG(os.stat(LEFT, dir_fd=folder, follow_symlinks=False).st_mode)
    return False


def bound(folder: int) -> tuple[bool, bool]:
    """Return whether the program of an open run folder bound a save function, and a load function."""
    try:
        file = os.open(RESUMABLE, _FILE, dir_fd=folder)
    except OSError:
        return (False, False)
    try:
        is_regular = stat.S_ISREG(os.fstat(file).st_mode)
        said = json.loads(os.read(file, _LONGEST)) if is_regular else {}
        return (said.get("save") is True, said.get("load") is True)
    except (OSError, ValueError, RecursionError, AttributeError):
        return (False, False)
    finally:
        os.close(file)


def saved_at(folder: int) -> float:
    """Return when the newest checkpoint of an open run folder was put in place, Unix seconds; 0: none."""
    newest = 0.0
    with contextlib.suppress(OSError):
        checkpoints = os.open("checkpoints", _FOLDER, dir_fd=folder)
        try:
            with os.scandir(checkpoints) as entries:
                for entry in entries:
                    if entry.name[:1].isdigit() and not entry.name.endswith("-%artifact"):
                        newest = max(newest, entry.stat(follow_symlinks=False).st_mtime)
        finally:
            os.close(checkpoints)
    return newest


def _can_save(folder: int) -> bool:
    return bound(folder)[0] or saved_at(folder) > 0


@contextlib.contextmanager
def _opened(run: str) -> Iterator[int]:
    folder = os.open(run, _FOLDER)
    try:
        yield folder
    finally:
        os.close(folder)
