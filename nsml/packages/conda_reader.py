"""Reads which packages a conda environment file (`environment.yml`) lists. Standard library only.

Of YAML it reads the part that such files are written in, and refuses the rest with the number of the line: no anchors, tags,
mappings in lists, or texts of several lines. As a program, with a file as its argument, it says what is listed as JSON
(`CondaFile`): the agent runs it in a sandbox, as `project_reader.py`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Final, NamedTuple

ALIAS: Final = "https://conda.anaconda.org/"
"""Where conda looks for a channel that is named without a URL."""
DEFAULT_CHANNEL: Final = "conda-forge"
CHANNEL: Final = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}(?:/[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}){0,3}"
)
"""The name of a channel, such as `conda-forge` or `conda-forge/label/main`."""
_OF_ANACONDA: Final = re.compile(
    r"defaults|anaconda|main|r|(?:https://repo\.(?:anaconda\.com|continuum\.io)/)?pkgs/(?:main|r|free|msys2|pro)"
)
"""The channels of Anaconda's distribution; conda-forge has the same packages."""
_CHANNEL_URL: Final = re.compile(
    r"https://[A-Za-z0-9][A-Za-z0-9.-]{0,252}(?::[0-9]{1,5})?(?:/[A-Za-z0-9_][A-Za-z0-9_.~-]{0,127}){1,8}"
)
_SPEC: Final = re.compile(
    r"(?:(?P<channel>[^\s:]{1,400}(?::[^\s:]{1,400}){0,2})::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})"
    r"(?P<version>(?:[ =<>!~][A-Za-z0-9_.*+!<>=~,| -]{0,400})?)"
)
_LONGEST_LINE: Final = 2_000
_KEY: Final = re.compile(r"(?P<key>[A-Za-z_][A-Za-z0-9_-]{0,63}):(?:\s+(?P<value>.*))?")
_NOT_PLAIN: Final = "&*!|>{}[]%@`,?:'\""
_SILENT: Final = {"name", "prefix"}
"""Keys that say what the environment is called, and where it lies, on somebody's machine."""


class CondaFile(NamedTuple):
    """What a file lists: channels, packages of conda, lines of requirements.txt, and sentences about what was left out.

    `refused`: why it cannot be used, for its writer.
    """

    channels: tuple[str, ...] = ()
    specs: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refused: str = ""


class _Refused(Exception):
    pass


def read(text: str) -> CondaFile:
    """What the text of an environment file lists."""
    found, number = _Lists(), 0
    try:
        for line in text.splitlines():
            number += 1
            found.take(line)
        number = 0
        channels = [_channel(one) for one in found.lists["channels"] if one != "nodefaults"]
        specs = [_spec(one) for one in found.lists["dependencies"]]
    except _Refused as refused:
        return CondaFile(refused=f"line {number}: {refused}" if number else str(refused))
    pip = found.lists["pip"]
    if specs and not channels:
        channels = [DEFAULT_CHANNEL]
    channels, specs = [*dict.fromkeys(channels)], [*dict.fromkeys(specs)]
    named = [*channels, *map(channel_of, specs)]
    notes = found.notes + [
        _note_replaced(one) for one in dict.fromkeys(named) if is_of_anaconda(one)
    ]
    return CondaFile(tuple(channels), tuple(specs), tuple(pip), tuple(notes))


