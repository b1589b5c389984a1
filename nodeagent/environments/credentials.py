"""Removes user names and passwords from the URLs in a machine's configuration.

Builds that run code of packages get URLs without them; a URL is refused if it is unclear which part is the password.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from nodeagent.environments.errors import EnvironmentFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PROXIES: Final = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy")
"""Variables with the URL of a proxy, in lower or upper case."""
NO_PROXY: Final = "no_proxy"
"""The variable with the hosts that are reached without one."""
_SOURCES: Final = ("index-url", "extra-index-url", "find-links")
_PLACE: Final = r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?"
_PROXY: Final = re.compile(rf"(?P<place>{_PLACE})(?:[/?#].*)?", re.DOTALL)
_PROXY_SCHEME: Final = re.compile(r"(?:https?|socks(?:4a?|5h?)?)://", re.IGNORECASE)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_USER: Final = re.compile(rf"\A({_SCHEME.pattern})[^/?#]*@", re.IGNORECASE)
"""The scheme of a URL and the user before its host."""
_SOURCE: Final = re.compile(
    rf"https?://{_PLACE}(?:/[^\s@?#]*)?|file:///\S*|(?!\w+:)[^\s@]+|/\S*", re.IGNORECASE
)
"""An index that certainly has no password: a URL, or a path."""


def bare_proxy(url: str) -> str:
    """The URL of a proxy reduced to scheme, host and port; "" if it is unclear which part is the host."""
    scheme = _PROXY_SCHEME.match(url.strip())
    rest = url.strip()[scheme.end() if scheme else 0 :]
    # everything before the last @ is credentials: a password may have an @ or a slash
    found = _PROXY.fullmatch(rest.rpartition("@")[2].removeprefix("//"))
    return f"{scheme[0] if scheme else ''}{found['place']}" if found else ""


def bare_proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """The proxy variables of `environ`, without user names and passwords.

    Raises EnvironmentFailed if it is unclear which part is a password.
    """
    found = {}
    for name in _both_cases(PROXIES):
        if url := environ.get(name, "").strip():
            found[name] = bare_proxy(url)
            if not found[name]:
                raise _unclear(f"the variable {name} of this node's agent")
    for name in _both_cases((NO_PROXY,)):
        if hosts := [one for one in environ.get(name, "").split(",") if one and "@" not in one]:
            found[name] = ",".join(hosts)
    return found


def bare_options(options: Mapping[str, str]) -> dict[str, str]:
    """Pip's options without user names, passwords and queries in URLs, and without a client's key.

    Raises EnvironmentFailed if it is unclear which part is a password.
    """
    found = {name: text for name, text in without_secrets(options).items() if name != "client-cert"}
    for name in _SOURCES:
        given = options.get(name, "").split()
        words = [re.split(r"[?#]", _bare(word))[0] for word in given]
        if not all(map(_SOURCE.fullmatch, words)) or any(map(_is_unclear, given)):
            raise _unclear(f"{name} in the pip configuration of this node")
        if words:
            found[name] = " ".join(words)
    if options.get("proxy", "").strip() and not found["proxy"]:
        raise _unclear("proxy in the pip configuration of this node")
    return found


def without_secrets(options: Mapping[str, str]) -> dict[str, str]:
    """Pip's options without user names and passwords in URLs."""
    return {
        name: bare_proxy(text) if name == "proxy" else " ".join(map(_bare, text.split()))
        for name, text in options.items()
    }


def key_options(options: Mapping[str, str]) -> dict[str, str]:
    """Pip's options for an environment's hash: as `without_secrets`, but different indexes stay different.

    Of a URL with an @ behind its first slash only the user before the host is removed: the rest may be a path.
    """
    sources = {name: options[name].split() for name in _SOURCES if name in options}
    told_apart = {name: " ".join(map(_for_key, words)) for name, words in sources.items()}
    return without_secrets(options) | told_apart


def _bare(word: str) -> str:
    """A word without the user before its last @, unless it is a path."""
    if "@" not in word or word.startswith(("/", "file:///")):
        return word
    scheme = _SCHEME.match(word)
    return (scheme[0] if scheme else "") + word.rpartition("@")[2]


def _for_key(word: str) -> str:
    return _USER.sub(r"\1", word) if _is_unclear(word) else _bare(word)


def _is_unclear(word: str) -> bool:
    """Whether an @ follows a URL's first slash (in a password or a path), or there is an @ and no scheme."""
    if word.startswith(("/", "file:///")):
        return False
    rest = word.partition("://")[2] if "://" in word else f"/{word}"
    return re.search(r"[/?#].*@", rest) is not None


def _both_cases(names: Iterable[str]) -> list[str]:
    return [one for name in names for one in (name, name.upper())]


def _unclear(what: str) -> EnvironmentFailed:
    return EnvironmentFailed(
        f"{what} has special characters, so it is unclear where its password ends, and packages of conda get no"
        " password: an administrator writes these characters as %XX, such as %40 for @"
    )
