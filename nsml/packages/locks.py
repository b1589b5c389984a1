"""Locks of environments: packages with versions and hashes, in the format of requirements.txt.

A node writes one, and others read it: what is not a package with a hash is refused, so that a lock never names an index.

Where packages are of conda it is an explicit file of conda (`conda create --file`): `@EXPLICIT`, and files of channels with
their SHA-256. The packages of pip beside them follow as comments, `# pip ` before each. A channel is named in it as if
it lay where conda looks for names; where a node fetches it is the node's to say.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from nsml.packages.conda_reader import ALIAS
from nsml.packages.requirements import canonical, conda_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsml.packages.requirements import Requirements

MOST_LOCK_BYTES: Final = 1 << 20
_MOST_PACKAGES: Final = 10_000
_PACKAGE: Final = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,127})(?:\[[A-Za-z0-9._, -]{0,500}\])?"
    r" ?(?:==(?P<version>[A-Za-z0-9.!+_-]{1,128})|@ (?P<url>https://[^\s?#;]{1,1000}\.whl(?:#[^\s;]{0,500})?))"
    r"(?: ?; ?[ -~]{1,2000})?"
)
_URL: Final = re.compile(r"https://[^\s;]+")
_HASH: Final = re.compile(
    r" --hash=(?:sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128})"
)
EXPLICIT: Final = "@EXPLICIT"
PIP: Final = "# pip "
"""What the lines of pip's packages begin with in a lock of conda."""
_PLATFORM: Final = re.compile(r"# platform: [a-z0-9]{1,32}-[a-z0-9_]{1,32}")
_LONGEST_URL: Final = 2_000
_CONDA_PACKAGE: Final = re.compile(
    rf"{re.escape(ALIAS)}(?P<channel>[A-Za-z0-9_][A-Za-z0-9_.~/-]{{0,400}})/(?P<subdir>[a-z0-9]+(?:-[a-z0-9_]+)?)"
    r"/(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})-(?P<version>[A-Za-z0-9_.!+]{1,128})-[A-Za-z0-9_.]{1,128}"
    r"\.(?:conda|tar\.bz2)#sha256:[0-9a-f]{64}"
)


class LockRefused(ValueError):
    """What is no lock; the message is for people."""


class LockedPackage(NamedTuple):
    """A package of a lock: `name` in its one form, and its `version`, or the `url` of its wheel; of conda the `channel`."""

    name: str
    version: str = ""
    url: str = ""
    channel: str = ""

    @property
    def what(self) -> str:
        """Its version or URL."""
        return self.version or self.url


def read_lock(text: str) -> Sequence[LockedPackage]:
    """The packages of a lock, in their order. Raises LockRefused for everything else than packages with hashes."""
    if len(text) > MOST_LOCK_BYTES or len(text.encode(errors="replace")) > MOST_LOCK_BYTES:
        raise LockRefused(f"it has over {MOST_LOCK_BYTES} bytes")
    lines = text.split("\n")
    if lines.pop() or not lines:
        raise LockRefused("its last line has no end, or it has no line")
    if len(lines) > _MOST_PACKAGES:
        raise LockRefused(f"it has over {_MOST_PACKAGES:,} lines")
    if _PLATFORM.fullmatch(lines[0]):
        return _read_conda(lines[1:])
    packages = tuple(map(_read_line, lines))
    _check_once([one.name for one in packages])
    return packages


def count_packages(lock: str) -> int:
    """How many packages a lock has; 0 of ""."""
    return len(read_lock(lock)) if lock else 0


def is_of_conda(lock: str) -> bool:
    """Whether a lock is of packages of conda."""
    return lock.startswith("# platform: ")


def conda_lines(lock: str) -> tuple[Sequence[str], Sequence[str]]:
    """The files of channels of a lock of conda, in the order in which they are installed, and the lines of pip."""
    _, _, *lines = lock.split("\n")[:-1]
    pip = [one.removeprefix(PIP) for one in lines if one.startswith(PIP)]
    return [one for one in lines if not one.startswith("#")], pip


def _read_conda(lines: Sequence[str]) -> Sequence[LockedPackage]:
    if not lines or lines[0] != EXPLICIT:
        raise LockRefused(f"its second line is not {EXPLICIT}")
    packages = []
    of_conda: list[str] = []
    for line in lines[1:]:
        if line.startswith(PIP):
            packages.append(_read_line(line.removeprefix(PIP)))
            continue
        found = _CONDA_PACKAGE.fullmatch(line) if len(line) <= _LONGEST_URL else None
        if found is None or ".." in found["channel"]:
            raise LockRefused(f"{line[:80]!r} is no package of conda with its SHA-256")
        of_conda.append(found["name"].lower())
        name = conda_name(of_conda[-1]) or of_conda[-1]
        packages.append(LockedPackage(name, found["version"], channel=found["channel"]))
    # typing_extensions and typing-extensions are two packages of conda
    _check_once(of_conda)
    # a package of pip may take the place of one of conda
    _check_once([one.name for one in packages if not one.channel])
    return packages


def _check_once(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise LockRefused("it names a package twice")


def locked(requirements: Requirements, lock: str, site: Sequence[str] = ()) -> Requirements:
    """What to install for exactly the packages of a lock: from where the requirements say, and nothing else.

    `site`: lines of the site's default packages, which say where those come from. Requirements that have hashes
    themselves stay as they are. Raises LockRefused, also for a URL that none of these lines names.
    """
    packages = read_lock(lock)
    if is_of_conda(lock) != (requirements.conda is not None):
        raise LockRefused("it is of conda and the code is not, or the other way round")
    if requirements.are_hashed and requirements.conda is None:
        return requirements
    lines = [*([] if requirements.conda else site), *requirements.lines]
    named = {found[0] for line in lines if (found := _URL.search(line))}
    for one in packages:
        if one.url and one.url not in named:
            raise LockRefused(f"the code does not name {one.url[:200]}")
    options = dict.fromkeys(line for line in lines if line.startswith("-"))
    if requirements.conda:
        conda = replace(requirements.conda, lock=lock)
        return replace(requirements, conda=conda, lines=(*options, *conda_lines(lock)[1]))
    return replace(requirements, lines=(*options, *lock.split("\n")[:-1]))


def versions(packages: Sequence[LockedPackage]) -> Mapping[str, str]:
    """By the name of each package its version, or the URL of its wheel."""
    return {one.name: one.what for one in packages}


def differences(here: str, there: str, most: int = 5) -> str:
    """What differs between two locks, for people: `numpy 2.1.0 (2.0.2)`. Raises LockRefused."""
    ours, theirs = versions(read_lock(here)), versions(read_lock(there))
    names = [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
    texts = [
        f"{name} {ours.get(name, 'absent')} ({theirs.get(name, 'absent')})" for name in names[:most]
    ]
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return ", ".join([*texts, *more]) or "the same versions, of other files"


def _read_line(line: str) -> LockedPackage:
    begin = line.find(" --hash=")
    what, hashes = (line, "") if begin < 0 else (line[:begin], line[begin:])
    found = _PACKAGE.fullmatch(what) if len(what) <= 3_000 else None
    # what begins with - behind a package is read as options, of the whole file; names of variables are replaced
    if found is None or not hashes or _HASH.sub("", hashes) or re.search(r"\s-|\$\{", what):
        raise LockRefused(f"{line[:80]!r} is no package with a version and hashes")
    return LockedPackage(canonical(found["name"]), found["version"] or "", found["url"] or "")
