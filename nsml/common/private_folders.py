"""Data folders of programs: private to their user. Descriptions of file errors for people."""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def make_data_folder(folder: Path, error: Callable[[str], Exception]) -> None:
    """Make a program's data folder if it is missing, and restrict it to its owner.

    Raises:
        error(REASON): it cannot be made, or it belongs to another account.
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
    """Return why a program cannot use this folder or file: another account owns it; "" if it can.

    Raises:
        OSError: its status cannot be read.
    """
    owner = folder.stat().st_uid
    who_we_are = getattr(os, "geteuid", None)
    if who_we_are is None or who_we_are() in {0, owner}:
        return ""
    return f"it belongs to {_account(owner)}, and this program runs as {_account(who_we_are())}"


def words_of(error: OSError) -> str:
    """Describe an error: `PATH: Permission denied, it belongs to root ...`, without Python's number."""
    if error.errno is None:
        return str(error)
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror}{_closed_by(error)}"


def _closed_by(error: OSError) -> str:
    """Describe the owner of the inaccessible file, or of the folder above it."""
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
