"""Authenticates HTTP callers by tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from controlplane.access.failed_attempts import MOST_FAILURES
from controlplane.access.secret import parse_secret
from controlplane.domain.errors import NotSignedIn

if TYPE_CHECKING:
    from controlplane.access.failed_attempts import FailureLimiter
    from controlplane.access.identities import Identities
    from controlplane.domain.identity import Caller

_log = structlog.get_logger()


class Callers:
    """Authenticates tokens, and counts invalid ones by address."""

    def __init__(self, identities: Identities, limiter: FailureLimiter) -> None:
        self._identities = identities
        self._limiter = limiter

    async def of_token(self, shown: str, address: str) -> Caller:
        """Return the token's caller.

        Args:
            shown: the caller's token.
            address: the caller's, without a port.

        Raises:
            NotSignedIn: it is not valid.
            Unavailable: it cannot be checked now.
        """
        is_limited = self._limiter.is_limited(address)
        secret = parse_secret(shown)
        who = None
        if secret is not None:
            who = await self._identities.of_secret(secret, thorough=not is_limited)
        if who is None:
            failures = self._limiter.failed(address)
            if failures <= MOST_FAILURES:
                _log.warning("gateway.token_refused", address=address, failures=failures)
            raise NotSignedIn("the token is not valid", why="it is unknown, expired or revoked")
        return who
