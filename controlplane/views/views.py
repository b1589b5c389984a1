"""Views: visualisation servers of sessions, and the dashboard; their owners, admission, and end.

A view exists in memory, at the control plane that opened it, and so do the fingerprints of its tickets and
cookies. It shows only what its owner may see, and ends when that right does: its program reads with the
owner's own credential, and the rights of the credential to each session are checked again every few
seconds.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakValueDictionary

import structlog

from controlplane.domain.errors import (
    InvalidRequest,
    NotFound,
    NsmlError,
    StateConflict,
    TooLarge,
    Unavailable,
)
from controlplane.domain.policy import ALLOW, CHANGE, SEE, Action, Personal, may

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from controlplane.domain.identity import UserCaller
    from controlplane.domain.values import Session
    from controlplane.state.references import References
    from nsml.common.clock import Clock

MOST_SESSIONS: Final = 20
"""Maximum sessions of one view."""
MOST_OF_USER: Final = 3
MOST_VIEWS: Final = 12
"""Maximum views of one control plane: each is a process of some hundred megabytes."""
IDLE_S: Final = 1800.0
TICKET_S: Final = 60.0
LOOK_EVERY_S: Final = 5.0
"""Interval of checks whether each view may continue."""
MOST_TICKETS: Final = 16
"""Maximum tickets of one view, and as many cookies: beyond, the oldest becomes invalid."""

_log = structlog.get_logger()


class Kind(StrEnum):
    """The program of a view, by the name of its command; a dashboard takes no sessions: it shows all."""

    TENSORBOARD = "tensorboard"
    VISDOM = "visdom"
    DASHBOARD = "dashboard"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewerSpec:
    """How to start a viewer.

    Attributes:
        kind: the program.
        prefix: of all its paths, such as `/view/ID`.
        token: the caller's own credential, with which the viewer reads.
        session_ids: the shown sessions.
    """

    kind: Kind
    prefix: str
    token: str = field(repr=False)
    session_ids: tuple[str, ...]


class Viewer(Protocol):
    """A program that shows sessions."""

    @property
    def socket(self) -> str:
        """Path of its Unix socket for HTTP."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, for any reason."""
        ...

    def allows(self, method: str, path: str) -> bool:
        """Return whether a browser may request this: a path below its prefix, escaped as received.

        The method is WEBSOCKET for WebSockets.
        """
        ...

    async def stop(self) -> None:
        """End it, and remove its files; idempotent."""
        ...


class Viewing(Protocol):
    """Starts viewers, and knows their address."""

    @property
    def url(self) -> str:
        """Their address for browsers, without a path."""
        ...

    async def start(self, spec: ViewerSpec) -> Viewer:
        """Start a viewer; return once it answers.

        Raises:
            StateConflict: it cannot be started.
        """
        ...


@dataclass(slots=True, kw_only=True)
class View:
    """One view; `used_at` and `opened_at` are Unix seconds, `used` is monotonic seconds."""

    id: str
    kind: Kind
    who: UserCaller
    token: str = field(repr=False)
    sessions: tuple[tuple[str, str], ...]
    opened_at: float
    used_at: float
    used: float
    viewer: Viewer
    tickets: OrderedDict[str, float] = field(default_factory=OrderedDict, repr=False)
    cookies: OrderedDict[str, None] = field(default_factory=OrderedDict, repr=False)

    @property
    def session_ids(self) -> tuple[str, ...]:
        """Ids of the shown sessions."""
        return tuple(one for one, _ in self.sessions)


