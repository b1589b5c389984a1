"""The standings of a competition as they change, and the team under the cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Input, Static

from nsml.common.shell import shell_line
from nsml.common.text import visible
from nsml.view.competitions import full_name
from tui.competitions import (
    announcement_text,
    next_shown,
    no_standings,
    phase_named,
    standing_lines,
    standings_columns,
    state_text,
    with_cut,
)
from tui.model import StandingsQuery
from tui.screens.listing import Listing
from tui.sources import State, Topic
from tui.widgets.filter_line import FilterLine
from tui.widgets.static import set_text
from tui.widgets.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from nsml.v1.competitions_pb2 import Competition, Phase, Standing
    from nsml.view.tables import Column
    from tui.feed import Feed
    from tui.model import StandingsReceived


class StandingsScreen(Listing["Standing"]):
    """The standings of a phase, live."""

    topics = (Topic.STANDINGS,)
    DEFAULT_CSS: ClassVar[str] = """
    StandingsScreen {
        #card { height: auto; max-height: 50%; }
        &.-wide #card { height: 1fr; max-height: 100%; }
        #announced { height: 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (150, "-wide")]  # noqa: RUF012 - as Textual declares it
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", id="standings.back"),
        Binding("p", "phase", "Next phase", id="standings.phase"),
    ]

    def __init__(self, competition: Competition) -> None:
        super().__init__()
        self._competition = competition
        self._asked = ""

    def body(self) -> ComposeResult:
        """The list, the newest announcement, and the details of a team."""
        clock = self.dashboard.clock.time
        yield Static(id="counts")
        yield Static(id="announced")
        with VerticalScroll(id="listed", can_focus=False):
            yield Table(self.columns(), key=self.key, clock=clock, id="list")
            with VerticalScroll(id="card", can_focus=True):
                yield Static(id="card-text")
        yield FilterLine(placeholder=self.asks_for, id="words", compact=True)

    @property
    def _query(self) -> StandingsQuery:
        return StandingsQuery(full_name(self._competition), self._asked)

    @property
    def _received(self) -> StandingsReceived | None:
        received = self.model.standings
        return received if received is not None and received.key == self._query.key else None

    @property
    def _rows(self) -> Sequence[Standing]:
        received = self._received
        return received.answer.standings if received is not None else ()

    @property
    def phase(self) -> str:
        """The shown phase."""
        received = self._received
        return received.answer.phase if received is not None else self._asked

    @property
    def _phase(self) -> Phase | None:
        return phase_named(self._competition, self.phase)

    def columns(self) -> Sequence[Column[Standing]]:
        """Those of `nsml competition standings`, with new changes of ranks."""
        return standings_columns(
            self._phase,
            lambda one: self.model.moves.get(one.team),
            self.dashboard.clock.time,
            self._rows,
        )

    def key(self, item: Standing) -> str:
        """The team, which a baseline may be called like."""
        return f"{item.team} {item.is_baseline}"

    def items(self) -> Sequence[Standing]:
        """All teams, with the cut."""
        return with_cut(self._rows, self._phase)

    def texts(self, item: Standing) -> Sequence[str]:
        """Team and members."""
        return item.team, *item.members

    def nothing(self) -> str:
        """Why there is nothing, and what makes an entry."""
        now = self.dashboard.clock.time()
        return self.none(Topic.STANDINGS, no_standings(self._competition, now))

    def counts(self, shown: int, known: int) -> str:
        """The phase, and the user's place."""
        received, now = self._received, self.dashboard.clock.time()
        answer = received.answer if received is not None else None
        parts = [state_text(self._competition, answer, self.phase, now)]
        parts += [f"{shown:,} of {known:,}"] if shown != known else []
        state = self.model.sources[Topic.STANDINGS].state(now)
        parts += [self.words(Topic.STANDINGS)] if state is State.LOADING else []
        return " · ".join(parts)

    def lines(self, item: Standing) -> Sequence[str]:
        """All of a team."""
        return standing_lines(item, self._phase, self.dashboard.clock.time(), self._rows)

    def command(self) -> tuple[str, str]:
        """The same standings."""
        words = ["nsml", "competition", "standings", full_name(self._competition)]
        words += ["--phase", self.phase] if self.phase else []
        return shell_line(words), "the words of the filter" if self._words.text else ""

    # Drawing

    def draw(self) -> None:
        """Receive the standings, and show them."""
        query = self._query

        async def receive(feed: Feed) -> None:
            await feed.standings(query)

        self.dashboard.inspect((Topic.STANDINGS, query.key, receive))
        received = self._received
        if received is not None:
            self._competition = received.answer.competition
            self.table.show(self.table.items, columns=self.columns())
        said = received.announcements if received is not None else ()
        text = announcement_text(said, self.dashboard.clock.time())
        announced = self.query_one("#announced", Static)
        announced.display = bool(text)
        set_text(announced, Text(f" {visible(text)}" if text else ""))
        super().draw()

    # Key actions

    def action_back(self) -> None:
        """Show all again; else leave."""
        if self._words.text or self.query_one("#words", Input).display:
            super().action_back()
        else:
            self.app.pop_screen()

    def action_phase(self) -> None:
        """Show the standings of the next phase, round and round."""
        after = next_shown(self._competition, self.phase)
        if after in {"", self.phase}:
            self.dashboard.say("there is no other phase")
            return
        self._asked = after
        self.redraw()
