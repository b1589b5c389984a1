"""The form of a new run: the line of `nsml run`, the folder, and the flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Input, Static

from nsml.common.text import visible
from tui import running
from tui.background import in_background
from tui.commands import CommandError, rerun_of, run_of
from tui.hints import key_of
from tui.screens.command_line import Recalled
from tui.screens.frame import LinesUnderMouse
from tui.screens.modal import Modal
from tui.screens.output import OutputView
from tui.widgets.field import Field
from tui.widgets.static import set_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType


class Submit(LinesUnderMouse, Modal[str | None]):
    """A valid line that submits; None: cancelled.

    Args:
        line: the initial text.
        folder: describes the code to send.
        nsml: the program, which prints its flags itself.
        environ: its environment.
        typed: lines submitted before, the last one last.
    """

    DEFAULT_CSS: ClassVar[str] = """
    Submit {
        align: center middle;
        & > Vertical { width: 90%; max-width: 110; height: 90%; border: round $accent; padding: 0 1; }
        & .title { height: 1; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }
        & .folder { height: auto; max-height: 2; color: $text-muted; }
        & Input { margin: 1 0; }
        & .error { height: auto; max-height: 3; color: $text-error; display: none; }
        & .keys { height: auto; color: $text-muted; }
        & OutputView { height: 1fr; border-top: solid $rule; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Leave", priority=True, id="submit.leave"),
        Binding("up", "recall(-1)", "Before", show=False, id="submit.before"),
        Binding("down", "recall(1)", "After", show=False, id="submit.after"),
    ]

    def __init__(
        self,
        line: str,
        *,
        folder: str,
        nsml: str,
        environ: Mapping[str, str],
        typed: Sequence[str],
    ) -> None:
        super().__init__()
        self._line = line
        self._folder = folder
        self._nsml = nsml
        self._environ = environ
        self._typed = Recalled(typed)
        self._help = ""

    def compose(self) -> ComposeResult:
        """The line, and its flags below."""
        with Vertical():
            yield Static("New run", classes="title")
            yield Static(self._code_text(self._line), classes="folder")
            yield Field(
                self._line, placeholder="nsml run -e main.py", compact=True, select_on_focus=False
            )
            yield Static(classes="error")
            yield Static(
                f"enter submits · {key_of(self.app, 'submit.before')} history"
                f" · ctrl+u clears · tab: options · {key_of(self.app, 'submit.leave')} cancels",
                classes="keys",
            )
            yield OutputView()

    def on_mount(self) -> None:
        """Focus the line; load the flags."""
        self.query_one(Input).focus()
        self.call_after_refresh(self._ask)

    def _ask(self) -> None:
        in_background(self, "help", self._tell)

    async def _tell(self) -> None:
        words = [self._nsml, "run", "--help"]
        width = max(self.query_one(OutputView).size.width, 40)
        try:
            await running.run(words, environ=self._environ, width=width, take=self._take)
        except OSError as error:
            self._take(f"nsml run --help was not started: {error.strerror}\n", "")

    def _take(self, text: str, _rest: str) -> None:
        self._help += text
        for view in self.query(OutputView):  # a closing form has none
            view.show(self._help.rstrip("\n").split("\n"))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Hide the error, and describe the line's code."""
        self.query_one(".error", Static).display = False
        set_text(self.query_one(".folder", Static), self._code_text(event.value))

    def _code_text(self, line: str) -> Text:
        again = rerun_of(line)
        text = f"runs the code of {again}; this folder is not sent" if again else self._folder
        return Text(visible(text))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the line, if it is valid."""
        try:
            command = run_of(event.value)
        except CommandError as failed:
            error = self.query_one(".error", Static)
            error.display = True
            set_text(error, Text(visible(failed.message)))
            return
        self.workers.cancel_node(self)
        self.leave(command.text)

    def action_recall(self, by: int) -> None:
        """Recall an earlier or later line."""
        field = self.query_one(Input)
        field.value = self._typed.turned(by, field.value)
        field.cursor_position = len(field.value)

    def action_leave(self) -> None:
        """Cancel."""
        self.workers.cancel_node(self)
        self.leave(None)
