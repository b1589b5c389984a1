"""A dialog to choose one or several items of a list by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from rich.text import Text
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from nsml.common.text import visible
from tui.fuzzy import fuzzy
from tui.hints import key_of
from tui.screens.modal import Modal
from tui.widgets.field import Field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

MOST_SHOWN: Final = 500
"""Of the matches: more letters find the rest."""


class Choice(NamedTuple):
    """An item: `key` is returned, `title` is shown and searched."""

    key: str
    title: str


class _Seeking(Field):
    """A search field that leaves space to a list with a binding for it."""

    def check_consume_key(self, key: str, character: str | None) -> bool:
        return key != "space" and super().check_consume_key(key, character)


class Picker(Modal[tuple[str, ...] | None]):
    """Chooses by name: letters search, arrows move, `enter` takes; None: cancelled.

    Args:
        question: what to choose.
        choices: the items; `several`: space selects or deselects, and `enter` returns the selection, in order.
        chosen: the initial selection.
    """

    DEFAULT_CSS: ClassVar[str] = """
    Picker {
        align: center middle;
        & > Vertical { width: 80%; max-width: 80; height: 80%; max-height: 30; border: round $accent; padding: 0 1; }
        & Input { margin: 0; }
        & OptionList { height: 1fr; border: none; }
        & .keys { color: $text-muted; height: 1; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move(1)", "Down", show=False, priority=True, id="picker.down"),
        Binding("up", "move(-1)", "Up", show=False, priority=True, id="picker.up"),
        Binding(
            "space", "include", "Take in or out", show=False, priority=True, id="picker.toggle"
        ),
        Binding("enter", "take", "Take", show=False, priority=True, id="picker.take"),
        Binding("escape", "leave", "Leave", show=False, priority=True, id="picker.leave"),
    ]

    def __init__(
        self,
        question: str,
        choices: Sequence[Choice],
        *,
        chosen: Sequence[str] = (),
        several: bool = False,
    ) -> None:
        super().__init__()
        self._question = question
        self._choices = choices
        self._several = several
        known = {one.key for one in choices}
        self._chosen = [key for key in chosen if key in known]
        self._found: Sequence[Choice] = ()
        self._sought = ""

    def compose(self) -> ComposeResult:
        """The question, a search field, and the list."""
        with Vertical():
            yield Static(Text(visible(self._question)))
            yield _Seeking(placeholder="letters of its name", compact=True)
            yield OptionList(markup=False)
            toggle, take, leave = (
                key_of(self.app, f"picker.{name}") for name in ("toggle", "take", "leave")
            )
            keys = f"{toggle} takes in or out · {take} done" if self._several else f"{take} takes"
            yield Static(Text(f"{keys} · {leave} leaves"), classes="keys")

    def on_mount(self) -> None:
        """Show all of them."""
        self.query_one(Input).focus()
        self._list("")
        places = [n for n, one in enumerate(self._found) if one.key in self._chosen]
        if places:
            self.query_one(OptionList).highlighted = places[0]

    def _list(self, text: str) -> None:
        self._sought = text
        # Selected items are on top: their order is that of the columns.
        places = {key: place for place, key in enumerate(self._chosen)} if self._several else {}
        every = sorted(self._choices, key=lambda one: places.get(one.key, len(places)))
        self._found = fuzzy(text, every, of=lambda one: one.title)[:MOST_SHOWN]
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(Option(self._prompt(one)) for one in self._found)
        if not self._found:
            options.add_option(Option(Text(self._nothing(text)), disabled=True))
        options.highlighted = 0 if self._found else None

    def _nothing(self, text: str) -> str:
        """The text of an empty list."""
        if not self._choices:
            return "nothing to choose"
        return f"none of {len(self._choices):,} is called so: {visible(text)}"

    def _prompt(self, one: Choice) -> Text:
        mark = "✓ " if one.key in self._chosen else "  "
        return Text(mark + visible(one.title), no_wrap=True, overflow="ellipsis")

    @property
    def _current(self) -> Choice | None:
        if (text := self.query_one(Input).value) != self._sought:
            self._list(text)  # a key came before the event of a change
        place = self.query_one(OptionList).highlighted
        return self._found[place] if place is not None and place < len(self._found) else None

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search while typing."""
        if event.value != self._sought:
            self._list(event.value)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Choose by a click."""
        event.stop()
        if self._several:
            self.action_include()
            self.query_one(Input).focus()
        else:
            self.action_take()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Space is a letter if only one is chosen."""
        if action == "include" and not self._several:
            return False
        return super().check_action(action, parameters)

    def action_move(self, by: int) -> None:
        """Move the highlight."""
        options = self.query_one(OptionList)
        if by > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    def action_include(self) -> None:
        """Select or deselect it."""
        current = self._current
        if current is None:
            return
        if current.key in self._chosen:
            self._chosen.remove(current.key)
        else:
            self._chosen.append(current.key)
        options = self.query_one(OptionList)
        if options.highlighted is not None:
            options.replace_option_prompt_at_index(options.highlighted, self._prompt(current))

    def action_take(self) -> None:
        """Return the selection."""
        if self._several:
            self.leave(tuple(self._chosen))
        elif (current := self._current) is not None:
            self.leave((current.key,))

    def action_leave(self) -> None:
        """Cancel."""
        self.leave(None)
