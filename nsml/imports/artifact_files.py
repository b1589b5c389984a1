"""Files of a run that become artifacts of its session. They are read where they lie, when the archive is written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from nsml._path_text import name_text, path_text
from nsml.common.units import size_text
from nsml.content.errors import PathRefused
from nsml.content.paths import MAX_COMPONENT_BYTES, split_path
from nsml.imports.folders import shown
from nsml.spec.folders import folder_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nsml.content.safe_paths import Parts
    from nsml.imports.folders import Folder

MOST_ARTIFACTS: Final = 5_000
MOST_FILES: Final = 100_000
MOST_BYTES: Final = 15 << 30
"""Of a run. An archive may expand to a GiB more, whatever its size (`session_archives.FREE_BYTES`)."""
_PIECE_BYTES: Final = 1 << 20
_EXECUTABLE: Final = 0o100


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """A file of an artifact. `path`: in the artifact, as text; `place`: in the folder of runs."""

    path: str
    place: Parts
    size: int
    is_executable: bool


@dataclass(frozen=True, slots=True)
class PastArtifact:
    """A version of an artifact. `saved_at`: Unix seconds; 0 if unknown."""

    name: str
    version: int
    folder: Folder
    files: tuple[ArtifactFile, ...]
    saved_at: float

    @property
    def tree(self) -> str:
        """The name of its folder in an archive."""
        return folder_name(f"{self.name}@{self.version}")

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(one.size for one in self.files)


class Artifacts:
    """The artifacts of one run, within its limits; `leave_out` is called with what is missing.

    Args:
        is_on: without it, none is taken, and nothing is said of them.
    """

    def __init__(self, leave_out: Callable[[str], None], *, is_on: bool = True) -> None:
        self._leave_out = leave_out
        self.is_on = is_on
        self.found: list[PastArtifact] = []
        self._versions: dict[str, int] = {}
        self._files = 0
        self._bytes = 0

    def add(
        self, name: str, folder: Folder, files: Mapping[Parts, Parts], saved_at: float = 0.0
    ) -> None:
        """Add a version of an artifact.

        Args:
            name: any text.
            folder: has its files.
            files: the place of each in `folder`, by its path in the artifact.
            saved_at: Unix seconds; 0: unknown.
        """
        if not self.is_on or not files:
            return
        name = name_text(name)
        title = f"artifact {name[:200]}"
        version = self._versions.get(name, 0) + 1
        if not name or len(folder_name(f"{name}@{version}")) > MAX_COMPONENT_BYTES:
            self._leave_out(
                f"{title}: its name is too long" if name else "an artifact without name"
            )
            return
        if self._files + len(files) > MOST_FILES:
            self._leave_out(
                f"{title}: {len(files):,} files, and at most {MOST_FILES:,} of a run are kept"
            )
            return
        found = [one for path in sorted(files) if (one := self._opened(title, folder, path, files))]
        size = sum(one.size for one in found)
        if not found:
            return
        if self._bytes + size > MOST_BYTES:
            most = size_text(MOST_BYTES)
            self._leave_out(f"{title}: {size_text(size)}, and at most {most} of a run are kept")
            return
        if len(self.found) >= MOST_ARTIFACTS:
            self._leave_out(f"artifacts beyond {MOST_ARTIFACTS:,}")
            return
        self._files += len(found)
        self._bytes += size
        self._versions[name] = version
        self.found.append(PastArtifact(name, version, folder, tuple(found), saved_at))

    def _opened(
        self, title: str, folder: Folder, path: Parts, files: Mapping[Parts, Parts]
    ) -> ArtifactFile | None:
        """Return a file that can be read; None, which is said, of another."""
        text = path_text("/".join(path))
        try:
            split_path(text)
            _check_above(path, files)
            with folder.opened(files[path]) as file:
                facts = os.fstat(file.fileno())
        except PathRefused as error:
            self._leave_out(f"{title}: {error}")
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else "") or str(error)
            self._leave_out(f"{title}: {text[:200]}: {why}")
        else:
            is_executable = bool(facts.st_mode & _EXECUTABLE)
            return ArtifactFile(text, files[path], facts.st_size, is_executable)
        return None


def _check_above(path: Parts, files: Mapping[Parts, Parts]) -> None:
    if any(path[:depth] in files for depth in range(1, len(path))):
        raise ValueError("a file has the name of its folder")


def pieces_of(artifact: PastArtifact, file: ArtifactFile) -> Iterator[bytes]:
    """Yield the bytes of a file, as many as it had when it was found. Raises OSError, ValueError if it has fewer."""
    left = file.size
    with artifact.folder.opened(file.place) as opened:
        for piece in iter(partial(opened.read, _PIECE_BYTES), b""):
            yield piece[:left]
            left -= min(left, len(piece))
            if not left:
                return
    if left:
        raise ValueError(f"{shown(file.place)} changed while it was read")
