"""This machine's configuration of pip and apt: clusters have mirrors, proxies and CAs.

Read by the rules of pip and apt, without running either. Values may have credentials: they go to
the builds that need them and never into keys, logs or images.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from uv import find_uv_bin

from nodeagent.environments.credentials import NO_PROXY
from nodeagent.environments.credentials import PROXIES as PROXIES_WITH_URLS
from nodeagent.environments.errors import EnvironmentFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_OPTIONS = frozenset(
    {
        *("index-url", "extra-index-url", "find-links", "no-index", "trusted-host"),
        *("cert", "client-cert", "proxy", "timeout", "retries", "prefer-binary", "pre"),
        *("only-binary", "no-binary"),
    }
)
"""Options about the sources of packages; where pip puts them is the platform's decision."""
PROXIES = (*PROXIES_WITH_URLS, NO_PROXY)
"""Variables about proxies, in lower or upper case."""
BUNDLES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
"""Variables that name a CA bundle."""
_OTHER_NAMES = {"default-timeout": "timeout", "pypi-url": "index-url"}
_SECTIONS = ("global", "install")
_OF_UV = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_EXTRA_INDEX_URL", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
"""uv's variables for pip's options, and the separator of their values."""
_NUMBERS_OF_UV = {"timeout": "UV_HTTP_TIMEOUT", "retries": "UV_HTTP_RETRIES"}
_ALWAYS_OF_UV = {
    "UV_NO_CONFIG": "1",
    "UV_NO_PROGRESS": "1",
    "UV_NO_SOURCES": "1",
    "UV_SYSTEM_CERTS": "1",
    "UV_PYTHON_DOWNLOADS": "never",
    "UV_KEYRING_PROVIDER": "disabled",
    "UV_INDEX_STRATEGY": "unsafe-best-match",
    "UV_LINK_MODE": "symlink",
    "UV_CONCURRENT_INSTALLS": "4",
    "NETRC": os.devnull,
    "NO_COLOR": "1",
}
_KEYRING = re.compile(r"/[A-Za-z0-9_./+-]+\.(?:gpg|asc|pgp)")
_FETCH_SETTING = re.compile(
    r"Acquire::(?:https?|ftp)::(?:Proxy|Proxy::[a-z0-9.-]+|Timeout|Pipeline-Depth)"
    r'\s+"[^"]*"\s*;',
    re.IGNORECASE,
)


def pip_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Pip's options by long name, from its files and its variables in `environ`.

    Later ones win: the machine's files, the user's, the environment's own, `PIP_CONFIG_FILE`,
    `PIP_*` variables. A file that cannot be read is skipped, as by pip.
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


def pip_folder() -> Path:
    """The platform's own pip. Raises EnvironmentFailed where it has none."""
    found = find_spec("pip")
    if found is None or found.origin is None:
        raise EnvironmentFailed(
            "the agent's own environment has no pip: `nsml doctor node` on this node says what to do"
        )
    return Path(found.origin).parent


def local_sources(options: Mapping[str, str]) -> list[Path]:
    """Folders and files of this machine that pip's options name as sources of packages."""
    places = []
    for name in ("index-url", "extra-index-url", "find-links"):
        for word in options.get(name, "").split():
            if word.startswith("file:"):
                places.append(Path(urlsplit(word).path))
            elif name == "find-links" and word.startswith("/"):
                places.append(Path(word))
    return [place for place in dict.fromkeys(places) if place.exists()]


def shareable(options: Mapping[str, str], *, hides: Callable[[Path], bool]) -> list[Path]:
    """Folders of this machine that pip searches: a build reads them at the same path.

    An index is a folder `simple` whose pages link to files beside it. `hides`: whether a folder
    cannot be mounted, since it would hide something.
    """
    places: list[Path] = []
    for place in local_sources(options):
        wide = place.parent if place.name == "simple" else place
        places += [one for one in (wide, place) if not hides(one)][:1]
    unique = list(dict.fromkeys(places))
    return [one for one in unique if not any(other in one.parents for other in unique)]


def uv_program() -> Path:
    """The platform's own uv. Raises EnvironmentFailed where it has none."""
    try:
        return Path(find_uv_bin())
    except FileNotFoundError:
        raise EnvironmentFailed(
            "the agent's own environment has no program uv: install the package uv where nsml is installed"
        ) from None


