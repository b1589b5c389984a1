"""What a code folder asks for: `setup.py`, `requirements.txt`, `nsml_package.txt`, `#nsml:` lines.

Nothing of it is executed: `setup.py` is read as a syntax tree (`setup_reader.py`), and every line is matched against
what a line may be before it goes anywhere. What is taken are packages from an index, by name and
version, or by https URL; never folders, repositories or options that change what pip does.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.beneath import open_folder
from nodeagent.environments.builds import EnvironmentFailed
from nodeagent.environments.setup_reader import install_requires
from nsml.images import IMAGE_FILES, RULE, NamesNoImage, asked_image

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    ReadSetup = Callable[[str], tuple[list[str], list[str]]]
    """From the text of a `setup.py` to the lines that it lists, and notes about what was left out."""

_MAX_FILE_BYTES = 1 << 20
_MAX_DEPTH = 5
_MAX_LINES = 10_000
_MAX_FILES = 100
_MAX_CHARACTERS = 2_000
"""Of one requirement, its hashes aside: patterns take time that grows faster than a line."""

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\s*(?:\[[A-Za-z0-9._,\s-]*\])?"
_BY_VERSION = re.compile(rf"{_NAME}\s*\(?\s*(?:(?:[<>=!~]=?=?)[^;@/]*)?\)?\s*(?:;.*)?")
_BY_WHEEL = re.compile(rf"(?:{_NAME}\s*@\s*)?https://[^\s?#]+\.whl(?:#\S*)?\s*(?:;.*)?")
_BY_ARCHIVE = re.compile(
    rf"(?:{_NAME}\s*@\s*)?https://[^\s?#]+\.(?:whl|zip|tar\.gz|tgz)(?:#\S*)?\s*(?:;.*)?"
)
_PACKAGE = re.compile(
    r"[a-z0-9][a-z0-9+.-]{0,98}[a-z0-9+.](?::[a-z0-9-]{0,20}[a-z0-9])?(?:=[A-Za-z0-9.+~:-]{0,99}[A-Za-z0-9+~])?"
)
"""A Debian package, with an architecture or a version; one with "-" behind it apt would remove."""
_INDEX_OPTIONS = {"-i", "--index-url", "--extra-index-url", "-f", "--find-links"}
_PLAIN_OPTIONS = {"--pre", "--no-index", "--prefer-binary", "--require-hashes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What a code folder asks for.

    `lines` are pip's, `packages` apt's, `image` is that of a `#nsml:` line, `notes` say what was
    found and is not honoured, each a sentence for the session's log.
    """

    lines: Sequence[str] = ()
    packages: Sequence[str] = ()
    image: str | None = None
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def has_own_sources(self) -> bool:
        """Whether packages come from where its writer says, by a URL, not the machine's configuration alone."""
        return any("://" in line for line in self.lines)


def read_requirements(
    code: Path, *, may_build: bool = False, read_setup: ReadSetup = install_requires
) -> Requirements:
    """Read the files of a code folder. Raises EnvironmentFailed.

    `may_build`: packages may be built from source where they are installed. `read_setup` reads what a
    `setup.py` lists: where the caller has more rights than who wrote it, in a sandbox (`setups.py`).
    """
    setup, listed = _text(code, "setup.py"), _text(code, "requirements.txt")
    lines: list[str] = []
    notes: list[str] = []
    if setup is not None:
        found, said = read_setup(setup)
        notes += said
        lines += [_checked(line, "setup.py", may_build=may_build) for line in found]
    if listed is not None:
        lines += _Listed(code, may_build=may_build).lines("requirements.txt", _MAX_DEPTH)
    if len(lines) > _MAX_LINES:
        raise EnvironmentFailed(f"over {_MAX_LINES:,} requirements are not installed")
    return Requirements(
        lines=tuple(dict.fromkeys(lines)),
        packages=_packages(_text(code, "nsml_package.txt") or ""),
        image=_image({"setup.py": setup, "requirements.txt": listed}),
        notes=tuple(notes),
    )


