"""Files that name packages and are not read: what they name, so that somebody can say so."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nsml.packages.requirements import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsml.packages.requirements import ReadText

_SCRIPT: Final = re.compile(
    r"^# /// script[ \t]*\n(?P<content>(?:^#(?:| .*)\n)+?)^# ///[ \t]*$", re.MULTILINE
)
_LOCKS: Final = ("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock")
_NOT_PACKAGES: Final = {"python", "pip"}
_OF_CONDA: Final = {"pytorch": "torch", "pytorch-cuda": "", "cudatoolkit": "", "nodefaults": ""}
"""Names that are others on PyPI, or belong to no package there."""


class Unread(NamedTuple):
    """A file that is not read, and the requirements that it lists."""

    file: str
    lines: Sequence[str]


def unread_files(text: ReadText, entries: Sequence[str]) -> list[Unread]:
    """The files of a code folder that list packages and are not read; a locked one as what it locks.

    Args:
        text: reads a file of the folder.
        entries: the programs, which may list packages in a block of their own.
    """
    found = [
        Unread(file, lines)
        for file, listed in _READERS.items()
        if (content := text(file)) is not None and (lines := _tried(listed, content))
    ]
    blocks = ((entry, _tried(_script, text(entry) or "")) for entry in entries)
    return [
        *found,
        *(Unread(f"the script block of {entry}", lines) for entry, lines in blocks if lines),
    ]


def lock_of(text: ReadText) -> str:
    """The name of the file that locks versions; "" where there is none."""
    return next((name for name in _LOCKS if text(name) is not None), "")


def _tried(listed: Callable[[str], Sequence[str]], content: str) -> Sequence[str]:
    try:
        return [line for line in listed(content) if name_of(line) not in {"", *_NOT_PACKAGES}]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ()  # whoever reads such files says what is wrong with it


def _pyproject(content: str) -> list[str]:
    tree = tomllib.loads(content)
    lines = _texts(tree.get("project", {}).get("dependencies", []))
    poetry = tree.get("tool", {}).get("poetry", {}).get("dependencies", {})
    return [*lines, *poetry]


def _pipfile(content: str) -> list[str]:
    return [*tomllib.loads(content).get("packages", {})]


def _script(content: str) -> list[str]:
    found = _SCRIPT.search(content.replace("\r\n", "\n"))
    if found is None:
        return []
    lines = [line[2:] for line in found["content"].splitlines()]
    return _texts(tomllib.loads("\n".join(lines)).get("dependencies", []))


def _setup_cfg(content: str) -> list[str]:
    found = re.search(r"^install_requires[ \t]*=(.*(?:\n(?:[ \t].*)?)*)", content, re.MULTILINE)
    return [line.strip() for line in found[1].splitlines()] if found else []


def _environment(content: str) -> list[str]:
    """Of YAML only what such files are written in: a list of `- NAME=VERSION`, with one of pip's in it."""
    lines, is_listed = [], False
    for raw in content.splitlines():
        line = re.sub(r"(^|\s)#.*", "", raw).rstrip()
        if re.match(r"\S", line) and not line.startswith("-"):
            is_listed = line == "dependencies:"
        elif is_listed and (found := re.fullmatch(r"\s*-\s+[\"']?([^\"']*[^\"':])[\"']?", line)):
            line = re.sub(r"(?<![=<>!~])=(?!=).*", "", found[1].rpartition("::")[2]).strip()
            lines.append(_OF_CONDA.get(line, line))
    return lines


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)]


_READERS: Final[dict[str, Callable[[str], Sequence[str]]]] = {
    "pyproject.toml": _pyproject,
    "Pipfile": _pipfile,
    "setup.cfg": _setup_cfg,
    "environment.yml": _environment,
    "environment.yaml": _environment,
}
