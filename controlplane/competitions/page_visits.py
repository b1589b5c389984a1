"""Visits of users to pages of competitions in a browser, which sends no token: one-time tickets, exchanged for cookies.

Both exist in memory, at the control plane that was asked, as fingerprints. A visit shows what the owner of the
credential with which it was opened may see, and ends with that credential.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from controlplane.domain.identity import UserCaller
    from nsml.common.clock import Clock

TICKET_S: Final = 60.0
VISIT_S: Final = 3600.0
MOST_OF_USER: Final = 16
"""Tickets of one user, and as many cookies: beyond, the oldest becomes invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Right:
    """Who may see which page, `OWNER/NAME`, until a monotonic time in seconds."""

    user: str
    token: str = field(repr=False)
    page: str
    until: float


class PageVisits:
    """The visits of this control plane.

    Args:
        still: returns the current owner of a credential; None: it is no longer valid.
        new_secret: creates an unguessable text.
        fingerprint: of such a text.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        still: Callable[[str], Awaitable[UserCaller | None]],
        new_secret: Callable[[], str],
        fingerprint: Callable[[str], str],
    ) -> None:
        self._clock = clock
        self._still = still
        self._new_secret = new_secret
        self._fingerprint = fingerprint
        self._tickets: OrderedDict[str, _Right] = OrderedDict()
        self._cookies: OrderedDict[str, _Right] = OrderedDict()

    def ticket(self, user: str, token: str, page: str) -> str:
        """Return a ticket for one visit of a page, to begin within TICKET_S.

        Args:
            user: name of the caller.
            token: the caller's credential.
            page: OWNER/NAME of the competition.
        """
        until = self._clock.monotonic() + TICKET_S
        return self._keep(self._tickets, _Right(user=user, token=token, page=page, until=until))

    def redeem(self, ticket: str, page: str) -> str:
        """Exchange a ticket, which is then used up, for a cookie that holds for VISIT_S; "": it is not valid."""
        now = self._clock.monotonic()
        right = self._tickets.pop(self._fingerprint(ticket), None)
        if right is None or right.page != page or right.until < now:
            return ""
        begun = _Right(user=right.user, token=right.token, page=page, until=now + VISIT_S)
        return self._keep(self._cookies, begun)

    async def viewer(self, cookie: str, page: str) -> UserCaller | None:
        """Return whose visit of a page it is; None: the cookie, or its credential, is not valid there."""
        right = self._cookies.get(self._fingerprint(cookie)) if cookie else None
        if right is None or right.page != page or right.until < self._clock.monotonic():
            return None
        return await self._still(right.token)

    def _keep(self, known: OrderedDict[str, _Right], right: _Right) -> str:
        """Keep a right for a new secret, which it returns, and drop those that are over or too many."""
        now = self._clock.monotonic()
        for key in [key for key, one in known.items() if one.until < now]:
            del known[key]
        own = [key for key, one in known.items() if one.user == right.user]
        for key in own[: max(len(own) - MOST_OF_USER + 1, 0)]:
            del known[key]
        secret = self._new_secret()
        known[self._fingerprint(secret)] = right
        return secret
