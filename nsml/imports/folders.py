"""Files of a folder from anywhere: links, pipes and devices are not opened, and no file is read beyond a limit."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Self

from nsml._path_text import path_text
from nsml.content.safe_paths import beneath

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from types import TracebackType

    from nsml.content.safe_paths import Parts

MOST_DEPTH: Final = 32
MOST_FOLDERS: Final = 100_000
_MOST_UNREADABLE: Final = 100


class Folder:
    """A folder and what is below it; a context manager. Paths are tuples of names."""

    def __init__(self, root: Path) -> None:
        self._root = beneath(root.resolve())
        self.path = root.resolve()
        self._given = root.absolute()  # programs recorded paths through links, too
        self.name = path_text(root.resolve().name)
        self.unreadable: list[str] = []
        """Folders that cannot be read, with the reason, the first of them."""

    def __enter__(self) -> Self:
        self._root.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._root.__exit__(kind, error, trace)

    def listing(self, parts: Parts = ()) -> tuple[list[str], dict[str, int]]:
        """Return the names of folders, and the sizes of files by name, sorted; nothing of what cannot be read."""
        try:
            found = self._root.scan(parts)
        except (FileNotFoundError, NotADirectoryError):
            return [], {}
        except OSError as error:
            if len(self.unreadable) < _MOST_UNREADABLE:
                self.unreadable.append(f"{shown(parts)}: {error.strerror or error}")
            return [], {}
        folders = [one.name for one in found if stat.S_ISDIR(one.mode)]
        return folders, {one.name: one.size for one in found if stat.S_ISREG(one.mode)}

    def others(self, parts: Parts) -> dict[str, str]:
        """Return what of a folder is neither a folder nor a regular file, by name: what kind of file it is."""
        try:
            found = self._root.scan(parts)
        except OSError:  # `listing` has recorded it
            return {}
        return {
            one.name: "a link" if stat.S_ISLNK(one.mode) else "no regular file"
            for one in found
            if not stat.S_ISDIR(one.mode) and not stat.S_ISREG(one.mode)
        }

    def target(self, parts: Parts) -> Parts:
        """Return the place to which a link leads. Raises OSError, ValueError unless that is a path in this folder.

        What is there, or on the way, may be a link itself, which `opened` refuses.
        """
        target = self.path.joinpath(*parts).readlink()
        return self.place_of(str(self.path.joinpath(*parts[:-1], target)))

    def place_of(self, path: str) -> Parts:
        """Return the place of an absolute path. Raises ValueError unless it is in this folder."""
        found = Path(os.path.normpath(path))
        for root in (self.path, self._given):
            if "\0" not in path and found != root and found.is_relative_to(root):
                return found.relative_to(root).parts
        raise ValueError(f"it is outside of {path_text(str(self.path))}")

    def walk(self, parts: Parts = ()) -> Iterator[tuple[Parts, dict[str, int]]]:
        """Yield each folder, sorted by path, with the sizes of its files. Raises ValueError if there are too many."""
        left = MOST_FOLDERS
        waiting = [parts]
        while waiting and left:
            left -= 1
            here = waiting.pop()
            folders, files = self.listing(here)
            yield here, files
            if len(here) - len(parts) < MOST_DEPTH:
                waiting += [(*here, name) for name in reversed(folders)]
        if waiting:
            raise ValueError(f"{shown(parts)} has more than {MOST_FOLDERS:,} folders")

    @contextmanager
    def opened(self, parts: Parts) -> Generator[BinaryIO, None, None]:
        """Open a regular file for reading. Raises OSError."""
        with os.fdopen(self._root.open_file(parts), "rb") as file:
            yield file

    def read(self, parts: Parts, most: int) -> bytes:
        """Return the content of a file. Raises OSError, ValueError if it has more than `most` bytes."""
        with self.opened(parts) as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise ValueError(f"{shown(parts)} has more than {most:,} bytes")
        return data


def shown(parts: Parts) -> str:
    """Return a path as text."""
    return path_text("/".join(parts)) if parts else "."


def parts_of(text: str) -> Parts:
    """Return the path that a file names, relative to a folder. Raises ValueError unless it stays below that."""
    parts = tuple(one for one in text.split("/") if one not in {"", "."})
    if not parts or text.startswith("/") or ".." in parts or "\0" in text or "\\" in text:
        raise ValueError(f"{text[:200]!r} is no path below the folder")
    return parts
