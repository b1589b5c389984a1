"""Files that name packages and are not read: what they name, so that somebody can say so."""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nsml.packages.project_reader import SCRIPT
from nsml.packages.requirements import OF_CONDA, RequirementsRefused, is_other_list, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nsml.packages.requirements import ReadText

_CONDA: Final = re.compile(r"(?:environments?/[^/]+|(?:conda|env|environment)[^/]*)\.ya?ml")
_NOT_PACKAGES: Final = {"python", "pip"}


class Unread(NamedTuple):
    """A file that is not read, the requirements that it lists, and what takes these into requirements.txt, if not they."""

    file: str
    lines: Sequence[str]
    advice: str = ""


def unread_files(
    text: ReadText, entries: Sequence[str], files: Iterable[str] = (), source: str = ""
) -> list[Unread]:
    """The files of a code folder that list packages and are not read.

    Locks list what everything needs in turn: they count only where nothing else lists any package.

    Args:
        text: reads a file of the folder.
        entries: the programs, which may list packages in a block of their own.
        files: the paths of all files of the folder.
        source: what is read (`Requirements.source`).
    """
    is_project = source in {"uv.lock", "pyproject.toml"}
    readers = dict(_READERS)
    readers |= {file: _environment for file in sorted(files) if _CONDA.fullmatch(file)}
    found = [
        Unread(file, lines)
        for file, listed in readers.items()
        if file != source
        and not (is_project and file == "pyproject.toml")
        and (content := _content(text, file)) is not None
        and (lines := _tried(listed, content))
    ]
    if source.startswith("the script block"):
        return []  # it says all that this program needs
    blocks = ((entry, _tried(_script, _content(text, entry) or "")) for entry in entries)
    found += [Unread(f"the script block of {entry}", lines) for entry, lines in blocks if lines]
    own = ("requirements.txt", "setup.py")
    has_own = bool(source) or any(_content(text, file) is not None for file in own)
    if not has_own:
        found += _lists(text, files)
    return found or ([] if has_own else _locks(text))


def _lists(text: ReadText, files: Iterable[str]) -> list[Unread]:
    """Files like requirements.txt under other names."""
    return [
        Unread(file, lines, f"printf '%s\\n' '-r {file}' >> requirements.txt")
        for file in sorted(files)
        if is_other_list(file) and (lines := _tried(str.splitlines, _content(text, file) or ""))
    ]


def _locks(text: ReadText) -> list[Unread]:
    return [
        Unread(file, _tried(listed, content), advice)
        for file, (listed, advice) in _LOCKS.items()
        if (content := _content(text, file)) is not None
    ][:1]


def lock_of(text: ReadText) -> str:
    """The name of the file that locks versions; "" where there is none."""
    return next((name for name in _LOCKS if _content(text, name) is not None), "")


def _content(text: ReadText, file: str) -> str | None:
    """The text of a file; "" of one that is too long to be read here, as locks may be."""
    try:
        return text(file)
    except RequirementsRefused:
        return ""


def _tried(listed: Callable[[str], Sequence[str]], content: str) -> Sequence[str]:
    try:
        return [line for line in listed(content) if name_of(line) not in {"", *_NOT_PACKAGES}]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ()  # whoever reads such files says what is wrong with it


def _pyproject(content: str) -> list[str]:
    tree = tomllib.loads(content)
    lines = _texts(tree.get("project", {}).get("dependencies", []))
    tools = tree.get("tool", {})
    poetry = tools.get("poetry", {}).get("dependencies", {})
    return [*lines, *poetry, *_of_pixi(tools.get("pixi", {}))]


def _pixi(content: str) -> list[str]:
    return _of_pixi(tomllib.loads(content))


def _of_pixi(tree: dict[str, Any]) -> list[str]:
    names = [*tree.get("dependencies", {}), *tree.get("pypi-dependencies", {})]
    return [OF_CONDA.get(name, name) for name in names]


def _locked(content: str) -> list[str]:
    """Of uv, Poetry, PDM and PEP 751; without the folders that are the project itself."""
    tree = tomllib.loads(content)
    packages = [*tree.get("package", []), *tree.get("packages", [])]
    return [
        one["name"]
        for one in packages
        if not {"editable", "virtual", "directory"} & {*one.get("source", {}), *one}
    ]


def _pipfile_lock(content: str) -> list[str]:
    return [*json.loads(content).get("default", {})]


def _unknown(_content: str) -> list[str]:
    return []


def _pipfile(content: str) -> list[str]:
    return [*tomllib.loads(content).get("packages", {})]


def _script(content: str) -> list[str]:
    found = SCRIPT.search(content.replace("\r\n", "\n"))
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
            if flow := re.fullmatch(r"dependencies:\s*\[(.*)\]", line):
                return _environment("\n- ".join(["dependencies:", *flow[1].split(",")]))
        elif is_listed and (found := re.fullmatch(r"\s*-\s+[\"']?([^\"']*[^\"':])[\"']?", line)):
            line = re.sub(r"(?<![=<>!~])=(?!=).*", "", found[1].rpartition("::")[2]).strip()
            lines.append(OF_CONDA.get(line, line))
    return lines


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)]


_READERS: Final[dict[str, Callable[[str], Sequence[str]]]] = {
    "pyproject.toml": _pyproject,
    "Pipfile": _pipfile,
    "setup.cfg": _setup_cfg,
    "pixi.toml": _pixi,
}
_LOCKS: Final[dict[str, tuple[Callable[[str], Sequence[str]], str]]] = {
    "uv.lock": (_locked, "uv export --no-emit-project -o requirements.txt"),
    "poetry.lock": (_locked, "poetry export -o requirements.txt"),
    "pdm.lock": (_locked, "pdm export -o requirements.txt"),
    "pylock.toml": (_locked, ""),
    "Pipfile.lock": (_pipfile_lock, "pipenv requirements > requirements.txt"),
    "requirements.lock": (str.splitlines, "cp requirements.lock requirements.txt"),
    "pixi.lock": (_unknown, ""),
    "conda-lock.yml": (_unknown, ""),
}
"""Who reads them, and the command that writes requirements.txt from them."""
