"""Checks of URLs that the platform calls for users. Pure.

Otherwise users could make the control plane call targets that only it can reach: its own machine, the network
behind it, the cloud's metadata. So the resolved addresses of a name are checked, and exactly one of these
addresses is called.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from controlplane.domain.errors import InvalidRequest
from nsml.common.hosts import is_public, is_within

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from ipaddress import IPv4Network, IPv6Network

MOST_URL: Final = 2_048
"""Maximum characters of a URL."""
_ASK: Final = "ask an administrator: `webhooks_to_private` in the control plane's settings"
_PORTS: Final = {"https": 443, "http": 80}


class Target(NamedTuple):
    """A URL in its parts; `path` begins with "/" and has the query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> str:
        """The part that may be displayed: the rest may be a secret."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"


class Post(Protocol):
    """Sends one message."""

    @property
    def allows_private(self) -> bool:
        """Whether private networks and this machine may be called, too."""
        ...

    async def __call__(self, target: Target, body: bytes, *, owner: str) -> int:
        """Send for a user, and return the HTTP status; raises InvalidRequest or StateConflict."""
        ...


def target_of(url: str, *, allows_private: bool) -> Target:
    """Split and check a URL; raises InvalidRequest, never with the URL in its text.

    A host that is an address, or localhost, is checked here; other names are resolved and checked when called
    (`pinned`).
    """
    if not 0 < len(url) <= MOST_URL:
        raise InvalidRequest(f"the URL of a webhook has 1 to {MOST_URL:,} characters")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidRequest("the URL of a webhook is printable ASCII without spaces")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidRequest("this is no URL", attempt="https://HOST/...") from None
    if parts.scheme not in (_PORTS if allows_private else {"https"}):
        raise _not_https(parts.scheme, parts.hostname or "")
    if not parts.hostname or parts.username is not None or parts.password is not None:
        raise InvalidRequest(
            "the URL of a webhook has a host, and neither user nor password",
            attempt="https://HOST/...",
        )
    if not allows_private and _is_private(parts.hostname):
        raise _private()
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(
        parts.scheme, parts.hostname, _PORTS[parts.scheme] if port is None else port, path
    )


def _is_private(host: str) -> bool:
    """Return whether a host, without resolving it, is certainly not public."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return not is_public(host)


def _not_https(scheme: str, host: str) -> InvalidRequest:
    if scheme == "http" and _is_private(host):
        return _private()
    attempt = "https://HOST/..."
    if scheme == "http" and not is_public(host):
        attempt += f"\nif the host is in a private network, {_ASK}"
    return InvalidRequest(
        "the URL of a webhook begins with https://",
        why="it would be sent unencrypted" if scheme == "http" else "",
        attempt=attempt,
    )


def _private() -> InvalidRequest:
    return InvalidRequest(
        "the host of the webhook is in a private network",
        why="the control plane calls public addresses alone",
        attempt=_ASK,
    )


def pinned(
    addresses: Sequence[str],
    *,
    allows_private: bool,
    own: Iterable[IPv4Network | IPv6Network] = (),
) -> str:
    """Choose the address of a name to call; raises InvalidRequest.

    If one of them is forbidden, all are: a name with both is an attack or a mistake. `own`: networks of this
    machine, which may have public addresses, too.
    """
    if not addresses:
        raise InvalidRequest("the host of the webhook has no address")
    if allows_private:
        return addresses[0]
    near = tuple(own)
    if not all(is_public(one) and not is_within(one, near) for one in addresses):
        raise _private()
    return addresses[0]
