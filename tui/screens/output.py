"""Output of a command, to read and copy."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar, Final

from rich.segment import Segment
from rich.text import Text
from textual.binding import Binding
from textual.widgets import Static

from nsml.common.shell import posix_line
from nsml.common.text import visible
from nsml.common.units import duration_text
from tui import running
from tui.background import in_background
from tui.hints import key_of
from tui.screens.frame import LinesUnderMouse
from tui.screens.modal import Modal
from tui.widgets.diff_view import DiffView

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from nsml.common.clock import Clock

MOST_LINES: Final = 50_000
LONGEST_LINE: Final = 100_000
"""Characters: a longer line is split."""


def end_text(code: int, seconds: float) -> str:
    """Describe how a command ended, with its duration from 1 s on."""
    words = f"exit code {code}" if code else "done"
    return f"{words} after {duration_text(seconds)}" if seconds >= 1 else words


class OutputView(DiffView):
    """Lines with colours; other control sequences have no effect."""

    def _pieces(self, line: str) -> list[Segment]:
        text = Text.from_ansi(line)
        return [
            Segment(one.text, self.rich_style + one.style if one.style else self.rich_style)
            for one in text.render(self.app.console)
            if one.text
        ]


class Output(LinesUnderMouse, Modal[int | None]):
    """A running command of `nsml`, and its output; leaving ends it. Returns its exit code; None: it had none.

    Args:
        command: as typed.
        words: the program and its arguments.
        environ: its environment.
        clock: measures its duration.
    """

    DEFAULT_CSS: ClassVar[str] = """
    Output {
        align: center middle;
        & > .title { height: 1; background: $panel; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }
        & > .state { height: 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
        & > OutputView { height: 1fr; background: $background; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "Back", id="output.leave"),
        Binding("Y", "copy", "Copy command", id="output.copy"),
    ]

    def __init__(
        self, command: str, words: Sequence[str], *, environ: Mapping[str, str], clock: Clock
    ) -> None:
        super().__init__()
        self._command = command
        self._words = words
        self._environ = environ
        self._clock = clock
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._code: int | None = None

    def compose(self) -> ComposeResult:
        """The command, its output, and its state."""
        yield Static(Text(f" $ {visible(self._command)}", no_wrap=True), classes="title")
        yield OutputView()
        yield Static(
            Text(f" running · {key_of(self.app, 'output.leave')} ends it"), classes="state"
        )

    def on_mount(self) -> None:
        """Run it."""
        self.query_one(OutputView).focus()
        in_background(self, "output", self._run)

    async def _run(self) -> None:
        begun = self._clock.monotonic()
        width = max(self.size.width - 2, 20)
        try:
            self._code = await running.run(
                self._words, environ=self._environ, width=width, take=self._take
            )
        except OSError as error:
            self._state(f"not started: {error.strerror}")
            return
        ended = end_text(self._code, self._clock.monotonic() - begun)
        copy, leave = key_of(self.app, "output.copy"), key_of(self.app, "output.leave")
        self._state(f"{ended} · {copy} copies the command · {leave} leads back")

    def _state(self, text: str) -> None:
        self.query_one(".state", Static).update(Text(f" {visible(text)}"))

    def _take(self, text: str, rest: str) -> None:
        if text:
            for line in text.removesuffix("\n").split("\n"):
                starts = range(0, max(len(line), 1), LONGEST_LINE)
                self._lines.extend(line[start : start + LONGEST_LINE] for start in starts)
        shown = [*self._lines, *rest.split("\n")] if rest else self._lines
        self.query_one(OutputView).show(shown)

    def action_leave(self) -> None:
        """Leave, and end a running command."""
        self.workers.cancel_node(self)
        self.leave(self._code)

    def action_copy(self) -> None:
        """Copy the command."""
        self.app.copy_to_clipboard(posix_line(self._command))
        self.app.notify(f"copied: {visible(self._command)}", markup=False)
