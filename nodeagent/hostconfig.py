"""What this machine's pip and apt are told: clusters have mirrors, proxies and authorities.

Read by the rules of pip and apt, without running either. Values may hold credentials: they go to
the builds that need them and never into keys, logs or images.
"""

from __future__ import annotations

import configparser
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPTIONS = frozenset(
    {
        *("index-url", "extra-index-url", "find-links", "no-index", "trusted-host"),
        *("cert", "client-cert", "proxy", "timeout", "retries", "prefer-binary", "pre"),
        *("only-binary", "no-binary", "keyring-provider"),
    }
)
"""What says where packages come from; not where pip puts them, which is the platform's business."""
_OTHER_NAMES = {"default-timeout": "timeout", "pypi-url": "index-url"}
_SECTIONS = ("global", "install")


def pip_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Pip's options by long name, as its files and its variables in `environ` give them.

    Later ones stand: the machine's files, the user's, the environment's own, `PIP_CONFIG_FILE`,
    `PIP_*` variables. A file that cannot be read is passed by, as pip does.
    """
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for path in _pip_files(environ):
        read = configparser.RawConfigParser()
        try:
            read.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue
        for section in _SECTIONS:
            if read.has_section(section):
                found[section].update({_named(k): v for k, v in read.items(section)})
    options = {**found["global"], **found["install"]}
    for name, value in environ.items():
        if name.startswith("PIP_") and value:
            options[_named(name.removeprefix("PIP_").lower())] = value
    return {name: options[name].strip() for name in sorted(options) if name in _OPTIONS}


def local_sources(options: Mapping[str, str]) -> list[Path]:
    """Folders and files of this machine that pip's options name as places of packages."""
    places = []
    for name in ("index-url", "extra-index-url", "find-links"):
        for word in options.get(name, "").split():
            if word.startswith("file:"):
                places.append(Path(urlsplit(word).path))
            elif name == "find-links" and word.startswith("/"):
                places.append(Path(word))
    return [place for place in dict.fromkeys(places) if place.exists()]


def without_secrets(options: Mapping[str, str]) -> dict[str, str]:
    """`options` without user names and passwords in URLs: for keys and for people."""
    return {name: " ".join(map(_bare, value.split())) for name, value in options.items()}


def _bare(word: str) -> str:
    if "://" not in word:
        return word
    parts = urlsplit(word)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _named(name: str) -> str:
    name = name.replace("_", "-").removeprefix("--")
    return _OTHER_NAMES.get(name, name)


def _pip_files(environ: Mapping[str, str]) -> list[Path]:
    """Pip's files on this machine, those that stand last."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return []
    home = Path(environ.get("HOME") or "/")
    shared = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    own = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return [
        *(Path(folder, "pip", "pip.conf") for folder in reversed(shared)),
        Path("/etc/pip.conf"),
        home / ".pip" / "pip.conf",
        own / "pip" / "pip.conf",
        Path(sys.prefix, "pip.conf"),
        *([Path(named)] if named else []),
    ]
