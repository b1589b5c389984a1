"""Access to metrics: administrators' tokens, and the token for scrapes."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.access.files import read_private
from controlplane.domain.errors import Denied, NotSignedIn
from controlplane.domain.identity import UserCaller
from controlplane.domain.policy import ADMINISTER, ALLOW, PLATFORM, may
from nsml.common.clock import in_own_thread

if TYPE_CHECKING:
    from pathlib import Path

    from controlplane.gateway.callers import Callers

SHORTEST_TOKEN: Final = 16
"""Minimum bytes of a token for scrapes: it must not be guessable."""
_BEARER: Final = "Bearer "
_LONGEST: Final = 512

_log = structlog.get_logger()


class Readers:
    """Access check of metrics on the whole platform.

    Args:
        token_file: of the token for scrapes, read each time, so that it may change; None: there is none.
    """

    def __init__(self, callers: Callers, *, token_file: Path | None) -> None:
        self._callers = callers
        self._token_file = token_file

    async def check(self, authorization: str, address: str) -> None:
        """Check a reader's access.

        Args:
            authorization: the header, "" for none.
            address: the caller's, without a port.

        Raises:
            NotSignedIn: there is no token, or one that is not valid.
            Denied: it is not an administrator's.
            Unavailable: it cannot be checked now.
        """
        if not authorization.startswith(_BEARER) or len(authorization) > _LONGEST:
            raise NotSignedIn(
                "metrics need a token",
                attempt="Authorization: Bearer TOKEN, an administrator's or that of metrics_token_file",
            )
        shown = authorization.removeprefix(_BEARER).strip()
        if await self._is_scraper(shown):
            return
        who = await self._callers.of_token(shown, address)
        if not isinstance(who, UserCaller) or may(who, ADMINISTER, PLATFORM) is not ALLOW:
            raise Denied("metrics of the whole platform are for administrators")

    async def _is_scraper(self, shown: str) -> bool:
        file = self._token_file
        if file is None:
            return False
        try:
            content = await in_own_thread(lambda: read_private(file))
        except OSError as error:  # such as an exposed file
            _log.warning("gateway.token_file_unusable", reason=str(error))
            return False
        expected = (content or b"").strip()
        if len(expected) < SHORTEST_TOKEN:
            _log.warning("gateway.token_file_unusable", reason="it has no token of 16 bytes")
            return False
        return hmac.compare_digest(expected, shown.encode())
