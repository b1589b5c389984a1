"""Palette results beside screens and themes: sessions by letters of their names, and key actions."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, cast

from rich.markup import escape
from textual.command import Hit, Provider
from textual.content import Content
from textual.system_commands import SystemCommandsProvider

from nsml.common.shell import shell_line
from nsml.common.text import visible
from nsml.view.filtering import Filter
from tui.fuzzy import fuzzy
from tui.hints import is_moving, key_of
from tui.screens.frame import NAMES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from textual.command import Hits

    from nsml.v1.sessions_pb2 import Session
    from tui.shell import Shell

MOST_FOUND: Final = 20
_SESSIONS_FIRST: Final = 0.9
_SCREENS, _ACTIONS, _SESSIONS = 0.9, 0.8, 0.7
"""Their scores before a search; all others come after them."""
_COMMANDS: Final = {
    "stop": "nsml stop NAME",
    "memo": "nsml memo NAME TEXT",
    "forward": "nsml forward NAME PORT",
    "shell": "nsml sh NAME",
    "compare": "nsml diff NAME NAME",
    "filter": "nsml ps --filter",
}
"""Commands that users type in a shell for the same action."""


class Everything(Provider):
    """All results; of equal ones key actions first, then sessions: Textual asks several providers in no order."""

    def _parts(self) -> list[Provider]:
        kinds = (Actions, Sessions, SystemCommandsProvider)
        return [kind(self.screen, self.match_style) for kind in kinds]

    async def discover(self) -> Hits:
        """Yield results before a search."""
        for part in self._parts():
            async for hit in part.discover():
                yield hit

    async def search(self, query: str) -> Hits:
        """Yield matching results."""
        for part in self._parts():
            async for hit in part.search(query):
                yield hit


class Sessions(Provider):
    """Sessions by name; choosing one opens it."""

    async def discover(self) -> Hits:
        """The first of them."""
        for hit in self._found("", best=_SESSIONS):
            yield hit

    async def search(self, query: str) -> Hits:
        """Yield sessions with these letters, in order, the closest first."""
        for hit in self._found(query, best=_SESSIONS_FIRST):
            yield hit

    def _found(self, query: str, *, best: float) -> Iterator[Hit]:
        dashboard = cast("Shell", self.app)
        rows = dashboard.model.rows(Filter(""), dashboard.clock.time(), with_steps=False)
        found = fuzzy(query, rows, of=lambda row: row.session.name)[:MOST_FOUND]
        for place, row in enumerate(found):
            name = visible(row.session.name)
            yield Hit(
                best - place / 100,
                Content(name),
                partial(self._open, row.session),
                text=name,
                help=escape(f"$ {shell_line(['nsml', 'status', row.session.name])}"),
            )

    def _open(self, session: Session) -> None:
        cast("Shell", self.app).open_session(session)


class Actions(Provider):
    """Screens, and key actions of the one in front, by name."""

    def _screens(self) -> Iterator[tuple[str, str, Callable[[], None]]]:
        dashboard = cast("Shell", self.app)
        for mode, name in NAMES.items():
            words = f"go there: {key_of(self.app, f'go.{mode}')}"
            yield name.partition(" ")[2], words, partial(dashboard.go, mode)

    def _actions(self) -> Iterator[tuple[str, str, Callable[[], Awaitable[bool]]]]:
        listed = set[str]()
        for node, binding, is_enabled, _ in self.screen.active_bindings.values():
            if not is_enabled or binding.system or is_moving(binding):
                continue
            if binding.action in cast("Shell", self.app).hidden_actions:
                continue
            if binding.id in listed or binding.action.startswith("go("):
                continue
            listed.add(binding.id or "")
            key = self.app.get_key_display(binding)
            command = _COMMANDS.get(binding.action.partition("(")[0])
            words = f"{key} · $ {command}" if command else key
            yield binding.description, words, partial(self.app.run_action, binding.action, node)

    async def discover(self) -> Hits:
        """All of them, screens first."""
        for found, score in ((self._screens(), _SCREENS), (self._actions(), _ACTIONS)):
            for name, words, act in found:
                yield Hit(score, name, act, help=escape(words))

    async def search(self, query: str) -> Hits:
        """Yield those with these letters."""
        matcher = self.matcher(query)
        for name, words, act in chain(self._screens(), self._actions()):
            if (score := matcher.match(name)) > 0:
                yield Hit(score, matcher.highlight(name), act, help=escape(words))