class Views:
    """The views of this control plane.

    Args:
        still: returns the current owner of a credential; None: it is no longer valid.
        new_id: creates a unique id of letters and digits.
        new_secret: creates an unguessable text.
        fingerprint: of such a text.

    Attributes:
        viewing: set by the HTTP server; None: HTTP is disabled.
    """

    def __init__(
        self,
        *,
        references: References,
        clock: Clock,
        still: Callable[[str], Awaitable[UserCaller | None]],
        new_id: Callable[[], str],
        new_secret: Callable[[], str],
        fingerprint: Callable[[str], str],
        opens_http: str,
    ) -> None:
        self.viewing: Viewing | None = None
        self._opens_http = opens_http
        self._references = references
        self._clock = clock
        self._still = still
        self._new_id = new_id
        self._new_secret = new_secret
        self._fingerprint = fingerprint
        self._views: dict[str, View] = {}
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._starting = 0

    async def open(
        self, who: UserCaller, token: str, references: Sequence[str], kind: Kind
    ) -> tuple[View, str]:
        """Show sessions; return the view, and its one-time address.

        Args:
            who: the caller.
            token: the caller's credential, with which the viewer reads.
            references: of sessions.
            kind: the program.

        Raises:
            InvalidRequest: no sessions, or more than MOST_SESSIONS; any for a dashboard.
            NotFound: a session is not visible to the caller.
            StateConflict: HTTP is disabled, the viewer cannot be started, or a session is sealed.
            TooLarge: too many views.
        """
        if kind is Kind.DASHBOARD and references:
            raise InvalidRequest("a dashboard shows the whole platform: it takes no sessions")
        if kind is not Kind.DASHBOARD and not 1 <= len(references) <= MOST_SESSIONS:
            raise InvalidRequest(f"a view has 1 to {MOST_SESSIONS} sessions")
        found = [await self._references.find_output(who, one) for one in references]
        if self.viewing is None:
            raise StateConflict(
                "HTTP is disabled on this control plane",
                why="views need it: a browser shows them",
                attempt=self._opens_http,
            )
        sessions = {one.id: one for one in found}
        # One at a time per user: concurrent calls would open several views of the same sessions.
        async with self._opening.setdefault(who.user.name, asyncio.Lock()):
            view = self._same(who, sessions, kind) or await self._opened(who, token, sessions, kind)
        secret = self._new_secret()
        _keep(view.tickets, self._fingerprint(secret), self._clock.monotonic() + TICKET_S)
        return view, f"{self.viewing.url}/view/{view.id}/?ticket={secret}"

    def _same(self, who: UserCaller, sessions: dict[str, Session], kind: Kind) -> View | None:
        asked = (who.user.name, who.token, kind)
        for view in self._views.values():
            is_own = (view.who.user.name, view.who.token, view.kind) == asked
            if is_own and set(view.session_ids) == sessions.keys() and not view.viewer.has_ended:
                self._touch(view)
                return view
        return None

    async def _opened(
        self, who: UserCaller, token: str, sessions: dict[str, Session], kind: Kind
    ) -> View:
        assert self.viewing is not None  # noqa: S101 - `open` has looked
        for gone in [one for one in self._views.values() if one.viewer.has_ended]:
            await self._end(gone, "its program ended")
        own = [one for one in self._views.values() if one.who.user.name == who.user.name]
        if len(own) >= MOST_OF_USER:
            ends = " or ".join(f"nsml {one} --stop" for one in sorted({one.kind for one in own}))
            raise TooLarge(f"you have {len(own)} views", attempt=f"{ends}    ends them")
        if len(self._views) + self._starting >= MOST_VIEWS:
            raise TooLarge(
                f"there are {MOST_VIEWS} views, as many as this control plane runs",
                attempt="nsml plot, or later: each ends half an hour after it was last looked at",
            )
        view_id = self._new_id()
        spec = ViewerSpec(
            kind=kind, prefix=f"/view/{view_id}", token=token, session_ids=tuple(sessions)
        )
        self._starting += 1
        try:
            viewer = await self.viewing.start(spec)
        finally:
            self._starting -= 1
        now = self._clock.time()
        view = View(
            id=view_id,
            kind=kind,
            who=who,
            token=token,
            sessions=tuple((one.id, one.name) for one in sessions.values()),
            opened_at=now,
            used_at=now,
            used=self._clock.monotonic(),
            viewer=viewer,
        )
        self._views[view_id] = view
        _log.info(
            "view.opened", view=view_id, kind=kind, user=who.user.name, sessions=len(sessions)
        )
        return view

    def listed(self, who: UserCaller) -> list[View]:
        """List the caller's views, for administrators all; oldest first."""
        return [one for one in self._views.values() if _may(who, SEE, one)]

    async def stop(self, who: UserCaller, view_id: str) -> None:
        """End one of the caller's views, for administrators any.

        Raises:
            NotFound: there is no such view, or it is another user's.
        """
        view = self._views.get(view_id)
        if view is None or not _may(who, CHANGE, view):
            raise NotFound(
                "there is no such view", attempt="nsml tensorboard or nsml visdom lists them"
            )
        await self._end(view, "stopped")

    def redeem(self, view_id: str, ticket: str) -> str:
        """Exchange a ticket, which is then used up, for a cookie; "" if it is not valid."""
        view = self._views.get(view_id)
        until = view.tickets.pop(self._fingerprint(ticket), 0.0) if view else 0.0
        if view is None or until < self._clock.monotonic():
            return ""
        secret = self._new_secret()
        _keep(view.cookies, self._fingerprint(secret), None)
        return secret

    def admit(self, view_id: str, cookie: str) -> Viewer | None:
        """Return the viewer for a cookie, and count it as a use; None if the cookie is not valid."""
        view = self._views.get(view_id)
        if view is None or view.viewer.has_ended or self._fingerprint(cookie) not in view.cookies:
            return None
        self._touch(view)
        return view.viewer

    async def leave(self, view_id: str, cookie: str) -> bool:
        """Invalidate a cookie, and end the view if it was the last; False if it was not valid."""
        view = self._views.get(view_id)
        fingerprint = self._fingerprint(cookie)
        if view is None or fingerprint not in view.cookies:
            return False
        del view.cookies[fingerprint]
        if not view.cookies:
            await self._end(view, "signed out")
        return True

    async def run(self) -> None:
        """End views that may not continue, until cancelled; then end all."""
        try:
            while True:
                await self._clock.sleep(LOOK_EVERY_S)
                for view in list(self._views.values()):
                    if reason := await self._why_over(view):
                        await self._end(view, reason)
        finally:
            await asyncio.gather(
                *(self._end(one, "the platform stops") for one in list(self._views.values()))
            )

    async def _why_over(self, view: View) -> str:
        """Return why it may not continue; "" if it may, or if that is unknown."""
        if view.viewer.has_ended:
            return "its program ended"
        if self._clock.monotonic() - view.used > IDLE_S:
            return "nobody is viewing it"
        try:
            who = await self._still(view.token)
            if who is None:
                return "its owner is signed out"
            for session_id in view.session_ids:
                await self._references.find(who, session_id)
        except NotFound:
            return "its owner no longer has access to all of it"
        except NsmlError as error:
            if not isinstance(error, Unavailable):
                _log.warning("view.unchecked", view=view.id, reason=error.message)
        return ""

    async def _end(self, view: View, reason: str) -> None:
        if self._views.pop(view.id, None) is None:
            return
        _log.info("view.ended", view=view.id, user=view.who.user.name, reason=reason)
        await view.viewer.stop()

    def _touch(self, view: View) -> None:
        view.used, view.used_at = self._clock.monotonic(), self._clock.time()


def _may(who: UserCaller, action: Action, view: View) -> bool:
    return may(who, action, Personal(view.who.user.name)) is ALLOW


def _keep(known: OrderedDict[str, float] | OrderedDict[str, None], key: str, value: object) -> None:
    """Add a fingerprint, and drop the oldest ones beyond MOST_TICKETS."""
    known[key] = value  # type: ignore[assignment]
    while len(known) > MOST_TICKETS:
        known.popitem(last=False)
