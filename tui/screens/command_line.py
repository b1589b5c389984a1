"""The input line for commands: `:`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Input, Static

from nsml.common.text import visible
from tui.screens.modal import Modal
from tui.widgets.field import Field

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType


class Recalled:
    """History of typed lines, the last one last, browsed from the line that is being typed."""

    def __init__(self, typed: Sequence[str]) -> None:
        self._typed = typed
        self._place = len(typed)
        self._own = ""

    def turned(self, by: int, shown: str) -> str:
        """Return the previous line, or the next."""
        if self._place == len(self._typed):
            self._own = shown
        self._place = min(max(self._place + by, 0), len(self._typed))
        is_own = self._place == len(self._typed)
        return self._own if is_own else self._typed[self._place]


class CommandLine(Modal[str | None]):
    """An input line; None: cancelled.

    Args:
        typed: earlier lines, the last one last.
        offer: completes a line.
        begun: the initial text.
    """

    DEFAULT_CSS: ClassVar[str] = """
    CommandLine {
        align: left bottom;
        background: transparent;
        & > Vertical { height: auto; background: $surface; }
        & .offered { height: auto; max-height: 3; color: $text-muted; padding: 0 1; }
        & .line { layout: horizontal; height: 1; }
        & .colon { width: 2; text-style: bold; }
        & Input { width: 1fr; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", "Complete", priority=True, id="command.complete"),
        Binding("up", "recall(-1)", "Before", priority=True, id="command.before"),
        Binding("down", "recall(1)", "After", priority=True, id="command.after"),
        Binding("escape", "leave", "Leave", priority=True, id="command.leave"),
    ]

    def __init__(
        self, typed: Sequence[str], offer: Callable[[str], Sequence[str]], begun: str = ""
    ) -> None:
        super().__init__()
        self._begun = begun
        self._typed = Recalled(typed)
        self._offer = offer
        self._offered: Sequence[str] = ()
        self._turn = -1
        self._completed = ""

    def compose(self) -> ComposeResult:
        """Completions, and the line."""
        with Vertical():
            yield Static(classes="offered")
            with Vertical(classes="line"):
                yield Static(Text(" :"), classes="colon")
                yield Field(compact=True)

    def on_mount(self) -> None:
        """Focus the line."""
        self.query_one(Input).focus()
        self._put(self._begun)
        self._show(self._begun)

    def _show(self, text: str) -> None:
        self._offered, self._turn = self._offer(text), -1
        self._say()

    def _say(self) -> None:
        words = Text("  ").join(
            Text(
                visible(one.rpartition(" ")[2] or one),
                "reverse" if place == self._turn else "",
            )
            for place, one in enumerate(self._offered)
        )
        words.truncate(max(self.size.width - 3, 1), overflow="ellipsis")
        self.query_one(".offered", Static).update(words)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Update the completions."""
        if event.value != self._completed:
            self._completed = ""
            self._show(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take it."""
        self.leave(event.value)

    def _put(self, text: str) -> None:
        field = self.query_one(Input)
        field.value = text
        field.cursor_position = len(text)

    def action_complete(self) -> None:
        """Insert the first completion, then the next."""
        if not self._offered:
            return
        self._turn = (self._turn + 1) % len(self._offered)
        self._completed = self._offered[self._turn]
        is_only = len(self._offered) == 1
        if is_only:
            self._completed += " "
        self._put(self._completed)
        if is_only:
            self._show(self._completed)
        else:
            self._say()

    def action_recall(self, by: int) -> None:
        """Recall an earlier or later line."""
        self._put(self._typed.turned(by, self.query_one(Input).value))

    def action_leave(self) -> None:
        """Cancel."""
        self.leave(None)
