"""The line of keys: those for help and quit are visible at any width."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from rich.cells import cell_len
from textual.containers import HorizontalGroup
from textual.widgets import Footer
from textual.widgets._footer import FooterKey  # what Footer makes of each key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from textual.app import ComposeResult
    from textual.screen import Screen

ALWAYS: Final = ("help", "quit")
"""Actions with keys at its right end, in this order."""


class Keys(Footer):
    """Keys of the focused widget, the most used first: as many as fit.

    Args:
        without: hidden actions.
        titles: current titles of keys by action, if the name says too little.
    """

    DEFAULT_CSS: ClassVar[str] = """
    Keys > HorizontalGroup { dock: right; height: 1; background: $footer-background; }
    """

    def __init__(
        self,
        *,
        without: Collection[str] = (),
        titles: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        super().__init__(show_command_palette=False)
        self._without = without
        self._titles = titles
        self._made_of: object = None

    def compose(self) -> ComposeResult:
        """The permanent keys apart from the others."""
        offered = [key for key in super().compose() if isinstance(key, FooterKey)]
        titles = self._titles()
        for key in offered:
            key.description = titles.get(key.action, key.description)
            key.styles.width = _width(key)  # one measured before its style is known would be kept
        always = {key.action: key for key in offered if key.action in ALWAYS}
        width = sum(map(_width, always.values()))
        room = self.size.width - width
        for key in offered:
            if key.action in ALWAYS or key.action in self._without:
                continue
            if key.key == "slash" and self._is_slash_typed:
                continue
            room -= _width(key)
            if room < 0:
                break
            yield key
        group = HorizontalGroup(*(always[action] for action in ALWAYS if action in always))
        group.styles.width = width
        yield group

    async def recompose(self) -> None:
        """Rebuild it only if it changes: Textual does whenever the focus moves, with a widget for each key."""
        if not self.is_attached:
            return
        active = self.screen.active_bindings.values()
        keys = [(key.binding, key.enabled, key.tooltip) for key in active if key.binding.show]
        made_of = keys, self._titles(), self.size.width, self._is_slash_typed
        if made_of != self._made_of:
            self._made_of = made_of
            await super().recompose()

    @property
    def _is_slash_typed(self) -> bool:
        """Whether slash is text for the focused widget: Textual, which hides such keys, does not know this one."""
        focused = self.screen.focused
        return focused is not None and focused.check_consume_key("slash", "/")

    def on_resize(self) -> None:
        """Show what fits."""
        self._show_others()

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Show other keys, also without window focus: a browser reports the focus only with the first key."""
        self._bindings_ready = True
        if screen is self.screen:
            self._show_others()

    def _show_others(self) -> None:
        if self.is_attached and self._bindings_ready:
            self.call_after_refresh(self.recompose)


def _width(key: FooterKey) -> int:
    return cell_len(f" {key.key_display} {key.description} ")
