"""Files and artifacts of a W&B run, as far as they lie in the imported folder, as artifacts of its session.

`run.save` leaves a link to the program's own file in the run's folder, which is followed if the file is in the imported
folder. Files of an artifact are named by its record in the log: W&B keeps copies of them elsewhere (`~/.local/share/wandb`)
unless they were added with `policy="immutable"`.
"""

from __future__ import annotations

import base64
import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nsml._path_text import name_text
from nsml.imports.folders import parts_of, shown
from nsml.imports.wandb_log import messages_in, parsed, text_in

if TYPE_CHECKING:
    from nsml.content.safe_paths import Parts
    from nsml.imports.folders import Folder
    from nsml.imports.runs import Recording

_OWN: Final = frozenset(
    {
        "conda-environment.yaml",
        "config.yaml",
        "media",
        "output.log",
        "requirements.txt",
        "wandb-events.jsonl",
        "wandb-history.jsonl",
        "wandb-metadata.json",
        "wandb-summary.json",
    }
)
"""What W&B itself writes among the files of a run; media are recorded with the reports that show them."""
_OWN_TYPES: Final = frozenset({"job", "run_table", "wandb-run-incremental-table", "wandb-history"})
"""Artifacts that W&B makes of logged tables, of the program and of the history."""
_PIECE_BYTES: Final = 1 << 20


class Files:
    """Collects the files of one run, which may have several folders: a later file replaces an earlier one of its name."""

    def __init__(self, folder: Folder, into: Recording) -> None:
        self._folder = folder
        self._into = into
        self._groups: dict[str, dict[Parts, Parts]] = {}
        self._above: Parts = ()

    def enter(self, place: Parts) -> None:
        """Begin with a folder of the run."""
        self._above = place[:-2] if len(place) > 1 else ("..",) * (2 - len(place))

    def look(self, place: Parts) -> None:
        """Collect what its folder `files` has."""
        if not self._into.artifacts.is_on:
            return
        for parts, sizes in self._folder.walk(place):
            inside = parts[len(place) :]
            if inside and inside[0] in _OWN:
                continue
            for name in sizes:
                if inside or name not in _OWN:
                    self._add((*inside, name), (*parts, name))
            for name, what in self._folder.others(parts).items():
                if inside or name not in _OWN:
                    self._follow((*inside, name), (*parts, name), is_link=what == "a link")

    def _follow(self, path: Parts, place: Parts, *, is_link: bool) -> None:
        """Collect the file to which a link leads."""
        what = f"file {shown(path)}"
        if not is_link:
            self._into.leave_out(f"{what}: it is no regular file")
            return
        try:
            target = self._folder.target(place)
            with self._folder.opened(target):  # its folders are no links, either
                self._add(path, target)
        except (OSError, ValueError) as error:
            self._leave_out(f"{what}: a link", error)

    def _add(self, path: Parts, place: Parts) -> None:
        files = self._groups.setdefault(path[0], {})
        if len(path) == 1:
            files.clear()
        files.pop(path[:1], None)
        files[path[1:] or path] = place

    def _leave_out(self, what: str, error: Exception) -> None:
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        self._into.leave_out(f"{what[:300]}: {why}")

    def log_artifact(self, record: dict[int, list[Any]]) -> None:
        """Record an artifact, if all of its files are here and as they were."""
        kind, name = name_text(text_in(record, 4)), text_in(record, 5)
        if kind in _OWN_TYPES or not self._into.artifacts.is_on:
            return
        title = f"artifact {name_text(name)[:200]}"
        manifest = parsed(messages_in(record, 12)[-1]) if messages_in(record, 12) else {}
        if text_in(manifest, 5):
            self._into.leave_out(f"{title}: its list of files is elsewhere")
            return
        files: dict[Parts, Parts] = {}
        for entry in map(parsed, messages_in(manifest, 4)):
            try:
                files[parts_of(text_in(entry, 1))] = self._place_of(entry)
            except (OSError, ValueError) as error:
                path = name_text(text_in(entry, 1))[:200]
                self._leave_out(f"{title}: {path}", error)
                return  # one with a part of its files would be another
        if files:
            self._into.artifacts.add(name, self._folder, files)

    def _place_of(self, entry: dict[int, list[Any]]) -> Parts:
        """Return the place of a file of an artifact. Raises OSError, ValueError if it is not here, or another one.

        A relative path is taken from the folder that `wandb` is in, where programs start by default.
        """
        if reference := text_in(entry, 3):
            raise ValueError(f"it is at {name_text(reference)[:200]}")
        path = text_in(entry, 6)
        if not path:
            raise ValueError("the log does not say where it is")
        place = self._folder.place_of(str(self._folder.path.joinpath(*self._above, path)))
        digest = hashlib.md5(usedforsecurity=False)
        with self._folder.opened(place) as file:
            for piece in iter(partial(file.read, _PIECE_BYTES), b""):
                digest.update(piece)
        if base64.b64encode(digest.digest()).decode() != text_in(entry, 2):
            raise ValueError("the file has changed since")
        return place

    def finish(self) -> None:
        """Record the files: what lies directly in their folder is an artifact of its own, as is each folder there."""
        for name, files in sorted(self._groups.items()):
            self._into.artifacts.add(name, self._folder, files)
