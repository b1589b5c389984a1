"""A list with a filter by words, and details of the item under the cursor."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from rich.text import Text
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Input, Static

from nsml.common.text import folded, visible
from nsml.view.filter_words import Words
from tui.screens.frame import Frame
from tui.widgets.filter_line import FilterLine
from tui.widgets.static import set_text
from tui.widgets.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from nsml.view.tables import Column

T = TypeVar("T")


class Listing(Frame, Generic[T]):
    """The list, above or beside it the details of an item; `/` filters by words."""

    DEFAULT_CSS: ClassVar[str] = """
    Listing {
        #counts { height: 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
        #words { height: 1; display: none; }
        #listed { height: 1fr; }
        #card { height: 50%; border-top: solid $rule; padding: 0 1; }
        &.-wide #listed { layout: horizontal; }
        &.-wide #listed Table { width: 3fr; }
        &.-wide #card { height: 1fr; width: 2fr; border-top: none; border-left: solid $rule; }
    }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012 - as Textual declares it
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/", id="list.filter"),
        Binding("escape", "back", "Back", show=False, id="list.back"),
    ]
    shown_by: ClassVar[str] = ""
    """The equivalent command."""
    asks_for: ClassVar[str] = 'words, "in quotes", !not'

    def __init__(self) -> None:
        super().__init__()
        self._words = Words("")

    def body(self) -> ComposeResult:
        """The list, and the details of an item."""
        yield Static(id="counts")
        with VerticalScroll(id="listed", can_focus=False):
            yield Table(self.columns(), key=self.key, clock=self.dashboard.clock.time, id="list")
            with VerticalScroll(id="card", can_focus=True):
                yield Static(id="card-text")
        yield FilterLine(placeholder=self.asks_for, id="words", compact=True)

    @abstractmethod
    def columns(self) -> Sequence[Column[T]]:
        """Columns of the list."""

    @abstractmethod
    def key(self, item: T) -> str:
        """A permanent key of an item."""

    @abstractmethod
    def items(self) -> Sequence[T]:
        """All items."""

    @abstractmethod
    def texts(self, item: T) -> Sequence[str]:
        """Texts searched for words."""

    @abstractmethod
    def nothing(self) -> str:
        """The text of an empty list."""

    @abstractmethod
    def counts(self, shown: int, known: int) -> str:
        """The text above the list, by the numbers of shown and known items."""

    @abstractmethod
    def lines(self, item: T) -> Sequence[str]:
        """The details of an item."""

    def inspect(self, item: T) -> None:
        """Receive details of the item under the cursor."""

    @property
    def table(self) -> Table[T]:
        """The list."""
        return self.query_one("#list", Table)

    @property
    def current(self) -> T | None:
        """The item under the cursor."""
        return self.table.current

    def command(self) -> tuple[str, str]:
        """That of the list, which has no filter."""
        return self.shown_by, "the words of the filter" if self._words.text else ""

    def on_mount(self) -> None:
        """Focus the list."""
        super().on_mount()
        self.table.focus()

    def draw(self) -> None:
        """Show the list and the details."""
        self._list()
        self._card()

    def _list(self, *, is_other: bool = False) -> None:
        every = self.items()
        shown = [one for one in every if self._words.take(*self.texts(one))]
        table = self.table
        table.none = (
            f"no match: {self.key_of('list.back')} shows all again" if every else self.nothing()
        )
        table.show(shown, is_other=is_other)
        was_received = every or any(self.model.sources[topic].received_at for topic in self.topics)
        said = [self.counts(len(shown), len(every)) if was_received else self.name_of]
        said += [f"filter: {self._words.text}"] if self._words.text else []
        said += [f"$ {self.shown_by}"] if self.shown_by else []
        set_text(self.query_one("#counts", Static), Text(f" {visible(' · '.join(said))}"))

    def _card(self) -> None:
        item = self.current
        lines: Sequence[str] = ()
        if item is not None:
            self.inspect(item)
            lines = self.lines(item)
        self.query_one("#card").display = item is not None
        card = self.query_one("#card-text", Static)
        room = card.size.width
        whole = [part for line in lines for part in folded(visible(line), room)]
        set_text(card, Text("\n".join(whole)))

    # Key actions

    def on_table_moved(self) -> None:
        """Show its details."""
        self._card()

    def action_filter(self) -> None:
        """Ask for words."""
        field = self.query_one("#words", Input)
        field.display = True  # at once: the next keys go there
        self.set_focus(field)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        self._words = Words(event.value)
        self._list(is_other=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter."""
        event.input.display = False
        self.table.focus()

    def action_back(self) -> None:
        """Show all again."""
        field = self.query_one("#words", Input)
        field.display = False
        field.value = ""
        self.table.focus()