def fetching_variables(
    options: Mapping[str, str], environ: Mapping[str, str], *, folder: str
) -> tuple[dict[str, str], dict[str, bytes]]:
    """Convert pip's `options` here for a uv elsewhere: variables, and files for `folder`.

    Of the machine's configuration it gets the sources of packages and nothing else: no file of
    pip's or uv's is read there, no `.netrc`, no keyring. Like pip, it takes the best version of all indexes.
    Raises EnvironmentFailed for a certificate that cannot be read.
    """
    given, files = dict(options), {}
    for name, variable in (("cert", "SSL_CERT_FILE"), ("client-cert", "SSL_CLIENT_CERT")):
        path = given.pop(name, "")
        if not path and name == "cert":
            path = next(
                (environ[one] for one in BUNDLES if Path(environ.get(one, "/")).is_file()), ""
            )
        if path:
            files[f"{name}.pem"] = _certificate(path)
            given[variable] = f"{folder}/{name}.pem"
    proxies = {
        name: environ[name] for low in PROXIES for name in (low, low.upper()) if environ.get(name)
    }
    if proxy := given.pop("proxy", ""):
        proxies |= dict.fromkeys(
            ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy
        )
    variables = {
        variable: " ".join(given[name].split()).replace(" ", separator)
        for name, (variable, separator) in _OF_UV.items()
        if given.get(name)
    }
    variables |= {
        variable: number[0]
        for name, variable in _NUMBERS_OF_UV.items()
        if (number := re.match(r"[0-9]+", given.get(name, "")))
    }
    variables |= {name: text for name, text in given.items() if name.startswith("SSL_")}
    if is_on(given.get("pre", "")):
        variables["UV_PRERELEASE"] = "allow"
    return {**_ALWAYS_OF_UV, **variables, **proxies}, files


def with_options_of(lines: Sequence[str], options: Mapping[str, str]) -> dict[str, str]:
    """`options` with those among a user's lines, which name an index or say how packages are chosen."""
    merged = dict(options)
    for line in lines:
        option, *values = shlex.split(line.replace("=", " ", 1) if line.startswith("--") else line)
        name = {"-i": "index-url", "-f": "find-links"}.get(option, option.removeprefix("--"))
        match name, values:
            case "index-url", [url]:
                merged[name] = url
            case "extra-index-url" | "find-links", [url]:
                merged[name] = f"{merged.get(name, '')} {url}".strip()
            case _:
                merged[name] = "1"
    return merged


def is_on(text: str) -> bool:
    """Whether a switch of pip's is on."""
    return text.lower() in {"1", "yes", "true", "on", "y", "t"}


def _certificate(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise EnvironmentFailed(
            f"this machine's pip is configured with {path}, which cannot be read: {error.strerror}"
        ) from None


def _named(name: str) -> str:
    name = name.replace("_", "-").removeprefix("--")
    return _OTHER_NAMES.get(name, name)


def _pip_files(environ: Mapping[str, str]) -> list[Path]:
    """Pip's files on this machine, highest priority last."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return []
    home = Path(environ.get("HOME") or "/")
    shared = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    own = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    users = [home / ".pip" / "pip.conf", own / "pip" / "pip.conf"]
    return [
        *(Path(folder, "pip", "pip.conf") for folder in shared),
        Path("/etc/pip.conf"),
        *([] if named and Path(named).exists() else users),
        Path(sys.prefix, "pip.conf"),
        *([Path(named)] if named else []),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AptConfiguration:
    """Apt's configuration: `release` is "ID CODENAME" of this machine's distribution.

    `sources` are (list | sources, text) of the distribution's own mirrors, `keyrings` the files that
    they name, `settings` lines of apt.conf about fetching.
    """

    release: str = ""
    sources: Sequence[tuple[str, str]] = ()
    keyrings: Sequence[str] = ()
    settings: str = ""


def apt_configuration(root: Path = Path("/")) -> AptConfiguration:
    """Read it from the machine with this root; empty without apt."""
    facts = _os_release(root)
    identity, codename = facts.get("ID", ""), facts.get("VERSION_CODENAME", "")
    folder = root / "etc" / "apt"
    if not codename or not folder.is_dir():
        return AptConfiguration()
    sources = []
    for path in [folder / "sources.list", *_files(folder / "sources.list.d")]:
        text = _own_sources(path, codename)
        if text:
            sources.append(("sources" if path.suffix == ".sources" else "list", text))
    named = {found for _, text in sources for found in _KEYRING.findall(text)}
    return AptConfiguration(
        release=f"{identity} {codename}",
        sources=sources,
        keyrings=sorted(named),
        settings=_fetch_settings(folder),
    )


def _own_sources(path: Path, codename: str) -> str:
    """The entries of a list for the distribution's own release."""
    text = _text(path)

    def is_own(suite: str) -> bool:
        return suite.rstrip("/") == codename or suite.startswith((f"{codename}-", f"{codename}/"))

    if path.suffix == ".sources":
        own = []
        for stanza in re.split(r"\n[ \t]*\n", text):
            suites = re.search(r"(?im)^suites:(.*)$", stanza)
            if suites is not None and all(map(is_own, suites[1].split())):
                own.append(stanza.strip("\n"))
        return "\n\n".join(own) + "\n" if own else ""
    lines = []
    for line in text.splitlines():
        words = re.sub(r"\[[^]]*\]", "", line).split()
        if len(words) > 2 and words[0] == "deb" and is_own(words[2]):
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)


def _fetch_settings(folder: Path) -> str:
    """Proxies and the like: one-line `Acquire::...` settings; blocks are skipped."""
    files = [*_files(folder / "apt.conf.d"), folder / "apt.conf"]
    lines = [line.strip() for path in files for line in _text(path).splitlines()]
    return "".join(f"{line}\n" for line in lines if _FETCH_SETTING.fullmatch(line))


def _os_release(root: Path) -> dict[str, str]:
    text = _text(root / "etc" / "os-release")
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {name: value.strip().strip("\"'") for name, value in pairs}


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
