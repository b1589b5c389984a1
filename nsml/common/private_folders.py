"""Data folders of programs: each is its user's alone. What the system says of a file, for people."""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def make_data_folder(folder: Path, error: Callable[[str], Exception]) -> None:
    """Make a program's data folder where there is none, and close it to others.

    Raises:
        error(REASON): it cannot be made, or it belongs to somebody else.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = foreign(folder)
        if not problem:
            folder.chmod(0o700)
    except OSError as refusal:
        raise error(f"cannot use the data folder {folder}: {refusal.strerror}") from refusal
    if problem:
        raise error(f"cannot use the data folder {folder}: {problem}")


def foreign(folder: Path) -> str:
    """Why a program cannot have this folder, or file: it belongs to somebody else; "" where it does not.

    Raises:
        OSError: it cannot be looked at.
    """
    owner = folder.stat().st_uid
    who_we_are = getattr(os, "geteuid", None)
    if who_we_are is None or who_we_are() in {0, owner}:
        return ""
    return f"it belongs to {_account(owner)}, and this program runs as {_account(who_we_are())}"


def words_of(error: OSError) -> str:
    """`PATH: Permission denied, it belongs to root ...`: without Python's number."""
    if error.errno is None:
        return str(error)
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror}{_closed_by(error)}"


def _closed_by(error: OSError) -> str:
    """Whose the file, or the folder on the way to it, is that we may not open."""
    if not isinstance(error, PermissionError) or not isinstance(error.filename, (str, Path)):
        return ""
    file = Path(error.filename)
    for place in (file, *file.parents):
        with suppress(OSError):
            problem = foreign(place)
            if problem and not os.access(place, os.X_OK if place.is_dir() else os.R_OK):
                subject = "" if place == file else f"{place}: "
                return f"; {subject}{problem}"
    return ""


def _account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
