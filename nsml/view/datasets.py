"""Datasets as rows and records."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from nsml.common.units import ago, counted, duration_text, local_moment, moment, size_text
from nsml.view.dataset_lineage import lineage_record, made_by_text
from nsml.view.sessions import visibility_word
from nsml.view.tables import Column
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nsml.content.tree_diff import FileChange, TreeDiff
    from nsml.v1.datasets_pb2 import Dataset, DatasetPart
    from nsml.v1.datasets_pb2 import DatasetUse as Use
    from nsml.v1.sessions_pb2 import Session


_MomentField: TypeAlias = Literal["last_used_at", "removed_at", "restorable_until"]


def _modified(dataset: Dataset, now: float) -> str:
    return ago(now - seconds_of(dataset.updated_at))


def _last_used(dataset: Dataset, now: float) -> str:
    if dataset.live_sessions:
        return f"now ({dataset.live_sessions:,} live)"
    used = dataset.HasField("last_used_at")
    return ago(now - seconds_of(dataset.last_used_at)) if used else ""


COLUMNS: tuple[Column[Dataset], ...] = (
    Column(key="name", title="Name", cell=lambda d, _: d.name, is_name=True),
    Column(key="size", title="Size", cell=lambda d, _: size_text(d.size_bytes)),
    Column(key="modified", title="Last Modified", cell=_modified, is_optional=True),
    Column(key="author", title="Author", cell=lambda d, _: d.owner),
    Column(
        key="description",
        title="Description",
        cell=lambda d, _: d.description or d.message,
        shrinks_to=11,
    ),
    Column(key="version", title="Version", cell=lambda d, _: str(d.version)),
    Column(key="tags", title="Tags", cell=lambda d, _: " ".join(d.tags), is_wide=True),
    Column(key="last_used", title="Last Used", cell=_last_used, is_optional=True),
    Column(
        key="versions",
        title="Versions",
        cell=lambda d, _: str(d.version_count or ""),
        is_wide=True,
    ),
    Column(key="files", title="Files", cell=lambda d, _: str(d.file_count), is_wide=True),
    Column(
        key="visibility",
        title="Visibility",
        cell=lambda d, _: visibility_word(d.visibility),
        is_wide=True,
    ),
    Column(
        key="updated_at",
        title="Modified at",
        cell=lambda d, _: local_moment(seconds_of(d.updated_at)),
        is_wide=True,
    ),
    Column(key="parts", title="Parts", cell=lambda d, _: _parts_word(d), is_wide=True),
    Column(key="digest", title="Digest", cell=lambda d, _: d.digest, is_wide=True),
    Column(
        key="in_place",
        title="In place at",
        cell=lambda d, _: d.in_place,
        is_wide=True,
        is_worth=lambda d: bool(d.in_place),
    ),
)


def record(dataset: Dataset) -> dict[str, Any]:
    """Return all fields of a dataset in raw values."""
    return {
        "name": dataset.name,
        "owner": dataset.owner,
        "team": dataset.team or None,
        "visibility": visibility_word(dataset.visibility),
        "version": dataset.version,
        "digest": dataset.digest,
        "size_bytes": dataset.size_bytes,
        "file_count": dataset.file_count,
        "message": dataset.message,
        "updated_at": moment(seconds_of(dataset.updated_at)),
        "description": dataset.description,
        "tags": list(dataset.tags),
        "version_count": dataset.version_count or None,
        "last_used_at": _moment_or_none(dataset, "last_used_at"),
        "live_sessions": dataset.live_sessions,
        "parts": _parts_record(dataset),
        "in_place": dataset.in_place or None,
        "lineage": lineage_record(dataset),
    }


_ACCESS: Final = {1: "open", 2: "owner only", 3: "hidden"}
"""By the numbers of PartAccess: `ps` imports this module, and loads no messages but those of sessions."""
_OTHER_FILES: Final = "all other files"


def _access(part: DatasetPart) -> str:
    return _ACCESS.get(part.access, "unknown")


def part_lines(dataset: Dataset) -> list[str]:
    """Return the parts of a dataset, those with a path first: `test/test_label  hidden  10 files, 4.1 kB`."""
    parts = sorted(dataset.parts, key=lambda one: (not one.path, one.path))
    width = max((len(one.path or _OTHER_FILES) for one in parts), default=0)
    return [
        f"{one.path or _OTHER_FILES:<{width}}  {_access(one):<10}  {_held(one)}".rstrip()
        for one in parts
    ]


def _held(part: DatasetPart) -> str:
    """Return its size; "" if the caller may not read it."""
    if not part.digest:
        return ""
    return f"{counted(part.file_count, 'file')}, {size_text(part.size_bytes)}"


def _parts_word(dataset: Dataset) -> str:
    return ", ".join(f"{one.path} ({_access(one)})" for one in dataset.parts if one.path)


def _parts_record(dataset: Dataset) -> list[dict[str, Any]]:
    return [
        {
            "path": one.path,
            "access": _access(one).replace(" ", "_"),
            "digest": one.digest or None,
            "size_bytes": one.size_bytes if one.digest else None,
            "file_count": one.file_count if one.digest else None,
        }
        for one in dataset.parts
    ]


def _removed(version: Dataset, now: float) -> str:
    """Return when it was removed, and how long it can be restored; "" if it was not."""
    if not version.HasField("removed_at"):
        return ""
    text = ago(now - seconds_of(version.removed_at))
    if version.HasField("restorable_until"):
        text += f", restorable for {duration_text(seconds_of(version.restorable_until) - now)}"
    return text


VERSION_COLUMNS: tuple[Column[Dataset], ...] = (
    Column(key="version", title="Version", cell=lambda d, _: str(d.version), is_name=True),
    Column(key="created", title="Created", cell=_modified),
    Column(key="size", title="Size", cell=lambda d, _: size_text(d.size_bytes)),
    Column(key="files", title="Files", cell=lambda d, _: f"{d.file_count:,}"),
    Column(key="tags", title="Tags", cell=lambda d, _: " ".join(d.tags), shrinks_to=8),
    Column(key="message", title="Message", cell=lambda d, _: d.message, shrinks_to=11),
    Column(
        key="made_by",
        title="Made by",
        cell=lambda d, _: made_by_text(d),
        is_wide=True,
        is_worth=lambda d: d.HasField("lineage"),
        tells=lambda d: d.HasField("lineage"),
        shrinks_to=12,
    ),
    Column(key="author", title="Author", cell=lambda d, _: d.owner, is_optional=True),
    Column(
        key="removed",
        title="Removed",
        cell=_removed,
        is_wide=True,
        is_worth=lambda d: d.HasField("removed_at"),
        tells=lambda d: d.HasField("removed_at"),
    ),
    Column(
        key="created_at",
        title="Created at",
        cell=lambda d, _: local_moment(seconds_of(d.updated_at)),
        is_wide=True,
    ),
    Column(key="parts", title="Parts", cell=lambda d, _: _parts_word(d), is_wide=True),
    Column(key="digest", title="Digest", cell=lambda d, _: d.digest, is_wide=True),
    Column(
        key="in_place",
        title="In place at",
        cell=lambda d, _: d.in_place,
        is_wide=True,
        is_worth=lambda d: bool(d.in_place),
        tells=lambda d: bool(d.in_place),
    ),
)


REMOVED_COLUMNS: tuple[Column[Dataset], ...] = (
    Column(key="name", title="Name", cell=lambda d, _: reference(d), is_name=True),
    Column(key="size", title="Size", cell=lambda d, _: size_text(d.size_bytes)),
    Column(key="files", title="Files", cell=lambda d, _: f"{d.file_count:,}"),
    Column(key="message", title="Message", cell=lambda d, _: d.message, shrinks_to=11),
    Column(key="removed", title="Removed", cell=_removed),
    Column(
        key="restorable_until",
        title="Restorable until",
        cell=lambda d, _: (
            local_moment(seconds_of(d.restorable_until)) if d.HasField("restorable_until") else ""
        ),
        is_wide=True,
    ),
    Column(key="digest", title="Digest", cell=lambda d, _: d.digest, is_wide=True),
)
"""Removed versions of several datasets."""


def version_record(version: Dataset) -> dict[str, Any]:
    """Return all fields of one version in raw values."""
    return {
        "name": reference(version),
        "version": version.version,
        "created_at": moment(seconds_of(version.updated_at)),
        "author": version.owner,
        "size_bytes": version.size_bytes,
        "file_count": version.file_count,
        "message": version.message,
        "tags": list(version.tags),
        "digest": version.digest,
        "parts": _parts_record(version),
        "removed_at": _moment_or_none(version, "removed_at"),
        "restorable_until": _moment_or_none(version, "restorable_until"),
        "in_place": version.in_place or None,
        "lineage": lineage_record(version),
    }


def reference(dataset: Dataset) -> str:
    """Return `OWNER/NAME@NUMBER`, a permanent reference to this content."""
    return f"{full_name(dataset)}@{dataset.version}"


def _moment_or_none(dataset: Dataset, name: _MomentField) -> str | None:
    return moment(seconds_of(getattr(dataset, name))) if dataset.HasField(name) else None


def uses_text(use: Use) -> str:
    """Describe its users: `2 live sessions (1 queued): kim/mnist/4, kim/mnist/7; 12 ended sessions`."""
    queued = f" ({use.queued_sessions:,} queued)" if use.queued_sessions else ""
    named = f": {', '.join(use.names)}" if use.names else ""
    more = use.live_sessions - len(use.names)
    rest = f" and {more:,} more" if named and more > 0 else ""
    live = f"{counted(use.live_sessions, 'live session')}{queued}{named}{rest}"
    ended = counted(use.ended_sessions, "ended session")
    if use.ended_names:
        last = ", ".join(use.ended_names)
        ended += f": {last}" if len(use.ended_names) == use.ended_sessions else f", such as {last}"
    parts = [live] if use.live_sessions else []
    parts += [ended] if use.ended_sessions else []
    return "; ".join(parts) or "no session"


def use_record(use: Use) -> dict[str, Any]:
    """Return the same in raw values."""
    return {
        "live_sessions": use.live_sessions,
        "queued_sessions": use.queued_sessions,
        "names": list(use.names),
        "ended_sessions": use.ended_sessions,
        "ended_names": list(use.ended_names),
    }


def change_lines(diff: TreeDiff) -> list[str]:
    """Return the differences of two versions: a line for each file, then the sums."""
    lines = [_change_line(one) for one in diff.files]
    if diff.left_out:
        lines.append(f"... and {counted(diff.left_out, 'more file', 'more files')}")
    sums = [f"{count:,} {kind.value}" for kind, count in diff.counts.items() if count]
    kept = f"{counted(diff.unchanged, 'file')} unchanged"
    lines.append(
        f"{', '.join(sums)}, {kept};"
        f" +{size_text(diff.added_bytes)}, -{size_text(diff.removed_bytes)}"
        if sums
        else f"nothing differs: {kept}"
    )
    return lines


def _change_line(one: FileChange) -> str:
    path = f"{one.path_before} -> {one.path}" if one.path_before else one.path
    before, after = one.before_bytes, one.after_bytes
    sizes = dict.fromkeys(size_text(one) for one in (before, after) if one is not None)
    size = " -> ".join(sizes)
    return f"{one.kind.value:8} {path}  {size}"


def diff_record(before: Dataset, after: Dataset, diff: TreeDiff) -> dict[str, Any]:
    """Return the same in raw values."""
    return {
        "name": full_name(after),
        "before": reference(before),
        "after": reference(after),
        **{kind.value: count for kind, count in diff.counts.items()},
        "unchanged": diff.unchanged,
        "added_bytes": diff.added_bytes,
        "removed_bytes": diff.removed_bytes,
        "renames_sought": diff.has_renames,
        "files": [
            {
                "change": one.kind.value,
                "path": one.path,
                "path_before": one.path_before or None,
                "before_bytes": one.before_bytes,
                "after_bytes": one.after_bytes,
            }
            for one in diff.files
        ],
        "left_out": diff.left_out,
    }


def full_name(dataset: Dataset) -> str:
    """Return `OWNER/NAME`, valid for all users."""
    return f"{dataset.owner}/{dataset.name}"


def names_in(session: Session) -> list[str]:
    """Return the full names of the datasets used by a session."""
    return [
        one.name if "/" in one.name else f"{session.owner}/{one.name}"
        for one in session.spec.datasets
    ]


def filter_of(dataset: Dataset) -> str:
    """Return the filter for the sessions that use it."""
    return f"ds:{full_name(dataset)}"


class DatasetUse(NamedTuple):
    """A dataset and its usage."""

    dataset: Dataset
    live: int = 0
    ended: int = 0
    nodes: Sequence[str] = ()
    """Nodes of live sessions that read it now."""


USE_COLUMNS: tuple[Column[DatasetUse], ...] = (
    Column(key="name", title="Name", cell=lambda u, _: u.dataset.name, is_name=True),
    Column(key="owner", title="Owner", cell=lambda u, _: u.dataset.owner),
    Column(key="size", title="Size", cell=lambda u, _: size_text(u.dataset.size_bytes)),
    Column(key="version", title="Ver", cell=lambda u, _: str(u.dataset.version)),
    Column(
        key="visibility",
        title="Visibility",
        cell=lambda u, _: visibility_word(u.dataset.visibility),
        is_optional=True,
    ),
    Column(key="live", title="Live", cell=lambda u, _: str(u.live or "-")),
    Column(key="ended", title="Ended", cell=lambda u, _: str(u.ended or "-"), is_optional=True),
    Column(key="updated", title="Updated", cell=lambda u, now: _modified(u.dataset, now)),
    Column(
        key="nodes",
        title="On nodes",
        cell=lambda u, _: ", ".join(u.nodes) or "-",
        shrinks_to=8,
        is_optional=True,
    ),
)


def use_lines(use: DatasetUse, now: float) -> list[str]:
    """Describe a dataset in a few lines."""
    one = use.dataset
    ended = f", {use.ended:,} ended" if use.ended else ""
    rows = [
        ("owner", f"{one.owner}, team {one.team}" if one.team else one.owner),
        ("visibility", visibility_word(one.visibility)),
        ("version", f"{one.version}, pushed {_modified(one, now)}"),
        ("tags", " ".join(one.tags)),
        ("description", one.description),
        ("message", one.message),
        ("parts", _parts_word(one)),
        ("contents", f"{counted(one.file_count, 'file')}, {size_text(one.size_bytes)}"),
        ("used by", f"{counted(use.live, 'live session')}{ended}"),
        ("on nodes", ", ".join(use.nodes)),
        ("digest", one.digest[:16]),
    ]
    return [full_name(one), *(f"  {title:12}{text}" for title, text in rows if text)]


MOST_IN_FOLDER: Final = 12
"""Most files of a folder listed in a tree."""
MOST_TREE_LINES: Final = 400
MOST_FOLDERS: Final = 32
"""Nesting limit: deeper paths are shown verbatim."""


class _Folder:
    """Files below a folder."""

    def __init__(self) -> None:
        self.folders: dict[str, _Folder] = {}
        self.files: list[tuple[str, int]] = []
        self.count = self.size = 0

    def add(self, parts: Sequence[str], size: int) -> None:
        self.count += 1
        self.size += size
        if len(parts) == 1:
            self.files.append((parts[0], size))
        else:
            self.folders.setdefault(parts[0], _Folder()).add(parts[1:], size)

    def lines(self, indent: str) -> Iterator[str]:
        for name, folder in sorted(self.folders.items()):
            held = f"{counted(folder.count, 'file')}, {size_text(folder.size)}"
            yield f"{indent}{name}/  {held}"
            yield from folder.lines(f"{indent}  ")
        files = sorted(self.files)
        # Leaving one out would save no line: the note takes one, too.
        named = files if len(files) <= MOST_IN_FOLDER + 1 else files[:MOST_IN_FOLDER]
        for name, size in named:
            yield f"{indent}{name}  {size_text(size)}"
        if rest := files[len(named) :]:
            held = size_text(sum(size for _, size in rest))
            yield f"{indent}... {counted(len(rest), 'more file', 'more files')}, {held}"


def tree_lines(files: Iterable[tuple[str, int]]) -> list[str]:
    """Return files with their sizes as a tree: folders first, with their totals; of many files the first."""
    root = _Folder()
    for path, size in files:
        root.add(path.split("/", MOST_FOLDERS), size)
    lines = list(islice(root.lines(""), MOST_TREE_LINES + 1))
    if len(lines) > MOST_TREE_LINES:
        lines[MOST_TREE_LINES:] = ["... and more"]
    return lines
