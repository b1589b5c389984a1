"""Views: visualisation servers beside sessions, and the dashboard. Who has which, who is let in, and when each ends.

A view lives in memory, at the control plane that opened it, and so do its tickets and cookies: what is
kept of those is their fingerprint. It shows what its owner may see, and ends when that is not so any
more: the program that reads for it does so with the owner's own credential, and what each session and
credential still allow is looked at again every few seconds.
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
"""In one view."""
MOST_OF_USER: Final = 3
MOST_VIEWS: Final = 12
"""At one control plane: each is a process of some hundred megabytes."""
IDLE_S: Final = 1800.0
TICKET_S: Final = 60.0
LOOK_EVERY_S: Final = 5.0
"""How often is looked whether each view may go on."""
MOST_TICKETS: Final = 16
"""Of one view, and of its cookies as many: the oldest is worth nothing then."""

_log = structlog.get_logger()


class Kind(StrEnum):
    """Which program shows sessions, by the name of its command; a dashboard shows all, and which is never said."""

    TENSORBOARD = "tensorboard"
    VISDOM = "visdom"
    DASHBOARD = "dashboard"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewerSpec:
    """How a viewer is started.

    Attributes:
        kind: which program.
        prefix: of all paths that it answers, such as `/view/ID`.
        token: the caller's own credential, for the viewer to read with.
        session_ids: what it shows.
    """

    kind: Kind
    prefix: str
    token: str = field(repr=False)
    session_ids: tuple[str, ...]


class Viewer(Protocol):
    """A program that shows sessions."""

    @property
    def socket(self) -> str:
        """Path of the Unix socket on which it answers HTTP."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether it is gone, whoever ended it."""
        ...

    def allows(self, method: str, path: str) -> bool:
        """Whether a browser may ask for that: a path below its prefix, escaped as it came.

        The method is WEBSOCKET for a connection that stays.
        """
        ...

    async def stop(self) -> None:
        """End it, and remove what it left; again has no effect."""
        ...


class Viewing(Protocol):
    """How viewers are reached and started."""

    @property
    def url(self) -> str:
        """Where browsers reach them, without a path."""
        ...

    async def start(self, spec: ViewerSpec) -> Viewer:
        """Start one; returns once it answers.

        Raises:
            StateConflict: it cannot be started, here or ever.
        """
        ...


@dataclass(slots=True, kw_only=True)
class View:
    """One view; `used_at` and `opened_at` are Unix seconds, `used` is of a steady clock."""

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
        """What it shows."""
        return tuple(one for one, _ in self.sessions)


class Views:
    """The views of this control plane.

    Args:
        still: who stands behind a credential now; None: nobody any more.
        new_id: of letters and digits, like no other.
        new_secret: a text that nobody can guess.
        fingerprint: of such a text.

    Attributes:
        viewing: set by who answers over HTTP; None: nobody does.
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
        """Show sessions; the view, and the address for one visit.

        Args:
            who: the caller.
            token: the caller's credential, which the viewer reads with.
            references: of sessions.
            kind: what shows them.

        Raises:
            InvalidRequest: no sessions, or more than MOST_SESSIONS; any for a dashboard.
            NotFound: one that the caller does not see.
            StateConflict: there is nothing to show them with.
            TooLarge: too many views.
        """
        if kind is Kind.DASHBOARD and references:
            raise InvalidRequest("a dashboard shows the whole platform: it takes no sessions")
        if kind is not Kind.DASHBOARD and not 1 <= len(references) <= MOST_SESSIONS:
            raise InvalidRequest(f"a view has 1 to {MOST_SESSIONS} sessions")
        if self.viewing is None:
            raise StateConflict(
                "HTTP is disabled on this control plane",
                why="views need it: a browser shows them",
                attempt=self._opens_http,
            )
        found = [await self._references.find(who, one) for one in references]
        sessions = {one.id: one for one in found}
        # A user's one at a time: those that come at once would each be another view of the same.
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
        """The caller's, administrators: everybody's; oldest first."""
        return [one for one in self._views.values() if _may(who, SEE, one)]

    async def stop(self, who: UserCaller, view_id: str) -> None:
        """End one of the caller's, administrators: anybody's.

        Raises:
            NotFound: there is no such view, or it is somebody else's.
        """
        view = self._views.get(view_id)
        if view is None or not _may(who, CHANGE, view):
            raise NotFound(
                "there is no such view", attempt="nsml tensorboard or nsml visdom lists them"
            )
        await self._end(view, "stopped")

    def redeem(self, view_id: str, ticket: str) -> str:
        """A cookie for a ticket, which is worth nothing from then on; "" where it is not now."""
        view = self._views.get(view_id)
        until = view.tickets.pop(self._fingerprint(ticket), 0.0) if view else 0.0
        if view is None or until < self._clock.monotonic():
            return ""
        secret = self._new_secret()
        _keep(view.cookies, self._fingerprint(secret), None)
        return secret

    def admit(self, view_id: str, cookie: str) -> Viewer | None:
        """What shows the view that a cookie is for; None for none. Counts as its use."""
        view = self._views.get(view_id)
        if view is None or view.viewer.has_ended or self._fingerprint(cookie) not in view.cookies:
            return None
        self._touch(view)
        return view.viewer

    async def leave(self, view_id: str, cookie: str) -> bool:
        """Forget a cookie, and end the view where it was the last; False where it was for none."""
        view = self._views.get(view_id)
        fingerprint = self._fingerprint(cookie)
        if view is None or fingerprint not in view.cookies:
            return False
        del view.cookies[fingerprint]
        if not view.cookies:
            await self._end(view, "signed out")
        return True

    async def run(self) -> None:
        """End views that may not go on, until cancelled; then end all."""
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
        """Why it may not go on; "" while it may, or nobody can tell."""
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
    """Remember a fingerprint, and forget the oldest of too many."""
    known[key] = value  # type: ignore[assignment]
    while len(known) > MOST_TICKETS:
        known.popitem(last=False)
