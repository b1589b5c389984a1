"""Reads a code folder's requirements on a node, where a program may have replaced the files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.environments.errors import EnvironmentFailed
from nodeagent.safe_paths import open_folder
from nsml.packages import requirements
from nsml.packages.requirements import (
    HERE,
    Requirements,
    RequirementsRefused,
    as_text,
    most_bytes,
)

if TYPE_CHECKING:
    from nsml.packages.requirements import Readers


def read_requirements(
    code: Path,
    *,
    entry: str = "",
    may_build: bool = False,
    has_image: bool = False,
    readers: Readers = HERE,
) -> Requirements:
    """See `nsml.packages.requirements`; `readers` usually run in a sandbox (`setups.py`). Raises EnvironmentFailed."""
    try:
        return requirements.read_requirements(
            lambda name: _text(code, name),
            entry=entry,
            files=_names(code),
            may_build=may_build,
            has_image=has_image,
            readers=readers,
        )
    except RequirementsRefused as error:
        raise EnvironmentFailed(str(error)) from None


def _names(code: Path) -> list[str]:
    """Files directly in the folder."""
    with os.scandir(code) as found:
        return sorted(one.name for one in found if one.is_file(follow_symlinks=False))


def _text(code: Path, name: str) -> str | None:
    """The text of a file of the code folder; None when there is none.

    A program of an earlier attempt may have replaced it: symlinks are refused, and hard links to
    others' files too, since file and folder must have the same owner.
    """
    *folders, last = Path(name).parts
    try:
        with open_folder(code, folders) as folder:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(last, flags, dir_fd=folder)
            owner = os.fstat(folder).st_uid
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EnvironmentFailed(f"{name} cannot be read: {error.strerror}") from None
    except ValueError:
        raise EnvironmentFailed(f"{name!r} is no name of a file") from None
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        if os.fstat(descriptor).st_uid != owner:
            raise EnvironmentFailed(f"{name} cannot be read: it belongs to another user")
        content = file.read(most_bytes(name) + 1)
    return as_text(name, content)
