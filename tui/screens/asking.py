"""Dialogs: confirmation, and input of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Button, Input, Static

from nsml.common.text import visible
from tui.screens.modal import Modal
from tui.widgets.field import Field
from tui.widgets.static import set_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

_CSS = """
    align: center middle;
    & > Vertical { width: 80%; max-width: 100; height: auto; border: round $accent; padding: 1 2; }
    & .command { color: $text-muted; margin: 1 0; height: auto; }
    & Button { margin-right: 2; }
"""


class Confirm(Modal[bool]):
    """Asks for confirmation; `command` is the equivalent command line.

    Args:
        question: one sentence.
        command: the command line.
        targets: lines that list the targets.
        typed: the number to type as an answer; 0: a key is enough.
    """

    DEFAULT_CSS: ClassVar[str] = f"Confirm {{ {_CSS} }}"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes", id="confirm.yes"),
        Binding("n,escape", "answer(False)", "No", id="confirm.no"),
    ]

    def __init__(
        self, question: str, command: str, targets: Sequence[str] = (), typed: int = 0
    ) -> None:
        super().__init__()
        self._question = question
        self._command = command
        self._targets = targets
        self._typed = typed

    def ask(self, question: str) -> None:
        """Replace the question, when more is known."""
        self._question = question
        for shown in self.query("#question").results(Static):
            set_text(shown, Text(visible(question)))

    def compose(self) -> ComposeResult:
        """The question."""
        with Vertical():
            yield Static(Text(visible(self._question)), id="question")
            if self._targets:
                yield Static(Text("\n".join(map(visible, self._targets))))
            yield Static(Text(f"$ {visible(self._command)}"), classes="command")
            if self._typed:
                yield Static(f"Type {self._typed} to confirm:")
                yield Field()
            else:
                yield Button("No (n)", id="no", variant="primary")
                yield Button("Yes (y)", id="yes", variant="error")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Compare the number: any other text is a no."""
        self.leave(event.value.strip() == str(self._typed))

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Take the answer."""
        self.leave(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        """Take the answer of a key, which cannot confirm if a number is needed."""
        self.leave(answer and not self._typed)


class Ask(Modal[str | None]):
    """Asks for a line of text, with control characters made visible; None: cancelled."""

    DEFAULT_CSS: ClassVar[str] = f"Ask {{ {_CSS} }}"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Leave", id="ask.leave"),
    ]

    def __init__(self, question: str, text: str = "") -> None:
        super().__init__()
        self._question = question
        self._text = text

    def compose(self) -> ComposeResult:
        """The question."""
        with Vertical():
            yield Static(Text(visible(self._question)))
            yield Field(visible(self._text))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the text."""
        self.leave(event.value)

    def action_leave(self) -> None:
        """Cancel."""
        self.leave(None)
