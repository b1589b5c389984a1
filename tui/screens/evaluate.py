"""A prompt for Python, evaluated by the running program of a session, as by `nsml exec`."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Input, Static

from nsml.client.errors import ClientError
from nsml.common.text import visible
from nsml.common.units import duration_text
from nsml.spec.evaluation import LONGEST_LIMIT_S, USUAL_LIMIT_S
from nsml.view.evaluation import AnswerKind, answer_lines, progress_text
from tui import appearance
from tui.background import in_background
from tui.hints import key_of
from tui.screens.command_line import Recalled
from tui.screens.modal import Modal
from tui.widgets.field import Field
from tui.widgets.text_view import TextView

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from nsml.v1.sessions_pb2 import Evaluated, EvaluateResponse

    Ask: TypeAlias = Callable[
        [str, float, Callable[[EvaluateResponse], None]], Awaitable[Evaluated]
    ]
    """Evaluates code in the program, within a limit in seconds; reports progress. Raises ClientError."""

MOST_LINES: Final = 5_000
LIMITS_S: Final = (USUAL_LIMIT_S, 15.0, 30.0, LONGEST_LIMIT_S)
_ASKED: Final = ">>> "
_EMPTY: Final = (
    "The program evaluates a line at its next report, step or save, and training waits for it."
    " Objects can be changed; names that a line assigns are kept for later lines."
)
_SEVERAL: Final = "the first line was taken · several: $ nsml exec SESSION - < FILE"


class Conversation:
    """Code sent to the program of one replica, and its answers.

    Args:
        of: names the replica.
        typed: the typed lines, of other replicas, too; the last one last.
    """

    def __init__(self, of: str, typed: deque[str]) -> None:
        self.of = of
        self.typed = typed
        self.limit_s = USUAL_LIMIT_S
        self.lines: deque[tuple[AnswerKind | None, str]] = deque(maxlen=MOST_LINES)
        """Lines of code have no kind."""

    def ask(self, code: str) -> None:
        """Record a typed line."""
        if code in self.typed:
            self.typed.remove(code)
        self.typed.append(code)
        self.lines.append((None, _ASKED + visible(code)))

    def turn_limit(self) -> None:
        """Switch to the next time limit."""
        self.limit_s = LIMITS_S[(LIMITS_S.index(self.limit_s) + 1) % len(LIMITS_S)]


class Answers(TextView):
    """Code and answers: long lines are wrapped, and the end is visible."""

    def __init__(self) -> None:
        super().__init__()
        self.is_wrapped = True
        self._kinds: list[AnswerKind | None] = []

    def tell(self, conversation: Conversation) -> None:
        """Show the conversation at its end."""
        self._kinds = [kind for kind, _ in conversation.lines]
        self.is_following = True
        self.show([text for _, text in conversation.lines], none=_EMPTY)

    def _pieces_of(self, place: int, line: str) -> list[Segment]:
        return [Segment(line, self.rich_style + self._style(self._kinds[place]))]

    def _style(self, kind: AnswerKind | None) -> Style:
        match kind:
            case AnswerKind.VALUE:
                return Style(bold=True)
            case AnswerKind.NOTE:
                return appearance.style(self.app, appearance.WAITS)
            case AnswerKind.ERROR:
                return appearance.style(self.app, appearance.BAD)
            case AnswerKind.OUTPUT:
                return Style()
            case None:
                return appearance.style(self.app, appearance.MOVES)


class CodeField(Field):
    """A line of code."""

    def _on_paste(self, event: events.Paste) -> None:
        # Textual, which is next, takes the first of several lines.
        if len(event.text.splitlines()) > 1:
            self.app.notify(_SEVERAL, markup=False)


class Evaluate(Modal[None]):
    """Evaluates lines of Python, one after another; a pending one is given up on leaving.

    Args:
        conversation: earlier code and answers of the replica.
        ask: evaluates code in its program.
    """

    shows_behind = True
    DEFAULT_CSS: ClassVar[str] = """
    Evaluate {
        align: left bottom;
        background: transparent;
        & > Vertical { height: 60%; min-height: 8; background: $surface; }
        & .title { height: 1; background: $panel; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }
        & Answers { height: 1fr; padding: 0 1; }
        & .line { layout: horizontal; height: 1; }
        & .lead { width: 5; text-style: bold; }
        & Input { width: 1fr; }
        & .state { height: 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Leave", priority=True, id="evaluate.leave"),
        Binding("ctrl+t", "limit", "Time limit", priority=True, id="evaluate.limit"),
        Binding("up", "recall(-1)", "Before", show=False, id="evaluate.before"),
        Binding("down", "recall(1)", "After", show=False, id="evaluate.after"),
    ]

    def __init__(self, conversation: Conversation, ask: Ask) -> None:
        super().__init__()
        self._conversation = conversation
        self._ask = ask
        self._recalled = Recalled(list(conversation.typed))
        self._waits_for = ""
        """State of the pending line; "": none."""

    def compose(self) -> ComposeResult:
        """Answers, and the line below."""
        with Vertical():
            yield Static(classes="title")
            yield Answers()
            with Vertical(classes="line"):
                yield Static(Text(f" {_ASKED}"), classes="lead")
                yield CodeField(compact=True)
            yield Static(classes="state")

    def on_mount(self) -> None:
        """Focus the line."""
        self.query_one(Input).focus()
        self.query_one(Answers).tell(self._conversation)
        self._say()

    def _say(self) -> None:
        limit = f"time limit {duration_text(self._conversation.limit_s)}"
        title = f" Python in the program of {visible(self._conversation.of)} · {limit}"
        self.query_one(".title", Static).update(Text(title))
        leave = key_of(self.app, "evaluate.leave")
        idle = (
            f"enter evaluates · {key_of(self.app, 'evaluate.before')} history"
            f" · {key_of(self.app, 'evaluate.limit')} time limit · tab: answers · {leave} leaves"
        )
        state = f"{self._waits_for} · {leave} gives up" if self._waits_for else idle
        self.query_one(".state", Static).update(Text(f" {state}"))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Evaluate it, unless another line is pending."""
        code = event.value.strip()
        if not code or self._waits_for:
            return
        event.input.value = ""
        self._conversation.ask(code)
        self._recalled = Recalled(list(self._conversation.typed))
        self._waits_for = "waiting for the node"
        self.query_one(Answers).tell(self._conversation)
        self._say()
        in_background(self, "evaluate", partial(self._evaluate, code))

    async def _evaluate(self, code: str) -> None:
        limit_s, lines = self._conversation.limit_s, self._conversation.lines
        try:
            found = await self._ask(code, limit_s, self._hear)
        except ClientError as error:
            lines.append(
                (AnswerKind.ERROR, visible(": ".join(filter(None, (error.message, error.why)))))
            )
            lines.extend((AnswerKind.NOTE, visible(line)) for line in error.advice.splitlines())
        else:
            lines.extend(answer_lines(found, limit_s))
        self._waits_for = ""
        self.query_one(Answers).tell(self._conversation)
        self._say()

    def _hear(self, response: EvaluateResponse) -> None:
        self._waits_for = progress_text(response)
        self._say()

    def action_limit(self) -> None:
        """Switch the time limit, from the next line on."""
        self._conversation.turn_limit()
        self._say()

    def action_recall(self, by: int) -> None:
        """Recall an earlier or later line."""
        field = self.query_one(Input)
        field.value = self._recalled.turned(by, field.value)
        field.cursor_position = len(field.value)

    def action_leave(self) -> None:
        """Leave, and give up a pending line."""
        if self._waits_for:
            self._conversation.lines.append(
                (AnswerKind.NOTE, "given up: it may be evaluated still")
            )
        self.workers.cancel_node(self)
        self.leave(None)
