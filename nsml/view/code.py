"""The code of two sessions: which files differ, and in which lines."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import StrEnum
from io import StringIO
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from nsml.common.text import visible
from nsml.common.units import counted, size_text
from nsml.view.tables import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nsml.content.manifest import Entry, Manifest

MOST_BYTES = 1 << 20
"""Largest file compared line by line."""
MOST_IN_ALL = 32 << 20
"""Limit for all files of both sessions together."""
MOST_LINES = 20_000
"""Most lines of such a file."""
MOST_IN_LINE = 2_000
"""Most characters shown of a line."""
MOST_WORK: Final = 10_000_000
"""Line look-ups in one comparison, some seconds: for some files they grow with the square of the lines, or faster."""
MOST_WORK_IN_ALL: Final = 40_000_000
"""The same for all files of both sessions."""
_CONTEXT = 3
_NOWHERE = "/dev/null"
_NO_END = "\\ No newline at end of file"
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


class Change(StrEnum):
    """The change of a file from the first session to the second."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file that differs; None where it is missing."""

    path: str
    old: Entry | None
    new: Entry | None

    @property
    def change(self) -> Change:
        """The kind of change."""
        if self.old is None:
            return Change.ADDED
        return Change.REMOVED if self.new is None else Change.CHANGED

    @property
    def has_same_bytes(self) -> bool:
        """Whether only its mode differs."""
        return bool(self.old and self.new and self.old.chunks == self.new.chunks)

    @property
    def size(self) -> int:
        """Bytes of both together."""
        return sum(one.size for one in (self.old, self.new) if one is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The difference of a file: a unified diff, every line safe for a terminal."""

    file: File
    lines: tuple[str, ...] = ()
    added: int = 0
    removed: int = 0
    note: str = ""
    """Why its lines are not compared, or what else differs; "" if nothing."""


def differing(old: Manifest | None, new: Manifest | None) -> list[File]:
    """Return the files that differ between the trees, by name; None is a tree without files."""
    olds, news = (
        {entry.path: entry for entry in tree.entries} if tree else {} for tree in (old, new)
    )
    both = ((path, olds.get(path), news.get(path)) for path in sorted({*olds, *news}))
    return [
        File(path=path, old=before, new=after) for path, before, after in both if before != after
    ]


def readable(files: Sequence[File]) -> list[File]:
    """Return the files whose content is to be read: each small enough, within the total limit."""
    found, left = [], MOST_IN_ALL
    for file in files:
        largest = max(one.size for one in (file.old, file.new) if one is not None)
        if file.has_same_bytes or largest > MOST_BYTES or file.size > left:
            continue
        left -= file.size
        found.append(file)
    return found


def unread(file: File) -> Compared:
    """Return the entry of a file that was not read."""
    if file.has_same_bytes:
        return Compared(file=file, note=_modes(file))
    return Compared(file=file, note=f"too large to compare its lines: {_sizes(file)}")


class Work:
    """The remaining work budget for comparisons."""

    def __init__(self) -> None:
        self.left = MOST_WORK_IN_ALL

    def is_enough(self, before: Sequence[str], after: Sequence[str]) -> bool:
        """Return whether these lines can be compared within the budget."""
        matcher = _Matcher(before, after, min(self.left, MOST_WORK))
        had = matcher.left
        try:
            matcher.get_matching_blocks()
        except _TooMuch:
            return False
        finally:
            self.left -= had - max(matcher.left, 0)
        return True


class _TooMuch(Exception):
    """The files are too different."""


class _Matcher(difflib.SequenceMatcher[str]):
    """Counts its line look-ups, `left` at most: each line, and its occurrences in the other file."""

    def __init__(self, before: Sequence[str], after: Sequence[str], left: int) -> None:
        super().__init__(None, before, after)
        known = self.b2j  # type: ignore[attr-defined] # typeshed lacks it
        looks = (1 + len(known.get(line, ())) for line in before)
        self._sums = [0, *accumulate(looks)]
        self.left = left

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> difflib.Match:
        self.left -= self._sums[-1 if ahi is None else ahi] - self._sums[alo]
        if self.left < 0:
            raise _TooMuch
        return super().find_longest_match(alo, ahi, blo, bhi)


def compared(
    file: File, old: bytes, new: bytes, names: tuple[str, str], work: Work | None = None
) -> Compared:
    """Compare the lines of a file, given its bytes (empty if missing); `names` of the sessions."""
    texts = _text(old), _text(new)
    if texts[0] is None or texts[1] is None:
        return Compared(file=file, note=f"no text: {_sizes(file)}")
    # Python recognizes further line ends; only this one counts.
    before, after = (list(StringIO(text, newline="\n")) for text in texts)
    if max(len(before), len(after)) > MOST_LINES:
        return Compared(file=file, note=f"over {MOST_LINES:,} lines: {_sizes(file)}")
    if not (work or Work()).is_enough(before, after):
        return Compared(file=file, note=f"too different to compare its lines: {_sizes(file)}")
    path = visible(file.path)
    found = difflib.unified_diff(
        before,
        after,
        path if file.old is not None else _NOWHERE,
        path if file.new is not None else _NOWHERE,
        visible(names[0]),
        visible(names[1]),
        _CONTEXT,
    )
    lines = tuple(_shown(found))
    # The first two lines name the file.
    added, removed = (sum(line.startswith(sign) for line in lines[2:]) for sign in "+-")
    return Compared(file=file, lines=lines, added=added, removed=removed, note=_modes(file))


def unreadable(entry: Entry) -> str:
    """Return why the lines of a file are not shown; "" if they are."""
    most = size_text(MOST_BYTES)
    return (
        f"too large to show: {size_text(entry.size)} of at most {most}"
        if entry.size > MOST_BYTES
        else ""
    )


def shown(data: bytes) -> tuple[list[str], str]:
    """Return the lines of a file, safe for a terminal; and a note if there are none, or more than shown."""
    text = _text(data)
    if text is None:
        return [], f"no text: {size_text(len(data))}"
    # Python recognizes further line ends; only this one counts.
    lines = text.removesuffix("\n").split("\n") if text else []
    note = f"its first {MOST_LINES:,} lines of {len(lines):,}" if len(lines) > MOST_LINES else ""
    shown = [_safe(_cut(line)) for line in lines[:MOST_LINES]]
    return shown, note if lines else "empty"


def _cut(line: str) -> str:
    return line if len(line) <= MOST_IN_LINE else f"{line[:MOST_IN_LINE]}…"


def entries(files: Sequence[File]) -> list[tuple[Entry | None, Entry | None]]:
    """Return the entries to read for `readable` files, in order, from both trees."""
    return [(file.old, file.new) for file in readable(files)]


def all_compared(
    files: Sequence[File], data: Sequence[tuple[bytes, bytes]], names: tuple[str, str]
) -> list[Compared]:
    """Compare each of the files, given the bytes of the `readable` ones in order; `names` of the sessions."""
    read = {file.path: both for file, both in zip(readable(files), data, strict=True)}
    work = Work()
    return [
        compared(file, *read[file.path], names, work) if file.path in read else unread(file)
        for file in files
    ]


def same(
    old: Manifest | None, new: Manifest | None, takes: Callable[[str], bool] = lambda _: True
) -> int:
    """Return the number of equal files in both trees, among paths accepted by `takes`."""
    olds, news = ({*tree.entries} if tree else set() for tree in (old, new))
    return sum(takes(entry.path) for entry in olds & news)


def colour_of(line: str) -> str:
    """The terminal colour of a line of a diff; "" for none."""
    return "" if line.startswith(("+++ ", "--- ")) else _COLOURS.get(line[:1], "")


def text_of(one: Compared) -> list[str]:
    """Return the lines that show a difference; a file not compared is one line."""
    note = [visible(f"{one.file.path}: {one.file.change.value}, {one.note}")] if one.note else []
    if one.lines or note:
        return [*note, *one.lines]
    return [visible(f"{one.file.path}: {one.file.change.value}, empty")]


def record(one: Compared, *, has_lines: bool) -> dict[str, Any]:
    """Return a file in raw values; `has_lines`: with its diff."""
    file = one.file
    return {
        "path": file.path,
        "change": file.change.value,
        "lines_added": one.added,
        "lines_removed": one.removed,
        "old_bytes": None if file.old is None else file.old.size,
        "new_bytes": None if file.new is None else file.new.size,
        "note": one.note or None,
        **({"diff": list(one.lines)} if has_lines else {}),
    }


def total_text(found: Sequence[Compared], same: int) -> str:
    """Return the totals of differing and equal files."""
    differ = "differs" if len(found) == 1 else "differ"
    added, removed = sum(one.added for one in found), sum(one.removed for one in found)
    return (
        f"{counted(len(found), 'file')} {differ}: {counted(added, 'line')} added, {removed:,} removed;"
        f" {counted(same, 'file')} the same"
    )


def _count(text: str) -> Any:
    return lambda one, _: str(getattr(one, text)) if one.lines else "-"


COLUMNS: tuple[Column[Compared], ...] = (
    Column(
        key="path", title="File", cell=lambda one, _: one.file.path, shrinks_to=24, is_name=True
    ),
    Column(key="change", title="Change", cell=lambda one, _: one.file.change.value),
    Column(key="lines_added", title="Added", cell=_count("added")),
    Column(key="lines_removed", title="Removed", cell=_count("removed")),
    Column(key="note", title="Note", cell=lambda one, _: one.note, shrinks_to=16, is_optional=True),
)


ENTRY_COLUMNS: tuple[Column[Entry], ...] = (
    Column(key="path", title="File", cell=lambda one, _: one.path, is_name=True),
    Column(key="size", title="Size", cell=lambda one, _: size_text(one.size)),
    Column(
        key="mode",
        title="Mode",
        cell=lambda one, _: f"{one.mode:04o}",
        is_wide=True,
        is_worth=lambda one: one.mode & 0o111 != 0,
    ),
)


def _shown(lines: Iterator[str]) -> Iterator[str]:
    """Make lines safe for a terminal: tabs are kept, since code is full of them."""
    for line in lines:
        whole = line.endswith("\n")
        yield _safe(line.removesuffix("\n"))
        if not whole:
            yield _NO_END


def _safe(line: str) -> str:
    return "\t".join(map(visible, line.split("\t")))


def _text(data: bytes) -> str | None:
    """Return the content as text; None for binary data."""
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None


def _sizes(file: File) -> str:
    sizes = [size_text(one.size) for one in (file.old, file.new) if one is not None]
    return " and ".join(sizes)


def _modes(file: File) -> str:
    if file.old is None or file.new is None or file.old.mode == file.new.mode:
        return ""
    return f"mode {file.old.mode:04o} -> {file.new.mode:04o}"
