"""Usage of a session's devices and processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding

from nsml.client.streams import ENDED_STATES
from nsml.common.text import visible
from nsml.v1 import sessions_pb2 as pb
from nsml.view.telemetry import session_lines
from tui.model import Detail, TelemetryReceived
from tui.screens.tabs.tab import SessionTab
from tui.sources import Topic
from tui.widgets.text_view import TextView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from nsml.v1.sessions_pb2 import Session
    from tui.screens.frame import Frame

SPANS: Final = ("10m", "1h", "")
"""Time spans shown in turn; the last is all since the first placement."""


class DevicesTab(SessionTab):
    """Load, memory, power and temperature of each device; cores, memory and process count of each replica."""

    name_of, key_of = "GPU", "gpu"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "screen.span", "Time", id="gpu.span"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._span: str | None = None

    def body(self) -> ComposeResult:
        """Lines of bars."""
        yield TextView(has_titles=True)

    def span(self, session: Session) -> str:
        """The shown time span: for an ended session all, until another is chosen."""
        if self._span is None:
            return SPANS[-1] if session.state in ENDED_STATES else SPANS[0]
        return self._span

    def turn(self, session: Session) -> None:
        """Switch to the next time span."""
        self._span = SPANS[(SPANS.index(self.span(session)) + 1) % len(SPANS)]

    def details(self, session: Session) -> Sequence[Detail]:
        """Telemetry of that span."""
        return (Detail(Topic.TELEMETRY, self.span(session)),)

    def command(self, session: Session) -> Sequence[str]:
        """The equivalent command."""
        span = self.span(session)
        return ("nsml", "gpumonitor", session.name, *(("--window", span) if span else ()))

    def draw(self, frame: Frame, session: Session) -> None:
        """Show them."""
        view = self.query_one(TextView)
        received = frame.model.shown.detail(TelemetryReceived)
        lines: list[str] = []
        if received is not None and received.answer.series:
            has_last = session.state not in ENDED_STATES
            room = max(view.size.width - 1, 1)
            lines = session_lines(received.answer, room=room, now=self.now(), has_last=has_last)
        none = frame.none(Topic.TELEMETRY, _nothing(session))
        view.show_text([visible(line) for line in lines], of=self.span(session), none=f"  {none}")
        span = self.span(session)
        shown = f"the last {span}" if span else "all since it was placed"
        self.say(
            frame, session, [f"{shown}: {frame.key_of('gpu.span')} changes it"], Topic.TELEMETRY
        )


def _nothing(session: Session) -> str:
    is_waiting = session.state == pb.SESSION_STATE_QUEUED
    return "it runs nowhere yet" if is_waiting else "nothing was measured in that time"