def _image(texts: dict[str, str | None]) -> str | None:
    try:
        return asked_image(
            (name, text) for name in IMAGE_FILES if (text := texts[name]) is not None
        )
    except NamesNoImage as error:
        raise EnvironmentFailed(f"{error}: {RULE}") from None


def _packages(listed: str) -> tuple[str, ...]:
    packages = []
    for raw in listed.splitlines():
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        if line and not _PACKAGE.fullmatch(line):
            raise EnvironmentFailed(
                f"nsml_package.txt: {line[:80]!r} is not the name of a Debian package:"
                " one a line, such as libgl1"
            )
        if line:
            packages.append(line)
    return tuple(dict.fromkeys(packages))


def _text(code: Path, name: str) -> str | None:
    """The text of a file of the code folder; None when there is none.

    A program of an earlier try may have put something in its place: no link leads elsewhere, a hard
    link neither, since the file must be whose folder it lies in.
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
            raise EnvironmentFailed(f"{name} cannot be read: it belongs to somebody else")
        content = file.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise EnvironmentFailed(f"{name} is over {_MAX_FILE_BYTES} bytes")
    return content.decode("utf-8", errors="replace")


class _Listed:
    """Reads requirements files of a code folder: a bounded number, however they include one another."""

    def __init__(self, code: Path, *, may_build: bool) -> None:
        self._code = code
        self._may_build = may_build
        self._files = 0

    def lines(self, name: str, depth: int) -> list[str]:
        """The lines of one file, those of files that it includes in their place."""
        self._files += 1
        if depth == 0 or self._files > _MAX_FILES:
            raise EnvironmentFailed(f"{name}: files include one another too deeply")
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise EnvironmentFailed(
                f"-r {name}: leads out of the folder of the code, and nothing else is sent: copy it"
                " there"
            )
        text = _text(self._code, name)
        if text is None:
            raise EnvironmentFailed(f"{name}: there is no such file")
        lines: list[str] = []
        for raw in re.sub(r"\\\r?\n", " ", text).splitlines():
            line = re.sub(r"(^|\s)#.*", "", raw).strip()
            included = re.fullmatch(r"(?:-r|--requirement)[\s=]\s*(\S+)", line)
            if included:
                lines += self.lines(included[1], depth - 1)
            elif line:
                lines.append(_checked(line, name, may_build=self._may_build))
            if len(lines) > _MAX_LINES:
                raise EnvironmentFailed(f"{name}: over {_MAX_LINES:,} lines are not installed")
        return lines


def _checked(line: str, file: str, *, may_build: bool) -> str:
    """`line`, when it asks for packages from an index; else raises EnvironmentFailed."""
    line = line.strip()
    if len(line.splitlines()) > 1 or "${" in line:
        # pip would read the second line as an option, and send variables of the agent to an index
        raise EnvironmentFailed(f"{file}: {line[:200]!r} has a line break or names a variable")
    # in single spaces, which patterns can divide in one way only
    requirement = " ".join(re.sub(r"\s--hash[= ]\S+", "", line).split())
    if len(requirement) > _MAX_CHARACTERS:
        raise EnvironmentFailed(
            f"{file}: {requirement[:80]!r}... is not installed: it has over {_MAX_CHARACTERS:,} characters"
        )
    # pip reads what begins with - behind a package as options, of the whole file
    has_options = re.search(r"\s-", requirement) is not None
    by_url = _BY_ARCHIVE if may_build else _BY_WHEEL
    is_package = _BY_VERSION.fullmatch(requirement) or by_url.fullmatch(requirement)
    if is_package and not has_options:
        return line
    try:
        option, *values = shlex.split(
            requirement.replace("=", " ", 1) if requirement.startswith("--") else requirement
        )
    except ValueError:
        option, values = "", []
    if option in _PLAIN_OPTIONS and not values:
        return line
    if option in _INDEX_OPTIONS and len(values) == 1 and values[0].startswith(("https:", "http:")):
        return line
    raise EnvironmentFailed(
        f"{file}: {line[:200]!r} is not installed: only packages, by name and version or by https URL,"
        " and options that name an index"
        if may_build
        else f"{file}: {line[:200]!r} is not installed here: only wheels, by name and version or by https"
        " URL, because a node without containers does not run code of packages to install them"
    )
