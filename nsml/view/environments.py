"""Environments and their locks as rows and records."""

from __future__ import annotations

from typing import Any, NamedTuple

from nsml.common.text import visible
from nsml.packages.locks import LockedPackage, read_lock
from nsml.view.tables import Column


class LockLine(NamedTuple):
    """A line of a lock."""

    text: str
    package: LockedPackage


def locked_lines(content: str) -> list[LockLine]:
    """The lines of a lock. Raises LockRefused."""
    lines = content.split("\n")[:-1]
    return [
        LockLine(visible(text), one) for text, one in zip(lines, read_lock(content), strict=True)
    ]


def lock_record(line: LockLine) -> dict[str, Any]:
    """A package for programs."""
    name, version, url = line.package
    hashes = [word.removeprefix("--hash=") for word in line.text.split() if "--hash=" in word]
    return {"name": name, "version": version or None, "url": url or None, "hashes": hashes}


LOCK_COLUMNS: tuple[Column[LockLine], ...] = (
    Column(key="name", title="Package", cell=lambda i, _: i.package.name, is_name=True),
    Column(key="version", title="Version", cell=lambda i, _: i.package.what),
)
