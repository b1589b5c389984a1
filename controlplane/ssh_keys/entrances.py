"""Authentication between an ssh server in a session and its client behind a jump host."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import InvalidRequest
from controlplane.state.agent_connections import SshEntrance
from nsml.spec.ssh_hosts import RULE, replica_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.access.ssh_authority import SshAuthority
    from controlplane.domain.identity import JumpHostCaller
    from controlplane.ssh_keys.user_keys import UserKeys

_KEY_BYTES: Final = 32
_PATTERN: Final = re.compile(r"[*?!,]")
"""ssh reads names in host certificates as patterns."""


class SshEntrances:
    """Makes entrances: a host key for each connection, certified for the client's host name.

    So a client needs one line for all current and future sessions of the platform, and a session's name can be
    reused. The key is made here, not on the node, since its certification there would need a round trip;
    the certifying control plane could certify any other key as well.
    """

    def __init__(
        self, keys: UserKeys, authority: SshAuthority, random_bytes: Callable[[int], bytes]
    ) -> None:
        self._keys = keys
        self._authority = authority
        self._random_bytes = random_bytes

    async def open(self, who: JumpHostCaller, host: str, replica: tuple[str, int]) -> SshEntrance:
        """Return an entrance for a user's connection; only the user's keys may log in.

        `replica`: its target, a reference to a session and a rank. InvalidRequest: the host is another one.
        """
        try:
            is_meant = replica_at(host) == replica
        except ValueError as error:
            raise InvalidRequest(str(error), why=RULE) from error
        if not is_meant or _PATTERN.search(host):
            raise InvalidRequest(f"{host[:80]!r} is not the session {replica[0][:80]!r}")
        host_key = self._random_bytes(_KEY_BYTES)
        return SshEntrance(
            host_key=host_key,
            certificate=self._authority.certify(host_key, host, who.user),
            authorized_keys=await self._keys.used(who.user.name, who.key),
        )