class _Lists:
    """The lists of a file, taken line by line."""

    def __init__(self) -> None:
        self.lists: dict[str, list[str]] = {"channels": [], "dependencies": [], "pip": []}
        self.notes: list[str] = []
        self._seen: set[str] = set()
        self._key = ""
        self._indents: list[int] = []
        """Of the items of the list that is being read, and of the list of pip in it."""
        self._has_pip = False

    def take(self, raw: str) -> None:
        """Take the next line. Raises _Refused."""
        if len(raw) > _LONGEST_LINE:
            raise _Refused(f"it has over {_LONGEST_LINE:,} characters")
        line = re.sub(r"(^|\s)#.*", "", raw).rstrip()
        if not line or (line == "---" and not self._seen):
            return
        if not line.isprintable():
            raise _Refused("it has a tab or another character that cannot be printed")
        body = line.lstrip(" ")
        indent = len(line) - len(body)
        if not indent and not body.startswith("-"):
            self._begin(body)
        elif self._key in self.lists:
            self._item(body, indent)
        elif not self._key:
            raise _Refused(f"{body[:80]!r} belongs to nothing")

    def _begin(self, body: str) -> None:
        found = _KEY.fullmatch(body)
        if found is None:
            raise _Refused(f"{body[:80]!r} is no NAME: VALUE")
        key, value = found["key"], (found["value"] or "").strip()
        if key in self._seen:
            raise _Refused(f"{key} is there twice")
        self._seen.add(key)
        # "pip" is a list inside of another one
        self._key, self._indents, self._has_pip = key if key != "pip" else "pip:", [], False
        if self._key in self.lists:
            if value:
                flow = re.fullmatch(r"\[(.*)\]", value)
                if flow is None:
                    raise _Refused(f"{key} is a list: a line `- NAME` for each")
                words = [one.strip() for one in flow[1].split(",")]
                self.lists[key] += [_scalar(one) for one in words if one]
                self._key = f"{key}:"  # it is complete
        elif key == "variables":
            self.notes.append(
                "the variables of the environment file are not set: nsml run --env NAME=VALUE sets them"
            )
        elif key not in _SILENT:
            self.notes.append(f"{key} of the environment file is not used")

    def _item(self, body: str, indent: int) -> None:
        if not body.startswith("- "):
            raise _Refused(f"{body[:80]!r} is no item of a list: `- NAME`")
        value = body[2:].strip()
        if not self._indents:
            self._indents = [indent]
        elif self._has_pip and len(self._indents) == 1 and indent > self._indents[0]:
            self._indents.append(indent)
        while len(self._indents) > 1 and indent == self._indents[0]:
            self._indents.pop()
            self._has_pip = False
        if indent != self._indents[-1]:
            raise _Refused("it is indented otherwise than the item before it")
        if len(self._indents) > 1:
            self.lists["pip"].append(_scalar(value))
        elif self._key == "dependencies" and value == "pip:":
            self._has_pip = True
        else:
            self._has_pip = False
            self.lists[self._key].append(_scalar(value))


def _scalar(text: str) -> str:
    """The text of a value on one line."""
    quoted = re.fullmatch(r"'([^']*)'|\"([^\"\\]*)\"", text)
    if quoted:
        text = (quoted[1] or quoted[2] or "").strip()
        if text:
            return text
    if not text or text[0] in _NOT_PLAIN or re.search(r":(?:\s|$)", text):
        raise _Refused(
            f"{text[:80]!r} is not read: what is listed is a text on one line, or `pip:` with a list below"
        )
    return text


def _channel(text: str) -> str:
    """The name of a channel, or its URL where conda has no name for it."""
    name = text.rstrip("/").removeprefix(ALIAS)
    if ".." not in name and (CHANNEL.fullmatch(name) or _CHANNEL_URL.fullmatch(name)):
        return name
    raise _Refused(
        f"channel {text[:80]!r} is neither a name, such as conda-forge, nor an https URL"
    )


def _spec(text: str) -> str:
    found = _SPEC.fullmatch(" ".join(text.split()))
    if found is None or re.search(r"\s-", text):
        raise _Refused(
            f"{text[:80]!r} is not installed: packages are given by name and version, such as numpy=1.26, not by"
            " a URL, a file or options"
        )
    channel = f"{_channel(found['channel'])}::" if found["channel"] else ""
    return f"{channel}{found['name']}{found['version']}"


def channel_of(spec: str) -> str:
    """The channel in one of `CondaFile.specs`; "" where it names none."""
    return spec.rpartition("::")[0]


def is_of_anaconda(channel: str) -> bool:
    """Whether a channel is one of Anaconda's, such as `defaults`, which nodes take from conda-forge."""
    return _OF_ANACONDA.fullmatch(channel) is not None


def _note_replaced(channel: str) -> str:
    return f"packages of channel {channel} are taken from {DEFAULT_CHANNEL}, unless the node has that channel"


def name_of_spec(spec: str) -> str:
    """The name of the package of one of `CondaFile.specs`."""
    found = _SPEC.fullmatch(spec)
    return found["name"].lower() if found else ""


if __name__ == "__main__":
    print(json.dumps(read(Path(sys.argv[1]).read_text(encoding="utf-8"))))  # noqa: T201
