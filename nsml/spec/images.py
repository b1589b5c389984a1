"""References to container images, as in requests of users, in settings and in `#nsml:` lines.

Clients and servers parse such lines here, by one rule.

The grammar is that of the registries: `[HOST[:PORT]/]NAME[/NAME...][:TAG][@DIGEST]`. No text that
does not match it is passed to an engine. One image has many names (`python`,
`docker.io/library/python:latest`): `whole_reference` normalizes them, and all code that compares,
stores or looks up names uses that form.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

IMAGE_FILES: Final = ("setup.py", "requirements.txt")
"""The files of a code folder with valid `#nsml:` lines; the first file with such a line decides."""

LONGEST: Final = 512
"""Most characters of a whole reference; its name alone has at most 255."""

OWN_IMAGE: Final = "nsml-base:latest"
"""The default image of sessions, unless configured; `deploy/image` builds it."""

RULE: Final = "it is [HOST[:PORT]/]NAME[:TAG][@sha256:...], in small letters up to the tag"
"""The form of a reference, for messages."""

DOCKER_HUB: Final = "docker.io"
"""The registry of names without a host."""

_HUB_HOSTS = frozenset(
    {DOCKER_HUB, "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"}
)
_OFFICIAL = "library/"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_PORT = "(?::[0-9]{1,5})"
# To engines, a first part without dot or port is part of the name, except localhost.
_HOST = rf"(?:localhost{_PORT}?|{_LABEL}(?:\.{_LABEL})+{_PORT}?|{_LABEL}{_PORT})"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?P<name>(?:{_HOST}/)?{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>sha(?:256:[0-9a-f]{64}|512:[0-9a-f]{128})))?"
)
_ID = re.compile(r"[0-9a-f]{64}")
_LONGEST_NAME = 255
_LINE = re.compile(r"#\s*nsml:(.*)")


class NamesNoImage(ValueError):
    """A `#nsml:` line without a valid image; the message has file, number and line."""


def is_reference(text: str) -> bool:
    """Return whether `text` is a valid image reference."""
    found = _REFERENCE.fullmatch(text) if len(text) <= LONGEST else None
    if found is None or len(found["name"]) > _LONGEST_NAME:
        return False
    # engines read these as image ids, of any user's image
    return found["name"] != "sha256" and _ID.fullmatch(text) is None


def why_never_pulled(reference: str) -> str:
    """Return why no node may pull a reference, whatever its settings allow; "" for others.

    Refused are addresses without a meaning outside of one machine or network segment (cloud metadata,
    multicast), and numbers that only some resolvers read as addresses (`127.1`, `0x7f.0.0.1`).

    Raises:
        ValueError: invalid reference.
    """
    host, _, port = registry_of(reference).partition(":")
    if port and not 0 < int(port) < 1 << 16:
        return f"{port} is not a port"
    if not _looks_numeric(host):
        return ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"{host} is neither a host name nor an address"
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        return f"{host} is not the address of a registry"
    if address.is_reserved and not address.is_loopback:
        return f"{host} is not the address of a registry"
    return ""


def _looks_numeric(host: str) -> bool:
    """Return whether resolvers may read `host` as an address: its last label is a number, as in URLs."""
    last = host.rpartition(".")[2].lower()
    return last.isdigit() or re.fullmatch("0x[0-9a-f]*", last) is not None


def is_public_name(registry: str) -> bool:
    """Return whether a registry is a host name with a domain and without a port; it is not resolved."""
    return ":" not in registry and "." in registry and not _looks_numeric(registry)


def registry_of(reference: str) -> str:
    """Return HOST[:PORT] of a reference's registry.

    Raises:
        ValueError: invalid reference.
    """
    return _registry_and_path(parts_of(reference)[0])[0]


def login_registry(text: str) -> str:
    """Return HOST[:PORT] of a registry to log in to, normalized: `ghcr.io`, `docker.io` for Docker Hub.

    Raises:
        ValueError: invalid registry; the message says why.
    """
    host = text.removeprefix("https://").removesuffix("/").removesuffix("/v1").removesuffix("/v2")
    host = host.lower() or DOCKER_HUB
    trial = f"{host}/x:1"
    if not is_reference(trial) or "/" in host:
        raise ValueError("it is HOST[:PORT], such as ghcr.io or registry.lab:5000")
    registry = registry_of(trial)
    if registry != host and host not in _HUB_HOSTS:
        raise ValueError("it is HOST[:PORT]: a name with a dot, or with a port")
    if why := why_never_pulled(trial):
        raise ValueError(why)
    return registry


def full_name(reference: str) -> str:
    """Return a reference's name with its registry, without tag and digest: `docker.io/library/python`.

    Raises:
        ValueError: invalid reference.
    """
    return "/".join(_registry_and_path(parts_of(reference)[0]))


def _registry_and_path(name: str) -> tuple[str, str]:
    """Return the registry of a name, and the name there, both normalized."""
    first, slash, rest = name.partition("/")
    if not slash or re.fullmatch(_HOST, first) is None:
        registry, path = DOCKER_HUB, name
    else:
        registry, path = first.lower(), rest
    if registry in _HUB_HOSTS:
        registry = DOCKER_HUB
        path = path if "/" in path else f"{_OFFICIAL}{path}"
    return registry, path


def asked_image(texts: Iterable[tuple[str, str]]) -> str | None:
    """Return the image requested by files, given as (name, text) in order; None if none is.

    NSML read `#nsml: IMAGE`, or `# nsml:IMAGE`, in the first line. Here it may follow lines that are
    empty or comments, such as `#!/usr/bin/env python3`, but never code, where a string could
    contain it. A further comment may follow the name, and nothing else.

    Raises:
        NamesNoImage: the first such line of a file has no valid image.
    """
    for file, text in texts:
        for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
            line = line.strip()  # noqa: PLW2901
            if line and not line.startswith("#"):
                break
            found = _LINE.fullmatch(line)
            if found is None:
                continue
            image = re.split(r"(?:^|\s)#", found[1], maxsplit=1)[0].strip()
            if not is_reference(image) or why_never_pulled(image):
                raise NamesNoImage(f"{file}, line {number}: {line[:120]!r} names no image")
            return image
    return None


def is_made_here(reference: str) -> bool:
    """Return whether an image of this name is built on its node, and never pulled.

    On a public registry anybody may own the name.
    """
    return full_name(reference) == full_name(OWN_IMAGE)


def whole_reference(reference: str) -> str:
    """Return the normalized form of a reference, as engines list it: `python:latest`.

    Docker Hub's registry is left out, a missing tag is `latest`, and beside a digest a tag means nothing.

    Raises:
        ValueError: invalid reference.
    """
    _, tag, digest = parts_of(reference)
    return (
        f"{_short_name(reference)}@{digest}"
        if digest
        else f"{_short_name(reference)}:{tag or 'latest'}"
    )


def _short_name(reference: str) -> str:
    registry, path = _registry_and_path(parts_of(reference)[0])
    first, _, rest = path.partition("/")
    if registry != DOCKER_HUB or re.fullmatch(_HOST, first):
        return f"{registry}/{path}"
    return rest if f"{first}/" == _OFFICIAL and "/" not in rest else path


def parts_of(reference: str) -> tuple[str, str, str]:
    """Return name, tag and digest of a reference; missing parts are "".

    Raises:
        ValueError: invalid reference.
    """
    found = _REFERENCE.fullmatch(reference) if is_reference(reference) else None
    if found is None:
        raise ValueError(f"{reference[:80]!r} is not the name of an image")
    return found["name"], found["tag"] or "", found["digest"] or ""
