"""Reads which packages `pyproject.toml`, `uv.lock` and the block of a script (PEP 723) list. Standard library only.

As a program, with a kind and files as its arguments, it says so as JSON (`Listed`). Parsers take much memory and time for
little text: the agent runs it in a sandbox, as `setup_reader.py`.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

PYPI: Final = "https://pypi.org/simple"
SCRIPT: Final = re.compile(
    r"^# /// script[ \t]*\n(?P<content>(?:^#(?:| .*)\n)+?)^# ///[ \t]*$", re.MULTILINE
)
"""The block of a script."""
_LOCK_VERSION: Final = 1
_MOST_CONDITIONS: Final = 8
"""Ways to a package that its marker names: what is reached by more is installed everywhere."""
_LONGEST_MARKER: Final = 1_500

Way = frozenset[str]
"""Markers that all hold."""


class Listed(NamedTuple):
    """What a file lists: lines of requirements.txt, sentences about what was left out, and which Python it requires.

    `refused`: why it cannot be used, for its writer.
    """

    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    python: str = ""
    refused: str = ""


def read(kind: str, *texts: str) -> Listed:
    """What files list; `kind` is project (`pyproject.toml`), lock (`uv.lock`, `pyproject.toml`) or script (an entry)."""
    try:
        return _READERS[kind](*texts)
    except tomllib.TOMLDecodeError as error:
        return Listed(refused=f"{_NAMES[kind]} is no TOML: {error}")
    except RecursionError:
        return Listed(refused=f"{_NAMES[kind]} is nested too deeply")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return Listed(refused=f"{_NAMES[kind]} is malformed: {error}"[:300])


def _project(text: str) -> Listed:
    tree = tomllib.loads(text)
    project = _table(tree, "project")
    lines = _texts(project, "dependencies")
    notes = []
    if "dependencies" in project.get("dynamic", []):
        notes.append("pyproject.toml computes its dependencies (dynamic): they are left out")
    tool = _table(_table(tree, "tool"), "uv")
    return Listed(
        lines=(*_with_sources(lines, tool), *_indexes(tool)) if lines else (),
        notes=tuple(notes),
        python=_text(project, "requires-python"),
    )


def _script(text: str) -> Listed:
    found = [*SCRIPT.finditer(text.replace("\r\n", "\n"))]
    if not found:
        return Listed()
    if len(found) > 1:
        return Listed(refused="the script has two blocks with packages (# /// script)")
    block = "\n".join(line[2:] for line in found[0]["content"].splitlines())
    tree = tomllib.loads(block)
    lines = _texts(tree, "dependencies")
    tool = _table(_table(tree, "tool"), "uv")
    return Listed(
        lines=(*_with_sources(lines, tool), *_indexes(tool)) if lines else (),
        python=_text(tree, "requires-python"),
    )


def _with_sources(lines: list[str], tool: dict[str, Any]) -> list[str]:
    """The lines with what `tool.uv.sources` says in place of an index."""
    sources = {_canonical(name): one for name, one in _table(tool, "sources").items()}
    return [_sourced(line, sources) for line in lines]


def _sourced(line: str, sources: dict[str, Any]) -> str:
    found = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", line)
    source = sources.get(_canonical(found[1])) if found else None
    if found is None or not isinstance(source, dict):
        return line
    marker = "".join(line.partition(";")[1:])
    for kind, form in (("git", "git+{}"), ("url", "{}"), ("path", "file:{}")):
        if isinstance(value := source.get(kind), str):
            return f"{found[1]} @ {form.format(value)} {marker}".strip()
    return f"{found[1]} @ file:." if source.get("workspace") else line


def _indexes(tool: dict[str, Any]) -> list[str]:
    listed = tool.get("index", [])
    urls = [one["url"] for one in listed if isinstance(one, dict) and "url" in one]
    return [f"--extra-index-url {url}" for url in dict.fromkeys(urls) if url.rstrip("/") != PYPI]


def _lock(text: str, pyproject: str) -> Listed:
    """What the project itself needs of a lock, groups of dependencies aside, as `uv sync --frozen` installs it."""
    tree = tomllib.loads(text)
    if tree.get("version") != _LOCK_VERSION:
        return Listed(
            refused=f"uv.lock has format version {tree.get('version')!r}, and nsml reads {_LOCK_VERSION}:"
            " uv export --no-emit-project -o requirements.txt"
        )
    packages: dict[str, list[dict[str, Any]]] = {}
    for one in tree.get("package", []):
        packages.setdefault(one["name"], []).append(one)
    every = [one for some in packages.values() for one in some]
    roots = [one for one in every if "." in {_place(one, "virtual"), _place(one, "editable")}]
    if len(roots) != 1:
        return Listed(notes=("uv.lock has no package that is the project itself: it is left out",))
    found = _reached(roots[0], packages)
    found.pop(id(roots[0]), None)
    lines, notes = [], []
    for package, ways in sorted(found.values(), key=lambda one: str(one[0]["name"])):
        if folder := next(filter(None, (_place(package, kind) for kind in _FOLDERS)), ""):
            notes.append(
                f"{package['name']} is the folder {folder}, whose modules are not installed:"
                f" --env PYTHONPATH=/app/{folder} has programs find them"
            )
        else:
            lines.append((_what(package), _marker(ways), _hashes(package)))
    if not all(hashes for *_, hashes in lines):
        lines = [(what, marker, "") for what, marker, _ in lines]  # all have hashes, or none
    if _differs(roots[0], pyproject):
        notes.append("uv.lock is older than the dependencies in pyproject.toml: uv lock renews it")
    registries = dict.fromkeys(_place(package, "registry") for package, _ in found.values())
    options = [
        f"--extra-index-url {url}"
        for url in registries
        if url.startswith("https://") and url.rstrip("/") != PYPI
    ]
    return Listed(
        lines=(*options, *("".join(parts) for parts in lines)),
        notes=tuple(notes),
        python=_text(tree, "requires-python"),
    )


def _reached(
    root: dict[str, Any], packages: dict[str, list[dict[str, Any]]]
) -> dict[int, tuple[dict[str, Any], set[Way]]]:
    """The packages that `root` leads to, by their `id`, and under which markers: any of the ways, all of one way."""
    ways: dict[tuple[int, str], set[Way]] = {(id(root), ""): {frozenset()}}
    by_id = {id(root): root}
    pending = [(root, "")]
    while pending:
        package, extra = pending.pop()
        here = ways[id(package), extra]
        listed = _table(package, "optional-dependencies").get(extra, []) if extra else None
        for one in package.get("dependencies", []) if listed is None else listed:
            marker = one.get("marker", "")
            lead = {way | {marker} if marker else way for way in here}
            for target in _targets(one, packages):
                by_id[id(target)] = target
                for wanted in ("", *one.get("extra", [])):
                    known = ways.setdefault((id(target), wanted), set())
                    if _widen(known, lead):
                        pending.append((target, wanted))
    found: dict[int, tuple[dict[str, Any], set[Way]]] = {}
    for (key, _), some in ways.items():
        _widen(found.setdefault(key, (by_id[key], set()))[1], some)
    return found


def _widen(known: set[Way], more: set[Way]) -> bool:
    """Add ways to those that are known, unless these hold in more cases; whether there are other ones then."""
    before = set(known)
    known |= more
    for way in sorted(known, key=len):
        known -= {other for other in known if way < other}
    if len(known) > _MOST_CONDITIONS:
        known.clear()
        known.add(frozenset())
    return known != before


def _targets(
    dependency: dict[str, Any], packages: dict[str, list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """The package of a dependency: where there are several of its name, that of its version and source."""
    some = packages[dependency["name"]]
    for key in ("version", "source"):
        if key in dependency:
            some = [one for one in some if one.get(key) == dependency[key]] or some
    return some


def _marker(ways: set[Way]) -> str:
    if frozenset() in ways:
        return ""
    text = " or ".join(
        " and ".join(f"({marker})" for marker in sorted(way)) for way in sorted(ways, key=sorted)
    )
    return f" ; {text}" if len(text) <= _LONGEST_MARKER else ""


def _what(package: dict[str, Any]) -> str:
    name, source = package["name"], _table(package, "source")
    for kind, form in (("git", "git+{}"), ("url", "{}"), ("path", "file:{}")):
        if isinstance(value := source.get(kind), str):
            return f"{name} @ {form.format(value)}"
    return f"{name}=={package['version']}"


def _hashes(package: dict[str, Any]) -> str:
    files = [*package.get("wheels", []), *filter(None, [package.get("sdist")])]
    hashes = [one.get("hash", "") for one in files]
    return "".join(f" --hash={one}" for one in hashes if one) if all(hashes) else ""


def _differs(root: dict[str, Any], pyproject: str) -> bool:
    """Whether a project asks for other packages than it did when it was locked."""
    project = _table(tomllib.loads(pyproject), "project") if pyproject else {}
    if "dependencies" not in project:
        return False
    locked = {_canonical(one["name"]) for one in root.get("dependencies", [])}
    asked = {
        _canonical(found[1])
        for line in _texts(project, "dependencies")
        if (found := re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", line))
    }
    return locked != asked


def _place(package: dict[str, Any], kind: str) -> str:
    return str(_table(package, "source").get(kind, ""))


def _table(tree: dict[str, Any], name: str) -> dict[str, Any]:
    found = tree.get(name, {})
    if not isinstance(found, dict):
        raise TypeError(f"{name} is no table")
    return found


def _texts(tree: dict[str, Any], name: str) -> list[str]:
    found = tree.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise TypeError(f"{name} is no list of texts")
    return [one for one in found if one.strip()]


def _text(tree: dict[str, Any], name: str) -> str:
    found = tree.get(name, "")
    if not isinstance(found, str):
        raise TypeError(f"{name} is no text")
    return found[:200]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


_FOLDERS: Final = ("editable", "virtual", "directory")
_READERS: Final[dict[str, Callable[..., Listed]]] = {
    "project": _project,
    "lock": _lock,
    "script": _script,
}
_NAMES: Final = {
    "project": "pyproject.toml",
    "lock": "uv.lock or pyproject.toml",
    "script": "the block of the script (# /// script)",
}


if __name__ == "__main__":
    kind_, *paths_ = sys.argv[1:]
    print(json.dumps(read(kind_, *(Path(one).read_text(encoding="utf-8") for one in paths_))))  # noqa: T201
