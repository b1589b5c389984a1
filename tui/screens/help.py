"""The keys of the screen behind it: `?`."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from rich.segment import Segment
from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Static

from nsml.common.text import pad, visible, width
from tui import appearance
from tui.hints import is_moving, key_of
from tui.screens.modal import Modal
from tui.widgets.text_view import TextView

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from textual.app import ComposeResult
    from textual.binding import ActiveBinding, BindingType

HERE: Final = "Here"
EVERYWHERE: Final = "Everywhere"
COMMANDS: Final = "Commands without a key"
_WITHOUT_KEY: Final = (
    ("requeue SESSION", "Save, queue again, resume"),
    ("tensorboard SESSION", "Its metrics in TensorBoard"),
    ("model pull SESSION NAME", "Download a checkpoint"),
    ("export SESSION -o FILE", "Its metrics in a file"),
)
"""Commands that users look for a key for."""
MOVING: Final = "Moving and selecting"
_INDENT: Final = 2
_GAP: Final = 3
MOST_COLUMNS: Final = 3
"""More are too far apart to read."""
_AROUND: Final = 5
"""Columns that the frame and the bar take."""
_ABOVE_AND_BELOW: Final = 3
"""Lines of the frame and of the hint."""


class KeyEntry(NamedTuple):
    """Keys and their action."""

    group: str
    keys: str
    what: str


def key_entries(
    app: App[Any], active: Iterable[ActiveBinding], *, without: Collection[str] = ()
) -> list[KeyEntry]:
    """List the active keys: those of the screen and the focused widget first, those that move last.

    `without`: hidden actions.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    for node, binding, _, _ in active:
        if binding.system or binding.action in without:
            continue
        everywhere = isinstance(node, App)
        group = MOVING if is_moving(binding) else EVERYWHERE if everywhere else HERE
        keys = found.setdefault((group, binding.action, binding.description), [])
        key = visible(app.get_key_display(binding))
        keys += [key] if key not in keys else []
    order = [HERE, EVERYWHERE, MOVING]
    return sorted(
        (KeyEntry(group, " ".join(keys), what) for (group, _, what), keys in found.items()),
        key=lambda one: order.index(one.group),
    )


class Layout(NamedTuple):
    """Lines of columns; in each column keys take `key` cells, and columns start `step` cells apart."""

    lines: Sequence[str]
    key: int
    step: int


def command_lines(key: str) -> list[str]:
    """List commands without a key, as typed; `key` opens the command line."""
    cells = max(len(command) for command, _ in _WITHOUT_KEY)
    lines = [f"{'':{_INDENT}}{key}{command:{cells}}  {what}" for command, what in _WITHOUT_KEY]
    return ["", COMMANDS, *lines]


def laid_out(entries: Sequence[KeyEntry], room: int) -> Layout:
    """Lay out each group below its title, in as many columns as fit, to be read downwards."""
    key = max((width(one.keys) for one in entries), default=0)
    step = key + 1 + max((width(one.what) for one in entries), default=0) + _GAP
    count = min(max((room - _INDENT + _GAP) // step, 1), MOST_COLUMNS)
    lines: list[str] = []
    for group in dict.fromkeys(one.group for one in entries):
        cells = [
            pad(pad(one.keys, key) + " " + one.what, step) for one in entries if one.group == group
        ]
        rows = -(-len(cells) // count)
        columns = [cells[at : at + rows] for at in range(0, len(cells), rows)]
        lines += [
            *([""] if lines else []),
            group,
            *(
                (" " * _INDENT + "".join(row)).rstrip()
                for row in zip_longest(*columns, fillvalue="")
            ),
        ]
    return Layout(lines, key, step)


class _Lines(TextView):
    """The lines, with highlighted keys."""

    def __init__(self) -> None:
        super().__init__(has_titles=True)
        self._key, self._step = 0, 1
        self._commands: Sequence[str] = ()

    def lay_out(self, layout: Layout, commands: Sequence[str]) -> None:
        """Show these, with the commands before the keys that move."""
        self._key, self._step, self._commands = layout.key, layout.step, commands
        lines = list(layout.lines)
        at = lines.index(MOVING) - 1 if MOVING in lines else len(lines)
        self.show([*lines[:at], *commands, *lines[at:]])

    def _pieces(self, line: str) -> list[Segment]:
        if not line.startswith(" ") or line in self._commands:
            return super()._pieces(line)
        style, pieces = self.rich_style, [Segment(line[:_INDENT], self.rich_style)]
        for at in range(_INDENT, len(line), self._step):
            end = at + self._key
            pieces.append(
                Segment(line[at:end], style + appearance.style(self.app, appearance.LINES[0]))
            )
            pieces.append(Segment(line[end : at + self._step], style))
        return pieces


class Help(Modal[None]):
    """Lists keys.

    Args:
        entries: the keys.
        commands: lines below them.
    """

    DEFAULT_CSS: ClassVar[str] = """
    Help {
        align: center middle;
        & > Vertical { border: round $accent; padding: 0 1; }
        & .keys { color: $text-muted; height: 1; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark", "leave", "Close", id="help.leave"),
    ]

    def __init__(self, entries: Sequence[KeyEntry], commands: Sequence[str] = ()) -> None:
        super().__init__()
        self._entries = entries
        self._commands = commands

    def compose(self) -> ComposeResult:
        """The keys, and how to close it."""
        with Vertical():
            yield _Lines()
            down, up, leave = (
                key_of(self.app, key) for key in ("text.down", "text.up", "help.leave")
            )
            yield Static(Text(f"{up} {down} scroll · {leave} closes"), classes="keys")

    def on_mount(self) -> None:
        """Focus the lines."""
        self.query_one(_Lines).focus()
        self._fit()

    def on_resize(self) -> None:
        """Fit the columns."""
        self._fit()

    def _fit(self) -> None:
        size = self.app.size
        layout = laid_out(self._entries, size.width - _AROUND)
        lines = [*layout.lines, *self._commands]
        widest = max(map(width, lines), default=0)
        box = self.query_one(Vertical)
        box.styles.width = min(widest + _AROUND, size.width)
        box.styles.height = min(len(lines) + _ABOVE_AND_BELOW, size.height)
        self.query_one(_Lines).lay_out(layout, self._commands)

    def action_leave(self) -> None:
        """Close it."""
        self.leave(None)
