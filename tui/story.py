"""What is shown without a platform: a recording, or the demo; and how it is played.

A story can be looked at at any moment of it. The player has the time of what is shown: it goes on, faster, slower or
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
"""How often what is shown goes on."""


class Story(Protocol):
    """What was, or might be, received of a platform, with its moments in Unix seconds.

    Attributes:
        platform: how users call it.
        user: who looks; "" where nobody knows.
        begins: its first moment.
        opens: the moment at which it begins to be shown.
        ends: its last.
        is_made_up: whether it never was.
    """

    platform: str
    user: str
    begins: float
    opens: float
    ends: float
    is_made_up: bool

    def received(self, after: float | None, at: float) -> Iterable[tuple[float, Event]]:
        """What is received after a moment and up to another, with each its moment; None: what makes up that one."""
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
        """The same of what is looked at closely.

        Metrics and code are of sessions, the log and why it waits of one, named by their ids; files are of a
        dataset, by its digest, and who holds what of a project. `what` is as in `Detail`.
        """
        ...


class Player:
    """Plays a story; the clock of what is shown.

    Args:
        story: what is played.
        clock: by which it goes on.
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
        """The moment that is shown, Unix seconds: that of the last step."""
        return self._at

    def monotonic(self) -> float:
        """As of the other clock."""
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """As of the other clock."""
        await self._clock.sleep(seconds)

    @property
    def is_over(self) -> bool:
        """Whether its end is shown."""
        return self._at >= self.story.ends

    def pause(self) -> None:
        """Stand still, or go on; at the end: begin anew."""
        if self.is_over:
            self.jump(self.story.begins - self._at)
            self.is_paused = False
        else:
            self.is_paused = not self.is_paused

    def pace(self, by: int) -> None:
        """Twice as fast (1), or half as fast (-1)."""
        self.speed = min(max(self.speed * 2 if by > 0 else self.speed // 2, 1), FASTEST)

    def jump(self, seconds: float) -> bool:
        """Go so far forward, or back; whether there was so much of it."""
        wanted = self._at + seconds
        self._at = min(max(wanted, self.story.begins), self.story.ends)
        if seconds < 0:
            self.again()
        return self._at == wanted

    def again(self) -> None:
        """Have the next step fold everything anew."""
        self._known = None

    def step(self, model: Model) -> Model:
        """Take in what is received since the last step; where that is not after what is known, into another model."""
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
        # What each topic is of: when that is another, it is told from its beginning.
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
            told.pop(Topic.SERIES, None)  # the query changed, and is now the same again
        for topic, what in self._sent.items():
            # Left and looked at again between two steps, it is forgotten, though it is the same.
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
        """What it is."""
        return "demo" if self.story.is_made_up else "replay"

    def _state(self) -> str:
        if self.is_over:
            return "over"
        if self.is_paused:
            return "paused at its beginning" if self._at <= self.story.begins else "paused"
        return f"{self.speed}x"

    def words(self) -> str:
        """What the first line says of it: what it is, of when, how fast."""
        sign = "■" if self.is_over else "‖" if self.is_paused else "▶"
        when, zone = local(self._at), suffix(self._at)
        state = self._state()
        if self.story.is_made_up:
            # Of one that goes on as time does, nobody asks what time it is.
            at = "" if state == "1x" else f"{when:%H:%M:%S}{zone} · "
            return f"{sign} demo, made up · {at}{state}"
        done, whole = self._at - self.story.begins, self.story.ends - self.story.begins
        place = f"{duration_text(done)} of {duration_text(whole)}"
        return f"{sign} replay of {when:%Y-%m-%d %H:%M:%S}{zone} · {place} · {state}"
