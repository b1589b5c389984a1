"""The images that sessions may use on a node: from public registries, unless the site sets others.

A pattern of the setting `allowed_images` is one of

```
*                      every registry with a public host name, at its default port
NAME[:TAG]             of Docker Hub, for example `python` or `pytorch/*`
HOST[:PORT]/NAME[:TAG] of that registry, for example `registry.lab:5000/*`
local:NAME[:TAG]       images that are on the node and came from no registry, for example `local:team/*`
```

where `*` matches any characters, and a pattern without a tag all tags. A registry with a port, with
an address in place of a name, or with a name that resolves to a non-public address is asked only if
a pattern names its host literally: the engine's requests come from the node, which reaches services that
sessions do not.
"""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from nodeagent.environments.errors import ImageUnavailable
from nsml.common.hosts import is_public
from nsml.spec.images import (
    DOCKER_HUB,
    full_name,
    is_made_here,
    is_public_name,
    is_reference,
    parts_of,
    registry_of,
    whole_reference,
    why_never_pulled,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ANY = "*"
_LOCAL = "local:"
_PATTERN = re.compile(r"[A-Za-z0-9_./*-]+(?::[0-9]+/[A-Za-z0-9_./*-]+)?(?::[A-Za-z0-9_.*-]+)?")
_ADVICE = "the administrator adds it to allowed_images in the agent's settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    """`registry` and `name` are globs on the parts of a full name; `tag` "" matches every tag."""

    registry: str
    name: str
    tag: str = ""
    is_local: bool = False

    def matches(self, reference: str) -> bool:
        registry = registry_of(reference)
        name = full_name(reference).removeprefix(f"{registry}/")
        tag = parts_of(reference)[1]
        is_tagged = not self.tag or fnmatchcase(tag, self.tag)
        return is_tagged and fnmatchcase(registry, self.registry) and fnmatchcase(name, self.name)

    def names_host(self, reference: str) -> bool:
        return self.registry == registry_of(reference)


class AllowedImages:
    """The rules of one node; `always`: images named by the site's other settings.

    `addresses` resolves a host name to IP addresses; none for a name that does not resolve.
    """

    def __init__(
        self,
        patterns: Iterable[str],
        always: Iterable[str] = (),
        *,
        addresses: Callable[[str], Iterable[str]] | None = None,
    ) -> None:
        self._patterns = [_parsed(one) for one in patterns]
        self._always = frozenset(map(whole_reference, filter(None, always)))
        self._addresses = addresses or _resolved

    def check_registry(self, reference: str) -> None:
        """Return if the registry of a whole `reference` may be asked for it. May wait for DNS.

        Raises:
            ImageUnavailable: it may not.
        """
        if why := why_never_pulled(reference):
            raise ImageUnavailable(f"image {reference} cannot be used: {why}")
        if reference in self._always:
            return
        found = [one for one in self._patterns if not one.is_local and one.matches(reference)]
        if not found:
            raise ImageUnavailable(
                f"image {reference} is not among the images that sessions may use on this node: {_ADVICE}"
            )
        if any(one.names_host(reference) for one in found):
            return
        registry = registry_of(reference)
        if registry != DOCKER_HUB and not (
            is_public_name(registry) and all(map(is_public, self._addresses(registry)))
        ):
            raise ImageUnavailable(
                f"image {reference}: {registry} is not a public registry at its default port, and is"
                f" asked only where allowed_images names it: {_ADVICE}"
            )

    def is_named(self, reference: str) -> bool:
        """Whether a whole `reference` is named by the site's other settings, or never pulled."""
        return reference in self._always or is_made_here(reference)

    def is_local_allowed(self, reference: str) -> bool:
        """Whether sessions may use a whole `reference` that is on the node and came from no registry."""
        if self.is_named(reference):
            return True
        return any(one.is_local and one.matches(reference) for one in self._patterns)

    def may_list(self, reference: str) -> bool:
        """Whether a whole `reference` may be usable here, as far as known without DNS."""
        return self.is_local_allowed(reference) or any(
            one.matches(reference) for one in self._patterns
        )


def is_pattern(text: str) -> bool:
    """Whether `text` is a pattern of `allowed_images`."""
    text = text.removeprefix(_LOCAL)
    return _PATTERN.fullmatch(text) is not None and is_reference(
        _parsed(text).name.lower().replace("*", "x")
    )


def _parsed(pattern: str) -> _Pattern:
    text = pattern.removeprefix(_LOCAL)
    is_local = text != pattern
    if text == ANY:
        return _Pattern(registry=ANY, name=ANY, is_local=is_local)
    head, _, last = text.rpartition("/")
    last, _, tag = last.partition(":")
    whole = f"{head}/{last}" if head else last
    first, slash, rest = whole.partition("/")
    is_host = slash and re.search(r"[.:]|^localhost$", first)
    registry, name = (first.lower(), rest) if is_host else (DOCKER_HUB, whole)
    if registry == DOCKER_HUB and "/" not in name and name != ANY:
        name = f"library/{name}"
    return _Pattern(registry=registry, name=name, tag=tag, is_local=is_local)


def _resolved(host: str) -> list[str]:
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM)
        return [str(one[4][0]) for one in found]
    return []
