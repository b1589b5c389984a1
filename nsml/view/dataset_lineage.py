"""Lineage of dataset versions, as lines and records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nsml.common.shell import shell_line
from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nsml.v1.datasets_pb2 import Dataset, DatasetLineage

_DIGITS: Final = 12
"""Digits of a digest shown to people."""
_HIDDEN: Final = "a session that you may not see"


class Lineage(NamedTuple):
    """The ancestry of a version: it and its sources, by `OWNER/NAME@NUMBER`; None for removed ones.

    `left_out`: versions beyond the limit.
    """

    root: str
    versions: Mapping[str, Dataset | None]
    left_out: int = 0


def sources(version: Dataset) -> list[str]:
    """Return the datasets read by its session, as far as visible to the caller: `kim/mnist@3`."""
    return [f"{one.name}@{one.version}" for one in version.lineage.datasets]


def made_by_text(version: Dataset) -> str:
    """Return the session that made it: `kim/mnist/12`; "" if it was pushed."""
    if not version.HasField("lineage"):
        return ""
    return version.lineage.session or _HIDDEN


def made_from_text(version: Dataset) -> str:
    """Return the same with its sources: `kim/mnist/12, attempt 1, from kim/mnist@3 and 1 other`."""
    if not version.HasField("lineage"):
        return ""
    made = version.lineage
    attempt = f", attempt {made.attempt}" if made.attempt else ""
    read = sources(version)
    if made.withheld_datasets:
        read.append(_withheld(made))
    of = f", from {', '.join(read)}" if read else ""
    return f"{made_by_text(version)}{attempt}{of}"


def lineage_record(version: Dataset) -> dict[str, Any] | None:
    """Return the lineage in raw values; None if it was pushed. Null: the session is hidden from the caller."""
    if not version.HasField("lineage"):
        return None
    made = version.lineage
    return {
        "session": made.session or None,
        "session_id": made.session_id or None,
        "attempt": made.attempt or None,
        "code": made.code or None,
        "environment_lock": made.environment_lock or None,
        "command": list(made.command),
        "datasets": sources(version),
        "withheld_datasets": made.withheld_datasets,
    }


def graph_record(found: Lineage) -> dict[str, Any]:
    """Return all versions with their lineage, the requested one first."""
    return {
        "name": found.root,
        "versions": [
            {
                "name": name,
                "is_there": version is not None,
                "digest": version.digest if version is not None else None,
                "lineage": lineage_record(version) if version is not None else None,
            }
            for name, version in found.versions.items()
        ],
        "left_out": found.left_out,
    }


def graph_lines(found: Lineage) -> list[str]:
    """Return a tree: a version, the session that made it, its sources below; each version once."""
    lines = list(_lines(found, found.root, "", set()))
    if found.left_out:
        lines.append(f"... and {counted(found.left_out, 'more version')}")
    return lines


def _lines(found: Lineage, root: str, indent: str, shown: set[str]) -> Iterator[str]:
    left = [(root, indent)]
    while left:
        name, indent = left.pop()
        version = found.versions.get(name)
        if name in shown:
            has_more = version is not None and version.HasField("lineage")
            yield f"{indent}{name}{'   as above' if has_more else ''}"
            continue
        shown.add(name)
        if version is None:
            gone = "   removed, or not visible any more" if name in found.versions else ""
            yield f"{indent}{name}{gone}"
            continue
        if not version.HasField("lineage"):
            yield f"{indent}{name}   pushed"
            continue
        yield f"{indent}{name}"
        yield from (f"{indent}  {line}" for line in _session_lines(version))
        if version.lineage.withheld_datasets:
            yield f"{indent}    {_withheld(version.lineage)}"
        left += [(one, f"{indent}    ") for one in reversed(sources(version))]


def _session_lines(version: Dataset) -> Iterator[str]:
    made = version.lineage
    facts = [
        made_by_text(version),
        f"attempt {made.attempt}" if made.attempt else "",
        f"code {made.code[:_DIGITS]}" if made.code else "",
        f"packages {made.environment_lock[:_DIGITS]}" if made.environment_lock else "",
    ]
    yield f"made by {', '.join(filter(None, facts))}"
    if made.command:
        yield f"  $ {shell_line(made.command)}"


def _withheld(made: DatasetLineage) -> str:
    return f"{counted(made.withheld_datasets, 'dataset')} that you may not see"
