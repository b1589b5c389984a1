"""Stories shown instead of a platform: a recording, or the demo; and how they are played.

A story can be shown at any of its times. The player's clock is the shown time: it runs, faster, slower or
not at all, and jumps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from nsml.common.time_zone import local, suffix
from nsml.common.units import duration_text
from nsml.v1 import sessions_pb2 as pb
from tui.sources import OF_ONE, State, Topic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsml.client.series import ChartQuery
    from nsml.common.clock import Clock
    from tui.model import Event, Model

FASTEST: Final = 64
STEPS_A_SECOND: Final = 8
"""How often the shown time advances."""


class Story(Protocol):
    """Events of a platform, real or made up, with times in Unix seconds.

    Attributes:
        platform: its name for users.
        user: the user; "" if unknown.
        begins: its first time.
        opens: the time at which it starts to be shown.
        ends: its last.
        is_made_up: whether it never happened.
    """

    platform: str
    user: str
    begins: float
    opens: float
    ends: float
    is_made_up: bool

    def received(self, after: float | None, at: float) -> Iterable[tuple[float, Event]]:
        """Yield events after a time and up to another, with their times; None: those that make up the state at `at`."""
        ...

    def received_of(
        self,
        topic: Topic,
        names: tuple[str, ...],
        query: ChartQuery,
        after: float | None,
        at: float,
        *,
        what: str = "",
    ) -> Iterable[tuple[float, Event]]:
        """Yield events of one topic in detail.

        Metrics and code are of sessions, log and explanation of one, by id; files are of a dataset, by digest;
        usage is of a project. `what` is as in `Detail`.
        """
        ...


class Player:
    """Plays a story; the clock of the shown time.

    Args:
        story: the story to play.
        clock: drives the playback.
    """

    def __init__(self, story: Story, clock: Clock) -> None:
        self.story = story
        self.is_paused = False
        self.speed = 1
        self._clock = clock
        self._turned_at = clock.monotonic()
        self._at = story.opens
        self._known: float | None = None
        self._sent: dict[Topic, tuple[object, ...]] = {}

    def time(self) -> float:
        """Return the shown time, Unix seconds: that of the last step."""
        return self._at

    def monotonic(self) -> float:
        """By the other clock."""
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """By the other clock."""
        await self._clock.sleep(seconds)

    @property
    def is_over(self) -> bool:
        """Whether its end is shown."""
        return self._at >= self.story.ends

    def pause(self) -> None:
        """Pause or resume; at the end: restart."""
        if self.is_over:
            self.jump(self.story.begins - self._at)
            self.is_paused = False
        else:
            self.is_paused = not self.is_paused

    def pace(self, by: int) -> None:
        """Double (1) or halve (-1) the speed."""
        self.speed = min(max(self.speed * 2 if by > 0 else self.speed // 2, 1), FASTEST)

    def jump(self, seconds: float) -> bool:
        """Jump forward or back; False if the story is too short."""
        wanted = self._at + seconds
        self._at = min(max(wanted, self.story.begins), self.story.ends)
        if seconds < 0:
            self.again()
        return self._at == wanted

    def again(self) -> None:
        """Rebuild the model in the next step."""
        self._known = None

    def step(self, model: Model) -> Model:
        """Fold events since the last step; after `again`, into a new model."""
        turned_at = self._clock.monotonic()
        if not self.is_paused:
            went = (turned_at - self._turned_at) * self.speed
            self._at = min(self._at + went, self.story.ends)
        self._turned_at = turned_at
        if self._known is None:
            model = model.anew()
            self._sent = {}
        for when, event in self.story.received(self._known, self._at):
            model.fold(event, when)
        self._look_closely(model)
        self._known = self._at
        return model

    def _look_closely(self, model: Model) -> None:
        shown = model.shown
        rows = [row for row in map(model.row, shown.session_ids) if row is not None]
        told = self._sent
        # The subject of each topic: if it changes, its events start over.
        self._sent = {Topic.SERIES: (shown.session_ids, shown.chart_query)} if rows else {}
        if shown.pair is not None:
            self._sent[Topic.CODE] = shown.pair
        if rows and len(shown.session_ids) == 1:
            self._sent[Topic.LOG] = shown.session_ids
            if rows[0].session.state == pb.SESSION_STATE_QUEUED:
                self._sent[Topic.EXPLANATION] = shown.session_ids
            for detail in shown.details:
                self._sent[detail.topic] = (*shown.session_ids, detail.what)
        whats = {detail.topic: detail.what for detail in shown.details}
        self._sent |= {topic: (name,) for topic, name in model.inspected.items() if name}
        if shown.groups is None:
            told.pop(Topic.SERIES, None)  # the query changed, and changed back
        for topic, what in self._sent.items():
            # Left and shown again between two steps, its data is dropped, though it is the same.
            is_known = model.sources[topic].state(self._at) is not State.LOADING
            after = self._known if is_known and told.get(topic) == what else None
            if after == self._at:
                continue
            names = (model.inspected[topic],) if topic in OF_ONE else shown.session_ids
            found = self.story.received_of(
                topic, names, shown.chart_query, after, self._at, what=whats.get(topic, "")
            )
            for when, event in found:
                model.fold(event, when)

    @property
    def kind(self) -> str:
        """Demo or replay."""
        return "demo" if self.story.is_made_up else "replay"

    def _state(self) -> str:
        if self.is_over:
            return "over"
        if self.is_paused:
            return "paused at its beginning" if self._at <= self.story.begins else "paused"
        return f"{self.speed}x"

    def words(self) -> str:
        """Describe it for the first line: kind, time, speed."""
        sign = "■" if self.is_over else "‖" if self.is_paused else "▶"
        when, zone = local(self._at), suffix(self._at)
        state = self._state()
        if self.story.is_made_up:
            # A demo at normal speed needs no time.
            at = "" if state == "1x" else f"{when:%H:%M:%S}{zone} · "
            return f"{sign} demo, made up · {at}{state}"
        done, whole = self._at - self.story.begins, self.story.ends - self.story.begins
        place = f"{duration_text(done)} of {duration_text(whole)}"
        return f"{sign} replay of {when:%Y-%m-%d %H:%M:%S}{zone} · {place} · {state}"
