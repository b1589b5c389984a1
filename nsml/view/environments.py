"""Environments and their locks as rows and records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from nsml.common.text import visible
from nsml.common.units import ago, counted, size_text
from nsml.packages.locks import LockedPackage, LockRefused, count_packages, is_of_conda, read_lock
from nsml.view.tables import Column
from nsml.view.times import moment_of, seconds_of

if TYPE_CHECKING:
    from nsml.v1.resources_pb2 import EnvironmentBuild, NodeEnvironment

KEY_SHOWN = 12
"""Digits of a key shown to people; they also identify it in commands."""


class LockLine(NamedTuple):
    """A line of a lock."""

    text: str
    package: LockedPackage


def locked_lines(content: str) -> list[LockLine]:
    """Parse the packages of a lock, in order. Raises LockRefused."""
    packages = read_lock(content)
    lines = content.split("\n")[:-1]
    if is_of_conda(content):
        lines = lines[2:]
    return [LockLine(visible(text), one) for text, one in zip(lines, packages, strict=True)]


def lock_record(line: LockLine) -> dict[str, Any]:
    """Return a package in raw values."""
    name, version, url, channel = line.package
    hashes = [word.removeprefix("--hash=") for word in line.text.split() if "--hash=" in word]
    if channel:
        url, _, digest = line.text.partition("#")
        hashes = [digest]
    what = {"name": name, "version": version or None, "url": url or None}
    return {**what, "hashes": hashes, "channel": channel or None}


LOCK_COLUMNS: tuple[Column[LockLine], ...] = (
    Column(key="name", title="Package", cell=lambda i, _: i.package.name, is_name=True),
    Column(key="version", title="Version", cell=lambda i, _: i.package.what),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnNode:
    """An environment of one node."""

    node: str
    environment: NodeEnvironment

    @property
    def key(self) -> str:
        """The short key for people, with the number of its build."""
        key, dot, number = self.environment.key.partition(".")
        return f"{key[:KEY_SHOWN]}{dot}{number}"

    @property
    def is_used(self) -> bool:
        """Whether a session uses it."""
        return bool(self.environment.sessions or self.environment.hidden_sessions)


def _used_by(one: OnNode, now: float) -> str:
    used = one.environment
    if not one.is_used:
        return f"- ({ago(now - seconds_of(used.used_at))})"
    hidden = [f"{used.hidden_sessions} of others"] if used.hidden_sessions else []
    return ", ".join([*used.sessions, *hidden])


COLUMNS: tuple[Column[OnNode], ...] = (
    Column(key="key", title="Environment", cell=lambda i, _: i.key, is_name=True),
    Column(key="node", title="Node", cell=lambda i, _: i.node),
    Column(
        key="owner",
        title="For",
        cell=lambda i, _: "all" if i.environment.for_all else i.environment.owner or "-",
    ),
    Column(key="packages", title="Packages", cell=lambda i, _: str(i.environment.package_count)),
    Column(key="size", title="Size", cell=lambda i, _: size_text(i.environment.bytes)),
    Column(key="shared", title="Shared", cell=lambda i, _: size_text(i.environment.shared_bytes)),
    Column(
        key="built",
        title="Built",
        cell=lambda i, now: ago(now - seconds_of(i.environment.built_at)),
    ),
    Column(key="used_by", title="Used by", cell=_used_by),
)


def record(one: OnNode) -> dict[str, Any]:
    """Return all its fields in raw values."""
    found = one.environment
    return {
        "key": found.key,
        "node": one.node,
        "owner": found.owner or None,
        "for_all": found.for_all,
        "package_count": found.package_count,
        "bytes": found.bytes,
        "shared_bytes": found.shared_bytes,
        "built_at": moment_of(found, "built_at"),
        "used_at": moment_of(found, "used_at"),
        "sessions": list(found.sessions),
        "hidden_sessions": found.hidden_sessions,
    }


class Removal(NamedTuple):
    """The result of a removal on a node; `why` it was kept, "" if it was removed."""

    node: str = ""
    key: str = ""
    why: str = ""


REMOVAL_COLUMNS: tuple[Column[Removal], ...] = (
    Column(key="node", title="Node", cell=lambda i, _: i.node, is_name=True),
    Column(key="outcome", title="Outcome", cell=lambda i, _: "kept" if i.why else "removed"),
    Column(key="why", title="Why", cell=lambda i, _: i.why or "-"),
)


def removal_record(one: Removal) -> dict[str, Any]:
    """Return the same in raw values."""
    return {"node": one.node, "key": one.key, "removed": not one.why, "why": one.why or None}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOnNode:
    """The result of a build on a node; `build` is None if the node was unreachable, with the reason in `why`."""

    node: str
    build: EnvironmentBuild | None = None
    why: str = ""

    @property
    def is_done(self) -> bool:
        """Whether the environment exists."""
        from nsml.v1.resources_pb2 import ENVIRONMENT_BUILD_STATE_DONE

        return self.build is not None and self.build.state == ENVIRONMENT_BUILD_STATE_DONE

    @property
    def key(self) -> str:
        """Short key of the environment or, on nodes with containers, of the image; "" if there is none."""
        if self.build is None or not self.build.key:
            return ""
        key, dot, number = self.build.key.removeprefix("sha256:").partition(".")
        return f"{key[:KEY_SHOWN]}{dot}{number}"

    @property
    def lock(self) -> str:
        """Its packages; "" without a lock."""
        return self.build.lock if self.build is not None else ""

    @property
    def package_count(self) -> int | None:
        """The number of packages in its lock; None without a readable lock."""
        try:
            return count_packages(self.lock) if self.lock else None
        except LockRefused:
            return None

    @property
    def outcome(self) -> str:
        """`built`, `there` (it existed before) or `failed`."""
        if not self.is_done or self.build is None:
            return "failed"
        return "there" if self.build.was_there else "built"

    @property
    def reason(self) -> str:
        """Why it failed; "" if it did not."""
        if self.is_done:
            return ""
        return self.why or (self.build.words if self.build is not None else "")


def build_word(one: BuildOnNode) -> str:
    """Describe the result of a build, for people."""
    if not one.is_done:
        return f"failed: {one.reason}"
    verb = "was there" if one.outcome == "there" else "is built"
    count = one.package_count
    packages = "" if count is None else f" ({counted(count, 'package')})"
    what = (
        "image" if one.build is not None and one.build.key.startswith("sha256:") else "environment"
    )
    return f"{what} {one.key} {verb}{packages}"


BUILD_COLUMNS: tuple[Column[BuildOnNode], ...] = (
    Column(key="node", title="Node", cell=lambda i, _: i.node, is_name=True),
    Column(key="outcome", title="Outcome", cell=lambda i, _: i.outcome),
    Column(key="key", title="Environment", cell=lambda i, _: i.key or "-"),
    Column(key="why", title="Why", cell=lambda i, _: i.reason or "-"),
)


def build_record(one: BuildOnNode) -> dict[str, Any]:
    """Return the same in raw values."""
    return {
        "node": one.node,
        "outcome": one.outcome,
        "key": one.build.key or None if one.build is not None else None,
        "package_count": one.package_count,
        "lock": one.lock or None,
        "why": one.reason or None,
    }
